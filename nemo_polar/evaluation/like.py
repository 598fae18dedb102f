# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""``--like RUN``: evaluate a policy the way it was trained.

Harness, sandbox, sampling, rendering (thinking retention, template options) and the length of replies come from the manifest of
the training run. The command line may say where the checkpoint is; where it says something else than the manifest about how the
policy is run, that is an error, unless such differences are allowed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from nemo_polar.errors import ConfigError
from nemo_polar.rollout.compose import Adapt
from nemo_polar.rollout.differences import Difference, differences, settings_of, under
from nemo_polar.settings import CodecSettings, PluginSettings, PolicySettings, SamplingPolicy, SandboxSettings
from nemo_polar.tokens.load import load_codec
from nemo_polar.trajectory.store import Manifest, read_manifest

TAKEN: Mapping[str, type[BaseModel] | None] = {
    "harness": PluginSettings,
    "sandbox": SandboxSettings,
    "policy": PolicySettings,
    "capture.sampling": SamplingPolicy,
    "capture.model": None,
    "capture.any_model": None,
    "capture.max_context": None,
}
"""What comes from the training run: blocks, with the model that knows their defaults, and single values."""
FREE = (
    "policy.name",
    "policy.model",
    "policy.codec.tokenizer",
    "sandbox.toolchain",
    "sandbox.max_output_bytes",
    "capture.sampling.seed",
)
"""What the command line may say otherwise: which checkpoint, where things lie, which draws."""
_OWN = "capture.sampling.seed"
"""Not taken: an evaluation draws anew."""
_HIDDEN = "***"
_NONE = object()


class Like:
    """The way of one training run."""

    def __init__(self, run_dir: Path, *, allow_different: bool = False) -> None:
        """Raises ``ConfigError`` when ``run_dir`` is no run of this version, ``JournalError`` when it has no manifest."""
        self.run_dir = run_dir
        self.manifest: Manifest = read_manifest(run_dir)
        self.differences: list[Difference] = []
        """What ``adapt`` found to differ, where that is allowed."""
        self._settings = settings_of(self.manifest)
        self._allowed = allow_different

    @property
    def adapt(self) -> Adapt:
        """Puts the run's blocks into a composed config, and what the command line says over them.

        It raises ``ConfigError`` when the two differ in more than ``FREE``.
        """
        return self._adapt

    def _adapt(self, config: Any, overridden: Sequence[str]) -> None:
        from omegaconf import OmegaConf

        found: list[Difference] = []
        for name, model in TAKEN.items():
            taken = _get(self._settings, name)
            block = _Block(name, copy.deepcopy(taken))
            for key in [*_said(name, overridden), *([_OWN] if under(_OWN, [name]) else [])]:
                value = OmegaConf.select(config, key, default=_NONE)
                block.put(key, OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value)
            now = _whole(block.value, model)
            found += [d for d in differences({name: taken}, {name: now}) if not under(d.key, FREE)]
            if hidden := next(_hidden(block.value, name), None):
                raise ConfigError(f"{hidden}: {self.run_dir} does not hold this secret; give it as {hidden}=VALUE")
            OmegaConf.update(config, name, _literal(block.value), merge=False, force_add=True)
        OmegaConf.update(config, "evaluation.like", str(self.run_dir), force_add=True)
        self._judge(found)

    def check_rendering(self, codec: CodecSettings) -> None:
        """Make sure that the checkpoint's tokenizer and template render as the run's did. Loads the tokenizer.

        Raises:
            ConfigError: they do not.
        """
        now = load_codec(codec).fingerprint.hex()
        if now != self.manifest.codec_fingerprint:
            self._judge([Difference("codec_fingerprint", self.manifest.codec_fingerprint[:12], now[:12])])

    def _judge(self, found: Sequence[Difference]) -> None:
        if found and not self._allowed:
            told = "; ".join(d.told("when it was trained", "here") for d in found)
            raise ConfigError(f"not like {self.run_dir}: {told}. Leave it out, or give --allow-different")
        self.differences += found


class _Block:
    """A settings block, or a single value, at a dotted name."""

    def __init__(self, name: str, value: Any) -> None:
        self._name = name
        self.value = value

    def put(self, key: str, value: Any) -> None:
        """Set what ``key`` stands for; ``_NONE`` takes it away."""
        if key == self._name:
            self.value = value
            return
        *path, last = key[len(self._name) + 1 :].split(".")
        block = self.value
        for part in path:
            block = block.setdefault(part, {})
        if value is _NONE:
            block.pop(last, None)
        else:
            block[last] = value


def _said(name: str, overridden: Sequence[str]) -> list[str]:
    """The overridden keys that are in the block ``name``, or the block itself when something around it is overridden."""
    around = [key for key in overridden if name == key or name.startswith(f"{key}.")]
    return [*([name] if around else []), *(key for key in overridden if key.startswith(f"{name}."))]


def _get(tree: Mapping[str, Any], key: str) -> Any:
    value: Any = tree
    for part in key.split("."):
        value = value[part]
    return value


def _whole(value: Any, model: type[BaseModel] | None) -> Any:
    """A block with its defaults written out. What is wrong with it is said when the whole config is checked."""
    if model is None:
        return value
    try:
        return model.model_validate(value).model_dump(mode="json")
    except ValidationError:
        return value


def _literal(value: Any) -> Any:
    """The same value for OmegaConf, which would take a dollar and a brace in a text for an interpolation."""
    if isinstance(value, str):
        return value.replace("${", "\\${")
    if isinstance(value, Mapping):
        return {key: _literal(inner) for key, inner in value.items()}
    return [_literal(inner) for inner in value] if isinstance(value, list) else value


def _hidden(value: Any, key: str) -> Iterator[str]:
    """Keys whose value the manifest left out."""
    if value == _HIDDEN:
        yield key
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _hidden(inner, f"{key}.{name}")
