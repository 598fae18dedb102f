# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Writing an Anthropic Messages answer as a stream of events.

A block is opened by its first delta and closed when something else follows: text after a call is a new block. A call comes
whole, so its block opens, is filled and closes at once; its arguments stand there as they were sampled, JSON or not. The
deltas of all blocks joined are the whole answer, but for the ``input`` of a call that is no JSON object.

Reasoning that the client does not want to see is not silence: each piece of it is a ``ping``, so that a client waiting for
long reasoning to end knows that somebody is there.
"""

from __future__ import annotations

from typing import Any, Literal

import orjson

from nemo_polar.errors import CallError
from nemo_polar.types import Delta, ModelCall, ReasoningDelta, Reply, TextDelta, ToolCallDelta, Usage
from nemo_polar.wire import sse
from nemo_polar.wire.anthropic import reply as answers
from nemo_polar.wire.seal import seal

_PING = sse.event("ping", b'{"type":"ping"}')


class MessagesStream:
    """One streamed answer."""

    content_type = sse.CONTENT_TYPE

    def __init__(self, call: ModelCall, reply_id: str, model: str, prompt_tokens: int):
        self._thinking = answers.thinking_of(call)
        self._head = answers.head(reply_id, model)
        self._prompt_tokens = prompt_tokens
        self._index = -1
        """Of the block that was opened last."""
        self._open: Literal["text", "thinking"] | None = None
        self._thought: list[str] = []
        """Text of the open thinking block."""

    def start(self) -> bytes:
        message = {**self._head, "usage": answers.usage(Usage(self._prompt_tokens, 0))}
        return _event("message_start", message=message) + _PING

    def delta(self, delta: Delta) -> bytes:
        if isinstance(delta, ToolCallDelta):
            return self._close() + self._call(delta)
        if isinstance(delta, TextDelta):
            if not delta.text:
                return b""
            return self._opened("text") + self._piece(b"text_delta", b"text", delta.text)
        return self._reasoning(delta)

    def keep_alive(self) -> bytes:
        return _PING

    def finish(self, reply: Reply) -> bytes:
        ending = _event("message_delta", delta=answers.ending(reply), usage=answers.usage(reply.usage))
        return self._close() + ending + _event("message_stop")

    def error(self, exc: CallError) -> bytes:
        """An ``error`` event. No ``message_stop`` follows: a client that skips it still sees a stream that was cut."""
        return sse.event("error", orjson.dumps(answers.error(exc)))

    def _reasoning(self, delta: ReasoningDelta) -> bytes:
        if self._thinking == "hidden" or not delta.text:
            return _PING
        opened = self._opened("thinking")
        self._thought.append(delta.text)
        shown = self._thinking == "shown"
        return opened + (self._piece(b"thinking_delta", b"thinking", delta.text) if shown else _PING)

    def _call(self, delta: ToolCallDelta) -> bytes:
        self._index += 1
        block = answers.tool_use(delta.call, {})
        start = _event("content_block_start", index=self._index, content_block=block)
        filled = self._piece(b"input_json_delta", b"partial_json", delta.call.arguments)
        return start + filled + _event("content_block_stop", index=self._index)

    def _opened(self, kind: Literal["text", "thinking"]) -> bytes:
        """What has to be written before a piece of ``kind``."""
        if self._open == kind:
            return b""
        closed = self._close()
        self._open = kind
        self._index += 1
        block = {"type": "text", "text": ""} if kind == "text" else answers.THINKING
        return closed + _event("content_block_start", index=self._index, content_block=block)

    def _close(self) -> bytes:
        """The end of the open block, if there is one."""
        if self._open is None:
            return b""
        signature = b""
        if self._open == "thinking":
            signature = self._piece(b"signature_delta", b"signature", seal("".join(self._thought)))
            self._thought.clear()
        self._open = None
        return signature + _event("content_block_stop", index=self._index)

    def _piece(self, kind: bytes, field: bytes, text: str) -> bytes:
        """One delta: written for every token or two, so put together by hand."""
        before = b'{"type":"content_block_delta","index":%d,"delta":{"type":"%b","%b":' % (self._index, kind, field)
        return sse.event("content_block_delta", before + orjson.dumps(text) + b"}}")


def _event(kind: str, **fields: Any) -> bytes:
    return sse.event(kind, orjson.dumps({"type": kind, **fields}))
