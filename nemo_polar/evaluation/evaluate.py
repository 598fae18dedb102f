# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What a run says of its policy: a row a task, pass@k and the mean reward over tasks, as plain data for ``evaluation.json``.

A rollout that failed for reasons of infrastructure has no reward and enters no figure; it is counted beside them. Nothing in
the result depends on when or in which order the rollouts ran, so that the same draws give the same file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from nemo_polar.evaluation.statistics import Estimate, mean, pass_at_k, rate, rate_of_one, wilson
from nemo_polar.settings import EvalSettings
from nemo_polar.types import Trajectory

FORMAT = "polar-evaluation"
VERSION = 1
SLACK = 1e-9
"""A reward this little under the threshold passes: weights of checks do not always add up to 1 exactly."""

METHODS = {
    "pass": "mean over tasks of the unbiased estimate; Wilson's interval at the effective sample size of clusters (tasks), "
    "made smaller for few tasks as Korn and Graubard do",
    "reward": "mean over tasks of the tasks' means; Student's interval with standard errors clustered by task",
    "task": "Wilson's interval of the task's own rollouts",
}


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The rollouts of one task that say something about the policy."""

    task: str
    rewards: tuple[float, ...]
    passed: int
    excluded: dict[str, int]
    """Rollouts that say nothing about it, by status."""
    turns: float
    sampled_tokens: float
    """Of the rollouts that count, as is ``turns``."""

    @property
    def n(self) -> int:
        return len(self.rewards)

    def pass_at(self, k: int) -> float | None:
        """None with fewer than ``k`` rollouts."""
        return pass_at_k(self.n, self.passed, k) if self.n >= k else None

    @property
    def reward(self) -> float:
        """The mean; there must be one."""
        return mean(self.rewards, 0.5).value


def by_task(trajectories: Iterable[Trajectory], threshold: float) -> list[TaskResult]:
    """One result a task, by the task's id."""
    tasks: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        tasks.setdefault(trajectory.task_id, []).append(trajectory)
    return [_task(task, tasks[task], threshold) for task in sorted(tasks)]


def _task(task: str, trajectories: Sequence[Trajectory], threshold: float) -> TaskResult:
    counted = [t for t in trajectories if not t.status.infra and t.reward is not None]
    rewards = sorted(t.reward for t in counted if t.reward is not None)
    excluded = Counter(t.status.value for t in trajectories if t.status.infra or t.reward is None)
    return TaskResult(
        task=task,
        rewards=tuple(rewards),
        passed=sum(reward >= threshold - SLACK for reward in rewards),
        excluded=dict(sorted(excluded.items())),
        turns=sum(t.metrics.get("turns", 0.0) for t in counted),
        sampled_tokens=sum(t.metrics.get("sampled_tokens", 0.0) for t in counted),
    )


def evaluate(trajectories: Iterable[Trajectory], settings: EvalSettings, *, ks: Sequence[int], planned: int) -> dict[str, Any]:
    """The whole evaluation of a run.

    Args:
        ks: the k of pass@k.
        planned: rollouts that the run was to make.
    """
    results = by_task(trajectories, settings.threshold)
    counted = [r for r in results if r.n]
    excluded = sum((Counter(r.excluded) for r in results), Counter[str]())
    rewards = mean([r.reward for r in counted], settings.confidence) if counted else None
    return {
        "format": FORMAT,
        "version": VERSION,
        "threshold": settings.threshold,
        "confidence": settings.confidence,
        "methods": METHODS,
        "rollouts": {
            "planned": planned,
            "counted": sum(r.n for r in counted),
            "excluded": dict(sorted(excluded.items())),
            "missing": planned - sum(r.n + sum(r.excluded.values()) for r in results),
        },
        "tasks_counted": len(counted),
        "pass": [{"k": k, **_estimate(pass_rate(counted, k, settings.confidence))} for k in ks],
        "reward": _estimate(rewards),
        "tasks": [_row(r, ks, settings.confidence) for r in results],
    }


def pass_rate(results: Sequence[TaskResult], k: int, confidence: float) -> Estimate | None:
    """pass@k over the tasks with at least ``k`` rollouts; None when there is no such task."""
    enough = [r for r in results if r.n >= k]
    if not enough:
        return None
    if len(enough) == 1:
        return rate_of_one(enough[0].n, enough[0].passed, k, confidence)
    return rate([pass_at_k(r.n, r.passed, k) for r in enough], sum(r.n for r in enough), confidence)


def _row(result: TaskResult, ks: Sequence[int], confidence: float) -> dict[str, Any]:
    low, high = wilson(result.passed / result.n, result.n, confidence) if result.n else (None, None)
    return {
        "task": result.task,
        "rollouts": result.n,
        "passed": result.passed,
        "pass_rate": result.passed / result.n if result.n else None,
        "low": low,
        "high": high,
        "pass_at": {str(k): result.pass_at(k) for k in ks},
        "reward_mean": result.reward if result.n else None,
        "reward_min": min(result.rewards, default=None),
        "reward_max": max(result.rewards, default=None),
        "turns_mean": result.turns / result.n if result.n else None,
        "sampled_tokens_mean": result.sampled_tokens / result.n if result.n else None,
        "excluded": result.excluded,
    }


def _estimate(found: Estimate | None) -> dict[str, Any]:
    if found is None:
        return {"value": None, "low": None, "high": None, "stderr": None, "tasks": 0}
    return {"value": found.value, "low": found.low, "high": found.high, "stderr": found.stderr, "tasks": found.tasks}
