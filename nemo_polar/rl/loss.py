# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The clipped policy-gradient loss, as pure functions of log-probabilities.

What it computes is what NeMo RL's ``ClippedPGLossFn`` computes from the same numbers (NVIDIA-NeMo/RL at 7ea279abf; tested
against it where it can be imported), with one thing more general: what a token weighs is given with it, so that the tokens of
a rollout with several traces can share one weight. It never runs a model, and never looks at a token that is not trained:
whatever stands there, padding or infinities, reaches neither the loss nor its gradient.

Everything takes padded tensors [B, T], a sequence a row, or flat ones [N] with ``sequences`` to say which token is whose. A
token's entries stand where the token stands; shifting logits by one is the caller's.

Symbols: *now* is the policy being trained, *start* the weights the step began with (``prev_logprobs``), *drawn* the engine.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from nemo_polar.rl.loss_settings import KLType, LossSettings

Tensor: TypeAlias = Any
"""``torch.Tensor``; by this name so that a type checker does not need torch."""
Metrics: TypeAlias = dict[str, float]


@dataclass(frozen=True, slots=True)
class _Tokens:
    """The M trained tokens of S sequences, flat: each float[M] unless said otherwise."""

    now: Tensor
    start: Tensor
    drawn: Tensor
    reference: Tensor | None
    advantage: Tensor
    weight: Tensor
    sequence: Tensor
    """int64[M], 0 to S - 1."""
    lengths: Tensor
    """float[S]: the trained tokens of each sequence."""

    def total(self, values: Tensor) -> Tensor:
        """float[M] to its sums by sequence, float[S]."""
        return torch.zeros_like(self.lengths).index_add(0, self.sequence, values)

    def mean(self, values: Tensor) -> Tensor:
        """float[M] to its means by sequence, float[S]."""
        return self.total(values) / self.lengths


def clipped_pg_loss(
    settings: LossSettings,
    logprobs: Tensor,
    *,
    generation_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    prev_logprobs: Tensor | None = None,
    reference_logprobs: Tensor | None = None,
    weights: Tensor | None = None,
    sequences: Tensor | None = None,
    entropy: Tensor | None = None,
) -> tuple[Tensor, Metrics]:
    """The loss to minimise, and what to plot of it.

    Args:
        logprobs: float[B, T] or float[N], of the policy now; the only argument that gets a gradient. Half types are
            computed in float32, and all other arguments in the type of this one.
        generation_logprobs: same shape, of the engine that drew the tokens.
        advantages: same shape; for padded tensors also float[B], one a row.
        mask: bool, same shape: the tokens that are trained.
        prev_logprobs: same shape, under the weights the step began with; see ``LossSettings.needs_prev``. Where these are
            also the engine's weights, its log-probabilities may be given here.
        reference_logprobs: same shape, of the reference policy; see ``LossSettings.needs_reference``.
        weights: same shape: the loss is the sum over trained tokens of weight times term. Weights that sum to 1 over a whole
            batch (``batch.Row.weight``) make the sum of this over its parts the loss of the batch. None: this call is the
            batch, each token (``token_level_loss``) or else each sequence with a trained token weighs the same: NeMo RL's
            averages.
        sequences: int, same shape, or [B]: tokens with equal numbers form a sequence, wherever they stand. None: a row is
            one. For flat tensors given whenever it matters. A sequence must not be spread over two calls.
        entropy: same shape; only its mean over trained tokens is reported.

    Returns:
        The loss (a scalar, float32 or float64) and the metrics. Over trained tokens, each weighing the same:
        ``probs_ratio`` (now to start; ``_min`` and ``_max`` too), ``probs_ratio_clamped``, ``clip_share_low`` and
        ``clip_share_high`` (the clipped value counts), ``dual_clip_share``, ``approx_kl`` (k3 of start against now),
        ``gen_kl_error``, ``policy_kl_error`` and ``token_mult_prob_error`` (engine against start), ``approx_entropy``,
        ``entropy``. ``sampling_importance_ratio`` and ``is_oob_ratio`` (share outside the bounds) are over what carries an
        importance weight, tokens or sequences. ``loss`` and ``kl_penalty`` (before its factor) are weighed as the loss is.
        ``tokens`` counts.

    Raises:
        ValueError: shapes differ, something that the settings need is missing, or a trained token's log-probability,
            advantage or weight is not finite.
    """
    if logprobs.dtype is not torch.float64:
        logprobs = logprobs.float()
    tokens = _trained_tokens(
        settings,
        logprobs,
        mask,
        sequences,
        {
            "generation_logprobs": generation_logprobs,
            "advantages": advantages,
            "prev_logprobs": prev_logprobs,
            "reference_logprobs": reference_logprobs,
            "weights": weights,
        },
    )
    surrogate, ratios = _surrogate(settings, tokens)
    importance, importance_metrics = _importance(settings, tokens)
    if settings.use_importance_sampling_correction:
        surrogate = importance * surrogate
    kl = _reference_kl(settings, tokens)
    kl_penalty = (tokens.weight * kl).sum()
    loss = (tokens.weight * surrogate).sum() + settings.reference_policy_kl_penalty * kl_penalty
    metrics = {
        "loss": loss.item(),
        "kl_penalty": kl_penalty.item(),
        **_ratio_metrics(settings, tokens, ratios),
        **_distribution_metrics(settings, tokens),
        **importance_metrics,
        "tokens": float(len(tokens.now)),
    }
    if entropy is not None:
        metrics["entropy"] = _mean(_select("entropy", entropy, logprobs, mask).detach())
    return loss, metrics


