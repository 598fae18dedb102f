# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Gym builds no environment for a server that needs none of its own, and finds Polar where it looks."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from nemo_polar.errors import ConfigError
from nemo_polar.gym.venvs import is_linked, link_into_gym, link_venvs, needs_only_gym, unlink_from_gym, work_folder
from tests.support.gym import fake_gym, fake_plugin


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POLAR_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.mark.parametrize("version", ["0.4.0", "0.7.0"])
def test_the_servers_that_need_only_gym_get_the_environment_of_gym(tmp_path: Path, version: str) -> None:
    gym, root = fake_gym(tmp_path / "env", version), fake_plugin(tmp_path / "plugin")
    expected = ["responses_api_agents/polar_agent", "resources_servers/polar", "responses_api_models/vllm_model"]
    expected += ["environment_servers/legacy_agent"] if version == "0.7.0" else []
    for _ in range(2):  # a second time changes nothing
        linked = link_venvs(gym, root, ["vllm_model", "local_vllm_model"])
        found = {str(venv.parent.relative_to(linked.folder)): venv.readlink() for venv in linked.folder.glob("*/*/.venv")}
        assert found == dict.fromkeys(expected, gym.prefix)
        assert linked.left_to_gym == ("responses_api_models/local_vllm_model",)
        assert all((linked.folder / name / ".venv" / "bin" / "activate").exists() for name in expected)


def test_two_gyms_do_not_get_into_each_others_way(tmp_path: Path) -> None:
    root = fake_plugin(tmp_path / "plugin")
    one, other = fake_gym(tmp_path / "one", "0.7.0"), fake_gym(tmp_path / "other", "0.7.0")
    assert link_venvs(one, root).folder != link_venvs(other, root).folder


def test_an_environment_without_an_activate_that_gym_can_source_is_given_one(tmp_path: Path) -> None:
    gym = fake_gym(tmp_path / "env with space", venv=False)
    venv = link_venvs(gym, fake_plugin(tmp_path / "plugin")).folder / "resources_servers" / "polar" / ".venv"
    assert not venv.is_symlink() and (venv / "bin" / "python").readlink() == gym.python
    said = subprocess.run(
        ["bash", "-c", f"source '{venv}/bin/activate'; command -v python gym"], capture_output=True, text=True
    )
    assert said.stdout.splitlines() == [f"{venv}/bin/python", f"{gym.scripts}/gym"]


def test_a_link_to_an_environment_that_has_moved_is_put_right(tmp_path: Path) -> None:
    gym, root = fake_gym(tmp_path / "env"), fake_plugin(tmp_path / "plugin")
    venv = link_venvs(gym, root).folder / "resources_servers" / "polar" / ".venv"
    venv.unlink()
    venv.symlink_to(tmp_path / "gone")
    link_venvs(gym, root)
    assert venv.readlink() == gym.prefix


def test_what_is_no_link_is_left_alone_and_named(tmp_path: Path) -> None:
    gym, root = fake_gym(tmp_path / "env"), fake_plugin(tmp_path / "plugin")
    venv = link_venvs(gym, root).folder / "resources_servers" / "polar" / ".venv"
    venv.unlink()
    (venv / "bin").mkdir(parents=True)
    with pytest.raises(ConfigError, match="in the way"):
        link_venvs(gym, root)
    assert (venv / "bin").is_dir()


def test_an_unknown_model_server_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="local_vllm_model, openai_model, vllm_model"):
        link_venvs(fake_gym(tmp_path / "env"), fake_plugin(tmp_path / "plugin"), ["vllm"])


def test_a_server_that_says_nothing_of_its_needs_is_left_to_gym(tmp_path: Path) -> None:
    assert not needs_only_gym(tmp_path)
    (tmp_path / "requirements.txt").write_text("-e nemo-gym[dev] @ ../../\nnemo-gym-extras\n")
    assert not needs_only_gym(tmp_path)


def test_a_gym_without_search_roots_finds_polar_and_the_users_settings_in_its_working_folder(tmp_path: Path) -> None:
    gym, root = fake_gym(tmp_path / "env", "0.4.0"), fake_plugin(tmp_path / "plugin")
    beside = tmp_path / "project"
    beside.mkdir()
    (beside / "env.yaml").write_text("policy_api_key: x\n")
    work = work_folder(gym, root, beside)
    assert (work / "environments" / "polar" / "config.yaml").resolve() == root / "environments" / "polar" / "config.yaml"
    assert (work / "responses_api_agents" / "polar_agent" / "requirements.txt").is_file()
    assert (work / "env.yaml").read_text() == "policy_api_key: x\n"
    (beside / "env.yaml").unlink()
    work_folder(gym, root, beside)
    assert not (work / "env.yaml").is_symlink(), "settings of another folder must not stay in force"


def test_links_in_gyms_installation_come_and_go_and_nothing_else_does(tmp_path: Path) -> None:
    gym, root = fake_gym(tmp_path / "env", "0.4.0"), fake_plugin(tmp_path / "nemo_polar" / "gym" / "plugin")
    assert not is_linked(gym, root)
    assert len(link_into_gym(gym, root)) == 3 and is_linked(gym, root)
    (gym.site / "resources_servers" / "polar").unlink()
    (gym.site / "resources_servers" / "polar").mkdir()
    with pytest.raises(ConfigError, match="in the way"):
        link_into_gym(gym, root)
    assert len(unlink_from_gym(gym, root)) == 2 and (gym.site / "resources_servers" / "polar").is_dir()
