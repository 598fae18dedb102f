# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Typed access to the fields of a request, for every dialect.

A harness may send anything. Each accessor either returns a value of the type it promises or raises a ``BadRequest`` that
names the field by its dotted path (``messages[2].tool_calls[0].function.name``). Nothing is coerced: a boolean is not an
integer, a number is finite, and ``null`` means "not given". This module knows no provider.

What JSON leaves open is settled here, once:

- A lone surrogate (``"\\ud83d"``, which JavaScript writes when it cuts a string inside an emoji) becomes U+FFFD, and that is
  recorded. Every later request carries the same cut string, so the replacement is stable; refusing would end a rollout over a
  character nobody can see.
- Of two equal keys the last one counts. Integers past 64 bits arrive as doubles. Numbers past a double, and nesting past 1024
  levels, are malformed JSON.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import orjson

from nemo_polar.errors import BadRequest

MAX_SCHEMA_DEPTH = 64
"""Levels of nesting in a tool's JSON schema; what reads schemas later may be recursive."""

_SHOWN_CHARS = 64
_BACKSLASH = ord("\\")
_MAX_UNKNOWN = 32
_UNKNOWN = "unknown:"
_TYPE_NAMES: Mapping[type, str] = {
    dict: "an object",
    list: "an array",
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    type(None): "null",
}
# A surrogate escape, with the low one that makes it a pair. It starts with a literal, so the search skips quickly.
_SURROGATE = re.compile(rb"\\u[dD](?:[89abAB][0-9a-fA-F]{2}(?P<low>\\u[dD][c-fC-F][0-9a-fA-F]{2})?|[c-fC-F][0-9a-fA-F]{2})")
LONE_SURROGATES = "lone surrogates: replaced by U+FFFD"


