# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What holds for a run whatever its rollouts do: bounds, one deadline, nothing left open, infrastructure is never a reward."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from nemo_polar.errors import EngineUnavailable, JournalError, SandboxError, VerifierError
from nemo_polar.harnesses.base import Outcome
from nemo_polar.rollout import attempt as attempt_module
from nemo_polar.sandboxes.base import ExecResult
from nemo_polar.types import MaskReason, Status
from tests.support.rollouts import FakeRecord, FakeRecorder, FakeWorld, pipeline, task, trained_ids, turn


def nothing_is_open(world: FakeWorld, folder: Path) -> bool:
    left = list((folder / "scratch").iterdir()) if (folder / "scratch").exists() else []
    return not world.open_sandboxes and not world.open_sessions and not left


async def test_every_rollout_ends_as_one_trajectory_with_its_groups_id(tmp_path: Path) -> None:
    world, recorder = FakeWorld(reward=0.5), FakeRecorder()
    run = pipeline(world, recorder, tmp_path, [task("a"), task("b")], group_size=3)
    done = await run.run()
    assert sorted(t.rollout_id for t in done) == ["a.0.0", "a.0.1", "a.0.2", "b.1.0", "b.1.1", "b.1.2"]
    assert {t.group_id for t in done} == {"a.0", "b.1"}
    assert all(t.status is Status.COMPLETED and t.reward == 0.5 and t.components == {"tests": 0.5} for t in done)
    assert all(trained_ids(t) == [7, 8] for t in done)
    assert set(recorder.trajectories) == {t.rollout_id for t in done} and len(recorder.attempts) == 6
    assert nothing_is_open(world, tmp_path)


async def test_a_verifiers_sandbox_is_another_one_and_cannot_reach_the_proxy(tmp_path: Path) -> None:
    world = FakeWorld(socket=Path("/proxy.sock"))
    await pipeline(world, FakeRecorder(), tmp_path, [task()], group_size=1).run()
    agent, verifier = world.specs
    assert (agent.id, verifier.id) == ("t.0.0.a0", "t.0.0.a0.verify")
    assert agent.proxy_socket is not None and agent.proxy_url is not None
    assert verifier.proxy_socket is None and verifier.proxy_url is None


async def test_the_verifiers_sandbox_is_prepared_while_the_harness_runs(tmp_path: Path) -> None:
    prepared = asyncio.Event()

    async def on_start(name: str) -> None:
        if name.endswith(".verify"):
            prepared.set()

    async def on_exec(_: str) -> None:
        await prepared.wait()  # hangs, and runs into the time-out, if the verifier's sandbox waits for the harness

    world = FakeWorld(on_start=on_start, on_exec=on_exec)
    [done] = await asyncio.wait_for(pipeline(world, FakeRecorder(), tmp_path, [task()], group_size=1).run(), 5)
    assert done.status is Status.COMPLETED


async def test_no_stage_ever_holds_more_rollouts_than_its_width(tmp_path: Path) -> None:
    now: Counter[str] = Counter()
    peak: Counter[str] = Counter()

    def passing(stage: str, seconds: float):
        async def hook(_: str) -> None:
            now[stage] += 1
            peak[stage] = max(peak[stage], now[stage])
            await asyncio.sleep(seconds)
            now[stage] -= 1

        return hook

    world = FakeWorld(on_start=passing("prepare", 0.002), on_exec=passing("run", 0.01), on_verify=passing("verify", 0.004))
    stages = {"prepare": 3, "run": 4, "verify": 1, "build": 1, "verify_seconds": 1}
    most_open = 0
    run = pipeline(world, FakeRecorder(), tmp_path, [task(f"t{i}") for i in range(6)], group_size=4, stages=stages)
    working = asyncio.create_task(run.run())
    while not working.done():
        most_open = max(most_open, run.progress.started - run.progress.done)
        await asyncio.sleep(0.001)
    assert len(await working) == 24
    assert peak == {"prepare": 3, "run": 4, "verify": 1}
    assert most_open <= sum(stages[name] for name in ("prepare", "run", "verify", "build"))


async def test_a_long_verification_does_not_hold_a_place_to_run_in(tmp_path: Path) -> None:
    ran: list[str] = []
    all_ran = asyncio.Event()

    async def on_exec(name: str) -> None:
        ran.append(name)
        if len(ran) == 3:
            all_ran.set()

    async def on_verify(_: str) -> None:
        await all_ran.wait()

    world = FakeWorld(on_exec=on_exec, on_verify=on_verify)
    stages = {"prepare": 1, "run": 1, "verify": 1, "build": 1, "verify_seconds": 1}
    done = await asyncio.wait_for(pipeline(world, FakeRecorder(), tmp_path, [task()], group_size=3, stages=stages).run(), 5)
    assert [t.status for t in done] == [Status.COMPLETED] * 3


