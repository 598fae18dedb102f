# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Writing a streamed Gemini answer, as events or as the entries of one JSON array.

Keep-alives are empty lines: Google's Python client takes a comment for an error that it cannot read. While the model thinks and
the client did not ask for thoughts, they stand for the thoughts.
"""

from __future__ import annotations

from typing import Any

import orjson

from nemo_polar.errors import CallError
from nemo_polar.types import Delta, ModelCall, ReasoningDelta, Reply, TextDelta
from nemo_polar.wire import sse
from nemo_polar.wire.gemini.errors import error_body
from nemo_polar.wire.gemini.reply import EMPTY_TEXT, PartWriter, last_chunk

_BLANK = b"\n"


class GeminiStream:
    """One streamed answer: a chunk a delta, and one with the finish reason and usage.

    Every chunk has a part, the last one too: clients that keep a streamed reply take one without for a failure of the whole.
    """

    def __init__(self, call: ModelCall, reply_id: str, model: str):
        self._call = call
        self._events = call.options.get("form") != "array"
        self.content_type = sse.CONTENT_TYPE if self._events else "application/json; charset=utf-8"
        self._writer = PartWriter(include_thoughts=bool(call.options.get("include_thoughts")))
        self._between = b""
        self._same = {"modelVersion": model, "responseId": reply_id}
        # All that is the same in every chunk is written once: a chunk is then one small dump and one join.
        empty = orjson.dumps({"candidates": [{"content": {"parts": None, "role": "model"}, "index": 0}], **self._same})
        before, _, after = empty.partition(b'"parts":null')
        self._before, self._after = before + b'"parts":', after

    def start(self) -> bytes:
        return b"" if self._events else b"["

    def delta(self, delta: Delta) -> bytes:
        if isinstance(delta, TextDelta):
            parts = self._writer.text(delta.text)
        elif isinstance(delta, ReasoningDelta):
            parts = self._writer.reasoning(delta.text)
        else:
            parts = self._writer.call(delta.call)
        return self._chunk(self._before + orjson.dumps(parts) + self._after) if parts else self.keep_alive()

    def keep_alive(self) -> bytes:
        return _BLANK

    def finish(self, reply: Reply) -> bytes:
        parts: list[dict[str, Any]] = self._writer.end() or [EMPTY_TEXT]
        return self._chunk(orjson.dumps({**last_chunk(self._call, reply, parts), **self._same})) + self._end()

    def error(self, exc: CallError) -> bytes:
        """The error as a chunk of its own, which clients raise."""
        return self._chunk(error_body(exc)) + self._end()

    def _chunk(self, payload: bytes) -> bytes:
        if self._events:
            return sse.data(payload)
        between, self._between = self._between, b",\n"
        return between + payload

    def _end(self) -> bytes:
        return b"" if self._events else b"]"
