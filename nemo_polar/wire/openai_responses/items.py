# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""From the input items of a Responses request to messages.

A reply of the model is several items here (reasoning, text, calls) and one message in our nouns. Which items belong together:

- Items of the assistant that follow each other are one message, unless their ids say that they came from different replies.
- With results between them they are of one message only if their ids say so (a client that puts each result behind its call);
  the results then come after it, in their order.
- An item whose id is none of ours goes with its neighbours.

A result needs its call, except where the request goes on from a stored reply: the call is in there. ``instructions`` come
first, as a system message that is not part of the conversation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nemo_polar.errors import BadRequest
from nemo_polar.types import Message, Part, Role, Text, ToolResult
from nemo_polar.wire.fields import Dropped, Fields, invalid, objects, shown, unsupported
from nemo_polar.wire.history import Read, is_plain, longest
from nemo_polar.wire.openai_chat.messages import leave_out
from nemo_polar.wire.openai_responses.content import custom_call, function_call, message, reasoning, result
from nemo_polar.wire.openai_responses.ids import reply_of_item, without_mark
from nemo_polar.wire.openai_responses.tools import Offered

_SPEECH = frozenset({"reasoning", "function_call", "custom_tool_call"})
_RESULTS = frozenset({"function_call_output", "custom_tool_call_output"})
_SETTINGS = frozenset({"additional_tools", "configuration_update"})
"""Items that say nothing in the conversation."""
_NOT_SERVED = "such calls are neither made nor understood here"
_REFUSED: Mapping[str, str] = {
    "item_reference": "items are not stored; send the item itself",
    "compaction": "what another server has compacted cannot be read",
    "compaction_summary": "what another server has compacted cannot be read",
    "context_compaction": "what another server has compacted cannot be read",
    "compaction_trigger": "conversations are not compacted here",
    **dict.fromkeys(
        (
            *("local_shell_call", "local_shell_call_output", "shell_call", "shell_call_output", "web_search_call"),
            *("apply_patch_call", "apply_patch_call_output", "computer_call", "computer_call_output", "file_search_call"),
            *("code_interpreter_call", "image_generation_call", "mcp_list_tools", "mcp_call", "mcp_approval_request"),
            *("mcp_approval_response", "tool_search_call", "tool_search_output", "program", "program_output"),
        ),
        _NOT_SERVED,
    ),
}
_TOOLS_FIELDS = frozenset({"type", "id", "role", "tools", "status"})
_UPDATE_FIELDS = frozenset({"type", "id", "reasoning", "text"})


_UNFINISHED = Message(Role.ASSISTANT, ())
"""Stands for the assistant's message while items may still be added to it."""


@dataclass(frozen=True, slots=True)
class State:
    """What has been read, up to some entry."""

    messages: int = 0
    said: int = -1
    """Which message is the assistant's that more items may yet be part of; -1 for none."""
    reply: str | None = None
    """The reply that it came from, where an id has said so."""


@dataclass(frozen=True, slots=True)
class ItemsRead(Read):
    """A Responses request as it was understood.

    Its first entry stands for the instructions, and no JSON is equal to it: no other dialect takes anything over from here.
    ``messages`` are not one an entry; ``states`` says how many there were.
    """

    states: tuple[State, ...] = ()
    """After each entry."""
    offered: Offered = field(default_factory=Offered)


def read_items(
    request: Fields, offered: Offered, history: Sequence[Read], *, mark: str, continues: bool
) -> tuple[ItemsRead, int]:
    """The conversation of a request, and how many of its messages are the instructions.

    What begins a request in ``history`` too is taken over from there.

    Args:
        mark: what no other dialect's requests begin with.
        continues: the request goes on from a stored reply.

    Raises:
        BadRequest: a wrong type, an unknown or unsupported item, a result whose call was never made.
    """
    instructions = request.optional_string("instructions") or ""
    raw = _raw_items(request)
    entries: list[Any] = [(mark, instructions), *raw]
    known, shared = longest(history, entries)
    if isinstance(known, ItemsRead):
        reader = _Reader(offered, continues, known, _clean(known, shared, entries))
        entries = known.entries[: reader.start] + entries[reader.start :]  # one copy of what both hold
    else:
        reader = _Reader(offered, continues)
        reader.instructions(instructions)
    first = reader.start - 1  # of the items
    for item in objects(raw, "input", start=first) if not isinstance(raw[0], str) else ():
        reader.read(item)
    if isinstance(raw[0], str) and not first:
        reader.string(raw[0])
    return reader.done(entries), int(bool(instructions))


def _raw_items(request: Fields) -> list[Any]:
    if not request.given("input"):
        raise request.missing("input")
    raw = request.raw["input"]
    if isinstance(raw, str):
        return [raw]
    raw = request.array("input")
    if not raw:
        raise invalid("input", "must not be empty")
    if isinstance(raw[0], str):
        objects(raw, "input")  # whose business it is that a string is no item
    return raw


def _kind(entry: Any) -> str:
    """What an entry is to the messages around it: speech of the assistant, a result, a setting, or anything else."""
    if type(entry) is not dict:
        return "other"
    kind = entry.get("type") or "message"
    if not isinstance(kind, str):
        return "other"
    if kind in _SPEECH or (kind == "message" and entry.get("role") == Role.ASSISTANT.value):
        return "speech"
    return "result" if kind in _RESULTS else "setting" if kind in _SETTINGS else "other"


