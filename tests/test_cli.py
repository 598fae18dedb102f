# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What the command line promises: exit codes, one sentence for an error, JSON that parses, a run that survives Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from nemo_polar.cli import app
from nemo_polar.cli.boundary import Exit, guarded
from nemo_polar.cli.demo import shortcomings
from nemo_polar.errors import EngineUnavailable, JournalError, TaskFileError
from nemo_polar.trajectory.store import read_trajectories
from tests.support.cli import overrides, write_tasks


def polar(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A run folder and what ``polar rollout --rescore --json`` said about it."""
    folder = tmp_path_factory.mktemp("cli")
    result = polar("rollout", "--rescore", "--json", *overrides(write_tasks(folder)))
    return folder / "runs" / "small", result


def test_a_good_run_exits_0_with_an_audited_report(finished: tuple[Path, Result]) -> None:
    folder, result = finished
    assert result.exit_code == Exit.OK, result.output
    report = json.loads(result.stdout)
    assert report == json.loads((folder / "report.json").read_text())
    assert report["statuses"] == {"completed": 4} and report["reward_mean"] == 0.5
    assert (report["rollouts"], report["calls"], report["turns"], report["bridged_turns"]) == (4, 12, 12, 8)
    assert report["audited"] and report["findings"] == [] and report["drift_tokens"] == 0
    assert report["sampled_tokens"] == report["trained_tokens"] + sum(report["masked_tokens"].values()) > 0
    assert report["max_logprob_diff"] == 0.0 and report["rescored_tokens"] == report["trained_tokens"]
    assert report["forks"] == {"new": 4} and report["malformed_calls"] == 0 and report["wall_s"] > 0
    assert [(row["task"], row["reward_mean"]) for row in report["tasks"]] == [("fails", 0.0), ("writes", 1.0)]
    assert report["group_prompt_mismatches"] == []


def test_a_run_folder_holds_what_its_documentation_says(finished: tuple[Path, Result]) -> None:
    folder, _ = finished
    names = {"manifest.json", "journal.db", "engine.jsonl", "trajectories.jsonl", "report.json", "logs"}
    assert {path.name for path in folder.iterdir()} == names
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["thinking_retention"] == "all" and manifest["settings"]["harness"]["name"] == "shell"


def test_an_existing_run_is_refused_and_with_overwrite_renamed(finished: tuple[Path, Result], tmp_path: Path) -> None:
    folder, _ = finished
    shutil.copytree(folder, tmp_path / "runs" / "small")
    words = overrides(write_tasks(tmp_path), "env.limit=1", "group_size=1", turns=1)
    refused = polar("rollout", *words)
    assert refused.exit_code == Exit.USAGE and "--overwrite" in refused.stderr
    done = polar("rollout", "--overwrite", *words)
    assert done.exit_code == Exit.OK
    assert json.loads((tmp_path / "runs" / "small.old-1" / "report.json").read_text())["rollouts"] == 4
    assert json.loads((tmp_path / "runs" / "small" / "report.json").read_text())["rollouts"] == 1


def test_inspect_lists_rollouts_and_shows_one_as_a_tree(finished: tuple[Path, Result]) -> None:
    folder, _ = finished
    rows = json.loads(polar("inspect", str(folder), "--json").stdout)
    assert {row["rollout"] for row in rows} == {"writes.0.0", "writes.0.1", "fails.1.0", "fails.1.1"}
    tree = polar("inspect", str(folder), "writes.0.0")
    assert tree.exit_code == Exit.OK and all(f"#{n} main" in tree.stdout for n in range(3)) and "reward 1" in tree.stdout
    one = json.loads(polar("inspect", str(folder), "writes.0.0", "--json").stdout)
    assert [turn["parent"] for turn in one["turns"]] == [None, 0, 1]
    assert {turn["trained_by"] for turn in one["turns"]} == {"writes.0.0/2"}


def test_audit_exits_1_on_a_tampered_run_and_names_the_place(finished: tuple[Path, Result], tmp_path: Path) -> None:
    folder, _ = finished
    assert polar("audit", str(folder)).exit_code == Exit.OK
    tampered = tmp_path / "tampered"
    shutil.copytree(folder, tampered)
    lines = (tampered / "engine.jsonl").read_text().splitlines(keepends=True)
    (tampered / "engine.jsonl").write_text("".join(lines[:-1]))
    result = polar("audit", str(tampered), "--json")
    assert result.exit_code == Exit.FINDINGS
    report = json.loads(result.stdout)
    assert not report["ok"] and report["drift_tokens"] > 0 and re.fullmatch(r"\w+\.\d\.\d/2", report["findings"][0]["trace"])


def test_export_writes_one_row_a_trace(finished: tuple[Path, Result], tmp_path: Path) -> None:
    folder, _ = finished
    result = polar("export", str(folder), str(tmp_path / "out.jsonl"), "--min-reward", "1", "--json")
    assert json.loads(result.stdout)["rows"] == 2
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 3
    assert polar("export", str(folder), str(tmp_path / "x"), "--kind", "nope").exit_code == Exit.USAGE


WRONG = {
    "unknown recipe": (["--recipe", "nope"], "no recipe 'nope'"),
    "unknown key": (["group_siz=2"], "group_siz"),
    "not an override": (["a=[b"], "'a=[b' is not KEY=VALUE"),
    "unknown group member": (["harness=nope"], "harness/nope"),
    "wrong type": (["group_size=two"], "group_size: "),
    "out of range": (["stages.run=0"], "stages.run: "),
    "name that leads out": (["name=../x"], "name: "),
    "unknown engine": (["engine.name=nope"], "engines: nothing is called 'nope'"),
    "unknown engine option": (["engine.options.speed=9"], "engine.options: "),
    "unknown sandbox option": (["sandbox.options.fast=1"], "sandbox: "),
    "unknown harness option": (["harness.options.fast=1"], "harness.options: "),
    "no such task": (["env.only=[nope]"], "env.only: no task is called nope"),
    "no task file": (["env.tasks=[gone.yaml]"], "gone.yaml: cannot read this task file"),
    "no tokenizer": (["policy.codec.tokenizer=/nowhere"], "/nowhere"),
    "main line not trained": (["traces.train_kinds=[subagent]"], "traces.train_kinds"),
}


@pytest.mark.parametrize(("words", "said"), WRONG.values(), ids=WRONG)
def test_wrong_settings_exit_2_with_one_line_that_names_them(tmp_path: Path, words: list[str], said: str) -> None:
    result = polar("rollout", *(words if words[0] == "--recipe" else overrides(write_tasks(tmp_path), *words)))
    assert result.exit_code == Exit.USAGE, result.output
    [line] = [line for line in result.stderr.splitlines() if line.startswith("polar: ")]
    assert said in line and "Traceback" not in result.output
    assert not (tmp_path / "runs" / "small" / "manifest.json").exists()


def test_a_mistake_in_a_task_file_is_named_by_line_before_anything_starts(tmp_path: Path) -> None:
    path = write_tasks(tmp_path)
    path.write_text(path.read_text().replace("type: command, command: grep -q else", "type: command, comand: grep -q else"))
    result = polar("rollout", *overrides(path))
    assert result.exit_code == Exit.USAGE and f"{path}:11: tasks[1].verifier" in result.stderr
    assert not (tmp_path / "runs").exists()


def test_an_engine_that_is_not_there_exits_3_and_the_name_stays_free(tmp_path: Path) -> None:
    words = [word for word in overrides(write_tasks(tmp_path)) if not word.startswith("engine")]
    words += ["engine=vllm", "engine.url=http://127.0.0.1:9"]
    for _ in range(2):
        result = polar("rollout", *words)
        assert result.exit_code == Exit.INFRA and "127.0.0.1:9" in result.stderr


def test_dry_run_checks_everything_and_starts_nothing(tmp_path: Path) -> None:
    result = polar("rollout", "--dry-run", "--json", *overrides(write_tasks(tmp_path)))
    assert result.exit_code == Exit.OK and json.loads(result.stdout)["rollouts"] == 4
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("command", ["inspect", "audit", "export"])
def test_a_folder_that_is_no_run_exits_2(tmp_path: Path, command: str) -> None:
    result = polar(command, str(tmp_path), *(["x"] if command == "export" else []))
    assert result.exit_code == Exit.USAGE and "no run folder" in result.stderr


ERRORS = {
    "task file": (TaskFileError("wrong", path="t.yaml", line=3), Exit.USAGE, "polar: t.yaml:3: wrong"),
    "engine": (EngineUnavailable("down"), Exit.INFRA, "polar: down"),
    "journal": (JournalError("disk full"), Exit.INFRA, "polar: disk full"),
    "disk": (OSError(28, "No space left on device", "x.json"), Exit.INFRA, "polar: x.json: No space left on device"),
    "interrupted": (KeyboardInterrupt(), Exit.INTERRUPTED, "polar: interrupted"),
    "cancelled": (asyncio.CancelledError(), Exit.INTERRUPTED, "polar: interrupted"),
}


@pytest.mark.parametrize(("error", "code", "said"), ERRORS.values(), ids=ERRORS)
def test_each_kind_of_error_has_its_exit_code(
    error: BaseException, code: Exit, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import typer

    @guarded
    def command() -> None:
        raise error

    monkeypatch.delenv("POLAR_DEBUG", raising=False)
    with pytest.raises(typer.Exit) as caught:
        command()
    assert caught.value.exit_code == code and capsys.readouterr().err == said + "\n"
    monkeypatch.setenv("POLAR_DEBUG", "1")
    with pytest.raises(typer.Exit):
        command()
    assert "Traceback" in capsys.readouterr().err


def test_a_bug_is_not_dressed_up_as_one_of_our_errors() -> None:
    @guarded
    def command() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        command()


GOOD: dict[str, Any] = {
    "audited": True,
    "drift_tokens": 0,
    "findings": [],
    "sampled_tokens": 5,
    "trained_tokens": 3,
    "masked_tokens": {"abandoned": 2},
    "max_logprob_diff": 1e-4,
}


@pytest.mark.parametrize(
    "change",
    [
        {"audited": False},
        {"drift_tokens": 1},
        {"findings": [{}]},
        {"trained_tokens": 4},
        {"max_logprob_diff": 0.0011},
        {"max_logprob_diff": None},
    ],
    ids=lambda change: next(iter(change)),
)
def test_the_demo_is_strict_about_its_report(change: dict[str, Any]) -> None:
    assert shortcomings(GOOD) == []
    assert len(shortcomings(GOOD | change)) == 1


def test_doctor_says_of_each_thing_whether_it_is_there_or_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLAR_HOME", str(tmp_path / "home"))
    result = polar("doctor", "--json")
    findings = {finding["name"]: finding for finding in json.loads(result.stdout)}
    assert findings["python"]["ok"] and findings["packages"]["ok"] and findings["loopback"]["ok"]
    for name in ("toolchain", "engine", "model"):
        assert not findings[name]["ok"] and findings[name]["fix"].startswith("make ")
    assert result.exit_code == Exit.FINDINGS


# --- processes --------------------------------------------------------------------------------------------------------


def start(*words: str, cwd: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "nemo_polar.cli", *words]
    return subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def wait_until(condition: Any, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.05)


@pytest.fixture
def alive() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


def running_in(folder: Path) -> list[str]:
    """Command lines of processes whose working directory is below ``folder`` or that mention it."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                where = str((entry / "cwd").readlink())
            except OSError:
                continue
            if str(folder) in line or where.startswith(str(folder)):
                found.append(line)
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_an_interrupted_run_is_consistent_and_leaves_nothing_behind(
    tmp_path: Path, alive: list[subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    engine = "engine.options={script: null, vocab: 1024, reply_tokens: [4, 8], token_delay: 0.01}"
    process = start("rollout", *overrides(write_tasks(tmp_path), engine, "stages.run=2", turns=1000), cwd=tmp_path)
    alive.append(process)
    folder = tmp_path / "runs" / "small"
    log = folder / "engine.jsonl"
    wait_until(lambda: log.exists() and len(log.read_bytes().splitlines()) > 20)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == Exit.INTERRUPTED, out + err
    assert "Traceback" not in err
    report = json.loads((folder / "report.json").read_text())
    trajectories = list(read_trajectories(folder / "trajectories.jsonl"))
    assert report["cancelled"] and report["statuses"] == {"cancelled": len(trajectories)}
    assert report["findings"] == [] and report["masked_tokens"] == {"infra": report["sampled_tokens"]}
    assert polar("audit", str(folder)).exit_code == Exit.OK
    assert running_in(tmp_path) == []
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("polar-")] == []


def test_the_proxy_alone_announces_itself_keeps_its_secret_private_and_ends_on_sigterm(
    tmp_path: Path, alive: list[subprocess.Popen[str]]
) -> None:
    words = [word for word in overrides(write_tasks(tmp_path)) if word.startswith(("engine", "policy"))]
    process = start("proxy", "--json", "--out", str(tmp_path / "px"), *words, cwd=tmp_path)
    alive.append(process)
    assert process.stdout is not None
    facts = json.loads(process.stdout.readline())
    secret = Path(facts["control_secret_file"])
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600 and "control_secret" not in facts

    import httpx

    headers = {"Authorization": f"Bearer {secret.read_text().strip()}"}
    ids = {"rollout_id": "r", "task_id": "t", "group_id": "g"}
    assert httpx.post(f"{facts['control_url']}/sessions", json=ids, trust_env=False).status_code == 401
    session = httpx.post(f"{facts['control_url']}/sessions", json=ids, headers=headers, trust_env=False).json()
    body = {"model": "polar", "messages": [{"role": "user", "content": "hi"}]}
    key = {"Authorization": f"Bearer {session['secret']}"}
    answer = httpx.post(f"{facts['url']}/v1/chat/completions", json=body, headers=key, timeout=20, trust_env=False)
    assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] > 0

    process.terminate()
    process.communicate(timeout=20)
    assert process.returncode == 0 and not secret.exists()
    assert json.loads(polar("inspect", str(tmp_path / "px"), "r", "--json").stdout)["turns"][0]["sampled_tokens"] > 0


def test_help_comes_fast_because_nothing_heavy_is_imported() -> None:
    code = "import sys, nemo_polar.cli; print([m for m in ('hydra', 'aiohttp', 'numpy', 'renderers') if m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "[]"


def test_every_command_documents_itself_and_exit_codes_are_in_the_help() -> None:
    text = polar("--help").stdout
    assert "Exit codes: 0" in " ".join(text.split())
    for command in ("rollout", "proxy", "inspect", "audit", "export", "doctor", "demo"):
        assert polar(command, "--help").exit_code == 0 and command in text
