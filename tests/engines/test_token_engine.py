# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What every token-in/token-out client does, against a server of its kind's shape, over real sockets."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import numpy as np
import pytest
from aiohttp import web

from nemo_polar import registry
from nemo_polar.engines.log import read_engine_log
from nemo_polar.engines.script import ScriptedReply
from nemo_polar.engines.serve import LocalServer
from nemo_polar.errors import EngineError, EngineOverflow, EngineProtocol, EngineUnavailable
from nemo_polar.types import FinishReason, as_ids
from tests.support.engines import PROMPT, ask, collect, until
from tests.support.token_engines import connected, every_kind, served

pytestmark = every_kind


def test_the_registry_knows_it(kind):
    assert registry.resolve("engines", kind.engine.name) is kind.engine


async def test_connect_reads_the_model_and_its_context(kind):
    async with served(kind, model="policy", max_context=1234) as (_, engine):
        info = await engine.connect()
    room = 1234 - kind.input_margin
    assert (info.model, info.max_context, info.takes_ids, info.streams, info.scores) == ("policy", room, True, True, True)


@pytest.mark.parametrize("vocab", [300, 512, 50_000])
async def test_the_probe_accepts_processed_logprobs(kind, vocab):
    async with served(kind, vocab=vocab, seed=5) as (_, engine):
        await engine.connect()


@pytest.mark.parametrize("vocab", [300, 512, 50_000])
async def test_the_probe_refuses_raw_logprobs_and_says_what_to_do(kind, vocab):
    async with served(kind, vocab=vocab, logprobs="raw", seed=5) as (_, engine):
        with pytest.raises(EngineProtocol, match=kind.logprobs_remedy):
            await engine.connect()


async def test_the_probe_is_marked_as_such_in_the_engine_log(kind, tmp_path: Path):
    async with served(kind, log=tmp_path / "log") as (_, engine):
        await engine.connect()
    calls = read_engine_log(tmp_path / "log")
    assert calls and all(call.request_id.startswith("polar-probe-") for call in calls)


async def test_a_model_that_is_not_served_is_named(kind):
    async with served(kind, model="policy", client={"model": "other"}) as (_, engine):
        with pytest.raises(EngineProtocol, match=r"policy.*not 'other'"):
            await engine.connect()


@pytest.mark.parametrize("chunk_tokens", [1, 3, 100])
async def test_what_arrives_is_what_the_engine_drew(kind, tmp_path: Path, chunk_tokens):
    async with served(kind, log=tmp_path / "log", chunk_tokens=chunk_tokens) as (_, engine):
        drawn = await collect(engine, ask("r9", max_tokens=40, temperature=0.7))
    (logged,) = read_engine_log(tmp_path / "log")
    assert logged.request_id == "r9" and logged.prompt_ids.tolist() == list(PROMPT)
    assert drawn.token_ids == logged.token_ids.tolist() and len(drawn.token_ids) == 40
    np.testing.assert_array_equal(drawn.logprobs, logged.logprobs)
    assert (logged.temperature, logged.top_p, logged.top_k) == (0.7, 1.0, -1)
    assert drawn.finish_reason is FinishReason.LENGTH and logged.finish_reason == "length"


async def test_a_seed_makes_a_sample_repeat(kind):
    async with served(kind) as (_, engine):
        first, second, other = [(await collect(engine, ask(f"r{n}", seed=seed))).token_ids for n, seed in enumerate((7, 7, 8))]
    assert first == second != other


async def test_stop_ids_and_the_version_arrive(kind):
    async with served(kind, [[5, 6, 7, 8]]) as (server, engine):
        server.core.set_version(3)
        drawn = await collect(engine, ask(stop=(7,)))
    assert (drawn.token_ids, drawn.finish_reason) == ([5, 6, 7], FinishReason.STOP)
    assert drawn.chunks[-1].weights_version == 3


async def test_tokens_come_as_they_are_drawn(kind):
    async with served(kind, [ScriptedReply(token_ids=[1, 2, 3], token_delay=0.15)]) as (_, engine):
        loop = asyncio.get_running_loop()
        times = [loop.time() async for _ in engine.generate(ask())]
    assert len(times) >= 3 and times[-1] - times[0] > 0.2


async def test_one_connection_serves_many_samples(kind):
    async with served(kind) as (_, engine):
        for number in range(5):
            await collect(engine, ask(f"r{number}", max_tokens=3))
        assert len(engine._http.session.connector._conns) == 1


@pytest.mark.parametrize("tokens_before", [0, 2])
async def test_closing_early_ends_the_sample_in_the_engine(kind, tmp_path: Path, tokens_before):
    first_delay = 0.0 if tokens_before else 30.0
    reply = ScriptedReply(token_ids=range(1, 5000), token_delay=0.02, first_delay=first_delay)
    async with served(kind, [reply], log=tmp_path / "log") as (server, engine):
        stream = engine.generate(ask("early", max_tokens=5000))
        if tokens_before:
            for _ in range(tokens_before):
                await anext(stream)
            await stream.aclose()
        else:
            waiting = asyncio.ensure_future(anext(stream))
            await until(lambda: server.core.running)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        await until(lambda: server.core.running == 0)
        await until(lambda: server.aborted_ids == [kind.server_id + "early"])
    (call,) = read_engine_log(tmp_path / "log")
    assert call.finish_reason == "abort" and tokens_before <= len(call.token_ids) < 100


