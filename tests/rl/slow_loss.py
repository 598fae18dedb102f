# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The loss once more, a token at a time in plain floats, from its definition: what ``nemo_polar.rl.loss`` is compared with.

``frozen`` are the numbers that a gradient does not go through; at the same numbers it is the loss. So its finite differences by
``now`` are the loss's gradient, stops and all. Also here: random cases, and a settings table that names every supported one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nemo_polar.rl.loss_settings import LossSettings

NO_KL: dict[str, Any] = {"reference_policy_kl_penalty": 0.0}
BY_SEQUENCE: dict[str, Any] = {"token_level_loss": False}
GSPO: dict[str, Any] = {"token_level_loss": False, "sequence_level_importance_ratios": True}
CORRECTED: dict[str, Any] = {"use_importance_sampling_correction": True}


def truncated(kind: str, high: float, low: float | None = None) -> dict[str, Any]:
    return {
        "truncated_importance_sampling_type": kind,
        "truncated_importance_sampling_ratio": high,
        "truncated_importance_sampling_ratio_min": low,
    }


SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "no_kl": NO_KL,
    "sequence_level": BY_SEQUENCE,
    "asymmetric_clip": NO_KL | {"ratio_clip_min": 0.1, "ratio_clip_max": 0.4},
    "dual_clip": NO_KL | {"ratio_clip_c": 1.5},
    "k1": {"reference_policy_kl_type": "k1", "reference_policy_kl_penalty": 0.3},
    "k2": {"reference_policy_kl_type": "k2", "reference_policy_kl_penalty": 0.3},
    "k3": {"reference_policy_kl_type": "k3", "reference_policy_kl_penalty": 0.3},
    "kl_clamped": {"reference_policy_kl_penalty": 0.3, "kl_input_clamp_value": 0.5, "kl_output_clamp_value": 0.08},
    "kl_unclamped": {"reference_policy_kl_penalty": 0.3, "kl_input_clamp_value": None, "kl_output_clamp_value": None},
    "k1_on_policy": {"reference_policy_kl_type": "k1", "use_on_policy_kl_approximation": True},
    "k2_on_policy": {"reference_policy_kl_type": "k2", "use_on_policy_kl_approximation": True},
    "k3_on_policy": {"use_on_policy_kl_approximation": True, "reference_policy_kl_penalty": 0.3, "kl_input_clamp_value": 0.5},
    "corrected": NO_KL | CORRECTED,
    "tis": NO_KL | CORRECTED | truncated("tis", 1.2),
    "tis_both_bounds": NO_KL | CORRECTED | truncated("tis", 1.2, 0.8),
    "icepop": NO_KL | CORRECTED | truncated("icepop", 1.3, 0.7),
    "seq_mask_tis": NO_KL | CORRECTED | truncated("seq-mask-tis", 1.05, 0.95),
    "sequence_level_tis": CORRECTED | truncated("tis", 1.2) | BY_SEQUENCE,
    "gspo": NO_KL | GSPO | {"ratio_clip_min": 0.03, "ratio_clip_max": 0.04},
    "gspo_corrected": GSPO | CORRECTED,
    "gspo_tis": GSPO | CORRECTED | truncated("tis", 1.2, 0.8),
    "gspo_icepop": GSPO | CORRECTED | truncated("icepop", 1.3, 0.7),
    "cispo": NO_KL | {"use_cispo": True, "ratio_clip_min": 0.1, "ratio_clip_max": 0.4},
    "cispo_corrected_kl": {"use_cispo": True} | CORRECTED | truncated("tis", 1.2),
    "on_policy": {"force_on_policy_ratio": True},
    "on_policy_corrected": {"force_on_policy_ratio": True} | CORRECTED | truncated("icepop", 1.3, 0.7),
    "on_policy_gspo_dual": {"force_on_policy_ratio": True, "ratio_clip_c": 3.0} | GSPO,
    "reinforce": {"disable_ppo_ratio": True},
    "reinforce_corrected": {"disable_ppo_ratio": True} | CORRECTED | truncated("tis", 1.2),
    "everything": CORRECTED | truncated("tis", 1.2, 0.8) | BY_SEQUENCE | {"ratio_clip_c": 1.5, "ratio_clip_max": 0.28},
}
"""Every setting of ``LossSettings`` that has an effect, alone and with what it has to get along with."""

