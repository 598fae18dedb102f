# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The loss against numbers worked out by hand, against a slow second account of it, and its gradient against differences."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the loss needs torch: .venv-engine has it (make engine)")

from nemo_polar.rl.batch import token_weights  # noqa: E402
from nemo_polar.rl.loss import clipped_pg_loss, kl_estimate, loss_and_grad  # noqa: E402
from nemo_polar.rl.loss_settings import LossSettings  # noqa: E402
from tests.rl.slow_loss import (  # noqa: E402
    CORRECTED,
    GSPO,
    NO_KL,
    SETTINGS,
    Case,
    random_case,
    slow_gradient,
    slow_loss,
    truncated,
)

SEEDS = range(4)


def tensor(values: Any) -> Any:
    return torch.tensor(np.asarray(values), dtype=torch.float64)


def arguments(case: Case) -> dict[str, Any]:
    return {
        "generation_logprobs": tensor(case.drawn),
        "prev_logprobs": tensor(case.start),
        "reference_logprobs": tensor(case.reference),
        "advantages": tensor(case.advantages),
        "mask": torch.tensor(case.mask),
    }


def one_sequence(settings: LossSettings, ratios: list[float], advantages: list[float], **more: Any) -> tuple[Any, Any, Any]:
    """Flat tokens of one sequence with these ratios of now to start; start and drawn are equal unless given."""
    start = tensor([math.log(0.25)] * len(ratios))
    return loss_and_grad(
        settings,
        start + tensor([math.log(r) for r in ratios]),
        prev_logprobs=start,
        generation_logprobs=more.pop("generation_logprobs", start),
        advantages=tensor(advantages),
        mask=torch.ones(len(ratios), dtype=torch.bool),
        sequences=torch.zeros(len(ratios), dtype=torch.int64),
        **more,
    )


# --- by hand ----------------------------------------------------------------------------------------------------------

# Clip at 0.8 and 1.2. The derivative by the log-probability is minus advantage times ratio; 0 where the clipped value counts.
CLIP_TABLE = [
    # ratio, advantage, loss, gradient
    (1.0, 2.0, -2.0, -2.0),
    (1.1, 2.0, -2.2, -2.2),
    (1.5, 2.0, -2.4, 0.0),
    (0.5, 2.0, -1.0, -1.0),
    (1.0, -2.0, 2.0, 2.0),
    (0.5, -2.0, 1.6, 0.0),
    (1.5, -2.0, 3.0, 3.0),
    (4.0, -2.0, 8.0, 8.0),
    (1.5, 0.0, 0.0, 0.0),
]


@pytest.mark.parametrize(("ratio", "advantage", "loss", "gradient"), CLIP_TABLE)
def test_the_clip_is_pessimistic(ratio, advantage, loss, gradient) -> None:
    got, by_logprob, _ = one_sequence(LossSettings(**NO_KL), [ratio], [advantage])
    assert got == pytest.approx(loss, abs=1e-12)
    assert by_logprob.item() == pytest.approx(gradient, abs=1e-12)


# Dual clip at 3: with a negative advantage the loss is at most 3 times its size; with a positive one nothing changes.
@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [(4.0, -2.0, 6.0, 0.0), (2.0, -2.0, 4.0, 4.0), (4.0, 2.0, -2.4, 0.0), (0.5, -2.0, 1.6, 0.0)],
)
def test_the_dual_clip_bounds_what_a_bad_token_can_cost(ratio, advantage, loss, gradient) -> None:
    got, by_logprob, _ = one_sequence(LossSettings(**NO_KL, ratio_clip_c=3.0), [ratio], [advantage])
    assert got == pytest.approx(loss, abs=1e-12)
    assert by_logprob.item() == pytest.approx(gradient, abs=1e-12)


