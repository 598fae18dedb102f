# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Anthropic's own client reads what the dialect writes: whole, streamed, counted; and every error as its typed exception."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic, AsyncAnthropic
from anthropic.types import Message as SdkMessage
from anthropic.types import MessageTokensCount, ModelInfo, RawMessageStreamEvent
from pydantic import TypeAdapter

from nemo_polar.errors import (
    BadRequest,
    CallError,
    ContextOverflow,
    NotFound,
    Overloaded,
    TooLarge,
    Unauthorized,
    Unavailable,
)
from nemo_polar.types import FinishReason, Message, Reasoning, Role, Text, ToolCall, ToolResult
from tests.support.anthropic_messages import DIALECT, SHOWN, WEATHER, events, parse, reply, request, result, streamed, use
from tests.support.sdk_server import SECRET, ScriptedServer, serving

HELLO: list[Any] = [{"role": "user", "content": "hi"}]
ASK: dict[str, Any] = {"model": "polar", "max_tokens": 100, "messages": HELLO}
TOOLS: list[Any] = [WEATHER]


@pytest.fixture
async def proxy() -> AsyncIterator[ScriptedServer]:
    async with serving(DIALECT, reply(Text("Héllo\u2028!"))) as server:
        yield server


def options(proxy: ScriptedServer) -> dict[str, Any]:
    return {"base_url": proxy.url, "api_key": SECRET, "max_retries": 0, "timeout": 20}


@pytest.fixture
async def client(proxy: ScriptedServer) -> AsyncIterator[AsyncAnthropic]:
    async with AsyncAnthropic(**options(proxy)) as opened:
        yield opened


EVERYTHING = reply(
    Reasoning("Let me\nsee."),
    Text("Calling."),
    ToolCall("call_1", "weather", '{"place": "Oslo", "days": 1.0}'),
    Text("And again."),
    ToolCall("call_2", "weather", '{"place":"Bodø"}'),
)
INPUTS = [{"place": "Oslo", "days": 1.0}, {"place": "Bodø"}]


def assert_everything(got: Any) -> None:
    assert (got.id, got.type, got.role, got.model) == ("msg_r1", "message", "assistant", "polar")
    assert [b.type for b in got.content] == ["thinking", "text", "tool_use", "text", "tool_use"]
    assert got.content[0].thinking == "Let me\nsee." and got.content[0].signature
    assert [b.text for b in got.content if b.type == "text"] == ["Calling.", "And again."]
    calls = [b for b in got.content if b.type == "tool_use"]
    assert [(c.id, c.name, c.input) for c in calls] == [("call_1", "weather", INPUTS[0]), ("call_2", "weather", INPUTS[1])]
    assert (got.stop_reason, got.stop_sequence) == ("tool_use", None)
    usage = got.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.cache_creation_input_tokens) == (6, 5, 0)
    assert (usage.output_tokens, usage.output_tokens_details.thinking_tokens) == (7, 3)


async def goes_on(proxy: ScriptedServer, client: AsyncAnthropic, got: Any) -> None:
    """The client's own dump of an answer is a legal next request, and is read as the reply that it was."""
    results: Any = {"role": "user", "content": [result("call_2", "sun"), result("call_1", "rain")]}
    talk = [*HELLO, {"role": "assistant", "content": got.content}, results]
    await client.messages.create(**{**ASK, "messages": talk}, tools=TOOLS)
    _, turn, answers = proxy.calls[-1].messages
    assert turn.role is Role.ASSISTANT and (turn.reasoning, turn.text) == ("Let me\nsee.", "Calling.And again.")
    assert [type(p) for p in turn.parts] == [type(p) for p in EVERYTHING.message.parts]
    assert answers == Message(
        Role.USER, (ToolResult("call_1", (Text("rain"),), "weather"), ToolResult("call_2", (Text("sun"),), "weather"))
    )


