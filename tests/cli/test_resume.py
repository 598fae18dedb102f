# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Real runs from the command line, killed, interrupted and gone on with."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from nemo_polar.cli.boundary import Exit
from nemo_polar.trajectory.records import JournalReader
from nemo_polar.trajectory.store import append_trajectory, keep_trajectories, read_trajectories
from nemo_polar.types import Status, Trajectory
from tests.support.cli import AGENT, overrides, write_tasks
from tests.test_cli import alive, polar, start, wait_until  # noqa: F401

WAITS = """
    if n == 0 and "else" in os.environ["POLAR_INSTRUCTION"]:
        open(os.path.join(GATE, f"waits-{os.getpid()}"), "w").close()
        end = time.monotonic() + 60
        while not os.path.exists(os.path.join(GATE, "open")) and time.monotonic() < end:
            time.sleep(0.02)
"""
"""Holds the second task's agents after their first reply, until there is a file ``open`` at the gate."""


def lines(folder: Path) -> list[bytes]:
    """The trajectories that were written whole."""
    path = folder / "trajectories.jsonl"
    return [line for line in path.read_bytes().splitlines(keepends=True)[1:] if line.endswith(b"\n")] if path.exists() else []


def attempts(folder: Path) -> Counter[str]:
    """Sessions by rollout."""
    with JournalReader(folder / "journal.db") as journal:
        sessions = journal.sessions()
    assert len({(s.rollout_id, s.attempt) for s in sessions}) == len(sessions), "an attempt's number is used once"
    return Counter(s.rollout_id for s in sessions)


