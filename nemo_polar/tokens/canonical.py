# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""One form for everything a harness may write in several ways, and fingerprints over it.

Harnesses re-send their whole conversation, and not always in the same words: text blocks or a string, tool arguments
re-serialised, call ids renamed, reasoning dropped. What is compared here is what the *model* would have to be told apart by.

Never part of a fingerprint: sampling parameters, headers, transport marks, call ids (compared apart, see ``tree``), and the
reasoning of assistant turns (also compared apart, because some harnesses cannot carry it).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import takewhile
from typing import Any

import orjson

from nemo_polar.types import Image, Message, ModelCall, Reasoning, Role, Text, ToolCall, ToolResult, ToolSpec

_SIZE = 16
_SYSTEM_ROLES = (Role.SYSTEM, Role.DEVELOPER)
_NO_ARGUMENTS = b"j{}"
_FEW = 64
"""Characters: whoever writes none at all does not write many."""
# One line at a time and from its end: a greedy run of blanks in the middle of a line would be looked at from each of them.
_AT_LINE_END = re.compile(r"[ \t](?=\n|\Z)")
_LINE_END = re.compile(r"(?<![ \t])[ \t]++(?=\n|\Z)")


def digest(*pieces: bytes) -> bytes:
    """16 bytes over ``pieces``, each length-prefixed, so that no two different splits collide."""
    framed = b"".join([part for piece in pieces for part in (len(piece).to_bytes(8, "little"), piece)])
    return blake2b(framed, digest_size=_SIZE).digest()


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _plain(value: Any) -> Any:
    """JSON values with every number as an IEEE double and -0 as 0, as a JavaScript harness would have them; strings without
    white space at the ends of their lines, which Claude Code takes out of what it writes to files."""
    if isinstance(value, str):
        return _LINE_END.sub("", value) if _AT_LINE_END.search(value) else value
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float):
        return float(value) + 0.0
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return {k: _plain(v) for k, v in value.items()}


def _refuse_constant(name: str) -> Any:
    raise ValueError(name)


def canonical_arguments(arguments: str) -> bytes:
    """Tool arguments: as parsed JSON, keys sorted; as they stand when they are not JSON. None at all are an empty object."""
    if len(arguments) < _FEW and arguments.strip() in ("", "null"):
        return _NO_ARGUMENTS
    try:
        value = _plain(_parsed(arguments))
        return b"j" + _sorted_json(value)
    except (ValueError, OverflowError, RecursionError):
        return b"t" + _utf8(arguments)


def _parsed(arguments: str) -> Any:
    try:
        return orjson.loads(arguments)
    except orjson.JSONDecodeError:  # which refuses half surrogate pairs and numbers past a double; harnesses do not
        return json.loads(arguments, parse_constant=_refuse_constant)


def _sorted_json(value: Any) -> bytes:
    """One spelling for equal values: which writer is taken depends on the value alone."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except (orjson.JSONEncodeError, RecursionError):
        return _utf8(json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":")))


def _canonical_assistant(message: Message) -> Iterator[bytes]:
    # Dialects disagree on where text stands among calls, and harnesses trim it: text joined and stripped, then the calls.
    yield _utf8(message.text.strip())
    for call in message.tool_calls:
        yield b"call"
        yield _utf8(call.name)
        yield canonical_arguments(call.arguments)


def _canonical_other(message: Message, call_numbers: Mapping[str, int]) -> Iterator[bytes]:
    text: list[str] = []
    for part in message.parts:
        if isinstance(part, Text):
            text.append(part.text)
            continue
        if text:
            yield _utf8("".join(text))
            text = []
        if isinstance(part, Image):
            yield b"image" + _utf8(part.url)
        elif isinstance(part, ToolResult):
            number = call_numbers.get(part.call_id)
            yield b"result" + (str(number).encode() if number is not None else b"?" + _utf8(part.call_id))
            yield b"error" if part.is_error else b"ok"
            for item in part.content:
                yield _utf8(item.text) if isinstance(item, Text) else b"image" + _utf8(item.url)
        elif isinstance(part, ToolCall | Reasoning):
            yield repr(part).encode("utf-8", "surrogatepass")
    if text:
        yield _utf8("".join(text))


def message_digest(previous: bytes, message: Message, call_numbers: Mapping[str, int]) -> bytes:
    """The fingerprint of a conversation that ends in ``message``, from that of what precedes it."""
    if message.role is Role.ASSISTANT:
        return digest(previous, b"assistant", *_canonical_assistant(message))
    return digest(previous, message.role.value.encode(), _utf8(message.name or ""), *_canonical_other(message, call_numbers))


def reasoning_digest(message: Message) -> bytes | None:
    """Fingerprint of an assistant message's reasoning; None when it carries none."""
    text = message.reasoning
    return digest(_utf8(text.strip())) if text is not None and text.strip() else None


