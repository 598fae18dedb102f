# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Requests, replies, stream readers and clients for tests of the Responses dialect."""

from __future__ import annotations

import json
from typing import Any

import orjson
from hypothesis import strategies as st

from nemo_polar.types import FinishReason, Message, ModelCall, Part, Reasoning, Reply, Role, Text, ToolCall, Usage
from nemo_polar.wire.base import Route
from nemo_polar.wire.openai_responses.dialect import OpenAIResponses
from tests.support.openai_chat import deltas, texts

DIALECT = OpenAIResponses()
REPLY_ID = "0123456789abcdef01234567"
OTHER_ID = "fedcba9876543210fedcba98"
HI = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
GO_ON = {"role": "user", "content": "go on"}
WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "Weather of a place.",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    "strict": False,
}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edit files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "x"+'},
}
CRM = {
    "type": "namespace",
    "name": "crm",
    "description": "Customers.",
    "tools": [
        {"type": "function", "name": "find", "parameters": {"type": "object"}},
        {"type": "custom", "name": "note", "format": {"type": "text"}},
    ],
}
SEARCH = {"type": "web_search", "external_web_access": True}
TOOLS = [WEATHER, PATCH, CRM, SEARCH]
ENCRYPTED = ["reasoning.encrypted_content"]


def request(**fields: Any) -> dict[str, Any]:
    """A valid request with ``fields`` set; a field given as ``...`` is left out."""
    whole = {"model": "polar", "input": [HI], **fields}
    return {k: v for k, v in whole.items() if v is not ...}


def parsed(body: Any, history: Any = ()):
    return DIALECT.parse(body if isinstance(body, bytes) else orjson.dumps(body), Route("generate"), history)


def parse(body: Any) -> ModelCall:
    return parsed(body).call


def function_call(call_id: str = "c1", name: str = "weather", arguments: str = '{"place":"Oslo"}', **fields: Any):
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments, **fields}


def output(call_id: str = "c1", said: Any = "rain", **fields: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": said, **fields}


def said(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}], **fields}


def thought(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}], **fields}


def reply(*parts: Part, finish: FinishReason = FinishReason.STOP, id: str = REPLY_ID) -> Reply:
    return Reply(id, 1_700_000_000, "polar", Message(Role.ASSISTANT, parts), finish, Usage(11, 7, 5, 3))


def whole(answer: Reply, call: ModelCall) -> dict[str, Any]:
    return orjson.loads(DIALECT.reply(call, answer))


def streamed(call: ModelCall, answer: Reply, width: int = 3, *, keep_alives: bool = True) -> bytes:
    """The complete stream for ``answer``, as the proxy writes it: what starts it is made after what comes first."""
    encoder = DIALECT.stream(call, answer.id, answer.created, answer.model, answer.usage.prompt_tokens)
    out = [encoder.keep_alive()] if keep_alives else []
    for delta in deltas(answer.message, width):
        out += [encoder.delta(delta), *([encoder.keep_alive()] if keep_alives else [])]
    out.append(encoder.finish(answer))
    return encoder.start() + b"".join(out)


def events(stream: bytes) -> list[dict[str, Any]]:
    """The data of each event, decoded; its name is its type, and the numbers count up from 0."""
    found: list[dict[str, Any]] = []
    for block in stream.decode().removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        event = orjson.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}" and data.startswith("data: ")
        found.append(event)
    assert [e["sequence_number"] for e in found] == list(range(len(found)))
    return found


