# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Writing Responses answers: the output items of a reply, and the response around them.

- Items stand in the order in which they were sampled; parts of one kind that follow each other are one item.
- Reasoning goes in ``content`` as ``reasoning_text``, not in ``summary``: it is what the model wrote and no summary of it.
  Codex 0.171 and Pi 1.6 take both kinds and echo both. With ``include: reasoning.encrypted_content`` it is in there too, for
  clients that keep nothing else.
- A reply with neither text nor calls has a message with empty text, so that clients have something to echo (Codex does).
- An aborted sample is told as ``incomplete`` for ``max_output_tokens``: the API has no word for it, and this is the one that
  makes a client treat the text as cut off.

Nothing here knows about streams; ``stream`` says the same in events.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from nemo_polar.errors import CallError
from nemo_polar.types import FREEFORM, FinishReason, Message, ModelCall, Reasoning, Reply, Text, ToolCall, Usage
from nemo_polar.wire.openai_responses.ids import item_id, response_id, verbatim
from nemo_polar.wire.seal import seal

COMPLETED, INCOMPLETE, IN_PROGRESS, FAILED = "completed", "incomplete", "in_progress", "failed"


class Items:
    """Writes the output items of one reply to one call."""

    def __init__(self, call: ModelCall, reply_id: str) -> None:
        self._reply_id = reply_id
        self._encrypted = bool(call.options.get("encrypted"))
        self._names: Mapping[str, tuple[str | None, str]] = call.options.get("names", {})
        self._freeform = frozenset(tool.name for tool in call.tools if tool.freeform)

    def reasoning(self, index: int, text: str, status: str) -> dict[str, Any]:
        """A ``reasoning`` item; in progress, it has no content yet."""
        item: dict[str, Any] = {
            "id": item_id("reasoning", self._reply_id, index),
            "type": "reasoning",
            "summary": [],
            "content": [] if status == IN_PROGRESS else [reasoning_part(text)],
            "status": status,
        }
        if self._encrypted and status != IN_PROGRESS:
            item["encrypted_content"] = seal(text)
        return item

    def message(self, index: int, text: str, status: str) -> dict[str, Any]:
        """A ``message`` item; in progress, it has no content yet."""
        return {
            "id": item_id("message", self._reply_id, index),
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": [] if status == IN_PROGRESS else [text_part(text)],
        }

    def call(self, index: int, call: ToolCall) -> dict[str, Any]:
        """A ``function_call`` or ``custom_tool_call`` item, complete."""
        namespace, name = self._names.get(call.name, (None, call.name))
        known: dict[str, Any] = {"name": name} if namespace is None else {"name": name, "namespace": namespace}
        kind = "custom_tool_call" if call.name in self._freeform else "function_call"
        head = {"id": item_id(kind, self._reply_id, index), "type": kind, "status": COMPLETED}
        if kind == "function_call":
            return {**head, "call_id": call.id, **known, "arguments": call.arguments}
        text = freeform_text(call.arguments)
        if text is None:
            return {**head, "call_id": verbatim(call.id), **known, "input": call.arguments}
        return {**head, "call_id": call.id, **known, "input": text}


def text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def reasoning_part(text: str) -> dict[str, Any]:
    return {"type": "reasoning_text", "text": text}


def freeform_text(arguments: str) -> str | None:
    """What a custom tool is to be given; None when ``arguments`` is not exactly an object with that text."""
    try:
        value = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return None
    if type(value) is not dict or value.keys() != {FREEFORM}:
        return None
    text = value[FREEFORM]
    return text if type(text) is str else None


def response(call: ModelCall, reply: Reply) -> bytes:
    """The whole answer."""
    return orjson.dumps(finished(call, reply, reply.id))


def finished(call: ModelCall, reply: Reply, reply_id: str) -> dict[str, Any]:
    """The response to a call whose reply is complete."""
    status = status_of(reply)
    return {
        **_response(call, reply_id, reply.created, reply.model, status),
        "incomplete_details": {"reason": "max_output_tokens"} if status == INCOMPLETE else None,
        "output": list(_output(Items(call, reply_id), reply.message, status)),
        "usage": _usage(reply.usage),
    }


def begun(call: ModelCall, reply_id: str, created: int, model: str) -> dict[str, Any]:
    """The response while it is under way."""
    return _response(call, reply_id, created, model, IN_PROGRESS)


def failed(
    call: ModelCall, reply_id: str, created: int, model: str, output: list[dict[str, Any]], exc: CallError
) -> dict[str, Any]:
    """The response that has failed after ``output``."""
    return {**_response(call, reply_id, created, model, FAILED), "error": _error(exc), "output": output}


def status_of(reply: Reply) -> str:
    return COMPLETED if reply.finish_reason is FinishReason.STOP else INCOMPLETE


def _response(call: ModelCall, reply_id: str, created: int, model: str, status: str) -> dict[str, Any]:
    return {
        "id": response_id(reply_id),
        "object": "response",
        "created_at": created,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "model": model,
        "output": [],
        **call.options.get("echo", {}),
        "tools": orjson.Fragment(call.options.get("tools", b"[]")),
        "usage": None,
    }


def _output(items: Items, message: Message, status: str) -> Iterator[dict[str, Any]]:
    runs = list(_runs(message))
    count = len(runs)
    if not message.tool_calls and not message.text:
        runs.append(Text(""))
    for index, part in enumerate(runs):
        last = status if index >= count - 1 else COMPLETED  # what was cut is the last that was said
        if isinstance(part, ToolCall):
            yield items.call(index, part)
        elif isinstance(part, Text):
            yield items.message(index, part.text, last)
        else:
            yield items.reasoning(index, part.text, last)


def _runs(message: Message) -> Iterator[Text | Reasoning | ToolCall]:
    """The parts, those of one kind that follow each other joined and empty ones left out."""
    kind: type[Text] | type[Reasoning] | None = None
    run: list[str] = []
    for part in message.parts:
        if isinstance(part, Text | Reasoning):
            if not part.text:
                continue
            if type(part) is not kind and kind is not None:
                yield kind("".join(run))
                run = []
            kind = type(part)
            run.append(part.text)
        elif isinstance(part, ToolCall):
            if kind is not None:
                yield kind("".join(run))
            kind, run = None, []
            yield part
    if kind is not None:
        yield kind("".join(run))


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


# kind: code. Clients decide by these: Codex compacts, or waits for as long as the message says.
_CODES: Mapping[str, str] = {"context_overflow": "context_length_exceeded", "rate_limit": "rate_limit_exceeded"}


def _error(exc: CallError) -> dict[str, Any]:
    message = exc.message.encode("utf-8", "replace").decode()
    if exc.retry_after is not None:
        message = f"{message} Please try again in {max(0.0, exc.retry_after):g}s."
    return {"code": _CODES.get(exc.kind, "server_error"), "message": message}