async def test_waiting_for_a_turn_does_not_use_up_the_deadline(tmp_path: Path) -> None:
    async def on_exec(_: str) -> None:
        await asyncio.sleep(0.25)

    stages = {"prepare": 4, "run": 1, "verify": 1, "build": 1, "verify_seconds": 0.1}
    world = FakeWorld(on_exec=on_exec)
    done = await pipeline(world, FakeRecorder(), tmp_path, [task()], group_size=4, seconds=0.8, retries=0, stages=stages).run()
    assert [t.status for t in done] == [Status.COMPLETED] * 4  # the last waited 0.75 s and ran 0.25 s


async def hang(_: str) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("world", "status"),
    [
        (FakeWorld(on_start=hang), Status.SANDBOX_FAILED),
        (FakeWorld(on_exec=hang), Status.SANDBOX_FAILED),
        (FakeWorld(on_verify=hang), Status.VERIFIER_FAILED),
    ],
    ids=["prepare", "run", "verify"],
)
async def test_one_deadline_ends_a_stage_that_hangs(tmp_path: Path, world: FakeWorld, status: Status) -> None:
    world.spent = asyncio.Event()
    stages = {"prepare": 2, "run": 2, "verify": 2, "build": 1, "verify_seconds": 0.1}
    run = pipeline(world, FakeRecorder(), tmp_path, [task()], group_size=1, seconds=0.4, retries=3, stages=stages)
    [done] = await asyncio.wait_for(run.run(), 3)
    assert done.status is status and done.reward is None and "deadline" in (done.error or "")
    assert nothing_is_open(world, tmp_path)


def record(**changes) -> FakeRecord:
    return FakeRecord(**({"turns": [turn("s")]} | changes))


POLICY = {
    "completed": ({}, Status.COMPLETED),
    "harness error": ({"outcome": Outcome(False, error="boom")}, Status.HARNESS_ERROR),
    "time-out": ({"exec_result": ExecResult(137, b"", b"", timed_out=True, seconds=5)}, Status.TIMEOUT),
    "budget": ({"on_close": lambda _: record(budget_exhausted="turns")}, Status.BUDGET),
    "budget, then an error": (
        {"on_close": lambda _: record(budget_exhausted="tokens"), "outcome": Outcome(False, error="429")},
        Status.BUDGET,
    ),
}


@pytest.mark.parametrize(("changes", "status"), POLICY.values(), ids=POLICY)
async def test_what_the_policy_does_is_scored(tmp_path: Path, changes: dict, status: Status) -> None:
    world = FakeWorld(**changes)
    [done] = await pipeline(world, FakeRecorder(), tmp_path, [task()], group_size=1).run()
    assert done.status is status and done.reward == 1.0 and trained_ids(done) == [7, 8]
    assert (done.error is None) == (status is Status.COMPLETED)
    assert len(world.sessions) == 1, "never tried again"


def raising(error: Exception):
    async def hook(_: str) -> None:
        raise error

    return hook


INFRA = {
    "engine": ({"on_close": lambda _: record(infra_error="EngineUnavailable: lost")}, Status.ENGINE_FAILED),
    "journal": ({"on_close": lambda _: record(infra_error="JournalError: disk full")}, Status.CAPTURE_FAILED),
    "sandbox start": ({"on_start": raising(SandboxError("no bwrap"))}, Status.SANDBOX_FAILED),
    "sandbox exec": ({"on_exec": raising(SandboxError("gone"))}, Status.SANDBOX_FAILED),
    "no harness": (
        {"exec_result": ExecResult(127, b"", b"not found"), "on_close": lambda _: record(turns=[], calls=0)},
        Status.SANDBOX_FAILED,
    ),
    "verifier": ({"on_verify": raising(VerifierError("no pytest"))}, Status.VERIFIER_FAILED),
    "a verifier's bug": ({"on_verify": raising(KeyError("x"))}, Status.VERIFIER_FAILED),
    "no number": ({"reward": float("nan")}, Status.VERIFIER_FAILED),
    "infinite": ({"reward": float("inf")}, Status.VERIFIER_FAILED),
    "engine at opening": ({"on_exec": raising(EngineUnavailable("down"))}, Status.ENGINE_FAILED),
}


