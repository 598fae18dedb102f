# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Google's own client reads what the dialect writes and sends back what we said: sync, async, streamed, in a chat."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator

import aiohttp
import orjson
import pytest

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
from nemo_polar.tokens.canonical import message_digest, reasoning_digest
from nemo_polar.types import FinishReason, Message, Reasoning, Role, Text, TokenLogProb, ToolCall, ToolResult, Usage
from tests.support.gemini import DIALECT, HELLO
from tests.support.openai_chat import reply
from tests.support.sdk_server import SECRET, ScriptedServer, serving

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from google import genai
    from google.genai import errors, types

pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession")

MODEL = "polar"
PLACE = {"type": "OBJECT", "properties": {"place": {"type": "STRING"}}, "required": ["place"]}
TOOL = types.Tool(
    function_declarations=[
        types.FunctionDeclaration(name="weather", description="Weather of a place.", parameters=types.Schema(**PLACE)),
        types.FunctionDeclaration(name="time", parameters_json_schema={"type": "object", "properties": {}}),
    ]
)
BY_HAND = types.AutomaticFunctionCallingConfig(disable=True)
THINKING = types.ThinkingConfig(include_thoughts=True, thinking_budget=100)
CONFIG = types.GenerateContentConfig(
    system_instruction="Be brief.",
    tools=[TOOL],
    automatic_function_calling=BY_HAND,
    temperature=0.5,
    top_k=40,
    max_output_tokens=100,
    stop_sequences=["END"],
    thinking_config=THINKING,
)
LOGPROBS = tuple(TokenLogProb(t, t.encode(), -0.25 * i) for i, t in enumerate(["Hé", "llo", "!"] * 20))


@pytest.fixture
async def proxy() -> AsyncIterator[ScriptedServer]:
    async with serving(DIALECT, reply(Text("Héllo\u2028!"))) as server:
        yield server


@pytest.fixture
async def client(proxy: ScriptedServer) -> AsyncIterator[genai.Client]:
    opened = genai.Client(api_key=SECRET, http_options=types.HttpOptions(base_url=proxy.url, timeout=20_000))
    yield opened
    await opened.aio.aclose()
    opened.close()


ODD = '{"place": "Osló 🙂", "n": 1.0, "big": 123456789012345678901234567890, "none": null}'
EVERYTHING = reply(
    Reasoning("Let me\nsee."),
    Text("Calling."),
    ToolCall("call_1", "weather", ODD),
    ToolCall("call_2", "weather", "{"),
)


def same_line(said: Message, back: Message) -> bool:
    return message_digest(b"", said, {}) == message_digest(b"", back, {}) and reasoning_digest(said) == reasoning_digest(back)


