# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Groups of trajectories to one training batch: a row a trace, one advantage a rollout, one weight a token.

Numpy only, and pure: the same groups give the same batch. Nothing is cut here. A trace is a row as it is or is left out
whole; of what is left out, the batch says how much and why (``BatchStats``). No sampled token is trained twice, and no
rollout without a reward is in a baseline or a row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import Field

from nemo_polar.rl.advantages import AdvantageSettings, group_advantages
from nemo_polar.rl.batch_stats import BatchStats, GroupStats, Reason, Staleness, first_prompt_hash
from nemo_polar.rl.owners import keep_traces
from nemo_polar.settings import Settings
from nemo_polar.types import Group, Kind, LogProbs, Mask, TokenIds, Trajectory

Average: TypeAlias = Literal["token", "rollout"]


class BatchSettings(Settings):
    """What becomes a row, and what it weighs."""

    advantages: AdvantageSettings = AdvantageSettings()
    average: Average = "token"
    """``token``: every trained token of the batch weighs the same. ``rollout``: every rollout does, its trained tokens sharing
    its weight equally over all its traces. See ``LossSettings.average`` for the one that belongs to a loss."""
    max_tokens: int | None = Field(default=None, gt=0)
    """A longer trace is left out whole. Tokens of it that a kept trace has too are trained there."""
    skip_zero_variance: bool = False
    """Leave out groups whose rewards are all equal, a single one among them. Their advantages are 0, so they would only take
    part in the averages and in a KL term. Reported either way."""


