# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A language model made of hashes: a proper distribution over a vocabulary, with nothing to train or to load.

The logits of the next token are a pure function of the seed, the weights version and every id before it. So sampling,
re-scoring and a second process all agree to the last bit, temperature and truncation do what they do in a real engine, and
another weights version is another model. It stands behind the scripted engine; it never touches the network, the disk or a
clock.

A token id is split into a row and a column, and its logit is the sum of the two's. The softmax then factors, which keeps a
step cheap (about the square root of the vocabulary) at every temperature.
"""

from __future__ import annotations

import hashlib
import math
import struct
from typing import Protocol

import numpy as np
import numpy.typing as npt

from nemo_polar.types import LogProbs, SamplingParams, TokenIds

_Floats = npt.NDArray[np.float64]
_UNTRUNCATED = SamplingParams()


class Distribution(Protocol):
    """Next-token distribution."""

    def draw(self, uniform: float) -> int:
        """The token at ``uniform`` (in [0, 1)) of the cumulative distribution."""
        ...

    def logprob(self, token_id: int) -> float:
        """Natural logarithm; minus infinity for a token that cannot be drawn."""
        ...

    def top(self, k: int) -> list[tuple[int, float]]:
        """The ``k`` likeliest tokens and their log-probabilities, likeliest first."""
        ...


class Prefix:
    """The ids before a token, hashed as they come."""

    __slots__ = ("_hash",)

    def __init__(self, seed: int, weights_version: int, token_ids: TokenIds):
        self._hash = hashlib.blake2b(struct.pack("<qq", seed, weights_version), digest_size=8)
        self._hash.update(np.ascontiguousarray(token_ids, dtype="<i4").tobytes())

    def push(self, token_id: int) -> None:
        self._hash.update(struct.pack("<i", token_id))

    def key(self) -> int:
        return int.from_bytes(self._hash.copy().digest(), "little")


class HashPolicy:
    """The model. ``spread`` is the width, in nats, of the uniform distribution that row and column logits come from."""

    def __init__(self, vocab: int = 512, *, seed: int = 0, spread: float = 4.0):
        if vocab < 2:
            raise ValueError(f"a vocabulary of {vocab} tokens has no distribution; give at least 2")
        self.vocab, self.seed, self.spread = vocab, seed, spread
        self._width = math.isqrt(vocab - 1) + 1
        self._rows = -(-vocab // self._width)
        self._steps = np.arange(1, self._rows + self._width + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)

    def prefix(self, token_ids: TokenIds, weights_version: int = 0) -> Prefix:
        return Prefix(self.seed, weights_version, token_ids)

    def distribution(self, prefix: Prefix, sampling: SamplingParams = _UNTRUNCATED) -> Distribution:
        """What the token after ``prefix`` is drawn from: temperature, then min-p, top-k and top-p, as vLLM orders them.

        At temperature 0 the likeliest token is drawn, and its log-probability is the one at temperature 1, as in vLLM.
        """
        rows, columns = self._logits(prefix)
        if sampling.temperature == 0:
            return _Dense(self._dense(rows, columns), greedy=True)
        rows, columns = rows / sampling.temperature, columns / sampling.temperature
        if sampling.min_p == 0 and sampling.top_k in (-1, 0) and sampling.top_p == 1:
            return _Factored(rows, columns, self.vocab)
        return _Dense(_truncate(self._dense(rows, columns), sampling))

    def score(self, token_ids: TokenIds, weights_version: int = 0) -> LogProbs:
        """float32[N]: every token's log-probability given those before it, at temperature 1; the first entry is 0."""
        out = np.zeros(len(token_ids), dtype=np.float32)
        prefix = self.prefix(token_ids[:1], weights_version)
        for at, token_id in enumerate(token_ids[1:].tolist(), start=1):
            out[at] = self.distribution(prefix).logprob(token_id)
            prefix.push(token_id)
        return out

    def _logits(self, prefix: Prefix) -> tuple[_Floats, _Floats]:
        """float64[rows] and float64[width]: splitmix64 of the prefix's key, as uniform numbers."""
        mixed = self._steps + np.uint64(prefix.key())
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
        logits = ((mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53 - 0.5) * self.spread
        return logits[: self._rows], logits[self._rows :]

    def _dense(self, rows: _Floats, columns: _Floats) -> _Floats:
        logits = np.add.outer(rows, columns).ravel()[: self.vocab]
        return logits - _logsumexp(logits)


class _Factored:
    """Row and column drawn one after the other. The last row may be short: it has its own normaliser."""

    def __init__(self, rows: _Floats, columns: _Floats, vocab: int):
        self._rows, self._columns, self._vocab = rows, columns, vocab
        self._short = vocab - (len(rows) - 1) * len(columns)
        mass = rows + _logsumexp(columns)
        mass[-1] = rows[-1] + _logsumexp(columns[: self._short])
        self._mass, self._norm = mass, _logsumexp(mass)

    def draw(self, uniform: float) -> int:
        cumulative = np.cumsum(np.exp(self._mass - self._norm))
        row = min(int(np.searchsorted(cumulative, uniform, side="right")), len(cumulative) - 1)
        below = float(cumulative[row - 1]) if row else 0.0
        within = (uniform - below) / max(float(cumulative[row]) - below, 1e-300)
        columns = self._columns if row < len(self._rows) - 1 else self._columns[: self._short]
        inner = np.cumsum(np.exp(columns - _logsumexp(columns)))
        return row * len(self._columns) + min(int(np.searchsorted(inner, within, side="right")), len(columns) - 1)

    def logprob(self, token_id: int) -> float:
        if not 0 <= token_id < self._vocab:
            return -math.inf
        row, column = divmod(token_id, len(self._columns))
        return min(float(self._rows[row] + self._columns[column] - self._norm), 0.0)

    def top(self, k: int) -> list[tuple[int, float]]:
        logits = np.add.outer(self._rows, self._columns).ravel()[: self._vocab] - self._norm
        return _top(logits, k)


class _Dense:
    """Every token's log-probability in one array."""

    def __init__(self, logprobs: _Floats, *, greedy: bool = False):
        self._logprobs, self._greedy = logprobs, greedy

    def draw(self, uniform: float) -> int:
        if self._greedy:
            return int(np.argmax(self._logprobs))
        cumulative = np.cumsum(np.exp(self._logprobs))
        at = int(np.searchsorted(cumulative, uniform * float(cumulative[-1]), side="right"))
        return min(at, int(np.flatnonzero(np.isfinite(self._logprobs))[-1]))

    def logprob(self, token_id: int) -> float:
        return min(float(self._logprobs[token_id]), 0.0) if 0 <= token_id < len(self._logprobs) else -math.inf

    def top(self, k: int) -> list[tuple[int, float]]:
        return _top(self._logprobs, k)


def _truncate(logprobs: _Floats, sampling: SamplingParams) -> _Floats:
    kept = logprobs.copy()
    if sampling.min_p > 0:
        kept[kept < kept.max() + math.log(sampling.min_p)] = -np.inf
    if sampling.top_k > 0:
        kept[np.argsort(-kept, kind="stable")[sampling.top_k :]] = -np.inf
    if sampling.top_p < 1:
        order = np.argsort(-kept, kind="stable")
        probs = np.exp(kept[order] - _logsumexp(kept))
        kept[order[np.cumsum(probs) - probs >= sampling.top_p]] = -np.inf
    return kept - _logsumexp(kept)


def _top(logprobs: _Floats, k: int) -> list[tuple[int, float]]:
    order = np.argsort(-logprobs, kind="stable")[:k]
    return [(int(i), min(float(logprobs[i]), 0.0)) for i in order]


def _logsumexp(values: _Floats) -> float:
    top = float(values.max())
    return top + math.log(float(np.exp(values - top).sum()))
