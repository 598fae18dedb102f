# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Text to ids and back, with a wall between special tokens and text that only looks like them.

``encode`` reads a *trusted* text, what a chat template produced: special tokens in it become their ids. Text from outside
(files, tool output, users) goes through ``quote`` first, which replaces each special token in it by a marker; the marker
survives the template, and ``encode`` puts the text back and encodes it as ordinary text, merged with its neighbours as if the
tokenizer had no special token at all.

A marker is an index between U+FDD0 and U+FDD1, two code points that Unicode keeps free for such internal use; where they
occur in text themselves, they are quoted too, so every text is quoted and restored exactly.

Never: adding a beginning-of-text token, cleaning up spaces, character offsets.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from nemo_polar.errors import ConfigError
from nemo_polar.tokens.backends import AddedToken, Backend, RustBackend, TiktokenBackend
from nemo_polar.tokens.fast_bpe import fastest
from nemo_polar.types import TokenIds

_OPEN, _CLOSE = "\ufdd0", "\ufdd1"
_MARKER = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")
_SURROGATE = re.compile("[\ud800-\udfff]")
_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


class Tokenizer:
    """One model's tokenizer. Satisfies ``renderers.base.Tokenizer``. Immutable, and safe to share between threads."""

    def __init__(
        self,
        backend: Backend,
        added: Iterable[AddedToken],
        *,
        config: dict[str, Any] | None = None,
        name_or_path: str = "",
        fingerprint: bytes = b"",
    ):
        """``config``: what ``tokenizer_config.json`` holds (named tokens, chat template); absent keys are absent features."""
        self._backend = backend
        self._added = {a.content: a for a in added if a.content}
        self._by_id = {a.id: a for a in self._added.values()}
        self._config = config or {}
        self.name_or_path = name_or_path
        self.fingerprint = fingerprint
        """Hash of the vocabulary."""
        self.special_tokens = {content: a.id for content, a in self._added.items()}
        """Every added token and its id, "special" or not: ``<tool_call>`` is a control token as much as ``<|im_end|>``."""
        self.named_tokens = {key: text for key in _NAMED if (text := _text(self._config.get(key))) is not None}
        """``eos_token`` and its like, by the names chat templates know them under."""
        self.unk_token_id = self._named_id("unk_token")
        self.eos_token_id = self._named_id("eos_token")
        self.bos_token_id = self._named_id("bos_token")
        self.pad_token_id = self._named_id("pad_token")
        self._bytes: dict[int, bytes] = {a.id: a.content.encode() for a in self._added.values()}
        # What the model's own merges spell with one id is ordinary text however it is written: nothing to quote.
        ordinary = {c for c, a in self._added.items() if backend.encode(c, first=False) == [a.id]}
        self._table = [*(c for c in self._added if c not in ordinary), _OPEN, _CLOSE]
        self._index = {text: n for n, text in enumerate(self._table)}
        self._special = _alternatives(_pattern(a) for a in _longest_first(self._added.values()))
        quoted = sorted((re.escape(c) for c in self._table[:-2]), key=len, reverse=True)
        self._quotable = _alternatives(quoted)
        self._quotable_or_mark = _alternatives([*quoted, f"[{_OPEN}{_CLOSE}]"])

    # --- as renderers use it ------------------------------------------------------------------------------------------

    @property
    def chat_template(self) -> str | None:
        """The template in ``tokenizer_config.json``; of several, the one for tools."""
        found = self._config.get("chat_template")
        if isinstance(found, list):
            named = {t["name"]: t["template"] for t in found}
            found = named.get("tool_use", named.get("default"))
        return found

    @cached_property
    def all_special_tokens(self) -> list[str]:
        return [c for c, a in self._added.items() if a.special]

    def __len__(self) -> int:
        return max(self._backend.size, *(a.id + 1 for a in self._added.values()), 0)

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Ids of ``text``: special tokens become their ids, quoted pieces ordinary text."""
        if add_special_tokens:
            raise ValueError("a prompt is complete as rendered: no token is added to it")
        ids: list[int] = []
        position = 0
        for match in self._special.finditer(text):
            self._encode_plain(text[position : match.start()], ids)
            ids.append(self._added[self._content(match)].id)
            position = match.end()
        self._encode_plain(text[position:], ids)
        return ids

    def decode(self, token_ids: int | Sequence[int] | TokenIds, skip_special_tokens: bool = False, **_: Any) -> str:
        """The text of ``token_ids``, with U+FFFD for bytes that are not UTF-8."""
        ids = [token_ids] if isinstance(token_ids, int) else np.asarray(token_ids).tolist()
        if skip_special_tokens:
            ids = [i for i in ids if i not in self._by_id or not self._by_id[i].special]
        text = self.decode_bytes(ids).decode("utf-8", "replace")
        if self._backend.prepends_space and ids and ids[0] not in self._by_id:
            return text.removeprefix(" ")
        return text

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> Any:
        """The id, or the list of ids, of tokens as the vocabulary spells them; unknown ones are ``unk_token_id``."""
        if not isinstance(tokens, str):
            return [self.convert_tokens_to_ids(t) for t in tokens]
        found = self.special_tokens.get(tokens)
        if found is None:
            found = self._backend.token_id(tokens)
        return self.unk_token_id if found is None else found

    # --- our own ------------------------------------------------------------------------------------------------------

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes of one id; empty for an id that stands for no text (the padding of an embedding matrix)."""
        found = self._bytes.get(token_id)
        if found is None:
            found = self._bytes[token_id] = self._backend.token_bytes(token_id)
        return found

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes of ``ids``, joined."""
        return b"".join(map(self.token_bytes, ids))

    def token_id(self, text: str) -> int | None:
        """The id of the added token ``text``, if it is one."""
        return self.special_tokens.get(text)

    def find_specials(self, text: str) -> Iterator[tuple[int, int, int]]:
        """Start, end and id of each added token that ``encode`` would find in ``text``."""
        for match in self._special.finditer(text):
            content = self._content(match)
            start = match.start() + match[0].index(content)
            yield start, start + len(content), self._added[content].id

    def quote(self, text: str, *, specials: bool = True) -> tuple[str, int]:
        """``text`` with every special token in it made ordinary, and how many there were.

        With ``specials`` False only the two marker characters are quoted, so that no text can pose as a marker.
        """
        if not specials:
            return re.sub(f"[{_OPEN}{_CLOSE}]", self._mark, text), 0
        count = 0

        def mark(match: re.Match[str]) -> str:
            nonlocal count
            count += match[0] not in (_OPEN, _CLOSE)
            return self._mark(match)

        # The pattern without the two characters scans many times as fast, and hardly any text has them.
        pattern = self._quotable_or_mark if _OPEN in text or _CLOSE in text else self._quotable
        quoted = pattern.sub(mark, text)
        return quoted, count

    def unquote(self, text: str) -> str:
        """The text that ``quote`` was given."""
        return _MARKER.sub(self._restore, text)

    def _mark(self, match: re.Match[str]) -> str:
        return f"{_OPEN}{self._index[match[0]]}{_CLOSE}"

    def _restore(self, match: re.Match[str]) -> str:
        index = int(match[1]) if len(match[1]) < 10 else len(self._table)
        return self._table[index] if index < len(self._table) else match[0]

    def _encode_plain(self, text: str, ids: list[int]) -> None:
        if not text:
            return
        if not text.isascii():  # half a surrogate pair, which JSON can carry, is no text that bytes could spell
            text = _SURROGATE.sub("\ufffd", self.unquote(text))
        ids += self._backend.encode(text, first=not ids)

    def _content(self, match: re.Match[str]) -> str:
        text = match[0]
        return text if text in self._added else text.strip()

    def _named_id(self, key: str) -> int | None:
        text = self.named_tokens.get(key)
        if text is None:
            return None
        found = self.special_tokens.get(text)
        return self._backend.token_id(text) if found is None else found

    # --- making one ---------------------------------------------------------------------------------------------------

    @classmethod
    def load(cls, folder: str | Path) -> Tokenizer:
        """From a model folder: ``tokenizer.json``, or a tiktoken vocabulary (``*.tiktoken``, ``tiktoken.model``).

        A tiktoken vocabulary says neither how text is split nor which tokens are special, so its ``tokenizer_config.json``
        must: ``pat_str`` (the regular expression), ``added_tokens_decoder`` and, where text is normalised, ``normalizer``
        (``NFC``).

        Raises:
            ConfigError: a file is missing or cannot be used.
        """
        folder = Path(folder)
        config = _read_json(folder / "tokenizer_config.json", missing={})
        added = {a.id: a for a in _added_in(config)}
        rust, tik = folder / "tokenizer.json", [*sorted(folder.glob("*.tiktoken")), folder / "tiktoken.model"][0]
        if rust.is_file():
            spec = _read_json(rust)
            added |= {t["id"]: _added_token(t["id"], t) for t in spec.get("added_tokens", ())}
            source, backend = rust, fastest(RustBackend(spec, added.values()), spec, added.values())
        elif tik.is_file():
            if not config.get("pat_str") or not added:
                raise ConfigError(
                    f"{folder}: a tiktoken vocabulary needs pat_str and added_tokens_decoder in tokenizer_config.json"
                )
            source, backend = tik, TiktokenBackend(tik, config["pat_str"], normalizer=config.get("normalizer"))
        else:
            raise ConfigError(f"tokenizer: {folder} has neither tokenizer.json nor a .tiktoken vocabulary")
        digest = hashlib.sha256(source.read_bytes() + repr(sorted(added.items())).encode()).digest()
        return cls(backend, added.values(), config=config, name_or_path=_model_name(folder, config), fingerprint=digest)


def _text(value: Any) -> str | None:
    """A named token of ``tokenizer_config.json``: a string, or an object with its content."""
    return value.get("content") if isinstance(value, dict) else value


def _added_token(token_id: int, entry: dict[str, Any]) -> AddedToken:
    flags = {key: bool(entry.get(key, key == "special")) for key in ("special", "lstrip", "rstrip", "single_word")}
    return AddedToken(id=token_id, content=entry["content"], **flags)


def _added_in(config: dict[str, Any]) -> list[AddedToken]:
    return [_added_token(int(key), entry) for key, entry in config.get("added_tokens_decoder", {}).items()]


def _longest_first(added: Iterable[AddedToken]) -> list[AddedToken]:
    return sorted(added, key=lambda a: len(a.content), reverse=True)


def _pattern(added: AddedToken) -> str:
    """How `tokenizers` matches an added token: alone as a word, or with the white space beside it, where its flags say so."""
    body = re.escape(added.content)
    if added.single_word:
        body = rf"(?<!\w){body}(?!\w)"
    return (r"\s*" if added.lstrip else "") + body + (r"\s*" if added.rstrip else "")


def _alternatives(patterns: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(patterns) or r"(?!)")


def _read_json(path: Path, *, missing: dict[str, Any] | None = None) -> dict[str, Any]:
    if missing is not None and not path.is_file():
        return missing
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{path} cannot be read: {exc}") from exc


def _model_name(folder: Path, config: dict[str, Any]) -> str:
    """The model's hub name where the folder tells it, else the folder: renderers know families by it."""
    recorded = config.get("name_or_path") or _read_json(folder / "config.json", missing={}).get("_name_or_path")
    if recorded:
        return str(recorded)
    for part in folder.absolute().parts:
        if part.startswith("models--") and part.count("--") == 2:  # the layout of the hub's cache
            return part.removeprefix("models--").replace("--", "/")
    return str(folder)
