# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""``GymModelEngine`` against Gym's own ``vllm_model``, in front of the scripted vLLM."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nemo_gym", reason="NeMo Gym is not installed here; `make test-gym` runs this where it is")
pytestmark = [pytest.mark.gym, pytest.mark.timeout(180)]

from nemo_polar.engines.base import GenerateRequest  # noqa: E402
from nemo_polar.engines.gym_model import GymModelEngine  # noqa: E402
from nemo_polar.engines.log import read_engine_log  # noqa: E402
from nemo_polar.engines.script import Fault, ScriptedOptions, ScriptedReply  # noqa: E402
from nemo_polar.engines.scripted_core import ScriptedCore  # noqa: E402
from nemo_polar.engines.scripted_openai_routes import ScriptedOpenAIRoutes  # noqa: E402
from nemo_polar.engines.scripted_server import ScriptedServer  # noqa: E402
from nemo_polar.engines.serve import LocalServer  # noqa: E402
from nemo_polar.errors import EngineOverflow, EngineProtocol, EngineUnavailable  # noqa: E402
from nemo_polar.types import (  # noqa: E402
    FinishReason,
    Message,
    ModelCall,
    Reasoning,
    Role,
    SamplingParams,
    Text,
    TokenIds,
    ToolCall,
    ToolResult,
    ToolSpec,
    as_ids,
)
from tests.gym.live.model_server import HAS_SWITCH, model_server  # noqa: E402
from tests.support.engines import collect  # noqa: E402
from tests.support.tiny import tiny_codec  # noqa: E402

WRITE = ToolSpec("write", "Write a file.", {"type": "object", "properties": {"path": {"type": "string"}}})


class FakeOtherRendering:
    """A /tokenize that does not render what is generated from."""

    def render(self, messages: Any, tools: Any) -> TokenIds:
        return as_ids([*tiny_codec().render(messages, tools).tolist(), 1])


@contextlib.asynccontextmanager
async def vllm(
    *replies: Any, log: Path | None = None, tokenize: Any = None, **options: Any
) -> AsyncIterator[tuple[ScriptedOpenAIRoutes, str]]:
    core = ScriptedCore(replies or None, log=log, options=ScriptedOptions(**{"model": "policy", "vocab": 512} | options))
    server = ScriptedServer(core)
    routes = ScriptedOpenAIRoutes(server, tiny_codec(), tokenize_codec=tokenize)
    async with LocalServer(server.app) as listening:
        yield routes, listening.url
    core.close()


@contextlib.asynccontextmanager
async def gym(*urls: str, engine: dict[str, Any] | None = None, **config: Any) -> AsyncIterator[GymModelEngine]:
    with model_server(base_url=[url + "/v1" for url in urls], **config) as url:
        client = GymModelEngine(url, **{"max_context": 4096, "probe": False} | (engine or {}))
        try:
            yield client
        finally:
            await client.close()


def asking(*messages: Message, tools: tuple[ToolSpec, ...] = (), **kwargs: Any) -> GenerateRequest:
    defaults = {"session_id": "s", "max_tokens": 200, "sampling": SamplingParams(), "stop_token_ids": (258,)}
    return GenerateRequest("r1", as_ids([1]), chat=ModelCall(messages=messages, tools=tools), **defaults | kwargs)


def user(words: str = "hi") -> Message:
    return Message(Role.USER, (Text(words),))


def written(text: str) -> list[int]:
    tokenizer = tiny_codec().tokenizer  # type: ignore[attr-defined]
    return [*tokenizer.encode(text), tokenizer.token_id("<|im_end|>")]


HISTORY = (
    Message(Role.DEVELOPER, (Text("Be brief."),)),
    user(),
    Message(Role.ASSISTANT, (Text("So."), ToolCall("c1", "write", '{"path": "a"}'))),
    Message(Role.TOOL, (ToolResult("c1", (Text("done"),)),)),
)


async def test_connect_proves_processed_logprobs_and_refuses_raw_ones():
    async with vllm() as (_, url), gym(url, engine={"probe": True}) as engine:
        assert (await engine.connect()).takes_ids is False
    async with vllm(logprobs="raw") as (_, url), gym(url, engine={"probe": True}) as engine:
        with pytest.raises(EngineProtocol, match="processed_logprobs"):
            await engine.connect()


