# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Token bytes to text as they come: a character split over several tokens is held back until it is whole.

Joined, the pieces equal ``data.decode("utf-8", "replace")`` of all bytes, however they were cut. Never looks back: at most
three bytes are kept between calls.
"""

from __future__ import annotations

import codecs


class Utf8Stream:
    """One stream of bytes."""

    __slots__ = ("_decode",)

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def push(self, data: bytes) -> str:
        """The characters that ``data`` completes; bytes that can start no character become U+FFFD."""
        return self._decode(data)

    def flush(self) -> str:
        """What is left of an unfinished character, as U+FFFD; empty when there is none."""
        return self._decode(b"", True)
