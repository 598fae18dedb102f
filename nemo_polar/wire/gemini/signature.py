# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Reasoning in ``thoughtSignature``, piece by piece.

A stream must sign a part before it knows what reasoning comes later, so a signature seals one piece of a reply's reasoning and
the place where it starts. Pieces that meet are the whole. Where one is missing the reasoning is not known, which is told apart
from reasoning that is known and shorter: the former is compared with nothing, the latter would fork the line.

The API's type for the field is bytes: clients decode it and encode it again, some in the other base 64 alphabet, and some leave
out what is not strictly base 64. So the seal is written in the standard alphabet, its mark included, and read in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nemo_polar.wire.seal import seal, unseal

_MARK_END = "++"
_STANDARD = str.maketrans("-_", "+/")
_URL_SAFE = str.maketrans("+/", "-_")
_MAX_DIGITS = 9


class Piece(NamedTuple):
    """A piece of the reasoning of one reply."""

    start: int
    """Characters of reasoning before it."""
    text: str
    """Empty where a signature only says that there are ``start`` characters before it."""


def sign(piece: Piece) -> str:
    """``piece`` as a signature: strict base 64."""
    return seal(f"{piece.start}:{piece.text}").replace(".", _MARK_END, 1).translate(_STANDARD)


def read_signature(signature: str) -> Piece | None:
    """The piece that ``signature`` was made from; None when it is none of ours."""
    mark, _, body = signature.translate(_URL_SAFE).partition(_MARK_END.translate(_URL_SAFE))
    start, colon, text = (unseal(f"{mark}.{body}") or "").partition(":")
    if not (colon and start.isascii() and start.isdigit() and len(start) <= _MAX_DIGITS):
        return None
    return Piece(int(start), text)


def whole(pieces: Sequence[Piece]) -> str | None:
    """The reasoning that ``pieces`` cover; None when there are none, or one before the last is missing."""
    found: list[str] = []
    length = 0
    for start, text in sorted(pieces):
        if start > length:
            return None
        new = text[length - start :]
        found.append(new)
        length += len(new)
    return "".join(found) if pieces else None