async def test_a_whole_answer(proxy, client):
    proxy.answer = EVERYTHING
    got = await client.aio.models.generate_content(model=MODEL, contents="weather?", config=CONFIG)
    (candidate,) = got.candidates
    assert (got.response_id, got.model_version, candidate.finish_reason) == ("r1", "polar", types.FinishReason.STOP)
    thought, text, first, second = candidate.content.parts
    assert (thought.text, thought.thought, text.text) == ("Let me\nsee.", True, "Calling.")
    assert first.function_call.id == "call_1" and first.function_call.name == "weather"
    assert first.function_call.args == orjson.loads(ODD) | {"big": 123456789012345678901234567890}
    assert second.function_call.args == {"__malformed_arguments__": "{"}
    usage = got.usage_metadata
    assert (usage.prompt_token_count, usage.candidates_token_count, usage.thoughts_token_count) == (11, 4, 3)
    assert (usage.total_token_count, usage.cached_content_token_count) == (18, 5)
    (call,) = proxy.calls
    assert [message.role for message in call.messages] == [Role.SYSTEM, Role.USER]
    assert (call.sampling.temperature, call.sampling.top_k, call.sampling.stop) == (0.5, 40, ("END",))
    assert [tool.name for tool in call.tools] == ["weather", "time"]
    assert call.tools[0].parameters == {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
    assert call.dropped == ("generationConfig.thinkingConfig.thinkingBudget: the run decides how the model thinks",)


@pytest.mark.parametrize(
    ("answer", "text", "finish"),
    [
        (reply(), "", types.FinishReason.STOP),
        (reply(Text("cut"), finish=FinishReason.LENGTH), "cut", types.FinishReason.MAX_TOKENS),
        (reply(Reasoning("only")), "", types.FinishReason.STOP),
    ],
)
async def test_text_and_finish_reason(proxy, client, answer, text, finish):
    proxy.answer = answer
    got = await client.aio.models.generate_content(model=MODEL, contents="hi")
    assert (got.text, got.candidates[0].finish_reason) == (text, finish)
    streamed = [c async for c in await client.aio.models.generate_content_stream(model=MODEL, contents="hi")]
    assert "".join(c.text or "" for c in streamed) == text and streamed[-1].candidates[0].finish_reason == finish


async def test_a_stream_is_the_whole_answer(proxy, client):
    proxy.answer = EVERYTHING
    chunks = [c async for c in await client.aio.models.generate_content_stream(model=MODEL, contents="hi", config=CONFIG)]
    parts = [part for chunk in chunks for part in chunk.candidates[0].content.parts]
    assert "".join(p.text or "" for p in parts if p.thought) == "Let me\nsee."
    assert "".join(p.text or "" for p in parts if not p.thought) == "Calling."
    assert [p.function_call.id for p in parts if p.function_call] == ["call_1", "call_2"]
    assert [c.usage_metadata is not None for c in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].usage_metadata.total_token_count == 18


async def test_the_client_without_async_reads_the_same(proxy, client):
    proxy.answer = EVERYTHING

    def ask():
        whole = client.models.generate_content(model=MODEL, contents="hi", config=CONFIG)
        return whole, list(client.models.generate_content_stream(model=MODEL, contents="hi", config=CONFIG))

    whole, chunks = await asyncio.to_thread(ask)
    assert whole.function_calls[0].args["place"] == "Osló 🙂"
    assert "".join(p.text or "" for c in chunks for p in c.candidates[0].content.parts if not p.thought) == "Calling."


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("thinking", [THINKING, None])
async def test_a_chat_of_several_turns_sends_back_what_we_said(proxy, client, streaming, thinking):
    """Tool calls in parallel with their results, an empty reply, and text: each turn comes back as one message that merges."""
    more = reply(Text("a"), Reasoning("thinks again"), Text("b"), ToolCall("call_3", "time", "{}"))
    proxy.answers = [EVERYTHING, more, reply(), reply(Reasoning("r"), Text("Done."))]
    chat = client.aio.chats.create(model=MODEL, config=CONFIG.model_copy(update={"thinking_config": thinking}))

    async def say(message):
        if not streaming:
            return await chat.send_message(message)
        return [chunk async for chunk in await chat.send_message_stream(message)]

    def result(name, call_id, **response):
        return types.Part(function_response=types.FunctionResponse(id=call_id, name=name, response=response))

    await say("weather?")
    await say([result("weather", None, output="rain"), result("weather", None, error="bad call")])
    await say([result("time", "call_3", result={"hour": 12})])
    await say("and?")
    await say("thanks")
    last = proxy.calls[-1].messages
    roles = [message.role.value for message in last]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "tool", "assistant", "user", "assistant", "user"]
    said = [answer.message for answer in proxy.answers]
    assert [same_line(a, b) for a, b in zip(said, (m for m in last if m.role is Role.ASSISTANT), strict=True)] == [True] * 4
    assert last[3].parts == (
        ToolResult("call_1", (Text("rain"),), "weather"),
        ToolResult("call_2", (Text("bad call"),), "weather", is_error=True),
    )
    assert last[5].parts == (ToolResult("call_3", (Text('{"hour":12}'),), "time"),)


@pytest.mark.parametrize("streaming", [False, True])
async def test_functions_that_the_client_calls_by_itself(proxy, client, streaming):
    def weather(place: str) -> str:
        """Weather of a place."""
        return f"rain in {place}"

    called = reply(Reasoning("r"), *(ToolCall(f"call_{p}", "weather", f'{{"place": "{p}"}}') for p in ("Oslo", "Rome")))
    proxy.answers = [called, reply(Text("Rain."))]
    chat = client.chats.create(model=MODEL, config=types.GenerateContentConfig(tools=[weather]))

    def say():
        if streaming:
            return "".join(chunk.text or "" for chunk in chat.send_message_stream("weather?"))
        return chat.send_message("weather?").text

    assert await asyncio.to_thread(say) == "Rain."
    first, second = proxy.calls
    assert first.tools[0].parameters["properties"]["place"]["type"] == "string"
    assert same_line(called.message, second.messages[1])
    assert [part.content for part in second.messages[2].parts] == [(Text("rain in Oslo"),), (Text("rain in Rome"),)]


async def test_count_tokens_and_models(proxy, client):
    proxy.answer = reply(usage=Usage(42, 0))
    assert (await client.aio.models.count_tokens(model=MODEL, contents="hi")).total_tokens == 42
    assert proxy.calls[-1].messages[0].text == "hi"
    assert [m.name async for m in await client.aio.models.list()] == ["models/polar", "models/org/name"]
    one = await client.aio.models.get(model="org/name")
    assert (one.name, one.input_token_limit) == ("models/org/name", 4096)
    await client.aio.models.generate_content(model="org/name", contents="hi")
    assert proxy.calls[-1].model == "org/name"


