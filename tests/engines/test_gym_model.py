# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""GymModelEngine against a stand-in for Gym's model server, and the proxy's check of what that reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nemo_polar import registry
from nemo_polar.engines.base import GenerateRequest
from nemo_polar.engines.gym_model import GymModelEngine
from nemo_polar.engines.log import read_engine_log
from nemo_polar.engines.script import Fault, ScriptedReply
from nemo_polar.errors import (
    ConfigError,
    EngineError,
    EngineOverflow,
    EngineOverloaded,
    EngineProtocol,
    EngineUnavailable,
)
from nemo_polar.types import (
    FinishReason,
    ForkReason,
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
from tests.support.engines import collect
from tests.support.gym_model import gym_engine, scripted_vllm
from tests.support.proxy import running
from tests.support.tiny import tiny_codec

END = 258


class FakeOtherRendering:
    """A /tokenize that does not render what is generated from."""

    def render(self, messages: Any, tools: Any) -> TokenIds:
        return as_ids([*tiny_codec().render(messages, tools).tolist(), 1])


def asking(*messages: Message, **kwargs: Any) -> GenerateRequest:
    tools = kwargs.pop("tools", ())
    given = {"session_id": "s", "max_tokens": 50, "sampling": SamplingParams(), "stop_token_ids": (END,)} | kwargs
    return GenerateRequest("r1", as_ids([1]), chat=ModelCall(messages=messages, tools=tools), **given)


def user(words: str = "hi") -> Message:
    return Message(Role.USER, (Text(words),))


def written(words: str) -> list[int]:
    return [*tiny_codec().tokenizer.encode(words), END]  # type: ignore[attr-defined]


def test_the_registry_knows_it():
    assert registry.resolve("engines", "gym_model") is GymModelEngine


def test_without_a_context_length_it_says_which_option_is_missing():
    with pytest.raises(ConfigError, match=r"max_context.*--max-model-len"):
        GymModelEngine("http://127.0.0.1:1")


@pytest.mark.parametrize("new", [True, False])
async def test_a_reply_has_the_ids_and_logprobs_that_the_engine_logged(new, tmp_path: Path):
    log = tmp_path / "log.jsonl"
    async with scripted_vllm(written("ok"), log=log) as (_, url), gym_engine(url, new=new) as (_, engine):
        drawn = await collect(engine, asking(user()))
    (logged,) = read_engine_log(log)
    (chunk,) = drawn.chunks
    assert chunk.prompt_ids is not None and chunk.prompt_ids.tolist() == logged.prompt_ids.tolist()
    assert drawn.token_ids == written("ok") == logged.token_ids.tolist() and drawn.finish_reason is FinishReason.STOP
    assert drawn.logprobs.tolist() == pytest.approx(logged.logprobs.tolist(), abs=1e-6)
    assert logged.request_id == "r1"


@pytest.mark.parametrize("new", [True, False])
async def test_the_prompt_is_the_one_generated_from_even_where_tokenize_renders_otherwise(new, tmp_path: Path):
    log = tmp_path / "log.jsonl"
    async with scripted_vllm(written("ok"), log=log, tokenize=FakeOtherRendering()) as (_, url):
        async with gym_engine(url, new=new) as (_, engine):
            drawn = await collect(engine, asking(user()))
    assert drawn.chunks[0].prompt_ids is not None
    assert drawn.chunks[0].prompt_ids.tolist() == read_engine_log(log)[0].prompt_ids.tolist()
    assert engine.second_renderings == (0 if new else 1)


async def test_what_the_schema_of_gym_has_no_field_for_goes_through_metadata():
    sampling = SamplingParams(
        temperature=0.7, top_p=0.9, top_k=7, min_p=0.1, repetition_penalty=1.1, presence_penalty=0.2, seed=3
    )
    options = {"engine": {"template_options": {"enable_thinking": False}}}
    async with scripted_vllm(written("ok")) as (routes, url), gym_engine(url, **options) as (_, engine):
        await collect(engine, asking(user(), sampling=sampling, tools=(ToolSpec("write"),)))
    (body,) = routes.bodies
    wanted = {"temperature": 0.7, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "repetition_penalty": 1.1, "presence_penalty": 0.2}
    assert {name: body[name] for name in wanted} == wanted and body["seed"] == 3
    assert (body["stop_token_ids"], body["request_id"], body["return_token_ids"]) == ([END], "r1", True)
    assert json.loads(body["metadata"]["chat_template_kwargs"]) == {"enable_thinking": False}
    assert body["tool_choice"] == "auto" and "frequency_penalty" not in body


async def test_reasoning_stands_in_think_tags_and_a_developer_is_a_system_message():
    history = (
        Message(Role.DEVELOPER, (Text("Be brief."),)),
        user(),
        Message(Role.ASSISTANT, (Reasoning("hm"), ToolCall("c1", "write", "{}"))),
        Message(Role.TOOL, (ToolResult("c1", (Text("written"),)),)),
    )
    async with scripted_vllm(written("ok")) as (routes, url), gym_engine(url) as (_, engine):
        await collect(engine, asking(*history))
    sent = routes.bodies[0]["messages"]
    assert sent[0]["role"] == "system" and "reasoning_content" not in sent[2]
    assert sent[2]["content"] == "<think>hm</think>" and sent[2]["tool_calls"][0]["id"] == "c1"


# --- what connect proves ----------------------------------------------------------------------------------------------


async def test_connect_proves_processed_logprobs():
    async with scripted_vllm() as (_, url), gym_engine(url, engine={"probe": True}) as (_, engine):
        info = await engine.connect()
        await engine.health()
    assert (info.takes_ids, info.streams, info.scores, info.max_context) == (False, False, False, 4096)


@pytest.mark.parametrize(
    ("server", "vllm", "words"),
    [
        ({}, {"logprobs": "raw"}, "--logprobs-mode processed_logprobs"),
        ({"pinned": {"temperature": 1.0}}, {}, None),
        ({"pinned": {"top_k": 20}}, {}, "sampling_overrides"),
        ({"pinned": {"top_p": 0.1}}, {}, "sampling_overrides"),
    ],
)
async def test_connect_refuses_logprobs_that_are_not_of_what_was_asked_for(server, vllm, words):
    async with scripted_vllm(**vllm) as (_, url), gym_engine(url, engine={"probe": True}, **server) as (_, engine):
        with pytest.raises(EngineProtocol, match=words):
            await engine.connect()


async def test_an_engine_that_refuses_other_temperatures_is_named_as_such():
    async with scripted_vllm(None, Fault.UNAVAILABLE) as (_, url), gym_engine(url, engine={"probe": True}) as (_, _engine):
        engine_replies = [ScriptedReply(), ScriptedReply(fault=Fault.UNAVAILABLE)]
        async with scripted_vllm(*engine_replies) as (_, other), gym_engine(other, engine={"probe": True}) as (_, client):
            with pytest.raises(EngineProtocol, match="set the engine's option probe to false"):
                await client.connect()


async def test_without_token_ids_connect_names_the_switch():
    async with scripted_vllm() as (_, url), gym_engine(url, token_ids=False) as (_, engine):
        with pytest.raises(EngineProtocol, match="return_token_id_information=true"):
            await engine.connect()


# --- faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault.UNAVAILABLE, EngineUnavailable),
        (Fault.OVERLOADED, EngineOverloaded),
        (Fault.SENTINEL_LOGPROB, EngineProtocol),
    ],
)
async def test_every_fault_is_typed(fault, error):
    broken = ScriptedReply(token_ids=[5, 6, 7, END], fault=fault, fault_after=1)
    async with scripted_vllm(broken) as (_, url), gym_engine(url) as (_, engine):
        with pytest.raises(EngineError) as caught:
            await collect(engine, asking(user()))
    assert type(caught.value) is error


