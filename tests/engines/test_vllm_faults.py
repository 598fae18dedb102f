# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Every way an engine can fail, over real sockets, and the error that each one becomes."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nemo_polar.engines.http_client import answer_error
from nemo_polar.engines.log import read_engine_log
from nemo_polar.engines.script import Fault, ScriptedReply
from nemo_polar.engines.vllm import VllmEngine
from nemo_polar.errors import (
    EngineError,
    EngineOverflow,
    EngineOverloaded,
    EngineProtocol,
    EngineTimeout,
    EngineUnavailable,
)
from nemo_polar.types import FinishReason
from tests.support.engines import Drawn, ask, collect, process, scripted_server, until


@asynccontextmanager
async def connected(url: str, **options):
    engine = VllmEngine(url, **options)
    try:
        yield engine
    finally:
        await engine.close()


async def attempt(engine: VllmEngine, **request) -> tuple[list[int], EngineError]:
    """The tokens that arrived, and the error that ended them."""
    got: list[int] = []
    with pytest.raises(EngineError) as caught:
        async for chunk in engine.generate(ask(**request)):
            got += chunk.token_ids.tolist()
    return got, caught.value


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault.UNAVAILABLE, EngineUnavailable),
        (Fault.OVERLOADED, EngineOverloaded),
        (Fault.BUSY, EngineOverloaded),
        (Fault.CUT, EngineUnavailable),
        (Fault.HALF_LINE, EngineProtocol),
        (Fault.NO_FINISH, EngineProtocol),
        (Fault.ERROR_EVENT, EngineUnavailable),
        (Fault.NO_LOGPROB, EngineProtocol),
        (Fault.NAN_LOGPROB, EngineProtocol),
        (Fault.SENTINEL_LOGPROB, EngineProtocol),
    ],
)
async def test_every_fault_is_typed_and_the_next_sample_is_whole(fault, error):
    reply = ScriptedReply(token_ids=[1, 2, 3, 4], token_delay=0.01, fault=fault, fault_after=2)
    async with scripted_server([reply, [1, 2, 3, 4]]) as (_, url), connected(url) as engine:
        got, caught = await attempt(engine)
        assert type(caught) is error and caught.retryable == error.retryable
        assert got == [] if fault in (Fault.UNAVAILABLE, Fault.OVERLOADED, Fault.BUSY) else got == [1, 2]
        assert "r1" in str(caught)
        assert (await collect(engine, ask("r2"))).token_ids == [1, 2, 3, 4]


@pytest.mark.parametrize("fault_after", [0, 3])
async def test_silence_is_a_timeout_and_ends_the_sample_in_the_engine(fault_after):
    reply = ScriptedReply(token_ids=[1, 2, 3, 4], fault=Fault.HANG, fault_after=fault_after)
    async with scripted_server([reply]) as (server, url), connected(url, idle_timeout=0.3) as engine:
        got, caught = await attempt(engine)
        assert type(caught) is EngineTimeout and got == [1, 2, 3][:fault_after]
        await until(lambda: server.core.running == 0)


async def test_a_slow_engine_that_keeps_sending_does_not_time_out():
    reply = ScriptedReply(token_ids=list(range(1, 7)), token_delay=0.15)
    async with scripted_server([reply]) as (_, url), connected(url, idle_timeout=0.4) as engine:
        assert (await collect(engine, ask())).token_ids == list(range(1, 7))


async def test_nobody_listening_is_unavailable():
    async with scripted_server() as (_, url):
        pass
    async with connected(url, connect_timeout=0.5) as engine:
        _, caught = await attempt(engine)
        assert type(caught) is EngineUnavailable
        with pytest.raises(EngineUnavailable):
            await engine.connect()


