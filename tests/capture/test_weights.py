# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A weight update in the middle of samples: nothing is lost, and every token says under which weights it was drawn."""

from __future__ import annotations

import asyncio

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
