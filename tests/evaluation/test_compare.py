# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A comparison is paired by task, fair to both sides, and finds what is there."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_polar.evaluation.compare import compare
from nemo_polar.settings import EvalSettings
from nemo_polar.types import Status
from tests.evaluation.test_evaluate import rollout, run

sides = st.dictionaries(
    st.sampled_from("abcdefg"), st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=4), min_size=1
)
SETTINGS = EvalSettings(resamples=100)


def measures(found: dict[str, Any]) -> dict[str, Any]:
    return {row["measure"]: row for row in found["measures"]}


@given(sides, sides)
def test_swapping_the_two_turns_every_sign_and_leaves_p(a: dict[str, list[float]], b: dict[str, list[float]]) -> None:
    there = measures(compare(run(a), run(b), SETTINGS, ks=[1, 2]))
    back = measures(compare(run(b), run(a), SETTINGS, ks=[1, 2]))
    for name, row in there.items():
        other = back[name]
        assert row["p"] == other["p"] and row["tasks"] == other["tasks"]
        assert (row["better"], row["a"]) == (other["worse"], other["b"])
        if row["difference"] is not None:
            assert row["difference"] == -other["difference"]
        if row["low"] is not None:
            assert (row["low"], row["high"]) == pytest.approx((-other["high"], -other["low"]))


@given(sides, st.integers())
def test_the_order_of_rollouts_does_not_matter(a: dict[str, list[float]], seed: int) -> None:
    one, other = run(a), run({task: values[::-1] for task, values in a.items()})
    first = compare(one, other, SETTINGS, ks=[1])
    random.Random(seed).shuffle(one)
    assert compare(one, other, SETTINGS, ks=[1]) == first
    assert all(row["difference"] == 0 and row["p"] == 1.0 for row in first["measures"])


def test_a_difference_within_tasks_shows_though_the_tasks_differ_far_more() -> None:
    rewards = {f"t{n}": [float(passes < n % 5) for passes in range(4)] for n in range(40)}
    better = {task: [*sorted(values)[1:], 1.0] for task, values in rewards.items()}
    row = measures(compare(run(rewards), run(better), SETTINGS, ks=[1]))["pass@1"]
    assert row["difference"] == pytest.approx(0.2) and 0.15 < row["low"] < row["high"] < 0.25
    assert row["p"] < 0.02 and (row["better"], row["worse"]) == (32, 0)


def test_tasks_without_a_result_on_both_sides_are_left_out_and_named() -> None:
    a = [*run({"x": [1.0], "y": [0.0]}), rollout("z", 0, None, Status.ENGINE_FAILED)]
    b = run({"y": [1.0], "z": [1.0]})
    found = compare(a, b, SETTINGS, ks=[1])
    assert found["tasks_compared"] == 1 and found["tasks_left_out"] == ["x", "z"] and found["excluded"] == {"a": 1, "b": 0}
    row = measures(found)["pass@1"]
    assert (row["difference"], row["low"], row["p"]) == (1.0, None, 1.0), "one task says nothing about other tasks"


def test_with_no_task_in_common_there_is_nothing_to_say() -> None:
    found = measures(compare(run({"x": [1.0]}), run({"y": [1.0]}), SETTINGS, ks=[1]))
    assert found["pass@1"]["difference"] is None and found["reward"]["p"] is None
