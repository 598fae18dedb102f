# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What a loss block may say, without torch."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from nemo_polar.rl.loss_settings import LossSettings
from tests.rl.slow_loss import REFUSED, SETTINGS

GRPO_MATH_1B: dict[str, Any] = {
    "reference_policy_kl_penalty": 0.01,
    "reference_policy_kl_type": "k3",
    "kl_input_clamp_value": 20.0,
    "kl_output_clamp_value": 10.0,
    "ratio_clip_min": 0.2,
    "ratio_clip_max": 0.2,
    "ratio_clip_c": None,
    "use_on_policy_kl_approximation": False,
    "use_importance_sampling_correction": False,
    "truncated_importance_sampling_type": None,
    "truncated_importance_sampling_ratio": None,
    "truncated_importance_sampling_ratio_min": None,
    "sequence_level_importance_ratios": False,
    "token_level_loss": True,
    "force_on_policy_ratio": False,
    "use_kl_in_reward": False,
    "use_cispo": False,
    "disable_ppo_ratio": False,
    "positive_example_nll_weight": 0.0,
}
"""The keys and values of ``loss_fn`` in NeMo RL's ``grpo_math_1B.yaml``: its defaults, spelt out."""


def test_nemo_rls_own_block_is_taken_and_is_the_default() -> None:
    assert LossSettings(**GRPO_MATH_1B) == LossSettings()
    assert LossSettings.model_fields.keys() == GRPO_MATH_1B.keys()


@pytest.mark.parametrize("name", SETTINGS)
def test_every_supported_setting_is_taken(name) -> None:
    LossSettings(**SETTINGS[name])


@pytest.mark.parametrize("complaint", REFUSED)
def test_what_contradicts_itself_is_refused_by_name(complaint) -> None:
    with pytest.raises(ValidationError, match=complaint):
        LossSettings(**REFUSED[complaint])


@pytest.mark.parametrize(
    "block",
    [{"use_kl_in_reward": True}, {"positive_example_nll_weight": 0.1}, {"ratio_clip_minn": 0.1}, {"ratio_clip_min": -0.1}],
)
def test_what_is_not_offered_or_unknown_is_refused_by_name(block) -> None:
    with pytest.raises(ValidationError, match=next(iter(block))):
        LossSettings(**block)


def test_settings_say_what_they_need() -> None:
    assert LossSettings().needs_reference and LossSettings().needs_prev
    assert not LossSettings(reference_policy_kl_penalty=0).needs_reference
    assert not LossSettings(force_on_policy_ratio=True).needs_prev
    assert not LossSettings(disable_ppo_ratio=True).needs_prev
    assert LossSettings(disable_ppo_ratio=True, use_importance_sampling_correction=True).needs_prev
    assert (LossSettings().average, LossSettings(token_level_loss=False).average) == ("token", "rollout")