async def test_images(proxy, client):
    image = types.Part.from_bytes(data=b"\xff\xfe\xfb", mime_type="image/png")
    await client.aio.models.generate_content(model=MODEL, contents=["what?", image])
    assert proxy.calls[-1].messages[0].parts[1].url == "data:image/png;base64,//77"


async def test_logprobs(proxy, client):
    proxy.answer = reply(Text("x"), logprobs=LOGPROBS)
    config = types.GenerateContentConfig(response_logprobs=True)
    got = await client.aio.models.generate_content(model=MODEL, contents="hi", config=config)
    chosen = got.candidates[0].logprobs_result.chosen_candidates
    assert [(c.token, c.log_probability) for c in chosen] == [(e.text, e.logprob) for e in LOGPROBS]


@pytest.mark.parametrize(
    ("error", "raised", "status"),
    [
        (BadRequest("b", param="a.b", code="x"), errors.ClientError, "INVALID_ARGUMENT"),
        (ContextOverflow(9, 8), errors.ClientError, "INVALID_ARGUMENT"),
        (Unauthorized("u"), errors.ClientError, "UNAUTHENTICATED"),
        (NotFound("n", param="model"), errors.ClientError, "NOT_FOUND"),
        (TooLarge("t"), errors.ClientError, "INVALID_ARGUMENT"),
        (Overloaded("o"), errors.ClientError, "RESOURCE_EXHAUSTED"),
        (Unavailable("u"), errors.ServerError, "UNAVAILABLE"),
        (CallError("c"), errors.ServerError, "INTERNAL"),
    ],
)
@pytest.mark.parametrize("streaming", [False, True])
async def test_errors_are_raised_as_typed_exceptions(proxy, client, error, raised, status, streaming):
    proxy.error = error
    with pytest.raises(raised) as caught:
        if streaming:
            [c async for c in await client.aio.models.generate_content_stream(model=MODEL, contents="hi")]
        else:
            await client.aio.models.generate_content(model=MODEL, contents="hi")
    got = caught.value
    assert (got.code, got.status) == (error.status, status)
    assert error.message in got.message or isinstance(error, ContextOverflow)


@pytest.mark.parametrize("after", [0, 2])
@pytest.mark.parametrize("sync", [False, True])
async def test_an_error_in_a_stream_is_raised_after_what_came_before(proxy, client, after, sync):
    proxy.answer, proxy.error, proxy.error_after = reply(Text("abcdefghi")), Unavailable("The engine is gone."), after
    seen: list[str] = []

    def ask():
        for chunk in client.models.generate_content_stream(model=MODEL, contents="hi"):
            seen.append(chunk.text or "")

    async def ask_async():
        async for chunk in await client.aio.models.generate_content_stream(model=MODEL, contents="hi"):
            seen.append(chunk.text or "")

    with pytest.raises(errors.ServerError, match="The engine is gone") as caught:
        await (asyncio.to_thread(ask) if sync else ask_async())
    assert "".join(seen) == "abcdefghi"[: 3 * after] and caught.value.status == "UNAVAILABLE"


async def test_a_wrong_key_a_method_that_is_not_served_and_a_refused_field(proxy, client):
    other = genai.Client(api_key="other", http_options=types.HttpOptions(base_url=proxy.url))
    with pytest.raises(errors.ClientError, match="UNAUTHENTICATED"):
        await other.aio.models.generate_content(model=MODEL, contents="hi")
    with pytest.raises(errors.ClientError, match=r"NOT_FOUND.*[eE]mbedContent"):
        await client.aio.models.embed_content(model=MODEL, contents="hi")
    schema = types.GenerateContentConfig(response_mime_type="application/json", response_schema={"type": "STRING"})
    with pytest.raises(errors.ClientError, match="responseSchema is not supported"):
        await client.aio.models.generate_content(model=MODEL, contents="hi", config=schema)
    assert proxy.calls == []
    await other.aio.aclose()
    other.close()


async def test_the_array_form_and_the_key_in_the_query(proxy):
    """What no client here asks for: a stream without ``alt=sse`` is one JSON array."""
    proxy.answer = EVERYTHING
    url = f"{proxy.url}/v1beta/models/polar:streamGenerateContent"
    async with aiohttp.ClientSession() as http:
        async with http.post(url, params={"key": SECRET}, json={"contents": [HELLO]}) as response:
            assert response.content_type == "application/json"
            found = await response.json()
    texts = [part.get("text") for chunk in found for part in chunk["candidates"][0]["content"]["parts"]]
    assert "".join(t or "" for t in texts) == "Calling." and found[-1]["candidates"][0]["finishReason"] == "STOP"
    for chunk in found:
        types.GenerateContentResponse.model_validate(chunk)
