# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Requests, replies, stream readers and client behaviours for tests of the Gemini dialect."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal

from hypothesis import strategies as st

from nemo_polar.types import Message, ModelCall, Part, Reasoning, Reply, Role, Text, ToolCall
from nemo_polar.wire.base import Route
from nemo_polar.wire.gemini.dialect import Gemini
from tests.support.openai_chat import deltas

DIALECT = Gemini()
WEATHER = {
    "functionDeclarations": [
        {
            "name": "weather",
            "description": "Weather of a place.",
            "parametersJsonSchema": {
                "type": "object",
                "properties": {"place": {"type": "string"}},
                "required": ["place"],
            },
        }
    ]
}
HELLO = {"role": "user", "parts": [{"text": "hi"}]}
SYNTHETIC = "skip_thought_signature_validator"
"""What Gemini CLI signs a call with that came without a signature."""


def request(**fields: Any) -> dict[str, Any]:
    """A valid request with ``fields`` set; a field given as ``...`` is left out."""
    whole = {"contents": [HELLO], **fields}
    return {k: v for k, v in whole.items() if v is not ...}


def route(*, stream: bool = False, form: Literal["sse", "array"] = "sse") -> Route:
    return Route("generate", model="polar", stream=stream, form=form)


def parse(body: Any, asked: Route | None = None) -> ModelCall:
    return DIALECT.parse(body if isinstance(body, bytes) else json.dumps(body).encode(), asked or route()).call


def talk(*contents: Any, **fields: Any) -> dict[str, Any]:
    return request(contents=list(contents), **fields)


def model(*parts: Any) -> dict[str, Any]:
    return {"role": "model", "parts": list(parts)}


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "parts": list(parts)}


def function_call(name: str = "weather", args: Any = None, **fields: Any) -> dict[str, Any]:
    return {"functionCall": {"name": name, "args": {"place": "Oslo"} if args is None else args, **fields}}


def function_response(name: str = "weather", response: Any = None, **fields: Any) -> dict[str, Any]:
    return {"functionResponse": {"name": name, "response": {"output": "rain"} if response is None else response, **fields}}


# --- streams ----------------------------------------------------------------------------------------------------------


def streamed(call: ModelCall, whole: Reply, width: int = 3) -> bytes:
    """The complete stream for ``whole``, with keep-alives after the start, between and after."""
    encoder = DIALECT.stream(call, whole.id, whole.created, whole.model, whole.usage.prompt_tokens)
    out = [encoder.start(), encoder.keep_alive()]
    for delta in deltas(whole.message, width):
        out += [encoder.keep_alive(), encoder.delta(delta)]
    return b"".join([*out, encoder.keep_alive(), encoder.finish(whole)])


def chunks(stream: bytes, form: str = "sse") -> list[Any]:
    """The chunks of a stream, decoded."""
    if form == "array":
        return json.loads(stream)
    blocks = [block.strip("\n") for block in stream.decode().split("\n\n")]
    blocks = [block for block in blocks if block]
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    return [json.loads(block[len("data: ") :]) for block in blocks]


def joined(found: list[Any]) -> dict[str, Any]:
    """The chunks of a stream put together, in the shape of a whole answer."""
    parts: list[Any] = []
    for chunk in found:
        (candidate,) = chunk["candidates"]
        assert candidate["content"]["role"] == "model" and candidate["content"]["parts"]
        parts += candidate["content"]["parts"]
    assert not any("finishReason" in chunk["candidates"][0] for chunk in found[:-1])
    last = found[-1]
    content = {"parts": join_texts(parts), "role": "model"}
    return {**last, "candidates": [{**last["candidates"][0], "content": content}]}


def join_texts(parts: list[Any]) -> list[Any]:
    """Adjacent texts of one kind as one, as long as the later has no signature; empty ones left out where others are."""
    out: list[Any] = []
    for part in parts:
        last = out[-1] if out else {}
        alike = "text" in part and "text" in last and part.get("thought") == last.get("thought")
        if alike and "thoughtSignature" not in part:
            out[-1] = {**last, "text": last["text"] + part["text"]}
        else:
            out.append(part)
    return [part for part in out if part != {"text": ""}] or out


# --- what clients send back, from the contents of the chunks they got ---------------------------------------------------

Contents = list[dict[str, Any]]


def _every_part(contents: Contents, keep: Callable[[dict[str, Any]], dict[str, Any] | None]) -> Contents:
    kept = [{**c, "parts": [p for p in (keep(dict(part)) for part in c["parts"]) if p is not None]} for c in contents]
    return [content for content in kept if content["parts"]]


def everything(contents: Contents) -> Contents:
    """Google's own clients: each chunk is a content of the history."""
    return contents


def one_content(contents: Contents) -> Contents:
    return [{"role": "model", "parts": [part for content in contents for part in content["parts"]]}]


