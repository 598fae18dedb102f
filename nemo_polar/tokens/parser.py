# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The reply of a model, parsed from its sampled ids while they come.

A function of the ids alone: however they are cut into ``feed`` calls, the deltas joined are the same, and they are
``message()``. Every id is decoded once and nothing that was shown is looked at again, so a token costs the same at any length
of reply. Never repairs what the model wrote, and never drops a character of it but end-of-turn ids, structural markers and
the white space next to those.

What the rules are where formats leave room:

- Reasoning is one region at the start: opened in the prompt, or by a marker with only white space before it. The first closer
  ends it. Think markers anywhere else are literal text. (Opened in the prompt *and* again by the model: one opening.)
- A call block inside reasoning ends the reasoning if it is read as a call. If it cannot be read, or the reasoning closer comes
  before the block has closed, the model was only talking about calls: all of it is reasoning. A closer that comes *after* a
  finished call is too late to undo it, since the call may be running by then.
- A block ends at the first call closer, wherever that stands; markers inside a block are part of it.
- A block still open at the end becomes a call only when the model ended its turn (``STOP``); half a call is never run.
- Stop strings are searched in visible text only; the first to be complete wins (``channel.py``).
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import groupby

import numpy as np

from nemo_polar.tokens.calls import read_call
from nemo_polar.tokens.channel import Channel, first_match, hold_from
from nemo_polar.tokens.reply_format import Marker, ReplyFormat, TokenBytes
from nemo_polar.tokens.utf8 import Utf8Stream
from nemo_polar.types import (
    Delta,
    FinishReason,
    Message,
    Part,
    Reasoning,
    ReasoningDelta,
    Role,
    Text,
    TextDelta,
    TokenIds,
    ToolCall,
    ToolCallDelta,
    ToolSpec,
)

_BATCH = 256
"""Ids decoded in one go: bounds the text that is scanned, and copied, for the next marker."""


class _State(Enum):
    START = auto()
    """Only white space so far: a reasoning opener may still come."""
    REASONING = auto()
    DRAFT = auto()
    """In a call block that was opened inside reasoning."""
    CONTENT = auto()
    CALL = auto()
    """In a call block that was opened in content."""


class _Sign(Enum):
    """What a marker means."""

    THINK = auto()
    END_THINK = auto()
    CALL = auto()
    END_CALL = auto()


_STRUCTURAL = {
    _State.REASONING: (_Sign.END_THINK, _Sign.CALL),
    _State.DRAFT: (_Sign.END_THINK, _Sign.END_CALL),
    _State.CONTENT: (_Sign.CALL,),
    _State.CALL: (_Sign.END_CALL,),
}
"""The markers that mean something in a state; all others are literal there. START looks for its one marker itself."""


@dataclass(frozen=True, slots=True)
class _Rules:
    """What is the same for every reply in a format."""

    markers: dict[_Sign, Marker]
    signs: dict[int, _Sign]
    """Markers that are one id."""
    special: frozenset[int]
    """Ids that are not just text: those of markers and of ends of turn."""
    spelled: dict[_State, tuple[list[_Sign], list[str]]]
    """The markers that mean something in a state and are matched as text, and their texts."""


@functools.lru_cache(maxsize=64)
def _rules(format: ReplyFormat, parse_calls: bool) -> _Rules:
    markers: dict[_Sign, Marker] = {}
    if format.reasoning is not None:
        markers[_Sign.THINK], markers[_Sign.END_THINK] = format.reasoning
    if format.call is not None and parse_calls:
        markers[_Sign.CALL], markers[_Sign.END_CALL] = format.call
    signs = {m.id: sign for sign, m in markers.items() if m.id is not None}
    spelled: dict[_State, tuple[list[_Sign], list[str]]] = {}
    for state in _State:
        found = [s for s in _STRUCTURAL.get(state, ()) if s in markers and markers[s].id is None]
        spelled[state] = found, [markers[s].text for s in found]
    return _Rules(markers, signs, format.end_ids | signs.keys(), spelled)


def mint_call_id() -> str:
    """A fresh tool-call id, in the shape most providers use."""
    return f"call_{secrets.token_hex(12)}"


