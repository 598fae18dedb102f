# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The relay between VllmEngine and a scripted server: what it logs equals what the server itself logged."""

from __future__ import annotations

import asyncio
import gzip
import json
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import numpy as np
import pytest
from aiohttp import web
from yarl import URL

from nemo_polar.engines.log import EngineLog, read_engine_log
from nemo_polar.engines.relay import Relay
from nemo_polar.engines.script import Fault, ScriptedReply
from nemo_polar.engines.serve import LocalServer
from nemo_polar.engines.vllm import VllmEngine
from nemo_polar.errors import EngineError, EngineOverflow, EngineOverloaded, EngineProtocol, EngineUnavailable
from nemo_polar.types import FinishReason, as_ids
from tests.support.engines import PROMPT, ask, collect, process, scripted_server, until


@asynccontextmanager
async def relayed(tmp_path: Path, script=None, **options):
    """(scripted server, engine that talks to it through a relay); the logs are ``server`` and ``relay`` in ``tmp_path``."""
    async with scripted_server(script, log=tmp_path / "server", **options) as (server, url):
        relay = Relay(url, EngineLog(tmp_path / "relay"))
        async with LocalServer(relay.app) as listening:
            engine = VllmEngine(listening.url, idle_timeout=5)
            try:
                yield server, engine
            finally:
                await engine.close()
        await relay.close()


def assert_logs_agree(tmp_path: Path) -> None:
    server, relay = ({c.request_id: c for c in read_engine_log(tmp_path / name)} for name in ("server", "relay"))
    assert server.keys() == relay.keys() and server
    for request_id, theirs in server.items():
        ours = relay[request_id]
        assert ours.prompt_ids.tolist() == theirs.prompt_ids.tolist()
        assert ours.token_ids.tolist() == theirs.token_ids.tolist()
        np.testing.assert_array_equal(ours.logprobs, theirs.logprobs)
        fields = ("finish_reason", "temperature", "top_p", "top_k", "weights_version")
        assert [getattr(ours, f) for f in fields] == [getattr(theirs, f) for f in fields]


@pytest.mark.parametrize("chunk_tokens", [1, 7])
async def test_the_relay_logs_what_the_engine_logs(tmp_path: Path, chunk_tokens):
    async with relayed(tmp_path, chunk_tokens=chunk_tokens) as (_, engine):
        await engine.connect()  # the probes are whole answers, not streams
        requests = [
            ask(f"r{n}", prompt=(n + 1, 2, 3), max_tokens=5 + n, temperature=1 - n / 20, top_p=1 - n / 30, top_k=50 + n)
            for n in range(12)
        ]
        drawn = await asyncio.gather(*(collect(engine, request) for request in requests))
    assert_logs_agree(tmp_path)
    logged = {c.request_id: c for c in read_engine_log(tmp_path / "relay")}
    assert [logged[f"r{n}"].token_ids.tolist() for n in range(12)] == [d.token_ids for d in drawn]


async def test_scoring_pausing_and_aborting_pass_through(tmp_path: Path):
    async with relayed(tmp_path, [ScriptedReply(token_ids=range(1, 5000), token_delay=0.02)]) as (server, engine):
        running = asyncio.create_task(collect(engine, ask("cut", max_tokens=5000)))
        await until(lambda: server.core.running)
        await engine.pause()
        assert (await running).finish_reason is FinishReason.ABORT
        await engine.resume(3)
        assert (await engine.score(as_ids(PROMPT))).shape == (4,)
        await collect(engine, ask("after"))
    logged = {c.request_id: c for c in read_engine_log(tmp_path / "relay")}
    assert set(logged) == {"cut", "after"} and logged["cut"].finish_reason == "abort" and logged["after"].weights_version == 3


async def test_a_client_that_leaves_ends_the_sample_and_the_ids_so_far_are_logged(tmp_path: Path):
    async with relayed(tmp_path, [ScriptedReply(token_ids=range(1, 5000), token_delay=0.02)]) as (server, engine):
        stream = engine.generate(ask("early", max_tokens=5000))
        got = [(await anext(stream)).token_ids.tolist() for _ in range(3)]
        await stream.aclose()
        await until(lambda: server.core.running == 0)
        await until(lambda: read_engine_log(tmp_path / "relay"))
    (ours,), (theirs,) = read_engine_log(tmp_path / "relay"), read_engine_log(tmp_path / "server")
    assert ours.finish_reason == theirs.finish_reason == "abort"
    count = len(ours.token_ids)
    assert sum(map(len, got)) <= count <= len(theirs.token_ids)
    assert ours.token_ids.tolist() == theirs.token_ids.tolist()[:count]


