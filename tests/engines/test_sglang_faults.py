# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What SGLang's own events can have wrong, and its oddities that are right. The rest is in ``test_token_engine_faults``."""

from __future__ import annotations

import json

import pytest

from nemo_polar.errors import EngineError, EngineOverflow, EngineOverloaded, EngineProtocol, EngineUnavailable
from nemo_polar.types import FinishReason
from tests.support.engines import ask
from tests.support.token_engines import DONE, HEAD, SGLANG, connected, from_raw, raw_server, sglang_event, sse


def new(ids, *, before=(), **kwargs) -> bytes:
    """An event with the new tokens only."""
    return sglang_event(ids, [-1.0] * len(ids), before=before, repeats=False, **kwargs)


def whole(ids, *, before=(), **kwargs) -> bytes:
    """An event that repeats earlier tokens."""
    return sglang_event(ids, [-1.0] * len(ids), before=before, **kwargs)


def changed(event: bytes, output_ids=None, **meta) -> bytes:
    """``event`` with other metadata (None: left out) or other ``output_ids`` ("none": left out)."""
    raw = json.loads(event[6:])
    raw["meta_info"] |= meta
    for key in [key for key in meta if meta[key] is None]:
        del raw["meta_info"][key]
    if output_ids == "none":
        del raw["output_ids"]
    elif output_ids is not None:
        raw["output_ids"] = output_ids
    return sse(raw)


async def drawn(*events: bytes):
    return await from_raw(SGLANG, b"".join(events) + DONE)


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([new([1]), new([3], before=[1, 2], finish="stop")], id="a token lost between new ones"),
        pytest.param([new([1, 2]), new([2], before=[1], finish="stop")], id="a token sent twice"),
        pytest.param([whole([1, 2]), whole([3], before=[1, 9], finish="stop")], id="an earlier token changed"),
        pytest.param([whole([1, 2]), whole([], before=[1], finish="stop")], id="an earlier token gone"),
        pytest.param([changed(whole([1]), output_ids=[2])], id="other output_ids"),
        pytest.param([changed(whole([1]), output_ids=[1, 2])], id="an id without a log-probability"),
        pytest.param([changed(whole([1]), output_ids=[])], id="a log-probability without an id"),
        pytest.param([changed(whole([1]), output_token_logprobs=None)], id="no log-probabilities"),
        pytest.param([changed(whole([1]), output_token_logprobs=[[1]])], id="no pair"),
        pytest.param([changed(whole([1]), output_token_logprobs_length="1")], id="a count that is text"),
        pytest.param(
            [changed(whole([1]), output_token_logprobs_length=None, completion_tokens=None)],
            id="nothing to count the tokens by",
        ),
        pytest.param([changed(whole([1]), prompt_tokens=3)], id="a prompt made shorter"),
        pytest.param([whole([1], finish={"type": "stop", "matched": "NaN happened"})], id="logits that were NaN"),
        pytest.param([whole([1], finish="tired")], id="another finish reason"),
        pytest.param([whole([1], finish=3)], id="a finish reason that is a number"),
        pytest.param([sse({"output_ids": [1]})], id="no metadata"),
    ],
)
async def test_an_event_that_breaks_the_protocol_is_refused(events):
    with pytest.raises(EngineProtocol):
        await drawn(*events, new([5], before=[1, 2, 3], finish="stop"))


@pytest.mark.parametrize(
    ("events", "finish"),
    [
        pytest.param([new([1]), new([2, 3], before=[1], finish="length")], "length", id="new tokens"),
        pytest.param([whole([1]), whole([2, 3], before=[1], finish="stop")], "stop", id="all tokens"),
        pytest.param([new([1, 2, 3]), new([], before=[1, 2, 3], finish="stop")], "stop", id="nothing new at the end"),
        pytest.param([whole([1, 2, 3]), whole([], before=[1, 2, 3], finish="stop")], "stop", id="all again at the end"),
        pytest.param(
            [changed(whole([1, 2]), output_token_logprobs_length=1), whole([3], before=[1, 2], finish="stop")],
            "stop",
            id="more listed than counted",
        ),
        pytest.param(
            [new([1, 2, 3]), changed(whole([], before=[1, 2, 3], finish="abort"), output_ids=[3])],
            "abort",
            id="aborted in the queue, with all again and the last id",
        ),
        pytest.param(
            [whole([1]), changed(whole([2, 3], before=[1], finish="stop"), output_ids=[2, 3])], "stop", id="only new output_ids"
        ),
        pytest.param([changed(whole([1, 2, 3], finish="stop"), output_ids="none")], "stop", id="no output_ids"),
        pytest.param([changed(whole([1, 2, 3], finish="stop"), output_token_logprobs_length=None)], "stop", id="no own count"),
        pytest.param(
            [whole([1, 2, 3]), changed(whole([], before=[1, 2, 3], finish="abort"), prompt_tokens=None)],
            "abort",
            id="aborted without a prompt length",
        ),
        pytest.param(
            [whole([1, 2, 3], finish={"type": "abort", "message": "Aborted", "status_code": None, "err_type": None})],
            "abort",
            id="an abort that was asked for",
        ),
    ],
)
async def test_new_and_repeated_tokens_make_the_same_sample(events, finish):
    sample = await drawn(*events)
    assert sample.token_ids == [1, 2, 3] and sample.logprobs.tolist() == [-1.0] * 3
    assert sample.finish_reason is FinishReason(finish)


@pytest.mark.parametrize(
    ("status", "message", "error"),
    [
        (400, "Input length (9 tokens) exceeds the maximum allowed length (2 tokens).", EngineOverflow),
        (400, "logprob_start_len is higher than the number of input tokens", EngineProtocol),
        (500, "Out of memory even after retracting all other requests in the decode batch.", EngineUnavailable),
        (503, "The request queue is full.", EngineOverloaded),
    ],
)
@pytest.mark.parametrize("before", [[], [1, 2]], ids=["at once", "in mid-stream"])
async def test_an_abort_with_a_status_is_that_failure_and_keeps_the_tokens_before_it(status, message, error, before):
    reason = {"type": "abort", "message": message, "status_code": status, "err_type": None}
    end = changed(new([], before=before, finish=reason), prompt_tokens=1)
    got: list[int] = []
    async with raw_server(HEAD + (new(before) if before else b"") + end + DONE) as url, connected(SGLANG, url) as engine:
        with pytest.raises(EngineError, match=message[:8]) as caught:
            async for chunk in engine.generate(ask()):
                got += chunk.token_ids.tolist()
        assert type(caught.value) is error and got == before
        assert not engine._aborts, "it is over: there is nothing to abort"


@pytest.mark.parametrize(
    ("meta", "version"),
    [
        ({"weight_version": "4"}, 4),
        ({"weight_version": "default"}, None),
        ({"weight_version": None}, None),
        ({"weight_versions": [{"version": "2", "start": 0, "end": 1}, {"version": "3", "start": 1, "end": 2}]}, 3),
    ],
)
async def test_the_version_is_that_of_the_last_token(meta, version):
    sample = await drawn(changed(whole([1, 2], finish="stop"), **meta))
    assert sample.chunks[-1].weights_version == version
