# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What goes into an export, and an account of what does not: each rollout and trace left out is counted under one reason.

Rollouts are looked at first, then the traces of those that are left. Nothing is ever cut to make it fit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TypeAlias

from nemo_polar.types import Kind, Status, Trace, Trajectory

Source: TypeAlias = Callable[[], Iterable[Trajectory]]
"""Gives the trajectories afresh each time: choosing the best of a group takes a look at all of them first."""


@dataclass(frozen=True, slots=True)
class Filters:
    """None: no bound."""

    min_reward: float | None = None
    """Leave out rollouts with less, or with no reward."""
    max_reward: float | None = None
    """Leave out rollouts with more, or with no reward."""
    statuses: Collection[Status] | None = None
    """Rollouts that ended so; None: every way that is about the policy (rule 4: no infrastructure failures)."""
    tasks: Collection[str] | None = None
    """Rollouts of these tasks."""
    best: int | None = None
    """Of each group, the so many rollouts with the highest reward, among those that the filters above leave; ties by id."""
    kinds: Collection[Kind] | None = None
    trained_only: bool = True
    """Leave out traces whose loss mask is all zero."""
    max_tokens: int | None = None
    """Leave out longer traces."""
    distinct: bool = False
    """Of traces with the same ids and the same loss mask, only the first."""

    def why_not_rollout(self, trajectory: Trajectory) -> str | None:
        """Why a rollout is left out; None when it is not. ``best`` is not looked at here."""
        if trajectory.status.infra if self.statuses is None else trajectory.status not in self.statuses:
            return "status"
        if self.tasks is not None and trajectory.task_id not in self.tasks:
            return "task"
        if trajectory.reward is None:
            bounded = self.min_reward is not None or self.max_reward is not None or self.best is not None
            return "no_reward" if bounded else None
        if self.min_reward is not None and trajectory.reward < self.min_reward:
            return "reward_too_low"
        if self.max_reward is not None and trajectory.reward > self.max_reward:
            return "reward_too_high"
        return None

    def why_not_trace(self, trace: Trace) -> str | None:
        """Why a trace is left out; None when it is not. ``distinct`` is not looked at here."""
        if self.kinds is not None and trace.kind not in self.kinds:
            return "kind"
        if self.trained_only and not trace.loss_mask.any():
            return "nothing_trained"
        if self.max_tokens is not None and len(trace) > self.max_tokens:
            return "too_long"
        return None


@dataclass(slots=True)
class Selection:
    """The traces that filters leave of a source, and the counts of what they do not."""

    filters: Filters
    rollouts: Counter[str] = field(default_factory=Counter)
    """Rollouts left out, by reason. Their traces are not counted."""
    traces: Counter[str] = field(default_factory=Counter)
    """Traces of other rollouts left out, by reason."""
    read: int = 0
    """Rollouts looked at so far."""
    _seen: set[bytes] = field(default_factory=set)

    def of(self, source: Source) -> Iterator[tuple[Trajectory, list[Trace]]]:
        """Every rollout of ``source`` in its order, with its traces that are left; none for one that is left out itself."""
        best = None if self.filters.best is None else self._best(source(), self.filters.best)
        for trajectory in source():
            self.read += 1
            reason = self.filters.why_not_rollout(trajectory)
            if reason is None and best is not None and trajectory.rollout_id not in best:
                reason = "not_among_the_best"
            if reason is not None:
                self.rollouts[reason] += 1
                yield trajectory, []
            else:
                yield trajectory, [trace for trace in trajectory.traces if self._keeps(trace)]

    def _keeps(self, trace: Trace) -> bool:
        reason = self.filters.why_not_trace(trace)
        if reason is None and self.filters.distinct:
            key = blake2b(trace.token_ids.tobytes() + trace.loss_mask.tobytes(), digest_size=16).digest()
            if key in self._seen:
                reason = "equal_to_another"
            self._seen.add(key)
        if reason is not None:
            self.traces[reason] += 1
        return reason is None

    def _best(self, trajectories: Iterable[Trajectory], count: int) -> set[str]:
        groups: dict[str, list[tuple[float, str]]] = {}
        for t in trajectories:
            if t.reward is not None and self.filters.why_not_rollout(t) is None:
                groups.setdefault(t.group_id, []).append((-t.reward, t.rollout_id))
        return {rollout_id for group in groups.values() for _, rollout_id in sorted(group)[:count]}
