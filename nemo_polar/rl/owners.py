# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Which trace of a rollout trains which sampled token, once traces over a length limit are left out.

Traces share tokens, and one of them trains each. When that one is dropped, the first kept trace that has the token takes it
over: its context there is the same, as both run through the same turns. So a token is lost only when no kept trace has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from nemo_polar.errors import TokenError
from nemo_polar.types import Mask, Trace, Trajectory


@dataclass(frozen=True, slots=True)
class KeptTraces:
    """The traces of a rollout that are within the limit."""

    masks: Mapping[str, Mask]
    """Trace id to what it trains, bool[N]; all-False ones are there too."""
    lost: int
    """Tokens that were to be trained, and that no kept trace has."""


def keep_traces(trajectory: Trajectory, max_tokens: int | None) -> KeptTraces:
    """The traces with at most ``max_tokens`` tokens (None: all), and what each trains.

    Raises:
        TokenError: the arrays of a trace differ in length, a trained token is in no sampled span, or a token is trained twice.
    """
    kept = [t for t in trajectory.traces if max_tokens is None or len(t) <= max_tokens]
    masks = {t.id: t.loss_mask for t in kept}
    if len({t.id for t in trajectory.traces}) < len(trajectory.traces):
        raise TokenError(f"{trajectory.rollout_id}: two traces have one id")
    claimed: dict[int, Mask] = {}
    orphans: dict[int, Mask] = {}
    for trace in trajectory.traces:
        for turn, mask in _claims(trace).items():
            before = claimed.get(turn, np.zeros_like(mask))
            if len(before) != len(mask) or (before & mask).any():
                raise TokenError(f"{trace.id}: tokens of turn {turn} are trained by another trace too")
            claimed[turn] = before | mask
            if trace.id not in masks:
                orphans[turn] = orphans.get(turn, np.zeros_like(mask)) | mask
    for trace in kept:
        for span in trace.spans:
            if span.role == "sampled" and span.turn in orphans:
                masks[trace.id] = masks[trace.id].copy()
                masks[trace.id][span.start : span.end] |= orphans.pop(span.turn)
    return KeptTraces(masks, sum(int(np.count_nonzero(mask)) for mask in orphans.values()))


def _claims(trace: Trace) -> dict[int, Mask]:
    """Turn id to the trained tokens of its sample, where there are any."""
    lengths = {len(trace.token_ids), len(trace.loss_mask), len(trace.logprobs), len(trace.weights_version)}
    if len(lengths) > 1:
        raise TokenError(f"{trace.id}: ids, mask, log-probabilities and versions differ in length: {sorted(lengths)}")
    claims = {s.turn: trace.loss_mask[s.start : s.end] for s in trace.spans if s.role == "sampled"}
    stray = np.count_nonzero(trace.loss_mask) - sum(int(np.count_nonzero(mask)) for mask in claims.values())
    if stray:
        raise TokenError(f"{trace.id}: {stray} trained tokens were not sampled")
    return {turn: mask for turn, mask in claims.items() if mask.any()}
