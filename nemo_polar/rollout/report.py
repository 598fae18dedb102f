# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""``report.json``: what a run came to. Counts of tokens are the audit's; statuses and rewards are the pipeline's."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from nemo_polar.rollout.pipeline import Progress
from nemo_polar.types import Status, Trajectory


def outcome_of(progress: Progress, trajectories: Sequence[Trajectory], *, wall_s: float, cancelled: bool) -> dict[str, Any]:
    """The part of the report that needs no audit. A failure of infrastructure has no reward and enters no mean.

    ``trajectories`` are all of the run, those of the run that it resumed included; ``wall_s`` are this process's seconds.
    """
    rewards = [t.reward for t in trajectories if t.reward is not None]
    return {
        "rollouts": len(trajectories),
        "rollouts_planned": progress.total,
        "rollouts_retried": progress.retried,
        "cancelled": cancelled,
        "statuses": dict(sorted(Counter(t.status.value for t in trajectories).items())),
        "errors": errors(trajectories),
        "reward_mean": statistics.fmean(rewards) if rewards else None,
        "rewards": len(rewards),
        "rollouts_without_calls": sum(t.metrics.get("no_calls") == 1.0 for t in trajectories),
        "group_prompt_mismatches": progress.prompt_mismatches,
        "wall_s": round(wall_s, 3),
        "tasks": table(trajectories),
    }


def errors(trajectories: Iterable[Trajectory]) -> dict[str, dict[str, int | str]]:
    """Failures of infrastructure by status: how many, and the first one's message."""
    found: dict[str, dict[str, int | str]] = {}
    for t in trajectories:
        if t.status.infra and t.status is not Status.CANCELLED:
            entry = found.setdefault(t.status.value, {"count": 0, "first": f"{t.rollout_id}: {t.error}"})
            entry["count"] = int(entry["count"]) + 1
    return found


def table(trajectories: Iterable[Trajectory]) -> list[dict[str, Any]]:
    """One row a task: how its rollouts ended, their rewards, turns and tokens."""
    tasks: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        tasks.setdefault(trajectory.task_id, []).append(trajectory)
    return [_row(task, tasks[task]) for task in sorted(tasks)]


def _row(task: str, trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    rewards = [t.reward for t in trajectories if t.reward is not None]
    return {
        "task": task,
        "rollouts": len(trajectories),
        "statuses": dict(sorted(Counter(t.status.value for t in trajectories).items())),
        "reward_mean": statistics.fmean(rewards) if rewards else None,
        "reward_min": min(rewards, default=None),
        "reward_max": max(rewards, default=None),
        "turns": int(_sum(trajectories, "turns")),
        "sampled_tokens": int(_sum(trajectories, "sampled_tokens")),
    }


def _sum(trajectories: Sequence[Trajectory], metric: str) -> float:
    return sum(t.metrics.get(metric, 0.0) for t in trajectories)
