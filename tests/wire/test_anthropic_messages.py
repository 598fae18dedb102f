# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Messages of Anthropic requests: every role and block, what is left out of them, what is refused and under which name."""

from itertools import permutations

import orjson
import pytest

from nemo_polar.errors import BadRequest
from nemo_polar.types import Image, Message, Reasoning, Role, Text, ToolCall, ToolResult
from nemo_polar.wire.seal import seal
from tests.support.anthropic_messages import EPHEMERAL, cycle, heard, parse, request, result, said, text, use

PIXEL = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
PIXEL_URL = "data:image/png;base64,iVBORw0KGgo="
GO = {"role": "user", "content": "go"}


def image(source):
    return {"type": "image", "source": source}


def document(**fields):
    return {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "doc"}, **fields}


def user(*blocks):
    return request(messages=[heard(*blocks)])


def assistant(*blocks):
    return request(messages=[GO, said(*blocks)])


def answered(content, **fields):
    """A request that ends in a tool result."""
    return request(messages=[*cycle()[:2], heard(result("c1", content, **fields))])


def test_every_role_and_block():
    read = parse(
        request(
            system=[text("You are "), text("brief.")],
            messages=[
                {"role": "system", "content": "s"},
                heard(text("u"), image(PIXEL), image({"type": "url", "url": "https://x/y"}), document()),
                {"role": "system", "content": [text("tokens left: 7")]},
                said(
                    {"type": "thinking", "thinking": "r", "signature": "Ab=="},
                    text("t"),
                    use("c1", "f", input={"b": 1.5, "a": [None, 2**60]}),
                    text("u"),
                    {"type": "redacted_thinking", "data": seal("sealed")},
                    use("c2", "g", input={}),
                ),
                heard(result("c1", [text("1"), image(PIXEL), document()], is_error=True), result("c2"), text("so?")),
                {"role": "assistant", "content": "done"},
            ],
        )
    )
    assert read.messages == (
        Message(Role.SYSTEM, (Text("You are "), Text("brief."))),
        Message(Role.SYSTEM, (Text("s"),)),
        Message(Role.USER, (Text("u"), Image(PIXEL_URL, "image/png"), Image("https://x/y"), Text("doc"))),
        Message(Role.SYSTEM, (Text("tokens left: 7"),)),
        Message(
            Role.ASSISTANT,
            (
                Reasoning("r"),
                Text("t"),
                ToolCall("c1", "f", '{"b":1.5,"a":[null,1152921504606846976]}'),
                Text("u"),
                Reasoning("sealed"),
                ToolCall("c2", "g", "{}"),
            ),
        ),
        Message(
            Role.USER,
            (
                ToolResult("c1", (Text("1"), Image(PIXEL_URL, "image/png"), Text("doc")), "f", is_error=True),
                ToolResult("c2", (Text("rain"),), "g"),
                Text("so?"),
            ),
        ),
        Message(Role.ASSISTANT, (Text("done"),)),
    )
    assert read.dropped == ()


@pytest.mark.parametrize("content", ["", [], [text("")]])
@pytest.mark.parametrize("role", ["user", "assistant", "system"])
def test_all_forms_of_empty_text_are_one(role, content):
    assert parse(request(messages=[{"role": role, "content": content}])).messages[0].parts == ()


@pytest.mark.parametrize("system", [..., None, "", []])
def test_no_system_is_no_message(system):
    assert len(parse(request(system=system)).messages) == 1


@pytest.mark.parametrize("content", [..., None, "", [], [text("")]])
def test_a_result_may_be_empty(content):
    body = answered(content)
    if content is ...:
        del body["messages"][2]["content"][0]["content"]
    assert parse(body).messages[2].parts == (ToolResult("c1", (), "weather"),)


@pytest.mark.parametrize("written", ["  a \n", "\r\n\t", "\u2028\x00\U0001f600", "<|im_end|>", "é" * 1000])
def test_text_is_kept_to_the_character(written):
    for content in (written, [text(written)]):
        assert parse(request(messages=[{"role": "user", "content": content}])).messages[0].text == written
        assert parse(answered(content)).messages[2].parts == (ToolResult("c1", (Text(written),), "weather"),)


# --- one form for what is the same ------------------------------------------------------------------------------------

TALK = [
    {"role": "user", "content": "go"},
    said(text("I go."), use("c1"), use("c2")),
    heard(result("c1", "1"), result("c2", "2"), text("and?")),
    {"role": "assistant", "content": "done"},
    {"role": "user", "content": "more"},
]


def marked(body, places):
    """``body`` with a cache mark on the last block of each of the messages in ``places``, made blocks if need be."""
    body = orjson.loads(orjson.dumps(body))
    for i in places:
        message = body["messages"][i]
        if isinstance(message["content"], str):
            message["content"] = [text(message["content"])]
        message["content"][-1]["cache_control"] = EPHEMERAL
    return body


@pytest.mark.parametrize("places", [[0], [1], [2], [2, 4], [0, 1, 2, 3, 4]])
def test_where_cache_marks_stand_does_not_show(places):
    plain = request(messages=TALK, system="s")
    read = parse(marked(plain, places))
    assert read.messages == parse(plain).messages
    assert read.dropped == ("cache_control: there is no prompt cache to steer",)


