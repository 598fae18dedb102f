# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Each Gym is found, or it is said what is missing; each gets the command that it understands, started where it finds Polar."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from nemo_polar.errors import ConfigError
from nemo_polar.gym.installed import find_gym
from nemo_polar.gym.launch import AGENT_BLOCK, ROOTS, Launcher, Model, head_port
from nemo_polar.gym.plugin_root import plugin_root, servers
from tests.support.gym import fake_gym, fake_plugin


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLAR_HOME", str(tmp_path / "home (1)"))
    for name in (ROOTS, "RAY_USAGE_STATS_ENABLED"):
        monkeypatch.delenv(name, raising=False)


def launcher(folder: Path, version: str = "0.7.0") -> Launcher:
    here = folder / "here"
    here.mkdir()
    return Launcher.prepare(fake_gym(folder / "env", version), fake_plugin(folder / "plugin"), here)


def test_the_plugin_tree_is_in_the_package_with_its_servers() -> None:
    assert list(servers(plugin_root())) == [("responses_api_agents", "polar_agent"), ("resources_servers", "polar")]


@pytest.mark.parametrize("where", ["env", "env/bin", "env/bin/python", "env/bin/gym"])
def test_an_environment_is_found_by_any_of_its_names(tmp_path: Path, where: str) -> None:
    gym = fake_gym(tmp_path / "env", "0.4.0")
    assert find_gym(str(tmp_path / where)) == gym


def test_an_environment_that_cannot_be_used_is_refused_with_what_to_do(tmp_path: Path) -> None:
    fake_gym(tmp_path / "old", "0.3.1")
    fake_gym(tmp_path / "old_python", python="3.11.9")
    fake_gym(tmp_path / "alone", polar=False)
    (fake_gym(tmp_path / "broken").python).write_text("#!/bin/sh\necho oh no >&2; exit 3\n")
    fake_gym(tmp_path / "no_command").command.unlink()
    for name, said in {
        "old": "0.3.1 .* too old",
        "old_python": "no NeMo Gym for the Python .*3.11.9(.|\n)*Python 3.12",
        "alone": "nemo_polar is not installed",
        "broken": "oh no",
        "no_command": "no command",
        "nowhere": "no Python environment",
    }.items():
        with pytest.raises(ConfigError, match=said):
            find_gym(str(tmp_path / name))


def test_a_newer_gym_is_started_where_the_user_is_with_polar_as_a_search_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = launcher(tmp_path, "0.7.0")
    command = made.start(Model(name="m", url="http://127.0.0.1:1/v1"), {})
    assert command.cwd == tmp_path / "here" and command.env[ROOTS] == str(tmp_path / "plugin")
    assert command.argv[:5] == (str(made.gym.command), "env", "start", "--environment", "polar/config_v7")
    block = "++policy_model.responses_api_models.vllm_model"
    assert f"{block}.return_token_id_information=true" in command.argv
    assert f"{block}.request_prompt_and_generation_token_ids=true" in command.argv
    monkeypatch.setenv(ROOTS, "/mine:/yours")
    assert made.start(Model(), {}).env[ROOTS] == f"{tmp_path / 'plugin'}:/mine:/yours"


def test_an_older_gym_is_started_in_a_folder_with_polar_in_it(tmp_path: Path) -> None:
    command = launcher(tmp_path, "0.4.0").start(Model(), {})
    assert (command.cwd / "environments" / "polar" / "config.yaml").is_file() and ROOTS not in command.env
    assert tmp_path / "plugin" not in command.cwd.parents, "what Gym writes must not land in the package"
    assert command.argv[3:5] == ("--environment", "polar")
    assert not any("request_prompt" in word for word in command.argv)


@pytest.mark.parametrize("version", ["0.4.0", "0.7.0"])
def test_every_override_is_one_that_hydra_reads_and_the_users_own_come_last(tmp_path: Path, version: str) -> None:
    made = launcher(tmp_path, version)
    agent = {"engine_url": None, "harness": "pi", "out": "'/a b/c'"}
    command = made.start(Model(name="m", url="u", key="k"), agent, ["+uv_venv_dir=mine"])
    words = [word for word in command.argv[1:] if "=" in word]
    parsed = {override.key_or_group: override.value() for override in OverridesParser.create().parse_overrides(words)}
    assert parsed[f"{AGENT_BLOCK}.engine_url"] is None and parsed[f"{AGENT_BLOCK}.out"] == "/a b/c"
    assert parsed["skip_venv_if_present"] is True and command.argv[-1] == "+uv_venv_dir=mine"
    assert made.flags[0] in words and str(made.linked.folder) in made.flags[0]


def test_a_collections_paths_are_the_users_wherever_gym_is_started(tmp_path: Path) -> None:
    command = launcher(tmp_path, "0.4.0").collect(
        Path("in.jsonl"), Path("/abs/out.jsonl"), {"agent": "a", "limit": None}, ["+x=1"]
    )
    words = list(command.argv)
    assert words[1:4] == ["eval", "run", "--no-serve"] and words[-1] == "+x=1" and "--limit" not in words
    assert words[words.index("--input") + 1] == str(tmp_path / "here" / "in.jsonl")
    assert words[words.index("--output") + 1] == "/abs/out.jsonl" and words[words.index("--agent") + 1] == "a"


def test_each_server_is_tested_with_its_data_and_the_package_is_not_written_to(tmp_path: Path) -> None:
    commands = launcher(tmp_path).test()
    assert [command.argv[3] for command in commands] == [
        "+entrypoint=responses_api_agents/polar_agent",
        "+entrypoint=resources_servers/polar",
    ]
    assert all("+should_validate_data=true" in command.argv for command in commands)
    assert all(command.env["PYTHONDONTWRITEBYTECODE"] == "1" for command in commands)
    assert all("no:cacheprovider" in command.env["PYTEST_ADDOPTS"] for command in commands)


def test_a_newer_gym_validates_the_manifest_as_well_and_takes_no_overrides_for_it(tmp_path: Path) -> None:
    config, manifest = launcher(tmp_path).validate(Model())
    assert config.argv[3:5] == ("--environment", "polar/config_v7") and manifest.argv[1:] == ("env", "validate", "polar")


def test_the_key_of_the_engine_is_not_shown_nor_kept(tmp_path: Path) -> None:
    command = launcher(tmp_path).start(Model(url="http://127.0.0.1:1/v1", key="dummy-key"), {})
    assert "dummy-key" in command.argv and "dummy-key" not in command.shown(tmp_path)
    assert "hydra.output_subdir=null" in command.argv


def test_what_the_user_has_set_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = launcher(tmp_path)
    assert made.variables["RAY_USAGE_STATS_ENABLED"] == "0"
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "1")
    assert "RAY_USAGE_STATS_ENABLED" not in made.variables


def test_the_head_servers_port_is_gyms_own_unless_overridden() -> None:
    assert head_port([]) == head_port(["+x=1"]) == 11000
    assert head_port(["+head_server.port=1", "++head_server.port=11001"]) == 11001
    with pytest.raises(ConfigError, match="a port is a number"):
        head_port(["+head_server.port=x"])