# Bounds 0.9 and 1.4: the upper one binds good tokens, the lower one bad tokens.
@pytest.mark.parametrize(
    ("ratio", "advantage", "loss"), [(1.3, 1.0, -1.3), (1.5, 1.0, -1.4), (0.85, -1.0, 0.9), (0.95, -1.0, 0.95)]
)
def test_the_two_sides_are_clipped_where_they_are_told_to(ratio, advantage, loss) -> None:
    settings = LossSettings(**NO_KL, ratio_clip_min=0.1, ratio_clip_max=0.4)
    assert one_sequence(settings, [ratio], [advantage])[0] == pytest.approx(loss, abs=1e-12)


# With d = log(reference / policy): k1 = -d, k2 = d^2 / 2, k3 = e^d - 1 - d.
@pytest.mark.parametrize(
    ("kind", "at_log2", "at_minus_log2"),
    [
        ("k1", -math.log(2), math.log(2)),
        ("k2", math.log(2) ** 2 / 2, math.log(2) ** 2 / 2),
        ("k3", 1 - math.log(2), math.log(2) - 0.5),
    ],
)
def test_the_kl_estimates_are_schulmans(kind, at_log2, at_minus_log2) -> None:
    policy, reference = tensor([math.log(0.25), math.log(0.5)]), tensor([math.log(0.5), math.log(0.25)])
    assert kl_estimate(policy, reference, kind).tolist() == pytest.approx([at_log2, at_minus_log2], abs=1e-12)


def test_the_kl_is_bounded_before_and_after() -> None:
    policy, reference = tensor([-30.0, -1.0]), tensor([-1.0, -30.0])
    bounded = kl_estimate(policy, reference, "k1", input_clamp=20.0).tolist()
    assert bounded == [-20.0, 20.0]
    assert kl_estimate(policy, reference, "k1", input_clamp=20.0, output_clamp=10.0).tolist() == [-10.0, 10.0]


def test_the_kl_penalty_has_the_gradient_of_the_sampled_token_too() -> None:
    """k1 at d = -log 2 is log 2. Its own gradient is 1, and the weight's is log 2: the penalty's is the sum of both."""
    settings = LossSettings(reference_policy_kl_penalty=0.5, reference_policy_kl_type="k1")
    loss, gradient, metrics = one_sequence(settings, [1.0], [0.0], reference_logprobs=tensor([math.log(0.125)]))
    assert loss == pytest.approx(0.5 * math.log(2))
    assert metrics["kl_penalty"] == pytest.approx(math.log(2))
    assert gradient.item() == pytest.approx(0.5 * (1 + math.log(2)))


# Two tokens whose weights (start to drawn) are 2 and 0.5, ratio 1, advantage 1: the loss is minus the mean of the weights used.
@pytest.mark.parametrize(
    ("more", "loss"),
    [
        ({}, -1.0),
        (CORRECTED, -1.25),
        (CORRECTED | truncated("tis", 1.5), -1.0),
        (CORRECTED | truncated("tis", 1.5, 0.7), -1.1),
        (CORRECTED | truncated("icepop", 1.5, 0.4), -0.25),
        (CORRECTED | truncated("icepop", 3.0, 0.7), -1.0),
        # The geometric mean is 1: inside, so both weights stay as they are.
        (CORRECTED | truncated("seq-mask-tis", 1.1, 0.9), -1.25),
        (CORRECTED | truncated("seq-mask-tis", 0.9, 0.8), 0.0),
    ],
)
def test_the_importance_weights_are_bounded_as_told(more, loss) -> None:
    drawn = tensor([math.log(0.125), math.log(0.5)])
    got, _, _ = one_sequence(LossSettings(**NO_KL, **more), [1.0, 1.0], [1.0, 1.0], generation_logprobs=drawn)
    assert got == pytest.approx(loss, abs=1e-12)


