# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Our loss and advantages against NeMo RL's own, imported from a checkout of it.

Runs where NEMO_RL_DIR names a checkout (made for 7ea279abf) and this Python can import its loss, which needs torch, ray, wandb,
swanlab, mlflow, matplotlib, tensorboard and others of its dependencies. Elsewhere all of it is skipped, with the reason.
"""

from __future__ import annotations

import os
import sys
import typing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the loss needs torch: .venv-engine has it (make engine)")

_CHECKOUT = os.environ.get("NEMO_RL_DIR")
if not _CHECKOUT:
    pytest.skip("NEMO_RL_DIR does not name a checkout of NeMo RL", allow_module_level=True)
if not (Path(_CHECKOUT) / "nemo_rl").is_dir():
    pytest.fail(f"NEMO_RL_DIR={_CHECKOUT} has no nemo_rl", pytrace=False)
sys.path.insert(0, _CHECKOUT)
if sys.version_info < (3, 12):
    # NeMo RL is for 3.13; before 3.12 pydantic takes only this one.
    import typing_extensions

    typing.TypedDict = typing_extensions.TypedDict  # type: ignore[assignment]
try:
    from nemo_rl.algorithms.advantage_estimator import AdvEstimatorConfig, GRPOAdvantageEstimator
    from nemo_rl.algorithms.loss import ClippedPGLossConfig, ClippedPGLossFn
    from nemo_rl.distributed.batched_data_dict import BatchedDataDict
except ImportError as missing:
    pytest.skip(f"this Python cannot import NeMo RL's loss: {missing}", allow_module_level=True)

from nemo_polar.rl.advantages import AdvantageSettings, group_advantages  # noqa: E402
from nemo_polar.rl.batch import token_weights  # noqa: E402
from nemo_polar.rl.loss import loss_and_grad  # noqa: E402
from nemo_polar.rl.loss_settings import LossSettings  # noqa: E402
from tests.rl.slow_loss import REFUSED, SETTINGS, Case, random_case  # noqa: E402

TOLERANCE = 1e-5
SAME_METRICS = (
    "loss",
    "kl_penalty",
    "probs_ratio",
    "probs_ratio_min",
    "probs_ratio_max",
    "probs_ratio_clamped",
    "token_mult_prob_error",
    "gen_kl_error",
    "policy_kl_error",
    "sampling_importance_ratio",
    "approx_entropy",
    "is_oob_ratio",
)


def theirs(block: dict[str, Any], case: Case) -> tuple[float, Any, dict[str, float]]:
    """Loss, gradient by the log-probabilities, metrics. Their tensors have a column more: nothing predicts the first token."""

    def shifted(values: np.ndarray) -> Any:
        return torch.nn.functional.pad(torch.tensor(values, dtype=torch.float32), (1, 0))

    trains = case.mask.any(axis=1)
    data = BatchedDataDict(
        {
            "input_ids": torch.zeros((case.mask.shape[0], case.mask.shape[1] + 1), dtype=torch.int64),
            "advantages": shifted(case.advantages),
            "prev_logprobs": shifted(case.start),
            "generation_logprobs": shifted(case.drawn),
            "reference_policy_logprobs": shifted(case.reference),
            "token_mask": shifted(case.mask),
            "sample_mask": torch.tensor(trains, dtype=torch.float32),
        }
    )
    now = torch.tensor(case.now, dtype=torch.float32, requires_grad=True)
    loss, metrics = ClippedPGLossFn(ClippedPGLossConfig(**block))(
        now,
        data,
        global_valid_seqs=torch.tensor(float(trains.sum())),
        global_valid_toks=torch.tensor(float(case.mask.sum())),
    )
    (gradient,) = torch.autograd.grad(loss, now)
    return loss.item(), gradient, metrics


def ours(block: dict[str, Any], case: Case, weights: Any = None) -> tuple[float, Any, dict[str, float]]:
    def tensor(values: np.ndarray) -> Any:
        return torch.tensor(values, dtype=torch.float32)

    return loss_and_grad(
        LossSettings(**block),
        tensor(case.now),
        generation_logprobs=tensor(case.drawn),
        prev_logprobs=tensor(case.start),
        reference_logprobs=tensor(case.reference),
        advantages=tensor(case.advantages),
        mask=torch.tensor(case.mask),
        weights=weights,
    )


@pytest.mark.parametrize("name", SETTINGS)
def test_loss_and_gradient_are_theirs(name) -> None:
    for seed in range(8):
        case = random_case(seed)
        loss, gradient, _ = ours(SETTINGS[name], case)
        their_loss, their_gradient, _ = theirs(SETTINGS[name], case)
        assert loss == pytest.approx(their_loss, rel=TOLERANCE, abs=TOLERANCE)
        assert torch.allclose(gradient, their_gradient, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("name", SETTINGS)
def test_with_the_weights_of_a_batch_too(name) -> None:
    case = random_case(11)
    average = LossSettings(**SETTINGS[name]).average
    weights = token_weights(list(case.mask), [f"r{n}" for n in range(len(case.mask))], average)
    loss, gradient, _ = ours(SETTINGS[name], case, torch.tensor(np.stack(weights)))
    their_loss, their_gradient, _ = theirs(SETTINGS[name], case)
    assert loss == pytest.approx(their_loss, rel=TOLERANCE, abs=TOLERANCE)
    assert torch.allclose(gradient, their_gradient, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("name", SETTINGS)
def test_metrics_of_the_same_name_are_theirs(name) -> None:
    case = random_case(12)
    metrics, their_metrics = ours(SETTINGS[name], case)[2], theirs(SETTINGS[name], case)[2]
    for key in SAME_METRICS:
        if key.startswith("probs_ratio") and SETTINGS[name].get("disable_ppo_ratio"):
            continue  # Theirs then holds log-probabilities, ours the ratio.
        if key == "sampling_importance_ratio" and SETTINGS[name].get("sequence_level_importance_ratios"):
            # Theirs multiplies [B, 1] by [B]: it is the sum over all B rows, untrained ones (weight 1) too. Ours is the mean.
            trains = int(case.mask.any(axis=1).sum())
            assert metrics[key] * trains + len(case.mask) - trains == pytest.approx(their_metrics[key], rel=TOLERANCE)
            continue
        assert (key in metrics) == (key in their_metrics)
        if key in metrics:
            assert metrics[key] == pytest.approx(their_metrics[key], rel=TOLERANCE, abs=TOLERANCE), key


def test_every_setting_of_theirs_is_known_here() -> None:
    assert ClippedPGLossConfig.model_fields.keys() == LossSettings.model_fields.keys()
    assert ClippedPGLossConfig().model_dump() == LossSettings().model_dump()


@pytest.mark.parametrize("complaint", REFUSED)
def test_what_is_refused_here_is_refused_there(complaint) -> None:
    with pytest.raises((AssertionError, ValueError)):
        theirs(REFUSED[complaint], random_case(0))


@pytest.mark.parametrize("leave_one_out", [True, False])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize(
    "groups",
    [
        [[1.0, 0.0, 0.0, 1.0], [0.2, 0.9, 0.4, 0.4]],
        [[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]],
        [[0.7]],
        [[1.0, 0.25]],
        [[0.5, 0.5, 0.0], [3.0, -2.0, 0.125]],
    ],
)
def test_advantages_are_theirs(groups, normalize, leave_one_out) -> None:
    block = {"normalize_rewards": normalize, "use_leave_one_out_baseline": leave_one_out}
    estimator = GRPOAdvantageEstimator(AdvEstimatorConfig(**block), ClippedPGLossConfig())
    rewards = torch.tensor([r for group in groups for r in group])
    prompts = torch.tensor([[n] for n, group in enumerate(groups) for _ in group])
    expected = estimator.compute_advantage(prompts, rewards, torch.ones((len(rewards), 2)))[:, 0]
    got = np.concatenate([group_advantages(group, AdvantageSettings(**block)).values for group in groups])
    assert got.tolist() == pytest.approx(expected.tolist(), rel=1e-4, abs=TOLERANCE)