async def test_what_vllm_refused_is_no_outage_though_gym_answers_500():
    async with scripted_vllm(model="another") as (_, url), gym_engine(url) as (_, engine):
        with pytest.raises(EngineProtocol, match="does not exist"):
            await collect(engine, asking(user()))


async def test_a_server_that_is_gone_is_unavailable():
    async with scripted_vllm() as (_, url), gym_engine(url) as (_, engine):
        pass
    with pytest.raises(EngineUnavailable):
        await collect(engine, asking(user()))


async def test_an_empty_reply_in_place_of_an_overflow_is_the_overflow():
    async with scripted_vllm(max_context=64) as (routes, url), gym_engine(url) as (_, engine):
        with pytest.raises(EngineOverflow):
            await collect(engine, asking(user("x" * 100)))
    assert len(routes.bodies) == 2 and "max_tokens" not in routes.bodies[1]


async def test_a_prompt_that_fits_is_drawn_from_though_max_tokens_on_top_of_it_does_not(monkeypatch):
    from nemo_polar.engines.scripted_openai_routes import ScriptedOpenAIRoutes, _error

    kept = ScriptedOpenAIRoutes._refusal

    def strict(self: Any, body: dict[str, Any]) -> Any:  # as older vLLMs are
        return _error(400, "'max_tokens' is too large") if body.get("max_tokens", 0) > 30 else kept(self, body)

    monkeypatch.setattr(ScriptedOpenAIRoutes, "_refusal", strict)
    async with scripted_vllm(written("ok")) as (_, url), gym_engine(url) as (_, engine):
        assert (await collect(engine, asking(user()))).token_ids == written("ok")