def _joins(state: State, reply: str | None) -> bool:
    """Whether speech of ``reply`` is part of the message that ``state`` has last."""
    if state.said < 0:
        return False
    if state.said == state.messages - 1:
        return reply is None or state.reply is None or reply == state.reply
    return reply is not None and reply == state.reply


def _clean(known: ItemsRead, shared: int, entries: Sequence[Any]) -> int:
    """How many of the ``shared`` entries can be taken over: none after them, here or there, may be part of their messages."""
    state = known.states[shared - 1]
    for rest in (known.entries, entries):
        following = next((e for e in rest[shared:] if _kind(e) not in ("result", "setting")), None)
        if following is not None and _kind(following) == "speech" and _joins(state, reply_of_item(following.get("id"))):
            return next(n for n, s in enumerate(known.states) if s.messages > state.said)
    return shared


class _Reader:
    """Reads entries one after the other, from where a known request is left."""

    def __init__(self, offered: Offered, continues: bool, known: ItemsRead | None = None, start: int = 0) -> None:
        self._offered, self._continues = offered, continues
        self._messages: list[Message] = []
        self._states: list[State] = []
        self._plain: list[bool] = []
        self._marks: list[int] = []
        self._dropped = Dropped()
        self._state = State()
        self._open: list[Part] = []
        """The parts so far of the assistant's message that is being put together."""
        if known is not None and start:
            self._state = known.states[start - 1]
            self._messages = list(known.messages[: self._state.messages])
            self._states, self._plain = list(known.states[:start]), list(known.plain[:start])
            self._marks = list(known.marks[:start])
            self._dropped = Dropped(known.phrases[: self._marks[-1]])
        self._called = {call.id: call.name for spoken in self._messages for call in spoken.tool_calls}
        self.start = start or 1

    def instructions(self, text: str) -> None:
        if text:
            self._append(Message(Role.SYSTEM, (Text(text),)))
        self._end(True)

    def string(self, text: str) -> None:
        """The whole input, given as a string."""
        self._append(Message(Role.USER, (Text(text),) if text else ()))
        self._end(True)

    def read(self, item: Fields) -> None:
        """One input item."""
        kind = item.optional_string("type") or "message"
        if kind == "message":
            role, parts = message(item, self._dropped)
            if role is Role.ASSISTANT:
                self._say(item, parts)
            else:
                self._append(Message(role, parts))
        elif kind == "reasoning":
            thought = reasoning(item, self._dropped)
            self._say(item, () if thought is None else (thought,))
        elif kind in _SPEECH:
            made = (function_call if kind == "function_call" else custom_call)(item, self._offered, self._dropped)
            self._called[made.id] = made.name
            self._say(item, (made,))
        elif kind in _RESULTS:
            self._append(Message(Role.TOOL, (self._result(item, kind),)))
        elif kind in _SETTINGS:
            self._setting(item, kind)
        else:
            raise _refused(item, kind)
        self._end(is_plain(item.raw))

    def done(self, entries: list[Any]) -> ItemsRead:
        self._close()
        return ItemsRead(
            entries,
            tuple(self._plain),
            tuple(self._messages),
            self._dropped.phrases(),
            tuple(self._marks),
            states=tuple(self._states),
            offered=self._offered,
        )

    def _say(self, item: Fields, parts: tuple[Part, ...]) -> None:
        reply = reply_of_item(item.raw.get("id"))
        state = self._state
        if _joins(state, reply):
            self._state = replace(state, reply=state.reply or reply)
        else:
            self._close()
            self._messages.append(_UNFINISHED)
            self._state = State(len(self._messages), len(self._messages) - 1, reply)
        self._open += parts

    def _close(self) -> None:
        """Put the assistant's message in its place."""
        said = self._state.said
        if said >= 0 and self._messages[said] is _UNFINISHED:
            self._messages[said] = Message(Role.ASSISTANT, tuple(self._open))
        self._open = []

    def _append(self, made: Message) -> None:
        if made.role is not Role.TOOL:
            self._close()
        self._messages.append(made)
        said = self._state.said if made.role is Role.TOOL else -1
        self._state = State(len(self._messages), said, self._state.reply if said >= 0 else None)

    def _result(self, item: Fields, kind: str) -> ToolResult:
        call_id, answered = result(item, self._dropped)
        if call_id not in self._called:
            plain, marked = without_mark(call_id)
            if marked and (plain in self._called or (self._continues and kind == "custom_tool_call_output")):
                call_id = plain
            elif not self._continues:
                path = item.at("call_id")
                raise invalid(path, f"no earlier item is a call with the id {shown(call_id)}")
        return ToolResult(call_id, answered, self._called.get(call_id))

    def _setting(self, item: Fields, kind: str) -> None:
        if kind == "additional_tools":
            leave_out(item, _TOOLS_FIELDS, "input.", self._dropped)
            return
        leave_out(item, _UPDATE_FIELDS, "input.", self._dropped)
        if item.given("text"):
            raise unsupported(item.at("text"), "a format constrains sampling, and such a sample cannot be re-scored")
        self._dropped.add("configuration_update: the run decides how the model thinks")

    def _end(self, plain: bool) -> None:
        self._states.append(self._state)
        self._plain.append(plain)
        self._marks.append(len(self._dropped))


def _refused(item: Fields, kind: str) -> BadRequest:
    path = item.at("type")
    if kind in _REFUSED:
        return unsupported(path, f"{shown(kind)}: {_REFUSED[kind]}")
    return invalid(path, f"there are no items of the type {shown(kind)}")