@pytest.mark.parametrize(
    ("fault", "error", "logged"),
    [
        (Fault.CUT, EngineUnavailable, [1, 2]),
        (Fault.HALF_LINE, EngineProtocol, [1, 2]),
        (Fault.NO_FINISH, EngineProtocol, [1, 2]),
        (Fault.ERROR_EVENT, EngineUnavailable, [1, 2]),
        (Fault.OVERLOADED, EngineOverloaded, None),
        (Fault.UNAVAILABLE, EngineUnavailable, None),
    ],
)
async def test_a_fault_of_the_engine_reaches_the_client_as_what_it_is(tmp_path: Path, fault, error, logged):
    reply = ScriptedReply(token_ids=[1, 2, 3], token_delay=0.02, fault=fault, fault_after=2)
    async with relayed(tmp_path, [reply]) as (_, engine):
        with pytest.raises(EngineError) as caught:
            await collect(engine, ask())
        assert type(caught.value) is error
    calls = read_engine_log(tmp_path / "relay")
    assert [(c.token_ids.tolist(), c.finish_reason) for c in calls] == ([] if logged is None else [(logged, "abort")])


async def test_a_missing_logprob_is_logged_as_missing(tmp_path: Path):
    reply = ScriptedReply(token_ids=[1, 2], fault=Fault.NO_LOGPROB, fault_after=1)
    async with relayed(tmp_path, [reply]) as (_, engine):
        with pytest.raises(EngineProtocol):
            await collect(engine, ask())
        await until(lambda: read_engine_log(tmp_path / "relay"))
    (call,) = read_engine_log(tmp_path / "relay")
    assert call.token_ids.tolist()[:1] == [1] and np.isnan(call.logprobs[1:]).all()


async def test_an_overflow_stays_one(tmp_path: Path):
    async with relayed(tmp_path, max_context=16) as (_, engine):
        with pytest.raises(EngineOverflow):
            await collect(engine, ask(prompt=range(16)))
    assert read_engine_log(tmp_path / "relay") == []


async def test_an_engine_that_is_not_there_is_unavailable(tmp_path: Path):
    async with scripted_server() as (_, url):
        pass
    relay = Relay(url, EngineLog(tmp_path / "relay"))
    async with LocalServer(relay.app) as listening:
        engine = VllmEngine(listening.url)
        with pytest.raises(EngineUnavailable):
            await collect(engine, ask())
        await engine.close()
    await relay.close()


async def test_every_byte_passes_unchanged(tmp_path: Path):
    packed = gzip.compress(b"x" * 10_000)

    async def echo(request: web.Request) -> web.Response:
        seen = {"path": request.raw_path, "auth": request.headers.get("Authorization"), "body": (await request.read()).hex()}
        return web.json_response(seen, status=418, headers={"X-Engine": "yes"})

    async def zipped(_: web.Request) -> web.Response:
        return web.Response(body=packed, headers={"Content-Encoding": "gzip"})

    app = web.Application()
    app.router.add_post("/any/{rest:.*}", echo)
    app.router.add_get("/zipped", zipped)
    async with LocalServer(app) as upstream:
        relay = Relay(upstream.url, EngineLog(tmp_path / "relay"))
        async with LocalServer(relay.app) as listening, aiohttp.ClientSession(auto_decompress=False) as client:
            headers = {"Authorization": "Bearer k"}
            url = URL(listening.url + "/any/a%20b?x=1&y=%2F", encoded=True)
            async with client.post(url, data=b"\x00\xff", headers=headers) as answer:
                assert (answer.status, answer.headers["X-Engine"]) == (418, "yes")
                assert await answer.json() == {"path": "/any/a%20b?x=1&y=%2F", "auth": "Bearer k", "body": "00ff"}
            async with client.get(listening.url + "/zipped") as answer:
                assert await answer.read() == packed and answer.headers["Content-Encoding"] == "gzip"
        await relay.close()


async def test_the_relay_runs_as_a_process(tmp_path: Path):
    async with scripted_server([[1, 2, 3]]) as (_, url):
        args = ("--upstream", url, "--log", str(tmp_path / "relay"))
        async with process("nemo_polar.engines.relay", *args) as (child, relay_url):
            engine = VllmEngine(relay_url)
            await collect(engine, ask("mine"))
            await engine.close()
            child.terminate()
            assert await asyncio.wait_for(child.wait(), 5) == 0
    (call,) = read_engine_log(tmp_path / "relay")
    assert (call.request_id, call.token_ids.tolist(), call.finish_reason) == ("mine", [1, 2, 3], "stop")


async def test_a_body_that_is_no_json_passes_and_is_not_logged(tmp_path: Path):
    async with relayed(tmp_path) as (_, engine), aiohttp.ClientSession() as client:
        async with client.post(engine._http.url + "/inference/v1/generate", data=b"{") as answer:
            assert answer.status == 400 and "error" in json.loads(await answer.read())
    assert read_engine_log(tmp_path / "relay") == []
