# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Chat Completions answers: both forms say the same, and what a harness echoes is what we said."""

import json

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_polar.errors import ContextOverflow, NotFound, Unavailable
from nemo_polar.types import FinishReason, Message, Reasoning, Role, Text, TextDelta, TokenLogProb, ToolCall, Usage
from tests.support.openai_chat import (
    DIALECT,
    assistant_messages,
    events,
    joined,
    logprob_entries,
    parse,
    reply,
    request,
    streamed,
)

PLAIN = parse(request())


def whole(answer, call=PLAIN):
    return orjson.loads(DIALECT.reply(call, answer))


def test_the_shape_of_a_whole_answer():
    answer = reply(Reasoning("hm"), Text("a"), Text("b"), ToolCall("c1", "f", "{}"), ToolCall("c2", "g", "{bad"))
    assert whole(answer) == {
        "id": "chatcmpl-r1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "polar",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "ab",
                    "refusal": None,
                    "reasoning_content": "hm",
                    "tool_calls": [
                        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                        {"id": "c2", "type": "function", "function": {"name": "g", "arguments": "{bad"}},
                    ],
                },
                "logprobs": None,
                "finish_reason": "tool_calls",
            }
        ],
        "usage": {
            "prompt_tokens": 11,
            "completion_tokens": 7,
            "total_tokens": 18,
            "prompt_tokens_details": {"cached_tokens": 5},
            "completion_tokens_details": {"reasoning_tokens": 3},
        },
    }


def test_content_is_null_only_when_there_are_calls_and_no_text():
    assert whole(reply(ToolCall("c", "f", "{}")))["choices"][0]["message"]["content"] is None
    assert whole(reply())["choices"][0]["message"] == {"role": "assistant", "content": "", "refusal": None}
    assert whole(reply(Reasoning("r")))["choices"][0]["message"]["content"] == ""
    assert "reasoning_content" not in whole(reply(Reasoning("")))["choices"][0]["message"]


@pytest.mark.parametrize(
    ("finish", "calls", "said"),
    [
        (FinishReason.STOP, False, "stop"),
        (FinishReason.STOP, True, "tool_calls"),
        (FinishReason.LENGTH, False, "length"),
        (FinishReason.LENGTH, True, "length"),
        (FinishReason.ABORT, False, "length"),
        (FinishReason.ABORT, True, "length"),
    ],
)
def test_finish_reasons(finish, calls, said):
    answer = reply(Text("a"), *([ToolCall("c", "f", "{}")] if calls else []), finish=finish)
    assert whole(answer)["choices"][0]["finish_reason"] == said
    assert joined(streamed(PLAIN, answer))["finish_reason"] == said


def test_logprobs_are_given_only_when_asked_for():
    answer = reply(Text("é"), logprobs=(TokenLogProb("\ufffd", b"\xc3", -0.5), TokenLogProb("\ufffd", b"\xa9", -1.5)))
    assert whole(answer)["choices"][0]["logprobs"] is None
    assert joined(streamed(PLAIN, answer))["logprobs"] is None
    asked = parse(request(logprobs=True))
    entry = {"token": "\ufffd", "logprob": -0.5, "bytes": [0xC3], "top_logprobs": []}
    assert whole(answer, asked)["choices"][0]["logprobs"]["content"][0] == entry
    assert joined(streamed(asked, answer))["logprobs"]["content"][0] == entry


