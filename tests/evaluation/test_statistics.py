# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The statistics hold what their names promise: pass@k is the share of subsets, intervals cover, order does not matter."""

from __future__ import annotations

import math
import random
from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_polar.evaluation import statistics
from nemo_polar.evaluation.statistics import mean, pass_at_k, rate, rate_of_one, sign_flip_p, t_quantile, wilson

shares = st.lists(st.floats(0, 1), min_size=2, max_size=40)
numbers = st.lists(st.floats(-5, 5, allow_subnormal=False), min_size=2, max_size=10)


@given(st.integers(1, 9), st.data())
def test_pass_at_k_is_the_share_of_all_choices_of_k_rollouts_that_hold_a_success(n: int, data: st.DataObject) -> None:
    passed, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    rollouts = [True] * passed + [False] * (n - passed)
    choices = list(combinations(rollouts, k))
    assert pass_at_k(n, passed, k) == pytest.approx(sum(map(any, choices)) / len(choices), abs=1e-12)


@given(st.integers(1, 60), st.data())
def test_pass_at_k_rises_with_k_and_is_the_plain_rate_at_1(n: int, data: st.DataObject) -> None:
    passed = data.draw(st.integers(0, n))
    found = [pass_at_k(n, passed, k) for k in range(1, n + 1)]
    assert found[0] == pytest.approx(passed / n) and found == sorted(found)
    assert found[-1] == (1.0 if passed else 0.0)


def test_pass_at_k_is_unbiased_where_the_naive_estimate_is_not() -> None:
    chance, n, k = 0.3, 6, 4
    weights = [math.comb(n, c) * chance**c * (1 - chance) ** (n - c) for c in range(n + 1)]
    truth = 1 - (1 - chance) ** k
    assert math.fsum(w * pass_at_k(n, c, k) for c, w in enumerate(weights)) == pytest.approx(truth, abs=1e-12)
    assert abs(math.fsum(w * (1 - (1 - c / n) ** k) for c, w in enumerate(weights)) - truth) > 0.03


@pytest.mark.parametrize(("n", "passed", "k"), [(3, 4, 1), (3, -1, 1), (3, 1, 4), (3, 1, 0)])
def test_an_impossible_pass_at_k_is_refused(n: int, passed: int, k: int) -> None:
    with pytest.raises(ValueError, match="pass@"):
        pass_at_k(n, passed, k)


STUDENT = {
    (0.975, 1): 12.7062,
    (0.975, 2): 4.3027,
    (0.975, 7): 2.3646,
    (0.975, 30): 2.0423,
    (0.95, 10): 1.8125,
    (0.995, 5): 4.0321,
}


@pytest.mark.parametrize(("at", "value"), STUDENT.items(), ids=str)
def test_students_quantiles_are_those_of_the_tables(at: tuple[float, int], value: float) -> None:
    assert t_quantile(*at) == pytest.approx(value, abs=5e-5)


def test_wilsons_interval_is_the_published_one() -> None:
    assert wilson(0.1, 10, 0.95) == pytest.approx((0.01787621, 0.40415003), abs=1e-7)
    assert wilson(0.0, 8, 0.95) == (0.0, pytest.approx(0.3244076, abs=1e-6))
    assert wilson(1.0, 8, 0.95) == (pytest.approx(0.6755924, abs=1e-6), 1.0)


@given(shares, st.integers(2, 8))
def test_a_rates_interval_holds_it_stays_within_0_and_1_and_never_collapses(values: list[float], rollouts: int) -> None:
    found = rate(values, rollouts * len(values), 0.95)
    assert found.low is not None and found.high is not None
    assert 0 <= found.low <= found.value + 1e-12 and found.value - 1e-12 <= found.high <= 1
    assert found.high - found.low > 0.001


@given(shares, numbers, st.randoms(use_true_random=False))
def test_the_order_of_the_tasks_does_not_matter(values: list[float], differences: list[float], rng: random.Random) -> None:
    before = rate(values, 99, 0.9), mean(differences, 0.9), sign_flip_p(differences, resamples=50, seed=1)
    rng.shuffle(values)
    rng.shuffle(differences)
    assert before == (rate(values, 99, 0.9), mean(differences, 0.9), sign_flip_p(differences, resamples=50, seed=1))


