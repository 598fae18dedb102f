# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The contents of Gemini requests: whose they are, reasoning, calls and the results that belong to them."""

from __future__ import annotations

import pytest

from nemo_polar.types import (
    Image,
    Message,
    Reasoning,
    Role,
    Text,
    ToolCall,
    ToolResult,
)
from nemo_polar.wire.gemini.signature import Piece, sign
from tests.support.gemini import (
    HELLO,
    SYNTHETIC,
    function_call,
    function_response,
    model,
    parse,
    talk,
    user,
)


def test_contents_of_the_model_in_a_row_are_one_message():
    texts = [model({"text": "a"}), model({"text": "b"}, function_call()), model({"text": "c"}), model({"text": ""})]
    call = parse(talk(HELLO, *texts, user({"text": "x"}), user({"text": "y"})))
    arguments = '{"place":"Oslo"}'
    assert call.messages[1].parts == (Text("ab"), ToolCall("call-0", "weather", arguments), Text("c"))
    assert [m.text for m in call.messages[2:]] == ["x", "y"], "those of the user are not"


def test_an_empty_reply_comes_back_as_an_empty_message():
    for empty in (model(), {"role": "model"}, model({"text": ""}), model({}), model({"thought": True})):
        assert parse(talk(HELLO, empty, HELLO)).messages[1] == Message(Role.ASSISTANT, ())


def test_reasoning_comes_back_as_a_thought_or_from_a_signature():
    signature = sign(Piece(0, "hm"))
    said = Message(Role.ASSISTANT, (Reasoning("hm"), Text("t")))
    for parts in (
        [{"text": "hm", "thought": True}, {"text": "t"}],
        [{"text": "t", "thoughtSignature": signature}],
        [{"text": "h", "thought": True}, {"text": "m", "thought": True}, {"text": "t", "thoughtSignature": signature}],
        [{"thoughtSignature": signature}, {"text": "t"}],
    ):
        call = parse(talk(HELLO, model(*parts)))
        assert call.messages[1] == said and call.dropped == ()


def test_a_signature_of_somebody_else_is_left_out_by_name():
    call = parse(talk(HELLO, model({**function_call(), "thoughtSignature": SYNTHETIC})))
    assert call.messages[1].reasoning is None and call.dropped == ("contents.parts.thoughtSignature: not one of ours",)


@pytest.mark.parametrize(
    ("args", "arguments"),
    [
        ({"b": 1.0, "a": [1, None]}, '{"b":1.0,"a":[1,null]}'),
        ({}, "{}"),
        (..., "{}"),
        ("{bad", "{bad"),
        ('{"a": 1}', '{"a": 1}'),
        ({"__malformed_arguments__": "{bad"}, "{bad"),
        ({"__malformed_arguments__": 1}, '{"__malformed_arguments__":1}'),
        ({"__malformed_arguments__": "x", "y": 1}, '{"__malformed_arguments__":"x","y":1}'),
    ],
)
def test_arguments(args, arguments):
    called = {"name": "f"} if args is ... else {"name": "f", "args": args}
    assert parse(talk(HELLO, model({"functionCall": called}))).messages[1].tool_calls[0].arguments == arguments


# --- results and their calls ------------------------------------------------------------------------------------------


def results(*responses, calls=None):
    """Which call each result was matched with, by the place of the call."""
    made = calls or [function_call(), function_call(), function_call("time", {})]
    call = parse(talk(HELLO, model(*made), user(*responses)))
    ids = [c.id for c in call.messages[1].tool_calls]
    assert [p.name for p in call.messages[2].parts] == [
        call.messages[1].tool_calls[ids.index(p.call_id)].name for p in call.messages[2].parts
    ]
    return [ids.index(part.call_id) for part in call.messages[2].parts]


def test_results_without_ids_go_by_name_and_order():
    weather, time = function_response(), function_response("time")
    assert results(weather, weather, time) == [0, 1, 2]
    assert results(time, weather, weather) == [2, 0, 1]


def test_results_with_ids_go_by_id_in_any_order():
    calls = [function_call(id="a"), function_call(id="b"), function_call("time", {}, id="c")]
    responses = [function_response("time", id="c"), function_response(id="b"), function_response(id="a")]
    assert results(*responses, calls=calls) == [2, 1, 0]
    unnamed = {"functionResponse": {"id": "b", "response": {}}}
    assert results(unnamed, calls=calls) == [1]


def test_an_id_that_the_calls_do_not_have_goes_by_name():
    assert results(function_response(id="x"), function_response(id="y"), function_response("time", id="z")) == [0, 1, 2]


def test_results_may_come_in_several_contents():
    call = parse(talk(HELLO, model(function_call(), function_call()), user(function_response()), user(function_response())))
    assert [m.role for m in call.messages] == [Role.USER, Role.ASSISTANT, Role.TOOL, Role.TOOL]
    assert [m.parts[0].call_id for m in call.messages[2:]] == ["call-0", "call-1"]


def test_the_ids_of_calls_without_one_count_through_the_conversation():
    turn = [model(function_call(), function_call("time", {})), user(function_response(), function_response("time"))]
    call = parse(talk(HELLO, *turn, *turn))
    assert [c.id for m in call.messages for c in m.tool_calls] == ["call-0", "call-1", "call-2", "call-3"]
    assert [p.call_id for p in call.messages[4].parts] == ["call-2", "call-3"]


@pytest.mark.parametrize("role", ["user", "function", None])
def test_a_content_of_results_alone_is_one_of_tools(role):
    content = {"parts": [function_response()], **({"role": role} if role else {})}
    assert parse(talk(HELLO, model(function_call()), content)).messages[2].role is Role.TOOL
    mixed = user(function_response(), {"text": "and"})
    assert parse(talk(HELLO, model(function_call()), mixed)).messages[2].role is Role.USER


@pytest.mark.parametrize(
    ("response", "text", "is_error"),
    [
        ({"output": "rain"}, "rain", False),
        ({"result": "rain"}, "rain", False),
        ({"error": "no such place"}, "no such place", True),
        ({"output": {"b": 1.0, "a": None}}, '{"b":1.0,"a":null}', False),
        ({"output": 7}, "7", False),
        ({"output": "a", "error": "b"}, '{"output":"a","error":"b"}', False),
        ({"temperature": 3}, '{"temperature":3}', False),
        ({}, "{}", False),
    ],
)
def test_what_a_result_says(response, text, is_error):
    call = parse(talk(HELLO, model(function_call()), user(function_response(response=response))))
    assert call.messages[2].parts == (ToolResult("call-0", (Text(text),), "weather", is_error),)


def test_an_empty_result_has_no_text():
    call = parse(talk(HELLO, model(function_call()), user(function_response(response={"output": ""}))))
    assert call.messages[2].parts == (ToolResult("call-0", (), "weather"),)


def test_images_of_a_user_and_of_a_result():
    inline = {"inlineData": {"mimeType": "image/png", "data": "AA_-"}}
    linked = {"fileData": {"mimeType": "image/jpeg", "fileUri": "https://example.org/a.jpg"}}
    call = parse(talk(user({"text": "a"}, inline, linked), model(function_call()), user(function_response(parts=[inline]))))
    images = (Image("data:image/png;base64,AA/+", "image/png"), Image("https://example.org/a.jpg", "image/jpeg"))
    assert call.messages[0].parts == (Text("a"), *images)
    assert call.messages[2].parts == (ToolResult("call-0", (Text("rain"), images[0]), "weather"),)
