# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What is SglangEngine's own, against a server of SGLang's shape; and the whole proxy over it. The rest is in
``test_token_engine``."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from aiohttp import web

from nemo_polar.engines.base import TellsWeights
from nemo_polar.engines.script import Fault, ScriptedOptions, ScriptedReply
from nemo_polar.engines.scripted_core import ScriptedCore
from nemo_polar.engines.scripted_sglang_server import ScriptedSglangServer
from nemo_polar.engines.serve import LocalServer
from nemo_polar.engines.sglang import SglangEngine
from nemo_polar.errors import EngineError, EngineProtocol, EngineUnavailable
from nemo_polar.settings import TracePolicy
from nemo_polar.trajectory.audit import audit_run
from nemo_polar.trajectory.store import ENGINE_LOG
from nemo_polar.types import FinishReason, as_ids
from tests.support.engines import ask, collect, until
from tests.support.proxy import running
from tests.support.scripted_harness import ScriptedHarness
from tests.support.tiny import tiny_codec
from tests.support.token_engines import SGLANG, SGLANG_INCREMENTAL, connected, served
from tests.test_exactness import drift, finished_run, write_run_manifest


@pytest.mark.parametrize("setting", [{"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1}])
async def test_what_has_no_logprobs_to_train_on_is_refused_before_it_is_drawn(setting):
    async with served(SGLANG) as (server, engine):
        with pytest.raises(EngineProtocol, match=next(iter(setting))):
            await collect(engine, ask(**setting))
        assert server.aborted_ids == []
        assert len((await collect(engine, ask(top_k=0))).token_ids) == 16  # 0 is another way to say no limit


@pytest.mark.parametrize(
    ("info", "flag"),
    [
        ({"allow_auto_truncate": True}, "--allow-auto-truncate"),
        ({"enable_watermark": True}, "--enable-watermark"),
        ({"preferred_sampling_params": {"logit_bias": {"1": 5}}}, "--preferred-sampling-params"),
        ({"preferred_sampling_params": "{}"}, "--preferred-sampling-params"),
    ],
)
async def test_a_server_that_samples_something_else_than_it_is_asked_for_is_refused(info, flag):
    server = ScriptedSglangServer(ScriptedCore(), info=info)
    async with LocalServer(server.app) as listening, connected(SGLANG, listening.url) as engine:
        with pytest.raises(EngineProtocol, match=flag):
            await engine.connect()


async def test_preferences_that_every_request_overrides_do_no_harm():
    server = ScriptedSglangServer(ScriptedCore(), info={"preferred_sampling_params": {"temperature": 0.3, "top_p": 0.5}})
    async with LocalServer(server.app) as listening, connected(SGLANG, listening.url) as engine:
        await engine.connect()


async def test_a_key_cache_smaller_than_the_context_sets_the_limit():
    server = ScriptedSglangServer(ScriptedCore(), info={"max_req_input_len": 500})
    async with LocalServer(server.app) as listening, connected(SGLANG, listening.url) as engine:
        assert (await engine.connect()).max_context == 500


async def test_an_id_that_begins_like_another_takes_it_along_when_aborted():
    """Which is why request ids must not be prefixes of each other."""
    replies = [ScriptedReply(token_ids=range(1, 5000), token_delay=0.02) for _ in range(3)]
    async with served(SGLANG, replies) as (server, engine):
        running = [asyncio.create_task(collect(engine, ask(name, max_tokens=5000))) for name in ("a1", "a12", "b")]
        await until(lambda: server.core.running == 3)
        await engine._send_abort("a1")
        ended = await asyncio.wait_for(asyncio.gather(*running[:2]), 2)
        assert [drawn.finish_reason for drawn in ended] == [FinishReason.ABORT] * 2 and not running[2].done()
        await engine._send_abort("b")
        await running[2]


async def test_an_id_in_use_is_refused():
    async with served(SGLANG, [ScriptedReply(token_ids=range(1, 5000), token_delay=0.02)]) as (server, engine):
        first = engine.generate(ask(max_tokens=5000))
        await anext(first)
        with pytest.raises(EngineProtocol, match="Duplicate request ID"):
            await collect(engine, ask())
        assert server.aborted_ids == [] and server.core.running == 1
        await first.aclose()


async def test_a_version_that_is_not_taken_leaves_the_engine_paused(monkeypatch):
    async with served(SGLANG) as (server, engine):
        await engine.pause()
        monkeypatch.setattr(server.core, "set_version", lambda version: None)
        with pytest.raises(EngineError, match=r"reports weights version 0 after it was set to 4"):
            await engine.resume(4)
        with pytest.raises(EngineUnavailable):
            await engine.health()
        assert not server.core._go.is_set()


async def test_it_tells_its_version_and_a_fresh_server_has_none():
    async with served(SGLANG) as (_, engine):
        assert isinstance(engine, TellsWeights) and await engine.weights_version() is None
        assert (await collect(engine, ask())).chunks[-1].weights_version is None
        await engine.pause()
        await engine.resume(0)
        assert await engine.weights_version() == 0
        await engine.pause()
        assert await engine.weights_version() == 0


async def test_the_admin_key_is_for_the_routes_that_need_it():
    keys: dict[str, str | None] = {}

    async def note(http: web.Request, response: web.StreamResponse) -> None:
        keys[http.path] = http.headers.get("Authorization")

    server = ScriptedSglangServer(ScriptedCore([ScriptedReply(token_ids=range(1, 5000), token_delay=0.02)]))
    server.app.on_response_prepare.append(note)
    async with LocalServer(server.app) as listening:
        async with connected(SGLANG, listening.url, api_key="usual", admin_api_key="admin") as engine:
            stream = engine.generate(ask(max_tokens=5000))
            await anext(stream)
            await stream.aclose()
            await engine.pause()
            await engine.resume(1)
    admin = {"/abort_request", "/pause_generation", "/flush_cache", "/update_weight_version", "/continue_generation"}
    assert keys == {path: f"Bearer {'admin' if path in admin else 'usual'}" for path in (*admin, "/generate", "/model_info")}


@pytest.mark.parametrize(
    "triples",
    [
        pytest.param([[None, 5, None], [-1.0, 6, None]], id="one too few"),
        pytest.param([[None, 5, None], [-1.0, 9, None], [-1.0, 7, None]], id="another id"),
        pytest.param([[None, 5, None], [-1.0, 6, None], [None, 7, None]], id="one missing"),
        pytest.param([[None, 5, None], [-1.0, 6, None], [-3.4e38, 7, None]], id="minus infinity"),
        pytest.param(None, id="none"),
    ],
)
async def test_a_score_of_something_else_is_refused(monkeypatch, triples):
    async with served(SGLANG) as (server, engine):
        monkeypatch.setattr(server, "_input_triples", lambda ids, logprobs: triples)
        with pytest.raises(EngineProtocol):
            await engine.score(as_ids([5, 6, 7]))


@pytest.mark.parametrize("kind", [SGLANG, SGLANG_INCREMENTAL], ids=str)
async def test_whole_sessions_through_the_proxy_are_exact(kind, tmp_path: Path):
    policy = TracePolicy()
    core = ScriptedCore(log=tmp_path / ENGINE_LOG, options=ScriptedOptions(vocab=259, reply_tokens=(4, 12)))
    server = kind.server(core)
    async with LocalServer(server.app) as listening:
        engine = kind.engine(listening.url)
        async with running(tmp_path, engine=engine, grace_seconds=0.02) as rig:
            rig.engine = server  # what the harness pushes its replies to
            client = await rig.session("r", group_id="g")
            harness = ScriptedHarness(rig, client, 5, thinks=False)
            for _ in range(12):
                await harness.step()
            core.push(ScriptedReply(rig.ids("a reply that is lost"), fault=Fault.CUT, fault_after=9), rig.ids(" and its rest"))
            await client.message([{"role": "user", "content": "once more"}])
            await rig.proxy.pause()
            await rig.proxy.resume(7)
            core.push(rig.ids("under new weights"))
            await client.message([{"role": "user", "content": "and again"}])
            traces = await finished_run(rig, client.session_id, "r", policy)
            last = rig.turns(client.session_id)[-1]
    core.close()
    write_run_manifest(tmp_path, tiny_codec(), policy)
    report = await asyncio.to_thread(audit_run, tmp_path)
    assert report.findings == []
    assert (report.drift_tokens, drift(traces, tmp_path)) == (0, 0)
    assert report.sampled_tokens == report.trained_tokens + sum(report.masked_tokens.values()) and report.trained_tokens > 0
    assert report.bridged_turns > 2 and last.sample.weights_version == (7, 7)
    assert len({len(call.request_id) for call in rig.engine_log()}) == 1, "one length: none can be the beginning of another"
    assert np.isfinite(last.sample.logprobs).all() and isinstance(engine, SglangEngine)
