# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The small parts of the rollout layer: deadline, uninterrupted work, run folder, report."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from nemo_polar.cancellation import uninterrupted
from nemo_polar.errors import ConfigError, JournalError
from nemo_polar.rollout.deadline import Deadline
from nemo_polar.rollout.folder import create_run_folder, write_json
from nemo_polar.rollout.pipeline import Progress
from nemo_polar.rollout.report import outcome_of
from nemo_polar.rollout.stages import Stage
from nemo_polar.types import Status, Trajectory


class FakeClock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_deadline_runs_down_except_while_it_is_held() -> None:
    clock = FakeClock()
    deadline = Deadline(10, clock)
    clock.now = 4
    assert deadline.left() == 6
    with deadline.held():
        clock.now = 104
    assert deadline.left() == 6
    clock.now = 111
    assert deadline.left() == -1


async def test_a_waiter_that_is_cancelled_gives_its_place_to_the_next() -> None:
    stage, order = Stage("run", 1), []

    async def use(name: str) -> None:
        async with stage.slot():
            order.append(name)

    async with stage.slot():
        first, second = asyncio.create_task(use("first")), asyncio.create_task(use("second"))
        await asyncio.sleep(0)
        assert (stage.active, stage.waiting) == (1, 2)
        first.cancel()
        await asyncio.sleep(0)
    await second
    assert order == ["second"] and (stage.active, stage.waiting) == (0, 0)


async def test_uninterrupted_work_ends_however_often_it_is_cancelled() -> None:
    go_on, ended = asyncio.Event(), []

    async def work() -> None:
        await go_on.wait()
        ended.append(True)

    task = asyncio.create_task(uninterrupted(work()))
    for _ in range(3):
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [True]


async def test_an_error_of_uninterrupted_work_goes_before_the_cancellation() -> None:
    async def work() -> None:
        await asyncio.sleep(0.01)
        raise JournalError("disk full")

    task = asyncio.create_task(uninterrupted(work()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(JournalError):
        await task


def test_a_run_folder_is_never_written_over(tmp_path: Path) -> None:
    target = tmp_path / "runs" / "a"
    create_run_folder(target)
    (target / "manifest.json").write_text("1")
    with pytest.raises(ConfigError, match="--overwrite"):
        create_run_folder(target)
    for number in (1, 2):
        create_run_folder(target, overwrite=True)
        assert (tmp_path / "runs" / f"a.old-{number}" / "manifest.json").exists() == (number == 1)
        assert [p.name for p in target.iterdir()] == ["logs"]


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("x")
    with pytest.raises(ConfigError):
        create_run_folder(tmp_path)
    with pytest.raises(ConfigError, match="cannot be made"):
        create_run_folder(tmp_path / "thesis.txt" / "run")


def test_a_json_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1}


def trajectory(number: int, status: Status, reward: float | None) -> Trajectory:
    return Trajectory(f"t.0.{number}", "t", "t.0", status, (), reward, metrics={"turns": 2.0}, error=None)


def test_a_failure_of_infrastructure_enters_no_mean() -> None:
    done = [
        trajectory(0, Status.COMPLETED, 1.0),
        trajectory(1, Status.TIMEOUT, 0.0),
        trajectory(2, Status.ENGINE_FAILED, None),
        trajectory(3, Status.CANCELLED, None),
    ]
    report = outcome_of(Progress(total=6), done, wall_s=1.0, cancelled=True)
    assert report["reward_mean"] == 0.5 and report["rewards"] == 2
    assert report["statuses"] == {"cancelled": 1, "completed": 1, "engine_failed": 1, "timeout": 1}
    assert list(report["errors"]) == ["engine_failed"]
    assert report["tasks"][0]["turns"] == 8 and report["rollouts_planned"] == 6


def test_without_any_reward_there_is_no_mean() -> None:
    report = outcome_of(Progress(total=1), [trajectory(0, Status.SANDBOX_FAILED, None)], wall_s=1.0, cancelled=False)
    assert report["reward_mean"] is None and report["tasks"][0]["reward_min"] is None
