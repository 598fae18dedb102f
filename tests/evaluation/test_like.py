# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""``--like`` takes the way a policy was trained from its run, and lets nothing else through unsaid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nemo_polar.errors import ConfigError
from nemo_polar.evaluation.like import Like
from nemo_polar.rollout.compose import load_settings
from nemo_polar.rollout.manifest import plain_settings
from nemo_polar.settings import RunSettings
from nemo_polar.tokens.load import load_codec
from nemo_polar.trajectory.store import Manifest, write_manifest
from tests.support.cli import overrides

TASKS = Path("/nowhere/tasks.yaml")


def trained(folder: Path, *words: str, **changes: Any) -> Path:
    """The manifest of a training run with the small settings of the command line's tests."""
    settings = load_settings(None, overrides(TASKS, *words))
    facts: dict[str, Any] = {
        "created_at": 1.0,
        "model": "m",
        "codec": "c",
        "codec_fingerprint": load_codec(settings.policy.codec).fingerprint.hex(),
        "thinking_retention": settings.policy.codec.thinking_retention,
        "settings": plain_settings(settings),
    }
    folder.mkdir(exist_ok=True)
    write_manifest(folder, Manifest(**{**facts, **changes}))
    return folder


def evaluated(run: Path, *words: str, allow: bool = False) -> tuple[RunSettings, Like]:
    way = Like(run, allow_different=allow)
    return load_settings(None, ["env.tasks=[t.yaml]", "engine.url=http://127.0.0.1:1", *words], adapt=way.adapt), way


def test_harness_sandbox_sampling_and_rendering_are_the_training_runs(tmp_path: Path) -> None:
    words = ("capture.sampling.temperature=0.7", "policy.codec.thinking_retention=template", "policy.max_output=99")
    before = load_settings(None, overrides(TASKS, *words, "policy.codec.template_options={a: 1}"))
    run = trained(tmp_path / "run", *words, "policy.codec.template_options={a: 1}", "capture.sampling.seed=9")
    now, way = evaluated(run, "name=x", "group_size=3")
    assert (now.harness, now.sandbox, now.policy) == (before.harness, before.sandbox, before.policy)
    assert now.capture.sampling == before.capture.sampling, "but for the seed"
    assert (now.name, now.group_size, now.evaluation.like) == ("x", 3, str(run)) and way.differences == []


def test_the_checkpoint_and_where_things_lie_may_be_said(tmp_path: Path) -> None:
    run = trained(tmp_path / "run")
    now, way = evaluated(run, "policy.model=ckpt", "sandbox.toolchain=tools", "capture.sampling.seed=3")
    assert (now.policy.model, now.sandbox.toolchain, now.capture.sampling.seed) == (
        "ckpt",
        "tools",
        3,
    ) and way.differences == []
    way.check_rendering(now.policy.codec)


OTHER = {
    "capture.sampling.temperature": ["capture.sampling.temperature=0.5"],
    "policy.codec.thinking_retention": ["policy.codec.thinking_retention=template"],
    "policy.codec.template_options.b": ["policy.codec.template_options.b=2"],
    "harness.options.command": ["harness.options.command=other"],
    "harness.name": ["harness=pi"],
    "sandbox.name": ["sandbox=local"],
    "policy.max_output": ["policy=smollm2"],
    "capture.max_context": ["capture.max_context=512"],
}


@pytest.mark.parametrize(("key", "words"), OTHER.items(), ids=OTHER)
def test_a_difference_in_how_the_policy_is_run_is_refused_by_name_unless_allowed(
    tmp_path: Path, key: str, words: list[str]
) -> None:
    run = trained(tmp_path / "run")
    with pytest.raises(ConfigError, match=rf"{key}: .* when it was trained, .* here.*--allow-different"):
        evaluated(run, *words)
    now, way = evaluated(run, *words, allow=True)
    assert key in [d.key for d in way.differences]
    value: Any = now.model_dump()
    for part in key.split("."):
        value = value[part]
    assert value == next(d.now for d in way.differences if d.key == key)


def test_saying_the_same_as_the_training_run_is_no_difference(tmp_path: Path) -> None:
    run = trained(tmp_path / "run")
    _, way = evaluated(run, "capture.sampling.temperature=1.0", "harness=shell", "harness.options.command='python3 agent.py 3'")
    assert way.differences == []


def test_a_checkpoint_that_renders_otherwise_is_refused(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", codec_fingerprint="ab" * 32)
    now, way = evaluated(run)
    with pytest.raises(ConfigError, match="codec_fingerprint: 'abababababab'"):
        way.check_rendering(now.policy.codec)


def test_text_that_looks_like_an_interpolation_is_taken_as_it_is(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", "harness.options.command='echo \\${HOME}'")
    now, way = evaluated(run)
    assert now.harness.options["command"] == "echo ${HOME}" and way.differences == []


def test_a_secret_that_the_manifest_left_out_has_to_be_given(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", "harness.options.env={token: abc}")
    with pytest.raises(ConfigError, match=r"harness\.options\.env\.token: .*does not hold this secret"):
        evaluated(run)


def test_a_proxys_folder_is_no_training_run(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", settings={"capture": {}})
    with pytest.raises(ConfigError, match="no run's of this version"):
        Like(run)
