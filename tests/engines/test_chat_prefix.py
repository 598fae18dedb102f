# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""ChatPrefixEngine against a server that asserts what NeMo RL's does."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from nemo_polar import registry
from nemo_polar.engines.base import GenerateRequest
from nemo_polar.engines.chat_prefix import ChatPrefixEngine
from nemo_polar.engines.script import Fault, ScriptedOptions, ScriptedReply
from nemo_polar.engines.scripted_chat_server import ScriptedChatServer
from nemo_polar.engines.scripted_core import ScriptedCore
from nemo_polar.engines.serve import LocalServer
from nemo_polar.errors import EngineError, EngineOverflow, EngineOverloaded, EngineProtocol, EngineUnavailable
from nemo_polar.types import (
    Delta,
    FinishReason,
    Message,
    ModelCall,
    Role,
    SamplingParams,
    Text,
    TokenIds,
    ToolSpec,
    as_ids,
)
from tests.support.engines import collect

EOS = 1
ROLES = {Role.SYSTEM: 300, Role.USER: 301, Role.ASSISTANT: 302, Role.TOOL: 303, Role.DEVELOPER: 304}


class FakeCodec:
    """A byte a token (from 10 up), a role token before and EOS after each message. Text of bytes below 128 only."""

    name = "fake"
    fingerprint = b"fake"
    stop_token_ids = (EOS,)

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> TokenIds:
        ids: list[int] = []
        for message in messages:
            ids += [ROLES[message.role], *(10 + b for b in message.text.encode()), EOS]
        return as_ids([*ids, ROLES[Role.ASSISTANT]])

    def bridge(self, prompt_ids: Any, sampled_ids: Any, new: Any, tools: Any) -> TokenIds | None:
        return self.render(new, tools)

    def parser(self, prompt_ids: Any, tools: Any, *, stop: Any = (), parse_calls: bool = True) -> FakeParser:
        return FakeParser()

    def token_text(self, token_id: int) -> tuple[str, bytes]:
        return chr(token_id - 10), bytes([token_id - 10])

    def count(self, messages: Any, tools: Any) -> int:
        return len(self.render(messages, tools))


class FakeParser:
    stopped: str | None = None

    def __init__(self) -> None:
        self._ids: list[int] = []

    def feed(self, ids: Any) -> list[Delta]:
        self._ids += list(ids)
        return []

    def finish(self, reason: FinishReason) -> list[Delta]:
        return []

    def message(self) -> Message:
        return Message(Role.ASSISTANT, (Text("".join(chr(i - 10) for i in self._ids if 10 <= i < 138)),))


def text(reply: str) -> list[int]:
    return [*(10 + b for b in reply.encode()), EOS]


def user(words: str) -> Message:
    return Message(Role.USER, (Text(words),))


def assistant(words: str) -> Message:
    return Message(Role.ASSISTANT, (Text(words),))


def ask_chat(*messages: Message, prompt: Any = (), prefix: int = 0, **sampling: Any) -> GenerateRequest:
    return GenerateRequest(
        "r1",
        as_ids(prompt),
        SamplingParams(**sampling),
        (EOS,),
        50,
        session_id="s",
        chat=ModelCall(messages=messages),
        required_prefix=prefix,
    )


@asynccontextmanager
async def serving(*replies: Any, temperature: float = 1.0, top_p: float = 1.0, max_context: int = 4096, **engine: Any):
    core = ScriptedCore(replies, options=ScriptedOptions(model="policy", max_context=max_context))
    server = ScriptedChatServer(core, FakeCodec(), temperature=temperature, top_p=top_p)
    async with LocalServer(server.app) as listening:
        options = {"max_context": max_context, "temperature": temperature, "top_p": top_p} | engine
        client = ChatPrefixEngine(listening.url + "/v1", "policy", **options)
        try:
            yield server, client
        finally:
            await client.close()


def test_the_registry_knows_it():
    assert registry.resolve("engines", "chat_prefix") is ChatPrefixEngine


async def test_connect_draws_a_token_and_says_that_it_takes_no_ids():
    async with serving() as (server, engine):
        info = await engine.connect()
        await engine.health()
    assert (info.takes_ids, info.streams, info.scores, info.max_context) == (False, False, False, 4096)
    assert server.bodies[0]["max_tokens"] == 1


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.7, 0.9)])
async def test_a_reply_is_one_chunk_with_the_reported_prompt(temperature, top_p):
    async with serving(text("ok"), temperature=temperature, top_p=top_p) as (_, engine):
        drawn = await collect(engine, ask_chat(user("hi"), temperature=temperature, top_p=top_p))
    (chunk,) = drawn.chunks
    assert drawn.token_ids == text("ok") and drawn.finish_reason is FinishReason.STOP and len(drawn.logprobs) == 3
    assert chunk.prompt_ids is not None
    assert chunk.prompt_ids.tolist() == FakeCodec().render([user("hi")], ()).tolist()


async def test_a_verified_append_keeps_the_recorded_ids_though_the_text_would_render_otherwise():
    sampled = [10 + ord("o"), 400, 10 + ord("k"), EOS]  # 400 is no byte: its text is lost, and would not render back
    codec = FakeCodec()
    async with serving(sampled, text("done")) as (_, engine):
        first = (await collect(engine, ask_chat(user("hi")))).chunks[0]
        assert first.prompt_ids is not None
        recorded = [*first.prompt_ids.tolist(), *sampled]
        history = (user("hi"), assistant("ok"), user("more"))
        tail = codec.bridge(first.prompt_ids, sampled, [user("more")], ())
        assert tail is not None
        prompt = [*recorded, *tail.tolist()]
        second = (await collect(engine, ask_chat(*history, prompt=prompt, prefix=len(recorded)))).chunks[0]
        assert second.prompt_ids is not None
        assert second.prompt_ids.tolist() == prompt
        third = (await collect(engine, ask_chat(*history, prompt=prompt))).chunks[0]
        assert third.prompt_ids is not None
        assert third.prompt_ids.tolist() != prompt  # without the prefix it renders anew, and the difference can be seen


async def test_a_stale_prefix_is_visible_in_the_reported_prompt():
    codec = FakeCodec()
    stale = [*codec.render([user("an old story")], ()).tolist(), *text("yes")]
    history = (user("compacted"), assistant("yes"), user("go"))
    expected = codec.render(history, ()).tolist()
    async with serving(text("x")) as (_, engine):
        chunk = (await collect(engine, ask_chat(*history, prompt=[*stale, 5], prefix=len(stale)))).chunks[0]
    assert chunk.prompt_ids is not None
    reported = chunk.prompt_ids.tolist()
    assert reported != expected and reported[: len(stale)] == stale


async def test_the_body_is_what_the_contract_asks_for():
    async with serving(text("a"), text("b")) as (server, engine):
        await collect(engine, ask_chat(user("hi"), seed=4))
        await collect(engine, ask_chat(user("hi"), assistant("a"), user("b"), prompt=[7, 8, 9], prefix=2))
    root, append = server.bodies
    assert root["logprobs"] is True and root["return_tokens_as_token_ids"] is True and root["n"] == 1 and root["seed"] == 4
    assert (root["temperature"], root["top_p"], root["stream"]) == (1.0, 1.0, False)
    assert not {"top_k", "top_logprobs", "stop", "required_prefix_token_ids"} & root.keys()
    assert append["required_prefix_token_ids"] == [7, 8]


@pytest.mark.parametrize(
    "sampling", [{"temperature": 0.5}, {"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1}, {"presence_penalty": 1.0}]
)
async def test_sampling_that_the_server_would_refuse_is_refused_before_it_is_sent(sampling):
    async with serving() as (server, engine):
        with pytest.raises(EngineProtocol, match="sampling policy"):
            await collect(engine, ask_chat(user("hi"), **sampling))
    assert server.bodies == []


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": 0.5},
        {"top_p": None},
        {"top_k": 5},
        {"top_logprobs": None},
        {"stream": True},
        {"n": 2},
    ],
)
async def test_the_scripted_server_asserts_the_contract(change):
    good = {
        "messages": [{"role": "user", "content": "hi"}],
        "temperature": 1.0,
        "top_p": 1.0,
        "logprobs": True,
        "max_tokens": 3,
    }
    async with serving() as (server, engine), aiohttp.ClientSession() as client:
        url = engine._http.url + "/v1/chat/completions"
        async with client.post(url, json=good) as answer:
            assert answer.status == 200
            message = (await answer.json())["choices"][0]["message"]
            assert "generation_token_ids" not in message  # return_tokens_as_token_ids was not asked for
        async with client.post(url, json=good | change) as answer:
            assert answer.status == 500 and "AssertionError" in await answer.text()
    assert len(server.bodies) == 1


async def test_an_engine_that_disagrees_with_the_trainers_config_fails_at_connect():
    async with serving(temperature=0.7) as (_, engine):
        wrong = ChatPrefixEngine(engine._http.url, "policy", max_context=64, temperature=1.0)
        with pytest.raises(EngineError, match="config has"):
            await wrong.connect()
        await wrong.close()


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault.UNAVAILABLE, EngineUnavailable),
        (Fault.OVERLOADED, EngineOverloaded),
        (Fault.BUSY, EngineOverloaded),
        (Fault.CUT, EngineUnavailable),
        (Fault.HALF_LINE, EngineProtocol),
        (Fault.NO_LOGPROB, EngineProtocol),
        (Fault.SENTINEL_LOGPROB, EngineProtocol),
    ],
)
async def test_every_fault_is_typed(fault, error):
    async with serving(ScriptedReply(token_ids=[11, 12, 13, EOS], fault=fault, fault_after=1)) as (_, engine):
        with pytest.raises(EngineError) as caught:
            await collect(engine, ask_chat(user("hi")))
    assert type(caught.value) is error


async def test_a_prompt_that_does_not_fit_is_an_overflow():
    async with serving(max_context=20) as (_, engine):
        with pytest.raises(EngineOverflow):
            await collect(engine, ask_chat(user("x" * 30)))


async def test_what_it_cannot_do_is_said():
    async with serving() as (_, engine):
        with pytest.raises(EngineError, match="cannot score"):
            await engine.score(as_ids([1, 2]))
        with pytest.raises(EngineError, match="cannot be paused"):
            await engine.pause()
        with pytest.raises(EngineProtocol, match="as messages"):
            await collect(engine, GenerateRequest("r", as_ids([1]), SamplingParams(), (), 5))
    with pytest.raises(EngineUnavailable):
        await engine.health()