REFUSED: dict[str, dict[str, Any]] = {
    "ratio_clip_c": {"ratio_clip_c": 1.0},
    "reference_policy_kl_type": {"reference_policy_kl_type": "k4"},
    "sequence_level_importance_ratios": {"sequence_level_importance_ratios": True},
    "use_cispo: not together with disable_ppo_ratio": {"use_cispo": True, "disable_ppo_ratio": True},
    "use_cispo: not together with force_on_policy_ratio": {"use_cispo": True, "force_on_policy_ratio": True},
    "use_cispo: needs token_level_loss": {"use_cispo": True, "token_level_loss": False},
    "use_cispo: not together with ratio_clip_c": {"use_cispo": True, "ratio_clip_c": 3.0},
    "use_cispo: not together with sequence_level": {"use_cispo": True, **GSPO},
    "truncated_importance_sampling_type: needs use_importance": truncated("tis", 2.0),
    "truncated_importance_sampling_ratio: tis": CORRECTED | {"truncated_importance_sampling_type": "tis"},
    "truncated_importance_sampling_type": CORRECTED | truncated("tos", 2.0),
    "truncated_importance_sampling_ratio": CORRECTED | truncated("tis", 0.0),
    "truncated_importance_sampling_ratio_min: must": CORRECTED | truncated("tis", 1.0, 2.0),
    "truncated_importance_sampling_ratio_min: icepop": CORRECTED | truncated("icepop", 2.0),
    "truncated_importance_sampling_ratio_min: seq-mask-tis": CORRECTED | truncated("seq-mask-tis", 2.0),
    "truncated_importance_sampling_type: seq-mask-tis": CORRECTED | truncated("seq-mask-tis", 2.0, 0.5) | GSPO,
    "truncated_importance_sampling_type: is not set": CORRECTED | {"truncated_importance_sampling_ratio": 2.0},
}
"""What NeMo RL takes no more than we do, under the start of our complaint."""


@dataclass(frozen=True)
class Token:
    """One trained token."""

    now: float
    start: float
    drawn: float
    reference: float
    advantage: float
    weight: float
    sequence: int


def slow_loss(settings: LossSettings, tokens: Sequence[Token], frozen: Sequence[Token] | None = None) -> float:
    """The loss of some tokens: the sum of weight times term. See the module for ``frozen``."""
    frozen = tokens if frozen is None else frozen
    total = 0.0
    for token, still in zip(tokens, frozen, strict=True):
        mates = [(t, s) for t, s in zip(tokens, frozen, strict=True) if t.sequence == token.sequence]
        term = _surrogate(settings, token, still, [t for t, _ in mates])
        if settings.use_importance_sampling_correction:
            term *= _importance(settings, still, [s for _, s in mates])
        if settings.reference_policy_kl_penalty:
            term += settings.reference_policy_kl_penalty * _kl(settings, token, still)
        total += token.weight * term
    return total


def _surrogate(settings: LossSettings, token: Token, still: Token, mates: Sequence[Token]) -> float:
    low, high = 1 - settings.ratio_clip_min, 1 + settings.ratio_clip_max
    a = token.advantage
    if settings.force_on_policy_ratio:
        loss = -a * math.exp(token.now - still.now)
    elif settings.disable_ppo_ratio:
        loss = -a * token.now
    elif settings.use_cispo:
        loss = -a * min(max(math.exp(still.now - still.start), low), high) * token.now
    else:
        logs = [m.now - m.start for m in (mates if settings.sequence_level_importance_ratios else [token])]
        ratio = math.exp(sum(logs) / len(logs))
        loss = -min(ratio * a, min(max(ratio, low), high) * a)
    if settings.ratio_clip_c is not None and a < 0:
        loss = min(loss, -a * settings.ratio_clip_c)
    return loss