@pytest.mark.parametrize(("changes", "status"), INFRA.values(), ids=INFRA)
async def test_a_failure_of_infrastructure_is_tried_again_and_is_never_a_reward(
    tmp_path: Path, changes: dict, status: Status
) -> None:
    world, recorder = FakeWorld(**changes), FakeRecorder()
    [done] = await pipeline(world, recorder, tmp_path, [task()], group_size=1, retries=2).run()
    assert done.status is status and status.infra and done.reward is None and done.components == {} and done.error
    assert trained_ids(done) == []
    assert [key[1] for key in recorder.attempts] == [0, 1, 2]
    assert all(result["reward"] is None for result in recorder.attempts.values())
    assert [result["final"] for result in recorder.attempts.values()] == [False, False, True]
    assert nothing_is_open(world, tmp_path)


async def test_tokens_of_a_failed_rollout_are_masked_as_infra(tmp_path: Path) -> None:
    world = FakeWorld(on_verify=raising(VerifierError("x")))
    [done] = await pipeline(world, FakeRecorder(), tmp_path, [task()], group_size=1, retries=0).run()
    assert done.masked == {MaskReason.INFRA: 2}


async def test_a_second_attempt_that_works_counts(tmp_path: Path) -> None:
    tries: Counter[str] = Counter()

    async def on_start(name: str) -> None:
        tries["start"] += 1
        if tries["start"] == 1:
            raise SandboxError("first is lost")

    world, recorder = FakeWorld(on_start=on_start), FakeRecorder()
    run = pipeline(world, recorder, tmp_path, [task()], group_size=1)
    [done] = await run.run()
    assert done.status is Status.COMPLETED and done.reward == 1.0 and done.metrics["attempts"] == 2
    assert recorder.attempts["t.0.0", 0]["status"] == "sandbox_failed" and run.progress.retried == 1


async def test_a_harness_that_did_nothing_has_only_what_the_verifier_gives(tmp_path: Path) -> None:
    world = FakeWorld(on_close=lambda _: record(turns=[], calls=0), reward=0.0)
    [done] = await pipeline(world, FakeRecorder(), tmp_path, [task()], group_size=1).run()
    assert done.status is Status.COMPLETED and done.reward == 0.0 and done.metrics["no_calls"] == 1.0


async def test_a_harness_that_goes_on_after_its_budget_is_stopped_and_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_module, "BUDGET_SECONDS", 0.05)
    world = FakeWorld(on_exec=hang, on_close=lambda _: record(budget_exhausted="turns"))
    world.spent.set()
    [done] = await asyncio.wait_for(pipeline(world, FakeRecorder(), tmp_path, [task()], group_size=1).run(), 3)
    assert done.status is Status.BUDGET and done.reward == 1.0


async def test_a_tasks_budget_goes_before_the_runs(tmp_path: Path) -> None:
    world = FakeWorld()
    env = {"tasks": ["x"], "budget": {"seconds": 5, "turns": 9, "tokens": 100}}
    await pipeline(world, FakeRecorder(), tmp_path, [task(budget={"turns": 3, "tokens": None})], group_size=1, env=env).run()
    assert (world.sessions[0]["max_turns"], world.sessions[0]["max_tokens"]) == (3, None)


async def test_cancelling_leaves_nothing_open_and_records_what_had_started(tmp_path: Path) -> None:
    running = asyncio.Event()
    count = 0

    async def on_exec(_: str) -> None:
        nonlocal count
        count += 1
        if count > 2:
            running.set()
            await asyncio.Event().wait()

    world, recorder = FakeWorld(on_exec=on_exec), FakeRecorder()
    run = pipeline(world, recorder, tmp_path, [task(f"t{i}") for i in range(10)])
    working = asyncio.create_task(run.run())
    await running.wait()
    run.cancel()
    run.cancel()
    done = await asyncio.wait_for(working, 5)
    assert nothing_is_open(world, tmp_path)
    statuses = Counter(t.status for t in done)
    assert statuses[Status.CANCELLED] >= 1 and set(statuses) <= {Status.CANCELLED, Status.COMPLETED}
    assert run.progress.started == len(done) == len(recorder.trajectories) < 20
    for trajectory in done:
        if trajectory.status is Status.CANCELLED:
            assert trajectory.reward is None and trained_ids(trajectory) == []
        assert recorder.attempts[trajectory.rollout_id, 0]["status"] == trajectory.status.value


async def test_a_cancelled_rollout_is_not_tried_again_though_its_sandbox_could_not_be_cleaned_up(tmp_path: Path) -> None:
    async def on_stop(_: str) -> None:
        raise SandboxError("the folder cannot be removed")

    world, recorder = FakeWorld(on_exec=hang, on_stop=on_stop), FakeRecorder()
    run = pipeline(world, recorder, tmp_path, [task()], group_size=1, retries=3)
    working = asyncio.create_task(run.run())
    await asyncio.sleep(0.05)
    run.cancel()
    [done] = await asyncio.wait_for(working, 5)
    assert done.status is Status.CANCELLED and "cannot be removed" in (done.error or "")
    assert list(recorder.attempts) == [("t.0.0", 0)]


