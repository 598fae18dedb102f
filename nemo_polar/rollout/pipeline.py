# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Tasks times rollouts: which there are, in what order, and how far a run has come. How one of them goes is ``roller``'s."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from nemo_polar.cancellation import uninterrupted
from nemo_polar.rollout.attempt import Identity, Workshop
from nemo_polar.rollout.rolled import Rolled
from nemo_polar.rollout.roller import Build, Recorder, Roller, prompt_hash
from nemo_polar.rollout.tasks import LoadedTask
from nemo_polar.types import Kind, Status, Trajectory


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

    def note(self, rolled: Rolled) -> None:
        """Count a rollout that has ended."""
        trajectory = rolled.trajectory
        if not trajectory.status.infra and rolled.first_prompt is not None:
            self.prompts[trajectory.group_id].add(rolled.first_prompt)
        self.statuses[trajectory.status] += 1

    def note_retry(self) -> None:
        """Count an attempt that is followed by another."""
        self.retried += 1


def first_prompt_hash(trajectory: Trajectory) -> str | None:
    """``roller.root_hash`` of a finished rollout, as far as its traces hold that prompt."""
    roots = [t for t in trajectory.traces if t.kind is Kind.MAIN and t.spans and t.spans[0].role == "prompt"]
    if not roots:
        return None
    first = min(roots, key=lambda t: t.spans[0].turn)
    return prompt_hash(first.token_ids[: first.spans[0].end])


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
        self._earlier = earlier or Earlier()
        every = planned(tasks, shop.settings.group_size)
        self._queue = [(loaded, who) for loaded, who in every if who.rollout_id not in self._earlier.kept]
        self._workers: list[asyncio.Task[None]] = []
        self._cancelled = False
        self.progress = progress_of(len(every), self._earlier)
        self._roller = Roller(shop, build, recorder, ended=self._ended, retried=self.progress.note_retry)
        self.trajectories: list[Trajectory] = list(self._earlier.kept.values())

    def cancel(self) -> None:
        """Start nothing more, and end what runs: ``run`` returns once it is cleaned up and recorded as cancelled."""
        if not self._cancelled:
            self._cancelled = self._roller.closing = True
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
            await self._roller.roll(loaded, who, first=self._earlier.attempts.get(who.rollout_id, 0))

    def _ended(self, rolled: Rolled) -> None:
        self.trajectories.append(rolled.trajectory)
        self.progress.note(rolled)


async def _all_ended(workers: Sequence[asyncio.Task[None]]) -> None:
    await asyncio.wait(workers)
