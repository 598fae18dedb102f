# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Byte-level BPE of a ``tokenizer.json`` through tiktoken, several times as fast, where its ids are provably the same.

Two things have to be the same: where a text is cut into pieces, and what ids a piece gets. What is not proven is encoded by
`tokenizers`, as ever: whole vocabularies that fail a condition below, and single texts with a character outside ``_PROVEN``.

**Pieces.** `tokenizers` matches with Oniguruma, tiktoken with Rust's regex crates. Only the regular expressions below are
taken; each cuts every text without a gap, and is made of parts that both read alike. The character classes in them come from
the libraries' own Unicode tables, which differ from release to release for young code points, so only characters count whose
class has stood for years. None of them changes under NFC, in any company of others. (The tests compare, for every one.)

**Ids.** Both libraries merge, again and again, the adjacent pair of lowest rank, the leftmost of equals. For `tokenizers` the
pairs are those of a list, and the rank is the place there; for tiktoken they are all pairs whose bytes joined are a token, and
the rank is its id. They are the same if

1. the ids of merged tokens strictly increase along the list, so that ranks order alike and each token has one pair; and
2. each token, its bytes merged by the list with nothing around them, becomes itself.

Proof, by induction over the merges. Let both be in the same state. What the list would merge, tiktoken may merge too, in the
same order (1), so they can part only where tiktoken's choice, u and v making the token t, is not in the list. Look at the bytes
of t alone. No merge has crossed their ends, or u and v would not stand there; each merge among them was the lowest and leftmost
of the whole, hence of them. So they have gone through the very states that t goes through alone, and are at [u, v]. By (2)
that run ends at [t], and the one merge left to it is u with v: it is in the list. - tiktoken also looks a whole piece up before
it merges, as `tokenizers` does with ``ignore_merges``: by (2) that is what merging gives.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any

import tiktoken
import tokenizers
import tokenizers.models
import tokenizers.pre_tokenizers

from nemo_polar.tokens.backends import BYTE_OF, AddedToken, Backend, RustBackend, overlong_blank