def test_a_killed_run_and_an_interrupted_one_go_on_to_a_whole_and_audited_run(
    tmp_path: Path,
    alive: list[subprocess.Popen[str]],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    words = overrides(write_tasks(tmp_path))
    folder, gate = tmp_path / "runs" / "small", tmp_path / "gate"
    gate.mkdir()
    asks, rest = AGENT.split("    messages += [answer", 1)
    held = f"import time\nGATE = {str(gate)!r}\n{asks}{WAITS.lstrip(chr(10))}    messages += [answer{rest}"
    (tmp_path / "agent.py").write_text(held)

    def under_way(waiting: int) -> bool:
        return len(lines(folder)) == 2 and len(list(gate.iterdir())) == waiting

    process = start("rollout", *words, cwd=tmp_path)
    alive.append(process)
    wait_until(lambda: under_way(2))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    first, begun = lines(folder), attempts(folder)
    assert {json.loads(line)["task_id"] for line in first} == {"writes"} and len(begun) == 4
    assert polar("audit", str(folder)).exit_code == Exit.OK, "what a kill leaves is in order as it is"

    process = start("rollout", "--resume", *words, cwd=tmp_path)
    alive.append(process)
    wait_until(lambda: under_way(4))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == Exit.INTERRUPTED, out + err
    assert "2 of 4 rollouts have a result" in err and lines(folder)[:2] == first
    assert [json.loads(line)["status"] for line in lines(folder)[2:]] == ["cancelled", "cancelled"]

    (gate / "open").touch()
    result = polar("rollout", "--resume", "--json", *words)
    assert result.exit_code == Exit.OK, result.output
    report = json.loads(result.stdout)
    assert (report["rollouts"], report["statuses"], report["cancelled"]) == (4, {"completed": 4}, False)
    assert report["reward_mean"] == 0.5 and [row["rollouts"] for row in report["tasks"]] == [2, 2]
    assert report["findings"] == [] and report["drift_tokens"] == 0 and report["unclaimed_sessions"] == 4
    assert report["sampled_tokens"] == report["trained_tokens"] + sum(report["masked_tokens"].values())
    assert list(report["masked_tokens"]) == ["infra"], "what the four abandoned attempts drew"
    assert lines(folder)[:2] == first and len({json.loads(line)["rollout_id"] for line in lines(folder)}) == 4
    assert len(lines(folder)) == 4 and attempts(folder) == {"writes.0.0": 1, "writes.0.1": 1, "fails.1.0": 3, "fails.1.1": 3}
    assert polar("audit", str(folder)).exit_code == Exit.OK

    state = {path: path.read_bytes() for path in folder.iterdir() if path.is_file() and not path.name.startswith("journal.db-")}
    again = polar("rollout", "--resume", *words)
    assert again.exit_code == Exit.OK and "nothing to do: all 4 rollouts have a result" in again.stderr
    assert state == {path: path.read_bytes() for path in state}


# --- what a kill can leave, made by hand ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder around a small finished run."""
    folder = tmp_path_factory.mktemp("resume")
    result = polar("rollout", *overrides(write_tasks(folder)))
    assert result.exit_code == Exit.OK, result.output
    return folder


@pytest.fixture
def around(finished: Path, tmp_path: Path) -> Path:
    """A copy of it to spoil."""
    shutil.copytree(finished, tmp_path / "copy")
    return tmp_path / "copy"


def resume(around: Path, *more: str) -> Result:
    return polar("rollout", "--resume", "--json", *overrides(around / "tasks.yaml", *more))


def execute(around: Path, sql: str, *params: Any) -> None:
    with sqlite3.connect(around / "runs" / "small" / "journal.db") as db:
        assert db.execute(sql, params).rowcount == 1
    db.close()


def change(around: Path, name: str, to: Callable[[Trajectory], Trajectory | None]) -> None:
    """Replace a rollout's line, or take it away."""
    path = around / "runs" / "small" / "trajectories.jsonl"
    [before] = [t for t in read_trajectories(path) if t.rollout_id == name]
    keep_trajectories(path, lambda t: t.rollout_id != name)
    if (after := to(before)) is not None:
        append_trajectory(path, after)


def test_a_rollout_that_failed_for_reasons_of_infrastructure_is_run_again_and_its_line_replaced(around: Path) -> None:
    name, folder = "writes.0.1", around / "runs" / "small"
    failed = {"status": Status.ENGINE_FAILED.value, "final": True}
    change(
        around,
        name,
        lambda t: Trajectory(name, t.task_id, t.group_id, Status.ENGINE_FAILED, (), None, metrics={"attempts": 1.0}),
    )
    execute(around, "UPDATE results SET payload = ? WHERE rollout_id = ?", json.dumps(failed), name)
    with (folder / "trajectories.jsonl").open("ab") as file:
        file.write(b'{"rollout_id": "wri')  # torn
    result = resume(around)
    assert result.exit_code == Exit.OK, result.output
    report = json.loads(result.stdout)
    assert report["statuses"] == {"completed": 4} and report["findings"] == [] and report["unclaimed_sessions"] == 1
    assert attempts(folder)[name] == 2 and sum(attempts(folder).values()) == 5
    [line] = [t for t in read_trajectories(folder / "trajectories.jsonl") if t.rollout_id == name]
    assert line.status is Status.COMPLETED and line.metrics["attempts"] == 2
    assert polar("inspect", str(folder), name, "--attempt", "0").exit_code == Exit.OK


def test_a_kill_between_the_trajectory_and_its_result_is_made_good(around: Path) -> None:
    name, folder = "fails.1.0", around / "runs" / "small"
    # Its first attempt failed, its second is finished but for the row that says so.
    change(around, name, lambda t: replace(t, metrics={**t.metrics, "attempts": 2.0}))
    execute(around, "UPDATE sessions SET attempt = 1 WHERE rollout_id = ?", name)
    failed = {"status": Status.SANDBOX_FAILED.value, "final": False}
    execute(around, "UPDATE results SET payload = ? WHERE rollout_id = ?", json.dumps(failed), name)
    (folder / "report.json").unlink()
    result = resume(around)
    assert result.exit_code == Exit.OK and "making the report" in result.stderr, result.output
    report = json.loads(result.stdout)
    assert report["findings"] == [] and report["rollouts"] == 4 and report["rollouts_retried"] == 1
    with JournalReader(folder / "journal.db") as journal:
        [row] = [r for r in journal.results() if r.rollout_id == name and r.attempt == 1]
    assert row.payload["status"] == "completed" and row.payload["reward"] == 0.0


def test_a_run_that_was_killed_before_its_report_gets_one(around: Path) -> None:
    folder = around / "runs" / "small"
    before = json.loads((folder / "report.json").read_text())
    (folder / "report.json").unlink()
    assert resume(around).exit_code == Exit.OK
    after = json.loads((folder / "report.json").read_text())
    assert {k: v for k, v in before.items() if k != "wall_s"} == {k: v for k, v in after.items() if k != "wall_s"}


OTHER = {
    "sampling": (["capture.sampling.temperature=0.5"], "capture.sampling.temperature: 1.0 there, 0.5 asked for"),
    "harness": (["harness.options.command=ls"], "harness.options.command: "),
    "group size": (["group_size=3"], "group_size: 2 there, 3 asked for"),
    "tasks": (["env.limit=1"], "tasks.fails: "),
}


@pytest.mark.parametrize(("words", "said"), OTHER.values(), ids=OTHER)
def test_another_run_is_refused_with_both_values_and_nothing_changed(around: Path, words: list[str], said: str) -> None:
    folder = around / "runs" / "small"
    change(around, "writes.0.0", lambda _: None)
    before = {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file() and "journal" not in p.name}
    result = resume(around, *words)
    assert result.exit_code == Exit.USAGE and said in result.stderr and "is another run" in result.stderr
    assert before == {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file() and "journal" not in p.name}


def test_a_task_that_was_edited_meanwhile_is_refused(around: Path) -> None:
    (around / "agent.py").write_text((around / "agent.py").read_text() + "\n")
    result = resume(around)
    assert result.exit_code == Exit.USAGE and "tasks.fails: " in result.stderr and "tasks.writes: " in result.stderr


def test_an_engine_that_serves_another_model_is_refused(around: Path) -> None:
    manifest = around / "runs" / "small" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"model": "scripted"', '"model": "other"'))
    change(around, "writes.0.0", lambda _: None)
    result = resume(around)
    assert result.exit_code == Exit.USAGE and "model: 'other' there, 'scripted' asked for" in result.stderr


def test_there_may_be_nothing_to_resume_yet(tmp_path: Path) -> None:
    words = overrides(write_tasks(tmp_path), "env.limit=1", "group_size=1", turns=1)
    assert polar("rollout", "--resume", *words).exit_code == Exit.OK
    assert polar("rollout", "--resume", "--overwrite", *words).exit_code == Exit.USAGE
