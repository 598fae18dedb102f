# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Reading the tools of a Gemini request.

Functions are offered to the model. What Google would run by itself (search, code, files) is left out by name: it was only
offered, and nobody here could run it. ``parameters`` is Google's subset of OpenAPI, which is put into the words of JSON Schema:
that is what chat templates were trained on. ``parametersJsonSchema`` is passed on as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nemo_polar.types import ToolChoice, ToolSpec
from nemo_polar.wire.fields import Dropped, Fields, invalid, shown
from nemo_polar.wire.gemini.names import camel_child, camel_children, leave_out, proper_name
from nemo_polar.wire.history import Read, serialised

UNCONSTRAINED = "sampling is not constrained"

_FUNCTIONS = "functionDeclarations"
_NOBODY = "nobody here runs it for the model"
_RUN_BY_GOOGLE: Mapping[str, str] = dict.fromkeys(
    (
        *("googleSearch", "googleSearchRetrieval", "enterpriseWebSearch", "urlContext", "codeExecution", "computerUse"),
        *("fileSearch", "googleMaps", "retrieval", "mcpServers"),
    ),
    _NOBODY,
)
_FUNCTION_DROPPED: Mapping[str, str] = {
    "response": "the model is not told what a tool returns",
    "responseJsonSchema": "the model is not told what a tool returns",
    "behavior": "every result comes in a request of its own",
}
_FUNCTION_FIELDS = frozenset({"name", "description", "parameters", "parametersJsonSchema"}) | _FUNCTION_DROPPED.keys()
_CONFIG_DROPPED: Mapping[str, str] = {
    "retrievalConfig": _NOBODY,
    "includeServerSideToolInvocations": _NOBODY,
}
_CALLING_DROPPED: Mapping[str, str] = {"streamFunctionCallArguments": "a call is sent when it is complete"}
_MODES = ("AUTO", "ANY", "NONE", "VALIDATED")

# Of Google's schema. Integers may come as strings there, as 64 bits do in its JSON.
_COUNTS = frozenset({"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"})
_SCHEMAS = frozenset({"items", "additionalProperties"})
_SCHEMA_LISTS = frozenset({"anyOf", "allOf", "oneOf", "prefixItems"})
_ORDERING = "propertyOrdering"
_KNOWN = frozenset({*_COUNTS, *_SCHEMAS, *_SCHEMA_LISTS, _ORDERING, "type", "nullable", "properties"})


def with_tools(request: Fields, read: Read, history: Sequence[Read]) -> Read:
    """``read`` with the request's tools, taken over from ``history`` where they are the same."""
    raw = request.raw.get("tools")
    if not raw:
        request.array("tools")  # whose business it is that "tools": "" is no array
        return read
    written = serialised(raw)
    if written is not None:
        written = b"gemini " + written  # other dialects of the session may not read the same JSON the same way
    for known in history if written is not None else ():
        if known.tools_json == written:
            return replace(read, tools_json=written, tools=known.tools, tools_phrases=known.tools_phrases)
    dropped = Dropped()
    return replace(read, tools=_tools(request, dropped), tools_json=written, tools_phrases=dropped.phrases())


