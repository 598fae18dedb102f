# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""tiktoken stands in for `tokenizers` only where both give the same ids: for every text, vocabulary and character it takes."""

from __future__ import annotations

import functools
import itertools
import json
import random
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, normalizers, pre_tokenizers

from nemo_polar.tokens import fast_bpe
from nemo_polar.tokens.backends import BYTE_OF, AddedToken, RustBackend
from nemo_polar.tokens.fast_bpe import DIGITS, GPT2, SPLITS, FastBackend, fastest
from nemo_polar.tokens.tokenizer import Tokenizer
from tests.support import models

LETTER = {byte: letter for letter, byte in BYTE_OF.items()}
BYTES = {bytes([byte]): byte for byte in range(256)}
PROVEN = [c for c in map(chr, (*range(0xD800), *range(0xE000, sys.maxunicode + 1))) if not fast_bpe._UNPROVEN.match(c)]
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
PRE_TOKENIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": (GPT2, BYTE_LEVEL),
    "digits": (DIGITS, {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTE_LEVEL]}),
} | {
    name: (
        regex,
        {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False},
                BYTE_LEVEL | {"use_regex": False},
            ],
        },
    )
    for name, regex in SPLITS.items()
}


def spec_of(
    merges: Iterable[tuple[bytes, bytes]] = (), ids: Sequence[int] = (), lacking: bytes = b"", **changed: Any
) -> dict[str, Any]:
    """A ``tokenizer.json``: every byte by its own number, and what ``merges`` make, numbered from 256 on or by ``ids``."""
    spell = [[spelt(left), spelt(right)] for left, right in merges]
    vocab = {LETTER[byte]: byte for byte in range(256) if byte not in lacking}
    vocab |= dict(zip(("".join(pair) for pair in spell), ids or itertools.count(256), strict=False))
    model = {"type": "BPE", "vocab": vocab, "merges": spell} | changed.pop("model", {})
    return {"model": model, "normalizer": None, "pre_tokenizer": BYTE_LEVEL, "decoder": None} | changed


def spelt(token: bytes) -> str:
    return "".join(LETTER[byte] for byte in token)


def unproven(spec: dict[str, Any]) -> FastBackend:
    """tiktoken used without asking whether it may be."""
    ranks = {bytes(BYTE_OF[c] for c in token): n for token, n in spec["model"]["vocab"].items()}
    return FastBackend(RustBackend(spec, ()), GPT2, ranks)


@functools.cache
def both(folder: Callable[[], Path]) -> tuple[FastBackend, RustBackend]:
    """The fast backend of a model, and what it must equal."""
    spec = json.loads((folder() / "tokenizer.json").read_bytes())
    added = [AddedToken(t["id"], t["content"]) for t in spec["added_tokens"]]
    rust = RustBackend(spec, added)
    fast = fastest(rust, spec, added)
    assert isinstance(fast, FastBackend)
    return fast, rust


def same(backends: tuple[FastBackend, RustBackend], text: str) -> bool:
    return backends[0].encode(text, first=True) == backends[1].encode(text, first=True)


# --- texts ------------------------------------------------------------------------------------------------------------

_WORDS = [
    *(
        "def f(x):\n\treturn x",
        "    ",
        "\n\n",
        "\r\n",
        "\t \t",
        " \n \n",
        "  a",
        "'s",
        "'S",
        "'LL",
        "'\u017f",
        "I'm",
        "don't've",
    ),
    *("<|im_start|>", "<|im_end|>", "<|endof", "text|>", "<tool_call>", "</think>", "<", "|>", "12345", "3.14", "\u0661\u0662"),
    *(
        "=" * 9,
        "//",
        "é",
        "e\u0301",
        "\u1e9e",
        "\u4f60\u597d",
        "\uc548\ub155",
        "\u3042\u30f2",
        "\u043f\u0440\u0438",
        "\u03c2\u0301",
    ),
    *(
        "\U0001f600\ufe0f",
        "\U0001f468\u200d\U0001f469",
        "\u2028",
        "\xa0",
        "\x85",
        "\x1c",
        "\u2126",
        "\u212b",
        "\u0e33",
        "\u1100\u1161",
    ),
]
texts = st.lists(st.one_of(st.sampled_from(_WORDS), st.text(max_size=6), st.sampled_from(PROVEN)), max_size=14).map("".join)
real = pytest.mark.parametrize("folder", [models.qwen3, models.tiny], ids=lambda f: f.__name__)


