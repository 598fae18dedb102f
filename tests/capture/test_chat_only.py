# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Behind a chat-only server with a required prefix: what it reports decides, and what does not extend the record forks."""

from __future__ import annotations

from contextlib import asynccontextmanager

from aiohttp.test_utils import TestServer

from nemo_polar.engines.chat_prefix import ChatPrefixEngine
from nemo_polar.engines.script import ScriptedOptions
from nemo_polar.engines.scripted_chat_server import ScriptedChatServer
from nemo_polar.engines.scripted_core import ScriptedCore
from nemo_polar.trajectory.store import ENGINE_LOG
from nemo_polar.types import ForkReason
from tests.capture.test_calls import USER, assert_equals_engine_log
from tests.support.proxy import running
from tests.support.tiny import tiny_codec


@asynccontextmanager
async def rig_behind_chat(tmp_path):
    core = ScriptedCore(log=tmp_path / ENGINE_LOG, options=ScriptedOptions(vocab=259, reply_tokens=(3, 9)))
    server = ScriptedChatServer(core, tiny_codec())
    async with TestServer(server.app) as served:
        engine = ChatPrefixEngine(str(served.make_url("")).rstrip("/"), "scripted", max_context=8192)
        async with running(tmp_path, engine=engine) as rig:
            yield rig, core, server


async def test_the_prefix_is_required_on_an_append_and_the_prompt_reported_is_what_is_recorded(tmp_path):
    async with rig_behind_chat(tmp_path) as (rig, core, server):
        client = await rig.session()
        odd = rig.ids('<tool_call>\n{"name":  "write","arguments":  {"n" : 1e2}}\n</tool_call>')
        core.push(odd, rig.ids("fine"))
        first = await client.message([USER])
        call = first["tool_calls"][0]
        await client.message([USER, first, {"role": "tool", "tool_call_id": call["id"], "content": "ok"}])
        turns = rig.turns(client.session_id)
        assert [t.parent for t in turns] == [None, 0]
        assert [("required_prefix_token_ids" in b) for b in server.bodies[1:]] == [False, True]
        assert_equals_engine_log(rig, turns)


async def test_a_rendering_that_does_not_extend_the_record_forks_and_is_counted(tmp_path, monkeypatch):
    async with rig_behind_chat(tmp_path) as (rig, core, server):
        client = await rig.session()
        monkeypatch.setattr(server, "_prompt", lambda messages, tools, required: tiny_codec().render(messages, tools))
        core.push(rig.ids('<tool_call>\n{"name":  "write","arguments":  {"n" : 1e2}}\n</tool_call>'), rig.ids("fine"))
        first = await client.message([USER])
        call = first["tool_calls"][0]
        await client.message([USER, first, {"role": "tool", "tool_call_id": call["id"], "content": "ok"}])
        turns = rig.turns(client.session_id)
        assert [(t.parent, t.fork_reason) for t in turns] == [(None, ForkReason.NEW), (None, ForkReason.ENGINE)]
        assert turns[1].fork_of == 0
        assert_equals_engine_log(rig, turns)
        assert (await rig.proxy.close_session(client.session_id)).counters["engine_mismatch"] == 1
