# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""``polar gym``: says what it runs and runs that; datasets go there and back, whole or not at all."""

from __future__ import annotations

import json
import shlex
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from nemo_polar.cli.boundary import Exit
from nemo_polar.rollout.tasks import load_tasks
from tests.support.gym import fake_gym
from tests.test_cli import polar


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POLAR_HOME", str(tmp_path / "home"))
    for name in ("NEMO_GYM_EXTRA_ROOTS", "RAY_USAGE_STATS_ENABLED", "POLAR_GYM_MODEL_KEY"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def test_a_gym_command_is_run_as_it_is_printed(tmp_path: Path, here: Path) -> None:
    fake_gym(tmp_path / "env", "0.7.0")
    printed = polar("gym", "list", "--print", "--gym", str(tmp_path / "env"))
    assert printed.exit_code == Exit.OK and not (tmp_path / "env" / "ran.txt").exists()
    assert subprocess.run(printed.stdout, shell=True, cwd=here).returncode == 0
    typed = (tmp_path / "env" / "ran.txt").read_text()
    (tmp_path / "env" / "ran.txt").unlink()
    ran = polar("gym", "list", "--gym", str(tmp_path / "env"))
    assert ran.exit_code == Exit.OK and (tmp_path / "env" / "ran.txt").read_text() == typed
    assert typed.splitlines()[0] == str(here) and "plugin" in typed.splitlines()[2]


def test_an_older_gym_that_would_not_list_polar_is_told_so(tmp_path: Path) -> None:
    fake_gym(tmp_path / "env", "0.4.0")
    (tmp_path / "env" / "lib" / "nemo_polar" / "gym").mkdir(parents=True)
    assert "polar gym link" in polar("gym", "list", "--gym", str(tmp_path / "env")).stderr
    assert polar("gym", "link", "--gym", str(tmp_path / "env")).exit_code == Exit.OK
    assert (tmp_path / "env" / "lib" / "environments" / "polar" / "config.yaml").is_file()
    assert "polar gym link" not in polar("gym", "list", "--gym", str(tmp_path / "env")).stderr
    assert polar("gym", "link", "--remove", "--gym", str(tmp_path / "env")).stdout.count("removed") == 3
    assert not (tmp_path / "env" / "lib" / "environments" / "polar").exists()


def test_what_env_prints_can_be_evaluated_by_a_shell(tmp_path: Path) -> None:
    fake_gym(tmp_path / "env", "0.7.0")
    printed = polar("gym", "env", "--gym", str(tmp_path / "env"))
    script = f'{printed.stdout}\ncommand -v gym; echo "$NEMO_GYM_EXTRA_ROOTS"; echo $POLAR_GYM_FLAGS'
    said = subprocess.run(["bash", "-ec", script], capture_output=True, text=True).stdout.splitlines()
    assert said[0] == str(tmp_path / "env" / "bin" / "gym") and said[1].endswith("nemo_polar/gym/plugin")
    assert "+skip_venv_if_present=true" in said[2] and f"+uv_venv_dir={tmp_path / 'home'}" in said[2]


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def start(tmp_path: Path, *words: str) -> tuple[int, str, str]:
    gym = ("--gym", str(tmp_path / "env"), f"+head_server.port={free_port()}")
    result = polar("gym", "start", *gym, *words)
    return result.exit_code, result.stdout, result.stderr


def test_start_hands_the_agent_absolute_paths_and_a_null_for_no_engine(tmp_path: Path, here: Path) -> None:
    fake_gym(tmp_path / "env", "0.4.0")
    (here / "tok").mkdir()
    options = ("--tokenizer", "tok", "--engine-url", "none", "--harness", "codex", "-s", "concurrency=3")
    code, shown, _ = start(tmp_path, "--model-url", "http://127.0.0.1:1/v1", "--model", "m", *options, "--print")
    block = "++polar_agent.responses_api_agents.polar_agent"
    assert code == Exit.OK
    for setting in (f"tokenizer={here}/tok", "engine_url=null", "harness=codex", "concurrency=3", f"out={here}/runs"):
        assert f"{block}.{setting}" in shown.split()


def test_settings_of_the_polar_run_reach_the_agent_as_one_list_that_hydra_reads(tmp_path: Path) -> None:
    fake_gym(tmp_path / "env", "0.4.0")
    given = ["stages.run=2", "policy.codec.chat_template='/a b.jinja'", "env.only=[x,y]"]
    code, shown, _ = start(tmp_path, *(word for setting in given for word in ("-p", setting)), "--print")
    [word] = [word for word in shlex.split(shown) if ".overrides=" in word]
    assert code == Exit.OK and OverridesParser.create().parse_override(word).value() == given


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--engine-url", "localhost"), "auto, none or an http URL"),
        (("--tokenizer", "nowhere"), "no such folder"),
        (("--set", "harness"), "--set harness: must be KEY=VALUE"),
        (("--polar", "seconds"), "--polar seconds: must be KEY=VALUE"),
        (("--model-type", "vllm"), "vllm_model"),
    ],
)
def test_a_wrong_option_is_refused_before_gym_is_started(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    fake_gym(tmp_path / "env")
    code, _, told = start(tmp_path, *words)
    assert code == Exit.USAGE and said in told and not (tmp_path / "env" / "ran.txt").exists()


def test_a_server_that_gym_must_build_needs_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_gym(tmp_path / "env")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    code, _, told = start(tmp_path, "--model-type", "local_vllm_model")
    assert code == Exit.USAGE and "pip install uv" in told


def test_a_second_gym_on_the_machine_is_refused(tmp_path: Path) -> None:
    fake_gym(tmp_path / "env")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        result = polar("gym", "start", "--gym", str(tmp_path / "env"), f"+head_server.port={taken.getsockname()[1]}")
    assert result.exit_code == Exit.USAGE and "is in use" in result.stderr


def test_a_failure_of_gym_is_a_finding_and_its_leftovers_are_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_gym(tmp_path / "env")
    monkeypatch.setenv("FAKE_GYM_EXIT", "4")
    monkeypatch.setenv("FAKE_GYM_SCRIPT", "sleep 100 &")
    code, _, told = start(tmp_path)
    assert code == Exit.FINDINGS and "exit code 4" in told and "ended 1 processes" in told


def test_a_python_without_gym_is_told_how_to_get_one() -> None:
    result = polar("gym", "list")
    if "not installed" not in result.stderr:
        pytest.skip("NeMo Gym is installed here")
    assert result.exit_code == Exit.USAGE and "nemo-gym==0.4.0" in result.stderr


# --- datasets ---------------------------------------------------------------------------------------------------------

TASKS = """\
tasks:
  - id: a
    instruction: "Write é, \\u2028\\x85 and\\n."
    files: {a.py: {source: a.py}, b.bin: {source: b.bin, executable: true}}
    verifier: {type: command, command: ./t.sh, files: {t.sh: {source: t.sh, executable: true}}}
  - id: b
    instruction: Do nothing.
    verifier: {type: command, command: 'true'}
"""


def write_tasks(folder: Path) -> Path:
    (folder / "a.py").write_text("x = 1\n")
    (folder / "b.bin").write_bytes(b"\xff\0")
    (folder / "t.sh").write_text("#!/bin/sh\n")
    (folder / "tasks.yaml").write_text(TASKS)
    return folder / "tasks.yaml"


def test_tasks_go_into_rows_and_come_back_with_the_same_files(here: Path) -> None:
    source = write_tasks(here)
    done = polar("gym", "data", "tasks.yaml", "-o", "rows.jsonl")
    assert (
        done.exit_code == Exit.OK
        and "2 rows in rows.jsonl, with 3 files taken in (18 bytes, 1 of them not text)" in done.stdout
    )
    back = polar("gym", "data", "--back", "rows.jsonl", "rows.jsonl", "-o", "back.jsonl")
    assert back.exit_code == Exit.OK and "2 tasks in back.jsonl; 2 rows were of a task" in back.stdout
    before, after = load_tasks([source]), load_tasks([here / "back.jsonl"])
    assert [loaded.workspace() for loaded in after] == [loaded.workspace() for loaded in before]
    assert polar("gym", "data", "back.jsonl", "-o", "again.jsonl").exit_code == Exit.OK
    assert (here / "again.jsonl").read_bytes() == (here / "rows.jsonl").read_bytes()
    assert len((here / "rows.jsonl").read_text(encoding="utf-8").splitlines()) == 2


def test_a_mistake_leaves_what_was_there_and_names_its_place(here: Path) -> None:
    write_tasks(here)
    (here / "rows.jsonl").write_text("as it was\n")
    (here / "t.sh").unlink()
    failed = polar("gym", "data", "tasks.yaml", "-o", "rows.jsonl")
    assert failed.exit_code == Exit.USAGE and "task a: verifier.files.t.sh.source" in failed.stderr
    assert (here / "rows.jsonl").read_text() == "as it was\n"
    verifier = {"type": "command", "command": "true"}
    good: dict[str, Any] = {"polar_task": {"id": "t", "instruction": "x", "verifier": verifier}}
    other = {"polar_task": good["polar_task"] | {"instruction": "y"}}
    (here / "bad.jsonl").write_text("\n".join([json.dumps(good), "", "{", json.dumps({"x": 1}), json.dumps(other)]))
    refused = polar("gym", "data", "--back", "bad.jsonl", "-o", "tasks.jsonl")
    assert refused.exit_code == Exit.USAGE and not (here / "tasks.jsonl").exists()
    for said in ("3 mistakes", "bad.jsonl:3: ", "bad.jsonl:4: responses_create_params.input", "bad.jsonl:5: 't' is the id"):
        assert said in refused.stderr
    assert sorted(path.name for path in here.glob("*.tmp")) == []


def test_somebody_elses_rows_become_tasks_with_the_verifier_given(here: Path) -> None:
    (here / "rows.jsonl").write_text(json.dumps({"responses_create_params": {"input": "Say hi."}, "id": "one"}))
    assert polar("gym", "data", "--back", "rows.jsonl", "-o", "t.jsonl").exit_code == Exit.USAGE
    verifier = "{type: command, command: 'true'}"
    done = polar("gym", "data", "--back", "rows.jsonl", "-o", "t.jsonl", "--verifier", verifier)
    assert done.exit_code == Exit.OK and "1 were no Polar tasks" in done.stdout
    [loaded] = load_tasks([here / "t.jsonl"])
    assert (loaded.task.id, loaded.task.instruction) == ("one", "Say hi.")


@pytest.mark.parametrize(
    "words",
    [
        ("tasks.yaml", "-o", "rows.json"),
        ("nowhere.yaml", "-o", "rows.jsonl"),
        ("--back", "rows.jsonl", "-o", "rows.jsonl"),
        ("--back", "rows.jsonl", "-o", "t.jsonl", "--verifier", "command"),
    ],
)
def test_wrong_usage_of_data_is_refused(here: Path, words: tuple[str, ...]) -> None:
    write_tasks(here)
    (here / "rows.jsonl").write_text("{}\n")
    assert polar("gym", "data", *words).exit_code == Exit.USAGE
