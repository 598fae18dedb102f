# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Are an engine's log-probabilities those of the distribution it samples from? Worked out from ids and log-probabilities alone.

The same prompt is asked at T=1 and at a low temperature T, each time with the k likeliest first tokens. Write p for the
distribution at T=1. Tempered, token i has log-probability ``log p_i / T - log Z`` with ``Z = sum_j p_j^(1/T)``. So

- between any two tokens, log-probabilities lie 1/T times as far apart as they do at T=1, where an engine that reports raw
  ones shows the same distance (the *slope* test, by least squares over all prompts, with its standard error, as engines
  compute in bfloat16);
- Z lies between the sum over the known tokens and that sum plus ``p_k^(1/T - 1)`` times the unknown mass, p_k being the least
  of the likeliest (the *level* test: it tells log-probabilities from bare logits, whose slope would pass).

Pure: no socket, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Verdict = Literal["processed", "raw", "unnormalised", "undecided"]

TEMPERATURE = 0.25
TOP = 10
_SLOPE_TOLERANCE = 0.25
"""Of the slope to expect, relative. Noise in the values at T=1 flattens the slope a little."""
_LEVEL_TOLERANCE = 1.0
"""Nats; at T=0.25 an error of 0.1 in bfloat16 logits becomes 0.4. Bare logits are off by tens."""


@dataclass(slots=True)
class ScalingTest:
    """Collects pairs of observations, one a prompt, and says what they amount to."""

    temperature: float = TEMPERATURE
    _xx: float = 0.0
    _xy: float = 0.0
    _yy: float = 0.0
    _count: int = 0
    _level_errors: list[float] = field(default_factory=list)

    def add(self, plain: Mapping[int, float], tempered: Mapping[int, float]) -> None:
        """Log-probabilities of the likeliest first tokens of one prompt, at T=1 and at ``temperature``."""
        shared = [token for token in plain if token in tempered and min(plain[token], tempered[token]) > -50.0]
        if len(shared) < 2:
            return
        xs, ys = [plain[t] for t in shared], [tempered[t] for t in shared]
        mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
        for x, y in zip(xs, ys, strict=True):
            self._xx += (x - mean_x) ** 2
            self._xy += (x - mean_x) * (y - mean_y)
            self._yy += (y - mean_y) ** 2
        self._count += len(shared) - 1
        self._level_errors.append(self._level_error(plain, shared, tempered))

    def verdict(self) -> Verdict:
        """``undecided`` until what was seen is enough."""
        if self._count < 2 or self._xx <= 1e-6:
            return "undecided"
        slope = self._xy / self._xx
        residual = max(self._yy - slope * self._xy, 0.0)
        spread = 3.0 * math.sqrt(residual / max(self._count - 1, 1) / self._xx)
        expected = 1.0 / self.temperature
        if abs(slope - expected) + spread < _SLOPE_TOLERANCE * expected:
            levels = sorted(self._level_errors)
            return "processed" if abs(levels[len(levels) // 2]) <= _LEVEL_TOLERANCE else "unnormalised"
        if slope + spread < (1.0 + expected) / 2:
            return "raw"
        return "undecided"

    def _level_error(self, plain: Mapping[int, float], shared: list[int], tempered: Mapping[int, float]) -> float:
        """How far, in nats, the tempered values lie outside what they must be; 0 inside."""
        power = 1.0 / self.temperature
        # The sampled token is among the known ones however unlikely it is; all unknown ones are below the second least known.
        ceiling = sorted(plain.values())[1]
        known = sum(math.exp(power * x) for x in plain.values())
        rest = max(1.0 - sum(math.exp(x) for x in plain.values()), 0.0)
        low = math.log(known)
        high = math.log(known + math.exp((power - 1.0) * ceiling) * rest)
        # Every shared token gives one estimate of log Z; their mean is what noise disturbs least.
        estimate = sum(power * plain[t] - tempered[t] for t in shared) / len(shared)
        return max(low - estimate, 0.0) + min(high - estimate, 0.0)
