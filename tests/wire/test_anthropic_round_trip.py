# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What a client sends back of a reply is the reply: the same fingerprint, so that the conversation goes on one line.

Where it cannot be, it forks; those cases are at the end, each by name.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from nemo_polar.tokens.canonical import message_digest, reasoning_digest
from nemo_polar.types import Message, Reasoning, Role, Text, ToolCall
from tests.support.anthropic_messages import (
    DIALECT,
    EPHEMERAL,
    SHOWN,
    claude_input,
    javascript,
    joined,
    messages,
    parse,
    reply,
    request,
    spelled,
    streamed,
)

Blocks = list[dict[str, Any]]
Echo = Callable[[Blocks], Blocks]
MODES = [
    parse(request()),
    parse(request(thinking=SHOWN)),
    parse(request(thinking={"type": "adaptive", "display": "omitted"})),
]


# --- what clients do to the blocks of a reply -------------------------------------------------------------------------


def everything(blocks: Blocks) -> Blocks:
    return blocks


def without_thinking(blocks: Blocks) -> Blocks:
    return [b for b in blocks if b["type"] != "thinking"]


def without_the_text_of_thinking(blocks: Blocks) -> Blocks:
    return [{**b, "thinking": ""} if b["type"] == "thinking" else b for b in blocks]


def without_signatures(blocks: Blocks) -> Blocks:
    return [{k: v for k, v in b.items() if k != "signature"} for b in blocks if b.get("thinking") != ""]


def thinking_sealed(blocks: Blocks) -> Blocks:
    return [{"type": "redacted_thinking", "data": b["signature"]} if b["type"] == "thinking" else b for b in blocks]


def thinking_trimmed(blocks: Blocks) -> Blocks:
    return [{**b, "thinking": b["thinking"].strip()} if b["type"] == "thinking" else b for b in blocks]


def inputs_as_javascript_writes_them(blocks: Blocks) -> Blocks:
    def again(block: dict[str, Any]) -> dict[str, Any]:
        return {**block, "input": dict(sorted(javascript(block["input"]).items()))}

    return [again(b) if b["type"] == "tool_use" else b for b in blocks]


def a_cache_mark_on_the_last(blocks: Blocks) -> Blocks:
    return [*blocks[:-1], {**blocks[-1], "cache_control": EPHEMERAL}] if blocks else blocks


def text_merged_and_trimmed(blocks: Blocks) -> Blocks:
    whole = "".join(b["text"] for b in blocks if b["type"] == "text").strip()
    return [*([{"type": "text", "text": whole}] if whole else []), *(b for b in blocks if b["type"] != "text")]


ECHOES = [
    everything,
    without_thinking,
    without_the_text_of_thinking,
    without_signatures,
    thinking_sealed,
    thinking_trimmed,
    inputs_as_javascript_writes_them,
    a_cache_mark_on_the_last,
    text_merged_and_trimmed,
]


def one_message(blocks: Blocks) -> list[dict[str, Any]]:
    return [{"role": "assistant", "content": blocks}]


def a_message_a_block(blocks: Blocks) -> list[dict[str, Any]]:
    return [{"role": "assistant", "content": [b]} for b in blocks] or one_message([])


def a_string_if_it_can_be(blocks: Blocks) -> list[dict[str, Any]]:
    if [b["type"] for b in blocks] == ["text"]:
        return [{"role": "assistant", "content": blocks[0]["text"]}]
    return one_message(blocks)


def sent_back(history: list[dict[str, Any]], *, ascii_only: bool = False) -> Message:
    """The assistant message that is read from a request with ``history`` in it."""
    asked = {"role": "user", "content": "go"}
    body = request(messages=[asked, *history, asked])
    read = parse(json.dumps(body, ensure_ascii=ascii_only).encode()).messages
    assert [m.role for m in read] == [Role.USER, Role.ASSISTANT, Role.USER]
    return read[1]


def whole_blocks(message: Message, mode: int) -> Blocks:
    return json.loads(DIALECT.reply(MODES[mode], reply(*message.parts)))["content"]


def streamed_blocks(message: Message, mode: int, read_input: Callable[[str], Any]) -> Blocks:
    got = joined(streamed(MODES[mode], reply(*message.parts)))["content"]
    return [{**b, "input": read_input(b["input"])} if b["type"] == "tool_use" else b for b in got]


def assert_same_turn(read: Message, said: Message) -> None:
    assert message_digest(b"", read, {}) == message_digest(b"", said, {})
    assert reasoning_digest(read) in (reasoning_digest(said), None)
    assert [c.id for c in read.tool_calls] == [c.id for c in said.tool_calls]


# --- what merges ------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("echo", ECHOES)
@given(
    message=messages(),
    mode=st.sampled_from([0, 1, 2]),
    form=st.sampled_from([one_message, a_message_a_block, a_string_if_it_can_be]),
    ascii_only=st.booleans(),
)
def test_whole_answers_come_back_as_what_we_said(echo, message, mode, form, ascii_only):
    blocks = echo(whole_blocks(message, mode))
    assert_same_turn(sent_back(form(blocks), ascii_only=ascii_only), message)


