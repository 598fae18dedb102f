# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What is VllmEngine's own, against a server of vLLM's shape. The rest is in ``test_token_engine``."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from nemo_polar.engines.log import read_engine_log
from nemo_polar.engines.script import ScriptedReply
from nemo_polar.errors import EngineProtocol
from tests.support.engines import ask, collect, until
from tests.support.token_engines import VLLM, served


async def test_truncated_samples_have_the_logprobs_of_what_was_kept(tmp_path: Path):
    async with served(VLLM, log=tmp_path / "log") as (_, engine):
        drawn = await collect(engine, ask(max_tokens=40, temperature=0.7, top_p=0.9, top_k=50))
    (logged,) = read_engine_log(tmp_path / "log")
    assert drawn.token_ids == logged.token_ids.tolist() and len(drawn.token_ids) == 40
    np.testing.assert_array_equal(drawn.logprobs, logged.logprobs)
    assert (logged.temperature, logged.top_p, logged.top_k) == (0.7, 0.9, 50)


async def test_a_bare_id_aborts_nothing():
    reply = ScriptedReply(token_ids=range(1, 5000), token_delay=0.02)
    async with served(VLLM, [reply]) as (server, engine):
        running = asyncio.create_task(collect(engine, ask("mine", max_tokens=5000)))
        await until(lambda: server.core.running)
        await engine._send_abort("mine")
        await asyncio.sleep(0.1)
        assert not running.done()
        await engine._send_abort("generate-tokens-mine")
        await running


async def test_an_id_outside_the_vocabulary_is_no_overflow():
    async with served(VLLM) as (_, engine):
        with pytest.raises(EngineProtocol, match="out of vocabulary"):
            await collect(engine, ask(prompt=(1, 10_000)))
