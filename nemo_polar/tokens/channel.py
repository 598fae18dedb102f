# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Text on its way out of a reply: what can be shown now, and what must wait because of what may follow it.

Holds back white space (it is dropped if a structural marker follows) and the beginnings of strings that are searched for
(markers, stop strings). Knows nothing of tokens, and never changes a character that it lets through.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence


def first_match(text: str, needles: Sequence[str]) -> tuple[int, int] | None:
    """The needle that is *complete* first in ``text``, as (start, index into ``needles``); of two that end there, the longer.

    First to complete, not first to start: that is the only rule that gives the same answer when ``text`` comes in pieces.
    """
    best: tuple[int, int, int] | None = None
    for index, needle in enumerate(needles):
        start = text.find(needle)
        if start >= 0:
            found = (start + len(needle), start, index)
            best = found if best is None else min(best, found)
    return None if best is None else best[1:]


def hold_from(text: str, needles: Sequence[str]) -> int:
    """Where the longest suffix of ``text`` starts that may still grow into a needle; ``len(text)`` when there is none."""
    hold = len(text)
    for needle in needles:
        at = text.find(needle[0], max(0, len(text) - len(needle) + 1))
        while 0 <= at < hold:
            if needle.startswith(text[at:]):
                hold = at
                break
            at = text.find(needle[0], at + 1)
    return hold


class Channel:
    """Visible text, or reasoning, of one reply.

    White space next to a structural marker belongs to the template and is dropped; all other is kept. Stop strings are searched
    in what comes after the white space that follows a marker. White space *before* a marker takes part in the search: whether a
    marker follows is not known yet, and an engine would stop there too.
    """

    __slots__ = ("_emit", "_held", "_skip", "_spaces", "_stop", "stopped")

    def __init__(self, emit: Callable[[str], None], stop: Sequence[str] = ()) -> None:
        self._emit = emit
        self._stop = tuple(s for s in stop if s)
        self._held = ""
        """May still become a stop string."""
        self._spaces: list[str] = []
        """White space that is shown only if no marker follows; comes before ``_held``."""
        self._skip = False
        """A marker was just seen."""
        self.stopped: str | None = None
        """The stop string that was met. What comes after it must not be pushed."""

    def push(self, text: str) -> None:
        """More text. Shows what is certain; meeting a stop string ends the channel before it."""
        if self._skip:
            text = text.lstrip()
            if not text:
                return
            self._skip = False
        if self._stop:
            text = self._held + text
            match = first_match(text, self._stop)
            if match is not None:
                start, index = match
                self.stopped, self._held = self._stop[index], text[:start]
                self.end()
                return
            hold = hold_from(text, self._stop)
            text, self._held = text[:hold], text[hold:]
        self._write(text)

    def cut(self) -> None:
        """A structural marker stands here: white space on both sides of it goes. A stop string never spans a marker."""
        self._write(self._held)
        self._held = ""
        self._spaces.clear()
        self._skip = True

    def end(self) -> None:
        """The reply ends here: shows all that was held back."""
        self._write(self._held)
        self._held = ""
        rest = "".join(self._spaces)
        self._spaces.clear()
        if rest:
            self._emit(rest)

    def _write(self, text: str) -> None:
        shown = text.rstrip()
        if shown:
            self._spaces.append(shown)
            self._emit("".join(self._spaces))
            self._spaces.clear()
        if len(shown) < len(text):
            self._spaces.append(text[len(shown) :])
