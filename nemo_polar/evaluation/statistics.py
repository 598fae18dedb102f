# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The statistics of an evaluation: pass@k, intervals, paired comparison. Pure functions on plain numbers.

The tasks are the sample; the rollouts of one task are one cluster, for they share its difficulty. Every interval is therefore
over tasks: a thousand rollouts of ten tasks say no more than ten tasks can about the next one. Nothing here depends on the
order of what it is given. ``docs/evaluation.md`` says why which method was taken.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

EXACT_TASKS = 16
"""Up to so many tasks with a difference, every assignment of signs is looked at: 65,536."""
_CHUNK = 8
_TINY = 1e-12


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over tasks. The bounds are None where the data say nothing about the spread."""

    value: float
    low: float | None
    high: float | None
    stderr: float | None
    """Clustered by task: the standard deviation of the tasks' means over the root of their number. None for one task."""
    tasks: int


def pass_at_k(n: int, passed: int, k: int) -> float:
    """The chance that at least one of ``k`` rollouts passes, unbiased, from ``n`` rollouts of which ``passed`` did.

    It is the share of all ways to choose ``k`` of the ``n`` that hold a success.

    Raises:
        ValueError: not 0 <= passed <= n, or not 1 <= k <= n.
    """
    if not (0 <= passed <= n and 1 <= k <= n):
        raise ValueError(f"pass@{k} cannot be estimated from {n} rollouts with {passed} successes")
    return 1.0 - math.comb(n - passed, k) / math.comb(n, k)


def wilson(share: float, n: float, confidence: float, *, df: int | None = None) -> tuple[float, float]:
    """Wilson's score interval for a share of ``n`` independent draws; ``n`` may be an effective size.

    With ``df``, ``n`` was worked out from an estimated variance with so many degrees of freedom, and is made smaller by the
    square of the normal quantile over Student's (Korn and Graubard).
    """
    z = _z(confidence)
    if df is not None:
        n *= (z / t_quantile(0.5 + confidence / 2, df)) ** 2
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return (0.0 if share <= 0 else max(0.0, centre - half)), (1.0 if share >= 1 else min(1.0, centre + half))


def rate(shares: Sequence[float], draws: int, confidence: float) -> Estimate:
    """The mean of one share (in [0, 1]) a task, with Wilson's interval at the effective sample size of the clusters.

    Args:
        shares: two or more; for one task see ``rate_of_one``.
        draws: rollouts in all; the effective size is never taken to be larger.

    The effective size is what a binomial would need to have the variance that is seen between tasks. Where nothing or
    everything passes there is none to be seen; then every task counts once.
    """
    tasks = len(shares)
    mean, stderr = _mean(shares), _stderr(shares)
    if mean * (1 - mean) <= _TINY:
        low, high = wilson(round(mean), tasks, confidence)
    else:
        variance = max(stderr**2, mean * (1 - mean) / draws)
        low, high = wilson(mean, mean * (1 - mean) / variance, confidence, df=tasks - 1)
    return Estimate(mean, low, high, stderr, tasks)


def rate_of_one(n: int, passed: int, k: int, confidence: float) -> Estimate:
    """pass@k of a single task: about this task only. Its bounds are those of pass@1, since pass@k rises with it."""
    low, high = (1 - (1 - bound) ** k for bound in wilson(passed / n, n, confidence))
    return Estimate(pass_at_k(n, passed, k), low, high, None, 1)


def mean(values: Sequence[float], confidence: float) -> Estimate:
    """The mean of one value a task, with Student's interval over tasks: standard error clustered by task, tasks - 1 degrees.

    No bounds for one task, nor where all values are equal: such data show no spread, which does not mean that there is none.
    """
    value = _mean(values)
    if len(values) < 2:
        return Estimate(value, None, None, None, len(values))
    stderr = _stderr(values)
    if stderr <= _TINY * max(1.0, abs(value)):
        return Estimate(value, None, None, stderr, len(values))
    half = t_quantile(0.5 + confidence / 2, len(values) - 1) * stderr
    return Estimate(value, value - half, value + half, stderr, len(values))


def sign_flip_p(differences: Sequence[float], *, resamples: int, seed: int) -> float:
    """Two-sided p-value of the paired permutation test: how often the mean difference is as far from 0 with random signs.

    That the two are alike means that a task's difference might as well have come with the other sign. All assignments are
    counted where that can be done, else ``resamples`` random ones, and then the one that was seen is counted among them.
    """
    sizes = sorted(abs(d) for d in differences if d != 0)
    if not sizes:
        return 1.0
    seen = abs(math.fsum(differences))
    seen -= _TINY * max(1.0, seen)
    if len(sizes) <= EXACT_TASKS:
        sums = [0.0]
        for size in sizes:
            sums = [total + sign * size for total in sums for sign in (1, -1)]
        return sum(abs(total) >= seen for total in sums) / len(sums)
    tables = [_signed_sums(sizes[at : at + _CHUNK]) for at in range(0, len(sizes), _CHUNK)]
    rng = random.Random(seed)
    count = 0
    for _ in range(resamples):
        signs = rng.randbytes(len(tables))
        count += abs(math.fsum(table[byte] for table, byte in zip(tables, signs, strict=True))) >= seen
    return (1 + count) / (1 + resamples)


def _signed_sums(sizes: Sequence[float]) -> list[float]:
    """The sum of up to 8 numbers under each assignment of signs, by the byte whose bits say which are negative."""
    return [math.fsum(-size if byte >> bit & 1 else size for bit, size in enumerate(sizes)) for byte in range(1 << _CHUNK)]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _stderr(values: Sequence[float]) -> float:
    centre = _mean(values)
    return math.sqrt(math.fsum((v - centre) ** 2 for v in values) / (len(values) - 1) / len(values))


@cache
def _z(confidence: float) -> float:
    return NormalDist().inv_cdf(0.5 + confidence / 2)


@cache
def t_quantile(probability: float, df: int) -> float:
    """Student's t: the value that a draw is below with ``probability`` (over 0.5), to about 1e-9."""
    low, high = 0.0, 1.0
    while _t_cdf(high, df) < probability:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_cdf(middle, df) < probability else (low, middle)
    return high


def _t_cdf(t: float, df: int) -> float:
    """For t >= 0, in closed form for whole degrees of freedom (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(df))
    cos2 = math.cos(angle) ** 2
    term = math.cos(angle) if df % 2 else 1.0
    total = 0.0
    for step in range(1 + df % 2, df, 2):
        total += term
        term *= cos2 * step / (step + 1)
    inner = math.sin(angle) * total
    return 0.5 + ((angle + inner) / math.pi if df % 2 else inner / 2)
