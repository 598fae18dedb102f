# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The messages of a request in the form in which they are compared with those of earlier requests.

Clients move ``cache_control`` marks every turn and write the same message now as a string, now as a text block. Here the marks
are taken off and strings made blocks, so that a message is equal to itself a turn later. What is neither a mark nor such a
string is left as it is, the same object where nothing changed; whether it makes sense is for whoever reads it to say.

One pass over the blocks; what is in them (text, inputs) is not looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nemo_polar.wire.history import is_plain

_MARK = "cache_control"


@dataclass(slots=True)
class Entries:
    """``system``, if there is one, and the messages."""

    all: list[Any]
    system: int = 0
    """1 when the first is ``{"content": <system>}``, else 0."""
    marked: bool = False
    """A mark was taken off somewhere."""

    @classmethod
    def of(cls, system: Any, messages: Sequence[Any]) -> Entries:
        """The entries of a request; neither argument is changed."""
        entries = cls([])
        if system:
            entries.system = 1
            entries.all.append(entries._entry({"content": system}))
        entries.all += map(entries._entry, messages)
        return entries

    def _entry(self, entry: Any) -> Any:
        if type(entry) is not dict:
            return entry
        entry = self._unmarked(entry)
        content = entry.get("content")
        if type(content) is str:
            return {**entry, "content": [{"type": "text", "text": content}]}
        if type(content) is not list:
            return entry
        blocks = self._blocks(content, self._block)
        return entry if blocks is content else {**entry, "content": blocks}

    def _block(self, block: Any) -> Any:
        if type(block) is not dict:
            return block
        if _MARK in block:
            block = self._unmarked(block)
        if block.get("type") != "tool_result":
            return block
        content = block.get("content")
        if type(content) is not list:
            return block
        inner = self._blocks(content, self._unmarked)
        return block if inner is content else {**block, "content": inner}

    def _blocks(self, blocks: list[Any], form: Any) -> list[Any]:
        """``blocks`` in their form; the same list when each of them is in it already."""
        formed = [form(block) for block in blocks]
        return blocks if all(map(_is, formed, blocks)) else formed

    def _unmarked(self, value: Any) -> Any:
        if type(value) is not dict or _MARK not in value:
            return value
        self.marked = self.marked or value[_MARK] is not None
        return {k: v for k, v in value.items() if k != _MARK}


def _is(one: Any, other: Any) -> bool:
    return one is other


def is_plain_entry(entry: Any) -> bool:
    """Whether Python's ``==`` on ``entry`` is equality of what is read from it (see ``history.is_plain``).

    An ``input`` is written out again, and there the order of its keys shows.
    """
    return is_plain(entry) and not any(block.get("type") == "tool_use" for block in _dicts(entry))


def has_reference(entry: Any) -> bool:
    """Whether a tool's definition, which is not in ``entry``, is read into it."""
    return any(
        inner.get("type") == "tool_reference"
        for block in _dicts(entry)
        if block.get("type") == "tool_result"
        for inner in _dicts(block)
    )


def _dicts(value: Any) -> list[dict[str, Any]]:
    """The objects in its ``content``."""
    content = value.get("content") if type(value) is dict else None
    return [block for block in content if type(block) is dict] if type(content) is list else []