def without_thoughts(contents: Contents) -> Contents:
    return _every_part(contents, lambda part: None if part.get("thought") else part)


def without_signatures(contents: Contents) -> Contents:
    return _every_part(contents, lambda part: {k: v for k, v in part.items() if k != "thoughtSignature"} or None)


def without_either(contents: Contents) -> Contents:
    return without_signatures(without_thoughts(contents))


def gemini_cli(contents: Contents) -> Contents:
    """Its history: thoughts dropped, texts that then meet joined under the first one's signature, a signature made up for the
    first call where there is none. From its bundle, version 0.61.0."""
    parts: list[dict[str, Any]] = []
    for content in without_thoughts(contents):
        if all(part == {"text": ""} for part in content["parts"]):
            continue
        for part in content["parts"]:
            if "text" in part and parts and parts[-1].get("text"):
                parts[-1] = {**parts[-1], "text": parts[-1]["text"] + part["text"]}
            else:
                parts.append(part)
    first = next((i for i, part in enumerate(parts) if "functionCall" in part), None)
    if first is not None and "thoughtSignature" not in parts[first]:
        parts[first] = {**parts[first], "thoughtSignature": SYNTHETIC}
    parts = [{k: v for k, v in part.items() if (k, v) != ("text", "") or len(part) == 1} for part in parts]
    parts = [part for part in parts if part != {"text": ""}]
    return [{"role": "model", "parts": parts}] if parts else []


def pi(contents: Contents) -> Contents:
    """Its history: runs of texts and of thoughts are blocks with the last signature in them; blank blocks without one are left
    out, and parts that are neither text nor call; ids are left out. From pi-ai 1.6.0."""
    blocks: list[dict[str, Any]] = []
    for part in (part for content in contents for part in content["parts"]):
        if "functionCall" in part:
            called = {k: v for k, v in part["functionCall"].items() if k != "id"}
            blocks.append({**part, "functionCall": called})
        elif "text" in part:
            last = blocks[-1] if blocks and "text" in blocks[-1] else None
            if last is None or last.get("thought") != part.get("thought"):
                blocks.append(part)
            else:
                signature = part.get("thoughtSignature") or last.get("thoughtSignature")
                signed = {"thoughtSignature": signature} if signature else {}
                blocks[-1] = {**last, "text": last["text"] + part["text"], **signed}
    blocks = [b for b in blocks if "functionCall" in b or b["text"].strip() or b.get("thoughtSignature")]
    return [{"role": "model", "parts": blocks}] if blocks else []


def other_ids(contents: Contents) -> Contents:
    """Ids made up by the client."""

    def renamed(part: dict[str, Any]) -> dict[str, Any]:
        if "functionCall" in part:
            part["functionCall"] = {**part["functionCall"], "id": f"{part['functionCall']['name']}_1764600000_0"}
        return part

    return _every_part(contents, renamed)


def javascript(contents: Contents) -> Contents:
    """Through a client whose numbers are doubles, which writes 1.0 as 1 and may have its keys in another order."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: plain(v) for k, v in reversed(value.items())}
        if isinstance(value, list):
            return [plain(v) for v in value]
        if isinstance(value, bool) or not isinstance(value, int | float):
            return value
        number = float(value)
        return int(number) if number.is_integer() and abs(number) < 2**63 else number

    return plain(contents)


# --- random material --------------------------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
_numbers = st.integers() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
_json = st.recursive(
    st.none() | st.booleans() | _numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
_objects = st.dictionaries(texts, _json, max_size=4)
arguments = st.one_of(
    st.builds(
        lambda value, indent, ascii_only: json.dumps(value, indent=indent, ensure_ascii=ascii_only),
        _objects | _json,
        st.sampled_from([None, 0, 2]),
        st.booleans(),
    ),
    texts,
    st.sampled_from(
        [
            *("", "{}", " {} ", "{", '{"a": 1.0, "b": 12345678901234567890123}', '{"a":1,"a":2}', '{"a":1e999}', '{"a":NaN}'),
            *('{"__malformed_arguments__": "x"}', '{"__malformed_arguments__": 1}', '"text"', "[1]", "null"),
            *('{"a": "\\ud83d"}', '\u00a0{"a":1}', "{" * 300, '{"a":' * 300 + "1" + "}" * 300),
        ]
    ),
)
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=10)


@st.composite
def replies(draw: st.DrawFn, text: st.SearchStrategy[str] = texts) -> Message:
    """Reasoning, texts and calls in any order and number."""
    parts: list[Part] = []
    for n, kind in enumerate(draw(st.lists(st.sampled_from(["reasoning", "text", "call"]), max_size=7))):
        if kind == "call":
            parts.append(ToolCall(f"call_{n}", draw(names), draw(arguments)))
        else:
            parts.append(Reasoning(draw(text)) if kind == "reasoning" else Text(draw(text)))
    return Message(Role.ASSISTANT, tuple(parts))
