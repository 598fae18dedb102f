# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The settings of the clipped policy-gradient loss, under the names of NeMo RL's ``loss_fn`` block.

A block that NeMo RL takes means the same here, and what cannot be honoured is refused, never read over. The names, meanings,
defaults and forbidden combinations are those of ``ClippedPGLossConfig`` (NVIDIA-NeMo/RL at 7ea279abf). No torch in here, so
that a configuration can be checked without it.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from nemo_polar.settings import Settings

KLType = Literal["k1", "k2", "k3"]
Truncation = Literal["tis", "icepop", "seq-mask-tis"]


class LossSettings(Settings):
    """How log-probabilities and advantages become a loss. A ratio is that of a token's probability now to its probability
    under the weights the step began with, unless said otherwise."""

    # The surrogate.
    disable_ppo_ratio: bool = False
    """REINFORCE: minus advantage times log-probability, without ratio or clip."""
    token_level_loss: bool = True
    """True: all trained tokens weigh the same; False: all sequences do. The loss takes this as weights (see ``average``)."""
    sequence_level_importance_ratios: bool = False
    """GSPO: one ratio a sequence, the geometric mean over its tokens; so too for the importance-sampling correction, there the
    product. Only with ``token_level_loss=False``."""
    force_on_policy_ratio: bool = False
    """The ratio is 1 and only its gradient counts; for exactly one update a batch."""
    use_cispo: bool = False
    """The clipped ratio is a constant weight of the log-probability, so that clipped tokens still have a gradient."""

    # Its clipping.
    ratio_clip_min: float = Field(default=0.2, ge=0)
    """Ratios are clipped below at 1 minus this."""
    ratio_clip_max: float = Field(default=0.2, ge=0)
    """Ratios are clipped above at 1 plus this."""
    ratio_clip_c: float | None = Field(default=None, gt=1)
    """Dual clip: with a negative advantage the loss is at most this times minus the advantage. None: no such bound."""

    # The penalty for leaving a reference policy.
    reference_policy_kl_penalty: float = Field(default=0.01, ge=0)
    """Factor of the KL term; 0: none, and no reference log-probabilities are needed."""
    reference_policy_kl_type: KLType = "k3"
    """With d the reference's log-probability minus ours: k1 is -d, k2 is d^2 / 2, k3 is exp(d) - 1 - d."""
    kl_input_clamp_value: float | None = Field(default=20.0, gt=0)
    """Bound on the size of d."""
    kl_output_clamp_value: float | None = Field(default=10.0, gt=0)
    """Bound on the size of a token's KL term."""
    use_on_policy_kl_approximation: bool = False
    """Weigh a token's KL by its probability now over that in the engine. Otherwise the weight is 1, and its gradient counts."""

    # The correction for the engine's distribution not being the trainer's.
    use_importance_sampling_correction: bool = False
    """Weigh each token's surrogate by its probability at the start of the step over that in the engine."""
    truncated_importance_sampling_type: Truncation | None = None
    """``tis``: weights are clamped to the bounds. ``icepop``: tokens outside have weight 0. ``seq-mask-tis``: all tokens of a
    sequence whose geometric mean is outside have weight 0, others keep theirs as it is. None: weights are as they are."""
    truncated_importance_sampling_ratio: float | None = Field(default=None, gt=0)
    """Upper bound."""
    truncated_importance_sampling_ratio_min: float | None = Field(default=None, ge=0)
    """Lower bound; for ``tis`` None is 0, the others need one."""

    # Known to NeMo RL, not offered here: anything but these values is refused.
    use_kl_in_reward: bool = False
    """The KL term as part of the reward belongs to Reinforce++."""
    positive_example_nll_weight: float = 0.0
    """An extra likelihood term on rewarded rollouts belongs to VAPO."""

    @property
    def average(self) -> Literal["token", "rollout"]:
        """How a batch for this loss weighs its tokens."""
        return "token" if self.token_level_loss else "rollout"

    @property
    def needs_reference(self) -> bool:
        """Whether log-probabilities of the reference policy are needed."""
        return self.reference_policy_kl_penalty != 0

    @property
    def needs_prev(self) -> bool:
        """Whether log-probabilities under the weights the step began with are needed."""
        return not self.force_on_policy_ratio and (not self.disable_ppo_ratio or self.use_importance_sampling_correction)

    @property
    def by_sequence(self) -> bool:
        """Whether it matters which tokens form a sequence, weights aside."""
        return self.sequence_level_importance_ratios or self.truncated_importance_sampling_type == "seq-mask-tis"

    @model_validator(mode="after")
    def _nothing_that_is_not_offered(self) -> Self:
        for name in ("use_kl_in_reward", "positive_example_nll_weight"):
            if getattr(self, name):
                raise ValueError(f"{name}: is not offered, and must be off")
        return self

    @model_validator(mode="after")
    def _no_contradictions(self) -> Self:
        if self.sequence_level_importance_ratios and self.token_level_loss:
            raise ValueError("sequence_level_importance_ratios: needs token_level_loss=false")
        if self.use_cispo:
            for name in ("disable_ppo_ratio", "force_on_policy_ratio", "sequence_level_importance_ratios"):
                if getattr(self, name):
                    raise ValueError(f"use_cispo: not together with {name}")
            if self.ratio_clip_c is not None:
                raise ValueError("use_cispo: not together with ratio_clip_c")
            if not self.token_level_loss:
                raise ValueError("use_cispo: needs token_level_loss=true")
        return self

    @model_validator(mode="after")
    def _whole_truncation(self) -> Self:
        kind, high, low = (
            self.truncated_importance_sampling_type,
            self.truncated_importance_sampling_ratio,
            self.truncated_importance_sampling_ratio_min,
        )
        if kind is None:
            if high is not None or low is not None:
                raise ValueError("truncated_importance_sampling_type: is not set, but a bound is")
            return self
        if not self.use_importance_sampling_correction:
            raise ValueError("truncated_importance_sampling_type: needs use_importance_sampling_correction=true")
        if high is None:
            raise ValueError(f"truncated_importance_sampling_ratio: {kind} needs it")
        if low is None and kind != "tis":
            raise ValueError(f"truncated_importance_sampling_ratio_min: {kind} needs it")
        if low is not None and low > high:
            raise ValueError("truncated_importance_sampling_ratio_min: must not be over truncated_importance_sampling_ratio")
        if kind == "seq-mask-tis" and self.sequence_level_importance_ratios:
            raise ValueError("truncated_importance_sampling_type: seq-mask-tis weighs tokens, not sequences")
        return self