def loss_and_grad(
    settings: LossSettings, logprobs: Tensor, *, mask: Tensor, **others: Tensor | None
) -> tuple[float, Tensor, Metrics]:
    """The loss of ``clipped_pg_loss`` and its derivative by each log-probability, for a trainer that has its own way from
    there to the parameters: ``logprobs.backward(gradient)`` on what the forward pass gave, or parts of both.

    ``logprobs`` is taken as numbers; the arguments are those of ``clipped_pg_loss``.

    Returns:
        The loss, its gradient in the shape and type of ``logprobs`` (0 where ``mask`` is False), and the metrics.
    """
    leaf = logprobs.detach().requires_grad_(True)
    with torch.enable_grad():
        loss, metrics = clipped_pg_loss(settings, leaf, mask=mask, **others)  # pyright: ignore[reportArgumentType]
    (gradient,) = torch.autograd.grad(loss, leaf)
    return loss.item(), gradient, metrics


def kl_estimate(
    logprobs: Tensor,
    reference: Tensor,
    kind: KLType,
    *,
    input_clamp: float | None = None,
    output_clamp: float | None = None,
    weight: Tensor | None = None,
) -> Tensor:
    """A token's estimate of KL(policy || reference) from a sample of the policy: float[M] from two float[M].

    With d = reference - policy, bounded by ``input_clamp``: k1 is -d, k2 is d^2 / 2, k3 is exp(d) - 1 - d (Schulman,
    "Approximating KL divergence"). It is multiplied by ``weight`` and then bounded by ``output_clamp``. A token at either
    bound has no gradient, through ``weight`` neither.
    """
    difference = reference - logprobs
    bounded = difference
    if input_clamp is not None:
        bounded = difference.clamp(-input_clamp, input_clamp)
        if weight is not None:
            weight = torch.where(bounded == difference, weight, weight.detach())
    if kind == "k1":
        kl = -bounded
    elif kind == "k2":
        kl = bounded.square() / 2
    else:
        kl = torch.expm1(bounded) - bounded
    if weight is not None:
        kl = weight * kl
    return kl if output_clamp is None else kl.clamp(-output_clamp, output_clamp)


# --- the trained tokens -----------------------------------------------------------------------------------------------