@pytest.mark.parametrize("beta", [False, True])
async def test_a_whole_answer(proxy, client, beta):
    proxy.answer = EVERYTHING
    messages = client.beta.messages if beta else client.messages
    more = {"betas": ["context-1m-2025-08-07"]} if beta else {}
    got = await messages.create(**ASK, tools=TOOLS, thinking=SHOWN, **more)
    assert_everything(got)
    await goes_on(proxy, client, got)
    assert proxy.calls[0] == parse(request(messages=HELLO, tools=TOOLS, thinking=SHOWN))  # betas change nothing


@pytest.mark.parametrize("beta", [False, True])
async def test_a_stream_accumulates_to_the_whole_answer(proxy, client, beta):
    proxy.answer = EVERYTHING
    messages = client.beta.messages if beta else client.messages
    async with messages.stream(**ASK, tools=TOOLS, thinking=SHOWN) as stream:
        seen = [event.type async for event in stream]
        final = await stream.get_final_message()
    assert_everything(final)
    assert {"text", "thinking", "signature", "input_json", "content_block_stop", "message_stop"} <= set(seen)
    await goes_on(proxy, client, final)


async def test_the_synchronous_client(proxy):
    proxy.answer = EVERYTHING

    def drive() -> None:
        with Anthropic(**options(proxy)) as client:
            assert_everything(client.messages.create(**ASK, tools=TOOLS, thinking=SHOWN))
            with client.messages.stream(**ASK, tools=TOOLS, thinking=SHOWN) as stream:
                assert "".join(stream.text_stream) == "Calling.And again."
                assert_everything(stream.get_final_message())
            assert client.messages.count_tokens(model="polar", messages=HELLO, tools=TOOLS).input_tokens == 11

    await asyncio.to_thread(drive)


async def test_raw_events(proxy, client):
    proxy.answer = EVERYTHING
    stream = await client.messages.create(**ASK, stream=True, thinking=SHOWN)
    seen = [event async for event in stream]
    assert seen[0].type == "message_start" and seen[0].message.usage.input_tokens == 11
    partial = [e.delta.partial_json for e in seen if e.type == "content_block_delta" and e.delta.type == "input_json_delta"]
    assert partial == ['{"place": "Oslo", "days": 1.0}', '{"place":"Bodø"}']
    assert [e.type for e in seen[-2:]] == ["message_delta", "message_stop"]


@pytest.mark.parametrize("thinking", [None, SHOWN, {**SHOWN, "display": "omitted"}])
def test_every_event_and_answer_is_of_the_clients_strict_types(thinking):
    call = parse(request(thinking=thinking))
    event_type = TypeAdapter(RawMessageStreamEvent)
    for event in events(streamed(call, EVERYTHING)):
        if event["type"] != "ping":
            event_type.validate_python(event, strict=True)
    SdkMessage.model_validate_json(DIALECT.reply(call, EVERYTHING), strict=True)
    SdkMessage.model_validate_json(DIALECT.reply(call, reply(ToolCall("c", "f", "{"))), strict=True)
    MessageTokensCount.model_validate_json(DIALECT.count(1), strict=True)
    ModelInfo.model_validate_json(DIALECT.model("polar", 5, 4096), strict=True)


@pytest.mark.parametrize(
    ("answer", "content", "stop"),
    [
        (reply(), [], ("end_turn", None)),
        (reply(Text("cut"), finish=FinishReason.LENGTH), ["cut"], ("max_tokens", None)),
        (reply(Text("until"), stop="END"), ["until"], ("stop_sequence", "END")),
    ],
)
async def test_content_and_stop_reason(proxy, client, answer, content, stop):
    proxy.answer = answer
    async with client.messages.stream(**ASK) as stream:
        streamed_answer = await stream.get_final_message()
    for got in (await client.messages.create(**ASK), streamed_answer):
        assert [b.text for b in got.content] == content
        assert (got.stop_reason, got.stop_sequence) == stop