def test_a_mark_is_found_wherever_it_may_stand_and_only_there():
    for body in (
        request(system=[text("s", cache_control=EPHEMERAL)]),
        answered([text("x", cache_control=EPHEMERAL)]),
        answered("x", cache_control=EPHEMERAL),
        request(cache_control=EPHEMERAL),
        request(tools=[{"name": "f", "cache_control": EPHEMERAL}]),
    ):
        assert parse(body).dropped == ("cache_control: there is no prompt cache to steer",)
    data = parse(request(messages=cycle(input={"cache_control": {"type": "x"}})))
    assert data.messages[1].tool_calls[0].arguments == '{"cache_control":{"type":"x"}}' and data.dropped == ()


@pytest.mark.parametrize("order", list(permutations([0, 1, 2])))
def test_results_in_any_order_are_those_of_their_calls_in_order(order):
    results = [result(f"c{i}", str(i)) for i in range(3)]
    body = request(
        messages=[
            GO,
            said(*(use(f"c{i}") for i in range(3))),
            heard(*(results[i] for i in order[:2]), text("x"), results[order[2]]),
        ]
    )
    got = parse(body).messages[2].parts
    assert [p.call_id if isinstance(p, ToolResult) else p for p in got] == ["c0", "c1", Text("x"), "c2"]


def test_a_result_may_answer_any_earlier_call_and_of_two_calls_of_one_id_the_later():
    talk = [
        *cycle(),
        said(use("c1", "other"), use("c0")),
        heard(result("c1"), result("c0")),
        {"role": "assistant", "content": "wait"},
        heard(result("c1", "sun")),
    ]
    read = parse(request(messages=talk)).messages
    assert [p.name for m in read for p in m.parts if isinstance(p, ToolResult)] == ["weather", "other", "weather", "other"]


def test_assistant_messages_in_a_row_are_one_turn_and_user_messages_are_not():
    talk = [GO, GO, said(text("a")), said(use("c1")), {"role": "assistant", "content": "b"}, heard(result())]
    read = parse(request(messages=talk)).messages
    assert [m.role for m in read] == [Role.USER, Role.USER, Role.ASSISTANT, Role.USER]
    assert read[2].parts == (Text("a"), ToolCall("c1", "weather", '{"place":"Oslo"}'), Text("b"))


def test_a_prefill_is_the_last_message():
    assert parse(assistant(text("Once upon"))).messages[-1] == Message(Role.ASSISTANT, (Text("Once upon"),))


# --- thinking ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("block", "read", "phrase"),
    [
        ({"thinking": "r"}, "r", None),
        ({"thinking": "r", "signature": ""}, "r", None),
        ({"thinking": "r", "signature": "EuYB"}, "r", None),
        ({"thinking": "", "signature": seal("r")}, "r", None),
        ({"thinking": "r", "signature": seal(" r\n")}, " r\n", None),
        ({"thinking": "other", "signature": seal("r")}, "other", None),
        ({"thinking": "", "signature": ""}, None, None),
        ({"thinking": "", "signature": "EuYB"}, None, "messages.content.thinking: "),
        ({"thinking": "", "signature": seal("r")[:-3]}, None, "messages.content.thinking: "),
    ],
)
def test_signatures_of_ours_restore_the_text(block, read, phrase):
    call = parse(assistant({"type": "thinking", **block}, text("t")))
    assert call.messages[1].reasoning == read
    assert [p.startswith(phrase) for p in call.dropped] == [True] if phrase else call.dropped == ()


