# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A weight update in the middle of samples: nothing is lost, and every token says under which weights it was drawn."""

from __future__ import annotations

import asyncio

from nemo_polar.engines.scripted import ScriptedEngine
from nemo_polar.errors import EngineWeights
from nemo_polar.types import FinishReason
from tests.capture.test_calls import USER, assert_equals_engine_log
from tests.support.proxy import running


async def test_a_running_sample_goes_on_from_its_ids_under_the_new_version(tmp_path):
    async with running(tmp_path, token_delay=0.02) as rig:
        client = await rig.session()
        rig.engine.core.push(rig.ids("a" * 50), rig.ids("b" * 5))
        asked = asyncio.create_task(client.ask([USER]))
        await asyncio.sleep(0.3)
        await rig.proxy.pause()
        await asyncio.sleep(0.1)
        assert rig.engine.core.running == 0
        await rig.proxy.resume(7)
        text = (await asked)["choices"][0]["message"]["content"]
        assert text.strip("a") == "bbbbb"
        first, second = rig.turns(client.session_id)
        assert (first.sample.finish_reason, second.continues) == (FinishReason.ABORT, True)
        assert (first.sample.weights_version[0], second.sample.weights_version) == (0, (7, 7))
        assert_equals_engine_log(rig, [first, second])


async def test_calls_that_come_while_paused_wait_and_are_drawn_under_the_new_version(tmp_path):
    async with running(tmp_path) as rig:
        client = await rig.session()
        await rig.proxy.pause()
        asked = asyncio.create_task(client.ask([USER]))
        await asyncio.sleep(0.2)
        assert not asked.done()
        assert rig.proxy.status()["paused"]
        await rig.proxy.resume(3)
        await asked
        (turn,) = rig.turns(client.session_id)
        assert turn.sample.weights_version == (3, 3)


async def test_tokens_of_other_weights_than_believed_are_not_recorded_and_not_gone_on_from(tmp_path, monkeypatch):
    async with running(tmp_path) as rig:
        client = await rig.session()
        draw = ScriptedEngine.generate

        async def mislabelled(self, request):
            async for chunk in draw(self, request):
                yield chunk if chunk.finish_reason is None else None
                break
            raise EngineWeights("drawn under version 0 when it should be at 1")

        monkeypatch.setattr(ScriptedEngine, "generate", mislabelled)
        rig.engine.core.push(rig.ids("a" * 20), rig.ids("b"))
        status, _, answer = await client.post(client.body([USER]))
        assert status == 503
        assert "EngineWeights" in (rig.proxy.session_status(client.session_id)["infra_error"] or "")
        monkeypatch.setattr(ScriptedEngine, "generate", draw)
        answer = await client.message([USER])
        assert answer["content"] == "b"
        (turn,) = rig.turns(client.session_id)
        assert not turn.continues


async def test_a_proxy_begins_at_the_version_that_its_engine_says_it_serves(tmp_path):
    engine = ScriptedEngine(vocab=259, reply_tokens=(4, 12))
    engine.core.set_version(5)
    async with running(tmp_path, engine=engine) as rig:
        assert rig.proxy.status()["weights_version"] == 5
