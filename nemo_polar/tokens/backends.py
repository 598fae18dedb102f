# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The two vocabularies a ``Tokenizer`` can stand on: the Rust `tokenizers` library and tiktoken.

A backend knows ordinary text only. It holds no added tokens, so nothing written in a text can ever become one: which pieces of
a prompt are special is decided in ``tokenizer.py``, in one place, for both.
"""

from __future__ import annotations

import base64
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import tiktoken
import tokenizers

from nemo_polar.errors import ConfigError

_UNREACHABLE = "\ufdd0"
"""Prefix of a vocabulary entry that no text may produce: a noncharacter, which byte-level alphabets do not even contain."""
_LONGEST_BLANK = 100_000
"""Characters of white space that tiktoken's regular expressions take in one run; several times more overflow their stack."""
_BLANKS = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token outside the learnt vocabulary, with the matching rules of `tokenizers`."""

    id: int
    content: str
    special: bool = True
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False


class Backend(Protocol):
    """Ordinary text to ids, and ids to exact bytes."""

    size: int
    """One more than the highest id."""
    prepends_space: bool
    """True when the start of a text gets a space of its own, which decoding takes away again."""

    def encode(self, text: str, *, first: bool) -> list[int]:
        """Ids of ``text``; ``first`` is False for what follows a special token."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one learnt id; empty for an id outside the vocabulary."""
        ...

    def token_id(self, text: str) -> int | None:
        """The id of a vocabulary entry, as the vocabulary spells it."""
        ...


class RustBackend:
    """A ``tokenizer.json`` (BPE or Unigram) with its added tokens taken out."""

    def __init__(self, spec: Mapping[str, Any], added: Iterable[AddedToken]):
        """``spec``: the parsed ``tokenizer.json``; it is not changed.

        Raises:
            ConfigError: a model type whose tokens have no exact bytes.
        """
        model = spec["model"]
        if model.get("type", "BPE") not in ("BPE", "Unigram"):
            raise ConfigError(
                f"tokenizer.json: tokens of a {model.get('type')} model have no exact bytes; those of BPE and Unigram have"
            )
        plain = dict(spec, model=_without(model, [a.content for a in added]), added_tokens=[], post_processor=None)
        plain |= {"truncation": None, "padding": None}
        self._byte_level = _mentions(spec.get("pre_tokenizer"), "ByteLevel") or _mentions(spec.get("decoder"), "ByteLevel")
        self.prepends_space = _prepends(spec)
        self._first = tokenizers.Tokenizer.from_str(json.dumps(plain, ensure_ascii=False))
        self._later = self._first
        if _mentions(spec.get("pre_tokenizer"), "Metaspace", prepend_scheme="first"):
            later = dict(plain, pre_tokenizer=_never_prepending(spec["pre_tokenizer"]))
            self._later = tokenizers.Tokenizer.from_str(json.dumps(later, ensure_ascii=False))
        vocab = model["vocab"]
        self.size = (max(vocab.values(), default=-1) if isinstance(vocab, dict) else len(vocab) - 1) + 1

    def encode(self, text: str, *, first: bool) -> list[int]:
        return (self._first if first else self._later).encode(text, add_special_tokens=False).ids

    def token_bytes(self, token_id: int) -> bytes:
        piece = self._first.id_to_token(token_id) if 0 <= token_id < self.size else None
        if piece is None:
            return b""
        if self._byte_level:
            if all(c in BYTE_OF for c in piece):
                return bytes(BYTE_OF[c] for c in piece)
            return piece.encode()
        if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
            return bytes([int(piece[3:5], 16)])
        return piece.replace("▁", " ").encode()

    def token_id(self, text: str) -> int | None:
        return self._first.token_to_id(text)


