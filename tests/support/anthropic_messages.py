# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Requests, replies and stream readers for tests of the Anthropic Messages dialect."""

from __future__ import annotations

import json
from typing import Any

import orjson
from hypothesis import strategies as st

from nemo_polar.types import FinishReason, Message, ModelCall, Part, Reasoning, Reply, Role, Text, ToolCall, Usage
from nemo_polar.wire.anthropic.dialect import Anthropic
from nemo_polar.wire.base import Route
from tests.support.openai_chat import deltas

DIALECT = Anthropic()
GENERATE = Route("generate")
EPHEMERAL = {"type": "ephemeral"}
WEATHER = {
    "name": "weather",
    "description": "Weather of a place.",
    "input_schema": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
}
SHOWN = {"type": "adaptive"}


def request(**fields: Any) -> dict[str, Any]:
    """A valid request with ``fields`` set; a field given as ``...`` is left out."""
    whole = {"model": "polar", "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}], **fields}
    return {k: v for k, v in whole.items() if v is not ...}


def parse(body: Any, route: Route = GENERATE) -> ModelCall:
    return DIALECT.parse(body if isinstance(body, bytes) else orjson.dumps(body), route).call


def said(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def heard(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def text(value: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **fields}


def use(id: str = "c1", name: str = "weather", **fields: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": {"place": "Oslo"}, **fields}


def result(id: str = "c1", content: Any = "rain", **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": content, **fields}


def cycle(**call: Any) -> list[dict[str, Any]]:
    """A user message, an assistant's call of ``weather`` (with ``call`` fields set) and its result."""
    return [{"role": "user", "content": "weather in Oslo?"}, said(use(**call)), heard(result())]


def reply(
    *parts: Part,
    finish: FinishReason = FinishReason.STOP,
    stop: str | None = None,
    usage: Usage = Usage(11, 7, 5, 3),
) -> Reply:
    return Reply("r1", 1_700_000_000, "polar", Message(Role.ASSISTANT, parts), finish, usage, stop)


def streamed(call: ModelCall, whole: Reply, width: int = 3) -> bytes:
    """The complete stream for ``whole``, with keep-alives between and after."""
    encoder = DIALECT.stream(call, whole.id, whole.created, whole.model, whole.usage.prompt_tokens)
    out = [encoder.start()]
    for delta in deltas(whole.message, width):
        out += [encoder.keep_alive(), encoder.delta(delta)]
    return b"".join([*out, encoder.keep_alive(), encoder.finish(whole)])


def events(stream: bytes) -> list[dict[str, Any]]:
    """The data of each event, decoded; its name is its type."""
    found = []
    for block in stream.decode().removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        decoded = orjson.loads(data.removeprefix("data: "))
        assert name == f"event: {decoded['type']}"
        found.append(decoded)
    return found


def joined(stream: bytes) -> dict[str, Any]:
    """What a client makes of a stream, in the shape of a whole answer; the ``input`` of a call stays a string."""
    first, *rest = events(stream)
    assert first["type"] == "message_start" and rest[-1]["type"] == "message_stop"
    message = first["message"]
    is_open = False
    for event in rest[:-1]:
        if event["type"] == "ping":
            continue
        if event["type"] == "message_delta":
            assert not is_open
            message |= event["delta"]
            message["usage"] |= event["usage"]
            continue
        assert message["stop_reason"] is None, "nothing but the end follows the stop reason"
        if event["type"] == "content_block_start":
            assert not is_open and event["index"] == len(message["content"])
            block = event["content_block"]
            if block["type"] == "tool_use":
                assert block["input"] == {}
                block["input"] = ""
            message["content"].append(block)
            is_open = True
            continue
        assert is_open and event["index"] == len(message["content"]) - 1
        block = message["content"][-1]
        if event["type"] == "content_block_stop":
            is_open = False
            continue
        delta = event["delta"]
        kind, field = {
            "text_delta": ("text", "text"),
            "thinking_delta": ("thinking", "thinking"),
            "signature_delta": ("thinking", "signature"),
            "input_json_delta": ("tool_use", "input"),
        }[delta["type"]]
        assert block["type"] == kind
        block[field] += delta.get(field, delta.get("partial_json", ""))
    return message


def claude_input(arguments: str) -> Any:
    """What Claude Code (2.1.332) makes of a streamed ``input``, numbers as JavaScript has them."""
    if arguments.strip() in ("", "null"):
        return {}
    try:
        return javascript(json.loads(arguments, parse_constant=_refuse))
    except ValueError:
        return {"__unparsedToolInput": {"raw": arguments[:2048], "len": len(arguments)}}


def javascript(value: Any) -> Any:
    """Parsed JSON as ``JSON.stringify`` writes it: all numbers are doubles, whole ones without a point."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            return None
        if number != number or abs(number) == float("inf"):
            return None
        return int(number) if number.is_integer() and abs(number) < 2**63 else number
    if isinstance(value, list):
        return [javascript(v) for v in value]
    return {k: javascript(v) for k, v in value.items()} if isinstance(value, dict) else value


def _refuse(constant: str) -> None:
    raise ValueError(constant)


# --- random material --------------------------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
numbers = (
    st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([1.0, -0.0, 2**53 + 1, 2**64, 1e300])
)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(texts, values, max_size=4)


@st.composite
def spelled(draw: st.DrawFn) -> str:
    """An object in one of the spellings that a model may sample."""
    separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " : ")]))
    return json.dumps(draw(objects), separators=separators, ensure_ascii=draw(st.booleans()))


broken = [
    "{",
    '{"a": 1',
    "[1, 2]",
    '"x"',
    "7",
    "{'a': 1}",
    '{"a": NaN}',
    '{"a":1}}',
    '{"a":1e999}',
    '{"a":"\\ud83d"}',
    "",
    "null",
]
malformed = st.sampled_from(broken) | texts


def messages(arguments: st.SearchStrategy[str] = spelled() | malformed) -> st.SearchStrategy[Message]:
    """Reasoning, text and calls in any order, as our parser makes them: no two texts in a row."""
    calls = st.builds(ToolCall, id=texts, name=texts, arguments=arguments)
    parts = st.lists(st.builds(Reasoning, texts) | st.builds(Text, texts) | calls, max_size=6)
    return parts.map(lambda found: Message(Role.ASSISTANT, tuple(_distinct(found))))


def _distinct(parts: list[Part]) -> list[Part]:
    """Calls under ids of their own."""
    return [ToolCall(f"call_{i}", p.name, p.arguments) if isinstance(p, ToolCall) else p for i, p in enumerate(parts)]
