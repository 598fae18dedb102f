# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""OpenAI's own client reads what the Responses dialect writes: answers and events in their strict types, errors as its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import openai
import orjson
import pytest
from hypothesis import given, settings
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import Response, ResponseStreamEvent
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
from nemo_polar.tokens.canonical import message_digest, reasoning_digest
from nemo_polar.types import FinishReason, Reasoning, Role, Text, ToolCall
from tests.support.openai_responses import (
    DIALECT,
    ENCRYPTED,
    REPLY_ID,
    TOOLS,
    assistant_messages,
    deltas,
    parse,
    reply,
    request,
    streamed,
)
from tests.support.sdk_server import SECRET, ScriptedServer, serving

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
EVERYTHING = reply(
    Reasoning("Let me\nsee."),
    Text("Calling.\u2028"),
    ToolCall("call_1", "weather", '{"place":"Oslo"}'),
    ToolCall("call_2", "weather", "{"),
    ToolCall("call_3", "apply_patch", '{"input": "+é\\n"}'),
    ToolCall("call_4", "crm__find", "{}"),
)


@pytest.fixture
async def proxy() -> AsyncIterator[ScriptedServer]:
    async with serving(DIALECT, reply(Text("Héllo\u2028!"))) as server:
        yield server


@pytest.fixture
async def client(proxy: ScriptedServer) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key=SECRET, max_retries=0, timeout=20) as opened:
        yield opened


def digests(message):
    return message_digest(b"", message, {}), reasoning_digest(message)


# --- strict types -----------------------------------------------------------------------------------------------------


def strictly(stream: bytes) -> list[Any]:
    """Each event in the SDK's type of that name; extra fields are allowed, as the SDK itself has it, wrong ones are not."""
    found = []
    for block in stream.decode().removesuffix("\n\n").split("\n\n"):
        data = block.split("\n")[1].removeprefix("data: ")
        event = EVENT.validate_json(data, strict=True)
        assert event.type == orjson.loads(data)["type"]
        found.append(event)
    return found


FULL = request(
    instructions="Be brief.",
    tools=TOOLS,
    tool_choice={"type": "custom", "name": "apply_patch"},
    include=ENCRYPTED,
    reasoning={"effort": "high", "summary": "auto"},
    metadata={"a": "b"},
    text={"verbosity": "low"},
    max_output_tokens=64,
)


@settings(max_examples=10, deadline=None)
@given(assistant_messages())
def test_every_answer_and_event_is_of_its_strict_type(message):
    for body in (request(), FULL, request(tool_choice="none")):
        for finish in FinishReason:
            call, answer = parse(body), reply(*message.parts, finish=finish)
            whole = Response.model_validate_json(DIALECT.reply(call, answer), strict=True)
            *_, last = strictly(streamed(call, answer))
            assert last.response == whole


def test_a_failure_is_of_its_strict_type():
    encoder = DIALECT.stream(parse(FULL), REPLY_ID, 0, "polar", 1)
    out = encoder.delta(deltas(EVERYTHING.message)[0]) + encoder.error(Unavailable("The engine is gone."))
    *_, last = strictly(encoder.start() + out)
    assert (last.response.status, last.response.error.code) == ("failed", "server_error")


# --- answers ----------------------------------------------------------------------------------------------------------


def check(got: Any) -> None:
    """That ``got`` is ``EVERYTHING`` as the client has it."""
    kinds = ["reasoning", "message", "function_call", "function_call", "custom_tool_call", "function_call"]
    assert [item.type for item in got.output] == kinds
    assert (got.id, got.status, got.model, got.output_text) == (f"resp_{REPLY_ID}", "completed", "polar", "Calling.\u2028")
    thought, _, first, second, patch, find = got.output
    assert (thought.summary, thought.content[0].text) == ([], "Let me\nsee.")
    assert (first.call_id, first.name, first.arguments) == ("call_1", "weather", '{"place":"Oslo"}')
    assert (second.call_id, second.arguments) == ("call_2", "{")
    assert (patch.name, patch.input) == ("apply_patch", "+é\n")
    assert (find.namespace, find.name) == ("crm", "find")
    usage = got.usage
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (11, 7, 18)
    assert (usage.input_tokens_details.cached_tokens, usage.output_tokens_details.reasoning_tokens) == (5, 3)


async def test_a_whole_answer_and_what_comes_back_of_it(proxy, client):
    proxy.answer = EVERYTHING
    got = await client.responses.create(model="polar", input="hi", tools=TOOLS, include=ENCRYPTED)
    check(got)
    # The client's own dump of the answer is a legal next request.
    results = [{"type": "function_call_output", "call_id": f"call_{n}", "output": "ok"} for n in (1, 2, 4)]
    patched = {"type": "custom_tool_call_output", "call_id": "call_3", "output": "ok"}
    history = [{"role": "user", "content": "hi"}, *(item.model_dump(by_alias=True) for item in got.output), *results, patched]
    await client.responses.create(model="polar", input=history, tools=TOOLS)
    _, spoken, *rest = proxy.calls[-1].messages
    assert digests(spoken) == digests(EVERYTHING.message)
    assert [m.role for m in rest] == [Role.TOOL] * 4
    assert not [phrase for phrase in proxy.calls[-1].dropped if phrase.startswith("unknown")]


async def test_a_stream_accumulates_to_the_whole_answer(proxy, client):
    proxy.answer = EVERYTHING
    async with client.responses.stream(model="polar", input="hi", tools=TOOLS[1:2]) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_response()
    assert [item.type for item in final.output][:2] == ["reasoning", "message"] and final.output_text == "Calling.\u2028"
    assert [e.sequence_number for e in events] == list(range(len(events)))
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    thought = "".join(e.delta for e in events if e.type == "response.reasoning_text.delta")
    assert (text, thought) == ("Calling.\u2028", "Let me\nsee.")


