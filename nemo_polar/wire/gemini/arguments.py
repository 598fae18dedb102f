# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Arguments of a call: a string to the model, an object to this API.

What the model sampled goes on the wire as it is where it is a JSON object: its numbers keep their digits, its keys their order.
What is none goes as it is too, as the one member ``MALFORMED``, so that a harness refuses the call for missing parameters and
sends back exactly what was sampled. An argument string that *is* such an object goes the same way, or it would come back as
what it quotes.
"""

from __future__ import annotations

from typing import Any

import orjson

from nemo_polar.wire.fields import Fields, invalid

MALFORMED = "__malformed_arguments__"
"""The member under which arguments stand that are no JSON object."""

_BLANK = " \t\r\n"
"""White space as JSON knows it."""


def to_wire(arguments: str) -> Any:
    """``arguments`` as the value of ``args``, for orjson to write on one line."""
    text = arguments.strip(_BLANK)
    if _is_plain_object(text):
        # A line end within JSON can only stand between two tokens; within an event it would end the line.
        return orjson.Fragment(text.replace("\r", " ").replace("\n", " "))
    return {MALFORMED: arguments}


def from_wire(call: Fields) -> str:
    """The argument string of a ``functionCall``. A string for ``args`` is taken as it is: so do clients keep what they could
    not read.

    Raises:
        BadRequest: another type, or an object that is nested too deeply to be written.
    """
    value = call.raw.get("args")
    if type(value) is str:
        return value
    value = {} if value is None else call.child("args").raw
    if len(value) == 1 and type(value.get(MALFORMED)) is str:
        return value[MALFORMED]
    return written(value, call.at("args"))


def written(value: Any, path: str) -> str:
    """``value`` (parsed JSON) as compact JSON, its keys as they stand.

    Raises:
        BadRequest: it is nested too deeply.
    """
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:
        raise invalid(path, "is nested too deeply") from None


def _is_plain_object(text: str) -> bool:
    """Whether ``text`` is a JSON object that comes back as what it is."""
    try:
        value = orjson.loads(text)
        orjson.dumps(value)  # which is how it will be written when it comes back
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        return False
    return isinstance(value, dict) and not (len(value) == 1 and isinstance(value.get(MALFORMED), str))
