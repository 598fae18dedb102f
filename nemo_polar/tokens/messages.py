# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Our nouns as the dicts that renderers and chat templates take, with every text in them quoted.

Pure. All text here came from outside the model, or came back to us through a harness, so all of it goes through ``quote``:
message texts, reasoning, names and ids, tool descriptions and arguments. Texts are joined before they are quoted, so that no
special token can be put together from two parts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from nemo_polar.errors import BadRequest
from nemo_polar.types import Image, Message, Reasoning, Role, Text, ToolCall, ToolResult, ToolSpec

Quote: TypeAlias = Callable[[str], str]


def message_dicts(messages: Sequence[Message], quote: Quote, *, names: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """One dict a message: ``role``, ``content`` (a string), and what the role adds.

    A tool result is a message of its own, with ``tool_call_id`` and, where it is known, ``name``; ``names`` has those of
    calls made before ``messages``.

    Raises:
        BadRequest: an image. ``param`` is its place, counted in ``messages``.
    """
    found = dict(names or {})
    dicts: list[dict[str, Any]] = []
    for n, message in enumerate(messages):
        refuse_images(message, f"messages[{n}]")
        if message.role is Role.ASSISTANT:
            found |= {call.id: call.name for call in message.tool_calls}
            dicts.append(_assistant(message, quote))
        else:
            dicts += _others(message, quote, found)
    return dicts


def tool_dicts(tools: Iterable[ToolSpec], quote: Quote) -> list[dict[str, Any]]:
    """Tools in the shape that chat templates were trained on: ``{"type": "function", "function": {...}}``."""
    dicts: list[dict[str, Any]] = []
    for tool in tools:
        function: dict[str, Any] = {"name": quote(tool.name)}
        if tool.description:
            function["description"] = quote(tool.description)
        function["parameters"] = _quoted(tool.parameters, quote)
        dicts.append({"type": "function", "function": function})
    return dicts


def refuse_images(message: Message, where: str) -> None:
    """Raises ``BadRequest`` at the first image in ``message``: only ids travel to the engine, and an image has none."""
    for n, part in enumerate(message.parts):
        if isinstance(part, Image):
            raise _no_images(f"{where}.content[{n}]")
        if isinstance(part, ToolResult):
            for k, inner in enumerate(part.content):
                if isinstance(inner, Image):
                    raise _no_images(f"{where}.content[{n}].content[{k}]")


def _no_images(param: str) -> BadRequest:
    return BadRequest(f"{param}: this model is served as a text model and cannot see images; send text only.", param=param)


def _assistant(message: Message, quote: Quote) -> dict[str, Any]:
    made: dict[str, Any] = {"role": "assistant", "content": quote(message.text)}
    if message.reasoning is not None:
        made["reasoning_content"] = quote(message.reasoning)
    if message.tool_calls:
        made["tool_calls"] = [_call(call, quote) for call in message.tool_calls]
    return made


def _call(call: ToolCall, quote: Quote) -> dict[str, Any]:
    arguments = parsed_arguments(call.arguments)
    written = quote(call.arguments) if arguments is None else _quoted(arguments, quote)
    return {"id": quote(call.id), "type": "function", "function": {"name": quote(call.name), "arguments": written}}


def parsed_arguments(arguments: str) -> dict[str, Any] | None:
    """The arguments as an object; None when they are not one, and then the string itself is passed on."""
    try:
        parsed = json.loads(arguments, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


def _refuse_constant(name: str) -> None:
    """NaN and the infinities, which Python reads and JSON does not have."""
    raise ValueError(name)


def _others(message: Message, quote: Quote, names: Mapping[str, str]) -> list[dict[str, Any]]:
    """A message that is not the assistant's: its tool results one by one, the text between them under its own role."""
    dicts: list[dict[str, Any]] = []
    run: list[str] = []

    def close_run() -> None:
        if run:
            role = "user" if message.role is Role.TOOL else message.role.value
            dicts.append({"role": role, "content": quote("".join(run))})
            run.clear()

    for part in message.parts:
        if isinstance(part, ToolResult):
            close_run()
            dicts.append(_result(part, quote, names))
        elif isinstance(part, Text | Reasoning):
            run.append(part.text)
    close_run()
    return dicts or [{"role": message.role.value, "content": ""}]


def _result(result: ToolResult, quote: Quote, names: Mapping[str, str]) -> dict[str, Any]:
    text = "".join(part.text for part in result.content if isinstance(part, Text))
    made = {"role": "tool", "content": quote(text), "tool_call_id": quote(result.call_id)}
    name = result.name or names.get(result.call_id)
    return made | {"name": quote(name)} if name else made


def _quoted(value: Any, quote: Quote) -> Any:
    """``value`` (parsed JSON) with every string in it quoted, keys too."""
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, Mapping):
        return {quote(str(k)): _quoted(v, quote) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_quoted(v, quote) for v in value]
    return value