def _trained_tokens(
    settings: LossSettings, logprobs: Tensor, mask: Tensor, sequences: Tensor | None, given: dict[str, Tensor | None]
) -> _Tokens:
    if logprobs.ndim not in (1, 2):
        raise ValueError(f"logprobs: [B, T] or [N] is needed, not {tuple(logprobs.shape)}")
    if mask.dtype != torch.bool or mask.shape != logprobs.shape:
        raise ValueError(f"mask: bool{list(logprobs.shape)} is needed, not {mask.dtype}{list(mask.shape)}")
    needed = {"prev_logprobs": settings.needs_prev, "reference_logprobs": settings.needs_reference}
    for name, value in given.items():
        if value is None and needed.get(name, False):
            raise ValueError(f"{name}: these settings need it")
    chosen = {name: None if value is None else _select(name, value, logprobs, mask).detach() for name, value in given.items()}
    now = _select("logprobs", logprobs, logprobs, mask)
    start = chosen["prev_logprobs"]
    if start is None or settings.force_on_policy_ratio:
        start = now.detach()
    sequence, lengths = _numbered(settings, logprobs, mask, sequences, weighted=chosen["weights"] is not None)
    weight = chosen["weights"]
    if weight is None and settings.token_level_loss:
        weight = torch.full_like(start, 1 / max(len(start), 1))
    elif weight is None:
        weight = 1 / (len(lengths) * lengths[sequence])
    return _Tokens(
        now=now,
        start=start,
        drawn=chosen["generation_logprobs"],
        reference=chosen["reference_logprobs"] if settings.needs_reference else None,
        advantage=chosen["advantages"],
        weight=weight,
        sequence=sequence,
        lengths=lengths,
    )


def _select(name: str, values: Tensor, logprobs: Tensor, mask: Tensor) -> Tensor:
    """The trained tokens' entries of ``values``, float[M] in the type of ``logprobs``."""
    chosen = _spread(name, values, logprobs)[mask].to(logprobs.dtype)
    if not torch.isfinite(chosen).all():
        raise ValueError(f"{name}: {int((~torch.isfinite(chosen)).sum())} of {len(chosen)} trained tokens are not finite")
    return chosen


def _spread(name: str, values: Tensor, logprobs: Tensor) -> Tensor:
    """``values`` in the shape of ``logprobs``: one a token already, or one a row."""
    if logprobs.ndim == 2 and values.shape == logprobs.shape[:1]:
        return values.unsqueeze(-1).expand(logprobs.shape)
    if values.shape != logprobs.shape:
        raise ValueError(f"{name}: shape {list(values.shape)}, where logprobs has {list(logprobs.shape)}")
    return values


def _numbered(
    settings: LossSettings, logprobs: Tensor, mask: Tensor, sequences: Tensor | None, *, weighted: bool
) -> tuple[Tensor, Tensor]:
    """Each trained token's sequence, numbered from 0 without gaps (int64[M]), and their lengths (float[S])."""
    if sequences is None:
        if logprobs.ndim == 2:
            sequences = torch.arange(len(logprobs), device=logprobs.device)
        elif settings.by_sequence or not (weighted or settings.token_level_loss):
            raise ValueError("sequences: these settings need it with flat tensors")
        else:
            sequences = torch.zeros_like(mask, dtype=torch.int64)
    chosen = _spread("sequences", sequences, logprobs)[mask]
    _, sequence, counts = torch.unique(chosen, return_inverse=True, return_counts=True)
    return sequence, counts.to(logprobs.dtype)


# --- the terms --------------------------------------------------------------------------------------------------------


def _surrogate(settings: LossSettings, t: _Tokens) -> tuple[Tensor, Tensor]:
    """The policy-gradient term of each token, and the ratios it is made of (the ones that would be, for REINFORCE)."""
    low, high = 1 - settings.ratio_clip_min, 1 + settings.ratio_clip_max
    if settings.force_on_policy_ratio:
        ratios = torch.exp(t.now - t.now.detach())
        loss = -t.advantage * ratios
    else:
        log_ratios = t.now - t.start
        if settings.sequence_level_importance_ratios:
            log_ratios = t.mean(log_ratios)[t.sequence]
        ratios = torch.exp(log_ratios)
        clamped = ratios.clamp(low, high)
        if settings.disable_ppo_ratio:
            loss = -t.advantage * t.now
        elif settings.use_cispo:
            loss = -t.advantage * clamped.detach() * t.now
        else:
            loss = torch.maximum(-t.advantage * ratios, -t.advantage * clamped)
    if settings.ratio_clip_c is not None:
        loss = torch.where(t.advantage < 0, torch.minimum(loss, -t.advantage * settings.ratio_clip_c), loss)
    return loss, ratios.detach()


