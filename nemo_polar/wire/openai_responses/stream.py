# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""One streamed Responses answer: the complete sequence of events.

Joined, the events say what the whole answer says (``reply``), and the last one is the whole answer. An item is
opened by its first delta and closed by the next of another kind, or by the end. A tool call comes whole.

- A keep-alive is a ``response.in_progress`` event. Codex 0.171 gives a stream up when no *event* has come for as long as its
  ``stream_idle_timeout_ms`` says, and a comment is none (measured). Every client takes this one for what it says.
- ``start`` is called after the first delta or keep-alive was made, and its events go before: numbers 0 and 1 are kept for it.
- A stream that fails ends with ``response.failed``, which has the items that were complete.
"""

from __future__ import annotations

from typing import Any

import orjson

from nemo_polar.errors import CallError
from nemo_polar.types import Delta, ModelCall, ReasoningDelta, Reply, TextDelta, ToolCall, ToolCallDelta
from nemo_polar.wire import sse
from nemo_polar.wire.openai_responses.reply import (
    COMPLETED,
    IN_PROGRESS,
    INCOMPLETE,
    Items,
    begun,
    failed,
    finished,
    reasoning_part,
    status_of,
    text_part,
)

_STARTED = 2


class ResponsesStream:
    """The events of one reply, numbered as they are made."""

    content_type = sse.CONTENT_TYPE

    def __init__(self, call: ModelCall, reply_id: str, created: int, model: str) -> None:
        self._call, self._reply_id, self._created, self._model = call, reply_id, created, model
        self._items = Items(call, reply_id)
        self._begun = orjson.dumps(begun(call, reply_id, created, model))
        self._number = _STARTED
        self._done: list[dict[str, Any]] = []
        """The items that are complete."""
        self._open: type[TextDelta] | type[ReasoningDelta] | None = None
        """What the open item is made of."""
        self._id = ""
        self._text: list[str] = []
        self._before = b""
        """All of a delta event of the open item but its text, its number and its end."""
        self._after = b""

    def start(self) -> bytes:
        return self._status("response.created", 0) + self._status("response.in_progress", 1)

    def delta(self, delta: Delta) -> bytes:
        if isinstance(delta, ToolCallDelta):
            return self._close(COMPLETED) + self._tool_call(delta.call)
        if not delta.text:
            return b""
        opened = b"" if type(delta) is self._open else self._close(COMPLETED) + self._begin(type(delta))
        self._text.append(delta.text)
        number = self._next()
        payload = self._before + orjson.dumps(delta.text) + self._after + b"%d}" % number
        return opened + sse.event(_DELTAS[type(delta)], payload)

    def keep_alive(self) -> bytes:
        return self._status("response.in_progress", self._next())

    def finish(self, reply: Reply) -> bytes:
        status = status_of(reply)
        closing = self._close(status)
        if all(item["type"] == "reasoning" for item in self._done):
            closing += self._begin(TextDelta) + self._close(status)
        kind = "response.incomplete" if status == INCOMPLETE else "response.completed"
        return closing + self._event(kind, response=finished(self._call, reply, self._reply_id))

    def error(self, exc: CallError) -> bytes:
        """The provider's way to say that the response has failed; no terminal event of another kind follows."""
        whole = failed(self._call, self._reply_id, self._created, self._model, self._done, exc)
        return self._event("response.failed", response=whole)

    # --- items --------------------------------------------------------------------------------------------------------

    def _begin(self, kind: type[TextDelta] | type[ReasoningDelta]) -> bytes:
        """Open an item of that kind, with its one part still empty."""
        index = len(self._done)
        made = self._items.message if kind is TextDelta else self._items.reasoning
        item = made(index, "", IN_PROGRESS)
        part = text_part("") if kind is TextDelta else reasoning_part("")
        self._open, self._id, self._text = kind, item["id"], []
        place = orjson.dumps({"type": _DELTAS[kind], **self._place()})
        self._before = place[:-1] + b',"delta":'
        self._after = (b',"logprobs":[]' if kind is TextDelta else b"") + b',"sequence_number":'
        return self._event("response.output_item.added", output_index=index, item=item) + self._event(
            "response.content_part.added", **self._place(), part=part
        )

    def _close(self, status: str) -> bytes:
        """Close the open item, if there is one."""
        kind = self._open
        if kind is None:
            return b""
        text, place, index = "".join(self._text), self._place(), len(self._done)
        self._open = None
        if kind is TextDelta:
            item, part = self._items.message(index, text, status), text_part(text)
            said = self._event("response.output_text.done", **place, text=text, logprobs=[])
        else:
            item, part = self._items.reasoning(index, text, status), reasoning_part(text)
            said = self._event("response.reasoning_text.done", **place, text=text)
        self._done.append(item)
        return (
            said
            + self._event("response.content_part.done", **place, part=part)
            + self._event("response.output_item.done", output_index=index, item=item)
        )

    def _tool_call(self, call: ToolCall) -> bytes:
        index = len(self._done)
        item = self._items.call(index, call)
        field = "input" if item["type"] == "custom_tool_call" else "arguments"
        kind = "response.custom_tool_call_input" if field == "input" else "response.function_call_arguments"
        place = {"item_id": item["id"], "output_index": index}
        self._done.append(item)
        out = self._event("response.output_item.added", output_index=index, item={**item, field: "", "status": IN_PROGRESS})
        if item[field]:
            out += self._event(f"{kind}.delta", **place, delta=item[field])
        return (
            out
            + self._event(f"{kind}.done", **place, **{field: item[field]})
            + self._event("response.output_item.done", output_index=index, item=item)
        )

    # --- events -------------------------------------------------------------------------------------------------------

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._id, "output_index": len(self._done), "content_index": 0}

    def _next(self) -> int:
        number = self._number
        self._number += 1
        return number

    def _event(self, kind: str, **fields: Any) -> bytes:
        return sse.event(kind, orjson.dumps({"type": kind, **fields, "sequence_number": self._next()}))

    def _status(self, kind: str, number: int) -> bytes:
        return sse.event(kind, b'{"type":"%b","response":%b,"sequence_number":%d}' % (kind.encode(), self._begun, number))


_DELTAS: dict[type[TextDelta] | type[ReasoningDelta], str] = {
    TextDelta: "response.output_text.delta",
    ReasoningDelta: "response.reasoning_text.delta",
}