async def test_a_server_killed_in_mid_stream_is_unavailable_within_a_second(tmp_path: Path):
    script = tmp_path / "script.json"
    script.write_text(json.dumps([{"token_ids": list(range(1, 400)), "token_delay": 0.01}]))
    args = ("--script", str(script), "--log", str(tmp_path / "log"))
    async with process("nemo_polar.engines.scripted_server", *args) as (child, url), connected(url) as engine:
        stream = engine.generate(ask(max_tokens=400))
        for _ in range(5):
            await anext(stream)
        child.kill()
        killed = time.monotonic()
        with pytest.raises(EngineUnavailable):
            async for _ in stream:
                pass
        assert time.monotonic() - killed < 1.0
    assert read_engine_log(tmp_path / "log") == []  # an unfinished sample of a killed engine leaves no line


async def test_the_process_serves_and_ends_cleanly_on_sigterm(tmp_path: Path):
    args = ("--log", str(tmp_path / "log"), "--vocab", "400", "--reply-tokens", "3", "5")
    async with process("nemo_polar.engines.scripted_server", *args) as (child, url), connected(url) as engine:
        await engine.connect()
        drawn = await collect(engine, ask("mine", stop=(9,)))
        child.terminate()
        assert await asyncio.wait_for(child.wait(), 5) == 0
    assert read_engine_log(tmp_path / "log")[-1].token_ids.tolist() == drawn.token_ids