@real
@settings(max_examples=150, deadline=None)
@given(text=texts)
def test_every_text_has_the_ids_of_the_rust_library(folder: Callable[[], Path], text: str) -> None:
    assert same(both(folder), text)


@real
def test_source_code_in_pieces_of_any_length_has_the_ids_of_the_rust_library(folder: Callable[[], Path]) -> None:
    text = Path(fast_bpe.__file__).read_text(encoding="utf-8") + Path(__file__).read_text(encoding="utf-8")
    for start in range(0, len(text), 777):
        assert same(both(folder), text[start : start + 777])


@real
def test_a_long_word_has_the_ids_of_the_rust_library(folder: Callable[[], Path]) -> None:
    rng = random.Random(0)  # tiktoken has another algorithm for words of 500 bytes and more
    for letters in ("a", "ab", "abcdefgh", "etaoinshrdlu", "\u4f60\u597d", "=-"):
        for length in (498, 499, 500, 501, 3000):
            assert same(both(folder), "".join(rng.choices(letters, k=length)))


@real
def test_blanks_of_any_length_have_the_ids_of_the_rust_library(folder: Callable[[], Path]) -> None:
    for blanks in (" " * 99_999, " " * 100_001, "\n" * 150_000, " \n" * 60_000):
        assert same(both(folder), f"a{blanks}b")


def test_a_million_blanks_are_left_to_the_rust_library() -> None:
    assert same(both(models.tiny), f"a{' ' * 1_000_000}b")  # tiktoken panics on them


def test_models_are_loaded_with_the_fast_backend_where_it_is_proven() -> None:
    assert isinstance(Tokenizer.load(models.tiny())._backend, FastBackend)


@real
def test_common_text_never_reaches_the_slow_library(folder: Callable[[], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Tokenizer(both(folder)[0], ())
    monkeypatch.setattr(RustBackend, "encode", lambda *_args, **_kw: pytest.fail("encoded by tokenizers"))
    common = (
        "def f():\n    return 'caf\u00e9' \u2192 \u4f60\u597d, \uc548\ub155; \u043f\u0440\u0438\u0432\u0435\u0442 \U0001f600\n"
        * 3000
    )
    assert len(common) > 100_000
    assert tokenizer.decode(tokenizer.encode(common)) == common


def test_qwen35_splits_as_the_table_says() -> None:
    config = json.loads((models.qwen35() / "tokenizer_config.json").read_bytes())
    assert config["pat_str"] == SPLITS["qwen3.5"]


def test_characters_that_the_vocabulary_cannot_spell_are_left_to_the_rust_library() -> None:
    spec = spec_of([(b"a", b"b")], lacking=b"\x04\x7f\xc0\xff")
    fast = fastest(rust := RustBackend(spec, ()), spec, ())
    assert isinstance(fast, FastBackend)
    assert fast.encode("ab\x04\x7fab", first=True) == rust.encode("ab\x04\x7fab", first=True) == [256, 256]


# --- vocabularies -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        # The list merges b with c first; by id, a with b is.
        (spec_of([(b"b", b"c"), (b"a", b"b")], ids=[300, 299]), "abc"),
        # By the list, "abc" is "ab" and "c", which nothing merges; tiktoken knows the token, whatever makes it.
        (spec_of([(b"a", b"b"), (b"b", b"c"), (b"a", b"bc")]), "abc"),
        # The same inside a word that is no token itself.
        (spec_of([(b"a", b"b"), (b"b", b"c"), (b"a", b"bc")]), "abcd"),
    ],
    ids=["order", "unreachable", "unreachable-inside"],
)
def test_a_vocabulary_that_tiktoken_would_encode_otherwise_is_refused(spec: dict[str, Any], text: str) -> None:
    rust = RustBackend(spec, ())
    assert fastest(rust, spec, ()) is rust
    assert unproven(spec).encode(text, first=True) != rust.encode(text, first=True)


