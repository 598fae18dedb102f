# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Responses answers: both forms say the same, and what a client echoes is what we said."""

from __future__ import annotations

import json

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nemo_polar.errors import BadRequest, ContextOverflow, NotFound, Overloaded, Unavailable
from nemo_polar.tokens.canonical import message_digest, reasoning_digest
from nemo_polar.types import FinishReason, Message, Reasoning, ReasoningDelta, Role, Text, TextDelta, ToolCall
from nemo_polar.wire.openai_responses.reply import freeform_text
from nemo_polar.wire.seal import seal
from tests.support.openai_responses import (
    CLIENTS,
    DIALECT,
    ENCRYPTED,
    GO_ON,
    HI,
    OTHER_ID,
    REPLY_ID,
    TOOLS,
    assistant_messages,
    codex,
    events,
    function_call,
    joined,
    output,
    parse,
    reply,
    request,
    streamed,
    whole,
    without_ids,
    without_reasoning,
)

PLAIN = parse(request())
FULL = parse(request(tools=TOOLS, include=ENCRYPTED))


def items(*parts, call=FULL, **fields):
    return whole(reply(*parts, **fields), call)["output"]


def test_the_items_of_a_reply():
    got = items(
        Reasoning("hm"),
        Text("a"),
        Text("b"),
        ToolCall("call_1", "weather", "{bad"),
        ToolCall("call_2", "crm__find", "{}"),
        ToolCall("call_3", "apply_patch", '{ "input": "x\\n" }'),
        ToolCall("call_4", "crm__note", '{"note": 1}'),
    )
    assert got == [
        {
            "id": f"rs_{REPLY_ID}_0",
            "type": "reasoning",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "hm"}],
            "status": "completed",
            "encrypted_content": seal("hm"),
        },
        {
            "id": f"msg_{REPLY_ID}_1",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "ab", "annotations": [], "logprobs": []}],
        },
        {
            "id": f"fc_{REPLY_ID}_2",
            "type": "function_call",
            "status": "completed",
            "call_id": "call_1",
            "name": "weather",
            "arguments": "{bad",
        },
        {
            "id": f"fc_{REPLY_ID}_3",
            "type": "function_call",
            "status": "completed",
            "call_id": "call_2",
            "name": "find",
            "namespace": "crm",
            "arguments": "{}",
        },
        {
            "id": f"ctc_{REPLY_ID}_4",
            "type": "custom_tool_call",
            "status": "completed",
            "call_id": "call_3",
            "name": "apply_patch",
            "input": "x\n",
        },
        {
            "id": f"ctc_{REPLY_ID}_5",
            "type": "custom_tool_call",
            "status": "completed",
            "call_id": "call_4_verbatim",
            "name": "note",
            "namespace": "crm",
            "input": '{"note": 1}',
        },
    ]


def test_reasoning_is_sealed_only_when_asked_for():
    assert "encrypted_content" not in items(Reasoning("hm"), call=PLAIN)[0]


@pytest.mark.parametrize("parts", [(), (Text(""),), (Reasoning("r"),), (Reasoning("r"), Text(""))])
def test_a_reply_that_says_nothing_has_a_message_to_echo(parts):
    *before, last = items(*parts)
    assert [i["type"] for i in before] == ["reasoning"] * any(isinstance(p, Reasoning) for p in parts)
    assert (last["type"], last["content"][0]["text"]) == ("message", "")
    assert joined(streamed(FULL, reply(*parts)))[0] == [*before, last]


def test_a_response_repeats_the_request():
    asked = request(
        instructions="Be brief.",
        tools=TOOLS,
        tool_choice={"type": "function", "name": "find", "namespace": "crm"},
        max_output_tokens=64,
        temperature=0.5,
        top_p=0.9,
        metadata={"a": "b"},
        reasoning={"effort": "high", "summary": "auto"},
        text={"verbosity": "low"},
        previous_response_id="resp_x",
        prompt_cache_key="k",
        safety_identifier="s",
        user="u",
        store=False,
        parallel_tool_calls=False,
        truncation="auto",
    )
    got = whole(reply(Text("t")), parse(asked))
    kept = ("instructions", "tools", "tool_choice", "max_output_tokens", "temperature", "top_p", "metadata", "reasoning")
    assert {k: got[k] for k in kept} == {k: asked[k] for k in kept}
    kept = ("previous_response_id", "prompt_cache_key", "safety_identifier", "user", "store", "parallel_tool_calls")
    assert {k: got[k] for k in kept} == {k: asked[k] for k in kept}
    assert got["text"] == {"format": {"type": "text"}, "verbosity": "low"}
    assert (got["truncation"], got["service_tier"], got["background"]) == ("disabled", "default", False)
    assert (got["id"], got["object"], got["model"], got["created_at"]) == (
        f"resp_{REPLY_ID}",
        "response",
        "polar",
        1_700_000_000,
    )
    assert got["usage"] == {
        "input_tokens": 11,
        "input_tokens_details": {"cached_tokens": 5, "cache_write_tokens": 0},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 3},
        "total_tokens": 18,
    }