@asynccontextmanager
async def raw_server(*writes: bytes, hold: bool = False):
    """A server that answers any request with these bytes, in so many writes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
        await reader.readexactly(length)
        for data in writes:
            writer.write(data)
            await writer.drain()
            await asyncio.sleep(0.02)
        if hold:
            await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


DATA = Path(__file__).parent / "data"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


def event(ids: list, logprobs: list | None, finish: str | None = None, **more) -> bytes:
    content = (
        None if logprobs is None else {"content": [{"token_id": i, "logprob": x} for i, x in zip(ids, logprobs, strict=False)]}
    )
    choice = {"index": 0, "token_ids": ids, "logprobs": content, "finish_reason": finish, **more}
    return b"data: " + json.dumps({"request_id": "generate-tokens-r1", "choices": [choice]}).encode() + b"\n\n"


async def from_raw(*writes: bytes, hold: bool = False, **options) -> Drawn:
    async with raw_server(*writes, hold=hold) as url, connected(url, **options) as engine:
        return await collect(engine, ask())


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"data: {not json}\n\n", id="not JSON"),
        pytest.param(b"data: [1, 2]\n\n", id="not an object"),
        pytest.param(b"<html>busy</html>\n", id="not an event"),
        pytest.param(b'data: {"request_id": "x"}\n\n', id="no choices"),
        pytest.param(event([1, 2], [-0.1]), id="one logprob for two ids"),
        pytest.param(event([1], None), id="no logprobs"),
        pytest.param(event([1], [None]), id="null logprob"),
        pytest.param(event([1], [0.5]), id="positive logprob"),
        pytest.param(event([1], ["x"]), id="text for a logprob"),
        pytest.param(event([1.5], [-0.1]), id="fractional id"),
        pytest.param(event([-1], [-0.1]), id="negative id"),
        pytest.param(event([2**31], [-0.1]), id="id beyond 32 bits"),
        pytest.param(event([1], [-0.1], "sleepy"), id="unknown finish reason"),
        pytest.param(event([1], [-0.1], "stop") + event([2], [-0.1]), id="tokens after the end, at once"),
        pytest.param(
            b'data: {"choices": [{"token_ids": [1], "finish_reason": null, "logprobs": {"content": 3}}]}\n\n', id="shape"
        ),
        pytest.param(event([1], [-0.1]).replace(b'"token_id": 1', b'"token_id": 2'), id="logprob of another id"),
    ],
)
async def test_an_event_that_breaks_the_protocol_is_refused(body):
    good = event([3], [-0.1], "stop") + b"data: [DONE]\n\n"
    assert (await from_raw(HEAD + good)).token_ids == [3]
    with pytest.raises(EngineProtocol):
        await from_raw(HEAD + body + good)


async def test_an_answer_without_a_body_is_refused():
    with pytest.raises(EngineProtocol, match="without a finish reason"):
        await from_raw(HEAD)


@pytest.mark.parametrize(
    ("status", "message", "prompt_tokens", "error"),
    [
        (400, "The decoder prompt (length 9) is longer than the maximum model length of 8.", None, EngineOverflow),
        (400, "This model's maximum context length is 8 tokens.", None, EngineOverflow),
        (400, "no", 8, EngineOverflow),
        (400, "no", 7, EngineProtocol),
        (401, "who are you", 8, EngineProtocol),
        (404, "Not Found", None, EngineProtocol),
        (408, "slow", None, EngineUnavailable),
        (429, "busy", 8, EngineOverloaded),
        (500, "boom", None, EngineUnavailable),
        (502, "gateway", None, EngineUnavailable),
        (503, "busy", None, EngineOverloaded),
    ],
)
def test_a_refusal_is_typed_by_its_status_and_keeps_its_message(status, message, prompt_tokens, error):
    for body in (json.dumps({"error": {"message": message}}), json.dumps({"detail": message}), message):
        caught = answer_error("POST /x", status, body.encode(), prompt_tokens=prompt_tokens, context=8)
        assert type(caught) is error and str(caught) == f"POST /x: HTTP {status}: {message}"


async def test_tokens_after_the_finish_reason_are_refused_even_when_they_come_later():
    with pytest.raises(EngineProtocol, match="after its finish reason"):
        await from_raw(HEAD + event([1], [-0.1], "stop"), event([2], [-0.2]))


async def test_an_event_cut_anywhere_is_put_together():
    stream = HEAD + event([1, 2], [-0.1, -0.2]) + event([3], [-0.3], "stop") + b"data: [DONE]\n\n"
    for step in (7, 40):
        drawn = await from_raw(*(stream[i : i + step] for i in range(0, len(stream), step)))
        assert drawn.token_ids == [1, 2, 3]


async def test_a_whole_sample_counts_though_the_end_marker_is_lost_or_late():
    whole = HEAD + event([1], [-0.1], "stop")
    assert (await from_raw(whole)).token_ids == [1]
    started = time.monotonic()
    assert (await from_raw(whole, hold=True)).token_ids == [1]
    assert time.monotonic() - started < 3


async def test_an_error_after_good_tokens_in_one_packet_keeps_the_tokens():
    got: list[int] = []
    async with raw_server(HEAD + event([1, 2], [-0.1, -0.2]) + b'data: {"error": {"message": "boom", "code": 500}}\n\n') as url:
        async with connected(url) as engine:
            with pytest.raises(EngineUnavailable, match="boom"):
                async for chunk in engine.generate(ask()):
                    got += chunk.token_ids.tolist()
    assert got == [1, 2]


@pytest.mark.parametrize("step", [50, 100_000])
async def test_streams_recorded_from_a_real_vllm_are_read(step):
    recorded = (DATA / "vllm-0.32-generate.sse").read_bytes()
    drawn = await from_raw(HEAD, *(recorded[i : i + step] for i in range(0, len(recorded), step)))
    assert drawn.token_ids == [504, 3575, 282, 4649, 314, 7042, 30, 2] and drawn.finish_reason is FinishReason.STOP
    assert drawn.logprobs[0] == pytest.approx(-0.58739686) and drawn.chunks[-1].weights_version == 7


async def test_prompt_ids_and_usage_in_a_recorded_stream_do_no_harm():
    drawn = await from_raw(HEAD + (DATA / "vllm-0.32-generate-usage.sse").read_bytes())
    assert drawn.token_ids == [504, 3575] and drawn.finish_reason is FinishReason.LENGTH
    assert drawn.chunks[-1].weights_version is None  # "default" is no number of ours
