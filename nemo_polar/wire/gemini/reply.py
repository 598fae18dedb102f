# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Writing Gemini answers: the parts of a reply, whole, and what both forms have in common.

A ``PartWriter`` turns what the model said into parts, in the order it was said; a whole answer and a stream use the same one,
so the parts of a stream joined are those of the whole answer. Where signatures stand:

- on the first part that a client sees after some reasoning, with that reasoning: Gemini CLI keeps the first signature of texts
  that it joins, and a stream cannot know which text is the last;
- on the first call also all the reasoning so far, as that is the one place where every client keeps it;
- in an empty text at the end for reasoning that nothing follows.

Between two texts with reasoning in between stands a part that is a signature alone, with nothing in it: it keeps a client that
hides thoughts from joining the texts, which would lose the second signature.

An aborted sample is told as ``MAX_TOKENS``: the API has no word for it, and this is the one that makes a client treat the text
as cut off.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from nemo_polar.types import (
    FinishReason,
    ModelCall,
    Reasoning,
    Reply,
    Text,
    TokenLogProb,
    ToolCall,
    Usage,
)
from nemo_polar.wire.gemini.arguments import to_wire
from nemo_polar.wire.gemini.signature import Piece, sign

EMPTY_TEXT: dict[str, Any] = {"text": ""}
"""Says nothing, where clients need a part to take a chunk or a reply for valid."""


class PartWriter:
    """The parts of one reply, from what is said bit by bit."""

    def __init__(self, *, include_thoughts: bool):
        self._include_thoughts = include_thoughts
        self._reasoning: list[str] = []
        self._unsigned: list[str] = []
        self._signed = 0
        """Characters of the reasoning that a signature was made of."""
        self._called = False
        self._after_text = False
        """The last part is a text, thoughts aside."""
        self.empty = True
        """Nothing was written yet."""

    def reasoning(self, text: str) -> list[dict[str, Any]]:
        if not text:
            return []
        self._reasoning.append(text)
        self._unsigned.append(text)
        return self._written([{"text": text, "thought": True}] if self._include_thoughts else [])

    def text(self, text: str) -> list[dict[str, Any]]:
        return self._text(text) if text else []

    def call(self, call: ToolCall) -> list[dict[str, Any]]:
        part: dict[str, Any] = {"functionCall": {"id": call.id, "name": call.name, "args": to_wire(call.arguments)}}
        if self._reasoning and not self._called:
            self._take()
            part["thoughtSignature"] = sign(Piece(0, "".join(self._reasoning)))
        elif self._unsigned:
            part["thoughtSignature"] = sign(self._take())
        self._called, self._after_text = True, False
        return self._written([part])

    def end(self) -> list[dict[str, Any]]:
        """What is left to say when the model has ended: at least one part if there was none."""
        return self._text("") if self._unsigned or self.empty else []

    def _text(self, text: str) -> list[dict[str, Any]]:
        part: dict[str, Any] = {"text": text}
        parts = [part]
        if self._unsigned:
            if self._after_text:
                parts.insert(0, {"thoughtSignature": sign(Piece(self._signed, ""))})
            part["thoughtSignature"] = sign(self._take())
        self._after_text = True
        return self._written(parts)

    def _take(self) -> Piece:
        """The reasoning that no signature has yet."""
        piece = Piece(self._signed, "".join(self._unsigned))
        self._signed += len(piece.text)
        self._unsigned.clear()
        return piece

    def _written(self, parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
        self.empty = self.empty and not parts
        return parts


def whole_answer(call: ModelCall, reply: Reply) -> bytes:
    """A ``GenerateContentResponse``."""
    writer = PartWriter(include_thoughts=bool(call.options.get("include_thoughts")))
    parts: list[dict[str, Any]] = []
    for part in reply.message.parts:
        if isinstance(part, Reasoning):
            _append(parts, writer.reasoning(part.text))
        elif isinstance(part, Text):
            _append(parts, writer.text(part.text))
        elif isinstance(part, ToolCall):
            _append(parts, writer.call(part))
    _append(parts, writer.end())
    return orjson.dumps({**last_chunk(call, reply, parts), "modelVersion": reply.model, "responseId": reply.id})


def last_chunk(call: ModelCall, reply: Reply, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What ends a stream, and is all of a whole answer: ``parts``, the finish reason, log-probabilities if asked for, usage."""
    candidate: dict[str, Any] = {
        "content": {"parts": parts, "role": "model"},
        "finishReason": "STOP" if reply.finish_reason is FinishReason.STOP else "MAX_TOKENS",
        "index": 0,
    }
    if call.want_logprobs and reply.logprobs is not None:
        candidate |= _logprobs(reply.logprobs)
    return {"candidates": [candidate], "usageMetadata": _usage(reply.usage)}


def _append(parts: list[dict[str, Any]], new: Iterable[dict[str, Any]]) -> None:
    """Add ``new``, joining what a reader would join: a text to one of its kind, unless it has a signature of its own."""
    for part in new:
        last = parts[-1] if parts else {}
        alike = "text" in part and "text" in last and part.get("thought") == last.get("thought")
        if alike and "thoughtSignature" not in part:
            parts[-1] = {**last, "text": last["text"] + part["text"]}
        else:
            parts.append(part)


def _logprobs(entries: tuple[TokenLogProb, ...]) -> dict[str, Any]:
    chosen = [{"token": e.text, "logProbability": float(e.logprob)} for e in entries]
    mean = sum(entry["logProbability"] for entry in chosen) / len(chosen) if chosen else 0.0
    return {"avgLogprobs": mean, "logprobsResult": {"chosenCandidates": chosen}}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "promptTokenCount": usage.prompt_tokens,
        "candidatesTokenCount": usage.completion_tokens - usage.reasoning_tokens,
        "thoughtsTokenCount": usage.reasoning_tokens,
        "totalTokenCount": usage.prompt_tokens + usage.completion_tokens,
        "cachedContentTokenCount": usage.cached_tokens,
        "promptTokensDetails": text_tokens(usage.prompt_tokens),
    }


def text_tokens(count: int) -> list[dict[str, Any]]:
    """A count by modality, of which there is one."""
    return [{"modality": "TEXT", "tokenCount": count}]
