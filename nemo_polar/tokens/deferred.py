# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A tokenizer that a renderer can be run with to learn *what* it encodes, before anything is encoded.

Hand-written renderers keep several lists with an entry a token, which nobody here reads; for a long tool result that costs
more than encoding it. While recording, ``encode`` returns one stand-in id for a whole long text, and ``expand`` then puts the
real ids in its place. Renderers look at the ids of short texts (markers, the header of a turn), so those are encoded at once,
and remembered, as they are the same ones every time. They never look into a message's own text, so the ids come out the same:
proven by property test for each renderer that is used (``tests/tokens/test_deferred.py``).
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from nemo_polar.tokens.tokenizer import Tokenizer

_FIRST = 2**31
"""Stand-in ids begin here: no 32-bit token id is one."""
_SHORT = 128
"""Characters up to which a text is encoded at once: many times the longest that a renderer looks at."""
_REMEMBERED = 4096
"""Short texts whose ids are kept."""


class DeferredTokenizer:
    """A ``Tokenizer`` that can put encoding off. What is recorded in one thread is not seen in another."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._state = threading.local()
        self._short = functools.lru_cache(maxsize=_REMEMBERED)(lambda text: tuple(tokenizer.encode(text)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)

    def __len__(self) -> int:
        return len(self.tokenizer)

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Ids of ``text``; while recording, one that stands in for those of a long text."""
        texts: list[str] | None = getattr(self._state, "texts", None)
        if texts is None or add_special_tokens:
            return self.tokenizer.encode(text, add_special_tokens)
        if len(text) <= _SHORT:
            return list(self._short(text))
        texts.append(text)
        return [_FIRST + len(texts) - 1]

    @contextmanager
    def recording(self) -> Iterator[list[str]]:
        """Within the block, this thread's texts are recorded, not encoded."""
        texts: list[str] = []
        self._state.texts = texts
        try:
            yield texts
        finally:
            self._state.texts = None

    def expand(self, ids: Sequence[int], texts: Sequence[str]) -> list[int]:
        """``ids`` with every stand-in replaced by the ids of its text."""
        expanded: list[int] = []
        for token_id in ids:
            if token_id < _FIRST:
                expanded.append(token_id)
            else:
                expanded += self.tokenizer.encode(texts[token_id - _FIRST])
        return expanded
