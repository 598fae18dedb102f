# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What canaries prove: agreement within the bound, and by their movement which of two near versions is served."""

from __future__ import annotations

import numpy as np
import pytest

from nemo_polar.errors import StaleCache, StaleWeights, WrongWeights
from nemo_polar.rl.handover.canary import Canary, Measured, judge
from nemo_polar.types import as_ids

N = 300
BOUNDS = {"bound": 1e-3, "still": 1e-5}
RANDOM = np.random.default_rng(0)
OLD = -RANDOM.exponential(2.0, N)
SYSTEMATIC = RANDOM.uniform(-4e-5, 4e-5, N)
"""How engine and trainer differ on the same weights: constant, larger than the steps below."""


def noise(size: float) -> np.ndarray:
    return RANDOM.normal(0.0, size, N)


def canary(new, before=None, next_logprobs=None) -> Canary:
    def cast(scores):
        return None if scores is None else np.concatenate([[0.0], scores]).astype(np.float64)

    return Canary(as_ids(range(N + 1)), cast(new), cast(before), next_logprobs)


def engine(scores, drawn=None) -> Measured:
    return Measured(scores + SYSTEMATIC, (drawn,))


@pytest.mark.parametrize("size", [3e-5, 3e-4, 3e-3, 0.3])
@pytest.mark.parametrize("jitter", [0.0, 5e-6])
def test_steps_of_any_size_above_the_noise_are_told_from_none(size: float, jitter: float):
    new = OLD + noise(size)
    given = [canary(new, OLD)]
    before = engine(OLD + noise(jitter))
    proof = judge(given, before, engine(new + noise(jitter)), **BOUNDS)
    assert proof.told_apart and proof.share == pytest.approx(1.0, abs=0.1) and proof.max_diff < 1e-4
    with pytest.raises(StaleWeights, match="old weights"):
        judge(given, before, engine(OLD + noise(jitter)), **BOUNDS)


def test_weights_that_are_neither_old_nor_new_are_wrong():
    given = [canary(OLD + noise(0.1), OLD)]
    with pytest.raises(WrongWeights, match=r"differ by up to .* on 300 canary tokens"):
        judge(given, engine(OLD), engine(OLD + noise(0.1)), **BOUNDS)


def test_one_token_beyond_the_bound_is_enough_and_a_nan_agrees_with_nothing():
    for off in (1.2e-3, np.nan):
        got = OLD.copy()
        got[7] += off
        with pytest.raises(WrongWeights):
            judge([canary(OLD)], None, engine(got), **BOUNDS)


def test_an_update_that_moves_nothing_passes_and_says_that_it_was_not_told_apart():
    for before in (OLD, OLD + noise(1e-7), None):
        proof = judge([canary(OLD, before)], engine(OLD), engine(OLD), **BOUNDS)
        assert not proof.told_apart and proof.share is None


def test_a_step_below_the_bound_without_the_trainers_earlier_scores_is_not_told_apart():
    new = OLD + noise(1e-4)
    assert not judge([canary(new)], engine(OLD), engine(new), **BOUNDS).told_apart
    assert not judge([canary(new)], engine(OLD), engine(OLD), **BOUNDS).told_apart
    with pytest.raises(StaleWeights):
        judge([canary(OLD + noise(0.1))], engine(OLD), engine(OLD), **BOUNDS)


def test_a_step_that_drowns_in_the_engines_noise_is_not_held_against_it():
    new = OLD + noise(2e-5)
    proof = judge([canary(new, OLD)], engine(OLD + noise(2e-4)), engine(new + noise(2e-4)), **BOUNDS)
    assert not proof.told_apart


def test_a_draw_from_old_keys_is_a_stale_cache():
    after = np.log(np.full(4, 0.25))
    given = [canary(OLD, next_logprobs=after)]
    proof = judge(given, None, engine(OLD, (2, float(after[2]) + 2e-4)), **BOUNDS)
    assert proof.drawn == 1 and proof.drawn_diff == pytest.approx(2e-4)
    with pytest.raises(StaleCache, match="prefix cache"):
        judge(given, None, engine(OLD, (2, -0.5)), **BOUNDS)


def test_a_canary_that_cannot_be_compared_is_refused_at_once():
    with pytest.raises(ValueError, match="at least 2"):
        Canary(as_ids([1]), np.zeros(1))
    with pytest.raises(ValueError, match="logprobs must be 3"):
        Canary(as_ids([1, 2, 3]), np.zeros(2))
    with pytest.raises(ValueError, match="before must be 3"):
        Canary(as_ids([1, 2, 3]), np.zeros(3), np.array([0.0, np.nan, 0.0]))
