# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Tasks times rollouts, through bounded stages, to trajectories.

Each rollout is tried again while it fails for reasons of infrastructure and its deadline allows; every attempt is recorded, and
the last one becomes the trajectory. Cancelled rollouts are recorded too, without a reward. The pipeline holds no connection and
opens no file: what it needs comes as a ``Workshop``, what it makes goes to a ``Recorder``.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from nemo_polar.cancellation import uninterrupted
from nemo_polar.errors import PolarError
from nemo_polar.rollout.attempt import Attempt, Identity, Workshop
from nemo_polar.rollout.deadline import Deadline
from nemo_polar.rollout.status import failure
from nemo_polar.rollout.tasks import LoadedTask
from nemo_polar.trajectory.kinds import classify
from nemo_polar.types import Kind, MaskReason, Status, Trace, Trajectory, Turn

Built: TypeAlias = tuple[tuple[Trace, ...], Mapping[MaskReason, int]]
Build: TypeAlias = Callable[[str, list[Turn], bool], Built]
"""Rollout id, turns and whether it failed for reasons of infrastructure, to traces and masked tokens. Runs in a thread."""


class Recorder(Protocol):
    """Where results go. What it has returned from is on disk."""

    async def attempt(self, who: Identity, number: int, result: dict[str, Any]) -> None:
        """The outcome of one attempt."""
        ...

    async def kinds(self, turns: Sequence[Turn]) -> None:
        """What these turns were for, now that it is known."""
        ...

    async def trajectory(self, trajectory: Trajectory, attempt: int) -> None:
        """The outcome of one rollout; ``attempt`` is the one it comes from."""
        ...


@dataclass(slots=True)
class Progress:
    """Live counts, for whoever shows them."""

    total: int
    started: int = 0
    retried: int = 0
    statuses: Counter[Status] = field(default_factory=Counter)
    prompts: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Group id to the hashes of its rollouts' first prompts. A trainer groups by equal first prompts."""

    @property
    def done(self) -> int:
        return sum(self.statuses.values())

    @property
    def prompt_mismatches(self) -> list[str]:
        """Groups whose rollouts did not all start from the same token ids."""
        return sorted(group for group, hashes in self.prompts.items() if len(hashes) > 1)


def root_hash(turns: Sequence[Turn]) -> str | None:
    """Hash of the first prompt's token ids on the main line; None when there was no call."""
    root = next((t for t in turns if t.parent is None and t.kind is Kind.MAIN), None)
    return None if root is None else hashlib.sha256(root.prompt_delta.tobytes()).hexdigest()[:16]