def survives_claude_code(message: Message) -> bool:
    return all(
        len(c.arguments) <= 2048 and c.arguments.strip() not in ("", "null") and "\\ud83d" not in c.arguments
        for c in message.tool_calls
    )


@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("echo", ECHOES)
@given(message=messages(), mode=st.sampled_from([0, 1, 2]))
def test_streams_come_back_from_claude_code_as_what_we_said(echo, message, mode):
    assume(survives_claude_code(message))
    if echo is inputs_as_javascript_writes_them:
        assume(all(isinstance(claude_input(c.arguments), dict) for c in message.tool_calls))
    blocks = echo(streamed_blocks(message, mode, claude_input))
    assert_same_turn(sent_back(one_message(blocks)), message)


@settings(max_examples=60, deadline=None)
@given(message=messages(spelled()), mode=st.sampled_from([0, 1, 2]))
def test_streams_come_back_from_a_plain_client_as_what_we_said(message, mode):
    assert_same_turn(sent_back(one_message(streamed_blocks(message, mode, json.loads))), message)


@settings(max_examples=60, deadline=None)
@given(messages())
@example(Message(Role.ASSISTANT, (Reasoning(" a\n"), Text("b"), Reasoning("c "))))
def test_shown_or_sealed_the_reasoning_comes_back_to_the_character(message):
    for mode, echo in ((1, everything), (1, thinking_trimmed), (2, everything), (1, thinking_sealed)):
        assert sent_back(one_message(echo(whole_blocks(message, mode)))).reasoning == message.reasoning


def test_edited_thinking_counts_as_it_was_sent():
    said = Message(Role.ASSISTANT, (Reasoning("I must not."), Text("ok")))
    blocks = whole_blocks(said, 1)
    blocks[0]["thinking"] = "I must."
    assert sent_back(one_message(blocks)).reasoning == "I must."


@pytest.mark.parametrize(
    "arguments",
    [
        '{"a": 1.0}',
        '{"a": -0.0, "b": 1e2, "c": 1E-7}',
        '{"a": 9007199254740993}',
        '{"a": 123456789012345678901234567890}',
        '{"a": 1, "a": 2}',
        '{"b": [1, {"d": 2, "c": 3}], "a": null}',
        '{ "k" : "\\u00e9\\/\\n" }',
        '{"__proto__": {"x": 1}}',
        '{"": {}}',
        "{" + '"a":{' * 200 + "}" * 201,
        "{" + '"a":{' * 400 + "}" * 401,
    ],
    ids=lambda a: a[:24],
)
def test_inputs_come_back_whoever_parsed_them(arguments):
    said = Message(Role.ASSISTANT, (ToolCall("c", "f", arguments),))
    for blocks in (
        whole_blocks(said, 0),
        inputs_as_javascript_writes_them(whole_blocks(said, 0)),
        streamed_blocks(said, 0, claude_input),
        streamed_blocks(said, 0, json.loads),
    ):
        assert_same_turn(sent_back(one_message(blocks)), said)


@pytest.mark.parametrize("arguments", ["{", "x" * 2048, '{"command": "ls', "[1, 2]", '"x"', "é\n{"])
def test_a_malformed_call_comes_back_from_claude_code_as_it_was_sampled(arguments):
    said = Message(Role.ASSISTANT, (ToolCall("c", "f", arguments, malformed=True),))
    read = sent_back(one_message(streamed_blocks(said, 0, claude_input)))
    assert_same_turn(read, said)
    if arguments not in ("[1, 2]", '"x"'):
        assert read.tool_calls[0].arguments == arguments


# --- what forks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "echo"),
    [
        pytest.param((ToolCall("c", "f", "x" * 2049),), everything, id="malformed and long: the client keeps 2048 characters"),
        pytest.param(
            (ToolCall("c", "f", '{"a":"\\ud83d"}'),), everything, id="half an emoji: no JSON body can carry it to us and back"
        ),
        pytest.param(
            (ToolCall("c", "f", '{"__unparsedToolInput":{"raw":"x","len":1}}'),), everything, id="a wrapper that was sampled"
        ),
        pytest.param(
            (Text("a \n"), ToolCall("c", "f", "{}"), Text("b")),
            lambda blocks: [{**b, "text": b["text"].strip()} if b["type"] == "text" else b for b in blocks],
            id="each text trimmed, not only the ends",
        ),
    ],
)
def test_streams_that_cannot_come_back_as_what_we_said(parts, echo):
    said = Message(Role.ASSISTANT, parts)
    read = sent_back(one_message(echo(streamed_blocks(said, 0, claude_input))), ascii_only=True)
    assert message_digest(b"", read, {}) != message_digest(b"", said, {})