def _importance(settings: LossSettings, still: Token, mates: Sequence[Token]) -> float:
    def log(t: Token) -> float:
        return 0.0 - t.drawn + (t.now if settings.force_on_policy_ratio else t.start)

    logs = [log(m) for m in mates]
    weight = math.exp(sum(logs) if settings.sequence_level_importance_ratios else log(still))
    high = settings.truncated_importance_sampling_ratio
    low = settings.truncated_importance_sampling_ratio_min or 0.0
    match settings.truncated_importance_sampling_type:
        case "tis":
            assert high is not None
            return min(max(weight, low), high)
        case "icepop":
            assert high is not None
            return weight if low <= weight <= high else 0.0
        case "seq-mask-tis":
            assert high is not None
            return weight if low <= math.exp(sum(logs) / len(logs)) <= high else 0.0
    return weight


def _kl(settings: LossSettings, token: Token, still: Token) -> float:
    d = token.reference - token.now
    on_policy = settings.use_on_policy_kl_approximation
    weight = math.exp(token.now - (token.drawn if on_policy else still.now))
    bound = settings.kl_input_clamp_value
    if bound is not None and abs(d) > bound:
        d = math.copysign(bound, d)
        weight = math.exp(still.now - token.drawn) if on_policy else 1.0
    kl = weight * {"k1": -d, "k2": d * d / 2, "k3": math.exp(d) - 1 - d}[settings.reference_policy_kl_type]
    limit = settings.kl_output_clamp_value
    return kl if limit is None else min(max(kl, -limit), limit)


def slow_gradient(settings: LossSettings, tokens: Sequence[Token], step: float = 1e-6) -> list[float]:
    """Central differences of the loss by each token's ``now``."""
    gradient = []
    for n, token in enumerate(tokens):
        up, down = list(tokens), list(tokens)
        up[n], down[n] = replace(token, now=token.now + step), replace(token, now=token.now - step)
        gradient.append((slow_loss(settings, up, tokens) - slow_loss(settings, down, tokens)) / (2 * step))
    return gradient


@dataclass(frozen=True)
class Case:
    """Random numbers for the loss: arrays [B, T], and the mask (bool), with a row that trains nothing."""

    now: np.ndarray
    start: np.ndarray
    drawn: np.ndarray
    reference: np.ndarray
    advantages: np.ndarray
    mask: np.ndarray

    def tokens(self, settings: LossSettings) -> list[Token]:
        """The trained ones, row by row, with the weights of NeMo RL's averages."""
        rows, columns = np.nonzero(self.mask)
        per_row = self.mask.sum(axis=1)
        used = int((per_row > 0).sum())
        arrays = (self.now, self.start, self.drawn, self.reference, self.advantages)
        return [
            Token(
                *(float(a[r, c]) for a in arrays),
                weight=1 / len(rows) if settings.token_level_loss else 1 / (used * int(per_row[r])),
                sequence=int(r),
            )
            for r, c in zip(rows, columns, strict=True)
        ]


def random_case(seed: int, rows: int = 5, length: int = 9) -> Case:
    """Log-probabilities that differ by about 0.3, so that all bounds of ``SETTINGS`` are met from both sides."""
    rng = np.random.default_rng(seed)
    drawn = -rng.exponential(1.5, (rows, length)) - 0.05
    start = np.minimum(drawn + rng.normal(0, 0.2, drawn.shape), -0.01)
    now = np.minimum(start + rng.normal(0, 0.3, drawn.shape), -0.01)
    reference = np.minimum(now + rng.normal(0, 0.5, drawn.shape), -0.01)
    advantages = np.repeat(rng.normal(0, 1, (rows, 1)), length, axis=1)
    mask = rng.random(drawn.shape) < 0.7
    mask[:, 0] = True
    mask[-1] = False
    return Case(now, start, drawn, reference, advantages, mask)
