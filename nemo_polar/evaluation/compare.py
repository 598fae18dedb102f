# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Two policies on the same tasks, compared task by task.

The difference within a task is free of how hard the task is, which is most of what varies, so a paired comparison sees
much smaller differences than two intervals side by side do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from nemo_polar.evaluation.evaluate import TaskResult, by_task
from nemo_polar.evaluation.statistics import mean, sign_flip_p
from nemo_polar.settings import EvalSettings
from nemo_polar.types import Trajectory

FORMAT = "polar-comparison"
VERSION = 1

METHODS = {
    "difference": "mean over tasks of b - a, with Student's interval over tasks",
    "p": "two-sided paired permutation test: signs of the tasks' differences flipped",
}


def compare(a: Iterable[Trajectory], b: Iterable[Trajectory], settings: EvalSettings, *, ks: Sequence[int]) -> dict[str, Any]:
    """Every difference as ``b - a``: positive where b is better. Tasks that only one of them has results for are left out.

    Args:
        ks: the k of pass@k.
    """
    first = {r.task: r for r in by_task(a, settings.threshold)}
    second = {r.task: r for r in by_task(b, settings.threshold)}
    both = [task for task in sorted(first.keys() & second.keys()) if first[task].n and second[task].n]
    pairs = [(first[task], second[task]) for task in both]
    named: list[tuple[str, Callable[[TaskResult], float | None]]] = [(f"pass@{k}", _at(k)) for k in ks]
    named.append(("reward", lambda r: r.reward))
    return {
        "format": FORMAT,
        "version": VERSION,
        "threshold": settings.threshold,
        "confidence": settings.confidence,
        "methods": METHODS,
        "tasks_compared": len(both),
        "tasks_left_out": sorted((first.keys() | second.keys()) - set(both)),
        "rollouts": {"a": sum(x.n for x, _ in pairs), "b": sum(y.n for _, y in pairs)},
        "excluded": {"a": _excluded(first.values()), "b": _excluded(second.values())},
        "measures": [{"measure": name, **_measure(pairs, of, settings)} for name, of in named],
        "tasks": [
            {
                "task": x.task,
                "pass_rate": {"a": x.passed / x.n, "b": y.passed / y.n},
                "reward_mean": {"a": x.reward, "b": y.reward},
                "rollouts": {"a": x.n, "b": y.n},
            }
            for x, y in pairs
        ],
    }


def _at(k: int) -> Callable[[TaskResult], float | None]:
    return lambda result: result.pass_at(k)


def _excluded(results: Iterable[TaskResult]) -> int:
    return sum(sum(r.excluded.values()) for r in results)


def _measure(
    pairs: Sequence[tuple[TaskResult, TaskResult]], of: Callable[[TaskResult], float | None], settings: EvalSettings
) -> dict[str, Any]:
    values = [(x, y) for one, other in pairs if (x := of(one)) is not None and (y := of(other)) is not None]
    if not values:
        return dict.fromkeys(("a", "b", "difference", "low", "high", "stderr", "p")) | {"tasks": 0, "better": 0, "worse": 0}
    differences = [y - x for x, y in values]
    found = mean(differences, settings.confidence)
    return {
        "a": math.fsum(x for x, _ in values) / len(values),
        "b": math.fsum(y for _, y in values) / len(values),
        "difference": found.value,
        "low": found.low,
        "high": found.high,
        "stderr": found.stderr,
        "p": sign_flip_p(differences, resamples=settings.resamples, seed=settings.seed),
        "tasks": len(values),
        "better": sum(d > 0 for d in differences),
        "worse": sum(d < 0 for d in differences),
    }
