# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""An engine that misbehaves over real HTTP: the harness sees its provider's error, and what was drawn is on record, exactly.

The scripted server plays vLLM; every fault is in its answers or its socket. What the engine clients make of each is tested in
``tests/engines``; here it is what the harness, the journal and the rollout's status make of it.
"""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from nemo_polar.engines.base import Chunk
from nemo_polar.engines.script import Fault, ScriptedOptions, ScriptedReply
from nemo_polar.engines.scripted import ScriptedEngine
from nemo_polar.engines.scripted_core import ScriptedCore
from nemo_polar.engines.scripted_server import ScriptedServer
from nemo_polar.engines.serve import LocalServer
from nemo_polar.engines.vllm import VllmEngine
from nemo_polar.trajectory.store import ENGINE_LOG
from nemo_polar.types import FinishReason, as_ids, as_logprobs
from tests.capture.test_calls import USER, assert_equals_engine_log
from tests.support.proxy import joined, running

BEFORE_A_TOKEN = (Fault.UNAVAILABLE, Fault.OVERLOADED, Fault.BUSY)
IN_MID_SAMPLE = (Fault.CUT, Fault.ERROR_EVENT, Fault.HANG)
BREACHES = (Fault.HALF_LINE, Fault.NO_FINISH, Fault.NO_LOGPROB, Fault.NAN_LOGPROB, Fault.SENTINEL_LOGPROB)
"""Of the protocol: asking again would only hide them."""


class served:
    """A rig in front of the scripted server; ``rig.core`` is the server's."""

    def __init__(self, folder, **settings):
        self.core = ScriptedCore(log=folder / ENGINE_LOG, options=ScriptedOptions(vocab=259, reply_tokens=(4, 12)))
        self.server = LocalServer(ScriptedServer(self.core).app)
        self.folder, self.settings = folder, settings

    async def __aenter__(self):
        url = await self.server.start()
        engine = VllmEngine(url, probe=False, idle_timeout=0.4)
        self.rig_context = running(self.folder, engine=engine, **self.settings)
        self.rig = await self.rig_context.__aenter__()
        return self.rig, self.core

    async def __aexit__(self, *exc):
        await self.rig_context.__aexit__(*exc)
        await self.server.stop()
        self.core.close()


@pytest.mark.parametrize("fault", [*BEFORE_A_TOKEN, *IN_MID_SAMPLE])
async def test_a_fault_that_passes_is_not_seen_by_the_harness(tmp_path, fault):
    async with served(tmp_path, engine_retries=2) as (rig, core):
        client = await rig.session()
        core.push(ScriptedReply(rig.ids("first half, "), fault=fault, fault_after=12), rig.ids("second half"))
        content = (await client.message([USER]))["content"]
        turns = rig.turns(client.session_id)
        assert content == "".join(t.reply.text for t in turns[-1:]) and content.endswith("second half")
        assert (len(turns) == 2) is (content != "second half"), "what was drawn before the fault is kept, or nothing was"
        assert_equals_engine_log(rig, turns)
        assert (await rig.proxy.close_session(client.session_id)).infra_error is None


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", [*BEFORE_A_TOKEN, *IN_MID_SAMPLE, *BREACHES])
async def test_a_fault_that_stays_is_the_providers_error_and_never_a_reward(tmp_path, fault, stream):
    async with served(tmp_path, engine_retries=0) as (rig, core):
        client = await rig.session()
        core.push(ScriptedReply(rig.ids("half of it"), fault=fault, fault_after=4, chunk_tokens=1))
        if stream:
            async with client.stream([USER]) as response:
                raw = await response.read()
            if response.status == 200:
                assert not joined(raw)["done"] and joined(raw)["error"]["message"]
            else:
                assert response.status == 503
        else:
            status, _, answer = await client.post(client.body([USER]))
            assert (status, set(answer["error"])) == (503, {"message", "type", "param", "code"})
        assert_equals_engine_log(rig, rig.turns(client.session_id))
        assert all(t.sample.finish_reason is FinishReason.ABORT for t in rig.turns(client.session_id))
        record = await rig.proxy.close_session(client.session_id)
        assert record.infra_error is not None, "which makes the rollout an infrastructure failure"
        assert rig.proxy.status()["calls_in_flight"] == 0


async def test_while_the_engine_is_slow_the_client_is_kept_alive(tmp_path):
    async with served(tmp_path, keep_alive_seconds=0.05) as (rig, core):
        client = await rig.session()
        core.push(ScriptedReply(rig.ids("at last"), first_delay=0.3))
        async with client.stream([USER]) as response:
            raw = await response.read()
        assert raw.count(b": ") >= 3 and joined(raw)["content"] == "at last"


async def test_an_engine_that_does_not_stop_at_the_tokens_asked_for_is_stopped(tmp_path, monkeypatch):
    async def endless(self, request):
        while True:
            yield Chunk(as_ids([65]), as_logprobs(np.array([-1.0])))
            await asyncio.sleep(0)

    monkeypatch.setattr(ScriptedEngine, "generate", endless)
    async with running(tmp_path) as rig:
        client = await rig.session()
        status, _, answer = await asyncio.wait_for(client.post(client.body([USER], max_tokens=20)), 5)
        assert status == 503 and "went on after the 20 tokens" in answer["error"]["message"]


async def test_an_engine_that_restarts_between_calls_is_found_again(tmp_path):
    async with served(tmp_path) as (rig, core):
        client = await rig.session()
        core.push(rig.ids("before"))
        first = await client.message([USER])
        port = rig.engine._http.url.rpartition(":")[2]
        assert port.isdigit()
        core.push(ScriptedReply(fault=Fault.CUT, fault_after=0), rig.ids("after"))  # its sockets are gone, and it is back
        again = await client.message([USER, first, {"role": "user", "content": "more"}])
        assert again["content"] == "after"
        turns = rig.turns(client.session_id)
        assert turns[-1].parent == 0
        assert_equals_engine_log(rig, turns)