@pytest.mark.parametrize(
    ("finish", "status", "event", "details"),
    [
        (FinishReason.STOP, "completed", "response.completed", None),
        (FinishReason.LENGTH, "incomplete", "response.incomplete", {"reason": "max_output_tokens"}),
        (FinishReason.ABORT, "incomplete", "response.incomplete", {"reason": "max_output_tokens"}),
    ],
)
def test_how_a_reply_ended(finish, status, event, details):
    answer = reply(Text("t"), ToolCall("call_1", "weather", "{}"), Text("cut"), finish=finish)
    got = whole(answer, FULL)
    assert (got["status"], got["incomplete_details"], got["error"]) == (status, details, None)
    assert [i["status"] for i in got["output"]] == ["completed", "completed", status]
    assert events(streamed(FULL, answer))[-1]["type"] == event


def test_what_was_cut_in_its_reasoning_says_so():
    assert [i["status"] for i in items(Reasoning("r"), finish=FinishReason.LENGTH)] == ["incomplete", "incomplete"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"input":""}', ""),
        ('\n{ "input" : "\\u00e9\\n" }', "é\n"),
        ('{"input":"a","input":"b"}', "b"),
        ("", None),
        ("{", None),
        ("null", None),
        ('"x"', None),
        ("{}", None),
        ('{"input":1}', None),
        ('{"input":null}', None),
        ('{"Input":"a"}', None),
        ('{"input":"a","x":1}', None),
        ('{"input":"\\ud83d"}', None),
        ('{"input":"a"} x', None),
    ],
)
def test_what_a_custom_tool_is_given(arguments, text):
    assert freeform_text(arguments) == text


# --- streams ----------------------------------------------------------------------------------------------------------


def test_the_order_of_a_stream():
    answer = reply(Reasoning("r"), Text("t"), ToolCall("call_1", "weather", "{}"), ToolCall("call_2", "apply_patch", ""))
    assert [e["type"].removeprefix("response.") for e in events(streamed(FULL, answer, keep_alives=False))] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "output_item.added",
        "custom_tool_call_input.done",
        "output_item.done",
        "completed",
    ]


@settings(max_examples=100, deadline=None)
@given(assistant_messages(), st.integers(1, 50), st.sampled_from(FinishReason), st.booleans(), st.booleans())
def test_a_stream_joined_is_the_whole_answer(message, width, finish, encrypted, keep_alives):
    call = parse(request(stream=True, tools=TOOLS, include=ENCRYPTED if encrypted else []))
    answer = reply(*message.parts, finish=finish)
    expected = whole(answer, call)
    got, last = joined(streamed(call, answer, width, keep_alives=keep_alives))
    assert last == expected
    assert got == expected["output"]


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60))
def test_no_line_reader_splits_an_event(text):
    encoder = DIALECT.stream(PLAIN, REPLY_ID, 0, "polar", 1)
    encoder.delta(TextDelta("a"))
    event = encoder.delta(TextDelta(text)).decode()
    assert len(event.splitlines()) == 3 and event.endswith("\n\n")
    assert orjson.loads(event.splitlines()[1].removeprefix("data: "))["delta"] == text


def test_a_model_name_cannot_break_the_frame():
    name = '"delta":"\n\ndata: x'
    stream = streamed(PLAIN, reply(Text("abcdef")))
    encoder = DIALECT.stream(PLAIN, REPLY_ID, 0, name, 1)
    odd = encoder.delta(TextDelta("a"))
    assert events(encoder.start() + odd)[0]["response"]["model"] == name
    assert joined(stream)[0][0]["content"][0]["text"] == "abcdef"


def test_a_keep_alive_is_an_event_that_says_nothing_new():
    encoder = DIALECT.stream(PLAIN, REPLY_ID, 0, "polar", 1)
    out = encoder.keep_alive() + encoder.keep_alive()
    first, *others = events(encoder.start() + out)
    assert [e["type"] for e in others] == ["response.in_progress"] * 3
    assert all(e["response"] == first["response"] for e in others)
    assert first["response"]["status"] == "in_progress" and first["response"]["usage"] is None


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (Unavailable("The engine is gone."), "server_error", "The engine is gone."),
        (ContextOverflow(9, 8), "context_length_exceeded", None),
        (Overloaded("Too many.", retry_after=2.0), "rate_limit_exceeded", "Too many. Please try again in 2s."),
    ],
)
def test_an_error_ends_a_stream_with_the_items_that_were_complete(error, code, message):
    encoder = DIALECT.stream(PLAIN, REPLY_ID, 0, "polar", 1)
    out = encoder.delta(ReasoningDelta("r")) + encoder.delta(TextDelta("half")) + encoder.error(error)
    last = events(encoder.start() + out)[-1]
    assert last["type"] == "response.failed" and last["response"]["status"] == "failed"
    assert last["response"]["error"]["code"] == code
    assert message is None or last["response"]["error"]["message"] == message
    assert [item["type"] for item in last["response"]["output"]] == ["reasoning"]


