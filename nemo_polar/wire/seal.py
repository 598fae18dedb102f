# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Reasoning in the opaque fields that three providers have for it (``encrypted_content``, ``signature``, ``thoughtSignature``).

A harness that keeps no reasoning text still sends these back, so the text goes in them: with it, the conversation can be
compared and rendered in full. It is no secret (the session's own model wrote it), and nothing is trusted because of it: whoever
makes one up has made up reasoning of his own session. What is not of ours is told apart by its first characters and its sum.
"""

from __future__ import annotations

import base64
import binascii
from zlib import crc32

_MARK = "polar1."


def seal(reasoning: str) -> str:
    """``reasoning`` as an opaque ASCII string, a third longer."""
    raw = reasoning.encode("utf-8", "surrogatepass")
    return _MARK + base64.urlsafe_b64encode(crc32(raw).to_bytes(4, "big") + raw).decode()


def unseal(value: str) -> str | None:
    """The reasoning that ``value`` was made from; None when it is none of ours, or was cut."""
    if not value.startswith(_MARK):
        return None
    try:
        raw = base64.b64decode(value[len(_MARK) :], altchars=b"-_", validate=True)
        if len(raw) < 4 or crc32(raw[4:]).to_bytes(4, "big") != raw[:4]:
            return None
        return raw[4:].decode("utf-8", "surrogatepass")
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return None