def shown(value: object) -> str:
    """``value`` quoted for an error message, cut to a length that suits one."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."


def invalid(path: str, problem: str, *, code: str = "invalid_value") -> BadRequest:
    """The field at ``path`` has the right type and a wrong value."""
    return BadRequest(f"{path}: {problem}.", param=path, code=code)


def unsupported(path: str, reason: str) -> BadRequest:
    """The field at ``path`` asks for something that is refused by rule."""
    return BadRequest(f"{path} is not supported: {reason}.", param=path, code="unsupported_parameter")


def _missing(path: str) -> BadRequest:
    return BadRequest(f"{path} is required.", param=path, code="missing_required_parameter")


def _wrong_type(path: str, expected: str, value: object) -> BadRequest:
    got = _TYPE_NAMES.get(type(value), type(value).__name__)
    return BadRequest(f"{path}: expected {expected}, got {got}.", param=path, code="invalid_type")


class Dropped:
    """The request features left out by an explicit rule: short phrases, each once, in order."""

    __slots__ = ("_phrases", "_unknown")

    def __init__(self, phrases: Iterable[str] = ()) -> None:
        self._phrases: dict[str, None] = dict.fromkeys(phrases)
        self._unknown = sum(phrase.startswith(_UNKNOWN) for phrase in self._phrases)

    def __len__(self) -> int:
        return len(self._phrases)

    def add(self, phrase: str) -> None:
        self._phrases[phrase] = None

    def unknown(self, fields: Fields, known: Collection[str], where: str = "") -> None:
        """Note each field outside ``known`` as ``unknown:<where><field>``; names are cut and their number is bounded."""
        for name in sorted(fields.raw.keys() - known):  # sorted: the order of keys says nothing, so it must not show
            if fields.raw[name] is None or self._unknown > _MAX_UNKNOWN:
                continue
            phrase = f"{_UNKNOWN}{where}{name[:_SHOWN_CHARS]}"
            if phrase not in self._phrases:
                self._unknown += 1
                self.add(phrase if self._unknown <= _MAX_UNKNOWN else f"{_UNKNOWN}(and more)")

    def include(self, phrases: Iterable[str]) -> None:
        """Note what was left out elsewhere in the request."""
        self._phrases |= dict.fromkeys(phrases)

    def phrases(self) -> tuple[str, ...]:
        return tuple(self._phrases)


class Fields:
    """One JSON object of a request and the path that leads to it."""

    __slots__ = ("path", "raw")

    def __init__(self, raw: dict[str, Any], path: str = ""):
        self.raw = raw
        self.path = path

    def at(self, name: str) -> str:
        """The dotted path of one of its fields."""
        return f"{self.path}.{name}" if self.path else name

    def given(self, name: str) -> bool:
        """True when the field is there and not null."""
        return self.raw.get(name) is not None

    def string(self, name: str) -> str:
        """A required string; it may be empty."""
        value = self.optional_string(name)
        if value is None:
            raise _missing(self.at(name))
        return value

    def nonempty_string(self, name: str) -> str:
        """A required string with something in it: an id, a name."""
        value = self.string(name)
        if not value:
            raise invalid(self.at(name), "must not be empty")
        return value

    def optional_string(self, name: str) -> str | None:
        value = self.raw.get(name)
        if value is not None and type(value) is not str:
            raise _wrong_type(self.at(name), "a string", value)
        return value

    def boolean(self, name: str, default: bool = False) -> bool:
        value = self.optional_boolean(name)
        return default if value is None else value

    def optional_boolean(self, name: str) -> bool | None:
        value = self.raw.get(name)
        if value is not None and type(value) is not bool:
            raise _wrong_type(self.at(name), "a boolean", value)
        return value

    def integer(self, name: str, *, least: int, most: int = 2**63 - 1) -> int | None:
        """An optional integer within ``[least, most]``."""
        value = self.raw.get(name)
        if value is None:
            return None
        if type(value) is not int:
            raise _wrong_type(self.at(name), "an integer", value)
        if not least <= value <= most:
            bound = f"at least {least}" if value < least else f"at most {most}"
            raise invalid(self.at(name), f"must be {bound}, got {value}")
        return value

    def number(self, name: str, *, least: float, most: float) -> float | None:
        """An optional finite number within ``[least, most]``."""
        value = self.raw.get(name)
        if value is None:
            return None
        if type(value) not in (int, float):
            raise _wrong_type(self.at(name), "a number", value)
        if not least <= value <= most:
            raise invalid(self.at(name), f"must be between {least} and {most}, got {value}")
        return float(value)

    def child(self, name: str) -> Fields:
        """A required object."""
        found = self.optional_child(name)
        if found is None:
            raise _missing(self.at(name))
        return found

    def optional_child(self, name: str) -> Fields | None:
        value = self.raw.get(name)
        if value is None:
            return None
        if type(value) is not dict:
            raise _wrong_type(self.at(name), "an object", value)
        return Fields(value, self.at(name))

    def array(self, name: str) -> list[Any]:
        """An optional array; not given is empty."""
        value = self.raw.get(name)
        if value is None:
            return []
        if type(value) is not list:
            raise _wrong_type(self.at(name), "an array", value)
        return value

    def children(self, name: str) -> list[Fields]:
        """An optional array of objects; not given is empty."""
        return objects(self.array(name), self.at(name))

    def strings(self, name: str) -> tuple[str, ...]:
        """An optional string or array of strings; not given is empty."""
        value = self.raw.get(name)
        if value is None:
            return ()
        path = self.at(name)
        if type(value) is str:
            return (value,)
        if type(value) is not list:
            raise _wrong_type(path, "a string or an array of strings", value)
        for i, item in enumerate(value):
            if type(item) is not str:
                raise _wrong_type(f"{path}[{i}]", "a string", item)
        return tuple(value)

    def schema(self, name: str) -> dict[str, Any]:
        """An optional JSON schema, as it is; not given is empty. Bounded in depth (``MAX_SCHEMA_DEPTH``)."""
        found = self.optional_child(name)
        if found is None:
            return {}
        if _deeper_than(found.raw, MAX_SCHEMA_DEPTH):
            raise invalid(found.path, f"is nested more than {MAX_SCHEMA_DEPTH} levels deep")
        return found.raw

    def string_or_objects(self, name: str) -> str | list[Fields] | None:
        """An optional string or array of objects: what most providers call content."""
        value = self.raw.get(name)
        if value is None or type(value) is str:
            return value
        path = self.at(name)
        if type(value) is not list:
            raise _wrong_type(path, "a string or an array of parts", value)
        return objects(value, path)

    def missing(self, name: str) -> BadRequest:
        """The error for a field that this request needs and lacks."""
        return _missing(self.at(name))


def objects(values: list[Any], path: str, *, start: int = 0) -> list[Fields]:
    """Each entry of the array at ``path``, from ``start`` on.

    Raises:
        BadRequest: an entry is not an object.
    """
    found: list[Fields] = []
    for i, value in enumerate(values[start:], start):
        if type(value) is not dict:
            raise _wrong_type(f"{path}[{i}]", "an object", value)
        found.append(Fields(value, f"{path}[{i}]"))
    return found


def load(body: bytes, dropped: Dropped) -> Fields:
    """The JSON object that ``body`` is.

    Raises:
        BadRequest: not JSON (the message gives line and column), not UTF-8, or not an object.
    """
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as first:
        # Same length in and out, so the position in a second error is right too.
        mended, replaced = _without_lone_surrogates(body)
        if not replaced:
            raise _malformed(first) from None
        try:
            value = orjson.loads(mended)
        except orjson.JSONDecodeError as second:
            raise _malformed(second) from None
        dropped.add(LONE_SURROGATES)
    if type(value) is not dict:
        raise BadRequest(f"The body must be a JSON object, got {_TYPE_NAMES[type(value)]}.", code="invalid_json")
    return Fields(value)


def _malformed(exc: orjson.JSONDecodeError) -> BadRequest:
    return BadRequest(f"The body is not valid JSON: {exc.msg} (line {exc.lineno}, column {exc.colno}).", code="invalid_json")


def _without_lone_surrogates(body: bytes) -> tuple[bytes, bool]:
    """``body`` with each lone surrogate escape turned into ``\\ufffd``, and whether there was one."""
    replaced = False

    def mend(match: re.Match[bytes]) -> bytes:
        nonlocal replaced
        start = match.start()
        run = start
        while run and body[run - 1] == _BACKSLASH:
            run -= 1
        literal = (start - run) % 2 == 1  # the backslash is itself escaped: the first half is ordinary text
        low = match["low"]
        if (low is not None) != literal:
            return match[0]
        replaced = True
        return match[0][: -len(low)] + rb"\ufffd" if low is not None else rb"\ufffd"

    return _SURROGATE.sub(mend, body), replaced


def _deeper_than(value: dict[str, Any], limit: int) -> bool:
    """Whether ``value`` is nested more than ``limit`` levels deep. Breadth first, not recursive."""
    level: list[Any] = [value]
    for _ in range(limit):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) is dict or type(inner) is list
        ]
        if not level:
            return False
    return True
