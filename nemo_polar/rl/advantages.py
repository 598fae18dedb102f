# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Rewards of a group to advantages: one a rollout, however many traces it has.

The rules are those of NeMo RL's ``GRPOAdvantageEstimator`` (NVIDIA-NeMo/RL at 7ea279abf), its setting names too. Only rollouts
that have a reward belong here: one that failed for reasons of infrastructure is left out before, and so is in no baseline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import model_validator

from nemo_polar.settings import Settings

EPSILON = 1e-6
"""Added to a standard deviation before dividing by it, as NeMo RL does."""

Floats: TypeAlias = npt.NDArray[np.float64]


class AdvantageSettings(Settings):
    """How rewards are compared within a group."""

    use_leave_one_out_baseline: bool = True
    """The baseline of a rollout is the mean reward of the *other* rollouts of its group; False: of all of them."""
    normalize_rewards: bool = True
    """Divide by the standard deviation, over the same rollouts as the baseline. Where that is 0, nothing is divided."""
    advantage_clip_low: float | None = None
    """Lower bound on an advantage, after normalisation."""
    advantage_clip_high: float | None = None
    """Upper bound, likewise."""

    @model_validator(mode="after")
    def _bounds_in_order(self) -> Self:
        low, high = self.advantage_clip_low, self.advantage_clip_high
        if low is not None and high is not None and low > high:
            raise ValueError("advantage_clip_low: must not be over advantage_clip_high")
        return self


@dataclass(frozen=True, slots=True)
class Advantages:
    """Of one group with G rewarded rollouts, in the order of the rewards."""

    values: Floats
    """float64[G]"""
    baselines: Floats
    """float64[G]; a rollout alone in its group is its own baseline."""
    stds: Floats
    """float64[G]: unbiased, over the rewards that the baseline is over; 0 where these are all equal or only one."""
    zero_variance: bool
    """All rewards are equal (or there is only one, or none): nothing is to be learned from this group."""


def group_advantages(rewards: Sequence[float] | Floats, settings: AdvantageSettings) -> Advantages:
    """The advantages of the rollouts of one group, from their rewards (float[G]).

    The standard deviation is unbiased (divided by count - 1) and 1e-6 is added to it. With the leave-one-out baseline it is
    over the other rollouts too, so a group of two is never normalised, nor is a rollout whose companions all got the same.
    NeMo RL works it out in float32 from the mean of the squares, which can leave a remainder where companions are equal, and
    divide by it; here that is exactly 0.

    Raises:
        ValueError: a reward is not finite, or they are not one-dimensional.
    """
    given = np.asarray(rewards, dtype=np.float64)
    if given.ndim != 1 or not np.isfinite(given).all():
        raise ValueError(f"rewards must be finite and one a rollout, not {given.tolist()}")
    baselines, stds = given.copy(), np.zeros_like(given)
    if len(given) > 1:
        for i in range(len(given)):
            compared = np.delete(given, i) if settings.use_leave_one_out_baseline else given
            # A mean of equal numbers can be off by a rounding, and a variance then not 0.
            equal = compared.min() == compared.max()
            baselines[i] = compared[0] if equal else compared.mean()
            stds[i] = 0.0 if equal else compared.std(ddof=1)
    values = given - baselines
    if settings.normalize_rewards:
        values = np.where(stds > 0, values / (stds + EPSILON), values)
    if settings.advantage_clip_low is not None or settings.advantage_clip_high is not None:
        values = np.clip(values, settings.advantage_clip_low, settings.advantage_clip_high)
    return Advantages(values, baselines, stds, bool((given == given[:1]).all()))
