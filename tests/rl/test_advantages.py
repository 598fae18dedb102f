# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Advantages against numbers worked out by hand, and what they keep whatever the rewards."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from nemo_polar.rl.advantages import EPSILON, AdvantageSettings, group_advantages

rewards = st.lists(st.integers(-20, 20).map(lambda n: n / 10), min_size=0, max_size=9)

# Rewards 1, 0, 0, 1: the mean is 0.5, the unbiased deviation sqrt(1/3); of three of them, 1/3 or 2/3, deviation the same.
S = math.sqrt(1 / 3)


@pytest.mark.parametrize(
    ("leave_one_out", "normalize", "first", "second"),
    [
        (False, False, 0.5, -0.5),
        (True, False, 2 / 3, -2 / 3),
        (False, True, 0.5 / (S + EPSILON), -0.5 / (S + EPSILON)),
        (True, True, 2 / 3 / (S + EPSILON), -2 / 3 / (S + EPSILON)),
    ],
)
def test_the_baselines_and_the_deviation_are_the_ones_named(leave_one_out, normalize, first, second) -> None:
    settings = AdvantageSettings(use_leave_one_out_baseline=leave_one_out, normalize_rewards=normalize)
    got = group_advantages([1.0, 0.0, 0.0, 1.0], settings)
    assert got.values.tolist() == pytest.approx([first, second, second, first], rel=1e-12)
    assert not got.zero_variance


def test_where_the_companions_are_equal_nothing_is_divided() -> None:
    """1 among zeros: the companions of the first do not vary, so its advantage stays 1."""
    got = group_advantages([1.0, 0.0, 0.0, 0.0], AdvantageSettings())
    assert got.stds.tolist() == pytest.approx([0, S, S, S])
    assert got.values.tolist() == pytest.approx([1.0] + [-1 / 3 / (S + EPSILON)] * 3)


def test_equal_companions_have_no_rounding_left_between_them() -> None:
    """0.1 three times has a mean that is not 0.1 in floats; a deviation of 1e-17 would make the advantage 400,000."""
    assert group_advantages([0.5, 0.1, 0.1, 0.1], AdvantageSettings()).values[0] == 0.4
    assert not group_advantages([0.1] * 3, AdvantageSettings(use_leave_one_out_baseline=False)).values.any()


def test_a_rollout_alone_has_no_advantage_and_two_are_not_normalised() -> None:
    alone = group_advantages([0.7], AdvantageSettings())
    assert (alone.values.tolist(), alone.zero_variance) == ([0.0], True)
    assert group_advantages([1.0, 0.25], AdvantageSettings()).values.tolist() == [0.75, -0.75]
    assert group_advantages([], AdvantageSettings()).zero_variance


@given(rewards, st.booleans(), st.booleans())
def test_advantages_are_zero_exactly_in_groups_without_variance(group, leave_one_out, normalize) -> None:
    settings = AdvantageSettings(use_leave_one_out_baseline=leave_one_out, normalize_rewards=normalize)
    got = group_advantages(group, settings)
    assert got.zero_variance == (len(set(group)) <= 1)
    assert got.values.any() == (not got.zero_variance)
    assert got.values.shape == got.stds.shape == got.baselines.shape == (len(group),)


@given(rewards, st.booleans(), st.booleans(), st.integers(-8, 8))
def test_a_constant_added_to_all_rewards_changes_nothing(group, leave_one_out, normalize, constant) -> None:
    settings = AdvantageSettings(use_leave_one_out_baseline=leave_one_out, normalize_rewards=normalize)
    moved = group_advantages([r + constant for r in group], settings)
    assert np.allclose(moved.values, group_advantages(group, settings).values, atol=1e-8)


@given(rewards)
def test_against_the_group_mean_advantages_sum_to_zero(group) -> None:
    settings = AdvantageSettings(use_leave_one_out_baseline=False)
    assert group_advantages(group, settings).values.sum() == pytest.approx(0, abs=1e-9)


def test_advantages_are_bounded_after_normalisation() -> None:
    settings = AdvantageSettings(advantage_clip_low=-0.5, advantage_clip_high=1.0)
    assert group_advantages([1.0, 0.0, 0.0, 1.0], settings).values.tolist() == [1.0, -0.5, -0.5, 1.0]
    with pytest.raises(ValidationError, match="advantage_clip_low"):
        AdvantageSettings(advantage_clip_low=1.0, advantage_clip_high=0.0)


@pytest.mark.parametrize("bad", [[1.0, math.nan], [math.inf], [[1.0], [2.0]]])
def test_a_reward_that_is_not_a_number_is_refused(bad) -> None:
    with pytest.raises(ValueError, match="finite"):
        group_advantages(bad, AdvantageSettings())
