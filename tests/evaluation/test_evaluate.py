# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""An evaluation counts what is about the policy, and nothing else; the same rollouts in any order give the same file."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from nemo_polar.evaluation.evaluate import by_task, evaluate
from nemo_polar.evaluation.plot import draw
from nemo_polar.settings import EvalSettings
from nemo_polar.types import Status, Trajectory


def rollout(task: str, number: int, reward: float | None, status: Status = Status.COMPLETED) -> Trajectory:
    return Trajectory(
        f"{task}.0.{number}", task, f"{task}.0", status, (), reward, metrics={"turns": 3.0, "sampled_tokens": 9.0}
    )


def run(rewards: dict[str, list[float]]) -> list[Trajectory]:
    return [rollout(task, n, reward) for task, values in rewards.items() for n, reward in enumerate(values)]


REWARDS = {"a": [1.0, 0.0, 1.0, 0.25], "b": [0.0] * 4, "c": [1.0, 1.0, 0.5, 1.0]}


def test_pass_at_1_is_the_mean_of_the_tasks_rates_and_pass_at_k_that_of_their_unbiased_estimates() -> None:
    found = evaluate(run(REWARDS), EvalSettings(), ks=[1, 2, 4], planned=12)
    values = {p["k"]: p["value"] for p in found["pass"]}
    assert values[1] == pytest.approx((2 / 4 + 0 + 3 / 4) / 3)
    assert values[2] == pytest.approx((5 / 6 + 0 + 1) / 3) and values[4] == pytest.approx(2 / 3)
    assert found["reward"]["value"] == pytest.approx((0.5625 + 0 + 0.875) / 3)
    assert all(p["low"] < p["value"] < p["high"] and p["tasks"] == 3 for p in found["pass"])
    assert [(t["task"], t["passed"], t["rollouts"]) for t in found["tasks"]] == [("a", 2, 4), ("b", 0, 4), ("c", 3, 4)]


@pytest.mark.parametrize("status", [s for s in Status if s.infra])
def test_a_failure_of_infrastructure_changes_no_figure_and_is_counted(status: Status) -> None:
    good = evaluate(run(REWARDS), EvalSettings(), ks=[1, 2], planned=12)
    more = evaluate([*run(REWARDS), rollout("a", 9, None, status)], EvalSettings(), ks=[1, 2], planned=14)
    assert more["pass"] == good["pass"] and more["reward"] == good["reward"]
    assert more["rollouts"] == {"planned": 14, "counted": 12, "excluded": {status.value: 1}, "missing": 1}
    assert more["tasks"][0]["excluded"] == {status.value: 1} and more["tasks"][0]["rollouts"] == 4


@pytest.mark.parametrize("status", [s for s in Status if not s.infra])
def test_whatever_the_policy_did_counts_with_the_verifiers_reward(status: Status) -> None:
    [found] = by_task([rollout("a", 0, 1.0, status)], 1.0)
    assert (found.n, found.passed) == (1, 1)


def test_a_task_with_nothing_but_failures_of_infrastructure_is_left_out_of_the_means() -> None:
    failed = [rollout("d", n, None, Status.ENGINE_FAILED) for n in range(4)]
    found = evaluate([*run(REWARDS), *failed], EvalSettings(), ks=[1], planned=16)
    assert found["pass"] == evaluate(run(REWARDS), EvalSettings(), ks=[1], planned=12)["pass"]
    assert found["tasks_counted"] == 3 and found["tasks"][3]["pass_rate"] is None
    nothing = evaluate(failed, EvalSettings(), ks=[1], planned=4)
    assert nothing["pass"][0]["value"] is None and nothing["reward"]["value"] is None


def test_pass_at_k_is_over_the_tasks_with_k_rollouts_and_says_over_how_many() -> None:
    found = evaluate(run({"a": [1.0, 0.0, 0.0], "b": [0.0], "c": [1.0, 1.0, 0.0]}), EvalSettings(), ks=[1, 3], planned=9)
    assert [(p["k"], p["tasks"]) for p in found["pass"]] == [(1, 3), (3, 2)]
    assert found["pass"][1]["value"] == 1.0 and found["tasks"][1]["pass_at"] == {"1": 0.0, "3": None}


@pytest.mark.parametrize(("threshold", "passed"), [(1.0, 2), (0.5, 2), (0.25, 3), (0.0, 4), (1.5, 0)])
def test_the_threshold_decides_what_passes(threshold: float, passed: int) -> None:
    assert by_task(run({"a": REWARDS["a"]}), threshold)[0].passed == passed


def test_a_sum_of_weights_that_rounding_left_just_under_the_threshold_passes() -> None:
    assert by_task([rollout("a", 0, 0.7 + 0.2 + 0.1)], 1.0)[0].passed == 1 and 0.7 + 0.2 + 0.1 < 1.0


def test_the_order_in_which_rollouts_ended_does_not_matter() -> None:
    rollouts = [*run(REWARDS), rollout("a", 9, None, Status.CANCELLED)]
    first = json.dumps(evaluate(rollouts, EvalSettings(), ks=[1, 4], planned=13))
    for seed in range(5):
        random.Random(seed).shuffle(rollouts)
        assert json.dumps(evaluate(rollouts, EvalSettings(), ks=[1, 4], planned=13)) == first


def test_one_task_has_an_interval_of_its_own_rollouts() -> None:
    found = evaluate(run({"a": REWARDS["a"]}), EvalSettings(), ks=[1, 2], planned=4)
    for entry in found["pass"]:
        assert entry["low"] < entry["value"] < entry["high"] and entry["stderr"] is None
    assert found["reward"]["low"] is None


def test_the_picture_is_a_png_and_its_absence_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = evaluate(run(REWARDS), EvalSettings(), ks=[1], planned=12)
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert not draw(result, "x", tmp_path / "no.png") and not (tmp_path / "no.png").exists()
    monkeypatch.undo()
    pytest.importorskip("matplotlib")
    for found in (result, evaluate([], EvalSettings(), ks=[1], planned=0)):
        assert draw(found, "x", tmp_path / "a.png") and (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