# --- streams ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("include", [True, False])
def test_the_order_of_a_stream(include):
    call = parse(request(stream=True, stream_options={"include_usage": include}))
    chunks = events(streamed(call, reply(Reasoning("r"), Text("t"), ToolCall("c", "f", "{}"))))
    assert chunks[-1] == "[DONE]"
    usage = chunks.pop(-2) if include else None
    shapes = [(*chunk["choices"][0]["delta"], chunk["choices"][0]["finish_reason"]) for chunk in chunks[:-1]]
    assert shapes == [
        ("role", "content", None),
        ("reasoning_content", None),
        ("content", None),
        ("tool_calls", None),
        ("tool_calls",),
    ]
    call_chunk = chunks[3]["choices"][0]["delta"]["tool_calls"]
    assert call_chunk == [{"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    assert all(chunk["object"] == "chat.completion.chunk" and chunk["id"] == "chatcmpl-r1" for chunk in chunks[:-1])
    if usage is not None:
        assert usage["choices"] == [] and usage["usage"]["total_tokens"] == 18
    assert all(chunk.get("usage", "absent") == (None if include else "absent") for chunk in chunks[:-1])


@settings(max_examples=150, deadline=None)
@given(assistant_messages(), st.integers(1, 50), st.sampled_from(FinishReason), st.none() | logprob_entries, st.booleans())
def test_a_stream_joined_is_the_whole_answer(message, width, finish, logprobs, asked):
    call = parse(request(stream=True, logprobs=asked, stream_options={"include_usage": True}))
    answer = reply(*message.parts, finish=finish, logprobs=logprobs, usage=Usage(1, 2, 0, 0))
    expected = whole(answer, call)
    stream = streamed(call, answer, width)
    assert joined(stream) == expected["choices"][0]
    assert events(stream)[-2]["usage"] == expected["usage"]


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_no_line_reader_splits_an_event(text):
    chunk = DIALECT.stream(PLAIN, "r", 0, "polar", 1).delta(TextDelta(text)).decode()
    assert len(chunk.splitlines()) == 2 and chunk.endswith("\n\n")
    assert events(chunk.encode())[0]["choices"][0]["delta"] == {"content": text}


def test_a_model_name_cannot_break_the_frame():
    name = '"delta":{}\n\ndata: x'
    chunk = DIALECT.stream(PLAIN, "r", 0, name, 1).delta(TextDelta("a"))
    assert events(chunk)[0]["model"] == name and events(chunk)[0]["choices"][0]["delta"] == {"content": "a"}


def test_an_error_ends_a_stream_without_the_sign_that_it_is_complete():
    encoder = DIALECT.stream(PLAIN, "r", 0, "polar", 1)
    stream = encoder.start() + encoder.error(Unavailable("The engine is gone."))
    assert events(stream)[1:] == [
        {"error": {"message": "The engine is gone.", "type": "server_error", "param": None, "code": "service_unavailable"}}
    ]


def test_a_keep_alive_is_a_comment():
    assert DIALECT.stream(PLAIN, "r", 0, "polar", 1).keep_alive().startswith(b":")


# --- errors and models ------------------------------------------------------------------------------------------------


def test_a_context_overflow_has_the_code_that_harnesses_compact_on():
    status, headers, body = DIALECT.error(ContextOverflow(130_000, 128_000))
    error = orjson.loads(body)["error"]
    assert (status, headers) == (400, {})
    assert (error["code"], error["type"], error["param"]) == ("context_length_exceeded", "invalid_request_error", "messages")
    assert "130000" in error["message"] and "128000" in error["message"]


@pytest.mark.parametrize(("seconds", "header"), [(0.2, "1"), (3, "3"), (-1, "0")])
def test_retry_after_is_in_whole_seconds(seconds, header):
    assert DIALECT.error(Unavailable("x", retry_after=seconds))[1] == {"Retry-After": header}


def test_a_message_that_utf8_cannot_hold_is_still_told():
    assert orjson.loads(DIALECT.error(NotFound("no \udcff here"))[2])["error"]["message"] == "no ? here"


def test_models():
    listing = orjson.loads(DIALECT.models(["a", "b/c"], 5, 4096))
    assert [m["id"] for m in listing["data"]] == ["a", "b/c"]
    assert listing["data"][1] == orjson.loads(DIALECT.model("b/c", 5, 4096))


# --- what comes back --------------------------------------------------------------------------------------------------


def pi(said):
    return {k: said[k] for k in ("role", "content", "reasoning_content", "tool_calls") if k in said}


def qwen(said):
    blocks = [{"type": "text", "text": said["content"]}] if said["content"] else None
    return {**pi(said), "content": blocks}


def opencode(said):
    return {**pi(said), "content": said["content"] or ""}


def mini(said):
    return {
        **said,
        "tool_calls": said.get("tool_calls"),
        "function_call": None,
        "annotations": [],
        "audio": None,
        "provider_specific_fields": {"refusal": None, "reasoning_content": said.get("reasoning_content")},
    }


def openhands(said):
    kept = {k: v for k, v in said.items() if k not in ("reasoning_content", "refusal")}
    return {**kept, "content": [{"type": "text", "text": said["content"]}] if said["content"] else []}


@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("echo", [pi, qwen, opencode, mini, openhands])
@given(message=assistant_messages(), streaming=st.booleans())
def test_what_a_harness_echoes_is_what_we_said(echo, message, streaming):
    answer = reply(*message.parts)
    said = joined(streamed(PLAIN, answer))["message"] if streaming else whole(answer)["choices"][0]["message"]
    history = [{"role": "user", "content": "hi"}, echo(said), {"role": "user", "content": "go on"}]
    # Some harnesses escape what is not ASCII, some do not.
    for ascii_only in (True, False):
        back = parse(json.dumps(request(messages=history), ensure_ascii=ascii_only).encode()).messages[1]
        assert (back.role, back.text, back.tool_calls) == (Role.ASSISTANT, message.text, message.tool_calls)
        assert back.reasoning == (None if echo is openhands else message.reasoning)
        if echo is not openhands:
            assert back == Message(Role.ASSISTANT, message.parts)
