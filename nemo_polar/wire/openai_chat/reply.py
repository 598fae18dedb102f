# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Writing Chat Completions answers, whole and streamed.

Both forms say the same: the chunks of a stream joined are the message of the whole answer. This API has one string of text, one
of reasoning and a list of calls, so how they were interleaved is not told. An aborted sample is told as ``length``: the API has
no word for it, and this is the one that makes a client treat the text as cut off.
"""

from __future__ import annotations

from typing import Any

import orjson

from nemo_polar.errors import CallError
from nemo_polar.types import (
    Delta,
    FinishReason,
    Message,
    ModelCall,
    ReasoningDelta,
    Reply,
    TextDelta,
    TokenLogProb,
    ToolCall,
    Usage,
)
from nemo_polar.wire import sse
from nemo_polar.wire.openai_common import error_body

_LOGPROBS_PER_CHUNK = 256
_DONE = sse.data(b"[DONE]")


def completion(call: ModelCall, reply: Reply) -> bytes:
    """The whole answer. ``content`` is null only when there are calls and no text; an empty answer is the empty string."""
    entries = reply.logprobs if call.want_logprobs else None
    return orjson.dumps(
        {
            "id": _response_id(reply.id),
            "object": "chat.completion",
            "created": reply.created,
            "model": reply.model,
            "choices": [
                {
                    "index": 0,
                    "message": _message(reply.message),
                    "logprobs": None if entries is None else _logprobs(entries),
                    "finish_reason": _finish_reason(reply),
                }
            ],
            "usage": _usage(reply.usage),
        }
    )


class ChatStream:
    """One streamed answer: the role, the deltas, log-probabilities if asked for, the finish reason, usage, the end.

    Which tokens belong to the reply is certain only when it is complete (text held back for a stop string may never be shown),
    so log-probabilities follow the last of the text, in chunks with an empty delta. Joined, they are those of the whole answer.
    """

    content_type = sse.CONTENT_TYPE

    def __init__(self, call: ModelCall, reply_id: str, created: int, model: str):
        self._want_logprobs = call.want_logprobs
        self._include_usage = bool(call.options.get("include_usage"))
        self._head: dict[str, Any] = {
            "id": _response_id(reply_id),
            "object": "chat.completion.chunk",
            "created": created,
            "model": model,
        }
        # All that is the same in every chunk is written once: a chunk is then one small dump and one join.
        empty = orjson.dumps(self._chunk({}))
        before, _, after = empty.rpartition(b'"delta":{}')
        self._before, self._after = before + b'"delta":', after

    def start(self) -> bytes:
        return self._delta({"role": "assistant", "content": ""})

    def delta(self, delta: Delta) -> bytes:
        if isinstance(delta, TextDelta):
            return self._delta({"content": delta.text})
        if isinstance(delta, ReasoningDelta):
            return self._delta({"reasoning_content": delta.text})
        return self._delta({"tool_calls": [{"index": delta.index, **_tool_call(delta.call)}]})

    def keep_alive(self) -> bytes:
        return sse.KEEP_ALIVE

    def finish(self, reply: Reply) -> bytes:
        out: list[bytes] = []
        if self._want_logprobs and reply.logprobs is not None:
            for i in range(0, max(1, len(reply.logprobs)), _LOGPROBS_PER_CHUNK):
                entries = _logprobs(reply.logprobs[i : i + _LOGPROBS_PER_CHUNK])
                out.append(sse.data(orjson.dumps(self._chunk({}, logprobs=entries))))
        out.append(sse.data(orjson.dumps(self._chunk({}, finish_reason=_finish_reason(reply)))))
        if self._include_usage:
            out.append(sse.data(orjson.dumps({**self._head, "choices": [], "usage": _usage(reply.usage)})))
        out.append(_DONE)
        return b"".join(out)

    def error(self, exc: CallError) -> bytes:
        """The error as a data event. No ``[DONE]`` follows: a client that skips it still sees a stream that was cut."""
        return sse.data(error_body(exc))

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return sse.data(self._before + orjson.dumps(delta) + self._after)

    def _chunk(self, delta: dict[str, Any], *, logprobs: Any = None, finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        # With include_usage, every chunk but the last has a null one.
        return {**self._head, "choices": [choice], **({"usage": None} if self._include_usage else {})}


def _response_id(reply_id: str) -> str:
    return f"chatcmpl-{reply_id}"


def _message(message: Message) -> dict[str, Any]:
    calls = [_tool_call(call) for call in message.tool_calls]
    out: dict[str, Any] = {"role": "assistant", "content": message.text or (None if calls else ""), "refusal": None}
    if message.reasoning:
        out["reasoning_content"] = message.reasoning
    if calls:
        out["tool_calls"] = calls
    return out


def _tool_call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _finish_reason(reply: Reply) -> str:
    if reply.finish_reason is not FinishReason.STOP:
        return "length"
    return "tool_calls" if reply.message.tool_calls else "stop"


def _logprobs(entries: tuple[TokenLogProb, ...]) -> dict[str, Any]:
    content = [{"token": e.text, "logprob": float(e.logprob), "bytes": list(e.utf8), "top_logprobs": []} for e in entries]
    return {"content": content, "refusal": None}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }
