# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The tools of a Responses request, as a flat list of functions, and the way back from a flat name to what the harness knows.

- Tools stand in ``tools`` and, in Codex's variant for some models, in ``additional_tools`` items of the input; all are in
  force. A tool that is given again replaces the earlier one, in its place.
- A ``namespace`` holds tools. Models know one list of names, so a nested tool is called ``<namespace>__<name>``; those of
  ``functions``, which stands for no namespace (Codex 0.171 takes its calls with and without), keep their name. Where two flat
  names would be equal, the later is numbered.
- A ``custom`` tool takes plain text. The model is told of a function with one string parameter, whose description holds the
  grammar; that its text follows the grammar is not enforced.
- Tools that the provider itself would run, or whose calls are items of their own kind, cannot be served. Merely offered (Codex
  always offers a web search) they are left out; a ``tool_choice`` that needs one is refused.

Choices are recorded, not enforced: a sample that was forced cannot be re-scored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from nemo_polar.types import FREEFORM, ToolChoice, ToolSpec
from nemo_polar.wire.fields import Dropped, Fields, invalid, shown, unsupported
from nemo_polar.wire.openai_chat.messages import leave_out

UNCONSTRAINED = "sampling is not constrained"

_DEFAULT_NAMESPACE = "functions"
_NOT_SERVED = frozenset(
    {
        *("web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11", "file_search"),
        *("code_interpreter", "image_generation", "computer", "computer_use", "computer_use_preview", "mcp"),
        *("local_shell", "shell", "apply_patch", "tool_search", "programmatic_tool_calling"),
    }
)
_LEFT_OUT: Mapping[str, str] = {
    "defer_loading": "every tool is given at once",
    "output_schema": "models are told what a tool takes, not what it answers",
    "allowed_callers": "tools are called by the model",
    "async": "the harness decides when it answers",
}
_FUNCTION_FIELDS = frozenset({"type", "name", "description", "parameters", "strict", *_LEFT_OUT})
_CUSTOM_FIELDS = frozenset({"type", "name", "description", "format", *_LEFT_OUT})
_NAMESPACE_FIELDS = frozenset({"type", "name", "description", "tools"})
_FORMATS: Mapping[str, frozenset[str]] = {
    "text": frozenset({"type"}),
    "grammar": frozenset({"type", "syntax", "definition"}),
}

Known = tuple[str | None, str]
"""A tool as the harness knows it: namespace, name."""


@dataclass(frozen=True, slots=True)
class Offered:
    """The tools of one request, understood."""

    specs: tuple[ToolSpec, ...] = ()
    names: Mapping[str, Known] = field(default_factory=dict)
    """The nested tools among ``specs``, by their flat name."""
    numbered: Mapping[Known, str] = field(default_factory=dict)
    """Flat names that had to be numbered: those of all others follow from the tool alone."""
    phrases: tuple[str, ...] = ()
    echo: bytes = b"[]"
    """``tools`` as the response repeats them: JSON."""

    def flat(self, namespace: str | None, name: str) -> str:
        """What the model knows a tool by, whether it is offered or not."""
        known = (None if namespace == _DEFAULT_NAMESPACE else namespace or None, name)
        return self.numbered.get(known) or _joined(*known)


def _joined(namespace: str | None, name: str) -> str:
    if namespace is None:
        return name
    return f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"


def all_tools(request: Fields, items: Iterable[Any]) -> tuple[list[Fields], list[Any]]:
    """Every tool of a request, those in its items too, and the JSON they stand in.

    Raises:
        BadRequest: a list of tools is none, or an entry of it is no object.
    """
    found = request.children("tools")
    given: list[Any] = [request.raw.get("tools")]
    for n, item in enumerate(items):
        if type(item) is dict and item.get("type") == "additional_tools":
            found += Fields(item, f"input[{n}]").children("tools")
            given.append(item.get("tools"))
    return found, given


def read_tools(tools: Iterable[Fields]) -> Offered:
    """``tools`` as the model is told of them.

    Raises:
        BadRequest: a tool without a name, of an unknown type, or with a schema that is no object or too deep.
    """
    dropped = Dropped()
    read: dict[Known, ToolSpec] = {}
    for tool in tools:
        if tool.string("type") == "namespace":
            name = tool.nonempty_string("name")
            leave_out(tool, _NAMESPACE_FIELDS, "tools.", dropped)
            if tool.optional_string("description"):
                dropped.add("tools.namespace.description: nested tools are listed flat")
            for inner in tool.children("tools"):
                _add(read, None if name == _DEFAULT_NAMESPACE else name, inner, dropped)
        else:
            _add(read, None, tool, dropped)
    specs: dict[str, ToolSpec] = {}
    names: dict[str, Known] = {}
    numbered: dict[Known, str] = {}
    for known, spec in read.items():
        flat, n = _joined(*known), 2
        while flat in specs:
            flat, n = f"{_joined(*known)}_{n}", n + 1
        if flat != _joined(*known):
            numbered[known] = flat
        if flat != known[1]:
            names[flat] = known
        specs[flat] = ToolSpec(flat, spec.description, spec.parameters, spec.strict, spec.freeform)
    return Offered(tuple(specs.values()), names, numbered, dropped.phrases())