class IncrementalParser:
    """A ``ReplyParser`` for one reply.

    Args:
        tokenizer: turns one id into its bytes.
        format: the family's markers.
        in_reasoning: the prompt ended inside reasoning.
        stop: strings that end the visible text.
        parse_calls: False: call blocks are ordinary text.
        tools: their schemas type the values of formats that write values without quotes.
        mint: makes the id of each call.

    Raises:
        ValueError: ``in_reasoning`` for a format without reasoning: it could never end.
    """

    def __init__(
        self,
        tokenizer: TokenBytes,
        format: ReplyFormat,
        *,
        in_reasoning: bool = False,
        stop: Sequence[str] = (),
        parse_calls: bool = True,
        tools: Sequence[ToolSpec] = (),
        mint: Callable[[], str] | None = None,
    ) -> None:
        if in_reasoning and format.reasoning is None:
            raise ValueError("in_reasoning needs a format with reasoning markers")
        self._token_bytes = tokenizer.token_bytes
        self._format, self._tools, self._mint = format, tools, mint or mint_call_id
        self._rules = _rules(format, parse_calls)

        self._first = _State.REASONING if in_reasoning else _State.CONTENT
        self._enter(_State.CONTENT if format.reasoning is None else _State.START)
        self._utf8 = Utf8Stream()
        self._lead: list[str] = []
        """White space before anything else."""
        self._held = ""
        """May still become a marker that is spelled with ordinary tokens."""
        self._block: list[str] = []
        """The open call block, from its opener on."""
        self._ended = False
        """The end of the turn was met, or ``finish`` was called: further ids are ignored."""
        self._reasoning = Channel(self._show_reasoning)
        self._content = Channel(self._show_text, stop)
        if in_reasoning:
            self._reasoning.cut()

        self._new: list[Delta] = []
        self._shown: list[Delta] = []
        self._calls = 0
        self.malformed = 0
        """Calls passed on that are not well-formed."""
        self.unparsed_blocks = 0
        """Blocks opened in content that did not become a call and stayed text."""

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the visible text."""
        return self._content.stopped

    def feed(self, ids: Sequence[int] | TokenIds) -> list[Delta]:
        """The deltas that these ids complete. Ids after the end of the turn, or after a stop string, change nothing."""
        plain: Sequence[int] = ids.tolist() if isinstance(ids, np.ndarray) else ids
        if len(plain) == 1 and plain[0] not in self._rules.special:  # as they are streamed: most calls by far
            if not self._ended and self._content.stopped is None:
                self._scan(self._utf8.push(self._token_bytes(plain[0])))
            return self._take()
        for start in range(0, len(plain), _BATCH):
            if self._ended or self.stopped is not None:
                break
            self._feed(plain[start : start + _BATCH])
        return self._take()

    def finish(self, reason: FinishReason) -> list[Delta]:
        """The deltas held back until now; settles a block that is still open. Call once."""
        if self.stopped is None:
            self._release()
        if self.stopped is None:
            if self._state in (_State.CALL, _State.DRAFT):
                self._close_block(run=reason is FinishReason.STOP)
            elif self._state is _State.START:
                self._leave_start()
        if self.stopped is None:
            self._reasoning.end()
            self._content.end()
        self._ended = True
        return self._take()

    def message(self) -> Message:
        """The whole reply: reasoning, then text and calls in the order they were written. Valid after ``finish``."""
        parts: list[Part] = []
        for kind, run in groupby(self._shown, key=type):
            if kind is ToolCallDelta:
                parts.extend(d.call for d in run if isinstance(d, ToolCallDelta))
            else:
                text = "".join(d.text for d in run if not isinstance(d, ToolCallDelta))
                parts.append(Text(text) if kind is TextDelta else Reasoning(text))
        return Message(Role.ASSISTANT, tuple(parts))

    # --- ids to text and markers ------------------------------------------------------------------------------------

    def _feed(self, ids: Sequence[int]) -> None:
        data: list[bytes] = []
        for token_id in ids:
            if token_id in self._format.end_ids:
                self._scan(self._utf8.push(b"".join(data)))
                self._ended = True
                return
            sign = self._rules.signs.get(token_id)
            if sign is not None:
                self._scan(self._utf8.push(b"".join(data)))
                data.clear()
                self._release()
                if self._take_marker(sign):
                    continue
            data.append(self._token_bytes(token_id))
        self._scan(self._utf8.push(b"".join(data)))

    def _take_marker(self, sign: _Sign) -> bool:
        """Act on a marker given as one id, all text before it being placed. False: it is literal here."""
        if self._state is _State.START and sign is not _Sign.THINK:
            self._leave_start()
        if self.stopped is not None or (self._state is not _State.START and sign not in _STRUCTURAL[self._state]):
            return False
        self._turn(sign)
        return True

    def _scan(self, text: str) -> None:
        """Place ``text``, acting on the markers spelled in it; its end is held back while it may become one."""
        if not self._needles and self._state is not _State.START:  # then nothing is held back either
            if self._content.stopped is None:
                self._place(text)
            return
        text, self._held = self._held + text, ""
        while text and self.stopped is None:
            if self._state is _State.START:
                text = self._scan_start(text)
                continue
            signs, needles = self._watched, self._needles
            match = first_match(text, needles)
            if match is None:
                hold = hold_from(text, needles)
                self._held = text[hold:]
                self._place(text[:hold])
                return
            start, index = match
            self._place(text[:start])
            if self.stopped is None:
                self._turn(signs[index])
            text = text[start + len(needles[index]) :]

    def _scan_start(self, text: str) -> str:
        """Text at the very start of a reply. Returns what is left to scan in the next state."""
        rest = text.lstrip()
        self._lead.append(text[: len(text) - len(rest)])
        opener = self._rules.markers[_Sign.THINK]
        if opener.id is None and rest.startswith(opener.text):
            self._turn(_Sign.THINK)
            return rest[len(opener.text) :]
        if opener.id is None and opener.text.startswith(rest):
            self._held = rest
            return ""
        if rest:
            self._leave_start()
        return rest

    def _leave_start(self) -> None:
        """No opener came: the reply goes on where the prompt left it."""
        self._enter(self._first)
        self._place("".join(self._lead))
        self._lead.clear()

    def _release(self) -> None:
        """Nothing that was held back can grow any more: an unfinished character, the beginning of a marker."""
        self._scan(self._utf8.flush())
        held, self._held = self._held, ""
        if held:
            if self._state is _State.START:
                self._leave_start()
            self._place(held)

    def _enter(self, state: _State) -> None:
        self._state = state
        self._watched, self._needles = self._rules.spelled[state]

    # --- text and markers to deltas ---------------------------------------------------------------------------------

    def _place(self, text: str) -> None:
        """Text without markers, put where it belongs in the present state."""
        if not text:
            return
        if self._state is _State.REASONING:
            self._reasoning.push(text)
        elif self._state is _State.CONTENT:
            self._content.push(text)
        else:
            self._block.append(text)

    def _turn(self, sign: _Sign) -> None:
        """A marker that means something here: change the state."""
        if sign is _Sign.THINK:
            self._lead.clear()
            self._reasoning.cut()
            self._enter(_State.REASONING)
        elif sign is _Sign.END_THINK:
            if self._state is _State.DRAFT:
                self._keep_block()
            self._reasoning.cut()
            self._content.cut()
            self._enter(_State.CONTENT)
        elif sign is _Sign.CALL:
            self._block = [self._rules.markers[sign].text]
            self._enter(_State.DRAFT if self._state is _State.REASONING else _State.CALL)
        else:
            self._block.append(self._rules.markers[sign].text)
            self._close_block(run=True, closed=True)

    def _close_block(self, *, run: bool, closed: bool = False) -> None:
        """The open block is over: it becomes a call (only if ``run``), or goes back to where it was opened."""
        body = "".join(self._block[1:-1] if closed else self._block[1:])
        found = read_call(body, self._format.call_body, self._tools) if run else None
        if found is None:
            self.unparsed_blocks += self._state is _State.CALL
            self._keep_block()
            return
        self._block = []
        if self._state is _State.DRAFT:
            self._reasoning.cut()
        self._content.cut()
        self._enter(_State.CONTENT)
        call = ToolCall(self._mint(), found.name, found.arguments, found.malformed)
        self.malformed += found.malformed
        self._show(ToolCallDelta(self._calls, call))
        self._calls += 1

    def _keep_block(self) -> None:
        """The open block is no call: all of it, markers included, is ordinary text of the region it was opened in."""
        text, self._block = "".join(self._block), []
        self._enter(_State.REASONING if self._state is _State.DRAFT else _State.CONTENT)
        self._place(text)

    def _show_text(self, text: str) -> None:
        self._show(TextDelta(text))

    def _show_reasoning(self, text: str) -> None:
        self._show(ReasoningDelta(text))

    def _show(self, delta: Delta) -> None:
        self._new.append(delta)
        self._shown.append(delta)

    def _take(self) -> list[Delta]:
        new, self._new = self._new, []
        return new