async def test_a_tool_conversation_comes_back_with_the_ids_that_the_engine_logged(tmp_path: Path):
    call = written('<tool_call>\n{"name": "write", "arguments": {"path": "b"}}\n</tool_call>')
    async with vllm(call, log=tmp_path / "log.jsonl") as (routes, url), gym(url) as engine:
        drawn = await collect(engine, asking(*HISTORY, tools=(WRITE,), sampling=SamplingParams(top_k=7, min_p=0.1, seed=3)))
    (chunk,) = drawn.chunks
    (logged,) = read_engine_log(tmp_path / "log.jsonl")
    assert drawn.token_ids == call == logged.token_ids.tolist() and drawn.finish_reason is FinishReason.STOP
    assert drawn.logprobs.tolist() == pytest.approx(logged.logprobs.tolist(), abs=1e-6)
    assert chunk.prompt_ids is not None and chunk.prompt_ids.tolist() == logged.prompt_ids.tolist()
    assert logged.request_id == "r1" and logged.top_k == 7
    (body,) = routes.bodies
    assert (body["min_p"], body["seed"], body["stop_token_ids"], body["max_tokens"]) == (0.1, 3, [258], 200)
    assert [m["role"] for m in body["messages"]] == ["system", "user", "assistant", "tool"]
    assert body["messages"][2]["tool_calls"][0]["function"] == {"name": "write", "arguments": '{"path": "a"}'}


async def test_reasoning_reaches_the_engine_as_reasoning():
    history = (user(), Message(Role.ASSISTANT, (Reasoning("hm"), Text("So."))), user("and?"))
    async with vllm(written("ok")) as (routes, url), gym(url) as engine:
        await collect(engine, asking(*history))
    said = routes.bodies[0]["messages"][1]
    assert said["reasoning"] == "hm" and said["content"] == "So."


async def test_the_prompt_is_the_one_that_was_generated_from_not_a_second_rendering(tmp_path: Path):
    async with vllm(written("ok"), log=tmp_path / "log.jsonl", tokenize=FakeOtherRendering()) as (_, url):
        async with gym(url) as engine:
            drawn = await collect(engine, asking(user()))
    (logged,) = read_engine_log(tmp_path / "log.jsonl")
    prompt = drawn.chunks[0].prompt_ids
    assert prompt is not None and prompt.tolist() == logged.prompt_ids.tolist()


async def test_the_switch_of_gym_0_7_changes_nothing():
    if not HAS_SWITCH:
        pytest.skip("this Gym has no request_prompt_and_generation_token_ids")
    async with vllm(written("ok")) as (_, url), gym(url, request_prompt_and_generation_token_ids=True) as engine:
        assert (await collect(engine, asking(user()))).token_ids == written("ok")


async def test_an_overflow_is_the_error_it_was():
    async with vllm(max_context=64) as (_, url), gym(url) as engine:
        with pytest.raises(EngineOverflow):
            await collect(engine, asking(user("x" * 100)))


async def test_a_server_without_token_ids_says_which_switch_is_missing():
    async with vllm() as (_, url), gym(url, return_token_id_information=False) as engine:
        with pytest.raises(EngineProtocol, match="return_token_id_information=true"):
            await engine.connect()


async def test_what_vllm_answered_decides_the_error_though_gym_answers_500():
    broken = [ScriptedReply(fault=Fault.UNAVAILABLE)] * 3  # as often as Gym tries
    async with vllm(*broken) as (_, url), gym(url) as engine:
        with pytest.raises(EngineUnavailable):
            await collect(engine, asking(user()))
    async with vllm() as (_, url), gym(url, model="another") as engine:
        with pytest.raises(EngineProtocol, match="does not exist"):
            await collect(engine, asking(user()))


async def test_a_session_stays_on_one_replica():
    async with vllm() as (first, one), vllm() as (second, two), gym(one, two) as engine:
        for session_id in ("a", "b", "a", "a", "b"):
            await collect(engine, asking(user(), session_id=session_id, max_tokens=2))
    assert sorted((len(first.bodies), len(second.bodies))) == [2, 3]


async def test_a_client_that_leaves_is_no_loss_for_the_next():
    async with vllm(ScriptedReply(first_delay=30), written("ok")) as (_, url), gym(url) as engine:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(collect(engine, asking(user())), 1)
        assert (await collect(engine, asking(user()))).token_ids == written("ok")
