# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Every way a token-in/token-out engine can fail, over real sockets, and the error that each one becomes."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from nemo_polar.engines.log import read_engine_log
from nemo_polar.engines.script import Fault, ScriptedReply
from nemo_polar.errors import EngineError, EngineOverloaded, EngineProtocol, EngineTimeout, EngineUnavailable
from tests.support.engines import ask, collect, process, until
from tests.support.token_engines import DONE, HEAD, connected, every_kind, from_raw, raw_server, served

pytestmark = every_kind


async def attempt(engine, **request) -> tuple[list[int], EngineError]:
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
async def test_every_fault_is_typed_and_the_next_sample_is_whole(kind, fault, error):
    reply = ScriptedReply(token_ids=[1, 2, 3, 4], token_delay=0.01, fault=fault, fault_after=2)
    async with served(kind, [reply, [1, 2, 3, 4]]) as (_, engine):
        got, caught = await attempt(engine)
        assert type(caught) is error and caught.retryable == error.retryable
        assert got == [] if fault in (Fault.UNAVAILABLE, Fault.OVERLOADED, Fault.BUSY) else got == [1, 2]
        assert "r1" in str(caught)
        assert (await collect(engine, ask("r2"))).token_ids == [1, 2, 3, 4]


@pytest.mark.parametrize("fault_after", [0, 3])
async def test_silence_is_a_timeout_and_ends_the_sample_in_the_engine(kind, fault_after):
    reply = ScriptedReply(token_ids=[1, 2, 3, 4], fault=Fault.HANG, fault_after=fault_after)
    async with served(kind, [reply], client={"idle_timeout": 0.3}) as (server, engine):
        got, caught = await attempt(engine)
        assert type(caught) is EngineTimeout and got == [1, 2, 3][:fault_after]
        await until(lambda: server.core.running == 0)


async def test_a_slow_engine_that_keeps_sending_does_not_time_out(kind):
    reply = ScriptedReply(token_ids=list(range(1, 6)), token_delay=0.12)
    async with served(kind, [reply], client={"idle_timeout": 0.35}) as (_, engine):
        assert (await collect(engine, ask())).token_ids == list(range(1, 6))


async def test_nobody_listening_is_unavailable(kind):
    async with served(kind) as (_, engine):
        url = engine._http.url
    async with connected(kind, url, connect_timeout=0.5) as engine:
        _, caught = await attempt(engine)
        assert type(caught) is EngineUnavailable
        with pytest.raises(EngineUnavailable):
            await engine.connect()


async def test_a_server_killed_in_mid_stream_is_lost_at_once_and_one_in_its_place_serves(kind, tmp_path: Path):
    script = tmp_path / "script.json"
    script.write_text(json.dumps([{"token_ids": list(range(1, 400)), "token_delay": 0.01}]))
    args = (*kind.command, "--script", str(script), "--log", str(tmp_path / "log"))
    async with process(*args) as (child, url), connected(kind, url) as engine:
        stream = engine.generate(ask(max_tokens=400))
        for _ in range(5):
            await anext(stream)
        child.kill()
        killed = time.monotonic()
        with pytest.raises(EngineUnavailable):
            async for _ in stream:
                pass
        assert time.monotonic() - killed < 1.0
        await child.wait()
        assert read_engine_log(tmp_path / "log") == []  # an unfinished sample of a killed engine leaves no line
        async with process(*kind.command, "--port", url.rpartition(":")[2]):
            assert len((await collect(engine, ask("r2"))).token_ids) == 16


async def test_the_process_serves_and_ends_cleanly_on_sigterm(kind, tmp_path: Path):
    args = ("--log", str(tmp_path / "log"), "--vocab", "400", "--reply-tokens", "3", "5")
    async with process(*kind.command, *args) as (child, url), connected(kind, url) as engine:
        await engine.connect()
        drawn = await collect(engine, ask("mine", stop=(9,)))
        child.terminate()
        assert await asyncio.wait_for(child.wait(), 5) == 0
    assert read_engine_log(tmp_path / "log")[-1].token_ids.tolist() == drawn.token_ids


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"data: {not json}\n\n", id="not JSON"),
        pytest.param(b"data: [1, 2]\n\n", id="not an object"),
        pytest.param(b"<html>busy</html>\n", id="not an event"),
        pytest.param(b'data: {"request_id": "x"}\n\n', id="nothing in it"),
        pytest.param(([1], [None]), id="null logprob"),
        pytest.param(([1], [0.5]), id="positive logprob"),
        pytest.param(([1], ["x"]), id="text for a logprob"),
        pytest.param(([1.5], [-0.1]), id="fractional id"),
        pytest.param((["1"], [-0.1]), id="text for an id"),
        pytest.param(([-1], [-0.1]), id="negative id"),
        pytest.param(([2**31], [-0.1]), id="id beyond 32 bits"),
        pytest.param(([1], [-0.1], "sleepy"), id="unknown finish reason"),
        pytest.param(([1], [-0.1], "stop"), id="tokens after the end, at once"),
    ],
)
async def test_an_event_that_breaks_the_protocol_is_refused(kind, body):
    good = kind.event([3], [-0.1], "stop") + DONE
    assert (await from_raw(kind, good)).token_ids == [3]
    with pytest.raises(EngineProtocol):
        await from_raw(kind, (body if isinstance(body, bytes) else kind.event(*body)) + good)


async def test_an_answer_without_a_body_is_refused(kind):
    with pytest.raises(EngineProtocol, match="without a finish reason"):
        await from_raw(kind, b"")


async def test_tokens_after_the_finish_reason_are_refused_even_when_they_come_later(kind):
    with pytest.raises(EngineProtocol, match="after its finish reason"):
        await from_raw(kind, kind.event([1], [-1.0], "stop"), kind.event([2], [-0.2], before=[1]))


async def test_an_event_cut_anywhere_is_put_together(kind):
    stream = kind.event([1, 2], [-1.0, -1.0]) + kind.event([3], [-0.3], "stop", before=[1, 2]) + DONE
    for step in (23, 90):
        drawn = await from_raw(kind, *(stream[i : i + step] for i in range(0, len(stream), step)))
        assert drawn.token_ids == [1, 2, 3]


async def test_a_whole_sample_counts_though_the_end_marker_is_lost_or_late(kind, monkeypatch):
    whole = kind.event([1], [-0.1], "stop")
    assert (await from_raw(kind, whole)).token_ids == [1]
    monkeypatch.setattr("nemo_polar.engines.token_stream._TAIL_SECONDS", 0.1)
    assert (await asyncio.wait_for(from_raw(kind, whole, hold=True), 3)).token_ids == [1]


async def test_an_error_after_good_tokens_in_one_packet_keeps_the_tokens(kind):
    async with raw_server(HEAD + kind.event([1, 2], [-0.1, -0.2]) + kind.error) as url, connected(kind, url) as engine:
        got, caught = await attempt(engine)
    assert got == [1, 2] and type(caught) is EngineUnavailable and "boom" in str(caught)