# --- what is left out -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "phrase"),
    [
        (user(text("a", citations=[{"type": "x"}])), "messages.content.citations: "),
        (user(text("a", x=1)), "unknown:messages.content.text.x"),
        (request(messages=[{"role": "user", "content": "a", "x": 1}]), "unknown:messages.x"),
        (user(document(title="t")), "messages.content.document.title: "),
        (user(document(context="t")), "messages.content.document.context: "),
        (assistant(use(caller={"type": "code_execution_20260120"})), "messages.content.caller: "),
        (assistant({"type": "redacted_thinking", "data": "EuYB"}), "messages.content.redacted_thinking: "),
        (answered("x", toolset_name="y"), "unknown:messages.content.tool_result.toolset_name"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_dropped_is_recorded_once_by_name(body, phrase):
    (recorded,) = parse(body).dropped
    assert recorded.startswith(phrase)
    body["messages"] = body["messages"] * 2
    assert parse(body).dropped == (recorded,)


def test_what_the_sdk_adds_to_a_block_is_not_noted():
    blocks = text("a", citations=None, parsed_output=None), use(caller={"type": "direct"}, toolset_name=None)
    assert parse(assistant(*blocks)).dropped == ()


def test_a_cut_emoji_in_tool_output_does_not_end_the_rollout():
    body = orjson.dumps(request(messages=cycle())).replace(b'"rain"', b'"rain\\ud83c"')
    assert parse(body).messages[2].parts == (ToolResult("c1", (Text("rain\ufffd"),), "weather"),)


# --- what is refused --------------------------------------------------------------------------------------------------

REFUSED = [
    (request(messages=...), "messages"),
    (request(messages=None), "messages"),
    (request(messages="hi"), "messages"),
    (request(messages=[]), "messages"),
    (request(messages=["hi"]), "messages[0]"),
    (request(messages=["hi"], system="s"), "messages[0]"),
    (request(messages=[{"content": "hi"}]), "messages[0].role"),
    (request(messages=[{"role": 1, "content": "hi"}]), "messages[0].role"),
    (request(messages=[{"role": "tool", "content": "hi"}]), "messages[0].role"),
    (request(messages=[{"role": "developer", "content": "hi"}]), "messages[0].role"),
    (request(messages=[{"role": "user"}]), "messages[0].content"),
    (request(messages=[{"role": "assistant", "content": None}]), "messages[0].content"),
    (request(messages=[{"role": "user", "content": 1}]), "messages[0].content"),
    (request(messages=[{"role": "user", "content": text("hi")}]), "messages[0].content"),
    (request(messages=[{"role": "user", "content": ["hi"]}]), "messages[0].content[0]"),
    (request(system=1), "system"),
    (request(system={"type": "text"}), "system"),
    (request(system=["s"]), "system[0]"),
    (request(system=[text("s"), image(PIXEL)]), "system[1].type"),
    (request(system=[{"type": "text", "text": 1}]), "system[0].text"),
    (request(messages=[{"role": "system", "content": [image(PIXEL)]}]), "messages[0].content[0].type"),
    (user({"text": "hi"}), "messages[0].content[0].type"),
    (user({"type": "text"}), "messages[0].content[0].text"),
    (user({"type": "text", "text": 1}), "messages[0].content[0].text"),
    (user(text("a", citations=1)), "messages[0].content[0].citations"),
    (user({"type": "hologram"}), "messages[0].content[0].type"),
    (user(use()), "messages[0].content[0].type"),
    (user({"type": "thinking", "thinking": "x"}), "messages[0].content[0].type"),
    (user({"type": "search_result", "source": "x"}), "messages[0].content[0].type"),
    (user({"type": "container_upload", "file_id": "x"}), "messages[0].content[0].type"),
    (assistant({"type": "server_tool_use", "id": "x"}), "messages[1].content[0].type"),
    (assistant({"type": "web_search_tool_result", "tool_use_id": "x"}), "messages[1].content[0].type"),
    (assistant(image(PIXEL)), "messages[1].content[0].type"),
    (assistant(result()), "messages[1].content[0].type"),
    (user({"type": "image"}), "messages[0].content[0].source"),
    (user(image("x")), "messages[0].content[0].source"),
    (user(image({"type": "file", "file_id": "x"})), "messages[0].content[0].source.type"),
    (user(image({"type": "url"})), "messages[0].content[0].source.url"),
    (user(image({"type": "base64", "data": "x"})), "messages[0].content[0].source.media_type"),
    (user(image({**PIXEL, "data": ""})), "messages[0].content[0].source.data"),
    (
        user(document(source={"type": "base64", "media_type": "application/pdf", "data": "x"})),
        "messages[0].content[0].source.type",
    ),
    (user(document(source={"type": "text"})), "messages[0].content[0].source.data"),
    (user(result()), "messages[0].content[0].tool_use_id"),
    (user(result(None)), "messages[0].content[0].tool_use_id"),
    (request(messages=[*cycle(), heard(result("c2"))]), "messages[3].content[0].tool_use_id"),
    (request(messages=cycle()[::-1]), "messages[0].content[0].tool_use_id"),
    (answered(1), "messages[2].content[0].content"),
    (answered([1]), "messages[2].content[0].content[0]"),
    (answered([use()]), "messages[2].content[0].content[0].type"),
    (answered([{"type": "search_result"}]), "messages[2].content[0].content[0].type"),
    (answered("x", is_error="yes"), "messages[2].content[0].is_error"),
    (assistant({"type": "tool_use", "id": "c", "name": "f"}), "messages[1].content[0].input"),
    (assistant(use("")), "messages[1].content[0].id"),
    (assistant(use(7)), "messages[1].content[0].id"),
    (assistant(use("c", "")), "messages[1].content[0].name"),
    (assistant(use(caller="x")), "messages[1].content[0].caller"),
    (assistant({"type": "thinking"}), "messages[1].content[0].thinking"),
    (assistant({"type": "thinking", "thinking": "x", "signature": 1}), "messages[1].content[0].signature"),
    (assistant({"type": "redacted_thinking"}), "messages[1].content[0].data"),
]


@pytest.mark.parametrize(("body", "param"), REFUSED, ids=[f"{i}-{param}" for i, (_, param) in enumerate(REFUSED)])
def test_what_is_refused_is_named(body, param):
    with pytest.raises(BadRequest) as caught:
        parse(body)
    error = caught.value
    assert error.param == param
    assert error.code in {"invalid_type", "invalid_value", "missing_required_parameter", "unsupported_parameter"}
    assert param in error.message and "\n" not in error.message and len(error.message) < 300