def echoed(tools: Any) -> bytes:
    """``tools`` (JSON, read already) for the response; without what cannot be repeated."""
    try:
        return orjson.dumps(tools or [])
    except orjson.JSONEncodeError:  # nested past 254 levels, in fields that nobody knows
        return b"[]"


def _add(read: dict[Known, ToolSpec], namespace: str | None, tool: Fields, dropped: Dropped) -> None:
    kind = tool.string("type")
    if kind in _NOT_SERVED:
        dropped.add(f"tools.{kind}: it is not served here")
        return
    if kind not in ("function", "custom"):
        raise unsupported(tool.at("type"), f"tools are functions, custom tools and namespaces of these, not {shown(kind)}")
    name = tool.nonempty_string("name")
    for what, reason in _LEFT_OUT.items():
        if tool.given(what) and tool.raw[what] is not False:
            dropped.add(f"tools.{what}: {reason}")
    spec = _function(tool, name, dropped) if kind == "function" else _custom(tool, name, dropped)
    read[namespace, name] = spec


def _function(tool: Fields, name: str, dropped: Dropped) -> ToolSpec:
    leave_out(tool, _FUNCTION_FIELDS, "tools.", dropped)
    strict = tool.optional_boolean("strict")
    if strict:
        dropped.add(f"tools.strict: {UNCONSTRAINED}")
    return ToolSpec(name, tool.optional_string("description") or "", tool.schema("parameters"), strict)


def _custom(tool: Fields, name: str, dropped: Dropped) -> ToolSpec:
    leave_out(tool, _CUSTOM_FIELDS, "tools.", dropped)
    parameter = {"type": "string", "description": _told(tool.optional_child("format"), dropped)}
    schema = {"type": "object", "properties": {FREEFORM: parameter}, "required": [FREEFORM], "additionalProperties": False}
    return ToolSpec(name, tool.optional_string("description") or "", schema, freeform=True)


def _told(form: Fields | None, dropped: Dropped) -> str:
    """What the model is told about the text that a custom tool takes."""
    kind = "text" if form is None else form.string("type")
    if form is None or kind == "text":
        return "The whole input of the tool, as plain text."
    if kind != "grammar":
        raise unsupported(form.at("type"), f"a format is text or grammar, not {shown(kind)}")
    leave_out(form, _FORMATS[kind], "tools.format.", dropped)
    dropped.add(f"tools.format grammar: {UNCONSTRAINED}")
    syntax, definition = form.nonempty_string("syntax"), form.string("definition")
    return f"The whole input of the tool, as plain text. It follows this {syntax} grammar:\n{definition}"


# --- tool_choice ------------------------------------------------------------------------------------------------------


def read_choice(request: Fields, offered: Offered, dropped: Dropped) -> tuple[ToolChoice, Any]:
    """The choice, and its JSON as the response repeats it.

    Raises:
        BadRequest: it names a tool that is not offered, needs one that is not served, or has an unknown form.
    """
    raw = request.raw.get("tool_choice")
    if raw is None or raw == "auto":
        return ToolChoice(), "auto"
    if raw == "none":
        return ToolChoice("none"), "none"
    if raw == "required":
        if not offered.specs:
            raise invalid("tool_choice", "'required' needs `tools` that are served here")
        dropped.add(f"tool_choice required: {UNCONSTRAINED}")
        return ToolChoice("required"), "required"
    if isinstance(raw, str):
        raise invalid("tool_choice", f"must be 'auto', 'none', 'required' or an object, got {shown(raw)}")
    choice = request.child("tool_choice")
    if choice.string("type") == "allowed_tools":
        return _allowed(choice, offered, dropped)
    name, echo = _named(choice, offered)
    dropped.add(f"tool_choice named: {UNCONSTRAINED}")
    return ToolChoice("named", name), echo


def _named(choice: Fields, offered: Offered) -> tuple[str, dict[str, Any]]:
    """The flat name of the tool that a choice is for."""
    kind = choice.string("type")
    if kind not in ("function", "custom"):
        raise unsupported(choice.at("type"), f"a choice names a function or a custom tool, and {shown(kind)} is not served")
    name, namespace = choice.nonempty_string("name"), choice.optional_string("namespace")
    flat = offered.flat(namespace, name)
    if all(spec.name != flat for spec in offered.specs):
        raise invalid(choice.at("name"), f"{shown(name)} is not among `tools`")
    return flat, {"type": kind, "name": name, **({"namespace": namespace} if namespace else {})}


def _allowed(choice: Fields, offered: Offered, dropped: Dropped) -> tuple[ToolChoice, dict[str, Any]]:
    """A choice among some of the tools. The model is still told of all, which is what this form is for."""
    mode = choice.string("mode")
    if mode not in ("auto", "required"):
        raise invalid(choice.at("mode"), f"must be 'auto' or 'required', got {shown(mode)}")
    served = 0
    echo: list[dict[str, Any]] = []
    for tool in choice.children("tools"):
        if tool.string("type") in _NOT_SERVED:
            continue
        echo.append(_named(tool, offered)[1])
        served += 1
    if mode == "required" and not served:
        raise unsupported(choice.at("tools"), "none of them is served here, and one is required")
    dropped.add(f"tool_choice allowed_tools: {UNCONSTRAINED}")
    return ToolChoice("required" if mode == "required" else "auto"), {"type": "allowed_tools", "mode": mode, "tools": echo}
