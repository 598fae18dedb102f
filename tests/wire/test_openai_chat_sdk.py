# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""OpenAI's own client reads what the dialect writes: every form of answer, and every error as its typed exception."""

from __future__ import annotations

from collections.abc import AsyncIterator

import openai
import pytest
from openai import AsyncOpenAI
from openai.lib.streaming.chat import ChunkEvent

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
from nemo_polar.types import FinishReason, Reasoning, Text, TokenLogProb, ToolCall
from tests.support.openai_chat import DIALECT, WEATHER, cycle, reply
from tests.support.sdk_server import SECRET, ScriptedServer, serving

HELLO = [{"role": "user", "content": "hi"}]
LOGPROBS = tuple(TokenLogProb(t, t.encode(), -0.25 * i) for i, t in enumerate(["Hé", "llo", "!"] * 200))


@pytest.fixture
async def proxy() -> AsyncIterator[ScriptedServer]:
    async with serving(DIALECT, reply(Text("Héllo\u2028!"))) as server:
        yield server


@pytest.fixture
async def client(proxy: ScriptedServer) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key=SECRET, max_retries=0, timeout=20) as opened:
        yield opened


EVERYTHING = reply(
    Reasoning("Let me\nsee."),
    Text("Calling."),
    ToolCall("call_1", "weather", '{"place":"Oslo"}'),
    ToolCall("call_2", "weather", "{"),
)


async def test_a_whole_answer(proxy, client):
    proxy.answer = EVERYTHING
    got = await client.chat.completions.create(model="polar", messages=HELLO, tools=[WEATHER])
    (choice,) = got.choices
    assert (got.id, got.object, got.model, got.created) == ("chatcmpl-r1", "chat.completion", "polar", 1_700_000_000)
    assert (choice.finish_reason, choice.message.role, choice.message.content) == ("tool_calls", "assistant", "Calling.")
    assert choice.message.refusal is None and choice.message.reasoning_content == "Let me\nsee."
    assert [(c.id, c.type, c.function.name, c.function.arguments) for c in choice.message.tool_calls] == [
        ("call_1", "function", "weather", '{"place":"Oslo"}'),
        ("call_2", "function", "weather", "{"),
    ]
    assert (got.usage.prompt_tokens, got.usage.completion_tokens, got.usage.total_tokens) == (11, 7, 18)
    assert got.usage.prompt_tokens_details.cached_tokens == 5
    assert got.usage.completion_tokens_details.reasoning_tokens == 3
    # The client's own dump of the answer is a legal next request.
    await client.chat.completions.create(model="polar", messages=[*HELLO, choice.message.model_dump()], tools=[WEATHER])
    assert proxy.calls[-1].messages[1] == EVERYTHING.message


@pytest.mark.parametrize(
    ("answer", "content", "finish"),
    [
        (reply(), "", "stop"),
        (reply(ToolCall("c", "f", "")), None, "tool_calls"),
        (reply(Text("cut"), finish=FinishReason.LENGTH), "cut", "length"),
    ],
)
async def test_content_and_finish_reason(proxy, client, answer, content, finish):
    proxy.answer = answer
    choice = (await client.chat.completions.create(model="polar", messages=HELLO)).choices[0]
    assert (choice.message.content, choice.finish_reason) == (content, finish)


async def test_a_stream_accumulates_to_the_whole_answer(proxy, client):
    proxy.answer = EVERYTHING
    async with client.chat.completions.stream(
        model="polar", messages=HELLO, tools=[WEATHER], stream_options={"include_usage": True}
    ) as stream:
        chunks = [event.chunk async for event in stream if isinstance(event, ChunkEvent)]
        final = await stream.get_final_completion()
    message = final.choices[0].message
    assert (message.content, final.choices[0].finish_reason) == ("Calling.", "tool_calls")
    assert [(c.id, c.function.name, c.function.arguments) for c in message.tool_calls] == [
        ("call_1", "weather", '{"place":"Oslo"}'),
        ("call_2", "weather", "{"),
    ]
    assert final.usage.total_tokens == 18 and chunks[-1].choices == []
    reasoning = [getattr(c.choices[0].delta, "reasoning_content", "") for c in chunks if c.choices]
    assert "".join(r or "" for r in reasoning) == "Let me\nsee."
    bursts = [c.choices[0].delta.tool_calls for c in chunks if c.choices and c.choices[0].delta.tool_calls]
    assert [len(burst) for burst in bursts] == [1, 1]


async def test_a_plain_stream_has_no_usage_unless_asked(proxy, client):
    stream = await client.chat.completions.create(model="polar", messages=HELLO, stream=True)
    chunks = [chunk async for chunk in stream]
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == "Héllo\u2028!"
    assert all(c.usage is None and len(c.choices) == 1 for c in chunks)
    assert chunks[0].choices[0].delta.role == "assistant" and chunks[-1].choices[0].finish_reason == "stop"


