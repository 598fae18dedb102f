# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What vLLM's own events can have wrong, and what a real vLLM sent. The rest is in ``test_token_engine_faults``."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_polar.errors import EngineProtocol
from nemo_polar.types import FinishReason
from tests.support.token_engines import DONE, VLLM, from_raw

DATA = Path(__file__).parent / "data"


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(VLLM.event([1, 2], [-0.1]), id="one logprob for two ids"),
        pytest.param(VLLM.event([1], None), id="no logprobs"),
        pytest.param(
            b'data: {"choices": [{"token_ids": [1], "finish_reason": null, "logprobs": {"content": 3}}]}\n\n', id="shape"
        ),
        pytest.param(VLLM.event([1], [-0.1]).replace(b'"token_id": 1', b'"token_id": 2'), id="logprob of another id"),
    ],
)
async def test_an_event_that_breaks_the_protocol_is_refused(body):
    with pytest.raises(EngineProtocol):
        await from_raw(VLLM, body + VLLM.event([3], [-0.1], "stop") + DONE)


@pytest.mark.parametrize("step", [50, 100_000])
async def test_streams_recorded_from_a_real_vllm_are_read(step):
    recorded = (DATA / "vllm-0.32-generate.sse").read_bytes()
    drawn = await from_raw(VLLM, *(recorded[i : i + step] for i in range(0, len(recorded), step)))
    assert drawn.token_ids == [504, 3575, 282, 4649, 314, 7042, 30, 2] and drawn.finish_reason is FinishReason.STOP
    assert drawn.logprobs[0] == pytest.approx(-0.58739686) and drawn.chunks[-1].weights_version == 7


async def test_prompt_ids_and_usage_in_a_recorded_stream_do_no_harm():
    drawn = await from_raw(VLLM, (DATA / "vllm-0.32-generate-usage.sse").read_bytes())
    assert drawn.token_ids == [504, 3575] and drawn.finish_reason is FinishReason.LENGTH
    assert drawn.chunks[-1].weights_version is None  # "default" is no number of ours
