# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Which call a ``functionResponse`` answers, and what it says.

This API needs no ids. Calls without one get one here, made from their place in the conversation, so that it is the same in
every request. A result belongs to the call of its id; failing that, to the first unanswered call of its name in the model's
last turn.

What a result says: a response whose only member is ``output`` (or ``result``, the Python client's word for it) stands for the
value of that member, one whose only member is ``error`` for that of an error; any other response is written out as JSON. Images
come in ``parts``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nemo_polar.types import Image, Message, Role, Text, ToolCall, ToolResult
from nemo_polar.wire.fields import Dropped, Fields, invalid, shown
from nemo_polar.wire.gemini.arguments import from_wire, written
from nemo_polar.wire.gemini.media import read_media
from nemo_polar.wire.gemini.names import camel, camel_child, camel_children, leave_out

_ERROR = "error"
_SAYS = ("output", "result", _ERROR)
_CALL_FIELDS = frozenset({"id", "name", "args"})
_LATER = "a result is taken as complete"
_RESULT_DROPPED: Mapping[str, str] = {"willContinue": _LATER, "scheduling": _LATER}
_RESULT_FIELDS = frozenset({"id", "name", "response", "parts"}) | _RESULT_DROPPED.keys()
_MEDIA = ("inlineData", "fileData")


class CallsMade:
    """The calls of a conversation as far as it is read."""

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self._by_id: dict[str, ToolCall] = {}
        self._open: list[ToolCall] = []
        """Those of the model's last turn that no result was seen of."""
        self._count = 0
        for message in messages:
            if message.role is Role.ASSISTANT:
                self.made(message.tool_calls)
                continue
            for part in message.parts:
                if isinstance(part, ToolResult):
                    self._close(part.call_id)

    def made(self, calls: Iterable[ToolCall]) -> None:
        """Note the calls of the model's next message."""
        self._open = list(calls)
        self._count += len(self._open)
        self._by_id |= {call.id: call for call in self._open}

    def call(self, fields: Fields, number: int, dropped: Dropped) -> ToolCall:
        """A ``functionCall``, the ``number``-th of its message. It counts once that is noted (``made``)."""
        fields = camel(fields)
        dropped.unknown(fields, _CALL_FIELDS, "contents.parts.functionCall.")
        made = fields.optional_string("id") or f"call-{self._count + number}"
        return ToolCall(made, fields.nonempty_string("name"), from_wire(fields))

    def result(self, fields: Fields, dropped: Dropped) -> ToolResult:
        """A ``functionResponse``.

        Raises:
            BadRequest: it answers no call.
        """
        fields = camel(fields)
        leave_out(fields, _RESULT_DROPPED, "contents.parts.functionResponse.", dropped)
        dropped.unknown(fields, _RESULT_FIELDS, "contents.parts.functionResponse.")
        call = self._answered(fields)
        self._close(call.id)
        text, is_error = _says(fields)
        images = _images(fields, dropped)
        return ToolResult(call.id, (*([Text(text)] if text else []), *images), call.name, is_error)

    def _answered(self, fields: Fields) -> ToolCall:
        call_id = fields.optional_string("id")
        if call_id:
            found = next((call for call in self._open if call.id == call_id), None) or self._by_id.get(call_id)
            if found is not None:
                return found
        name = fields.nonempty_string("name")
        found = next((call for call in self._open if call.name == name), None)
        if found is None:
            raise invalid(fields.at("name"), f"the model's last turn has no unanswered call of {shown(name)}")
        return found

    def _close(self, call_id: str) -> None:
        found = next((call for call in self._open if call.id == call_id), None)
        if found is not None:
            self._open.remove(found)


def _says(fields: Fields) -> tuple[str, bool]:
    """The text of a result, and whether it is that of an error."""
    response = fields.child("response")
    only = next(iter(response.raw), None) if len(response.raw) == 1 else None
    value = response.raw[only] if only in _SAYS else response.raw
    text = value if type(value) is str else written(value, response.path)
    return text, only == _ERROR


def _images(fields: Fields, dropped: Dropped) -> list[Image]:
    images: list[Image] = []
    for part in camel_children(fields, "parts"):
        dropped.unknown(part, _MEDIA, "contents.parts.functionResponse.parts.")
        for kind in _MEDIA:
            media = camel_child(part, kind)
            if media is not None:
                images.append(read_media(media, kind, dropped))
    return images
