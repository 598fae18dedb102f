# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Names of fields as Google's JSON takes them: in camel case or in snake case, and one object where an array belongs.

Only the objects that this API defines are read so. What passes through as it is (arguments, results, schemas) never comes here.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from nemo_polar.wire.fields import Dropped, Fields, invalid, objects


def camel(fields: Fields) -> Fields:
    """The same object with the names of its own fields in camel case; those of objects within stay as they are.

    Raises:
        BadRequest: a field is given in both spellings.
    """
    if not any("_" in name for name in fields.raw):
        return fields
    named: dict[str, object] = {}
    for name, value in fields.raw.items():
        proper = proper_name(name)
        if value is not None and named.get(proper) is not None:
            raise invalid(fields.at(proper), "is given twice, in two spellings of its name")
        if value is not None or proper not in named:
            named[proper] = value
    return Fields(named, fields.path)


def camel_child(fields: Fields, name: str) -> Fields | None:
    """An optional object, its names in camel case."""
    found = fields.optional_child(name)
    return None if found is None else camel(found)


def camel_children(fields: Fields, name: str) -> list[Fields]:
    """An optional array of objects, or one of them without an array; their names in camel case."""
    value = fields.raw.get(name)
    found = [Fields(value, fields.at(name))] if type(value) is dict else objects(fields.array(name), fields.at(name))
    return [camel(entry) for entry in found]


def leave_out(fields: Fields, reasons: Mapping[str, str], where: str, dropped: Dropped) -> None:
    """Record each field of ``reasons`` that is given, as ``<where><field>: <reason>``."""
    for name, reason in reasons.items():
        if fields.given(name):
            dropped.add(f"{where}{name}: {reason}")


@lru_cache(maxsize=1024)
def proper_name(name: str) -> str:
    """``name`` in camel case."""
    head, *rest = [piece for piece in name.split("_") if piece] or [name]
    return head + "".join(piece[0].upper() + piece[1:] for piece in rest)
