# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Reading the messages of a Chat Completions request.

Text, arguments and ids are kept to the character: what is compared with the recorded tree later must be what the harness sent.
Where OpenAI's own behaviour left a choice:

- Empty text makes no part, so that ``""``, ``[]`` and an empty text block are one and the same.
- An assistant message may have neither content nor calls: that is how an empty reply comes back. Calls need no results either
  (the run may have been cut short), but a result needs its call; where an id was used twice, the later call is meant.
- ``reasoning_content`` and ``reasoning`` are two names for one thing; the first counts where both are given.
- A refusal in the history is text that the assistant said.
- A result is named after its call, whatever ``name`` the message has.
- Images may stand in user messages and in tool results. The legacy ``function`` role is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nemo_polar.errors import BadRequest
from nemo_polar.types import Image, Message, Part, Reasoning, Role, Text, ToolCall, ToolResult
from nemo_polar.wire.fields import Dropped, Fields, invalid, objects, shown, unsupported
from nemo_polar.wire.history import Read, is_plain, longest

NO_CACHE = "there is no prompt cache to steer"

_ROLES: Mapping[str, Role] = {role.value: role for role in Role}
_MESSAGE_FIELDS: Mapping[Role, frozenset[str]] = {
    Role.SYSTEM: frozenset({"role", "content", "name"}),
    Role.DEVELOPER: frozenset({"role", "content", "name"}),
    Role.USER: frozenset({"role", "content", "name"}),
    Role.ASSISTANT: frozenset(
        {"role", "content", "name", "refusal", "tool_calls", "reasoning_content", "reasoning", "audio", "function_call"}
    ),
    Role.TOOL: frozenset({"role", "content", "tool_call_id", "name"}),
}
_PARTS: Mapping[Role, tuple[str, ...]] = {
    Role.SYSTEM: ("text",),
    Role.DEVELOPER: ("text",),
    Role.USER: ("text", "image_url"),
    Role.ASSISTANT: ("text", "refusal"),
    Role.TOOL: ("text", "image_url"),
}
_PART_FIELDS: Mapping[str, frozenset[str]] = {kind: frozenset({"type", kind}) for kind in ("text", "refusal", "image_url")}
_CALL_FIELDS = frozenset({"id", "type", "function"})
_CALLED_FIELDS = frozenset({"name", "arguments"})
_CACHE_MARKS = frozenset({"cache_control", "prompt_cache_breakpoint"})


def read_messages(request: Fields, history: Sequence[Read] = ()) -> Read:
    """All messages of a request; at least one. Those that begin ``history`` too are taken over from there.

    Raises:
        BadRequest: a wrong type or role, a part that the role cannot have, a result whose call was never made.
    """
    if not request.given("messages"):
        raise request.missing("messages")
    raw = request.array("messages")
    if not raw:
        raise invalid("messages", "must not be empty")
    known, shared = longest(history, raw)
    messages, marks, plain = ([], [], []) if known is None else _beginning(known, shared)
    dropped = Dropped() if known is None or not marks else Dropped(known.phrases[: marks[-1]])
    called = {call.id: call.name for message in messages for call in message.tool_calls}
    for entry in objects(raw, request.at("messages"), start=shared):
        messages.append(_message(entry, called, dropped))
        marks.append(len(dropped))
        plain.append(is_plain(entry.raw))
    entries = raw if known is None else known.entries[:shared] + raw[shared:]  # one copy of what both hold
    return Read(entries, tuple(plain), tuple(messages), dropped.phrases(), tuple(marks))


def _beginning(known: Read, shared: int) -> tuple[list[Message], list[int], list[bool]]:
    return list(known.messages[:shared]), list(known.marks[:shared]), list(known.plain[:shared])


def _message(entry: Fields, called: dict[str, str], dropped: Dropped) -> Message:
    """One message. ``called`` maps the ids of the calls made so far to their names; an assistant's calls are added to it."""
    role = _role(entry)
    leave_out(entry, _MESSAGE_FIELDS[role], "messages.", dropped)
    name = entry.optional_string("name")
    if role is Role.ASSISTANT:
        return Message(role, _assistant_parts(entry, called, dropped), name)
    if not entry.given("content"):
        raise entry.missing("content")
    content = _content(entry, role, dropped)
    if role is not Role.TOOL:
        return Message(role, content, name)
    call_id = entry.nonempty_string("tool_call_id")
    if call_id not in called:
        raise invalid(entry.at("tool_call_id"), f"no earlier assistant message made a call with the id {shown(call_id)}")
    return Message(role, (ToolResult(call_id, content, called[call_id]),))


