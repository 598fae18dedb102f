# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Reading the contents of a Gemini request, and its system instruction.

Text, arguments and ids are kept to the character, except that adjacent texts are joined. Where Google's own behaviour left a
choice:

- Contents of the model that follow one another are one message: a client that keeps a streamed reply may keep each chunk.
- Reasoning comes back as thought parts, as what we sealed in signatures, as both or not at all. The longer of the two counts: a
  client may have dropped some parts or some signatures. It stands before the rest of its message, as in every dialect. A
  signature of somebody else's is left out, and so is one in a part that is not the model's.
- A content without a role is the user's, and ``function`` is an older name for who answers calls.
- A model's part may be empty, and so may its content: so does an empty reply come back, where a client leaves empty strings
  out.
- Calls need no results, but a result needs its call (``calls``).
- Images may stand in the user's parts and in results. Code that Google would have run, and its output, are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nemo_polar.types import Message, Part, Reasoning, Role, Text, ToolCall, ToolResult
from nemo_polar.wire.fields import Dropped, Fields, invalid, objects, shown, unsupported
from nemo_polar.wire.gemini.calls import CallsMade
from nemo_polar.wire.gemini.media import read_media
from nemo_polar.wire.gemini.names import camel, camel_child, camel_children, leave_out
from nemo_polar.wire.gemini.signature import Piece, read_signature, whole
from nemo_polar.wire.history import Read, is_plain, longest

_MODEL = "model"
_ROLES = ("user", _MODEL, "function")
_USER_KINDS = frozenset({"text", "inlineData", "fileData", "functionResponse"})
_MODEL_KINDS = frozenset({"text", "functionCall"})
_REFUSED: Mapping[str, str] = {
    "executableCode": "no code is run for the model",
    "codeExecutionResult": "no code is run for the model",
    "toolCall": "no tool is run for the model",
    "toolResponse": "no tool is run for the model",
}
_DROPPED: Mapping[str, str] = {
    "videoMetadata": "the model takes no video",
    "mediaResolution": "the model's renderer decides on resolution",
    "partMetadata": "it says nothing to the model",
}
_SAYS_WHAT = _USER_KINDS | _MODEL_KINDS | _REFUSED.keys()
_READ_FIELDS = frozenset({*_SAYS_WHAT, "thought", "thoughtSignature"})
_PART_FIELDS = _READ_FIELDS | _DROPPED.keys()
_CONTENT_FIELDS = frozenset({"role", "parts"})
_WHERE = "contents.parts."
_FOREIGN = f"{_WHERE}thoughtSignature: not one of ours"


@dataclass(frozen=True, slots=True)
class _Entry:
    """What one message is read from."""

    raw: Any
    """Its JSON: a content of the user's; a list of contents of the model's; ``[_SYSTEM, instruction]``."""
    start: int
    """The index of its first content."""


_SYSTEM = "systemInstruction"
_OURS = object()
"""Stands with the first entry of every ``Read`` of this dialect: no request of another one begins with it."""


def read_contents(request: Fields, history: Sequence[Read], dropped: Dropped) -> Read:
    """All messages of a request (its names in camel case), the system instruction first. Those that begin ``history`` too are
    taken over from there. ``dropped`` gets what was left out of a system instruction that says nothing, so is no message.

    Raises:
        BadRequest: a wrong type or role, a part that the role cannot have, a result whose call was never made.
    """
    of_system = Dropped()
    system = _system(request, of_system)
    if system is None:
        dropped.include(of_system.phrases())
    entries = list(_entries(request, system is not None))
    raw: list[Any] = [entry.raw for entry in entries]
    raw[0] = (_OURS, raw[0])
    known, shared = longest(history, raw)
    messages = [] if known is None else list(known.messages[:shared])
    marks = [] if known is None else list(known.marks[:shared])
    plain = [] if known is None else list(known.plain[:shared])
    left_out = Dropped(known.phrases[: marks[-1]]) if known is not None and marks else Dropped()
    calls = CallsMade(messages)
    for entry in entries[shared:]:
        if system is not None and not messages:
            left_out.include(of_system.phrases())
            message = system
        else:
            message = _message(entry, request.at("contents"), calls, left_out)
        messages.append(message)
        marks.append(len(left_out))
        plain.append(is_plain(entry.raw) and not _passes_order_on(entry.raw))
    kept = raw if known is None else known.entries[:shared] + raw[shared:]  # one copy of what both hold
    return Read(kept, tuple(plain), tuple(messages), left_out.phrases(), tuple(marks))


def _entries(request: Fields, system: bool) -> Iterator[_Entry]:
    if not request.given("contents"):
        raise request.missing("contents")
    value = request.raw["contents"]
    contents = [value] if type(value) is dict else request.array("contents")
    if not contents:
        raise invalid(request.at("contents"), "must not be empty")
    if system:
        yield _Entry([_SYSTEM, request.raw[_SYSTEM]], 0)
    run: list[Any] = []
    for i, content in enumerate(contents):
        if type(content) is not dict:  # said here: a list in its place would look like the model's, or like an instruction
            objects(contents, request.at("contents"))
        if content.get("role") == _MODEL:
            run.append(content)
            continue
        if run:
            yield _Entry(run, i - len(run))
            run = []
        yield _Entry(content, i)
    if run:
        yield _Entry(run, len(contents) - len(run))


def _passes_order_on(raw: Any) -> bool:
    """Whether the order of keys shows in what ``raw`` is read as: where there are arguments or results of several members."""
    contents = raw if type(raw) is list else [raw]
    for content in contents:
        parts = content.get("parts") if type(content) is dict else None  # none in the name of a system instruction
        for part in parts if type(parts) is list else [parts]:
            if type(part) is dict and any(_has_order(value) for value in part.values() if type(value) is dict):
                return True
    return False


