# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

from nemo_polar.engines.probe import TEMPERATURE, TOP, ScalingTest


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())


REPORTED = {
    "processed": lambda logits, t: log_softmax(logits / t),
    "raw": lambda logits, t: log_softmax(logits),
    "processed_logits": lambda logits, t: logits / t,
    "raw_logits": lambda logits, t: logits,
}


def run(mode: str, *, scale: float, noise: float, seed: int, prompts: int = 8) -> str:
    """What the test says of an engine with logits of that scale, and errors of that size in each call."""
    rng = np.random.default_rng(seed)
    test = ScalingTest()
    for number in range(prompts):
        logits = rng.normal(size=3000) * scale

        def seen(temperature: float, logits: np.ndarray = logits) -> dict[int, float]:
            noisy = logits + rng.normal(size=3000) * noise
            values = REPORTED[mode](noisy, temperature)
            sampled = rng.choice(3000, p=np.exp(log_softmax(noisy / temperature)))
            listed = [sampled, *(i for i in np.argsort(-values) if i != sampled)][:TOP]  # as vLLM lists them
            return {int(i): float(values[i]) for i in listed}

        test.add(seen(1.0), seen(TEMPERATURE))
        if number and test.verdict() != "undecided":
            break
    return test.verdict()


@pytest.mark.parametrize("scale", [0.1, 0.5, 2.0, 5.0])
@pytest.mark.parametrize(
    ("mode", "verdict"),
    [("processed", "processed"), ("raw", "raw"), ("processed_logits", "unnormalised"), ("raw_logits", "raw")],
)
def test_each_way_to_report_is_told_from_the_others(mode, verdict, scale):
    assert {run(mode, scale=scale, noise=0.0, seed=s) for s in range(5)} == {verdict}


@pytest.mark.parametrize("noise", [0.02, 0.1, 0.2])
@pytest.mark.parametrize("scale", [0.1, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("mode", ["raw", "processed_logits", "raw_logits"])
def test_no_noise_makes_an_unfit_engine_pass(mode, scale, noise):
    assert "processed" not in {run(mode, scale=scale, noise=noise, seed=s) for s in range(10)}


def test_a_bfloat16_engine_passes():
    assert {run("processed", scale=2.0, noise=0.05, seed=s) for s in range(20)} == {"processed"}


def test_a_flat_distribution_proves_nothing():
    test = ScalingTest()
    flat = dict.fromkeys(range(TOP), -8.0)
    for _ in range(4):
        test.add(flat, flat)
    assert test.verdict() == "undecided"
