# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The account of a training batch: what was rewarded, what is trained, and what is not and why. Plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from statistics import fmean, pstdev
from typing import Literal, TypeAlias

from nemo_polar.types import Kind, MaskReason, Status, Trajectory

Reason: TypeAlias = Literal["infra", "no_reward", "zero_variance", "too_long", "nothing_trained"]
"""Why something is not trained: the rollout failed for reasons that are not the policy's; it has no reward (of a group: none of
its rollouts has); its group teaches nothing and is skipped; a trace is over the length limit; a trace trains no token."""


@dataclass(frozen=True, slots=True)
class GroupStats:
    """What became of one group."""

    group_id: str
    task_id: str
    rewards: tuple[float, ...]
    """Of the rollouts that count, in their order: what the baseline is over."""
    left_out: Mapping[str, Status]
    """Rollouts that do not count, and how they ended."""
    zero_variance: bool
    """All that count got the same reward, or only one counts."""
    skipped: Reason | None
    """None: its rollouts are in the batch."""
    first_prompts: Mapping[str, tuple[str, ...]]
    """Hash of a first prompt to the rollouts that count and began with it. More than one: these are not rollouts of one
    prompt, and a trainer that groups by equal prompts would see several groups."""

    @property
    def mixed_prompts(self) -> bool:
        return len(self.first_prompts) > 1


@dataclass(frozen=True, slots=True)
class Staleness:
    """By how many versions trained tokens are older than the weights they train."""

    lowest: int
    mean: float
    highest: int


@dataclass(frozen=True, slots=True)
class BatchStats:
    """``trained_tokens`` plus all ``dropped_tokens`` plus all ``masked_tokens`` is what was sampled."""

    groups: tuple[GroupStats, ...]
    dropped_traces: Mapping[Reason, int]
    dropped_tokens: Mapping[Reason, int]
    """Tokens that a trace was to train and no row does."""
    masked_tokens: Mapping[MaskReason, int]
    """Sampled tokens that were not to be trained when the traces were built."""
    rollouts: int
    """With at least one row."""
    rows: int
    row_tokens: int
    """Tokens of all rows, trained or not: what a plain forward pass reads."""
    trained_tokens: int
    staleness: Staleness | None
    """None without a current version, or without rows."""

    @property
    def rewards(self) -> tuple[float, ...]:
        """Of all rollouts that count, those of skipped groups among them."""
        return tuple(reward for group in self.groups for reward in group.rewards)

    @property
    def skipped(self) -> Mapping[Reason, int]:
        """Groups that are not in the batch."""
        return Counter(group.skipped for group in self.groups if group.skipped is not None)

    @property
    def mixed_prompts(self) -> tuple[GroupStats, ...]:
        """Groups whose rollouts did not all begin with the same prompt."""
        return tuple(group for group in self.groups if group.mixed_prompts)

    def metrics(self) -> dict[str, float]:
        """Plain numbers to plot. The rewards' mean and deviation are not there when no rollout counts."""
        rewards = self.rewards
        numbers: dict[str, float] = {
            "groups": len(self.groups),
            "groups_zero_variance": sum(group.zero_variance for group in self.groups),
            "groups_mixed_prompts": len(self.mixed_prompts),
            "rollouts_counted": len(rewards),
            "rollouts_left_out": sum(len(group.left_out) for group in self.groups),
            "rollouts_trained": self.rollouts,
            "rows": self.rows,
            "row_tokens": self.row_tokens,
            "trained_tokens": self.trained_tokens,
        }
        if rewards:
            numbers |= {"reward_mean": fmean(rewards), "reward_std": pstdev(rewards) if len(rewards) > 1 else 0.0}
        if self.staleness is not None:
            numbers |= {"staleness_mean": self.staleness.mean, "staleness_max": self.staleness.highest}
        numbers |= {f"groups_skipped/{reason}": n for reason, n in self.skipped.items()}
        numbers |= {f"traces_dropped/{reason}": n for reason, n in self.dropped_traces.items()}
        numbers |= {f"tokens_dropped/{reason}": n for reason, n in self.dropped_tokens.items()}
        numbers |= {f"tokens_masked/{reason}": n for reason, n in self.masked_tokens.items()}
        return numbers


def first_prompt_hash(trajectory: Trajectory) -> str | None:
    """A hash of the ids that opened the rollout's main line; None when no trace of it was kept."""
    main = [t for t in trajectory.traces if t.kind is Kind.MAIN and t.spans and t.spans[0].role == "prompt"]
    if not main:
        return None
    first = min(main, key=lambda trace: trace.spans[0].turn)
    return blake2b(first.token_ids[: first.spans[0].end].tobytes(), digest_size=8).hexdigest()