def _has_order(value: Any) -> bool:
    """Whether an object in the members of ``value`` has several. Its depth was judged before (``is_plain``)."""
    inner = value.values() if type(value) is dict else value if type(value) is list else ()
    return any((type(v) is dict and len(v) > 1) or _has_order(v) for v in inner)


def _system(request: Fields, dropped: Dropped) -> Message | None:
    """The system instruction, a content or a string; None when it says nothing."""
    if type(request.raw.get(_SYSTEM)) is str:
        text = request.string(_SYSTEM)
    else:
        content = camel_child(request, _SYSTEM)
        if content is None:
            return None
        dropped.unknown(content, _CONTENT_FIELDS, f"{_SYSTEM}.")
        text = "".join(_system_text(part, dropped) for part in camel_children(content, "parts"))
    return Message(Role.SYSTEM, (Text(text),)) if text else None


def _system_text(part: Fields, dropped: Dropped) -> str:
    kind = _kind(part)
    if kind not in (None, "text"):
        raise invalid(part.at(kind or ""), "a system instruction is text")
    dropped.unknown(part, ("text",), f"{_SYSTEM}.parts.")
    return part.optional_string("text") or ""


def _message(entry: _Entry, path: str, calls: CallsMade, dropped: Dropped) -> Message:
    raw = entry.raw if type(entry.raw) is list else [entry.raw]
    contents = [camel(Fields(content, f"{path}[{i}]")) for i, content in enumerate(raw, entry.start)]
    for content in contents:
        if not _CONTENT_FIELDS.issuperset(content.raw):
            dropped.unknown(content, _CONTENT_FIELDS, "contents.")
    role = contents[0].optional_string("role") or "user"
    if role not in _ROLES:
        raise invalid(contents[0].at("role"), f"must be 'user' or 'model', got {shown(role)}")
    if role == _MODEL:
        return _model_message(contents, calls, dropped)
    return _user_message(contents[0], calls, dropped)


def _user_message(content: Fields, calls: CallsMade, dropped: Dropped) -> Message:
    found = camel_children(content, "parts")
    if not found:
        raise content.missing("parts")
    parts = _Parts()
    for part in found:
        kind = _read_kind(part, _USER_KINDS, "user", dropped)
        if kind is None:
            raise invalid(part.path, "has no data")
        if part.boolean("thought"):
            raise invalid(part.at("thought"), "only the model's parts are thoughts")
        if part.given("thoughtSignature"):
            dropped.add(_FOREIGN)
        if kind == "text":
            parts.text(part.string(kind))
        elif kind == "functionResponse":
            parts.add(calls.result(part.child(kind), dropped))
        else:
            parts.add(read_media(camel(part.child(kind)), kind, dropped))
    read = parts.all()
    only_results = bool(read) and all(isinstance(part, ToolResult) for part in read)
    return Message(Role.TOOL if only_results else Role.USER, tuple(read))


def _model_message(contents: list[Fields], calls: CallsMade, dropped: Dropped) -> Message:
    parts = _Parts()
    thoughts: list[str] = []
    pieces: list[Piece] = []
    made: list[ToolCall] = []
    for content in contents:
        for part in camel_children(content, "parts"):
            kind = _read_kind(part, _MODEL_KINDS, _MODEL, dropped)
            signature = part.optional_string("thoughtSignature")
            if signature:
                piece = read_signature(signature)
                if piece is None:
                    dropped.add(_FOREIGN)
                else:
                    pieces.append(piece)
            thought = part.boolean("thought")
            if kind == "functionCall":
                made.append(calls.call(part.child(kind), len(made), dropped))
                parts.add(made[-1])
            elif kind == "text" and thought:
                thoughts.append(part.string(kind))
            elif kind == "text":
                parts.text(part.string(kind))
    reasoning = max("".join(thoughts), whole(pieces) or "", key=len)
    calls.made(made)
    return Message(Role.ASSISTANT, (*([Reasoning(reasoning)] if reasoning else []), *parts.all()))


class _Parts:
    """The parts of one message, adjacent texts joined."""

    def __init__(self) -> None:
        self._parts: list[Part] = []
        self._run: list[str] = []

    def text(self, text: str) -> None:
        if text:
            self._run.append(text)

    def add(self, part: Part) -> None:
        self.all().append(part)

    def all(self) -> list[Part]:
        """Those so far."""
        if self._run:
            self._parts.append(Text("".join(self._run)))
            self._run.clear()
        return self._parts


def _kind(part: Fields) -> str | None:
    """The one member that says what a part is."""
    found = [name for name, value in part.raw.items() if value is not None and name in _SAYS_WHAT]
    for kind, reason in _REFUSED.items():
        if kind in found:
            raise unsupported(part.at(kind), reason)
    if len(found) > 1:
        raise invalid(part.path, f"is one thing, not {' and '.join(sorted(found))}")
    return found[0] if found else None


def _read_kind(part: Fields, allowed: frozenset[str], role: str, dropped: Dropped) -> str | None:
    kind = _kind(part)
    if kind is not None and kind not in allowed:
        raise invalid(part.at(kind), f"a part of the {role}'s is one of {', '.join(sorted(allowed))}")
    if not _READ_FIELDS.issuperset(part.raw):
        leave_out(part, _DROPPED, _WHERE, dropped)
        dropped.unknown(part, _PART_FIELDS, _WHERE)
    return kind
