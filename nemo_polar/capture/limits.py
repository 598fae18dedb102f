# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What is held against the proxy's bounds, and how often each of them was reached. ``docs/limits.md`` lists them all.

Plain numbers that only the event loop writes; metrics read them. Nothing here waits, and nothing here decides what a refusal
looks like: whoever reaches a bound makes the error, and has it counted here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TypeVar

from nemo_polar.errors import CallError, Overloaded, TooLarge
from nemo_polar.settings import CaptureSettings
from nemo_polar.types import Image, Message, ToolResult

_E = TypeVar("_E", bound=CallError)


class Limits:
    """One a proxy."""

    def __init__(self, settings: CaptureSettings) -> None:
        self.refused: Counter[str] = Counter()
        """How often a bound was reached, by the name of its setting (``max_calls``, ``write_seconds``...), since the start."""
        self.streams = 0
        """Streamed answers under way, of new samples and of repeated ones."""
        self.connections = 0
        """Open connections, over all listeners."""
        self._settings = settings

    def refuse(self, setting: str, error: _E) -> _E:
        """Count that the bound ``setting`` was reached. Returns ``error``, to be raised or sent."""
        self.refused[setting] += 1
        return error

    def stream(self) -> _Stream:
        """A place for one streamed answer, held within ``with``; on the way in it raises ``Overloaded`` when all are taken."""
        return _Stream(self, self._settings.max_streams)

    def check_images(self, messages: Iterable[Message]) -> None:
        """Bound the images among ``messages``: those that are new in a request, as the others were counted when they were new.

        Raises:
            TooLarge: there are too many, or one of them is too large.
        """
        most, longest = self._settings.max_images, self._settings.max_image_bytes
        for count, image in enumerate(_images(messages), 1):
            if len(image.url) > longest:
                what = f"An image of the request is over the limit of {longest} bytes (capture.max_image_bytes)."
                raise self.refuse("max_image_bytes", TooLarge(what, param="messages"))
            if count > most:
                what = f"The request has over {most} new images (capture.max_images)."
                raise self.refuse("max_images", TooLarge(what, param="messages"))


class _Stream:
    """A place for a streamed answer."""

    __slots__ = ("_limits", "_most")

    def __init__(self, limits: Limits, most: int) -> None:
        self._limits = limits
        self._most = most

    def __enter__(self) -> None:
        limits = self._limits
        if limits.streams >= self._most:
            raise limits.refuse("max_streams", busy("max_streams", f"{limits.streams} streamed answers are under way"))
        limits.streams += 1

    def __exit__(self, *_: object) -> None:
        self._limits.streams -= 1


def busy(setting: str, what: str) -> Overloaded:
    """The error of a bound on things under way: later there may be room."""
    return Overloaded(f"{what}, which is the limit (capture.{setting}); try again shortly.", retry_after=1.0)


def _images(messages: Iterable[Message]) -> Iterable[Image]:
    for message in messages:
        for part in message.parts:
            if isinstance(part, Image):
                yield part
            elif isinstance(part, ToolResult):
                yield from (item for item in part.content if isinstance(item, Image))