def test_gspo_has_one_ratio_a_sequence() -> None:
    """Ratios 4 and 1: their geometric mean is 2. Below a clip of 3 the loss is -2, and each token has half the gradient."""
    settings = LossSettings(**NO_KL, **GSPO, ratio_clip_max=2.0)
    loss, gradient, metrics = one_sequence(settings, [4.0, 1.0], [1.0, 1.0])
    assert loss == pytest.approx(-2.0)
    assert gradient.tolist() == pytest.approx([-1.0, -1.0])
    assert metrics["probs_ratio_min"] == metrics["probs_ratio_max"] == pytest.approx(2.0)
    loss, gradient, _ = one_sequence(LossSettings(**NO_KL, **GSPO), [4.0, 1.0], [1.0, 1.0])
    assert loss == pytest.approx(-1.2)
    assert gradient.tolist() == [0.0, 0.0]


def test_gspo_corrects_by_the_product_of_a_sequence() -> None:
    """Weights 2 and 4: the product is 8."""
    drawn = tensor([math.log(0.125), math.log(0.0625)])
    settings = LossSettings(**NO_KL, **GSPO, **CORRECTED)
    assert one_sequence(settings, [1.0, 1.0], [1.0, 1.0], generation_logprobs=drawn)[0] == pytest.approx(-8.0)


def test_cispo_weighs_the_logprob_by_the_clipped_ratio() -> None:
    """Ratio 1.5 is clipped to 1.2: the loss is -1.2 log p, its gradient -1.2 where the usual clip has none."""
    loss, gradient, _ = one_sequence(LossSettings(**NO_KL, use_cispo=True), [1.5], [1.0])
    assert loss == pytest.approx(-1.2 * math.log(0.375))
    assert gradient.item() == pytest.approx(-1.2)


def test_reinforce_and_the_forced_ratio_have_the_plain_gradient() -> None:
    loss, gradient, _ = one_sequence(LossSettings(**NO_KL, disable_ppo_ratio=True), [1.5], [2.0])
    assert (loss, gradient.item()) == (pytest.approx(-2.0 * math.log(0.375)), -2.0)
    loss, gradient, metrics = one_sequence(LossSettings(**NO_KL, force_on_policy_ratio=True), [1.5], [2.0])
    assert (loss, gradient.item(), metrics["probs_ratio"]) == (-2.0, -2.0, 1.0)


def test_the_metrics_are_those_of_the_table() -> None:
    ratios, advantages = [r for r, *_ in CLIP_TABLE], [a for _, a, *_ in CLIP_TABLE]
    entropy = tensor(np.arange(len(ratios)))
    _, _, metrics = one_sequence(LossSettings(**NO_KL, ratio_clip_c=3.0), ratios, advantages, entropy=entropy)
    n = len(CLIP_TABLE)
    assert metrics["probs_ratio"] == pytest.approx(sum(ratios) / n)
    assert (metrics["probs_ratio_min"], metrics["probs_ratio_max"]) == pytest.approx((0.5, 4.0))
    assert metrics["clip_share_high"] == pytest.approx(1 / n)
    assert metrics["clip_share_low"] == pytest.approx(1 / n)
    assert metrics["dual_clip_share"] == pytest.approx(1 / n)
    assert metrics["approx_kl"] == pytest.approx(sum(r - 1 - math.log(r) for r in ratios) / n)
    assert metrics["sampling_importance_ratio"] == metrics["token_mult_prob_error"] == 1.0
    assert metrics["gen_kl_error"] == metrics["policy_kl_error"] == 0.0
    assert metrics["entropy"] == 4.0 and metrics["tokens"] == n


def test_the_metrics_say_how_many_weights_were_out_of_bounds() -> None:
    drawn = tensor([math.log(0.125), math.log(0.5)])
    for more, share, mean in (
        (truncated("tis", 1.5), 0.5, 1.0),
        (truncated("icepop", 1.5, 0.7), 1.0, 0.0),
        (truncated("seq-mask-tis", 1.1, 0.9), 0.0, 1.25),
    ):
        _, _, metrics = one_sequence(
            LossSettings(**NO_KL, **CORRECTED, **more), [1.0, 1.0], [1.0, 1.0], generation_logprobs=drawn
        )
        assert (metrics["is_oob_ratio"], metrics["sampling_importance_ratio"]) == pytest.approx((share, mean))


