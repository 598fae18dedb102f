# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Anthropic answers: the whole one and the stream say the same, however the reply was cut into deltas."""

from itertools import pairwise

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_polar.errors import Unavailable
from nemo_polar.types import FinishReason, Reasoning, ReasoningDelta, Text, TextDelta, ToolCall
from nemo_polar.wire.anthropic.input import tool_input
from nemo_polar.wire.seal import seal, unseal
from tests.support.anthropic_messages import DIALECT, SHOWN, events, joined, messages, parse, reply, request, streamed

PLAIN = parse(request())
THINKING = parse(request(thinking=SHOWN))
OMITTED = parse(request(thinking={"type": "enabled", "budget_tokens": 1024, "display": "omitted"}))
CALLS = [PLAIN, THINKING, OMITTED]


def whole(answer, call=THINKING):
    return orjson.loads(DIALECT.reply(call, answer))


def test_the_shape_of_a_whole_answer():
    answer = reply(
        Reasoning("hm"),
        Text("a"),
        Text("b"),
        ToolCall("c1", "f", '{"x": 1.0}'),
        Text("c"),
        ToolCall("c2", "g", "{bad\U0001f600"),
    )
    assert whole(answer) == {
        "id": "msg_r1",
        "type": "message",
        "role": "assistant",
        "model": "polar",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": seal("hm")},
            {"type": "text", "text": "ab"},
            {"type": "tool_use", "id": "c1", "name": "f", "input": {"x": 1.0}},
            {"type": "text", "text": "c"},
            {
                "type": "tool_use",
                "id": "c2",
                "name": "g",
                "input": {"__unparsedToolInput": {"raw": "{bad\U0001f600", "len": 6}},
            },
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 6,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 5,
            "output_tokens": 7,
            "output_tokens_details": {"thinking_tokens": 3},
        },
    }


@pytest.mark.parametrize(
    "arguments", ['{"b": 1.0,\n "a": [9007199254740993, 123456789012345678901234567890]}', '{"a":1,"a":2}']
)
def test_an_object_stands_in_a_whole_answer_character_for_character(arguments):
    assert arguments.encode() in DIALECT.reply(PLAIN, reply(ToolCall("c", "f", arguments)))


@pytest.mark.parametrize(
    "arguments", ["", "{", "[1]", "7", "null", '{"a": NaN}', '{"a": 1e999}', '{"a":"\\ud83d"}', '{"__unparsedToolInput": 1}']
)
def test_what_is_no_object_is_wrapped_as_it_is(arguments):
    (block,) = whole(reply(ToolCall("c", "f", arguments)))["content"]
    assert block["input"] == {"__unparsedToolInput": {"raw": arguments, "len": len(arguments)}}


def test_an_empty_reply_has_no_content():
    answer = whole(reply(Text(""), Reasoning("")))
    assert (answer["content"], answer["stop_reason"]) == ([], "end_turn")


def test_thinking_is_shown_only_to_those_who_asked_for_it():
    answer = reply(Text("a"), Reasoning("secret"), Text("b"))
    assert [b["type"] for b in whole(answer)["content"]] == ["text", "thinking", "text"]
    assert whole(answer, PLAIN)["content"] == [{"type": "text", "text": "ab"}]
    omitted = whole(answer, OMITTED)["content"][1]
    assert omitted["thinking"] == "" and unseal(omitted["signature"]) == "secret"
    for call in (PLAIN, OMITTED):
        assert b"secret" not in DIALECT.reply(call, answer) + streamed(call, answer)


@pytest.mark.parametrize(
    ("finish", "calls", "stop", "said"),
    [
        (FinishReason.STOP, False, None, ("end_turn", None)),
        (FinishReason.STOP, False, "END", ("stop_sequence", "END")),
        (FinishReason.STOP, True, None, ("tool_use", None)),
        (FinishReason.STOP, True, "END", ("tool_use", None)),
        (FinishReason.LENGTH, False, None, ("max_tokens", None)),
        (FinishReason.LENGTH, True, None, ("max_tokens", None)),
        (FinishReason.ABORT, False, None, ("max_tokens", None)),
    ],
)
def test_stop_reasons(finish, calls, stop, said):
    answer = reply(Text("a"), *([ToolCall("c", "f", "{}")] if calls else []), finish=finish, stop=stop)
    for got in (whole(answer), joined(streamed(PLAIN, answer))):
        assert (got["stop_reason"], got["stop_sequence"]) == said


