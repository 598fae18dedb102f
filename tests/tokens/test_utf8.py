# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Bytes to text, however they are cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nemo_polar.tokens.utf8 import Utf8Stream

_FRAGMENTS = st.one_of(
    st.binary(max_size=4),
    st.text(max_size=4).map(lambda s: s.encode("utf-8", "replace")),
    st.sampled_from(
        ["🙂".encode()[:3], "語".encode()[:1], b"\xf0\x80", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf4\x90\x80\x80", b"\x80"]
    ),
)


@given(st.lists(_FRAGMENTS, max_size=12))
def test_every_cut_gives_the_text_of_all_bytes(chunks: list[bytes]):
    stream = Utf8Stream()
    text = "".join(map(stream.push, chunks)) + stream.flush()
    assert text == b"".join(chunks).decode("utf-8", "replace")


@given(st.lists(_FRAGMENTS, max_size=12))
def test_single_bytes_give_the_text_of_all_bytes(chunks: list[bytes]):
    data, stream = b"".join(chunks), Utf8Stream()
    assert "".join(stream.push(bytes([b])) for b in data) + stream.flush() == data.decode("utf-8", "replace")


def test_a_character_is_shown_by_its_last_byte():
    stream = Utf8Stream()
    assert [stream.push(bytes([b])) for b in "a🙂b".encode()] == ["a", "", "", "", "🙂", "b"]


def test_a_byte_that_can_start_nothing_is_not_waited_for():
    stream = Utf8Stream()
    assert stream.push(b"\xffa") == "\ufffda"
    assert stream.push(b"\xe8") == ""
    assert stream.push(b"b") == "\ufffdb"


def test_flush_gives_up_an_unfinished_character_once():
    stream = Utf8Stream()
    stream.push("🙂".encode()[:3])
    assert [stream.flush(), stream.flush(), stream.push(b"a")] == ["\ufffd", "", "a"]