# --- every setting ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SETTINGS)
def test_value_and_gradient_are_those_of_the_slow_account(name) -> None:
    settings = LossSettings(**SETTINGS[name])
    for seed in SEEDS:
        case = random_case(seed)
        loss, gradient, metrics = loss_and_grad(settings, tensor(case.now), **arguments(case))
        tokens = case.tokens(settings)
        assert loss == metrics["loss"] == pytest.approx(slow_loss(settings, tokens), abs=1e-12)
        assert gradient[torch.tensor(case.mask)].tolist() == pytest.approx(slow_gradient(settings, tokens), abs=1e-8)
        assert not gradient[~torch.tensor(case.mask)].any()


@pytest.mark.parametrize(
    "name", [n for n, s in SETTINGS.items() if not s.get("use_cispo") and s.get("reference_policy_kl_penalty") == 0.0]
)
def test_where_nothing_is_held_still_the_gradient_is_that_of_the_loss_itself(name) -> None:
    settings = LossSettings(**SETTINGS[name])
    case = random_case(7)
    now = tensor(case.now).requires_grad_(True)
    assert torch.autograd.gradcheck(lambda x: clipped_pg_loss(settings, x, **arguments(case))[0], now, eps=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", SETTINGS)
def test_given_the_weights_of_an_average_the_loss_is_that_average(name) -> None:
    settings = LossSettings(**SETTINGS[name])
    case = random_case(3)
    weights = token_weights(list(case.mask), [f"r{n}" for n in range(len(case.mask))], settings.average)
    given = clipped_pg_loss(settings, tensor(case.now), weights=tensor(np.stack(weights)), **arguments(case))[0]
    own = clipped_pg_loss(settings, tensor(case.now), **arguments(case))[0]
    assert given.item() == pytest.approx(own.item(), rel=1e-6)


@pytest.mark.parametrize("name", SETTINGS)
def test_flat_tokens_in_any_order_give_the_loss_of_the_padded_ones(name) -> None:
    settings = LossSettings(**SETTINGS[name])
    case = random_case(4)
    order = np.random.default_rng(0).permutation(case.mask.size)
    flat = {name: value.flatten()[order] for name, value in arguments(case).items()}
    rows = torch.arange(len(case.mask)).repeat_interleave(case.mask.shape[1])[order]
    loss, gradient, _ = loss_and_grad(settings, tensor(case.now).flatten()[order], sequences=rows, **flat)
    padded, padded_gradient, _ = loss_and_grad(settings, tensor(case.now), **arguments(case))
    assert loss == pytest.approx(padded, abs=1e-12)
    assert torch.allclose(gradient, padded_gradient.flatten()[order], atol=1e-12)


@pytest.mark.parametrize("name", SETTINGS)
def test_what_stands_on_untrained_tokens_reaches_nothing(name) -> None:
    settings = LossSettings(**SETTINGS[name])
    case = random_case(5)
    clean = loss_and_grad(settings, tensor(case.now), **arguments(case))
    dirty = {k: v if k == "mask" else torch.where(torch.tensor(case.mask), v, math.nan) for k, v in arguments(case).items()}
    loss, gradient, metrics = loss_and_grad(settings, torch.where(torch.tensor(case.mask), tensor(case.now), math.nan), **dirty)
    assert loss == clean[0] and metrics == clean[2]
    assert torch.equal(gradient, clean[1])


@pytest.mark.parametrize("name", SETTINGS)
def test_the_losses_of_the_parts_sum_to_that_of_the_batch(name) -> None:
    settings = LossSettings(**SETTINGS[name])
    case = random_case(6)
    given = arguments(case)
    given["weights"] = tensor(np.stack(token_weights(list(case.mask), [*"abcde"], settings.average)))
    whole, gradient, _ = loss_and_grad(settings, tensor(case.now), **given)
    parts = [
        loss_and_grad(settings, tensor(case.now)[part], **{k: v[part] for k, v in given.items()})
        for part in (slice(0, 2), slice(2, 5))
    ]
    assert sum(p[0] for p in parts) == pytest.approx(whole, abs=1e-12)
    assert torch.allclose(torch.cat([p[1] for p in parts]), gradient, atol=1e-12)


# --- edges ------------------------------------------------------------------------------------------------------------


def test_a_sequence_may_be_spread_over_rows() -> None:
    """The traces of a rollout: two rows, one ratio."""
    settings = LossSettings(**NO_KL, **GSPO, ratio_clip_max=2.0)
    start = tensor([[-1.0], [-2.0]])
    now = start + tensor([[math.log(4)], [0.0]])
    mask = torch.ones((2, 1), dtype=torch.bool)
    rest = {"prev_logprobs": start, "generation_logprobs": start, "advantages": tensor([1.0, 1.0]), "mask": mask}
    assert loss_and_grad(settings, now, **rest)[0] == pytest.approx(-(3.0 + 1.0) / 2)
    assert loss_and_grad(settings, now, sequences=torch.tensor([8, 8]), **rest)[0] == pytest.approx(-2.0)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_part_without_trained_tokens_costs_nothing(name) -> None:
    case = random_case(0)
    given = arguments(case) | {"mask": torch.zeros(case.mask.shape, dtype=torch.bool)}
    loss, gradient, metrics = loss_and_grad(LossSettings(**SETTINGS[name]), tensor(case.now), **given)
    assert loss == 0.0 and not gradient.any() and metrics["tokens"] == 0
    assert all(math.isfinite(v) for v in metrics.values())


def test_half_precision_is_computed_in_float32() -> None:
    case = random_case(1)
    given = arguments(case)
    half = tensor(case.now).to(torch.bfloat16)
    loss, gradient, _ = loss_and_grad(LossSettings(), half, **given)
    same, _, _ = loss_and_grad(LossSettings(), half.float(), **given)
    assert loss == same and gradient.dtype == torch.bfloat16


def test_a_gradient_is_taken_where_gradients_are_off() -> None:
    case = random_case(1)
    with torch.no_grad():
        _, gradient, _ = loss_and_grad(LossSettings(), tensor(case.now), **arguments(case))
    assert gradient.any()


@pytest.mark.parametrize(
    ("settings", "change", "named"),
    [
        ({}, {"reference_logprobs": None}, "reference_logprobs"),
        ({}, {"prev_logprobs": None}, "prev_logprobs"),
        ({"disable_ppo_ratio": True} | CORRECTED, {"prev_logprobs": None}, "prev_logprobs"),
        ({}, {"advantages": torch.zeros(3)}, "advantages"),
        ({}, {"mask": torch.ones((5, 9))}, "mask"),
        ({}, {"generation_logprobs": torch.full((5, 9), -math.inf)}, "generation_logprobs"),
        ({}, {"weights": torch.ones((5, 8))}, "weights"),
        ({}, {"sequences": torch.ones(4)}, "sequences"),
    ],
)
def test_what_is_missing_or_misshapen_is_named(settings, change, named) -> None:
    case = random_case(2)
    with pytest.raises(ValueError, match=named):
        clipped_pg_loss(LossSettings(**settings), tensor(case.now), **(arguments(case) | change))


def test_flat_tokens_need_to_say_whose_they_are() -> None:
    case = random_case(2)
    flat = {k: v.flatten() for k, v in arguments(case).items()}
    for settings in (GSPO, {"token_level_loss": False}, CORRECTED | truncated("seq-mask-tis", 1.1, 0.9)):
        with pytest.raises(ValueError, match="sequences"):
            clipped_pg_loss(LossSettings(**settings), tensor(case.now).flatten(), **flat)


def test_what_is_not_needed_may_be_missing() -> None:
    case = random_case(2)
    bare = {k: v for k, v in arguments(case).items() if k not in ("prev_logprobs", "reference_logprobs")}
    for more in ({"force_on_policy_ratio": True}, {"disable_ppo_ratio": True}):
        loss, _ = clipped_pg_loss(LossSettings(**NO_KL, **more), tensor(case.now), **bare)
        assert math.isfinite(loss.item())
