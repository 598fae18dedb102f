# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What stands between a call opener and its closer: the name and the arguments of one tool call.

Nothing is repaired. A well-formed JSON call keeps its arguments as the exact characters that were sampled; a call that is not
well-formed but has a readable name is passed on, marked, with whatever its arguments are. Every function is linear in the body.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from nemo_polar.types import ToolSpec

CallBody: TypeAlias = Literal["hermes", "qwen_xml"]


@dataclass(frozen=True, slots=True)
class CallText:
    """A call as read from a body."""

    name: str
    """Not blank, and encodable as UTF-8."""
    arguments: str
    malformed: bool = False


def read_call(body: str, form: CallBody, tools: Sequence[ToolSpec] = ()) -> CallText | None:
    """The call in ``body`` (the text between the markers), or None when not even a name can be read."""
    return read_hermes(body) if form == "hermes" else read_qwen_xml(body, tools)


# --- JSON: {"name": ..., "arguments": {...}} --------------------------------------------------------------------------


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


# Only spans and types matter here, so numbers are not converted (Python refuses integers over 4300 digits).
_JSON = json.JSONDecoder(parse_int=lambda _: 0, parse_float=lambda _: 0.0, parse_constant=_refuse)
_SPACE = re.compile(r"[ \t\n\r]*")
_NAME = re.compile(r'"name"\s*:\s*("(?:[^"\\]|\\.)*+")', re.DOTALL)
_ARGUMENTS = re.compile(r'"arguments"\s*:\s*')
_STRING = re.compile(r'"(?:[^"\\]|\\.)*+\\?(?:"|\Z)', re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Member:
    """The value of one key: ``text[start:end]``. ``end`` None: the text stops being JSON somewhere in it."""

    start: int
    end: int | None = None
    value: Any = None


def _after_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return at if match is None else match.end()


def _members(text: str) -> tuple[dict[str, _Member], bool]:
    """The members of the JSON object that ``text`` is, as far as it is one, and whether it is one to its end."""
    found: dict[str, _Member] = {}
    at = _after_space(text, 0)
    if not text.startswith("{", at):
        return found, False
    at = _after_space(text, at + 1)
    if text.startswith("}", at):
        return found, _after_space(text, at + 1) == len(text)
    try:
        while text.startswith('"', at):
            key, at = _JSON.raw_decode(text, at)
            at = _after_space(text, at)
            if not text.startswith(":", at):
                break
            start = _after_space(text, at + 1)
            found[key] = _Member(start)
            value, end = _JSON.raw_decode(text, start)
            found[key] = _Member(start, end, value)
            at = _after_space(text, end)
            if text.startswith("}", at):
                return found, _after_space(text, at + 1) == len(text)
            if not text.startswith(",", at):
                break
            at = _after_space(text, at + 1)
    except (ValueError, RecursionError):  # RecursionError: nested deeper than the decoder can go
        pass
    return found, False


def _as_name(value: Any) -> str | None:
    """``value`` when it can serve as a name. A lone surrogate (from an escape) could not be sent to anyone."""
    if not isinstance(value, str) or not value.strip() or any("\ud800" <= c <= "\udfff" for c in value):
        return None
    return value


def _find_name(text: str) -> str | None:
    match = _NAME.search(text)
    if match is None:
        return None
    try:
        return _as_name(_JSON.decode(match[1]))
    except ValueError:
        return None


def _rest_of_arguments(text: str, member: _Member | None) -> str:
    """What follows ``"arguments":`` to the end of a body that is not JSON, without the wrapper's closing brace."""
    if member is not None:
        start = member.start
    else:
        match = _ARGUMENTS.search(text)
        if match is None:
            return ""
        start = match.end()
    rest = text[start:].rstrip()
    if rest.endswith("}"):
        bare = _STRING.sub("", rest)
        if bare.count("}") > bare.count("{"):
            rest = rest[:-1].rstrip()
    return rest


def read_hermes(body: str) -> CallText | None:
    """A call written as one JSON object with ``name`` and ``arguments``.

    Well-formed: ``arguments`` is the source slice of that member's value, ``{}`` when it is missing. A value that is JSON but
    no object is kept as it is and makes the call malformed. Of a body that is no JSON object, the name is what stands after
    the first ``"name":``, the arguments all that follows ``"arguments":``.
    """
    text = body.strip()
    members, complete = _members(text)
    named, arguments = members.get("name"), members.get("arguments")
    name = _find_name(text) if named is None or named.end is None else _as_name(named.value)
    if name is None or (complete and named is None):
        return None
    if not complete:
        return CallText(name, _rest_of_arguments(text, arguments), malformed=True)
    if arguments is None:
        return CallText(name, "{}")
    return CallText(name, text[arguments.start : arguments.end], malformed=not isinstance(arguments.value, dict))


# --- tags: <function=NAME> <parameter=KEY> VALUE </parameter> </function> ---------------------------------------------

_FUNCTION = re.compile(r"<function=([^<>\n]+)>")
_PARAMETER = re.compile(r"<parameter=([^<>\n]+)>")
_END_PARAMETER = "</parameter>"
_END_FUNCTION = "</function>"
_TYPES: Mapping[type, tuple[str, ...]] = {
    dict: ("object",),
    list: ("array",),
    bool: ("boolean",),
    int: ("integer", "number"),
    float: ("number",),
    type(None): ("null",),
}


def read_qwen_xml(body: str, tools: Sequence[ToolSpec] = ()) -> CallText | None:
    """A call written with tags, as Qwen3.5 and Nemotron do.

    Well-formed: ``arguments`` is a JSON object, one member a parameter in their order. One newline on each side of a value is
    the template's; what is between is kept to the character when the tool's schema says string, else taken over when it is
    JSON, else kept as a string. Anything that breaks the grammar makes the call malformed: then ``arguments`` is what stands
    between the function's tags, as it is.
    """
    text = body.strip()
    head = _FUNCTION.search(text)
    if head is None or not head[1].strip():
        return None
    name = head[1]
    pairs = _parameters(text, head.end()) if head.start() == 0 else None
    if pairs is None:
        return CallText(name, text[head.end() :].removesuffix(_END_FUNCTION).strip(), malformed=True)
    schemas = _schemas(name, tools)
    members = (f"{json.dumps(key, ensure_ascii=False)}:{_typed(value, schemas.get(key))}" for key, value in pairs)
    return CallText(name, "{" + ",".join(members) + "}")


def _parameters(text: str, at: int) -> list[tuple[str, str]] | None:
    """The parameters from ``at`` to the function's end tag, in order; None when something else stands there."""
    pairs: list[tuple[str, str]] = []
    at = _after_space(text, at)
    while (tag := _PARAMETER.match(text, at)) is not None:
        end = text.find(_END_PARAMETER, tag.end())
        if end < 0:
            return None
        pairs.append((tag[1], text[tag.end() : end].removeprefix("\n").removesuffix("\n")))
        at = _after_space(text, end + len(_END_PARAMETER))
    return pairs if text[at:] == _END_FUNCTION else None


def _schemas(name: str, tools: Sequence[ToolSpec]) -> Mapping[str, Any]:
    """Parameter schemas of the tool called ``name``; empty when nothing is declared."""
    for tool in tools:
        if tool.name == name:
            properties = tool.parameters.get("properties")
            return properties if isinstance(properties, Mapping) else {}
    return {}


def _declared(schema: Any) -> frozenset[str]:
    """The JSON types a schema names, directly or as alternatives; empty when it names none."""
    if not isinstance(schema, Mapping):
        return frozenset()
    branches = [schema, *_listed(schema.get("anyOf")), *_listed(schema.get("oneOf"))]
    named = [t for b in branches if isinstance(b, Mapping) for t in _listed(b.get("type"))]
    return frozenset(t for t in named if isinstance(t, str))


def _listed(value: Any) -> list[Any]:
    """A schema keyword that may be one value or a list. Harnesses write schemas, so anything may stand here."""
    return value if isinstance(value, list) else [value]


def _typed(value: str, schema: Any) -> str:
    """``value`` as JSON text of the type that its schema asks for."""
    as_string, text = json.dumps(value, ensure_ascii=False), value.strip()
    try:
        parsed = _JSON.decode(text)
    except (ValueError, RecursionError):
        return as_string
    # Where a string may stand, the text is one unless it is plainly of another declared type: for string or null, 123 is a
    # string and null is null.
    types = _declared(schema)
    if "string" in types and types.isdisjoint(_TYPES.get(type(parsed), ())):
        return as_string
    return text
