# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""In what two runs differ, and which differences change what comes out of them. Pure; on settings as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from nemo_polar.errors import ConfigError
from nemo_polar.settings import RunSettings
from nemo_polar.trajectory.store import Manifest

MAY_CHANGE = (
    "name",
    "out",
    "seconds",
    "retries",
    "stages",
    "evaluation",
    "env.tasks",
    "env.only",
    "env.limit",
    "engine.url",
    "engine.urls",
    "engine.launch",
    "engine.launch_options.python",
    "engine.launch_options.threads",
    "engine.launch_options.max_sequences",
    "engine.launch_options.kv_cache_gib",
    "capture",
)
"""Settings that a run may be resumed with other values of: where things lie and run, how many at a time, how long one waits.
(The tasks themselves are compared by what is in them.)"""
MUST_STAY = ("capture.model", "capture.any_model", "capture.sampling", "capture.max_context")
"""Settings below those that may change, but may not."""

POLICY_SETTING = (
    "harness",
    "sandbox",
    "env.budget",
    "policy.max_output",
    "policy.codec.thinking_retention",
    "policy.codec.special_tokens_in_text",
    "capture.sampling",
    "capture.model",
    "capture.any_model",
    "capture.max_context",
)
"""What a policy is run under: figures of two policies mean something side by side only if these are equal."""
PLACES = ("sandbox.toolchain", "sandbox.max_output_bytes", "capture.sampling.seed")
"""Below those, but without influence on how good a policy is."""

_ABSENT = "nothing"


@dataclass(frozen=True, slots=True)
class Difference:
    """One key with two values; a key that one side does not have is ``nothing`` there."""

    key: str
    before: Any
    now: Any

    def told(self, before: str, now: str) -> str:
        """In words, e.g. ``group_size: 4 in runs/a, 8 asked for``."""
        return f"{self.key}: {_short(self.before)} {before}, {_short(self.now)} {now}"


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Difference]:
    """Every leaf in which two nested mappings differ, by its dotted key."""
    old, new = dict(_leaves(before)), dict(_leaves(now))
    found = []
    for key in sorted(old.keys() | new.keys()):
        a, b = old.get(key, _ABSENT), new.get(key, _ABSENT)
        if a != b or isinstance(a, bool) is not isinstance(b, bool):
            found.append(Difference(key, a, b))
    return found


def under(key: str, prefixes: Sequence[str]) -> int:
    """Length of the longest of ``prefixes`` that is ``key`` or one of its parents; 0 when none is."""
    return max((len(p) for p in prefixes if key == p or key.startswith(f"{p}.")), default=0)


def settings_of(manifest: Manifest) -> dict[str, Any]:
    """A run's settings with today's defaults for keys that are newer than the run.

    Raises:
        ConfigError: they are not those of a run of this version (a proxy's, say).
    """
    try:
        return RunSettings.model_validate(manifest.settings).model_dump(mode="json")
    except ValidationError as exc:
        first = exc.errors()[0]
        raise ConfigError(f"the manifest's settings are no run's of this version: {first['loc']}: {first['msg']}") from exc


def resume_differences(manifest: Manifest, settings: Mapping[str, Any], tasks: Mapping[str, str]) -> list[Difference]:
    """What forbids to go on with the run of ``manifest`` under these settings and tasks (id to hash, in order)."""
    changed = [
        d for d in differences(settings_of(manifest), settings) if under(d.key, MUST_STAY) or not under(d.key, MAY_CHANGE)
    ]
    changed += _tasks(manifest.tasks, tasks)
    if not changed and list(manifest.tasks) != list(tasks):  # a rollout's id has its task's place in it
        changed.append(Difference("env.tasks", list(manifest.tasks), list(tasks)))
    return changed


def engine_differences(manifest: Manifest, now: Manifest) -> list[Difference]:
    """What the engine and the codec say of themselves."""
    return [
        Difference(key, a, b)
        for key in ("model", "codec", "codec_fingerprint")
        if (a := getattr(manifest, key)) != (b := getattr(now, key))
    ]


def comparison_differences(a: Manifest, b: Manifest) -> list[Difference]:
    """Why the figures of two runs cannot be put side by side: tasks, harness, sampling, rendering."""
    settings = [
        d for d in differences(settings_of(a), settings_of(b)) if under(d.key, POLICY_SETTING) and not under(d.key, PLACES)
    ]
    rendering = (
        []
        if a.codec_fingerprint == b.codec_fingerprint
        else [Difference("codec_fingerprint", a.codec_fingerprint[:12], b.codec_fingerprint[:12])]
    )
    return settings + rendering + _tasks(a.tasks, b.tasks)


def _tasks(a: Mapping[str, str], b: Mapping[str, str]) -> list[Difference]:
    """Tasks that are missing on one side, or are not the same: another instruction, file or verifier."""
    return [Difference(f"tasks.{d.key}", d.before[:12], d.now[:12]) for d in differences(a, b)]


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        elif not isinstance(value, Mapping):
            yield f"{prefix}{key}", value


def _short(value: Any) -> str:
    text = value if value == _ABSENT else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