@dataclass(frozen=True, slots=True)
class Row:
    """One trace to train on, N tokens long; at least one of them is trained."""

    token_ids: TokenIds
    """int32[N]"""
    loss_mask: Mask
    """bool[N]: True on trained tokens; over the rows of a batch each sampled token at most once."""
    logprobs: LogProbs
    """float32[N]: the engine's log-probability of each sampled token, 0 elsewhere."""
    weights_version: TokenIds
    """int32[N]: the policy version that each sampled token was drawn under, -1 elsewhere."""
    advantage: float
    """Of the rollout: the same in all its rows."""
    weight: npt.NDArray[np.float32]
    """float32[N]: 0 where nothing is trained; over all rows of the batch the sum is 1."""
    rollout_id: str
    trace_id: str
    group_id: str
    kind: Kind

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of one or several groups, in the order of these, and an account of the rest."""

    rows: tuple[Row, ...]
    stats: BatchStats


@dataclass(frozen=True, slots=True)
class _Rollout:
    """A rewarded rollout of a group that is trained."""

    trajectory: Trajectory
    advantage: float
    masks: Mapping[str, Mask]
    """Trace id to what is trained of it, for the traces that are kept."""


def build_batch(groups: Sequence[Group], settings: BatchSettings, *, current_version: int | None = None) -> Batch:
    """The training batch of some groups.

    A rollout counts when it has a reward and did not fail for reasons of infrastructure; baselines, and the mean reward of the
    statistics, are over all that count, whatever becomes of their traces. A rollout of which no trained token is left has
    no row and no share in the ``rollout`` average.

    Args:
        current_version: of the weights that are about to be trained; without it there is no staleness.

    Raises:
        TokenError: a trace trains a token that was not sampled, or one that another trains too, or its arrays do not fit
            together.
        ValueError: a rollout is there twice or in a group that is not its own, a reward is not finite, or a trained token was
            drawn under weights newer than ``current_version``.
    """
    _refuse_repeats(groups)
    dropped_traces: Counter[Reason] = Counter()
    dropped_tokens: Counter[Reason] = Counter()
    reports: list[GroupStats] = []
    rollouts: list[_Rollout] = []
    for group in groups:
        counted = [t for t in group.trajectories if why_not(t) is None]
        rewards = [float(t.reward) for t in counted if t.reward is not None]
        advantages = group_advantages(rewards, settings.advantages)
        skipped: Reason | None = None
        if not counted:
            skipped = "no_reward"
        elif settings.skip_zero_variance and advantages.zero_variance:
            skipped = "zero_variance"
        reports.append(_report(group, rewards, advantages.zero_variance, skipped))
        by_id = {t.rollout_id: float(a) for t, a in zip(counted, advantages.values, strict=True)}
        for trajectory in group.trajectories:
            kept = keep_traces(trajectory, settings.max_tokens)
            reason = why_not(trajectory) or skipped
            if reason is not None:
                dropped_traces[reason] += len(trajectory.traces)
                dropped_tokens[reason] += sum(int(np.count_nonzero(t.loss_mask)) for t in trajectory.traces)
                continue
            dropped_traces["too_long"] += len(trajectory.traces) - len(kept.masks)
            dropped_traces["nothing_trained"] += sum(not mask.any() for mask in kept.masks.values())
            dropped_tokens["too_long"] += kept.lost
            rollouts.append(_Rollout(trajectory, by_id[trajectory.rollout_id], kept.masks))
    rows = _rows(rollouts, settings.average)
    return Batch(
        rows,
        BatchStats(
            groups=tuple(reports),
            dropped_traces={reason: n for reason, n in dropped_traces.items() if n},
            dropped_tokens={reason: n for reason, n in dropped_tokens.items() if n},
            masked_tokens=dict(sum((Counter(t.masked) for group in groups for t in group.trajectories), Counter())),
            rollouts=len({row.rollout_id for row in rows}),
            rows=len(rows),
            row_tokens=sum(map(len, rows)),
            trained_tokens=sum(int(np.count_nonzero(row.loss_mask)) for row in rows),
            staleness=None if current_version is None else _staleness(rows, current_version),
        ),
    )


def why_not(trajectory: Trajectory) -> Reason | None:
    """Why a rollout is in no baseline and no row; None when it counts."""
    if trajectory.status.infra:
        return "infra"
    return "no_reward" if trajectory.reward is None else None


def token_weights(masks: Sequence[Mask], rollouts: Sequence[str], average: Average) -> list[npt.NDArray[np.float32]]:
    """The weights of the tokens of a batch, from its rows' loss masks (bool[N] each) and the ids of their rollouts.

    ``token`` with all tokens trained is NeMo RL's token-level average; ``rollout`` with a row each its sequence-level one.

    Returns:
        float32[N] a row; the sum over all rows is 1 unless nothing is trained.
    """
    trained = [int(np.count_nonzero(mask)) for mask in masks]
    of_rollout: Counter[str] = Counter()
    for rollout, count in zip(rollouts, trained, strict=True):
        of_rollout[rollout] += count
    sharing = sum(count > 0 for count in of_rollout.values())
    weights: list[npt.NDArray[np.float32]] = []
    for mask, rollout, count in zip(masks, rollouts, trained, strict=True):
        share = 0.0
        if count:
            share = 1 / sum(trained) if average == "token" else 1 / (sharing * of_rollout[rollout])
        weights.append(np.where(mask, share, 0).astype(np.float32))
    return weights


def _rows(rollouts: Iterable[_Rollout], average: Average) -> tuple[Row, ...]:
    chosen = [(r, t, r.masks[t.id]) for r in rollouts for t in r.trajectory.traces if t.id in r.masks and r.masks[t.id].any()]
    weights = token_weights([mask for _, _, mask in chosen], [r.trajectory.rollout_id for r, _, _ in chosen], average)
    return tuple(
        Row(
            token_ids=trace.token_ids,
            loss_mask=mask,
            logprobs=trace.logprobs,
            weights_version=trace.weights_version,
            advantage=rollout.advantage,
            weight=weight,
            rollout_id=rollout.trajectory.rollout_id,
            trace_id=trace.id,
            group_id=rollout.trajectory.group_id,
            kind=trace.kind,
        )
        for (rollout, trace, mask), weight in zip(chosen, weights, strict=True)
    )


def _refuse_repeats(groups: Sequence[Group]) -> None:
    seen: set[str] = set()
    for group in groups:
        for trajectory in group.trajectories:
            if trajectory.group_id != group.group_id:
                raise ValueError(f"{trajectory.rollout_id} is of group {trajectory.group_id}, but was given in another")
            if trajectory.rollout_id in seen:
                raise ValueError(f"{trajectory.rollout_id} is in the batch twice")
            seen.add(trajectory.rollout_id)


def _report(group: Group, rewards: Sequence[float], zero_variance: bool, skipped: Reason | None) -> GroupStats:
    prompts: dict[str, list[str]] = {}
    for trajectory in group.trajectories:
        prompt = first_prompt_hash(trajectory)
        if prompt is not None and why_not(trajectory) is None:
            prompts.setdefault(prompt, []).append(trajectory.rollout_id)
    return GroupStats(
        group_id=group.group_id,
        task_id=group.task_id,
        rewards=tuple(rewards),
        left_out={t.rollout_id: t.status for t in group.trajectories if why_not(t) is not None},
        zero_variance=zero_variance and bool(rewards),
        skipped=skipped,
        first_prompts={prompt: tuple(ids) for prompt, ids in prompts.items()},
    )


def _staleness(rows: Sequence[Row], current: int) -> Staleness | None:
    if not rows:
        return None
    ages = current - np.concatenate([row.weights_version[row.loss_mask] for row in rows]).astype(np.int64)
    if ages.min() < 0:
        raise ValueError(f"a trained token was drawn under version {current - int(ages.min())}, but {current} is trained")
    return Staleness(int(ages.min()), float(ages.mean()), int(ages.max()))
