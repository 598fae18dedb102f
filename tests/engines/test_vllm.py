# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""VllmEngine against a server of vLLM's shape, over real sockets."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import numpy as np
import pytest

from nemo_polar import registry
from nemo_polar.engines.log import read_engine_log
from nemo_polar.engines.script import ScriptedReply
from nemo_polar.engines.vllm import VllmEngine
from nemo_polar.errors import EngineError, EngineOverflow, EngineProtocol, EngineUnavailable
from nemo_polar.types import FinishReason, as_ids
from tests.support.engines import PROMPT, ask, collect, scripted_server, until


@pytest.fixture
async def engines():
    """Makes engines and closes them."""
    made: list[VllmEngine] = []

    def make(url: str, **options) -> VllmEngine:
        made.append(VllmEngine(url, **options))
        return made[-1]

    yield make
    for engine in made:
        await engine.close()


def test_the_registry_knows_it():
    assert registry.resolve("engines", "vllm") is VllmEngine


async def test_connect_reads_the_model_and_its_context(engines):
    async with scripted_server(model="policy", max_context=1234) as (_, url):
        info = await engines(url).connect()
    assert (info.model, info.max_context, info.takes_ids, info.streams, info.scores) == ("policy", 1234, True, True, True)


@pytest.mark.parametrize("vocab", [300, 512, 50_000])
async def test_the_probe_accepts_processed_logprobs(engines, vocab):
    async with scripted_server(vocab=vocab, seed=5) as (_, url):
        await engines(url).connect()


@pytest.mark.parametrize("vocab", [300, 512, 50_000])
async def test_the_probe_refuses_raw_logprobs_and_names_the_flag(engines, vocab):
    async with scripted_server(vocab=vocab, logprobs="raw", seed=5) as (_, url):
        with pytest.raises(EngineProtocol, match="--logprobs-mode processed_logprobs"):
            await engines(url).connect()


async def test_the_probe_is_marked_as_such_in_the_engine_log(engines, tmp_path: Path):
    async with scripted_server(log=tmp_path / "log") as (_, url):
        await engines(url).connect()
    calls = read_engine_log(tmp_path / "log")
    assert calls and all(call.request_id.startswith("polar-probe-") for call in calls)


async def test_a_model_that_is_not_served_is_named(engines):
    async with scripted_server(model="policy") as (_, url):
        with pytest.raises(EngineProtocol, match=r"policy.*not 'other'"):
            await engines(url, model="other").connect()


@pytest.mark.parametrize("chunk_tokens", [1, 3, 100])
async def test_what_arrives_is_what_the_engine_drew(engines, tmp_path: Path, chunk_tokens):
    async with scripted_server(log=tmp_path / "log", chunk_tokens=chunk_tokens) as (_, url):
        drawn = await collect(engines(url), ask("r9", max_tokens=40, temperature=0.7, top_p=0.9, top_k=50))
    (logged,) = read_engine_log(tmp_path / "log")
    assert logged.request_id == "r9" and logged.prompt_ids.tolist() == list(PROMPT)
    assert drawn.token_ids == logged.token_ids.tolist() and len(drawn.token_ids) == 40
    np.testing.assert_array_equal(drawn.logprobs, logged.logprobs)
    assert (logged.temperature, logged.top_p, logged.top_k) == (0.7, 0.9, 50)
    assert drawn.finish_reason is FinishReason.LENGTH and logged.finish_reason == "length"


async def test_stop_ids_and_the_version_arrive(engines):
    async with scripted_server([[5, 6, 7, 8]]) as (server, url):
        server.core.set_version(3)
        drawn = await collect(engines(url), ask(stop=(7,)))
    assert (drawn.token_ids, drawn.finish_reason) == ([5, 6, 7], FinishReason.STOP)
    assert drawn.chunks[-1].weights_version == 3


async def test_tokens_come_as_they_are_drawn(engines):
    async with scripted_server([ScriptedReply(token_ids=[1, 2, 3], token_delay=0.15)]) as (_, url):
        loop = asyncio.get_running_loop()
        times = [loop.time() async for _ in engines(url).generate(ask())]
    assert len(times) >= 3 and times[-1] - times[0] > 0.2


async def test_one_connection_serves_many_samples(engines):
    async with scripted_server() as (_, url):
        engine = engines(url)
        for number in range(5):
            await collect(engine, ask(f"r{number}", max_tokens=3))
        assert engine._http.session.connector is not None
        assert len(engine._http.session.connector._conns) == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("tokens_before", [0, 2])
