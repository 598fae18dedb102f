# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Declared rewrites of what differs between two rollouts of a task for no reason: today, the date.

A group's rollouts must send the same first prompt, for trainers group by it. A rewrite happens before anything is fingerprinted
or rendered, so what is recorded is exactly what the engine saw. It is pinned by the group's first session, counted, and written
down with the call. Only the opening is touched: the messages before the first reply, which is where harnesses write the date,
some as the system, some as the user. An instruction that names the very day its rollout runs on, in a group that began on
another, is rewritten with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from itertools import takewhile

from nemo_polar.types import Message, ModelCall, Role, Text

_FORMATS = (
    "%Y-%m-%d",
    "%Y/%m/%d",
    "%a %b %d %Y",
    "%A, %B %d, %Y",
    "%B %d, %Y",
    "%d %B %Y",
    "%-m/%-d/%Y",
    "%A, %B %-d, %Y",
    "%B %-d, %Y",
)


def today(now: float) -> date:
    """The date at ``now`` (Unix seconds), in UTC as the sandboxes have it."""
    return datetime.fromtimestamp(now, UTC).date()


@dataclass(frozen=True, slots=True)
class DateRewrite:
    """Writes the group's date where a harness wrote its own."""

    pinned: date

    def pattern(self, written: Iterable[date]) -> tuple[re.Pattern[str], dict[str, str]] | None:
        table = {day.strftime(f): self.pinned.strftime(f) for day in written if day != self.pinned for f in _FORMATS}
        if not table:
            return None
        longest_first = sorted(table, key=len, reverse=True)
        return re.compile(r"(?<!\w)(?:" + "|".join(map(re.escape, longest_first)) + r")(?!\w)"), table

    def apply(self, call: ModelCall, written: Iterable[date]) -> tuple[ModelCall, int]:
        """``call`` with the dates in ``written`` replaced in its opening, and how many there were."""
        found = self.pattern(written)
        if found is None:
            return call, 0
        pattern, table = found
        count = 0

        def put(match: re.Match[str]) -> str:
            nonlocal count
            count += 1
            return table[match.group()]

        def rewrite(message: Message) -> Message:
            parts = tuple(Text(pattern.sub(put, p.text)) if isinstance(p, Text) else p for p in message.parts)
            return replace(message, parts=parts)

        opening = tuple(rewrite(m) for m in takewhile(lambda m: m.role is not Role.ASSISTANT, call.messages))
        return (replace(call, messages=(*opening, *call.messages[len(opening) :])), count) if count else (call, 0)
