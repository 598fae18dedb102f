# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest

from nemo_polar import registry
from nemo_polar.engines.log import read_engine_log
from nemo_polar.engines.script import Fault, ScriptedReply, load_script
from nemo_polar.engines.scripted import ScriptedEngine
from nemo_polar.errors import (
    ConfigError,
    EngineOverflow,
    EngineOverloaded,
    EngineProtocol,
    EngineUnavailable,
)
from nemo_polar.types import FinishReason, as_ids
from tests.support.engines import PROMPT, ask, collect, until


def test_the_registry_knows_it():
    assert registry.resolve("engines", "scripted") is ScriptedEngine


async def test_the_same_request_draws_the_same_sample():
    one, two = [await collect(ScriptedEngine(seed=3), ask("same", max_tokens=20)) for _ in range(2)]
    other = await collect(ScriptedEngine(seed=3), ask("other", max_tokens=20))
    assert one.token_ids == two.token_ids
    assert one.token_ids != other.token_ids


async def test_a_seed_of_the_request_decides_alone():
    one = await collect(ScriptedEngine(), ask("a", seed=9))
    two = await collect(ScriptedEngine(chunk_tokens=5), ask("b", seed=9))
    assert one.token_ids == two.token_ids


@pytest.mark.parametrize("script", [None, [[4, 5, 6]]])
async def test_score_agrees_exactly_with_what_was_sampled_at_temperature_one(script):
    engine = ScriptedEngine(script)
    drawn = await collect(engine, ask())
    scored = await engine.score(as_ids([*PROMPT, *drawn.token_ids]))
    np.testing.assert_array_equal(scored[len(PROMPT) :], drawn.logprobs)
    assert scored[0] == 0


async def test_score_shows_weights_that_were_never_replaced():
    honest, stale = ScriptedEngine(), ScriptedEngine(stale_weights=True)
    for engine in (honest, stale):
        await engine.resume(1)
    ids = as_ids([*PROMPT, *(await collect(honest, ask())).token_ids])
    assert (await collect(stale, ask())).chunks[0].weights_version == 1  # it claims the new ones
    assert np.abs(await honest.score(ids) - await stale.score(ids)).max() > 0.1


async def test_replies_end_at_a_stop_id_at_max_tokens_and_at_the_context():
    engine = ScriptedEngine([[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4], [1, 2]], max_context=7)
    assert (await collect(engine, ask(stop=(2,)))).token_ids == [1, 2]
    limited = await collect(engine, ask(max_tokens=1))
    assert (limited.token_ids, limited.finish_reason) == ([1], FinishReason.LENGTH)
    full = await collect(engine, ask())
    assert (full.token_ids, full.finish_reason) == ([1, 2, 3], FinishReason.LENGTH)
    whole = await collect(engine, ask())
    assert (whole.token_ids, whole.finish_reason) == ([1, 2], FinishReason.STOP)


async def test_drawn_replies_have_a_length_in_bounds_and_end_with_the_stop_id():
    engine = ScriptedEngine(reply_tokens=(3, 6))
    for number in range(12):
        drawn = await collect(engine, ask(f"r{number}", stop=(7,), max_tokens=50))
        assert len(drawn.token_ids) <= 6 and drawn.token_ids[-1] == 7 and drawn.finish_reason is FinishReason.STOP


async def test_a_scripted_id_that_truncation_cuts_has_its_logprob_all_the_same():
    drawn = await collect(ScriptedEngine([list(range(20))]), ask(top_k=1, max_tokens=20))
    assert drawn.token_ids == list(range(20))


async def test_a_scripted_id_outside_the_vocabulary_is_named():
    with pytest.raises(EngineProtocol, match="outside the vocabulary of 16"):
        await collect(ScriptedEngine([[16]], vocab=16), ask())