async def test_closing_early_ends_the_sample_in_the_engine(engines, tmp_path: Path, tokens_before):
    first_delay = 0.0 if tokens_before else 30.0
    reply = ScriptedReply(token_ids=range(1, 5000), token_delay=0.02, first_delay=first_delay)
    async with scripted_server([reply], log=tmp_path / "log") as (server, url):
        stream = engines(url).generate(ask("early", max_tokens=5000))
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
        await until(lambda: server.aborted_ids == ["generate-tokens-early"])
    (call,) = read_engine_log(tmp_path / "log")
    assert call.finish_reason == "abort" and tokens_before <= len(call.token_ids) < 100


async def test_the_closed_connection_alone_ends_a_sample(engines, monkeypatch):
    reply = ScriptedReply(token_ids=range(1, 5000), token_delay=0.02)
    async with scripted_server([reply]) as (server, url):
        monkeypatch.setattr(server.core, "abort", lambda request_id: None)
        stream = engines(url).generate(ask(max_tokens=5000))
        await anext(stream)
        await stream.aclose()
        await until(lambda: server.core.running == 0)


async def test_the_abort_request_alone_ends_a_sample_and_a_bare_id_does_not(engines, tmp_path: Path):
    reply = ScriptedReply(token_ids=range(1, 5000), token_delay=0.02)
    async with scripted_server([reply], log=tmp_path / "log") as (server, url):
        engine = engines(url)
        running = asyncio.create_task(collect(engine, ask("mine", max_tokens=5000)))
        await until(lambda: server.core.running)
        await engine._send_abort("mine")
        await asyncio.sleep(0.1)
        assert not running.done()
        await engine._send_abort("generate-tokens-mine")
        assert (await asyncio.wait_for(running, 2)).finish_reason is FinishReason.ABORT


async def test_a_finished_sample_is_never_aborted(engines):
    async with scripted_server([[1, 2]]) as (server, url):
        engine = engines(url)
        await collect(engine, ask())
        await engine.close()
        assert server.aborted_ids == []


async def test_score_is_that_of_the_served_weights(engines):
    async with scripted_server() as (server, url):
        engine = engines(url)
        drawn = await collect(engine, ask(max_tokens=30))
        ids = as_ids([*PROMPT, *drawn.token_ids])
        scored = await engine.score(ids)
        assert scored.dtype == np.float32 and scored[0] == 0 and len(scored) == len(ids)
        np.testing.assert_allclose(scored[len(PROMPT) :], drawn.logprobs, atol=1e-6)
        server.core.set_version(1)
        assert np.abs(await engine.score(ids) - scored).max() > 0.1
        assert (await engine.score(as_ids([5]))).tolist() == [0.0]


async def test_pause_ends_streams_and_resume_drops_the_cache_and_sets_the_version(engines):
    async with scripted_server([ScriptedReply(token_ids=range(1, 5000), token_delay=0.02)]) as (server, url):
        engine = engines(url)
        running = asyncio.create_task(collect(engine, ask(max_tokens=5000)))
        await until(lambda: server.core.running)
        await engine.pause()
        cut = await asyncio.wait_for(running, 2)
        assert cut.finish_reason is FinishReason.ABORT and cut.token_ids == list(range(1, len(cut.token_ids) + 1))
        await engine.resume(12)
        assert (await collect(engine, ask())).chunks[-1].weights_version == 12


async def test_a_prompt_that_does_not_fit_is_an_overflow_before_and_after_connect(engines):
    async with scripted_server(max_context=64) as (_, url):
        engine = engines(url)
        for _ in range(2):
            with pytest.raises(EngineOverflow):
                await collect(engine, ask(prompt=range(64)))
            with pytest.raises(EngineOverflow):
                await engine.score(as_ids(range(64)))
            await engine.connect()


async def test_an_id_outside_the_vocabulary_is_no_overflow(engines):
    async with scripted_server() as (_, url):
        with pytest.raises(EngineProtocol, match="out of vocabulary"):
            await collect(engines(url), ask(prompt=(1, 10_000)))


async def test_health_says_when_nobody_is_there(engines):
    async with scripted_server() as (_, url):
        engine = engines(url)
        await engine.health()
    with pytest.raises(EngineUnavailable):
        await engine.health()


async def test_scripted_logprobs_pass_unchanged(engines):
    async with scripted_server([ScriptedReply(token_ids=[1, 2, 3], logprobs=[-0.25, 0.0, -30.5])]) as (_, url):
        drawn = await collect(engines(url), ask())
    assert drawn.logprobs.tolist() == [-0.25, 0.0, -30.5]
    assert math.isclose(drawn.logprobs.sum(), -30.75)


async def test_weight_routes_that_are_missing_are_explained(engines):
    from aiohttp import web

    from nemo_polar.engines.serve import LocalServer

    async with LocalServer(web.Application()) as bare:
        engine = engines(bare.url)
        for call in (engine.pause(), engine.resume(1)):
            with pytest.raises(EngineError, match="VLLM_SERVER_DEV_MODE"):
                await call
