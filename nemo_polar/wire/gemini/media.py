# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Images in a Gemini request: inline as base 64, or by their address. Other media are refused by name."""

from __future__ import annotations

from nemo_polar.types import Image
from nemo_polar.wire.fields import Dropped, Fields, invalid, shown, unsupported

_STANDARD = str.maketrans("-_", "+/")
_DATA_FIELD = {"inlineData": "data", "fileData": "fileUri"}


def read_media(media: Fields, kind: str, dropped: Dropped) -> Image:
    """``inlineData`` or ``fileData`` (which ``kind`` says), its names in camel case.

    Raises:
        BadRequest: no image.
    """
    field = _DATA_FIELD[kind]
    dropped.unknown(media, ("mimeType", "displayName", field), f"contents.parts.{kind}.")
    data = media.nonempty_string(field)
    mime_type = media.optional_string("mimeType")
    if mime_type is None and kind == "inlineData":
        raise media.missing("mimeType")
    if mime_type is None or not mime_type.startswith("image/"):
        raise unsupported(media.path, f"the model takes images at most, not {shown(mime_type or 'a file of unknown type')}")
    if kind == "fileData":
        return Image(data, mime_type)
    if any(c in mime_type for c in ",; "):
        raise invalid(media.at("mimeType"), f"is no media type: {shown(mime_type)}")
    # Clients that keep bytes write them in the alphabet for URLs; a data URL has the standard one.
    return Image(f"data:{mime_type};base64,{data.translate(_STANDARD)}", mime_type)