def joined(stream: bytes) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The items that a client puts together out of deltas alone, and the last response; checks the order of events."""
    first, second, *rest = events(stream)
    assert (first["type"], second["type"]) == ("response.created", "response.in_progress")
    items: list[dict[str, Any]] = []
    open_item: dict[str, Any] | None = None
    for event in rest[:-1]:
        kind = event["type"].removeprefix("response.")
        if kind == "in_progress":
            assert event["response"] == first["response"] == second["response"]
        elif kind == "output_item.added":
            assert open_item is None and event["output_index"] == len(items)
            open_item = event["item"]
        elif kind == "output_item.done":
            assert open_item is not None and event["output_index"] == len(items)
            # What is only in the finished item: its status and what its reasoning was sealed into.
            late = {k: event["item"][k] for k in ("status", "encrypted_content") if k in event["item"]}
            assert {**open_item, **late} == event["item"]
            items.append(event["item"])
            open_item = None
        else:
            assert open_item is not None and (event["item_id"], event["output_index"]) == (open_item["id"], len(items))
            _apply(open_item, kind, event)
    assert open_item is None
    return items, rest[-1]["response"]


def _apply(item: dict[str, Any], kind: str, event: dict[str, Any]) -> None:
    if kind == "content_part.added":
        assert event["content_index"] == len(item["content"])
        item["content"].append(event["part"])
    elif kind in ("output_text.delta", "reasoning_text.delta"):
        item["content"][event["content_index"]]["text"] += event["delta"]
    elif kind in ("output_text.done", "reasoning_text.done"):
        assert item["content"][event["content_index"]]["text"] == event["text"]
    elif kind == "content_part.done":
        assert item["content"][event["content_index"]] == event["part"]
    else:
        what, _, stage = kind.partition(".")
        field = {"function_call_arguments": "arguments", "custom_tool_call_input": "input"}[what]
        if stage == "delta":
            item[field] += event["delta"]
        else:
            assert stage == "done" and item[field] == event[field]


# --- what clients send back -------------------------------------------------------------------------------------------


def everything(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return items


def codex(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Reasoning without its status; ``encrypted_content`` null where there is none."""
    return [
        {"encrypted_content": None, **{k: v for k, v in i.items() if k != "status"}} if i["type"] == "reasoning" else i
        for i in items
    ]


def without_ids(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in item.items() if k not in ("id", "status")} for item in items]


def sealed_only(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Keeps of reasoning what is opaque, as clients of OpenAI's own models do."""
    return [{**i, "content": None} if i.get("encrypted_content") else i for i in items]


def without_reasoning(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [item for item in items if item["type"] != "reasoning"]


def rewritten(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Arguments that are an object are written anew, as Pi and OpenCode do."""
    return [{**i, "arguments": _rewritten(i["arguments"])} if i["type"] == "function_call" else i for i in items]


def _rewritten(arguments: str) -> str:
    try:
        value = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments
    return json.dumps(value, separators=(",", ":"), sort_keys=True) if isinstance(value, dict) else arguments


CLIENTS = (everything, codex, without_ids, sealed_only, without_reasoning, rewritten)

# --- random material --------------------------------------------------------------------------------------------------

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
arguments = st.one_of(
    st.dictionaries(texts, values, max_size=3).map(lambda v: json.dumps(v, ensure_ascii=False, indent=1)),
    texts.map(lambda text: json.dumps({"input": text})),
    texts.map(lambda text: json.dumps({"input": text}) + " "),
    st.sampled_from(
        ["", "{", '{"input": "\\ud83d"}', '{"input": 1}', '{"input": "a", "b": 1}', '{"input":"a","input":"b"}', "null"]
    ),
    texts,
)
names = st.sampled_from(["weather", "apply_patch", "crm__find", "crm__note", "web_search", "nope", "a__b"]) | texts
call_ids = st.from_regex(r"call_[0-9a-f]{24}", fullmatch=True)
tool_calls = st.builds(ToolCall, id=call_ids, name=names, arguments=arguments)


@st.composite
def assistant_messages(draw: st.DrawFn) -> Message:
    """Reasoning, text and calls in any order; empty ones too."""
    plain = st.one_of(st.builds(Text, texts | st.just("")), st.builds(Reasoning, texts | st.just("")), tool_calls)
    parts = draw(st.lists(plain, max_size=6))
    ids = [part.id for part in parts if isinstance(part, ToolCall)]
    return Message(Role.ASSISTANT, tuple(parts) if len(ids) == len(set(ids)) else ())
