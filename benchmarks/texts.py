# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What is said in the benchmark: text to send, and replies to be given.

The text is the Python standard library's own source, so code and prose as tokenizers meet them, cut into pieces of which no two
are equal. The same for the same seed and Python version.
"""

from __future__ import annotations

import random
import sysconfig
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from nemo_polar.errors import ConfigError

END = "<|im_end|>"
"""What ends a reply, in every ChatML model."""
POOL = 64
"""Different replies of one length."""


class TextSource:
    """Pieces of text, each another one. ``seed`` decides where it begins."""

    def __init__(self, seed: int = 0) -> None:
        files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
        text = "".join(path.read_text(encoding="utf-8", errors="ignore") for path in files)
        self._text = text.encode("ascii", "ignore").decode("ascii")
        self._at = random.Random(seed).randrange(len(self._text))
        self._count = 0

    def take(self, size: int) -> str:
        """``size`` characters (and so bytes), which is 24 at least."""
        self._count += 1
        head = f"# excerpt {self._count}\n"
        left = size - len(head)
        piece = self._text[self._at : self._at + left]
        if len(piece) < left:
            piece += self._text[: left - len(piece)]
        # A step that is prime to the length, so that later rounds through the text cut it elsewhere.
        self._at = (self._at + left + 1) % len(self._text)
        return head + piece


@dataclass(frozen=True, slots=True)
class CannedReply:
    """A reply of the instant engine: ``ids[i]`` reads ``texts[i]``; the last id ends the reply and reads as nothing."""

    ids: tuple[int, ...]
    texts: tuple[str, ...]

    def to_json(self) -> dict[str, Sequence[int] | Sequence[str]]:
        return {"ids": self.ids, "texts": self.texts}


def canned_replies(tokenizer_file: Path, lengths: Sequence[int]) -> dict[int, list[CannedReply]]:
    """``POOL`` different replies of each length, in tokens, the end token included. Every token is text on its own.

    Raises:
        ConfigError: the tokenizer is not of a ChatML model.
    """
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    end = tokenizer.token_to_id(END)
    if end is None:
        raise ConfigError(f"{tokenizer_file}: it has no {END}; a ChatML model's is needed")
    source = TextSource(seed=1)
    replies: dict[int, list[CannedReply]] = {}
    for length in lengths:
        pool = replies[length] = []
        while len(pool) < POOL:
            ids = tokenizer.encode(source.take(8 * length + 200), add_special_tokens=False).ids
            # Past the headline; it begins and ends with a letter, so that no parser has white space to strip.
            at = next((at for at in range(8, len(ids) - length) if tokenizer.decode([ids[at]]).isalpha()), None)
            if at is None:
                continue
            span = ids[at : at + length - 1]
            if tokenizer.decode([span[-1]])[-1].isalpha():
                pool.append(CannedReply((*span, end), (*tokenizer.decode_batch([[i] for i in span]), "")))
    return replies


def encoding_ms(tokenizer_file: Path, size: int, pieces: int = 200) -> float:
    """Milliseconds of CPU to tokenize ``size`` bytes of new text: what no proxy that tokenizes gets below."""
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    source = TextSource(seed=2)
    texts = [source.take(size) for _ in range(pieces)]
    before = time.process_time()
    for text in texts:
        tokenizer.encode(text, add_special_tokens=False)
    return (time.process_time() - before) * 1000 / pieces
