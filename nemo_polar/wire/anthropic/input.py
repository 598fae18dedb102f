# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A call's arguments, which the model writes as a string, and the ``input`` object that Anthropic's API makes of them.

Outwards, a string that is a JSON object stands in the answer character for character. Any other string is wrapped as Claude
Code wraps what it could not parse: ``{"__unparsedToolInput": {"raw": ..., "len": ...}}``. In a stream no object is needed, so
there the string itself is sent, and the client makes of it what it can.

Inwards, a wrapped string is that string again, so a malformed call comes back as what was sampled. (Claude Code keeps 2048
characters of it; a longer one comes back cut, and the line forks.) Everything else is written as compact JSON: spelling and
order may differ from what was sampled, and ``tokens/canonical.py`` compares without them. Values that are no objects are
taken too, for a client may have parsed one out of a stream of ours.
"""

from __future__ import annotations

import json
from typing import Any

import orjson

from nemo_polar.wire.fields import invalid

_WRAPPER = "__unparsedToolInput"


def tool_input(arguments: str) -> Any:
    """What ``orjson.dumps`` writes as the ``input`` of a whole answer."""
    try:
        parsed = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        parsed = None
    if type(parsed) is dict and _WRAPPER not in parsed:  # a sampled wrapper is wrapped, or it would be unwrapped
        return orjson.Fragment(arguments)
    # Claude Code counts as JavaScript does.
    return {_WRAPPER: {"raw": arguments, "len": len(arguments.encode("utf-16-le")) // 2}}


def tool_arguments(value: Any, path: str) -> str:
    """The arguments that ``value``, the parsed ``input`` at ``path``, stands for.

    Raises:
        BadRequest: nested too deeply to be written.
    """
    if type(value) is dict and len(value) == 1:
        inner = value.get(_WRAPPER)
        if type(inner) is dict and type(inner.get("raw")) is str:
            return inner["raw"]
    return written(value, path)


def written(value: Any, path: str) -> str:
    """``value``, parsed JSON, as compact JSON.

    Raises:
        BadRequest: nested too deeply to be written.
    """
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:  # past 254 levels
        pass
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        raise invalid(path, "is nested too deeply") from None