async def test_a_function_decides_by_the_request():
    engine = ScriptedEngine(lambda request: [int(request.prompt_ids[-1]), 1])
    assert (await collect(engine, ask(prompt=(5, 99)))).token_ids == [99, 1]


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault.UNAVAILABLE, EngineUnavailable),
        (Fault.OVERLOADED, EngineOverloaded),
        (Fault.BUSY, EngineOverloaded),
        (Fault.CUT, EngineUnavailable),
        (Fault.ERROR_EVENT, EngineUnavailable),
        (Fault.HALF_LINE, EngineProtocol),
        (Fault.NO_FINISH, EngineProtocol),
        (Fault.NO_LOGPROB, EngineProtocol),
        (Fault.NAN_LOGPROB, EngineProtocol),
        (Fault.SENTINEL_LOGPROB, EngineProtocol),
    ],
)
async def test_every_fault_is_typed_and_gives_the_tokens_before_it(fault, error):
    engine = ScriptedEngine([ScriptedReply(token_ids=[1, 2, 3, 4], fault=fault, fault_after=2)])
    got: list[int] = []
    with pytest.raises(error):
        async for chunk in engine.generate(ask()):
            got += chunk.token_ids.tolist()
    at_once = fault in (Fault.UNAVAILABLE, Fault.OVERLOADED, Fault.BUSY)
    assert got == ([] if at_once else [1, 2])


async def test_pause_ends_a_running_sample_with_its_ids_and_resume_serves_the_new_weights(tmp_path: Path):
    engine = ScriptedEngine([ScriptedReply(token_ids=range(1, 400), token_delay=0.01)], log=tmp_path / "log")
    running = asyncio.create_task(collect(engine, ask("long", max_tokens=400)))
    await until(lambda: engine.core.running)
    await asyncio.sleep(0.05)
    await engine.pause()
    cut = await running
    assert cut.finish_reason is FinishReason.ABORT and cut.token_ids == list(range(1, len(cut.token_ids) + 1)) and cut.token_ids
    waiting = asyncio.create_task(collect(engine, ask("next")))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await engine.resume(7)
    assert (await waiting).chunks[-1].weights_version == 7
    logged = {call.request_id: call for call in read_engine_log(tmp_path / "log")}
    assert logged["long"].token_ids.tolist() == cut.token_ids and logged["long"].finish_reason == "abort"
    assert logged["next"].weights_version == 7


async def test_the_log_has_a_sample_before_its_last_chunk_is_delivered(tmp_path: Path):
    engine = ScriptedEngine([[1, 2, 3]], log=tmp_path / "log")
    async for chunk in engine.generate(ask("a")):
        if chunk.finish_reason is not None:
            assert [c.token_ids.tolist() for c in read_engine_log(tmp_path / "log")] == [[1, 2, 3]]


async def test_closing_early_logs_an_abort(tmp_path: Path):
    engine = ScriptedEngine([[1, 2, 3]], log=tmp_path / "log")
    stream = engine.generate(ask("a"))
    await anext(stream)
    await stream.aclose()
    (call,) = read_engine_log(tmp_path / "log")
    assert (call.finish_reason, call.token_ids.tolist()) == ("abort", [1])
    assert engine.core.running == 0


async def test_a_prompt_that_leaves_no_room_overflows():
    engine = ScriptedEngine(max_context=4)
    with pytest.raises(EngineOverflow):
        await collect(engine, ask(prompt=(1, 2, 3, 4)))
    with pytest.raises(EngineOverflow):
        await engine.score(as_ids([1, 2, 3, 4]))


async def test_raw_logprobs_are_refused_at_connect():
    with pytest.raises(EngineProtocol):
        await ScriptedEngine(logprobs="raw").connect()


def test_scripts_are_read_from_files_and_import_paths(tmp_path: Path):
    (tmp_path / "s.json").write_text(json.dumps([{"token_ids": [1, 2], "fault": "cut"}]))
    assert load_script(str(tmp_path / "s.json")) == [ScriptedReply(token_ids=[1, 2], fault=Fault.CUT)]
    assert load_script("tests.support.engines:ask") is ask
    (tmp_path / "bad.json").write_text('[{"tokens": []}]')
    for bad in (str(tmp_path / "bad.json"), str(tmp_path / "none.json"), "no.such.module:x", "nothing"):
        with pytest.raises(ConfigError):
            load_script(bad)