async def test_cancelling_while_a_sandbox_starts_stops_that_sandbox(tmp_path: Path) -> None:
    world = FakeWorld(on_start=hang)
    run = pipeline(world, FakeRecorder(), tmp_path, [task()])
    working = asyncio.create_task(run.run())
    await asyncio.sleep(0.02)
    assert world.open_sandboxes
    run.cancel()
    await asyncio.wait_for(working, 5)
    assert nothing_is_open(world, tmp_path)


async def test_cancelling_while_the_verifiers_sandbox_starts_stops_it_after_its_start(tmp_path: Path) -> None:
    starting = asyncio.Event()

    async def on_start(name: str) -> None:
        if name.endswith(".verify"):
            starting.set()
            await asyncio.Event().wait()

    world = FakeWorld(on_start=on_start, on_exec=hang)
    run = pipeline(world, FakeRecorder(), tmp_path, [task()], group_size=1)
    working = asyncio.create_task(run.run())
    await starting.wait()
    run.cancel()
    await asyncio.wait_for(working, 5)
    assert nothing_is_open(world, tmp_path) and world.stopped["t.0.0.a0.verify"] == 1


async def test_a_finished_rollout_is_recorded_whole_even_if_cancelled_meanwhile(tmp_path: Path) -> None:
    recording, go_on = asyncio.Event(), asyncio.Event()

    async def slow_disk(_: str) -> None:
        recording.set()
        await go_on.wait()

    recorder = FakeRecorder(on_trajectory=slow_disk)
    run = pipeline(FakeWorld(), recorder, tmp_path, [task()], group_size=1)
    working = asyncio.create_task(run.run())
    await recording.wait()
    run.cancel()
    await asyncio.sleep(0.01)
    go_on.set()
    [done] = await asyncio.wait_for(working, 5)
    assert done.status is Status.COMPLETED and done.reward == 1.0
    assert recorder.attempts["t.0.0", 0]["status"] == "completed"


async def test_a_sandbox_that_is_being_stopped_is_stopped_whole_even_if_cancelled_meanwhile(tmp_path: Path) -> None:
    stopping, go_on = asyncio.Event(), asyncio.Event()

    async def slow_stop(_: str) -> None:
        stopping.set()
        await go_on.wait()

    world = FakeWorld(on_stop=slow_stop, on_exec=raising(SandboxError("gone")))
    working = asyncio.create_task(pipeline(world, FakeRecorder(), tmp_path, [task()], group_size=1).run())
    await stopping.wait()
    working.cancel()
    await asyncio.sleep(0.01)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(working, 5)
    assert nothing_is_open(world, tmp_path)


async def test_a_verdict_is_no_reward_when_the_traces_cannot_be_built(tmp_path: Path) -> None:
    world, recorder = FakeWorld(on_close=lambda _: record(turns=[turn("s"), turn("s")])), FakeRecorder()
    [done] = await pipeline(world, recorder, tmp_path, [task()], group_size=1).run()
    assert done.status is Status.CAPTURE_FAILED and done.reward is None and "there twice" in (done.error or "")
    assert done.masked == {MaskReason.INFRA: 4} and recorder.attempts["t.0.0", 0]["reward"] is None


async def test_the_caller_being_cancelled_cleans_up_too(tmp_path: Path) -> None:
    running = asyncio.Event()

    async def on_exec(_: str) -> None:
        running.set()
        await asyncio.Event().wait()

    world = FakeWorld(on_exec=on_exec)
    working = asyncio.create_task(pipeline(world, FakeRecorder(), tmp_path, [task()]).run())
    await running.wait()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(working, 5)
    assert nothing_is_open(world, tmp_path)


async def test_results_that_cannot_be_written_end_the_run_with_nothing_left_open(tmp_path: Path) -> None:
    calls = 0

    async def full(_: str) -> None:
        nonlocal calls
        calls += 1
        if calls >= 3:
            raise JournalError("disk full")

    world = FakeWorld()
    run = pipeline(world, FakeRecorder(on_trajectory=full), tmp_path, [task(f"t{i}") for i in range(20)])
    with pytest.raises(JournalError, match="disk full"):
        await asyncio.wait_for(run.run(), 5)
    assert nothing_is_open(world, tmp_path) and run.progress.started < 40


async def test_a_group_whose_first_prompts_differ_is_named(tmp_path: Path) -> None:
    world = FakeWorld(on_close=lambda name: FakeRecord([turn(name, (1, 2, 9 if name == "b.1.1.a0" else 3))]))
    run = pipeline(world, FakeRecorder(), tmp_path, [task("a"), task("b")])
    await run.run()
    assert run.progress.prompt_mismatches == ["b.1"]
