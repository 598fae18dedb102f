# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""One rollout to its end: attempts, until one is about the policy or the deadline or the retries are used up; then its traces.

Every attempt is recorded, and the last one becomes the trajectory. A cancelled rollout is recorded too, without a reward. The
roller holds no connection and opens no file: what it needs comes as a ``Workshop``, what it makes goes to a ``Recorder``. Which
rollouts there are, and how many at a time, is for others to say.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from nemo_polar.cancellation import uninterrupted
from nemo_polar.errors import PolarError
from nemo_polar.rollout.attempt import Attempt, Identity, Workshop
from nemo_polar.rollout.deadline import Deadline
from nemo_polar.rollout.rolled import Rolled
from nemo_polar.rollout.status import failure
from nemo_polar.rollout.tasks import LoadedTask
from nemo_polar.settings import SamplingPolicy
from nemo_polar.trajectory.kinds import classify
from nemo_polar.types import Kind, MaskReason, Status, TokenIds, Trace, Trajectory, Turn

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


class Roller:
    """Runs any number of rollouts, each in the task that calls ``roll``."""

    def __init__(
        self,
        shop: Workshop,
        build: Build,
        recorder: Recorder,
        *,
        ended: Callable[[Rolled], None],
        retried: Callable[[], None],
    ) -> None:
        """Who is told.

        Args:
            ended: of each rollout, once it is recorded; also of one that was cancelled.
            retried: of each attempt that is followed by another.
        """
        self.shop = shop
        self.closing = False
        """Set before rollouts are cancelled all together: one whose clean-up fails then still counts as cancelled."""
        self._build = build
        self._recorder = recorder
        self._ended = ended
        self._retried = retried

    async def roll(
        self, loaded: LoadedTask, who: Identity, *, first: int = 0, sampling: SamplingPolicy | None = None
    ) -> Rolled:
        """One rollout to its end; when cancelled, that is recorded before the cancellation goes on.

        Args:
            first: the number of its first attempt, where earlier ones are recorded already.
            sampling: what is drawn, where that is not the run's own policy.

        Raises:
            JournalError: the result cannot be recorded.
        """
        deadline = Deadline(self.shop.settings.seconds)
        number = first
        while True:
            attempt = Attempt(self.shop, loaded, who, number, deadline, sampling)
            try:
                status, error = await _outcome(attempt)
            except asyncio.CancelledError:
                await uninterrupted(self._finish(attempt, Status.CANCELLED, "cancelled"))
                raise
            if self.closing and status.infra:  # something could not be cleaned up, which took the cancellation's place
                return await uninterrupted(self._finish(attempt, Status.CANCELLED, error))
            if status.infra and number - first < self.shop.settings.retries and deadline.left() > 0:
                await uninterrupted(self._classified(attempt))
                await uninterrupted(self._recorder.attempt(who, number, _to_be_tried_again(attempt, status, error)))
                self._retried()
                number += 1
                continue
            return await uninterrupted(self._finish(attempt, status, error))

    async def _classified(self, attempt: Attempt) -> list[Turn]:
        """The attempt's turns, each told what it was for."""
        turns = attempt.record.turns if attempt.record is not None else []
        kinds = classify(turns)
        changed = [turn for turn in turns if turn.kind is not kinds[turn.id]]
        for turn in changed:
            turn.kind = kinds[turn.id]
        await self._recorder.kinds(changed)
        return turns

    async def _finish(self, attempt: Attempt, status: Status, error: str | None) -> Rolled:
        """Make the trajectory, and record it."""
        turns = await self._classified(attempt)
        traces: tuple[Trace, ...] = ()
        masked: Mapping[MaskReason, int] = {}
        try:
            async with self.shop.stages.build.slot():
                traces, masked = await asyncio.to_thread(self._build, attempt.who.rollout_id, turns, status.infra)
        except PolarError as exc:
            if not status.infra:
                status, error = Status.CAPTURE_FAILED, str(failure(exc, "build"))
            masked = {MaskReason.INFRA: sum(len(t.sample) for t in turns)}
        verdict = attempt.verdict if not status.infra else None
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
        rolled = Rolled(trajectory, tuple(turns), first_prompt=root_hash(turns))
        self._ended(rolled)
        return rolled


def first_root(turns: Sequence[Turn]) -> Turn | None:
    """The turn whose prompt is the rollout's first on the main line; None: no call."""
    return min((t for t in turns if t.parent is None and t.kind is Kind.MAIN), key=lambda t: t.id, default=None)


def root_hash(turns: Sequence[Turn]) -> str | None:
    """``prompt_hash`` of the first prompt on the main line; None when there was no call."""
    root = first_root(turns)
    return None if root is None else prompt_hash(root.prompt_delta)


def prompt_hash(token_ids: TokenIds) -> str:
    """What first prompts are compared by."""
    return hashlib.sha256(token_ids.tobytes()).hexdigest()[:16]


async def _outcome(attempt: Attempt) -> tuple[Status, str | None]:
    """Run an attempt; a failure of infrastructure becomes its status."""
    try:
        await attempt.run()
    except PolarError as exc:
        failed = failure(exc, "run")
        return failed.status, str(failed)
    return attempt.status, attempt.note


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


def _to_be_tried_again(attempt: Attempt, status: Status, error: str | None) -> dict[str, Any]:
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
