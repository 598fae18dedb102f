# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What sessions sent last, so that a request costs what is new in it (rule 8).

A harness re-sends its whole conversation. Here the last request of each line of a session is kept as it was read and
fingerprinted; the next one is read and fingerprinted only from where it differs. Only speed is at stake: with nothing kept,
everything comes out the same. Kept in memory, bounded in bytes over all sessions, the longest unused forgotten first.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from nemo_polar.tokens.canonical import Printed, shared_messages
from nemo_polar.wire.history import Read

_LINES = 4
"""Lines of one session: the main one, a sub-agent or two, a side call."""


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """The last request of one line."""

    read: Read
    printed: Printed
    size: int
    """Bytes of its body."""


class SeenRequests:
    """All lines, by session."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self._sessions: OrderedDict[str, list[Line]] = OrderedDict()
        """Sessions by last use, the oldest first; the lines of each the same way."""

    def reads(self, session_id: str, dialect: str) -> list[Read]:
        """What requests of this session were read as by this dialect: to another, the same JSON may mean something else."""
        return [line.read for line in self._sessions.get(session_id, ()) if line.printed.call.dialect == dialect]

    def nearest(self, session_id: str, read: Read) -> Printed | None:
        """The request of this session whose messages ``read`` took over, or shares most of."""
        found = self._nearest(session_id, read)
        return None if found is None else found[0].printed

    def keep(self, session_id: str, read: Read, printed: Printed, size: int) -> None:
        """Remember a request. It takes the place of the one it goes on."""
        if size > self.max_bytes:
            return
        lines = self._sessions.setdefault(session_id, [])
        self._sessions.move_to_end(session_id)
        found = self._nearest(session_id, read)
        if found is not None and found[1] == len(found[0].read.messages):
            self._drop(lines, found[0])
        lines.append(Line(read, printed, size))
        self.bytes += size
        if len(lines) > _LINES:
            self._drop(lines, lines[0])
        while self.bytes > self.max_bytes:
            oldest = next(iter(self._sessions))
            self._drop(self._sessions[oldest], self._sessions[oldest][0])
            if not self._sessions[oldest]:
                del self._sessions[oldest]

    def forget(self, session_id: str) -> None:
        """Drop what a session sent."""
        for line in self._sessions.pop(session_id, ()):
            self.bytes -= line.size

    def _nearest(self, session_id: str, read: Read) -> tuple[Line, int] | None:
        lines = [(line, shared_messages(line.read.messages, read.messages)) for line in self._sessions.get(session_id, ())]
        best = max(lines, key=lambda found: found[1], default=None)
        return best if best is not None and best[1] else None

    def _drop(self, lines: list[Line], line: Line) -> None:
        lines.remove(line)
        self.bytes -= line.size