# --- streams ----------------------------------------------------------------------------------------------------------


def test_the_order_of_a_stream():
    answer = reply(Reasoning("r"), Text("t"), ToolCall("c", "f", "{bad"), ToolCall("d", "g", ""), Text("u"))
    encoder = DIALECT.stream(THINKING, "r1", 0, "polar", 11)
    assert [e["type"] for e in events(encoder.start())] == ["message_start", "ping"]
    stream = [e for e in events(streamed(THINKING, answer)) if e["type"] != "ping"]
    assert [(e["type"], e.get("index"), e.get("delta", {}).get("type")) for e in stream] == [
        ("message_start", None, None),
        ("content_block_start", 0, None),
        ("content_block_delta", 0, "thinking_delta"),
        ("content_block_delta", 0, "signature_delta"),
        ("content_block_stop", 0, None),
        ("content_block_start", 1, None),
        ("content_block_delta", 1, "text_delta"),
        ("content_block_stop", 1, None),
        ("content_block_start", 2, None),
        ("content_block_delta", 2, "input_json_delta"),
        ("content_block_stop", 2, None),
        ("content_block_start", 3, None),
        ("content_block_delta", 3, "input_json_delta"),
        ("content_block_stop", 3, None),
        ("content_block_start", 4, None),
        ("content_block_delta", 4, "text_delta"),
        ("content_block_stop", 4, None),
        ("message_delta", None, None),
        ("message_stop", None, None),
    ]
    assert stream[0]["message"]["usage"]["input_tokens"] == 11 and stream[0]["message"]["stop_reason"] is None
    assert stream[9]["delta"]["partial_json"] == "{bad"


@settings(max_examples=200, deadline=None)
@given(messages(), st.integers(1, 50), st.sampled_from(FinishReason), st.sampled_from(CALLS))
def test_a_stream_joined_is_the_whole_answer(message, width, finish, call):
    answer = reply(*message.parts, finish=finish)
    got = joined(streamed(call, answer, width))
    for block in got["content"]:
        if block["type"] == "tool_use":
            block["input"] = orjson.loads(orjson.dumps(tool_input(block["input"])))
    assert got == whole(answer, call)


@settings(max_examples=100, deadline=None)
@given(messages(), st.integers(1, 50), st.sampled_from(CALLS))
def test_every_delta_puts_something_on_the_wire(message, width, call):
    """Reasoning that is not shown must not be silence: clients give up on that."""
    encoder = DIALECT.stream(call, "r", 0, "polar", 1)
    for part in message.parts:
        kind = {Text: TextDelta, Reasoning: ReasoningDelta}.get(type(part))
        if kind is not None and isinstance(part, Text | Reasoning):
            assert all(encoder.delta(kind(piece)) for piece in part.text)


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60))
def test_no_line_reader_splits_an_event(text):
    stream = DIALECT.stream(PLAIN, text, 0, text, 1)
    for part in (stream.start(), stream.delta(TextDelta(text))):
        assert len(part.decode().splitlines()) == 6  # two events: name, data, blank line
        events(part)


def test_an_error_ends_a_stream_without_the_sign_that_it_is_complete():
    encoder = DIALECT.stream(PLAIN, "r", 0, "polar", 1)
    stream = encoder.start() + encoder.delta(TextDelta("a")) + encoder.error(Unavailable("The engine is gone."))
    *before, last = events(stream)
    assert last == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "The engine is gone."},
        "request_id": None,
    }
    assert all(event["type"] not in ("message_stop", "message_delta") for event in before)


def test_blocks_are_never_interleaved():
    encoder = DIALECT.stream(THINKING, "r", 0, "polar", 1)
    pieces = [TextDelta("a"), ReasoningDelta("b"), TextDelta("c"), ReasoningDelta("d"), ReasoningDelta("e")]
    stream = encoder.start() + b"".join(map(encoder.delta, pieces)) + encoder.finish(reply())
    content = joined(stream)["content"]
    assert all(a["type"] != b["type"] for a, b in pairwise(content)) and len(content) == 4