_SPLIT = PRE_TOKENIZERS["qwen3"][1]["pretokenizers"][0]


@pytest.mark.parametrize(
    "changed",
    [
        {"model": {"dropout": 0.1}},
        {"model": {"byte_fallback": True}},
        {"model": {"continuing_subword_prefix": "##"}},
        {"model": {"unk_token": LETTER[65]}},
        {"model": {"vocab": {"\u2581": 0}}},
        {"lacking": b"\xe4"},
        {"normalizer": {"type": "NFKC"}},
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]}},
        {"pre_tokenizer": None},
        {"pre_tokenizer": BYTE_LEVEL | {"add_prefix_space": True}},
        {"pre_tokenizer": BYTE_LEVEL | {"use_regex": False}},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [_SPLIT, BYTE_LEVEL]}},
        {
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [_SPLIT | {"behavior": "Removed"}, BYTE_LEVEL | {"use_regex": False}],
            }
        },
        {
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [_SPLIT | {"invert": True}, BYTE_LEVEL | {"use_regex": False}],
            }
        },
        {
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [_SPLIT | {"pattern": {"Regex": r"\p{L}+"}}, BYTE_LEVEL | {"use_regex": False}],
            }
        },
    ],
    ids=str,
)
def test_anything_else_a_tokenizer_can_do_is_left_to_the_rust_library(changed: dict[str, Any]) -> None:
    spec = spec_of(**changed)
    rust = RustBackend(spec, ())
    assert fastest(rust, spec, ()) is rust


_ALPHABET = b"abc"
_WORDS_OF_ALPHABET = ["".join(w) for n in range(1, 7) for w in itertools.product(_ALPHABET.decode(), repeat=n)]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=8), st.randoms())
def test_a_vocabulary_that_is_taken_encodes_every_word_alike(picks: list[tuple[int, int]], rng: random.Random) -> None:
    tokens, merges = [bytes([b]) for b in _ALPHABET], []
    for left, right in picks:
        pair = tokens[left % len(tokens)], tokens[right % len(tokens)]
        if b"".join(pair) not in tokens:
            merges.append(pair)
            tokens.append(b"".join(pair))
    if rng.random() < 0.3:
        rng.shuffle(merges)
    spec = spec_of(merges)
    rust = RustBackend(spec, ())
    fast = fastest(rust, spec, ())
    text = "\n".join(_WORDS_OF_ALPHABET)
    alike = unproven(spec).encode(text, first=True) == rust.encode(text, first=True)
    assert alike or fast is rust
    if all(rust.encode(token.decode(), first=True) == [n] for token, n in zip(map(b"".join, merges), itertools.count(256))):
        assert isinstance(fast, FastBackend), "what is proven is used"


def test_added_tokens_listed_in_the_vocabulary_are_no_tokens_of_text() -> None:
    spec = spec_of([(b"a", b"b")], model={"ignore_merges": True})
    spec["model"]["vocab"]["control"] = 300
    added = [AddedToken(300, "control")]
    fast = fastest(rust := RustBackend(spec, added), spec, added)
    assert isinstance(fast, FastBackend)
    assert fast.encode("abcontrol", first=True) == rust.encode("abcontrol", first=True)
    assert fast.encode("control", first=True) == rust.encode("control", first=True) == list(b"control")
    assert (fast.token_bytes(256), fast.token_id("ab"), fast.size) == (b"ab", 256, rust.size)


# --- regular expressions, for every character that is taken --------------------------------------------------------------


def matched_by_tiktoken(regex: str, text: str) -> str:
    encoding = tiktoken.Encoding("test", pat_str=regex, mergeable_ranks=BYTES, special_tokens={})
    return bytes(encoding.encode_ordinary(text)).decode()


