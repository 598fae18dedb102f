# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Reading one input item of a Responses request: its text, its reasoning, its call or its result.

Text, arguments and ids are kept to the character. Where OpenAI's own behaviour left a choice:

- Empty text makes no part, so that ``""``, ``[]`` and an empty part are one and the same.
- Reasoning is what our own ``encrypted_content`` holds, else the text in ``content``, else the summary. What another server has
  encrypted cannot be read; it is left out and recorded.
- A refusal in the history is text that the assistant said.
- A custom tool call is a call whose arguments are an object with its input; see ``ids`` for the other kind.

How items make messages is the business of ``items``.
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from nemo_polar.errors import BadRequest
from nemo_polar.types import FREEFORM, Image, Part, Reasoning, Role, Text, ToolCall
from nemo_polar.wire.fields import Dropped, Fields, invalid, shown, unsupported
from nemo_polar.wire.openai_chat.messages import leave_out
from nemo_polar.wire.openai_responses.ids import without_mark
from nemo_polar.wire.openai_responses.tools import Offered
from nemo_polar.wire.seal import unseal

_ROLES: Mapping[str, Role] = {role.value: role for role in Role if role is not Role.TOOL}
_PARTS: Mapping[Role, tuple[str, ...]] = {
    Role.SYSTEM: ("input_text",),
    Role.DEVELOPER: ("input_text",),
    Role.USER: ("input_text", "input_image"),
    Role.ASSISTANT: ("output_text", "refusal", "input_text"),
    Role.TOOL: ("input_text", "input_image"),
}
_PART_FIELDS: Mapping[str, frozenset[str]] = {
    "input_text": frozenset({"type", "text"}),
    "output_text": frozenset({"type", "text", "annotations", "logprobs"}),
    "refusal": frozenset({"type", "refusal"}),
    "input_image": frozenset({"type", "image_url", "detail", "file_id"}),
}
_OTHER_PARTS = ("input_file", "input_audio", "encrypted_content")
_MESSAGE_FIELDS = frozenset({"type", "id", "role", "content", "status", "phase"})
_REASONING_FIELDS = frozenset({"type", "id", "summary", "content", "encrypted_content", "status"})
_CALL_FIELDS = frozenset({"type", "id", "call_id", "name", "namespace", "status", "caller"})


def message(item: Fields, dropped: Dropped) -> tuple[Role, tuple[Text | Image, ...]]:
    """The role and content of a message.

    Raises:
        BadRequest: an unknown role, a wrong type, or a part that the role cannot have.
    """
    value = item.string("role")
    role = _ROLES.get(value)
    if role is None:
        raise invalid(item.at("role"), f"must be one of {', '.join(_ROLES)}, got {shown(value)}")
    leave_out(item, _MESSAGE_FIELDS, "input.", dropped)
    return role, content(item, "content", role, dropped)


def content(item: Fields, name: str, role: Role, dropped: Dropped) -> tuple[Text | Image, ...]:
    """A required field that is a string or an array of parts.

    Raises:
        BadRequest: it is missing, of a wrong type, or has a part that ``role`` cannot have.
    """
    if not item.given(name):
        raise item.missing(name)
    found = item.string_or_objects(name)
    if not found:
        return ()
    if isinstance(found, str):
        return (Text(found),)
    parts = (_part(part, role, dropped) for part in found)
    return tuple(part for part in parts if part is not None)


def _part(part: Fields, role: Role, dropped: Dropped) -> Text | Image | None:
    kind = part.string("type")
    if kind not in _PARTS[role]:
        raise _refused_part(part, kind, role)
    leave_out(part, _PART_FIELDS[kind], "input.content.", dropped)
    if kind != "input_image":
        text = part.string("refusal" if kind == "refusal" else "text")
        return Text(text) if text else None
    if part.given("file_id"):
        raise unsupported(part.at("file_id"), "no files are stored here")
    url = part.nonempty_string("image_url")
    if part.given("detail"):
        dropped.add("input_image.detail: the model's renderer decides on resolution")
    media_type = url[len("data:") :].partition(",")[0].partition(";")[0] if url.startswith("data:") else None
    return Image(url, media_type or None)


def _refused_part(part: Fields, kind: str, role: Role) -> BadRequest:
    path = part.at("type")
    if kind in _OTHER_PARTS:
        return unsupported(path, f"the model takes no {shown(kind)} parts")
    return invalid(path, f"a part of {role.value} content is one of {', '.join(_PARTS[role])}; got {shown(kind)}")


def reasoning(item: Fields, dropped: Dropped) -> Part | None:
    """The reasoning in a ``reasoning`` item, if it holds any that can be read."""
    leave_out(item, _REASONING_FIELDS, "input.", dropped)
    told = _texts(item, "content", ("reasoning_text", "text"))
    summary = _texts(item, "summary", ("summary_text",))
    sealed = item.optional_string("encrypted_content")
    text = unseal(sealed) if sealed else None
    if text is not None:
        text = text.encode("utf-8", "replace").decode()  # one that was made up can hold what no tokenizer takes
    if sealed and text is None:
        dropped.add("reasoning.encrypted_content: it was not written here")
    elif text is not None and told and told != text:
        dropped.add("reasoning.content: `encrypted_content` is given too")
    if text is None and not told and summary:
        dropped.add("reasoning.summary: it stands for the reasoning")
    text = (told or summary) if text is None else text
    return Reasoning(text) if text else None


def _texts(item: Fields, name: str, kinds: tuple[str, ...]) -> str:
    found: list[str] = []
    for part in item.children(name):
        if part.string("type") not in kinds:
            raise invalid(part.at("type"), f"must be one of {', '.join(kinds)}, got {shown(part.raw['type'])}")
        found.append(part.string("text"))
    return "".join(found)


def function_call(item: Fields, offered: Offered, dropped: Dropped) -> ToolCall:
    """A call in the history; ``arguments`` is kept as the string it is."""
    leave_out(item, _CALL_FIELDS | {"arguments"}, "input.", dropped)
    _check_caller(item)
    name = offered.flat(item.optional_string("namespace"), item.nonempty_string("name"))
    return ToolCall(item.nonempty_string("call_id"), name, item.string("arguments"))


def custom_call(item: Fields, offered: Offered, dropped: Dropped) -> ToolCall:
    """A call of a custom tool in the history, with the arguments that its input came from."""
    leave_out(item, _CALL_FIELDS | {"input"}, "input.", dropped)
    _check_caller(item)
    name = offered.flat(item.optional_string("namespace"), item.nonempty_string("name"))
    call_id, whole = without_mark(item.nonempty_string("call_id"))
    text = item.string("input")
    return ToolCall(call_id, name, text if whole else orjson.dumps({FREEFORM: text}).decode())


def result(item: Fields, dropped: Dropped) -> tuple[str, tuple[Text | Image, ...]]:
    """The call id, as it was sent, and the content of a result."""
    leave_out(item, _CALL_FIELDS | {"output"}, "input.", dropped)
    _check_caller(item)
    return item.nonempty_string("call_id"), content(item, "output", Role.TOOL, dropped)


def _check_caller(item: Fields) -> None:
    caller = item.optional_child("caller")
    if caller is not None and caller.string("type") != "direct":
        raise unsupported(caller.at("type"), "tools are called by the model itself")
