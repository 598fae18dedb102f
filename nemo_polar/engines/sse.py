# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Server-sent events, cut out of bytes as they arrive. Only what inference engines send: ``data:`` lines and comments."""

from __future__ import annotations

from nemo_polar.errors import EngineProtocol

_MAX_LINE = 64 * 1024 * 1024


class SseLines:
    """Feed it bytes cut anywhere; it gives the payloads of the ``data:`` lines that they complete."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Payloads, in order, without the field name and white space around.

        Raises:
            EngineProtocol: a line that is no event line, or one beyond 64 MiB.
        """
        whole, newline, rest = data.rpartition(b"\n")
        if not newline:
            self._rest += data
            if len(self._rest) > _MAX_LINE:
                raise EngineProtocol(f"the engine's stream has a line of more than {_MAX_LINE} bytes")
            return []
        lines = (self._rest + whole).split(b"\n")
        self._rest = rest
        found = []
        for line in lines:
            line = line.strip()
            if line.startswith(b"data:"):
                found.append(line[5:].strip())
            elif line and not line.startswith((b":", b"event:", b"id:", b"retry:")):
                raise EngineProtocol(f"the engine's stream has a line that is not an event: {line[:80]!r}")
        return found

    @property
    def pending(self) -> bytes:
        """What came after the last line end: not empty at the end of a stream that was cut within a line."""
        return self._rest.strip()