async def test_raw_events_accumulate_too(proxy, client):
    proxy.answer = EVERYTHING
    events = [e async for e in await client.responses.create(model="polar", input="hi", tools=TOOLS, stream=True)]
    done = [e.item for e in events if e.type == "response.output_item.done"]
    assert events[-1].type == "response.completed" and done == events[-1].response.output
    check(events[-1].response)


async def test_the_synchronous_client(proxy):
    proxy.answer = EVERYTHING

    def ask() -> tuple[Any, Any]:
        with OpenAI(base_url=f"{proxy.url}/v1", api_key=SECRET, max_retries=0, timeout=20) as sync:
            whole = sync.responses.create(model="polar", input="hi", tools=TOOLS)
            with sync.responses.stream(model="polar", input="hi", tools=TOOLS) as stream:
                return whole, stream.get_final_response()

    whole, final = await asyncio.to_thread(ask)
    check(whole)
    check(final)


async def test_an_empty_answer_and_one_that_was_cut(proxy, client):
    proxy.answer = reply()
    async with client.responses.stream(model="polar", input="hi") as stream:
        final = await stream.get_final_response()
    assert (final.output_text, final.status, [i.type for i in final.output]) == ("", "completed", ["message"])
    proxy.answer = reply(Text("cut"), finish=FinishReason.LENGTH)
    whole = await client.responses.create(model="polar", input="hi")
    *_, last = [e async for e in await client.responses.create(model="polar", input="hi", stream=True)]
    assert last.type == "response.incomplete" and last.response == whole
    assert (whole.status, whole.incomplete_details.reason, whole.output_text) == ("incomplete", "max_output_tokens", "cut")


async def test_a_conversation_of_several_turns_streamed_with_results(proxy, client):
    history: list[Any] = [{"role": "user", "content": "hi"}]
    for turn in range(3):
        answer = reply(Reasoning(f"r{turn}"), Text("t"), ToolCall(f"call_{turn}", "weather", "{}"), id=f"{turn:024x}")
        proxy.answer = answer
        async with client.responses.stream(model="polar", input=history, tools=TOOLS[:1], include=ENCRYPTED) as stream:
            final = await stream.get_final_response()
        history += [item.to_dict() for item in final.output]
        history.append({"type": "function_call_output", "call_id": f"call_{turn}", "output": f"result {turn}"})
        assert [m.role for m in proxy.calls[-1].messages] == [Role.USER, *([Role.ASSISTANT, Role.TOOL] * turn)]
    assert [m.reasoning for m in proxy.calls[-1].messages if m.role is Role.ASSISTANT] == ["r0", "r1"]


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "raised", "status", "kind", "code", "param"),
    [
        (BadRequest("b", param="a.b", code="x"), openai.BadRequestError, 400, "invalid_request_error", "x", "a.b"),
        (ContextOverflow(9, 8), openai.BadRequestError, 400, "invalid_request_error", "context_length_exceeded", "input"),
        (Unauthorized("u"), openai.AuthenticationError, 401, "authentication_error", "invalid_api_key", None),
        (NotFound("n", param="model"), openai.NotFoundError, 404, "not_found_error", "model_not_found", "model"),
        (TooLarge("t"), openai.APIStatusError, 413, "invalid_request_error", "request_too_large", None),
        (Overloaded("o"), openai.RateLimitError, 429, "rate_limit_error", "rate_limit_exceeded", None),
        (Unavailable("u"), openai.InternalServerError, 503, "server_error", "service_unavailable", None),
        (CallError("c"), openai.InternalServerError, 500, "server_error", None, None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_errors_are_raised_as_typed_exceptions(proxy, client, error, raised, status, kind, code, param, stream):
    proxy.error = error
    with pytest.raises(openai.APIStatusError) as caught:
        await client.responses.create(model="polar", input="hi", stream=stream)
    got = caught.value
    assert type(got) is raised
    assert (got.status_code, got.type, got.code, got.param) == (status, kind, code, param)
    assert got.body["message"] == error.message


async def test_a_wrong_key_a_wrong_path_and_a_wrong_field(proxy, client):
    with pytest.raises(openai.AuthenticationError):
        await client.with_options(api_key="other").responses.create(model="polar", input="hi")
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve("resp_1")
    with pytest.raises(openai.BadRequestError) as caught:
        await client.responses.create(model="polar", input=[{"type": "function_call_output", "call_id": "c", "output": ""}])
    assert (caught.value.param, caught.value.code) == ("input[0].call_id", "invalid_value")
    assert proxy.calls == []


@pytest.mark.parametrize("after", [0, 2])
async def test_an_error_in_a_stream_comes_after_what_came_before(proxy, client, after):
    proxy.answer, proxy.error, proxy.error_after = reply(Text("abcdefghi")), Unavailable("The engine is gone."), after
    events = [e async for e in await client.responses.create(model="polar", input="hi", stream=True)]
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == "abcdefghi"[: 3 * after]
    assert events[-1].type == "response.failed"
    assert (events[-1].response.error.code, events[-1].response.error.message) == ("server_error", "The engine is gone.")


async def test_the_client_waits_as_told_and_says_that_it_retries(proxy, client):
    proxy.error = Overloaded("Too many calls.", retry_after=0.01)
    with pytest.raises(openai.RateLimitError) as caught:
        await client.with_options(max_retries=1).responses.create(model="polar", input="hi")
    assert caught.value.response.headers["retry-after"] == "1"
    assert proxy.retries == [False, True]
