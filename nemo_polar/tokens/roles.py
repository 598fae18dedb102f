# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Which roles a model family's template takes, and what becomes of the others.

Harnesses send ``developer`` messages, several system messages, and system messages in the middle of a conversation. Many
templates refuse some of these, or leave them out without a word. A ``RoleMap`` turns a conversation into one that the family
takes; no text is ever dropped. Maps for families with a hand-written renderer are in ``FAMILIES``; those of other templates
are found by trying (``template.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from nemo_polar.types import Message, Role, Text, ToolResult

_GAP = "\n\n"
"""Between the texts of messages that became one."""


@dataclass(frozen=True, slots=True)
class RoleMap:
    """What a family does with the roles that templates disagree on."""

    developer: Literal["system", "keep"] = "system"
    leading: Literal["keep", "merge", "user"] = "merge"
    """System messages that open a conversation: each one kept, made one message, or said by the user."""
    later: Literal["keep", "user"] = "user"
    """System messages after that: kept, or said by the user."""
    merge_users: bool = False
    """True: user messages in a row become one, for templates that insist on taking turns."""

    def apply(self, messages: Sequence[Message], *, opening: bool = True) -> list[Message]:
        """``messages`` in the roles of the family. ``opening`` is False for messages that go on a conversation."""
        start = _leading(messages) if opening else 0
        mapped = [self._mapped(m, self.leading) for m in messages[:start]]
        if self.leading == "merge" and len(mapped) > 1:
            mapped = [_merged(mapped)]
        mapped += [self._mapped(m, self.later) for m in messages[start:]]
        return _merge_users(mapped) if self.merge_users else mapped

    def _mapped(self, message: Message, rule: str) -> Message:
        if message.role is Role.DEVELOPER and self.developer == "keep":
            return message
        if message.role in (Role.SYSTEM, Role.DEVELOPER):
            return replace(message, role=Role.USER if rule == "user" else Role.SYSTEM)
        return message


FAMILIES: dict[str, RoleMap] = {
    # Qwen3's template writes system messages wherever they stand; in its own format only the first carries the tools.
    "qwen3": RoleMap(leading="keep", later="keep"),
    "prime-qwen3": RoleMap(leading="merge", later="user"),
    # These raise on a system message that is not the first, and on developer.
    "qwen3.5": RoleMap(leading="merge", later="user"),
    "qwen3.6": RoleMap(leading="merge", later="user"),
    "qwen3.8": RoleMap(leading="merge", later="user"),
    "nemotron-3": RoleMap(leading="merge", later="user"),
    "nemotron-3-ultra": RoleMap(leading="merge", later="user"),
    "nemotron-3.5": RoleMap(leading="merge", later="user"),
}
"""By renderer name."""


def _leading(messages: Sequence[Message]) -> int:
    """How many system and developer messages open the conversation."""
    for n, message in enumerate(messages):
        if message.role not in (Role.SYSTEM, Role.DEVELOPER):
            return n
    return len(messages)


def _merged(messages: Sequence[Message]) -> Message:
    parts = [part for m in messages for part in (*((Text(_GAP),) if m is not messages[0] else ()), *m.parts)]
    return replace(messages[0], parts=tuple(parts))


def _merge_users(messages: list[Message]) -> list[Message]:
    merged: list[Message] = []
    for message in messages:
        plain = not any(isinstance(p, ToolResult) for p in message.parts)
        if merged and plain and message.role is Role.USER and merged[-1].role is Role.USER:
            merged[-1] = _merged([merged[-1], message])
        else:
            merged.append(message)
    return merged