def read_tool_choice(request: Fields, tools: Sequence[ToolSpec], dropped: Dropped) -> ToolChoice:
    """``toolConfig``. A choice of one function is a named one; what is not enforced is recorded."""
    config = camel_child(request, "toolConfig")
    if config is None:
        return ToolChoice()
    leave_out(config, _CONFIG_DROPPED, "toolConfig.", dropped)
    dropped.unknown(config, {"functionCallingConfig", *_CONFIG_DROPPED}, "toolConfig.")
    calling = camel_child(config, "functionCallingConfig")
    if calling is None:
        return ToolChoice()
    where = "toolConfig.functionCallingConfig."
    leave_out(calling, _CALLING_DROPPED, where, dropped)
    dropped.unknown(calling, {"mode", "allowedFunctionNames", *_CALLING_DROPPED}, where)
    mode = calling.optional_string("mode") or "AUTO"
    mode = "AUTO" if mode == "MODE_UNSPECIFIED" else mode.upper()
    if mode not in _MODES:
        raise invalid(calling.at("mode"), f"must be one of {', '.join(_MODES)}, got {shown(mode)}")
    allowed = calling.strings("allowedFunctionNames")
    unknown = sorted(set(allowed) - {tool.name for tool in tools})
    if unknown:
        raise invalid(calling.at("allowedFunctionNames"), f"{shown(unknown[0])} is not among `tools`")
    if mode == "NONE":
        return ToolChoice("none")
    if mode == "ANY":
        if not tools:
            raise invalid(calling.at("mode"), "'ANY' needs `tools`")
        dropped.add(f"{where}mode ANY: {UNCONSTRAINED}")
        return ToolChoice("named", allowed[0]) if len(allowed) == 1 else ToolChoice("required")
    if mode == "VALIDATED":
        dropped.add(f"{where}mode VALIDATED: {UNCONSTRAINED}")
    if allowed:
        dropped.add(f"{where}allowedFunctionNames: {UNCONSTRAINED}")
    return ToolChoice()


def _tools(request: Fields, dropped: Dropped) -> tuple[ToolSpec, ...]:
    specs: list[ToolSpec] = []
    for tool in camel_children(request, "tools"):
        leave_out(tool, _RUN_BY_GOOGLE, "tools.", dropped)
        dropped.unknown(tool, {_FUNCTIONS, *_RUN_BY_GOOGLE}, "tools.")
        specs += [_function(function, dropped) for function in camel_children(tool, _FUNCTIONS)]
    return tuple(specs)


def _function(function: Fields, dropped: Dropped) -> ToolSpec:
    leave_out(function, _FUNCTION_DROPPED, "tools.functionDeclarations.", dropped)
    dropped.unknown(function, _FUNCTION_FIELDS, "tools.functionDeclarations.")
    if function.given("parameters") and function.given("parametersJsonSchema"):
        raise invalid(function.at("parameters"), "and `parametersJsonSchema` exclude one another")
    given = function.schema("parameters")
    return ToolSpec(
        name=function.nonempty_string("name"),
        description=function.optional_string("description") or "",
        parameters=_json_schema(given, dropped) if given else function.schema("parametersJsonSchema"),
    )


def _json_schema(schema: Any, dropped: Dropped) -> Any:
    """Google's schema as JSON Schema. Bounded in depth by ``Fields.schema``; what is not of its words stays as it is."""
    if not isinstance(schema, dict):
        return schema
    lowered: dict[str, Any] = {}
    for name, value in schema.items():
        proper = proper_name(name)
        key = proper if proper in _KNOWN else name
        if key == _ORDERING:
            dropped.add("tools.functionDeclarations.parameters.propertyOrdering: the order of `properties` counts")
        elif key == "nullable":
            continue
        elif key == "type":
            lowered |= _type(value)
        elif key in _COUNTS:
            lowered[key] = int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value
        elif key in _SCHEMAS:
            lowered[key] = _json_schema(value, dropped)
        elif key in _SCHEMA_LISTS and isinstance(value, list):
            lowered[key] = [_json_schema(inner, dropped) for inner in value]
        elif key == "properties" and isinstance(value, dict):
            lowered[key] = {inner: _json_schema(of, dropped) for inner, of in value.items()}
        else:
            lowered[key] = value
    return _nullable(lowered) if schema.get("nullable") is True else lowered


def _type(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        return {} if value.upper() == "TYPE_UNSPECIFIED" else {"type": value.lower()}
    if isinstance(value, list):  # which is JSON Schema already
        return {"type": [name.lower() if isinstance(name, str) else name for name in value]}
    return {"type": value}


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    """``schema``, or null."""
    kind = schema.get("type")
    if isinstance(kind, str):
        schema["type"] = [kind, "null"]
    elif isinstance(schema.get("anyOf"), list):
        schema["anyOf"] = [*schema["anyOf"], {"type": "null"}]
    if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
        schema["enum"] = [*schema["enum"], None]
    return schema
