# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Messages and tools of an OpenAI chat request, as the scripted chat servers read them. Pure; trusts its input, like a test
double may: what is missing raises ``KeyError``, ``TypeError`` or ``ValueError``."""

from __future__ import annotations

from typing import Any

from nemo_polar.types import Message, Reasoning, Role, Text, ToolCall, ToolResult, ToolSpec


def message_of(raw: dict[str, Any]) -> Message:
    """One message. Reasoning is read from ``reasoning`` (vLLM's name for it now) or ``reasoning_content``."""
    role = Role(raw["role"])
    content = raw.get("content") or ""
    text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
    if role is Role.TOOL:
        return Message(role, (ToolResult(raw["tool_call_id"], (Text(text),), raw.get("name")),))
    parts: list[Reasoning | Text | ToolCall] = []
    reasoning = raw.get("reasoning", raw.get("reasoning_content"))
    if reasoning is not None:
        parts.append(Reasoning(reasoning))
    if text:
        parts.append(Text(text))
    parts += [ToolCall(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in raw.get("tool_calls") or []]
    return Message(role, tuple(parts), raw.get("name"))


def tool_of(raw: dict[str, Any]) -> ToolSpec:
    """One function."""
    function = raw["function"]
    return ToolSpec(function["name"], function.get("description", ""), function.get("parameters", {}), function.get("strict"))