log = logging.getLogger(__name__)

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""What ``ByteLevel`` splits by on its own."""
DIGITS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+"
"""``GPT2`` after ``Digits``, which cuts each digit out first: for ``GPT2``, the text ends before it. SmolLM2."""
_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LEAD = r"[^\r\n\p{L}\p{N}]?"
SPLITS = {
    "qwen3": rf"{_CONTRACTION}|{_LEAD}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*{_TAIL}",
    "qwen3.5": rf"{_CONTRACTION}|{_LEAD}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*{_TAIL}",
    "llama3": rf"{_CONTRACTION}|{_LEAD}\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*{_TAIL}",
    "gpt-oss": rf"{_LEAD}{_UPPER}*{_LOWER}+{_CONTRACTION}?|{_LEAD}{_UPPER}+{_LOWER}*{_CONTRACTION}?|\p{{N}}{{1,3}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*{_TAIL}",
    "nemotron-3": rf"{_LEAD}{_UPPER}*{_LOWER}+|{_LEAD}{_UPPER}+{_LOWER}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*{_TAIL}",
}
"""The regular expressions that ``Split`` is given, by a model that has them."""

_PROVEN = (
    "\0-\u024f"  # ASCII and Latin
    "\u0250-\u02ff\u0370-\u0373\u0375-\u0377\u037a-\u037d\u0384-\u0386"  # IPA, Greek
    "\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03ff"
    "\u0400-\u0482\u048a-\u052f\u1e00-\u1eff"  # Cyrillic, more Latin
    "\u2002-\u2064\u2066-\u2071\u2074-\u208e\u2090-\u209c\u20a0-\u20bf"  # punctuation, sub- and superscripts, currencies
    "\u2100-\u2125\u2127-\u2129\u212c-\u218b\u2190-\u2328\u232b-\u2426\u2440-\u244a\u2460-\u2adb\u2add-\u2b73"  # symbols
    "\u3000-\u3029\u3030-\u303f\u3041-\u3096\u309b-\u30ff\u3105-\u312f\u3131-\u318e\u31f0-\u321e\u3220-\u32fe"  # Kana, signs
    "\u3300-\u4db5\u4e00-\u9fef\uac00-\ud7a3"  # Han, Hangul
    "\ufe00-\ufe0f\ufe30-\ufe52\uff01-\uffbe\uffe0-\uffe6\ufffc\ufffd"  # variation selectors, wide and narrow forms
    "\U0001f300-\U0001faff"  # emoji
)
"""Ranges of a character class. Left out: young code points, combining marks, and what NFC changes."""
_UNPROVEN = re.compile(f"[^{_PROVEN}]")
_NEEDED = frozenset(range(0x80, 0xF1)) - {0xC0, 0xC1}
"""Bytes that UTF-8 writes characters of ``_PROVEN`` with, those beyond ASCII."""
_TO_BYTES = {ord(c): chr(byte) for c, byte in BYTE_OF.items()}


class FastBackend:
    """A ``RustBackend`` whose common texts go through tiktoken. Build it with ``fastest``, which has proven the arguments."""

    prepends_space = False

    def __init__(self, rust: RustBackend, pattern: str, ranks: Mapping[bytes, int]):
        """``ranks``: every token by its bytes; of single bytes, some may be missing, as long as ``_NEEDED`` are there."""
        self._rust = rust
        self.size = rust.size
        self._encode = tiktoken.Encoding(
            "fast_bpe", pat_str=pattern, mergeable_ranks=dict(ranks), special_tokens={}
        ).encode_ordinary
        absent = "".join(chr(byte) for byte in range(0x80) if bytes([byte]) not in ranks)
        self._absent = re.compile(f"[{re.escape(absent)}]") if absent else None
        """Characters that the vocabulary cannot spell."""

    def encode(self, text: str, *, first: bool) -> list[int]:
        return self._encode(text) if self._proven(text) else self._rust.encode(text, first=first)

    def token_bytes(self, token_id: int) -> bytes:
        return self._rust.token_bytes(token_id)

    def token_id(self, text: str) -> int | None:
        return self._rust.token_id(text)

    def _proven(self, text: str) -> bool:
        return (
            (text.isascii() or _UNPROVEN.search(text) is None)
            and (self._absent is None or self._absent.search(text) is None)
            and not overlong_blank(text)
        )


class _Unproven(Exception):
    """Why a vocabulary stays with `tokenizers`."""


def fastest(rust: RustBackend, spec: Mapping[str, Any], added: Iterable[AddedToken]) -> Backend:
    """A ``FastBackend`` with the ids of ``rust`` for every text; ``rust`` itself where that cannot be proven.

    Args:
        rust: what ``spec`` and ``added`` made.
        spec: the parsed ``tokenizer.json``.
    """
    try:
        pattern = _pattern(spec)
        model = spec["model"]
        hidden = {a.content for a in added if rust.token_id(a.content) is None}
        vocab = {token: token_id for token, token_id in model["vocab"].items() if token not in hidden}
        _prove_ids(vocab, [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in model["merges"]])
        return FastBackend(rust, pattern, {t.translate(_TO_BYTES).encode("latin-1"): i for t, i in vocab.items()})
    except _Unproven as reason:
        log.debug("tokenizer.json: left to tokenizers, tiktoken being faster but perhaps not the same: %s", reason)
        return rust


def _pattern(spec: Mapping[str, Any]) -> str:
    """The regular expression that cuts a text as ``spec`` does, all else that could tell them apart being absent."""
    model = spec["model"]
    extras = ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
    if model.get("type", "BPE") != "BPE" or any(model.get(key) for key in extras):
        raise _Unproven(f"the model is not BPE alone, without any of {', '.join(extras)}")
    if spec.get("normalizer") not in (None, {"type": "NFC"}):
        raise _Unproven("it normalizes otherwise than by NFC")
    pre: Mapping[str, Any] = spec.get("pre_tokenizer") or {}
    match [{"use_regex": True, **step} for step in pre.get("pretokenizers", [pre])]:  # files older than the field mean True
        case [{"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}]:
            return GPT2
        case [
            {"type": "Digits", "individual_digits": True},
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
        ]:
            return DIGITS
        case [
            {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
        ] if regex in SPLITS.values():
            return regex
    raise _Unproven("its pre-tokenizer is none of those known to cut alike in both libraries")


def _prove_ids(vocab: dict[str, int], merges: list[tuple[str, str]]) -> None:
    """Raises unless conditions 1 and 2 of the module's docstring hold, and the bytes that are needed are there."""
    if not set("".join(vocab)) <= BYTE_OF.keys() & vocab.keys() or len(set(vocab.values())) < len(vocab):
        raise _Unproven("its tokens are not spelt with single bytes that are tokens too, each with an id of its own")
    if not {BYTE_OF[token] for token in vocab if len(token) == 1} >= _NEEDED:
        raise _Unproven("it lacks a byte of common characters")
    merged = [vocab[left + right] for left, right in merges]
    if merged != sorted(set(merged)):
        raise _Unproven("the ids of merged tokens do not increase in the order of the merges")
    alone = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=merges, cache_capacity=0))
    alone.pre_tokenizer = tokenizers.pre_tokenizers.Split("\n", "removed")  # in no token: the byte alphabet has no line feed
    # One id a token at least, as each character is one; so as many ids as tokens means one each.
    if alone.encode("\n".join(vocab)).ids != list(vocab.values()):
        raise _Unproven("a token is not what its own bytes merge to")
