# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A small vocabulary that can spell everything in several ways, and what is needed to run a parser over it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count, groupby, pairwise

from nemo_polar.tokens.parser import IncrementalParser, Marker, ReplyFormat
from nemo_polar.types import Delta, FinishReason, Part, Reasoning, ReasoningDelta, Text, TextDelta, TokenIds, ToolCallDelta

_PIECES = (
    *("<tool", "_call>", "<tool_call", "</tool", "</", "<th", "ink>", "think", "call>{", '"}', '"}}', "}\n</"),
    *('{"', '": "', '"name"', "name", '"arguments": ', "arguments", "\n\n", " \n", "  ", "<function=", "</parameter>", "\n<"),
    *("hello", " world", "é", "日本", "🙂", "ab", "abc", "a<", "STOP"),
)
_SPECIAL = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<|im_start|>", "<|im_end|>", "<|endoftext|>")


class ScriptedVocabulary:
    """Ids 0-255 are single bytes, then come pieces that straddle markers and characters, then added tokens."""

    def __init__(self) -> None:
        emoji, kanji = "🙂".encode(), "語".encode()
        pieces = [p.encode() for p in _PIECES] + [emoji[:2], emoji[2:], kanji[:1], kanji[1:], b"\xf0\x9f", b"\xff<tool"]
        self._bytes = [bytes([i]) for i in range(256)] + pieces
        self.special = {text: len(self._bytes) + i for i, text in enumerate(_SPECIAL)}
        self._bytes += [text.encode() for text in _SPECIAL]
        self._spelling = sorted(set(pieces), key=len, reverse=True)
        self._id = {data: i for i, data in reversed(list(enumerate(self._bytes[: 256 + len(pieces)])))}
        self.lookups = 0
        """Calls of ``token_bytes``."""

    def __len__(self) -> int:
        return len(self._bytes)

    def token_bytes(self, token_id: int) -> bytes:
        self.lookups += 1
        return self._bytes[token_id]

    def spell(self, text: str | bytes, *, by_byte: bool = False) -> list[int]:
        """``text`` in ordinary tokens: the longest piece that fits each time, or byte by byte."""
        data, ids = text.encode() if isinstance(text, str) else text, []
        while data:
            piece = data[:1] if by_byte else next((p for p in self._spelling if data.startswith(p)), data[:1])
            ids.append(self._id[piece])
            data = data[len(piece) :]
        return ids

    def write(self, text: str, *, by_byte: bool = False) -> list[int]:
        """``text`` with added tokens as their ids, as a chat template's output would be read."""
        at, special = min(((text.find(s), s) for s in _SPECIAL if s in text), default=(-1, ""))
        if at < 0:
            return self.spell(text, by_byte=by_byte)
        rest = self.write(text[at + len(special) :], by_byte=by_byte)
        return [*self.spell(text[:at], by_byte=by_byte), self.special[special], *rest]

    def format(self, *, spelled: bool = False, body: str = "hermes", reasoning: bool = True) -> ReplyFormat:
        """Markers as single ids, or ``spelled`` with ordinary tokens."""

        def pair(name: str) -> tuple[Marker, Marker]:
            opener, closer = f"<{name}>", f"</{name}>"
            return (
                Marker(None if spelled else self.special[opener], opener),
                Marker(None if spelled else self.special[closer], closer),
            )

        return ReplyFormat(
            end_ids=frozenset({self.special["<|im_end|>"], self.special["<|endoftext|>"]}),
            reasoning=pair("think") if reasoning else None,
            call=pair("tool_call"),
            call_body="qwen_xml" if body == "qwen_xml" else "hermes",
        )


def counted_ids() -> Callable[[], str]:
    """Mints c0, c1, ..., so that two parses of the same ids can be compared."""
    numbers = count()
    return lambda: f"c{next(numbers)}"


def pieces(ids: Sequence[int], cuts: Iterable[int]) -> list[Sequence[int]]:
    """``ids`` cut at ``cuts``; empty pieces included."""
    edges = [0, *sorted(c % (len(ids) + 1) for c in cuts), len(ids)]
    return [ids[a:b] for a, b in pairwise(edges)]


def run(
    parser: IncrementalParser, chunks: Iterable[Sequence[int] | TokenIds], reason: FinishReason = FinishReason.STOP
) -> list[Delta]:
    """All deltas of a reply that comes in ``chunks``."""
    return [delta for chunk in chunks for delta in parser.feed(chunk)] + parser.finish(reason)


def joined(deltas: Iterable[Delta]) -> tuple[Part, ...]:
    """Deltas as the parts of the message they stand for."""
    parts: list[Part] = []
    for kind, group in groupby(deltas, key=type):
        if kind is ToolCallDelta:
            parts.extend(d.call for d in group if isinstance(d, ToolCallDelta))
        else:
            text = "".join(d.text for d in group if isinstance(d, TextDelta | ReasoningDelta))
            parts.append(Text(text) if kind is TextDelta else Reasoning(text))
    return tuple(parts)
