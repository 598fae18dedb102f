# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A histogram that costs a fraction of a microsecond to observe, and that is only read when metrics are asked for."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

SECONDS = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
    1800.0,
)
"""Upper bounds for what takes from half a millisecond to half an hour."""
ROWS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)


class Histogram:
    """Observations by upper bound. One thread observes; any may read."""

    __slots__ = ("_bounds", "_counts", "sum")

    def __init__(self, bounds: Sequence[float] = SECONDS):
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value. A negative one, from a clock that was set back, counts as 0."""
        value = max(value, 0.0)
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def buckets(self) -> list[tuple[str, float]]:
        """Upper bound to how many were at most that, as Prometheus has them: the last bound is ``+Inf``."""
        found: list[tuple[str, float]] = []
        total = 0
        for bound, count in zip((*map(str, self._bounds), "+Inf"), list(self._counts), strict=True):
            total += count
            found.append((bound, total))
        return found
