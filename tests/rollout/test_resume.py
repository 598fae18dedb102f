# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Going on with an interrupted run: what has a result stays as it is, the rest is run once more, nothing is counted twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_polar.errors import ConfigError
from nemo_polar.rollout.folder import RunFolder
from nemo_polar.rollout.pipeline import Earlier
from nemo_polar.sandboxes.base import ExecResult
from nemo_polar.trajectory.store import append_trajectory, keep_trajectories
from nemo_polar.types import Status, Trajectory
from tests.support.rollouts import FakeRecord, FakeRecorder, FakeWorld, pipeline, task, turn


def kept(name: str, status: Status = Status.COMPLETED, reward: float | None = 1.0) -> Trajectory:
    return Trajectory(name, name.partition(".")[0], name.rpartition(".")[0], status, (), reward, metrics={"attempts": 1.0})


async def test_a_rollout_with_a_result_is_not_run_again_and_is_part_of_the_outcome(tmp_path: Path) -> None:
    world, recorder = FakeWorld(), FakeRecorder()
    earlier = Earlier({"a.0.0": kept("a.0.0"), "b.1.1": kept("b.1.1", Status.TIMEOUT, 0.0)}, retried=2)
    run = pipeline(world, recorder, tmp_path, [task("a"), task("b")], group_size=2, earlier=earlier)
    assert (run.progress.total, run.progress.done, run.progress.retried) == (4, 2, 2)
    done = await run.run()
    assert sorted(t.rollout_id for t in done) == ["a.0.0", "a.0.1", "b.1.0", "b.1.1"]
    assert sorted(s["rollout_id"] for s in world.sessions) == ["a.0.1", "b.1.0"] == sorted(recorder.trajectories)
    assert run.progress.done == 4 and run.progress.statuses == {Status.COMPLETED: 3, Status.TIMEOUT: 1}


async def test_attempts_go_on_counting_and_have_their_retries_again(tmp_path: Path) -> None:
    world, recorder = (
        FakeWorld(exec_result=ExecResult(127, b"", b"gone"), on_close=lambda _: FakeRecord([], calls=0)),
        FakeRecorder(),
    )
    [done] = await pipeline(
        world, recorder, tmp_path, [task()], group_size=1, retries=1, earlier=Earlier(attempts={"t.0.0": 3})
    ).run()
    assert [key[1] for key in recorder.attempts] == [3, 4] and done.metrics["attempts"] == 5
    assert [s["attempt"] for s in world.sessions] == [3, 4]


async def test_a_groups_first_prompts_are_compared_across_the_interruption(tmp_path: Path) -> None:
    first = await pipeline(FakeWorld(), FakeRecorder(), tmp_path, [task()], group_size=1).run()
    for prompt, mismatches in ((1, 2, 3), []), ((1, 2, 4), ["t.0"]):
        world = FakeWorld(on_close=lambda name, prompt=prompt: FakeRecord([turn(name, prompt)]))
        run = pipeline(world, FakeRecorder(), tmp_path, [task()], earlier=Earlier({"t.0.0": first[0]}))
        await run.run()
        assert run.progress.prompt_mismatches == mismatches


def test_lines_that_stay_are_copied_byte_for_byte_and_a_torn_one_goes(tmp_path: Path) -> None:
    path = tmp_path / "trajectories.jsonl"
    for name in ("a.0.0", "a.0.1", "a.0.2"):
        append_trajectory(path, kept(name))
    header, *lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(header + b"".join(lines) + lines[0][:40])
    assert keep_trajectories(path, lambda t: t.rollout_id != "a.0.1") == 1
    assert path.read_bytes() == header + lines[0] + lines[2] and [p.name for p in tmp_path.iterdir()] == [path.name]
    before = path.stat().st_ino
    assert keep_trajectories(path, lambda _: True) == 0 and path.stat().st_ino == before


def test_two_runs_do_not_work_in_one_folder(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    with folder.held():
        with pytest.raises(ConfigError, match="under way"), RunFolder(folder.path).held():
            pass
    with folder.held():
        pass
