# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Which settings may change when a run is resumed, and which forbid to compare two runs."""

from __future__ import annotations

from typing import Any

import pytest

from nemo_polar.errors import ConfigError
from nemo_polar.rollout.differences import comparison_differences, differences, resume_differences, settings_of
from nemo_polar.rollout.manifest import plain_settings
from nemo_polar.trajectory.store import Manifest
from tests.support.rollouts import settings


def manifest(tasks: dict[str, str] | None = None, fingerprint: str = "f", **changes: Any) -> Manifest:
    return Manifest(
        created_at=1.0,
        model="m",
        codec="c",
        codec_fingerprint=fingerprint,
        thinking_retention="all",
        tasks={"a": "1", "b": "2"} if tasks is None else tasks,
        settings=plain_settings(settings(**changes)),
    )


def test_every_leaf_that_differs_is_named_with_both_values() -> None:
    found = differences({"a": {"b": 1, "c": [1], "d": 1}, "e": True}, {"a": {"b": 2, "c": [1], "d": 1.0}, "e": 1, "f": None})
    assert [(d.key, d.before, d.now) for d in found] == [("a.b", 1, 2), ("e", True, 1), ("f", "nothing", None)]


HARMLESS: list[dict[str, Any]] = [
    {"name": "moved", "out": "elsewhere"},
    {"seconds": 99, "retries": 7},
    {"stages": {"run": 9}},
    {"engine": {"name": "fake", "url": "http://127.0.0.1:2", "launch": "local_vllm"}},
    {"env": {"tasks": ["moved.yaml"], "budget": {"seconds": 5}}},
    {"capture": {"max_calls": 3, "call_seconds": 9.0}},
    {"evaluation": {"threshold": 0.5}},
]


@pytest.mark.parametrize("changes", HARMLESS, ids=str)
def test_where_and_how_fast_a_run_goes_on_may_change(changes: dict[str, Any]) -> None:
    assert resume_differences(manifest(), plain_settings(settings(**changes)), manifest().tasks) == []


HARMFUL: dict[str, dict[str, Any]] = {
    "group_size": {"group_size": 3},
    "harness.name": {"harness": {"name": "other"}},
    "harness.options.thinking": {"harness": {"name": "fake", "options": {"thinking": "off"}}},
    "sandbox.name": {"sandbox": {"name": "other"}},
    "policy.codec.thinking_retention": {
        "policy": {"name": "fake", "codec": {"tokenizer": "unused", "thinking_retention": "template"}}
    },
    "policy.model": {"policy": {"name": "fake", "model": "other", "codec": {"tokenizer": "unused"}}},
    "capture.sampling.temperature": {"capture": {"sampling": {"temperature": 0.5}}},
    "capture.sampling.seed": {"capture": {"sampling": {"seed": 1}}},
    "capture.max_context": {"capture": {"max_context": 5}},
    "traces.train_unrescorable": {"traces": {"train_unrescorable": True}},
    "env.budget.turns": {"env": {"tasks": ["unused.yaml"], "budget": {"seconds": 5, "turns": 1}}},
    "engine.relay": {"engine": {"name": "fake", "relay": True}},
    "engine.options.vocab": {"engine": {"name": "fake", "options": {"vocab": 5}}},
}


@pytest.mark.parametrize(("key", "changes"), HARMFUL.items(), ids=HARMFUL)
def test_what_changes_the_rollouts_forbids_to_go_on(key: str, changes: dict[str, Any]) -> None:
    assert key in [d.key for d in resume_differences(manifest(), plain_settings(settings(**changes)), manifest().tasks)]


@pytest.mark.parametrize(
    ("tasks", "key"),
    [({"a": "1"}, "tasks.b"), ({"a": "1", "b": "x"}, "tasks.b"), ({"b": "2", "a": "1"}, "env.tasks")],
    ids=["gone", "changed", "order"],
)
def test_other_tasks_forbid_to_go_on(tasks: dict[str, str], key: str) -> None:
    assert [d.key for d in resume_differences(manifest(), plain_settings(settings()), tasks)] == [key]


def test_settings_newer_than_the_run_count_with_their_defaults() -> None:
    old = manifest()
    del old.settings["evaluation"], old.settings["stages"]
    assert resume_differences(old, plain_settings(settings(stages={})), old.tasks) == []
    with pytest.raises(ConfigError, match="no run's"):
        settings_of(old.model_copy(update={"settings": {"engine": {}}}))


def test_runs_may_be_compared_that_differ_in_place_size_and_draws_only() -> None:
    other = manifest(
        name="b",
        group_size=9,
        capture={"sampling": {"seed": 4}},
        engine={"name": "fake", "url": "u"},
        traces={"max_trace_tokens": 5},
    )
    assert comparison_differences(manifest(), other) == []


@pytest.mark.parametrize(
    "key", [k for k in HARMFUL if k.startswith(("harness", "sandbox", "env", "policy.codec")) or "sampling.t" in k]
)
def test_runs_that_ran_their_policies_differently_may_not_be_compared(key: str) -> None:
    assert [d.key for d in comparison_differences(manifest(), manifest(**HARMFUL[key]))] == [key]


def test_runs_with_other_tasks_or_another_rendering_may_not_be_compared() -> None:
    assert [d.key for d in comparison_differences(manifest(), manifest({"a": "1", "b": "9"}))] == ["tasks.b"]
    assert [d.key for d in comparison_differences(manifest(), manifest(fingerprint="g"))] == ["codec_fingerprint"]
