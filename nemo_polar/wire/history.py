# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What earlier requests of a session were read as, so that a request is read only from where it differs.

A harness re-sends its whole conversation. Entries that equal those of an earlier request, from the first on, were understood
once already: their nouns are taken over as the same objects, which also lets whoever fingerprints them see at a glance what
is new. Comparing parsed JSON is a walk in C over strings that are mostly equal; it is never by hash or by position alone.

Pure data. Reading with a history and without it gives equal results; how much is kept, and for whom, is the proxy's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from nemo_polar.types import Message, ModelCall, ToolSpec

_PLAIN_LEVELS = 16
"""What deeper nesting is for, nobody knows; comparing it may go deeper than Python can."""


@dataclass(frozen=True, slots=True)
class Read:
    """One request as it came and as it was understood."""

    entries: list[Any]
    """The JSON of its messages, in their order."""
    plain: tuple[bool, ...]
    """Of each entry: Python's ``==`` on it is equality of JSON (see ``is_plain``)."""
    messages: tuple[Message, ...]
    """One an entry."""
    phrases: tuple[str, ...]
    """What reading the entries left out (``ModelCall.dropped``), in the order it was met."""
    marks: tuple[int, ...]
    """How many of ``phrases`` there were after each entry."""
    tools_json: bytes | None = None
    """Its tools, serialised: the order of keys in a schema shows in the prompt, and ``==`` does not see it. None: without, or
    with such as cannot be kept."""
    tools: tuple[ToolSpec, ...] = ()
    tools_phrases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Parsed:
    """A call, and what to remember of its request; None where its dialect keeps nothing."""

    call: ModelCall
    read: Read | None = None
    preamble: int = 0
    """How many messages at its start are the request's own and not part of the conversation (``instructions``): a call that
    goes on from this one by name does not take them over."""
    stored: bool = False
    """Its client may go on from the reply by name."""
    continues: str | None = None
    """The ``Reply.id`` it goes on from by name: the messages of that call and its reply belong between the preamble and the
    rest. Whoever holds them puts them there."""


def longest(history: Sequence[Read], entries: Sequence[Any]) -> tuple[Read | None, int]:
    """The earlier request that shares most entries with ``entries``, from the first on, and how many."""
    best: Read | None = None
    most = 0
    for read in history:
        count = 0
        for old, new, plain in zip(read.entries, entries, read.plain, strict=False):
            if not (old == new if plain else _same(old, new)):
                break
            count += 1
        if count > most:
            best, most = read, count
    return best, most


def serialised(value: Any) -> bytes | None:
    """``value`` (parsed JSON) as bytes, equal for what is equal in every respect; None when it is nested too deeply."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:  # past 254 levels; reading takes 1024
        return None


def _same(old: Any, new: Any) -> bool:
    written = serialised(old)
    return written is not None and written == serialised(new)


def is_plain(value: Any, levels: int = _PLAIN_LEVELS) -> bool:
    """True when ``value`` (parsed JSON) holds no scalars but strings and null, at most ``levels`` deep.

    To Python, 1, 1.0 and true are equal, and so are objects whose keys stand in another order. The former cannot be in a plain
    value; the latter matters only to a dialect that passes objects on as they are, which must not call such an entry plain.
    """
    if isinstance(value, str) or value is None:
        return True
    if not levels:
        return False
    if isinstance(value, dict):
        return all(is_plain(inner, levels - 1) for inner in value.values())
    return isinstance(value, list) and all(is_plain(inner, levels - 1) for inner in value)
