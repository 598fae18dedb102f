# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A ``ModelCall`` as the body of an OpenAI chat completion, for engines that render messages themselves. Pure."""

from __future__ import annotations

from typing import Any

from nemo_polar.types import Image, Message, ModelCall, Reasoning, Role, Text, ToolCall, ToolResult, ToolSpec


def chat_body(call: ModelCall) -> dict[str, Any]:
    """``messages``, and ``tools`` with ``tool_choice`` where there are tools. No sampling, no model, no stream: these are the
    engine's.

    Reasoning goes back as ``reasoning_content``. A tool choice other than ``none`` is ``auto``: forcing would sample from a
    distribution that the trainer cannot re-score.
    """
    body: dict[str, Any] = {"messages": [raw for message in call.messages for raw in _message(message)]}
    if call.tools:
        body["tools"] = [_tool(spec) for spec in call.tools]
        body["tool_choice"] = "none" if call.tool_choice.mode == "none" else "auto"
    return body


def _message(message: Message) -> list[dict[str, Any]]:
    """Usually one. Tool results are messages of their own, and come before what else their message says."""
    results = [_result(part) for part in message.parts if isinstance(part, ToolResult)]
    rest = [part for part in message.parts if not isinstance(part, ToolResult)]
    if results and not rest:
        return results
    raw: dict[str, Any] = {"role": message.role.value}
    if message.name is not None:
        raw["name"] = message.name
    raw["content"] = _content([part for part in rest if isinstance(part, Text | Image)])
    if message.role is Role.ASSISTANT:
        if message.reasoning is not None:
            raw["reasoning_content"] = message.reasoning
        calls = [_call(part) for part in rest if isinstance(part, ToolCall)]
        if calls:
            raw["tool_calls"] = calls
        if not rest or not any(isinstance(part, Text | Image | Reasoning) for part in rest):
            raw["content"] = None if calls else ""
    return [*results, raw]


def _content(parts: list[Text | Image]) -> str | list[dict[str, Any]]:
    """Plain text as a string, which every template takes; parts only where there is an image."""
    if all(isinstance(part, Text) for part in parts):
        return "".join(part.text for part in parts if isinstance(part, Text))
    return [
        {"type": "text", "text": part.text} if isinstance(part, Text) else {"type": "image_url", "image_url": {"url": part.url}}
        for part in parts
    ]


def _result(part: ToolResult) -> dict[str, Any]:
    raw: dict[str, Any] = {"role": "tool", "tool_call_id": part.call_id, "content": _content(list(part.content))}
    if part.name is not None:
        raw["name"] = part.name
    return raw


def _call(part: ToolCall) -> dict[str, Any]:
    return {"id": part.id, "type": "function", "function": {"name": part.name, "arguments": part.arguments}}


def _tool(spec: ToolSpec) -> dict[str, Any]:
    function: dict[str, Any] = {"name": spec.name, "description": spec.description, "parameters": dict(spec.parameters)}
    if spec.strict is not None:
        function["strict"] = spec.strict
    return {"type": "function", "function": function}