def matched_by_tokenizers(regex: str, text: str) -> str:
    split = pre_tokenizers.Split(Regex(regex), "removed", invert=True)
    return "".join(piece for piece, _ in split.pre_tokenize_str(text))


_PROPERTIES = [rf"\p{{{name}}}" for name in ("L", "N", "M", "Lu", "Ll", "Lt", "Lm", "Lo")]


def test_every_character_is_of_the_same_classes_in_both_libraries() -> None:
    text = "".join(PROVEN)
    for regex in (*_PROPERTIES, r"\s", r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]", r"[^\r\n\p{L}\p{N}]", r"[\r\n/]"):
        assert matched_by_tiktoken(regex, text) == matched_by_tokenizers(regex, text), regex
    known = set().union(*(re.findall(r"\[.*?\]|\\\w(?:\{\w+\})?", regex) for regex in (GPT2, DIGITS, *SPLITS.values())))
    used = {part for regex in known for part in re.findall(r"\\p\{\w+\}", regex)}
    assert used == set(_PROPERTIES), "all that the expressions use is compared"


def test_every_character_is_or_is_not_part_of_a_contraction_in_both_libraries() -> None:
    regex = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    for before, after in (("'", ""), ("'", "e"), ("'", "l"), ("'r", ""), ("'v", ""), ("'l", ""), ("", "s"), ("", "re")):
        text = "\n".join(f"{before}{c}{after}" for c in PROVEN)
        assert matched_by_tiktoken(regex, text) == matched_by_tokenizers(regex, text)


def cut_alike(name: str, text: str) -> bool:
    """Whether ``text`` is cut alike, by a vocabulary that joins characters wherever no cut is between them, before all else."""
    regex, pre = PRE_TOKENIZERS[name]
    spelled = [c.encode() for c in set(text)]
    ends, starts = ({c[at] for c in spelled} for at in (-1, 0))
    spec = spec_of([(bytes([x]), bytes([y])) for x in ends for y in starts], pre_tokenizer=pre)
    fast = fastest(rust := RustBackend(spec, ()), spec, ())
    assert isinstance(fast, FastBackend) and fast_bpe._pattern(spec) == regex and fast._proven(text)
    return fast.encode(text, first=True) == rust.encode(text, first=True)


def test_every_character_is_cut_alike_whatever_is_beside_it() -> None:
    assert cut_alike("qwen3", "".join(f"a{c}b1{c}2 {c}\n{c}'{c}s " for c in PROVEN))


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_all_neighbourhoods_are_cut_alike(name: str) -> None:
    # One of each kind: letters of each case, a mark, numbers, blanks, signs, and the characters that expressions spell out.
    kinds = "aA\u01c5\u02b0\u4e00\ufe0f1\u2164 \t\n\r\u3000'/."
    for characters, length in ((kinds, 2), (kinds, 3), ("aA1 \t\n'.", 4), ("'sSt\u017frRevmlLd 1", 3)):
        assert cut_alike(name, "\0".join(map("".join, itertools.product(characters, repeat=length))))


def test_nothing_that_is_taken_changes_under_nfc_whatever_is_beside_it() -> None:
    text = "".join(PROVEN)
    assert unicodedata.normalize("NFC", text) == normalizers.NFC().normalize_str(text) == text
    assert not any(unicodedata.combining(c) for c in PROVEN)
    canonical = (unicodedata.decomposition(chr(c)).split() for c in range(sys.maxunicode + 1))
    seconds = {chr(int(parts[1], 16)) for parts in canonical if len(parts) == 2 and not parts[0].startswith("<")}
    seconds |= {chr(c) for c in (*range(0x1161, 0x1176), *range(0x11A8, 0x11C3))}  # Hangul is composed by arithmetic
    assert not seconds & set(PROVEN), "none of them can be joined to what is before it"


def test_the_bytes_that_are_asked_of_a_vocabulary_are_enough() -> None:
    assert {byte for byte in "".join(PROVEN).encode() if byte >= 0x80} <= fast_bpe._NEEDED