def first_prompt_hash(trajectory: Trajectory) -> str | None:
    """The same of a finished rollout, as far as its traces hold that prompt."""
    roots = [t for t in trajectory.traces if t.kind is Kind.MAIN and t.spans and t.spans[0].role == "prompt"]
    if not roots:
        return None
    first = min(roots, key=lambda t: t.spans[0].turn)
    return hashlib.sha256(first.token_ids[: first.spans[0].end].tobytes()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Earlier:
    """What an interrupted run leaves to the one that goes on with it."""

    kept: Mapping[str, Trajectory] = field(default_factory=dict)
    """By rollout id: those that ended in a way that is about the policy. They are not run again."""
    attempts: Mapping[str, int] = field(default_factory=dict)
    """Rollout id to the number of its next attempt; 0 for those not named."""
    retried: int = 0


def planned(tasks: Iterable[LoadedTask], group_size: int) -> list[tuple[LoadedTask, Identity]]:
    """Every rollout of a run, in the order they are begun."""
    queue: list[tuple[LoadedTask, Identity]] = []
    for ordinal, loaded in enumerate(tasks):
        group = f"{loaded.task.id}.{ordinal}"
        queue += [(loaded, Identity(f"{group}.{k}", loaded.task.id, group)) for k in range(group_size)]
    return queue


def progress_of(total: int, earlier: Earlier) -> Progress:
    """Where a run stands before it begins."""
    progress = Progress(total=total, started=len(earlier.kept), retried=earlier.retried)
    for trajectory in earlier.kept.values():
        progress.statuses[trajectory.status] += 1
        if (first := first_prompt_hash(trajectory)) is not None:
            progress.prompts[trajectory.group_id].add(first)
    return progress


class Pipeline:
    """One run of ``tasks``, or the rest of one. Single use."""

    def __init__(
        self,
        shop: Workshop,
        tasks: Iterable[LoadedTask],
        build: Build,
        recorder: Recorder,
        earlier: Earlier | None = None,
    ) -> None:
        self._shop = shop
        self._build = build
        self._recorder = recorder
        self._earlier = earlier or Earlier()
        every = planned(tasks, shop.settings.group_size)
        self._queue = [(loaded, who) for loaded, who in every if who.rollout_id not in self._earlier.kept]
        self._workers: list[asyncio.Task[None]] = []
        self._cancelled = False
        self.progress = progress_of(len(every), self._earlier)
        self.trajectories: list[Trajectory] = list(self._earlier.kept.values())

    def cancel(self) -> None:
        """Start nothing more, and end what runs: ``run`` returns once it is cleaned up and recorded as cancelled."""
        if not self._cancelled:
            self._cancelled = True
            for worker in self._workers:
                worker.cancel()

    def active(self) -> dict[str, int]:
        """Rollouts in each stage now."""
        return self._shop.stages.active()

    async def run(self) -> list[Trajectory]:
        """Every rollout that was started, in the order they ended; those of an earlier run first.

        Raises:
            PolarError: results cannot be recorded (the disk is full, say). Everything under way has been cleaned up.
        """
        queue = iter(self._queue)
        count = min(self._shop.settings.stages.open, len(self._queue))
        self._workers = [asyncio.create_task(self._work(queue), name=f"rollouts-{i}") for i in range(count)]
        try:
            await asyncio.wait(self._workers, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            self.cancel()
            await uninterrupted(_all_ended(self._workers))
        errors = [error for worker in self._workers if not worker.cancelled() and (error := worker.exception()) is not None]
        if errors:
            raise errors[0]
        return self.trajectories

    async def _work(self, queue: Iterator[tuple[LoadedTask, Identity]]) -> None:
        for loaded, who in queue:
            if self._cancelled:
                return
            self.progress.started += 1
            await self._rollout(loaded, who)

    async def _rollout(self, loaded: LoadedTask, who: Identity) -> None:
        """One rollout to its end; when cancelled, that is recorded before the cancellation goes on."""
        deadline = Deadline(self._shop.settings.seconds)
        first = number = self._earlier.attempts.get(who.rollout_id, 0)
        while True:
            attempt = Attempt(self._shop, loaded, who, number, deadline)
            try:
                status, error = await _outcome(attempt)
            except asyncio.CancelledError:
                await uninterrupted(self._finish(attempt, Status.CANCELLED, "cancelled"))
                raise
            if self._cancelled and status.infra:  # something could not be cleaned up, which took the cancellation's place
                await uninterrupted(self._finish(attempt, Status.CANCELLED, error))
                return
            if status.infra and number - first < self._shop.settings.retries and deadline.left() > 0:
                await uninterrupted(self._classified(attempt))
                await uninterrupted(self._recorder.attempt(who, number, _retried(attempt, status, error)))
                self.progress.retried += 1
                number += 1
                continue
            await uninterrupted(self._finish(attempt, status, error))
            return

    async def _classified(self, attempt: Attempt) -> list[Turn]:
        """The attempt's turns, each told what it was for."""
        turns = attempt.record.turns if attempt.record is not None else []
        kinds = classify(turns)
        changed = [turn for turn in turns if turn.kind is not kinds[turn.id]]
        for turn in changed:
            turn.kind = kinds[turn.id]
        await self._recorder.kinds(changed)
        return turns

    async def _finish(self, attempt: Attempt, status: Status, error: str | None) -> None:
        """Make the trajectory, and record it."""
        turns = await self._classified(attempt)
        traces: tuple[Trace, ...] = ()
        masked: Mapping[MaskReason, int] = {}
        try:
            async with self._shop.stages.build.slot():
                traces, masked = await asyncio.to_thread(self._build, attempt.who.rollout_id, turns, status.infra)
        except PolarError as exc:
            if not status.infra:
                status, error = Status.CAPTURE_FAILED, str(failure(exc, "build"))
            masked = {MaskReason.INFRA: sum(len(t.sample) for t in turns)}
        verdict = attempt.verdict if not status.infra else None
        if not status.infra and (first := root_hash(turns)) is not None:
            self.progress.prompts[attempt.who.group_id].add(first)
        trajectory = Trajectory(
            rollout_id=attempt.who.rollout_id,
            task_id=attempt.who.task_id,
            group_id=attempt.who.group_id,
            status=status,
            traces=traces,
            reward=None if verdict is None else float(verdict.reward),
            components={} if verdict is None else dict(verdict.components),
            masked=masked,
            metrics=_metrics(attempt),
            error=error,
            final_message=attempt.final_message,
        )
        await self._recorder.trajectory(trajectory, attempt.number)
        await self._recorder.attempt(attempt.who, attempt.number, result_of(trajectory))
        self.trajectories.append(trajectory)
        self.progress.statuses[status] += 1


async def _outcome(attempt: Attempt) -> tuple[Status, str | None]:
    """Run an attempt; a failure of infrastructure becomes its status."""
    try:
        await attempt.run()
    except PolarError as exc:
        failed = failure(exc, "run")
        return failed.status, str(failed)
    return attempt.status, attempt.note


async def _all_ended(workers: Sequence[asyncio.Task[None]]) -> None:
    await asyncio.wait(workers)


def _metrics(attempt: Attempt) -> dict[str, float]:
    metrics: dict[str, float] = {"attempts": float(attempt.number + 1)}
    for stage, seconds in attempt.seconds.items():
        metrics[f"{stage}_seconds"] = round(seconds, 3)
    if attempt.ran is not None:
        metrics["exit_code"] = float(attempt.ran.exit_code)
        metrics["output_truncated"] = float(attempt.ran.truncated)
    if attempt.record is not None:
        metrics |= {f"capture.{name}": float(count) for name, count in attempt.record.counters.items()}
        metrics["calls"] = float(attempt.record.calls)
        metrics["turns"] = float(len(attempt.record.turns))
        metrics["sampled_tokens"] = float(sum(len(t.sample) for t in attempt.record.turns))
        metrics["ambiguous"] = float(attempt.record.ambiguous)
        metrics["no_calls"] = float(attempt.record.calls == 0)
    return metrics


def _retried(attempt: Attempt, status: Status, error: str | None) -> dict[str, Any]:
    """The result of an attempt that is followed by another."""
    return {
        "status": status.value,
        "reward": None,
        "components": {},
        "error": error,
        "final": False,
        "final_message": attempt.final_message,
        "metrics": _metrics(attempt),
    }


def result_of(trajectory: Trajectory) -> dict[str, Any]:
    """The result of the attempt that a trajectory was made of."""
    return {
        "status": trajectory.status.value,
        "reward": trajectory.reward,
        "components": dict(trajectory.components),
        "error": trajectory.error,
        "final": True,
        "final_message": trajectory.final_message,
        "metrics": dict(trajectory.metrics),
    }
