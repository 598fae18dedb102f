# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Reading the tools of an Anthropic Messages request, and which of them is to be called.

- A tool of the client's own (``type`` is ``custom`` or missing) is offered to the model.
- One of Anthropic's tools (``web_search_20250305``, ``bash_20250124``...) has no schema in the request, and what runs on
  Anthropic's servers does not run here: it is left out by a recorded rule, and refused where the call of it is forced.
- A deferred tool (``defer_loading``) is not shown until a result names it in a ``tool_reference``; then its definition stands
  there, as with Anthropic. Claude Code keeps most of its tools back like this, and sends a placeholder that is never to be
  called: the tools of the prompt stay the same while it finds more, and its conversation one line. Where the search was to
  be Anthropic's (``tool_search_tool_...``), nothing would ever find them, so they are shown.
- ``any`` and a named tool are kept and recorded, not enforced: a forced call cannot be re-scored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nemo_polar.types import ToolChoice, ToolSpec
from nemo_polar.wire.anthropic.input import written
from nemo_polar.wire.fields import Dropped, Fields, invalid, shown, unsupported
from nemo_polar.wire.history import Read, serialised

NO_CACHE = "cache_control: there is no prompt cache to steer"

_UNCONSTRAINED = "sampling is not constrained"
_FIELDS = frozenset(
    {
        *("type", "name", "description", "input_schema", "cache_control", "defer_loading", "eager_input_streaming", "strict"),
        *("allowed_callers", "input_examples"),
    }
)
_VENDOR = re.compile(r"(?P<family>[a-z][a-z0-9_]{0,40})_20[0-9]{6}|mcp_toolset")
_SEARCH = "tool_search_tool"


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of one request."""

    offered: tuple[ToolSpec, ...] = ()
    """In the prompt."""
    deferred: Mapping[str, str] = field(default_factory=dict)
    """Name to definition, as a ``tool_reference`` is told to the model."""
    vendor: frozenset[str] = frozenset()
    """Names of those left out."""
    as_json: bytes | None = None
    """As sent, for comparing with those of another request; see ``Read.tools_json``."""
    phrases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MessagesRead(Read):
    """A request of this dialect. Its entries are without cache marks, its ``system`` is the first of them."""

    all_tools: Tools = Tools()


def read_tools(request: Fields, history: Sequence[MessagesRead]) -> Tools:
    """The tools, taken over from ``history`` where they are the same.

    Raises:
        BadRequest: a wrong type, a name missing or empty, a schema nested too deeply, a type of tool that is not known.
    """
    raw = request.array("tools")
    if not raw:
        return Tools()
    as_json = serialised(raw)
    for known in history if as_json is not None else ():
        if known.all_tools.as_json == as_json:
            return known.all_tools
    return _read(request.children("tools"), as_json)


def _read(raw: Sequence[Fields], as_json: bytes | None) -> Tools:
    dropped = Dropped()
    vendor: list[str] = []
    searched = False
    own: list[tuple[ToolSpec, bool]] = []
    for tool in raw:
        if tool.given("cache_control"):
            dropped.add(NO_CACHE)
        kind = tool.optional_string("type")
        if kind in (None, "custom"):
            own.append(_custom(tool, dropped))
            continue
        family = _family(tool, kind)
        searched = searched or family.startswith(_SEARCH)
        vendor.append(tool.optional_string("name") or kind)
        dropped.add(f"tools {family}: Anthropic's own tools are neither described in a request nor run here")
    deferred = [] if searched else [spec for spec, later in own if later]
    if deferred:
        dropped.add("tools.defer_loading: shown where a tool_reference names the tool")
    offered = tuple(spec for spec, later in own if searched or not later)
    return Tools(offered, {s.name: _definition(s) for s in deferred}, frozenset(vendor), as_json, dropped.phrases())


def read_choice(request: Fields, tools: Tools, dropped: Dropped) -> tuple[ToolChoice, bool]:
    """What is to be called, and whether several calls at once are welcome.

    Raises:
        BadRequest: a kind of choice that does not exist, a tool that is not there, or one that cannot be forced.
    """
    choice = request.optional_child("tool_choice")
    if choice is None:
        return ToolChoice(), True
    parallel = not choice.boolean("disable_parallel_tool_use")
    if not parallel:
        dropped.add(f"tool_choice.disable_parallel_tool_use: {_UNCONSTRAINED}")
    dropped.unknown(choice, ("type", "name", "disable_parallel_tool_use"), "tool_choice.")
    kind = choice.string("type")
    if kind in ("auto", "none"):
        return ToolChoice(kind), parallel
    if kind == "any":
        if not tools.offered:
            if tools.vendor:
                raise unsupported(choice.at("type"), "none of the tools offered can be called here")
            raise invalid(choice.at("type"), "'any' needs `tools`")
        dropped.add(f"tool_choice any: {_UNCONSTRAINED}")
        return ToolChoice("required"), parallel
    if kind != "tool":
        raise invalid(choice.at("type"), f"must be 'auto', 'any', 'tool' or 'none', got {shown(kind)}")
    name = choice.nonempty_string("name")
    if all(spec.name != name for spec in tools.offered) and name not in tools.deferred:
        if name in tools.vendor:
            raise unsupported(choice.at("name"), f"{shown(name)} is one of Anthropic's own tools, which do not run here")
        raise invalid(choice.at("name"), f"{shown(name)} is not among `tools`")
    dropped.add(f"tool_choice tool: {_UNCONSTRAINED}")
    return ToolChoice("named", name), parallel


def _custom(tool: Fields, dropped: Dropped) -> tuple[ToolSpec, bool]:
    """A tool of the client's, and whether it is deferred."""
    if tool.boolean("strict"):
        dropped.add(f"tools.strict: {_UNCONSTRAINED}")
    if tool.array("input_examples"):
        dropped.add("tools.input_examples: the prompt has no place for them")
    if tool.given("allowed_callers") and tool.strings("allowed_callers") != ("direct",):
        dropped.add("tools.allowed_callers: only the model itself calls tools")
    tool.optional_boolean("eager_input_streaming")  # changes when input is streamed, not what: it always comes as sampled
    dropped.unknown(tool, _FIELDS, "tools.")
    spec = ToolSpec(
        name=tool.nonempty_string("name"),
        description=tool.optional_string("description") or "",
        parameters=tool.schema("input_schema"),
        strict=tool.optional_boolean("strict"),
    )
    return spec, tool.boolean("defer_loading")


def _family(tool: Fields, kind: str) -> str:
    """``web_search`` of ``web_search_20250305``."""
    match = _VENDOR.fullmatch(kind)
    if match is None:
        raise invalid(tool.at("type"), f"must be 'custom' or one of Anthropic's tools, got {shown(kind)}")
    return match["family"] or kind


def _definition(spec: ToolSpec) -> str:
    function = {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
    return written({"type": "function", "function": function}, "tools") + "\n"
