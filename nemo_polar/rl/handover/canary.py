# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The proof that an engine serves the trainer's weights: both score the same sequences, and one token after each is drawn.

What a proof shows, and what it does not (``bound`` and ``still`` are the settings of those names, all figures in nats):

- *Agreement.* On every canary token engine and trainer differ by at most ``bound``. So the importance ratio of such a token
  at the first update is within ``exp(+-bound)`` of 1. Weights that agree so closely on all canaries pass, whoever made them:
  nothing is shown about what no canary reaches.
- *Not the old weights.* If the new weights move some canary token by more than ``bound``, an engine that went on with the old
  ones cannot agree, and agreement is enough. If they move all of them by less, old and new both agree. Then the two *movements*
  are compared, where the trainer also gives its scores from before the update (``Canary.before``): the engine's over its own
  earlier scores against the trainer's over its own. The constant difference between the two programs cancels, and over a few
  hundred tokens far smaller steps than ``bound`` are told from none. ``Proof.share`` is the part of the trainer's step that the
  engine made: 1 for the new weights, 0 for the old.
- *What cannot be told.* If the trainer's own scores moved by no more than ``still``, or the comparison drowns in noise, or
  ``before`` was not given for a step below ``bound``, ``Proof.told_apart`` is False. The update is accepted, as what is served
  is within ``bound`` of either version; that the engine changed at all is then not shown.
- *The prefix cache.* Engines score past their prefix cache and draw through it. So one token is drawn after each canary before
  the update, which puts the canary's keys into the cache, and one after it: where the trainer gives its distribution over that
  token (``Canary.next_logprobs``), its log-probability must agree too. A canary proves something here when it is longer than a
  block of the cache (16 to 128 tokens) and its keys were not evicted meanwhile.

Nothing here knows how weights are loaded.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from nemo_polar.engines.base import Engine, GenerateRequest
from nemo_polar.errors import EngineError, StaleCache, StaleWeights, WrongWeights
from nemo_polar.types import FinishReason, LogProbs, SamplingParams, TokenIds

_REQUEST = "polar-probe-canary"
"""Requests of this kind are Polar's own, to the audit."""
_SURE = 3.0
"""Standard errors between the two explanations and the half-way mark that parts them."""

_Floats: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Canary:
    """One sequence, and what the trainer says of it. T=1, no truncation, the dtype the engine computes in.

    Raises:
        ValueError: shapes do not fit, fewer than 2 tokens, or a score that is not finite.
    """

    token_ids: TokenIds
    """int32[N]"""
    logprobs: LogProbs
    """float32[N], under the new weights: of each token given those before it. The first is not looked at."""
    before: LogProbs | None = None
    """float32[N], the same under the weights being replaced."""
    next_logprobs: LogProbs | None = None
    """float32[V], under the new weights: over the token after the last."""

    def __post_init__(self) -> None:
        size = len(self.token_ids)
        if size < 2:
            raise ValueError(f"a canary of {size} tokens has nothing to score; give at least 2")
        for name in ("logprobs", "before"):
            scores = getattr(self, name)
            if scores is not None and (np.shape(scores) != (size,) or not np.isfinite(scores[1:]).all()):
                raise ValueError(f"canary: {name} must be {size} finite numbers, one a token")


@dataclass(frozen=True, slots=True)
class Measured:
    """What one engine says of the canaries."""

    scores: _Floats
    """float64[T]: all canaries' tokens but each one's first, in order."""
    drawn: tuple[tuple[int, float] | None, ...]
    """For each canary the token drawn after it and its log-probability; None where the trainer gave no distribution."""


@dataclass(frozen=True, slots=True)
class Proof:
    """How well one engine agreed. Differences are absolute, in nats."""

    tokens: int
    max_diff: float
    mean_diff: float
    drawn: int
    """Tokens drawn through the prefix cache and compared."""
    drawn_diff: float
    """The largest among them; 0 where none was drawn."""
    moved: float
    """The largest step of the trainer's own scores, or, without ``before``, from the engine's earlier to the trainer's new."""
    share: float | None
    """Of the trainer's step, as the engine made it; None where there was none, or ``before`` was not given."""
    told_apart: bool
    """The old weights would not have passed."""


async def measure(engine: Engine, canaries: Sequence[Canary]) -> Measured:
    """Score the canaries, and draw one token after each that has ``next_logprobs``.

    Raises:
        EngineError: the engine cannot score, or failed.
    """
    scores = [np.asarray(await engine.score(canary.token_ids), np.float64)[1:] for canary in canaries]
    drawn = [None if c.next_logprobs is None else await _draw(engine, c.token_ids, at) for at, c in enumerate(canaries)]
    return Measured(np.concatenate(scores), tuple(drawn))


