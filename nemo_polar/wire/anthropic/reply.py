# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Writing Anthropic Messages answers: whole ones, what a streamed one shares with them, errors and models.

A reply is blocks in the order they were sampled: adjacent text is one block, adjacent reasoning another, each call one of its
own. The signature of a thinking block holds the text of the block, shown or not, as those of Anthropic do: a client that
keeps the signature alone still sends back the whole turn.

An aborted sample is told as ``max_tokens``: the API has no word for it, and this is the one that makes a client treat the text
as cut off. Where calls were made, ``tool_use`` is told even if a stop string ended the reply after them: a client that was
told otherwise would not run them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

import orjson

from nemo_polar.errors import CallError, ContextOverflow
from nemo_polar.types import FinishReason, ModelCall, Part, Reasoning, Reply, Text, ToolCall, Usage
from nemo_polar.wire.anthropic.input import tool_input
from nemo_polar.wire.anthropic.request import Thinking
from nemo_polar.wire.seal import seal

_ERROR_TYPES: Mapping[str, str] = {
    "invalid_request": "invalid_request_error",
    "context_overflow": "invalid_request_error",
    "authentication": "authentication_error",
    "not_found": "not_found_error",
    "too_slow": "timeout_error",
    "too_large": "request_too_large",
    "header_too_large": "request_too_large",
    "rate_limit": "rate_limit_error",
    "unavailable": "overloaded_error",
}

THINKING: Mapping[str, str] = {"type": "thinking", "thinking": "", "signature": ""}
"""A block of reasoning, yet empty."""


def whole(call: ModelCall, reply: Reply) -> bytes:
    """The whole answer. An empty reply has no content."""
    answer = head(reply.id, reply.model)
    answer["content"] = list(_blocks(reply.message.parts, thinking_of(call)))
    return orjson.dumps({**answer, **ending(reply), "usage": usage(reply.usage)})


def head(reply_id: str, model: str) -> dict[str, Any]:
    """What is known of an answer before any of it is sampled."""
    return {
        "id": f"msg_{reply_id}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def ending(reply: Reply) -> dict[str, Any]:
    """``stop_reason`` and ``stop_sequence``."""
    sequence = None
    if reply.finish_reason is not FinishReason.STOP:
        reason = "max_tokens"
    elif reply.message.tool_calls:
        reason = "tool_use"
    elif reply.stop is not None:
        reason, sequence = "stop_sequence", reply.stop
    else:
        reason = "end_turn"
    return {"stop_reason": reason, "stop_sequence": sequence}


def usage(counts: Usage) -> dict[str, Any]:
    """Token counts. The prompt's are the sum of the three ``input`` ones, as with Anthropic."""
    return {
        "input_tokens": counts.prompt_tokens - counts.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": counts.cached_tokens,
        "output_tokens": counts.completion_tokens,
        "output_tokens_details": {"thinking_tokens": counts.reasoning_tokens},
    }


def thinking_of(call: ModelCall) -> Thinking:
    """What the client wants to see of the reasoning."""
    return call.options.get("thinking", "hidden")


def tool_use(call: ToolCall, arguments: Any) -> dict[str, Any]:
    """A block for ``call`` with ``arguments`` as its ``input``."""
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments}


def _blocks(parts: Iterable[Part], thinking: Thinking) -> Iterator[dict[str, Any]]:
    seen = (part for part in parts if thinking != "hidden" or not isinstance(part, Reasoning))
    for kind, group in groupby(seen, key=type):
        if kind is ToolCall:
            yield from (tool_use(call, tool_input(call.arguments)) for call in group if isinstance(call, ToolCall))
            continue
        text = "".join(part.text for part in group if isinstance(part, Text | Reasoning))
        if text:
            shown = text if thinking == "shown" else ""
            yield {"type": "text", "text": text} if kind is Text else {**THINKING, "thinking": shown, "signature": seal(text)}


# --- errors and models ------------------------------------------------------------------------------------------------


def error(exc: CallError) -> dict[str, Any]:
    """``{"type": "error", "error": {type, message}, "request_id"}``."""
    kind = _ERROR_TYPES.get(exc.kind, "api_error" if exc.status >= 500 else "invalid_request_error")
    message = exc.message
    if isinstance(exc, ContextOverflow):  # the words are what clients look for
        message = f"prompt is too long: {exc.prompt_tokens} tokens > {exc.limit} maximum"
    # A message may quote a URL or a header, and those can hold what UTF-8 cannot.
    message = message.encode("utf-8", "replace").decode()
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": None}


def error_headers(exc: CallError) -> Mapping[str, str]:
    """``Retry-After`` in whole seconds, rounded up, where the error says when to come back."""
    return {} if exc.retry_after is None else {"Retry-After": str(max(0, math.ceil(exc.retry_after)))}


def model_entry(name: str, created: int, context: int) -> dict[str, Any]:
    """One model; ``created`` in Unix seconds, ``context`` in tokens."""
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": context,
        "max_tokens": context,
    }


def models_page(names: Sequence[str], created: int, context: int) -> dict[str, Any]:
    """The listing: one page."""
    return {
        "data": [model_entry(name, created, context) for name in names],
        "has_more": False,
        "first_id": names[0] if names else None,
        "last_id": names[-1] if names else None,
    }