async def test_a_malformed_call_is_seen_whole_and_as_it_is_in_a_stream(proxy, client):
    proxy.answer = reply(ToolCall("call_1", "weather", '{"place": Oslo'))
    got = await client.messages.create(**ASK, tools=TOOLS)
    assert got.content[0].input == {"__unparsedToolInput": {"raw": '{"place": Oslo', "len": 14}}
    async with client.messages.stream(**ASK, tools=TOOLS) as stream:
        with pytest.raises(ValueError, match="Unable to parse tool parameter JSON"):
            await stream.get_final_message()  # as with Anthropic, when its model writes no JSON
    await client.messages.create(
        **{**ASK, "messages": [*HELLO, {"role": "assistant", "content": got.content}, {"role": "user", "content": "?"}]}
    )
    assert proxy.calls[-1].messages[1] == proxy.answer.message


async def test_counting(proxy, client):
    assert (await client.messages.count_tokens(model="polar", messages=HELLO, system="s")).input_tokens == 11
    assert (await client.beta.messages.count_tokens(model="polar", messages=HELLO)).input_tokens == 11
    assert [m.role for m in proxy.calls[0].messages] == [Role.SYSTEM, Role.USER]


@pytest.mark.parametrize(
    ("error", "raised", "status", "kind"),
    [
        (BadRequest("m", param="a.b"), anthropic.BadRequestError, 400, "invalid_request_error"),
        (ContextOverflow(9, 8), anthropic.BadRequestError, 400, "invalid_request_error"),
        (Unauthorized("m"), anthropic.AuthenticationError, 401, "authentication_error"),
        (NotFound("m", param="model"), anthropic.NotFoundError, 404, "not_found_error"),
        (TooLarge("m"), anthropic.APIStatusError, 413, "request_too_large"),
        (Overloaded("m"), anthropic.RateLimitError, 429, "rate_limit_error"),
        (Unavailable("m"), anthropic.InternalServerError, 503, "overloaded_error"),
        (CallError("m"), anthropic.InternalServerError, 500, "api_error"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_errors_are_raised_as_typed_exceptions(proxy, client, error, raised, status, kind, stream):
    proxy.error = error
    with pytest.raises(anthropic.APIStatusError) as caught:
        await client.messages.create(**ASK, stream=stream)
    got = caught.value
    assert isinstance(got, raised) and got.status_code == status
    told = "prompt is too long: 9 tokens > 8 maximum" if isinstance(error, ContextOverflow) else "m"
    assert isinstance(got.body, dict) and got.body["error"] == {"type": kind, "message": told}


async def test_a_wrong_key_a_wrong_field_and_a_wrong_path(proxy, client):
    with pytest.raises(anthropic.AuthenticationError):
        await client.with_options(api_key="other").messages.create(**ASK)
    with pytest.raises(anthropic.NotFoundError):
        await client.messages.batches.list()
    assert proxy.calls == []
    talk: list[Any] = [*HELLO, {"role": "assistant", "content": [use("")]}]
    with pytest.raises(anthropic.BadRequestError, match=r"messages\[1\]\.content\[0\]\.id"):
        await client.messages.create(**{**ASK, "messages": talk})


@pytest.mark.parametrize("after", [0, 2])
async def test_an_error_in_a_stream_is_raised_after_what_came_before(proxy, client, after):
    proxy.answer, proxy.error, proxy.error_after = reply(Text("abcdefghi")), Unavailable("The engine is gone."), after
    seen = ""
    with pytest.raises(anthropic.APIStatusError, match="The engine is gone"):
        async for event in await client.messages.create(**ASK, stream=True):
            if event.type == "content_block_delta":
                seen += event.delta.text
    assert seen == "abcdefghi"[: 3 * after]


async def test_the_client_waits_as_told_and_says_that_it_retries(proxy, client):
    proxy.error = Overloaded("Too many calls.", retry_after=0.01)
    with pytest.raises(anthropic.RateLimitError) as caught:
        await client.with_options(max_retries=1).messages.create(**ASK)
    assert caught.value.response.headers["retry-after"] == "1"
    assert proxy.retries == [False, True]


async def test_models(client):
    assert [m.id async for m in client.models.list()] == ["polar", "org/name"]
    one = await client.models.retrieve("org/name")
    assert (one.id, one.type, one.max_input_tokens) == ("org/name", "model", 4096)