async def test_the_closed_connection_alone_ends_a_sample(kind, monkeypatch):
    reply = ScriptedReply(token_ids=range(1, 5000), token_delay=0.02)
    async with served(kind, [reply]) as (server, engine):
        monkeypatch.setattr(server.core, "abort", lambda request_id: None)
        stream = engine.generate(ask(max_tokens=5000))
        await anext(stream)
        await stream.aclose()
        await until(lambda: server.core.running == 0)


async def test_the_abort_request_alone_ends_a_sample(kind):
    reply = ScriptedReply(token_ids=range(1, 5000), token_delay=0.02)
    async with served(kind, [reply]) as (server, engine):
        running = asyncio.create_task(collect(engine, ask("mine", max_tokens=5000)))
        await until(lambda: server.core.running)
        await engine._send_abort(kind.server_id + "nobody's")
        await asyncio.sleep(0.1)
        assert not running.done()
        await engine._send_abort(kind.server_id + "mine")
        assert (await asyncio.wait_for(running, 2)).finish_reason is FinishReason.ABORT


async def test_a_finished_or_refused_sample_is_never_aborted(kind):
    async with served(kind, [[1, 2]], max_context=64) as (server, engine):
        await collect(engine, ask())
        with pytest.raises(EngineOverflow):
            await collect(engine, ask(prompt=range(64)))
        await engine.close()
        assert server.aborted_ids == []


async def test_score_is_that_of_the_served_weights(kind):
    async with served(kind) as (server, engine):
        drawn = await collect(engine, ask(max_tokens=30))
        ids = as_ids([*PROMPT, *drawn.token_ids, 511])
        scored = await engine.score(ids)
        assert scored.dtype == np.float32 and scored[0] == 0 and len(scored) == len(ids)
        np.testing.assert_allclose(scored[len(PROMPT) : -1], drawn.logprobs, atol=1e-6)
        server.core.set_version(1)
        assert np.abs(await engine.score(ids) - scored).max() > 0.1
        assert (await engine.score(as_ids([5]))).tolist() == [0.0]


async def test_pause_ends_streams_and_resume_drops_the_cache_and_sets_the_version(kind):
    async with served(kind, [ScriptedReply(token_ids=range(1, 5000), token_delay=0.02)]) as (server, engine):
        running = asyncio.create_task(collect(engine, ask(max_tokens=5000)))
        await until(lambda: server.core.running)
        await engine.pause()
        cut = await asyncio.wait_for(running, 2)
        assert cut.finish_reason is FinishReason.ABORT and cut.token_ids == list(range(1, len(cut.token_ids) + 1))
        waiting = asyncio.create_task(collect(engine, ask("r2")))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await engine.resume(12)
        assert (await asyncio.wait_for(waiting, 2)).chunks[-1].weights_version == 12


async def test_a_cache_that_cannot_be_dropped_leaves_the_engine_paused(kind, monkeypatch):
    async with served(kind) as (server, engine):
        await engine.pause()
        monkeypatch.setattr(type(server.core), "running", property(lambda self: 1))
        monkeypatch.setattr("nemo_polar.engines.token_engine._FLUSH_SECONDS", 0.001)
        with pytest.raises(EngineError, match="did not drop its prefix cache"):
            await engine.resume(1)
        assert server.core.weights_version == 0 and not server.core._go.is_set()


async def test_a_prompt_that_does_not_fit_is_an_overflow_before_and_after_connect(kind):
    async with served(kind, max_context=64) as (_, engine):
        for _ in range(2):
            for length in (64 - kind.input_margin, 64):
                with pytest.raises(EngineOverflow):
                    await collect(engine, ask(prompt=range(length), max_tokens=1))
                with pytest.raises(EngineOverflow):
                    await engine.score(as_ids(range(length)))
            await engine.connect()


async def test_health_says_when_nobody_is_there(kind):
    async with served(kind) as (_, engine):
        url = engine._http.url
        await engine.health()
    async with connected(kind, url) as engine:
        with pytest.raises(EngineUnavailable):
            await engine.health()


async def test_scripted_logprobs_pass_unchanged(kind):
    async with served(kind, [ScriptedReply(token_ids=[1, 2, 3], logprobs=[-0.25, 0.0, -30.5])]) as (_, engine):
        drawn = await collect(engine, ask())
    assert drawn.logprobs.tolist() == [-0.25, 0.0, -30.5]
    assert math.isclose(drawn.logprobs.sum(), -30.75)


async def test_weight_routes_that_are_missing_are_explained(kind):
    async with LocalServer(web.Application()) as bare, connected(kind, bare.url) as engine:
        for call in (engine.pause(), engine.resume(1)):
            with pytest.raises(EngineError, match=kind.weights_remedy):
                await call