def test_equal_values_have_no_interval_rather_than_one_of_no_width() -> None:
    found = mean([0.5] * 6, 0.95)
    assert (found.value, found.low, found.high, found.stderr) == (0.5, None, None, 0.0)
    assert mean([0.5], 0.95).stderr is None


def test_rollouts_that_all_agree_within_a_task_count_as_one() -> None:
    eight_of_one = rate([0.0] * 10 + [1.0] * 10, 160, 0.95)
    one_each = rate([0.0] * 10 + [1.0] * 10, 20, 0.95)
    assert eight_of_one == one_each
    assert eight_of_one.low is not None and eight_of_one.low < 0.31, "not that of 160 independent rollouts, 0.42"


@settings(max_examples=30)
@given(st.integers(1, 12), st.data())
def test_one_tasks_interval_holds_its_estimate_at_k_1(n: int, data: st.DataObject) -> None:
    passed = data.draw(st.integers(0, n))
    found = rate_of_one(n, passed, 1, 0.95)
    assert (found.low, found.high) == pytest.approx(wilson(passed / n, n, 0.95))


def simulated(rng: random.Random, tasks: int, rollouts: int) -> tuple[list[float], list[float]]:
    """Chances of tasks drawn from Beta(0.6, 0.9), whose mean is 0.4, and the shares that passed."""
    chances = [rng.betavariate(0.6, 0.9) for _ in range(tasks)]
    return chances, [sum(rng.random() < chance for _ in range(rollouts)) / rollouts for chance in chances]


@pytest.mark.parametrize(("tasks", "least"), [(6, 0.92), (25, 0.93), (80, 0.93)])
def test_95_percent_intervals_hold_the_truth_about_95_percent_of_the_time(tasks: int, least: float) -> None:
    rng, runs = random.Random(7), 800
    inside = {"rate": 0, "mean": 0, "naive": 0}
    for _ in range(runs):
        _, values = simulated(rng, tasks, 4)
        naive = wilson(math.fsum(values) / tasks, 4 * tasks, 0.95)
        for name, (low, high) in {
            "rate": ((e := rate(values, 4 * tasks, 0.95)).low, e.high),
            "mean": ((m := mean(values, 0.95)).low, m.high),
            "naive": naive,
        }.items():
            inside[name] += low is not None and high is not None and low <= 0.4 <= high
    assert least <= inside["rate"] / runs <= 0.995
    assert 0.9 <= inside["mean"] / runs <= 0.99
    assert inside["naive"] / runs < 0.85, "as if rollouts of a task were independent: too narrow, which is why it is not used"


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=8))
def test_the_paired_test_counts_all_assignments_of_signs(differences: list[int]) -> None:
    seen = abs(sum(differences))
    everything = [
        abs(sum(s * d for s, d in zip(signs, differences, strict=True))) for signs in product((1, -1), repeat=len(differences))
    ]
    expected = sum(total >= seen for total in everything) / len(everything)
    assert sign_flip_p([float(d) for d in differences], resamples=1, seed=0) == pytest.approx(expected)


@given(numbers)
def test_the_paired_test_does_not_care_which_of_the_two_comes_first(differences: list[float]) -> None:
    there = sign_flip_p(differences, resamples=20, seed=3)
    assert there == sign_flip_p([-d for d in differences], resamples=20, seed=3) and 0 < there <= 1


def test_with_many_tasks_random_signs_agree_with_counting_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    differences = [0.25 * (i % 4 - 1) for i in range(20)]
    sampled = sign_flip_p(differences, resamples=20_000, seed=0)
    assert (
        sampled
        == sign_flip_p(differences[::-1], resamples=20_000, seed=0)
        == sign_flip_p(differences, resamples=20_000, seed=0)
    )
    monkeypatch.setattr(statistics, "EXACT_TASKS", 20)
    assert sampled == pytest.approx(sign_flip_p(differences, resamples=1, seed=0), abs=0.01)


def test_the_paired_tests_p_is_at_most_5_percent_about_5_percent_of_the_time_when_nothing_differs() -> None:
    rng = random.Random(11)
    small = 0
    for _ in range(400):
        chances = [rng.betavariate(0.6, 0.9) for _ in range(12)]
        one, other = ([sum(rng.random() < c for _ in range(4)) / 4 for c in chances] for _ in range(2))
        small += sign_flip_p([y - x for x, y in zip(one, other, strict=True)], resamples=1, seed=0) <= 0.05
    assert 0.01 <= small / 400 <= 0.08