# --- errors -----------------------------------------------------------------------------------------------------------


def test_a_context_overflow_has_the_code_that_harnesses_compact_on():
    status, headers, body = DIALECT.error(ContextOverflow(130_000, 128_000))
    error = orjson.loads(body)["error"]
    assert (status, headers) == (400, {})
    assert (error["code"], error["type"], error["param"]) == ("context_length_exceeded", "invalid_request_error", "input")


def test_errors_name_the_field_of_this_api():
    def param(name):
        return orjson.loads(DIALECT.error(BadRequest("x", param=name))[2])["error"]["param"]

    assert [param("messages[2].content[0]"), param("messages"), param("input[1]"), param(None)] == [
        "input",
        "input",
        "input[1]",
        None,
    ]
    assert DIALECT.error(Unavailable("x", retry_after=0.2))[1] == {"Retry-After": "1"}


def test_tokens_are_not_counted():
    with pytest.raises(NotFound):
        DIALECT.count(1)


# --- what comes back --------------------------------------------------------------------------------------------------


def digests(message: Message) -> tuple[bytes, bytes | None]:
    return message_digest(b"", message, {}), reasoning_digest(message)


def talk(*entries, **fields):
    return parse(json.dumps(request(tools=TOOLS, input=[HI, *entries, GO_ON], **fields)).encode()).messages


@settings(max_examples=50, deadline=None)
@pytest.mark.parametrize("client", CLIENTS)
@given(message=assistant_messages(), streaming=st.booleans(), encrypted=st.booleans())
@example(message=Message(Role.ASSISTANT, ()), streaming=True, encrypted=True)
@example(
    message=Message(Role.ASSISTANT, (ToolCall("call_" + "a" * 24, "apply_patch", '{"input": "\\ud83d"}'),)),
    streaming=False,
    encrypted=False,
)
def test_what_a_client_echoes_is_what_we_said(client, message, streaming, encrypted):
    call = parse(request(tools=TOOLS, include=ENCRYPTED if encrypted else []))
    answer = reply(*message.parts)
    made = joined(streamed(call, answer))[0] if streaming else whole(answer, call)["output"]
    _, *rest = talk(*client(made))
    assert [m.role for m in rest] == [Role.ASSISTANT, Role.USER]
    text, reasoning = digests(message)
    assert digests(rest[0]) == (text, None if client is without_reasoning else reasoning)
    assert [c.id for c in rest[0].tool_calls] == [c.id for c in message.tool_calls]


@settings(max_examples=30, deadline=None)
@pytest.mark.parametrize("client", [codex, without_reasoning])
@given(first=assistant_messages(), second=assistant_messages())
def test_two_replies_with_nothing_between_stay_two(client, first, second):
    made = [whole(reply(*m.parts, id=i), FULL)["output"] for m, i in ((first, REPLY_ID), (second, OTHER_ID))]
    _, *got, _ = talk(*client(made[0]), *client(made[1]))
    assert [digests(m)[0] for m in got] == [digests(first)[0], digests(second)[0]]


def test_results_find_the_call_of_a_custom_tool_whose_input_was_passed_on_whole():
    made = items(ToolCall("call_1", "apply_patch", "{bad"), ToolCall("call_2", "apply_patch", '{"input":"x"}'))
    answered = [
        {"type": "custom_tool_call_output", "call_id": made[0]["call_id"], "output": "no"},
        output(made[1]["call_id"], "yes"),
    ]
    _, spoken, first, second, _ = talk(*without_ids(made), *answered)
    assert [c.arguments for c in spoken.tool_calls] == ["{bad", '{"input":"x"}']
    assert [m.parts[0].call_id for m in (first, second)] == ["call_1", "call_2"]
    assert first.parts[0].name == "apply_patch"


def test_results_put_behind_their_calls_come_after_the_reply_that_made_them():
    made = items(Text("t"), ToolCall("call_1", "weather", "{}"), ToolCall("call_2", "weather", "{}"))
    _, spoken, first, second, _ = talk(made[0], made[1], output("call_1"), made[2], output("call_2"))
    assert [c.id for c in spoken.tool_calls] == ["call_1", "call_2"]
    assert [m.parts[0].call_id for m in (first, second)] == ["call_1", "call_2"]
    # Without ids nothing says so.
    roles = [m.role for m in talk(*without_ids(made[:2]), output("call_1"), *without_ids(made[2:]), output("call_2"))]
    assert roles == [Role.USER, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT, Role.TOOL, Role.USER]


def test_ids_that_clients_make_up_split_nothing():
    entries = [function_call("a", id="fc_1"), function_call("b", id="msg_pi_3"), function_call("c", id=f"fc_{REPLY_ID}_0")]
    assert [len(m.tool_calls) for m in talk(*entries)] == [0, 3, 0]