def _importance(settings: LossSettings, t: _Tokens) -> tuple[Tensor, Metrics]:
    """What corrects for the engine's distribution, float[M] without gradient: start to drawn, bounded as the settings say.

    A weight too large for the number type is 0, as in NeMo RL.
    """
    log_weights = (t.start - t.drawn).detach()
    by_sequence = settings.sequence_level_importance_ratios
    weights = torch.exp(t.total(log_weights) if by_sequence else log_weights).nan_to_num(nan=0.0, posinf=0.0)
    kind, high = settings.truncated_importance_sampling_type, settings.truncated_importance_sampling_ratio
    low = settings.truncated_importance_sampling_ratio_min or 0.0
    metrics: Metrics = {}
    if kind == "seq-mask-tis":
        typical = torch.exp(t.mean(log_weights))
        inside = (typical >= low) & (typical <= high)
        metrics["is_oob_ratio"] = _mean((~inside).to(weights.dtype))
        weights = weights * inside[t.sequence]
    elif kind is not None:
        inside = (weights >= low) & (weights <= high)
        metrics["is_oob_ratio"] = _mean((~(inside[t.sequence] if by_sequence else inside)).to(weights.dtype))
        weights = weights.clamp(low, high) if kind == "tis" else weights * inside
    metrics["sampling_importance_ratio"] = _mean(weights)
    return (weights[t.sequence] if by_sequence else weights), metrics


def _reference_kl(settings: LossSettings, t: _Tokens) -> Tensor:
    """The KL term of each token before its factor; zeros without one."""
    if t.reference is None:
        return torch.zeros_like(t.start)
    # The sample came from the policy whose KL is meant, so its probability has a gradient too: the weight, 1 here, carries it.
    log_weight = t.now - (t.drawn if settings.use_on_policy_kl_approximation else t.now.detach())
    fits = torch.isfinite(torch.exp(log_weight.detach()))
    weight = torch.where(fits, torch.exp(torch.where(fits, log_weight, 0.0)), 0.0)
    return kl_estimate(
        t.now,
        t.reference,
        settings.reference_policy_kl_type,
        input_clamp=settings.kl_input_clamp_value,
        output_clamp=settings.kl_output_clamp_value,
        weight=weight,
    )


# --- the metrics ------------------------------------------------------------------------------------------------------


def _mean(values: Tensor) -> float:
    return values.mean().item() if len(values) else 0.0


@torch.no_grad()
def _ratio_metrics(settings: LossSettings, t: _Tokens, ratios: Tensor) -> Metrics:
    low, high = 1 - settings.ratio_clip_min, 1 + settings.ratio_clip_max
    clips = not (settings.force_on_policy_ratio or settings.disable_ppo_ratio)
    # The pessimistic value is the clipped one on one side only, which the sign of the advantage chooses; CISPO's is on both.
    below = (ratios < low) & ((t.advantage < 0) | settings.use_cispo) & clips
    above = (ratios > high) & ((t.advantage > 0) | settings.use_cispo) & clips
    dual = torch.zeros_like(below)
    if settings.ratio_clip_c is not None and clips:
        dual = (t.advantage < 0) & (ratios > settings.ratio_clip_c)
    log_ratios = t.now - t.start
    return {
        "probs_ratio": _mean(ratios),
        "probs_ratio_min": ratios.min().item() if len(ratios) else 0.0,
        "probs_ratio_max": ratios.max().item() if len(ratios) else 0.0,
        "probs_ratio_clamped": _mean(ratios.clamp(low, high) if clips else ratios),
        "clip_share_low": _mean(below.to(ratios.dtype)),
        "clip_share_high": _mean(above.to(ratios.dtype)),
        "dual_clip_share": _mean(dual.to(ratios.dtype)),
        "approx_kl": _mean(torch.expm1(log_ratios) - log_ratios),
    }


@torch.no_grad()
def _distribution_metrics(settings: LossSettings, t: _Tokens) -> Metrics:
    kind = settings.reference_policy_kl_type
    return {
        "token_mult_prob_error": _mean(torch.exp((t.drawn - t.start).abs())),
        "gen_kl_error": _mean(kl_estimate(t.drawn, t.start, kind)),
        "policy_kl_error": _mean(kl_estimate(t.start, t.drawn, kind)),
        "approx_entropy": _mean(-torch.exp(t.now - t.drawn) * t.now),
    }