async def _draw(engine: Engine, prompt: TokenIds, number: int) -> tuple[int, float]:
    request = GenerateRequest(
        request_id=f"{_REQUEST}-{uuid.uuid4().hex}",
        prompt_ids=prompt,
        sampling=SamplingParams(seed=number),
        stop_token_ids=(),
        max_tokens=1,
    )
    found: tuple[int, float] | None = None
    async with aclosing(engine.generate(request)) as chunks:
        async for chunk in chunks:
            if len(chunk.token_ids):
                found = int(chunk.token_ids[0]), float(chunk.logprobs[0])
            if chunk.finish_reason is FinishReason.ABORT:
                break
    if found is None:
        raise EngineError(f"{request.request_id}: the engine drew no token after a canary")
    return found


def judge(canaries: Sequence[Canary], before: Measured | None, after: Measured, *, bound: float, still: float) -> Proof:
    """What ``after`` proves about the weights an engine serves; ``before`` is what it said of the old ones, if it was asked.

    Raises:
        StaleWeights: it scores as the old weights do.
        WrongWeights: it scores as neither do.
        StaleCache: it scores as the new weights do, and draws as they do not.
    """
    new, was = trained(canaries), None if before is None else before.scores
    diff = np.abs(after.scores - new)
    worst = float(diff.max())
    step = new - trained(canaries, before=True) if have_before(canaries) else None
    moved = _largest(step if step is not None else None if was is None else new - was)
    if not worst <= bound:  # a NaN agrees with nothing
        if was is not None and np.abs(after.scores - was).max() <= bound:
            raise StaleWeights(
                f"the engine scores the canaries as it did before the update (within {bound:g}), and the trainer's new scores "
                f"are up to {worst:.3g} nats away: it still serves the old weights"
            )
        raise WrongWeights(
            f"engine and trainer differ by up to {worst:.3g} nats on {len(new)} canary tokens (mean {diff.mean():.3g}), and "
            f"{bound:g} is allowed: the engine serves other weights than were handed over, or computes in another precision"
        )
    share, sure = None, False
    if was is not None and step is not None and moved > still:
        share, sure = _share(after.scores - was, step)
        if sure and share < 0.5:
            raise StaleWeights(
                f"the trainer's scores moved by up to {moved:.3g} nats and the engine made {share:.0%} of that step: it still "
                "serves the old weights, which are too near the new ones for the bound to tell"
            )
    compared = [
        abs(pair[1] - float(c.next_logprobs[pair[0]]))
        for c, pair in zip(canaries, after.drawn, strict=True)
        if pair is not None and c.next_logprobs is not None
    ]
    drawn_diff = max(compared, default=0.0)
    if not drawn_diff <= bound:
        raise StaleCache(
            f"the engine scores the canaries as the trainer does (within {worst:.3g} nats), and what it draws after them is "
            f"{drawn_diff:.3g} nats off: its prefix cache holds keys of older weights, so it was not dropped"
        )
    return Proof(
        tokens=len(new),
        max_diff=worst,
        mean_diff=float(diff.mean()),
        drawn=len(compared),
        drawn_diff=drawn_diff,
        moved=moved,
        share=share,
        told_apart=was is not None and (moved > bound or sure),
    )


def trained(canaries: Sequence[Canary], *, before: bool = False) -> _Floats:
    """The trainer's scores in the order of ``Measured.scores``. With ``before``, every canary must have them."""
    return np.concatenate([np.asarray(c.before if before else c.logprobs, np.float64)[1:] for c in canaries])


def have_before(canaries: Sequence[Canary]) -> bool:
    """The trainer gave its scores under the old weights, of all canaries."""
    return all(c.before is not None for c in canaries)


def _largest(step: _Floats | None) -> float:
    return 0.0 if step is None else float(np.abs(step).max())


def _share(made: _Floats, step: _Floats) -> tuple[float, bool]:
    """Least squares of ``made`` on ``step``, and whether its error is small enough to tell 0 from 1."""
    length = float(step @ step)
    share = float(made @ step) / length
    rest = made - share * step
    error = float(np.sqrt(rest @ rest / max(len(step) - 1, 1) / length))
    return share, len(step) > 1 and _SURE * error < 0.5
