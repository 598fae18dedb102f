# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Framing of server-sent events. One event is one ``data`` line; nothing here knows what is in it."""

from __future__ import annotations

CONTENT_TYPE = "text/event-stream; charset=utf-8"
KEEP_ALIVE = b": keep-alive\n\n"
"""A comment: every client must skip it."""


def data(payload: bytes) -> bytes:
    """An event without a name.

    ``payload`` is JSON on one line. The three characters outside ASCII that some clients' line readers take for line ends are
    escaped; in JSON they can only stand inside a string.
    """
    if b"\xe2\x80" in payload or b"\xc2\x85" in payload:
        payload = (
            payload.replace(b"\xe2\x80\xa8", rb"\u2028").replace(b"\xe2\x80\xa9", rb"\u2029").replace(b"\xc2\x85", rb"\u0085")
        )
    return b"data: " + payload + b"\n\n"


def event(name: str, payload: bytes) -> bytes:
    """An event with a name."""
    return b"event: " + name.encode() + b"\n" + data(payload)