def tools_digest(tools: Sequence[ToolSpec]) -> bytes:
    """Fingerprint of a tool list; empty for none. Key order counts: it shows in the prompt."""
    if not tools:
        return b""
    return digest(*(_utf8(t.name) + b"\0" + _utf8(t.description) + b"\0" + _json(t.parameters) for t in tools))


def _json(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        return _utf8(json.dumps(value, ensure_ascii=False))


@dataclass(frozen=True, slots=True)
class Fingerprints:
    """Of one request."""

    prefix: tuple[bytes, ...]
    """prefix[i] is over the tools, the template options and messages[:i]; length len(messages) + 1."""
    reasoning: tuple[bytes | None, ...]
    """Of each message; None unless it is an assistant message that carries reasoning."""
    tools: bytes
    system: bytes
    """Over the leading system and developer messages; empty for none."""
    call_numbers: Mapping[str, int]
    """Tool call id to its ordinal in the conversation."""
    request: bytes
    """Over the whole request, sampling included: two requests with the same one ask for the same thing."""


@dataclass(frozen=True, slots=True)
class Printed:
    """A request and its fingerprints, for the next request of its session, which repeats most of it."""

    call: ModelCall
    prints: Fingerprints


def fingerprints(call: ModelCall, template: bytes, before: Printed | None = None) -> Fingerprints:
    """One pass over a request. ``template`` is the codec's fingerprint.

    Of ``before``, what is over the *same objects* is taken over: whoever read ``call`` knew these messages and tools to be
    equal. The result is the same with and without it.
    """
    shared, tools = 0, None
    if before is not None and before.call.tools is call.tools:
        tools = before.prints.tools
    if tools is None:
        tools = tools_digest(call.tools)
    root = digest(b"root", template, tools)
    if before is not None and before.prints.prefix[0] == root:
        shared = shared_messages(before.call.messages, call.messages)
    prefix, reasoning, numbers = [root], [], {}
    if before is not None and shared:
        prefix = list(before.prints.prefix[: shared + 1])
        reasoning = list(before.prints.reasoning[:shared])
        numbers = _numbers(before, shared)
    for message in call.messages[shared:]:
        for made in message.tool_calls:
            numbers[made.id] = len(numbers)
        prefix.append(message_digest(prefix[-1], message, numbers))
        reasoning.append(reasoning_digest(message) if message.role is Role.ASSISTANT else None)
    same_system = before is not None and any(m.role not in _SYSTEM_ROLES for m in call.messages[:shared])
    asked = repr((call.sampling, call.tool_choice, call.n)).encode("utf-8", "surrogatepass")
    return Fingerprints(
        prefix=tuple(prefix),
        reasoning=tuple(reasoning),
        tools=tools,
        system=before.prints.system if before is not None and same_system else system_digest(call.messages),
        call_numbers=numbers,
        request=digest(prefix[-1], asked, *(r or b"" for r in reasoning)),
    )


def system_digest(messages: Sequence[Message]) -> bytes:
    """Fingerprint of the system and developer messages that open a conversation; empty for none."""
    leading = [_utf8(m.text) for m in takewhile(lambda m: m.role in _SYSTEM_ROLES, messages)]
    return digest(*leading) if leading else b""


def shared_messages(before: Sequence[Message], now: Sequence[Message]) -> int:
    """How many messages at the start are the very same objects."""
    count = 0
    for old, new in zip(before, now, strict=False):
        if old is not new:
            break
        count += 1
    return count


def _numbers(before: Printed, shared: int) -> dict[str, int]:
    """The calls among the first ``shared`` messages."""
    if shared == len(before.call.messages):
        return dict(before.prints.call_numbers)
    numbers: dict[str, int] = {}
    for message in before.call.messages[:shared]:
        for made in message.tool_calls:
            numbers[made.id] = len(numbers)
    return numbers
