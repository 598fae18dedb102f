# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""How a model family writes a reply, as plain data: what the parser must know of a tokenizer and a chat template."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from nemo_polar.tokens.calls import CallBody


class TokenBytes(Protocol):
    """What the parser needs of a tokenizer."""

    def token_bytes(self, token_id: int, /) -> bytes:
        """The UTF-8 bytes of one token, perhaps only a part of a character; added tokens as their text."""
        ...


@dataclass(frozen=True, slots=True)
class Marker:
    """A structural marker."""

    id: int | None
    """The one token id that is this marker; the same characters spelled with other tokens are text. None: matched as text."""
    text: str
    """Not empty."""


@dataclass(frozen=True, slots=True)
class ReplyFormat:
    """How a model family writes a reply."""

    end_ids: frozenset[int]
    """End-of-turn ids: invisible; the reply ends at the first."""
    reasoning: tuple[Marker, Marker] | None
    """Opener and closer; None when the family does not reason."""
    call: tuple[Marker, Marker] | None
    """Opener and closer of a tool call block; None when the family has no tool calls."""
    call_body: CallBody
    """What stands inside a block."""
