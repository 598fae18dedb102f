# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""From recipe and overrides to settings: every key can be overridden, every mistake is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_polar import registry
from nemo_polar.errors import ConfigError
from nemo_polar.rollout.compose import compose_tree, config_dir, home, load_proxy_settings, load_settings
from nemo_polar.settings import CaptureSettings, StageSettings, TracePolicy

NEEDED = ["env.tasks=[t.yaml]", "engine.url=http://127.0.0.1:1", "policy.codec.tokenizer=x"]


def test_a_members_of_each_group_composes_with_the_others() -> None:
    members = {group: sorted(p.stem for p in (config_dir("conf") / group).glob("*.yaml")) for group in ("harness", "sandbox")}
    assert members == {"harness": registry.names("harnesses"), "sandbox": registry.names("sandboxes")}
    for harness in members["harness"]:
        for sandbox in members["sandbox"]:
            needs = ["harness.options.command=x"] if harness == "shell" else []
            needs += ["sandbox.options.provider=x"] if sandbox == "gym" else []
            found = load_settings(None, [*NEEDED, f"harness={harness}", f"sandbox={sandbox}", *needs])
            assert (found.harness.name, found.sandbox.name) == (harness, sandbox)


@pytest.mark.parametrize("engine", ["vllm", "local_vllm", "scripted"])
def test_every_engine_composes(engine: str) -> None:
    words = [f"engine={engine}", "env=demo", "policy=smollm2"]
    words += {"vllm": ["engine.url=http://127.0.0.1:1"], "scripted": ["engine.options.script=s.json"]}.get(engine, [])
    assert load_settings(None, words).engine.launch == ("local_vllm" if engine == "local_vllm" else "none")


def test_what_is_not_written_down_is_the_settings_own_default() -> None:
    found = load_settings(None, NEEDED)
    assert (found.capture, found.traces, found.stages) == (CaptureSettings(), TracePolicy(), StageSettings())


def test_the_demo_recipe_asks_for_what_the_demo_must_show() -> None:
    demo = load_settings("demo")
    assert (demo.harness.name, demo.sandbox.name, demo.engine.launch, demo.engine.relay) == ("pi", "local", "local_vllm", True)
    assert demo.group_size >= 4 and Path(demo.env.tasks[0]).is_file()
    sampling = demo.capture.sampling
    assert sampling.override and (sampling.temperature, sampling.top_p, sampling.top_k) == (1.0, 1.0, -1)


def test_any_key_can_be_overridden_without_a_plus_and_plug_in_options_can_be_added() -> None:
    words = [*NEEDED, "capture.max_calls=7", "harness.options.thinking=off", "policy.codec.template_options.a=1"]
    found = load_settings(None, words)
    assert found.capture.max_calls == 7 and found.harness.options == {"thinking": "off"}
    assert found.policy.codec.template_options == {"a": 1}


def test_a_recipe_may_lie_anywhere(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("defaults: [config, override harness: pi, _self_]\nname: mine\ngroup_size: 3\n")
    found = load_settings(str(recipe), [*NEEDED, "group_size=5"])
    assert (found.name, found.group_size) == ("mine", 5)


def test_a_missing_value_is_named_with_all_others() -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings()
    assert all(key in str(caught.value) for key in ("engine.url", "env.tasks", "policy.codec.tokenizer"))


def test_several_wrong_values_are_all_named() -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(None, [*NEEDED, "group_size=0", "stages.run=x"])
    assert "group_size: " in str(caught.value) and "stages.run: " in str(caught.value)


def test_composing_twice_gives_the_same() -> None:
    assert compose_tree("demo", []) == compose_tree("demo", [])


def test_the_proxy_needs_no_tasks() -> None:
    found = load_proxy_settings(None, NEEDED[1:])
    assert found.engine.url == "http://127.0.0.1:1" and found.capture == CaptureSettings()


def test_polar_home_moves_what_set_up_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLAR_HOME", str(tmp_path))
    assert home() == tmp_path
    assert load_settings("demo").sandbox.toolchain == str(tmp_path / "toolchain")