async def test_an_empty_stream(proxy, client):
    proxy.answer = reply()
    async with client.chat.completions.stream(model="polar", messages=HELLO) as stream:
        final = await stream.get_final_completion()
    assert (final.choices[0].message.content, final.choices[0].finish_reason) == ("", "stop")


async def test_logprobs_are_the_same_whole_and_streamed(proxy, client):
    proxy.answer = reply(Text("x"), logprobs=LOGPROBS)
    whole = (await client.chat.completions.create(model="polar", messages=HELLO, logprobs=True)).choices[0].logprobs.content
    async with client.chat.completions.stream(model="polar", messages=HELLO, logprobs=True) as stream:
        streamed = (await stream.get_final_completion()).choices[0].logprobs.content
    assert [(e.token, e.logprob, bytes(e.bytes), e.top_logprobs) for e in whole] == [
        (e.text, e.logprob, e.utf8, []) for e in LOGPROBS
    ]
    assert streamed == whole


@pytest.mark.parametrize(
    ("error", "raised", "status", "kind", "code", "param"),
    [
        (BadRequest("b", param="a.b", code="x"), openai.BadRequestError, 400, "invalid_request_error", "x", "a.b"),
        (BadRequest("b"), openai.BadRequestError, 400, "invalid_request_error", None, None),
        (
            ContextOverflow(9, 8),
            openai.BadRequestError,
            400,
            "invalid_request_error",
            "context_length_exceeded",
            "messages",
        ),
        (Unauthorized("u"), openai.AuthenticationError, 401, "authentication_error", "invalid_api_key", None),
        (NotFound("n", param="model"), openai.NotFoundError, 404, "not_found_error", "model_not_found", "model"),
        (NotFound("n"), openai.NotFoundError, 404, "not_found_error", None, None),
        (TooLarge("t"), openai.APIStatusError, 413, "invalid_request_error", "request_too_large", None),
        (Overloaded("o"), openai.RateLimitError, 429, "rate_limit_error", "rate_limit_exceeded", None),
        (Overloaded("o", code="budget"), openai.RateLimitError, 429, "rate_limit_error", "budget", None),
        (Unavailable("u"), openai.InternalServerError, 503, "server_error", "service_unavailable", None),
        (CallError("c"), openai.InternalServerError, 500, "server_error", None, None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_errors_are_raised_as_typed_exceptions(proxy, client, error, raised, status, kind, code, param, stream):
    proxy.error = error
    with pytest.raises(openai.APIStatusError) as caught:
        await client.chat.completions.create(model="polar", messages=HELLO, stream=stream)
    got = caught.value
    assert type(got) is raised
    assert (got.status_code, got.type, got.code, got.param) == (status, kind, code, param)
    assert got.body["message"] == error.message


async def test_a_wrong_key_and_a_wrong_path(proxy, client):
    with pytest.raises(openai.AuthenticationError):
        await client.with_options(api_key="other").chat.completions.create(model="polar", messages=HELLO)
    with pytest.raises(openai.NotFoundError):
        await client.completions.create(model="polar", prompt="hi")
    assert proxy.calls == []


async def test_a_wrong_field_is_named_to_the_client(client):
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model="polar", messages=cycle(function={"name": "f", "arguments": {}}))
    assert caught.value.param == "messages[1].tool_calls[0].function.arguments"
    assert caught.value.code == "invalid_type"


@pytest.mark.parametrize("after", [0, 2])
async def test_an_error_in_a_stream_is_raised_after_what_came_before(proxy, client, after):
    proxy.answer, proxy.error, proxy.error_after = reply(Text("abcdefghi")), Unavailable("The engine is gone."), after
    seen = ""
    with pytest.raises(openai.APIError, match="The engine is gone") as caught:
        async for chunk in await client.chat.completions.create(model="polar", messages=HELLO, stream=True):
            seen += chunk.choices[0].delta.content or ""
    assert seen == "abcdefghi"[: 3 * after] and caught.value.code == "service_unavailable"


async def test_the_client_waits_as_told_and_says_that_it_retries(proxy, client):
    proxy.error = Overloaded("Too many calls.", retry_after=0.01)
    with pytest.raises(openai.RateLimitError) as caught:
        await client.with_options(max_retries=1).chat.completions.create(model="polar", messages=HELLO)
    assert caught.value.response.headers["retry-after"] == "1"
    assert proxy.retries == [False, True]


async def test_models(client):
    assert [m.id async for m in client.models.list()] == ["polar", "org/name"]
    one = await client.models.retrieve("org/name")
    assert (one.id, one.object, one.owned_by) == ("org/name", "model", "nemo_polar")
