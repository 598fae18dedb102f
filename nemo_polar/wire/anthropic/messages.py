# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Reading the messages of an Anthropic Messages request, its ``system`` included, from where they differ from earlier ones.

Text, ids and the order of parts are kept to the character. Where Anthropic's own behaviour left a choice (for blocks see
``blocks``):

- Cache marks do not count, and a message of one string is one of one text block. Empty text makes no part.
- Assistant messages in a row are one turn, as with Anthropic: a client may send each block of a reply as a message of its
  own. User messages in a row stay apart.
- A user message's results are put in the order of their calls. Harnesses send them in the order they were done, which says
  nothing, and many chat templates tell the model by their order alone which result is whose. Text between them stays put.
- An assistant message may be empty: that is how an empty reply comes back. Calls need no results (the run may have been cut
  short), but a result needs its call; where an id was used twice, the later call is meant.
- A system message may stand anywhere among the messages, as Claude Code sends them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from nemo_polar.types import Message, Part, Role, Text, ToolResult
from nemo_polar.wire.anthropic.blocks import Reader
from nemo_polar.wire.anthropic.entries import Entries, has_reference, is_plain_entry
from nemo_polar.wire.anthropic.tools import MessagesRead, Tools
from nemo_polar.wire.fields import Dropped, Fields, invalid, objects, shown
from nemo_polar.wire.history import longest

_ROLES: Mapping[str, Role] = {role.value: role for role in (Role.USER, Role.ASSISTANT, Role.SYSTEM)}
_FIELDS = frozenset({"role", "content"})


def read_messages(request: Fields, tools: Tools, history: Sequence[MessagesRead]) -> tuple[MessagesRead, bool]:
    """``system`` and all messages of a request, at least one of the latter; and whether there was a cache mark among them.

    Those that begin an earlier request too are taken over from there.

    Raises:
        BadRequest: a wrong type or role, a block that the role cannot have, a result whose call was never made.
    """
    if not request.given("messages"):
        raise request.missing("messages")
    raw = request.array("messages")
    if not raw:
        raise invalid("messages", "must not be empty")
    system = request.string_or_objects("system")
    entries = Entries.of(request.raw["system"] if system else None, raw)
    found, shared = longest(history, entries.all)
    known = found if isinstance(found, MessagesRead) else None
    if known is not None and known.all_tools.as_json != tools.as_json:
        # What is read into a reference depends on the tools.
        shared = next((i for i, entry in enumerate(entries.all[:shared]) if has_reference(entry)), shared)
    reader = Reader(tools.deferred)
    messages: list[Message] = []
    marks: list[int] = []
    plain: list[bool] = []
    everything = entries.all
    if known is not None and shared:
        messages, marks, plain = list(known.messages[:shared]), list(known.marks[:shared]), list(known.plain[:shared])
        reader.dropped = Dropped(known.phrases[: marks[-1]])
        for call in (call for message in messages for call in message.tool_calls):
            reader.note(call)
        everything = known.entries[:shared] + entries.all[shared:]  # one copy of what both hold
    for entry in _rest(entries, shared):
        messages.append(_message(entry, reader))
        marks.append(len(reader.dropped))
        plain.append(is_plain_entry(entry.raw))
    read = MessagesRead(
        entries=everything,
        plain=tuple(plain),
        messages=tuple(messages),
        phrases=reader.dropped.phrases(),
        marks=tuple(marks),
        tools_json=tools.as_json,
        tools=tools.offered,
        tools_phrases=tools.phrases,
        all_tools=tools,
    )
    return read, entries.marked


def joined_turns(messages: Sequence[Message]) -> tuple[Message, ...]:
    """``messages`` with those of the assistant that stand in a row made one; any other is the same object."""
    joined: list[Message] = []
    for role, group in groupby(messages, key=lambda message: message.role):
        found = list(group)
        if role is Role.ASSISTANT and len(found) > 1:
            found = [Message(role, tuple(part for message in found for part in message.parts))]
        joined += found
    return tuple(joined)


def _rest(entries: Entries, shared: int) -> Iterable[Fields]:
    """The entries from ``shared`` on, with the paths that they have in the request."""
    if entries.system and not shared:
        yield Fields(entries.all[0])
    yield from objects(entries.all[entries.system :], "messages", start=max(0, shared - entries.system))


def _message(entry: Fields, reader: Reader) -> Message:
    if not entry.path:
        return Message(Role.SYSTEM, _parts(objects(entry.raw["content"], "system"), Role.SYSTEM, reader))
    value = entry.string("role")
    role = _ROLES.get(value)
    if role is None:
        raise invalid(entry.at("role"), f"must be one of {', '.join(_ROLES)}, got {shown(value)}")
    if not entry.given("content"):
        raise entry.missing("content")
    if not _FIELDS.issuperset(entry.raw):
        reader.dropped.unknown(entry, _FIELDS, "messages.")
    content = entry.string_or_objects("content")
    if isinstance(content, str):  # which ``Entries`` has made a block
        return Message(role, (Text(content),) if content else ())
    parts = _parts(content or (), role, reader)
    return Message(role, _in_call_order(parts, reader) if role is Role.USER else parts)


def _parts(blocks: Iterable[Fields], role: Role, reader: Reader) -> tuple[Part, ...]:
    parts = (reader.part(block, role) for block in blocks)
    return tuple(part for part in parts if part is not None)


def _in_call_order(parts: tuple[Part, ...], reader: Reader) -> tuple[Part, ...]:
    """``parts`` with each result in the place of one, and all of them in the order of their calls."""
    results = [part for part in parts if isinstance(part, ToolResult)]
    if len(results) < 2:
        return parts
    ordered = iter(sorted(results, key=reader.place))
    return tuple(next(ordered) if isinstance(part, ToolResult) else part for part in parts)