class TiktokenBackend:
    """A ``.tiktoken`` vocabulary: base64 tokens and their ranks, split by a regular expression."""

    prepends_space = False

    def __init__(self, vocabulary: Path, pattern: str, *, normalizer: Literal["NFC"] | None = None):
        """``normalizer``: the Unicode form that ordinary text is brought to.

        Raises:
            ConfigError: the vocabulary or the pattern cannot be read.
        """
        try:
            lines = (line.split() for line in vocabulary.read_bytes().splitlines() if line)
            self._ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
            self._encoding = tiktoken.Encoding(vocabulary.stem, pat_str=pattern, mergeable_ranks=self._ranks, special_tokens={})
        except (OSError, ValueError) as exc:
            raise ConfigError(f"{vocabulary}: not a tiktoken vocabulary with a usable pattern: {exc}") from exc
        self._form: Literal["NFC"] | None = normalizer
        self._bytes = {rank: token for token, rank in self._ranks.items()}
        self.size = max(self._bytes, default=-1) + 1

    def encode(self, text: str, *, first: bool) -> list[int]:
        if self._form is not None:
            text = unicodedata.normalize(self._form, text)
        if len(text) <= _LONGEST_BLANK:
            return self._encoding.encode_ordinary(text)
        return [i for part in _digestible(text) for i in self._encoding.encode_ordinary(part)]

    def token_bytes(self, token_id: int) -> bytes:
        return self._bytes.get(token_id, b"")

    def token_id(self, text: str) -> int | None:
        return self._ranks.get(text.encode("utf-8", "replace"))


def overlong_blank(text: str) -> bool:
    """True when ``text`` has more white space in one run than tiktoken takes."""
    return len(text) > _LONGEST_BLANK and any(run.end() - run.start() > _LONGEST_BLANK for run in _BLANKS.finditer(text))


def _digestible(text: str) -> Iterator[str]:
    """``text`` cut inside absurdly long runs of white space only."""
    start = 0
    for run in _BLANKS.finditer(text):
        while run.end() - max(run.start(), start) > _LONGEST_BLANK:
            cut = max(run.start(), start) + _LONGEST_BLANK
            yield text[start:cut]
            start = cut
    yield text[start:]


def _byte_alphabet() -> dict[str, int]:
    """Character to byte, for byte-level BPE: printable Latin-1 stands for itself, the rest is moved above U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(b): b for b in printable}
    for n, b in enumerate(b for b in range(256) if b not in printable):
        table[chr(0x100 + n)] = b
    return table


BYTE_OF = _byte_alphabet()
"""The byte that each character of a byte-level vocabulary stands for."""


def _without(model: Mapping[str, Any], added: list[str]) -> dict[str, Any]:
    """The model with every added token it also lists renamed out of reach, unless its own merges make it."""
    vocab = model["vocab"]
    listed = set(vocab) if isinstance(vocab, dict) else {piece for piece, _ in vocab}
    hide = {a for a in added if a in listed} - {model.get("unk_token")}
    if not hide:
        return dict(model)
    merges = [m if isinstance(m, list) else m.split(" ") for m in model.get("merges", ())]
    hide -= {"".join(m) for m in merges} | {half for m in merges for half in m}
    if isinstance(vocab, dict):
        return dict(model, vocab={(_UNREACHABLE + k if k in hide else k): v for k, v in vocab.items()})
    return dict(model, vocab=[[_UNREACHABLE + p if p in hide else p, score] for p, score in vocab])


def _steps(part: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """A pre-tokenizer, normalizer or decoder, and those inside it."""
    if part:
        yield part
        for inner in (*part.get("pretokenizers", ()), *part.get("normalizers", ()), *part.get("decoders", ())):
            yield from _steps(inner)


def _mentions(part: Mapping[str, Any] | None, kind: str, **wanted: Any) -> bool:
    return any(step["type"] == kind and all(step.get(k) == v for k, v in wanted.items()) for step in _steps(part))


def _never_prepending(part: Mapping[str, Any]) -> dict[str, Any]:
    inner = [_never_prepending(p) for p in part.get("pretokenizers", ())]
    changed = dict(part, pretokenizers=inner) if inner else dict(part)
    return dict(changed, prepend_scheme="never") if part["type"] == "Metaspace" else changed


def _prepends(spec: Mapping[str, Any]) -> bool:
    pre, norm = spec.get("pre_tokenizer"), spec.get("normalizer")
    schemes = [s.get("prepend_scheme", "always") for s in _steps(pre) if s["type"] == "Metaspace"]
    return (
        any(s != "never" for s in schemes) or _mentions(norm, "Prepend") or _mentions(pre, "ByteLevel", add_prefix_space=True)
    )
