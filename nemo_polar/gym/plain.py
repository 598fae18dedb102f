# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Values that every JSON writer on the way through Gym takes: one that is refused ends a whole collection.

Gym writes results with orjson and its servers answer with FastAPI; neither has a form for half of a surrogate pair, and orjson
none for an integer of more than 64 bits. Both occur in what harnesses send. Token ids are not touched by this: text in a
Gym result is for reading and for verifiers, never for training.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def plain(value: Any) -> Any:
    """``value`` (strings, numbers, lists, mappings) with lone surrogates as U+FFFD and huge integers as floats."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        return value
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        try:
            return float(value)
        except OverflowError:
            return str(value)
    return value