async def test_an_aborted_sample_is_lost_as_it_cannot_be_continued():
    reply = ScriptedReply(token_ids=[5, 6], finish_reason=FinishReason.ABORT)
    async with scripted_vllm(reply) as (_, url), gym_engine(url) as (_, engine):
        with pytest.raises(EngineUnavailable, match="aborted"):
            await collect(engine, asking(user()))


async def test_a_session_keeps_its_cookie_and_so_its_replica():
    async with scripted_vllm() as (first, one), scripted_vllm() as (second, two):
        async with gym_engine(one, two) as (server, engine):
            for session_id in ("a", "b", "a", "b", "a"):
                await collect(engine, asking(user(), session_id=session_id, max_tokens=2))
    assert server.sessions == ["", "", "1", "2", "1"]
    assert (len(first.bodies), len(second.bodies)) == (2, 3)


# --- with the proxy ---------------------------------------------------------------------------------------------------


async def test_the_proxy_extends_what_is_rendered_alike_and_forks_what_is_not(tmp_path: Path):
    """'<tool_call>' in odd spacing is sampled, and rendered back in the template's own: ids differ, the line forks."""
    plain, odd = "fine", '<tool_call>\n{"name":   "write", "arguments": {"path": "a"}}\n</tool_call>'
    first = written("drawn by connect, to see that ids come with it")
    async with scripted_vllm(first, *map(written, (plain, odd, "done"))) as (_, url), gym_engine(url) as (_, engine):
        async with running(tmp_path, engine=engine) as rig:
            client = await rig.session()
            history: list[dict[str, Any]] = [{"role": "user", "content": "one"}]
            for follow in ({"role": "user", "content": "two"}, None):
                history.append(await client.message(history))
                history.append(follow or {"role": "tool", "tool_call_id": history[-1]["tool_calls"][0]["id"], "content": "ok"})
            await client.message(history)
            turns = await rig.delivered(client.session_id)
            counters = (await rig.proxy.close_session(client.session_id)).counters
    assert [(t.parent, t.fork_reason) for t in turns] == [(None, ForkReason.NEW), (0, None), (None, ForkReason.ENGINE)]
    assert counters["engine_mismatch"] == 1