def _role(entry: Fields) -> Role:
    value = entry.string("role")
    role = _ROLES.get(value)
    if role is None:
        path = entry.at("role")
        if value == "function":
            raise unsupported(path, "'function' is the legacy form of 'tool'")
        raise invalid(path, f"must be one of {', '.join(_ROLES)}, got {shown(value)}")
    return role


def _assistant_parts(entry: Fields, called: dict[str, str], dropped: Dropped) -> tuple[Part, ...]:
    """In the one order that this API implies: reasoning, text, calls."""
    if entry.given("function_call"):
        raise unsupported(entry.at("function_call"), "it is the legacy form of `tool_calls`")
    if entry.given("audio"):
        raise unsupported(entry.at("audio"), "the model takes no audio")
    parts: list[Part] = []
    thoughts = [entry.optional_string(field) for field in ("reasoning_content", "reasoning")]
    thought = next((t for t in thoughts if t), None)
    if thought:
        parts.append(Reasoning(thought))
        if all(thoughts) and thoughts[0] != thoughts[1]:
            dropped.add("messages.reasoning: `reasoning_content` is given too")
    parts += _content(entry, Role.ASSISTANT, dropped)
    refusal = entry.optional_string("refusal")
    if refusal:
        parts.append(Text(refusal))
    for raw in entry.children("tool_calls"):
        call = _tool_call(raw, dropped)
        called[call.id] = call.name
        parts.append(call)
    return tuple(parts)


def _tool_call(call: Fields, dropped: Dropped) -> ToolCall:
    """A call in the history. ``type`` may be missing; ``arguments`` is kept as the string it is."""
    kind = call.optional_string("type")
    if kind not in (None, "function"):
        raise unsupported(call.at("type"), f"calls are of functions, not {shown(kind)}")
    function = call.child("function")
    leave_out(call, _CALL_FIELDS, "messages.tool_calls.", dropped)
    leave_out(function, _CALLED_FIELDS, "messages.tool_calls.function.", dropped)
    return ToolCall(
        id=call.nonempty_string("id"), name=function.nonempty_string("name"), arguments=function.string("arguments")
    )


def _content(entry: Fields, role: Role, dropped: Dropped) -> tuple[Text | Image, ...]:
    content = entry.string_or_objects("content")
    if not content:
        return ()
    if isinstance(content, str):
        return (Text(content),)
    parts = (_part(part, role, dropped) for part in content)
    return tuple(part for part in parts if part is not None)


def _part(part: Fields, role: Role, dropped: Dropped) -> Text | Image | None:
    kind = part.string("type")
    if kind not in _PARTS[role]:
        raise _refused_part(part, kind, role)
    leave_out(part, _PART_FIELDS[kind], "messages.content.", dropped)
    if kind != "image_url":
        text = part.string(kind)
        return Text(text) if text else None
    image = part.child("image_url")
    url = image.nonempty_string("url")
    if image.given("detail"):
        dropped.add("image_url.detail: the model's renderer decides on resolution")
    dropped.unknown(image, ("url", "detail"), "messages.content.image_url.")
    media_type = url[len("data:") :].partition(",")[0].partition(";")[0] if url.startswith("data:") else None
    return Image(url, media_type or None)


def _refused_part(part: Fields, kind: str, role: Role) -> BadRequest:
    path = part.at("type")
    if kind in ("input_audio", "file"):
        return unsupported(path, f"the model takes no {shown(kind)} parts")
    return invalid(path, f"a part of {role.value} content is one of {', '.join(_PARTS[role])}; got {shown(kind)}")


def leave_out(fields: Fields, known: frozenset[str], where: str, dropped: Dropped) -> None:
    """Record what the object holds beside ``known``: cache marks under their reason, the rest as unknown."""
    if known.issuperset(fields.raw):
        return
    for mark in sorted(_CACHE_MARKS):
        if fields.given(mark):
            dropped.add(f"{where}{mark}: {NO_CACHE}")
    dropped.unknown(fields, known | _CACHE_MARKS, where)
