# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Requests, replies and stream readers for tests of the Chat Completions dialect."""

from __future__ import annotations

from typing import Any

import orjson
from hypothesis import strategies as st

from nemo_polar.types import (
    Delta,
    FinishReason,
    Message,
    ModelCall,
    Part,
    Reasoning,
    ReasoningDelta,
    Reply,
    Role,
    Text,
    TextDelta,
    TokenLogProb,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from nemo_polar.wire.base import Route
from nemo_polar.wire.openai_chat.dialect import OpenAIChat

DIALECT = OpenAIChat()
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a place.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    },
}


def request(**fields: Any) -> dict[str, Any]:
    """A valid request with ``fields`` set; a field given as ``...`` is left out."""
    whole = {"model": "polar", "messages": [{"role": "user", "content": "hi"}], **fields}
    return {k: v for k, v in whole.items() if v is not ...}


def parse(body: Any) -> ModelCall:
    return DIALECT.parse(body if isinstance(body, bytes) else orjson.dumps(body), Route("generate")).call


def cycle(**call: Any) -> list[dict[str, Any]]:
    """A user message, an assistant's call of ``weather`` (with ``call`` fields set) and its result."""
    made = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"place":"Oslo"}'}, **call}
    return [
        {"role": "user", "content": "weather in Oslo?"},
        {"role": "assistant", "content": None, "tool_calls": [made]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    ]


def reply(
    *parts: Part,
    finish: FinishReason = FinishReason.STOP,
    logprobs: tuple[TokenLogProb, ...] | None = None,
    usage: Usage = Usage(11, 7, 5, 3),
) -> Reply:
    return Reply("r1", 1_700_000_000, "polar", Message(Role.ASSISTANT, parts), finish, usage, None, logprobs)


def deltas(message: Message, width: int = 3) -> list[Delta]:
    """The message as it would be streamed: text and reasoning in pieces of ``width`` characters, each call whole."""
    out: list[Delta] = []
    calls = 0
    for part in message.parts:
        if isinstance(part, ToolCall):
            out.append(ToolCallDelta(calls, part))
            calls += 1
        elif isinstance(part, Text | Reasoning):
            kind = TextDelta if isinstance(part, Text) else ReasoningDelta
            out += [kind(part.text[i : i + width]) for i in range(0, len(part.text), width)]
    return out


def streamed(call: ModelCall, whole: Reply, width: int = 3) -> bytes:
    """The complete stream for ``whole``, with keep-alives before, between and after."""
    encoder = DIALECT.stream(call, whole.id, whole.created, whole.model, whole.usage.prompt_tokens)
    out = [encoder.keep_alive(), encoder.start()]
    for delta in deltas(whole.message, width):
        out += [encoder.keep_alive(), encoder.delta(delta)]
    return b"".join([*out, encoder.keep_alive(), encoder.finish(whole)])


def events(stream: bytes) -> list[Any]:
    """The data of each event, decoded; ``[DONE]`` stays a string."""
    blocks = [block for block in stream.decode().split("\n\n") if block and not block.startswith(":")]
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    return [data if data == "[DONE]" else orjson.loads(data) for data in (block[len("data: ") :] for block in blocks)]


def joined(stream: bytes) -> dict[str, Any]:
    """What a client makes of a stream, in the shape of a whole answer's ``choices[0]``."""
    *chunks, done = events(stream)
    assert done == "[DONE]"
    message: dict[str, Any] = {"role": None, "content": "", "refusal": None}
    calls: list[dict[str, Any]] = []
    logprobs = None
    finish = None
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        assert finish is None, "nothing of the choice follows its finish reason"
        delta = choice["delta"]
        message["role"] = delta.get("role") or message["role"]
        message["content"] += delta.get("content") or ""
        if "reasoning_content" in delta:
            message["reasoning_content"] = message.get("reasoning_content", "") + delta["reasoning_content"]
        for call in delta.get("tool_calls", []):
            assert call.pop("index") == len(calls)
            calls.append(call)
        if choice["logprobs"]:
            logprobs = logprobs or {"content": [], "refusal": None}
            logprobs["content"] += choice["logprobs"]["content"]
        finish = choice["finish_reason"]
    if calls:
        message["tool_calls"] = calls
        message["content"] = message["content"] or None
    return {"index": 0, "message": message, "logprobs": logprobs, "finish_reason": finish}


# --- random material --------------------------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
tool_calls = st.builds(ToolCall, id=texts, name=texts, arguments=st.one_of(texts, st.just(""), st.just('{"a": [1, 2.0]}')))


@st.composite
def assistant_messages(draw: st.DrawFn) -> Message:
    """Reasoning, then text, then calls: any of them may be missing."""
    parts: list[Part] = []
    if draw(st.booleans()):
        parts.append(Reasoning(draw(texts)))
    if draw(st.booleans()):
        parts.append(Text(draw(texts)))
    parts += draw(st.lists(tool_calls, max_size=3, unique_by=lambda call: call.id))
    return Message(Role.ASSISTANT, tuple(parts))


logprob_entries = st.lists(
    st.builds(TokenLogProb, text=texts, utf8=st.binary(max_size=4), logprob=st.floats(-50, 0)), max_size=600
).map(tuple)
