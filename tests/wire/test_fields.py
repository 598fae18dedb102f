# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Fields: each accessor gives what it promises or names the field."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_polar.errors import BadRequest
from nemo_polar.wire.fields import LONE_SURROGATES, MAX_SCHEMA_DEPTH, Dropped, Fields, load


def refused(call) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        call()
    return caught.value


@pytest.mark.parametrize(
    ("read", "value", "code"),
    [
        (lambda f: f.string("x"), None, "missing_required_parameter"),
        (lambda f: f.string("x"), 1, "invalid_type"),
        (lambda f: f.nonempty_string("x"), "", "invalid_value"),
        (lambda f: f.boolean("x"), 1, "invalid_type"),
        (lambda f: f.boolean("x"), "true", "invalid_type"),
        (lambda f: f.integer("x", least=1), True, "invalid_type"),
        (lambda f: f.integer("x", least=1), 1.0, "invalid_type"),
        (lambda f: f.integer("x", least=1), 0, "invalid_value"),
        (lambda f: f.integer("x", least=1), 2**64 - 1, "invalid_value"),
        (lambda f: f.number("x", least=0, most=2), True, "invalid_type"),
        (lambda f: f.number("x", least=0, most=2), "1", "invalid_type"),
        (lambda f: f.number("x", least=0, most=2), 2.5, "invalid_value"),
        (lambda f: f.number("x", least=0, most=2), float("nan"), "invalid_value"),
        (lambda f: f.child("x"), [], "invalid_type"),
        (lambda f: f.child("x"), None, "missing_required_parameter"),
        (lambda f: f.children("x"), {}, "invalid_type"),
        (lambda f: f.strings("x"), 3, "invalid_type"),
        (lambda f: f.string_or_objects("x"), 3, "invalid_type"),
    ],
)
def test_a_wrong_value_is_refused_under_its_dotted_path(read, value, code):
    error = refused(lambda: read(Fields({"x": value}, "a[1].b")))
    assert (error.param, error.code) == ("a[1].b.x", code)
    assert "a[1].b.x" in error.message


def test_an_entry_of_an_array_is_named_by_its_index():
    assert refused(lambda: Fields({"x": [{}, 1]}).children("x")).param == "x[1]"
    assert refused(lambda: Fields({"x": ["", None]}).strings("x")).param == "x[1]"


def test_null_is_not_given():
    fields = Fields({"x": None})
    assert not fields.given("x")
    assert fields.optional_string("x") is fields.integer("x", least=0) is fields.number("x", least=0, most=1) is None
    assert fields.boolean("x", default=True) is True
    assert fields.children("x") == [] and fields.strings("x") == () and fields.schema("x") == {}


def test_a_schema_is_bounded_in_depth():
    def ladder(levels: int) -> dict:
        value: dict = {}
        for _ in range(levels - 1):
            value = {"a": value}
        return value

    assert Fields({"x": ladder(MAX_SCHEMA_DEPTH)}).schema("x") == ladder(MAX_SCHEMA_DEPTH)
    assert refused(lambda: Fields({"x": ladder(MAX_SCHEMA_DEPTH + 1)}).schema("x")).param == "x"
    assert refused(lambda: Fields({"x": {"a": [[[ladder(MAX_SCHEMA_DEPTH)]]]}}).schema("x")).param == "x"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff",
        b"\xef\xbb\xbf{}",
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": 1e999}',
        b'{"a": "\xed\xa0\x80"}',
        b'{"a": "\\ud800", }',
        b'{"a": \\ud800}',
        b"[" * 100_000,
        b'{"a":' * 5000 + b"1" + b"}" * 5000,
        b"\\",
    ],
    ids=lambda body: repr(body[:20]),
)
def test_malformed_json_is_refused_with_its_position(body):
    error = refused(lambda: load(body, Dropped()))
    assert error.code == "invalid_json" and "column" in error.message and len(error.message) < 200


@pytest.mark.parametrize("body", [b"[]", b"1", b'"a"', b"null", b"true", b"1.5"])
def test_a_body_that_is_no_object_is_refused(body):
    assert "object" in refused(lambda: load(body, Dropped())).message


@pytest.mark.parametrize(
    ("literal", "text"),
    [
        (r"a\ud83d", "a\ufffd"),
        (r"\ude00b", "\ufffdb"),
        (r"\uD83Dx\uDE00", "\ufffdx\ufffd"),
        (r"\ud83d\ud83d\ude00", "\ufffd\U0001f600"),
        (r"\\ud83d \ud83d", "\\ud83d \ufffd"),
        (r"\\\ud83d", "\\\ufffd"),
        (r"\\\\\ud83d\\ude00", "\\\\\ufffd\\ude00"),
        (r"\ud83d\\\ude00", "\ufffd\\\ufffd"),
        (r"\ud83d\ude00\ude00\ud83d", "\U0001f600\ufffd\ufffd"),
        (r"\\ud83d\ude00", "\\ud83d\ufffd"),
        (r"\ud83d\n", "\ufffd\n"),
    ],
)
def test_a_lone_surrogate_becomes_the_replacement_character_and_is_recorded(literal, text):
    dropped = Dropped()
    assert load(f'{{"a": "{literal}"}}'.encode(), dropped).raw == {"a": text}
    assert dropped.phrases() == (LONE_SURROGATES,)


@given(st.text(st.characters(codec=None), max_size=30))
def test_any_javascript_string_is_read_and_can_be_encoded(text):
    # json.dumps writes lone surrogates the way JavaScript does.
    dropped = Dropped()
    read = load(json.dumps({"a": text}).encode(), dropped).raw["a"]
    assert read == text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    read.encode()


@given(st.lists(st.sampled_from(["\\\\", "\\ud83d", "\\ude00", "\\uDBFF", "\\n", "ud83d", "x"]), max_size=8).map("".join))
def test_escaped_backslashes_are_told_from_escapes(literal):
    read = load(f'{{"a": "{literal}"}}'.encode(), Dropped()).raw["a"]
    assert read == json.loads(f'"{literal}"').encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def test_unknown_names_are_cut_and_their_number_is_bounded():
    dropped = Dropped()
    dropped.unknown(Fields({"k" * 1000: 1, **{f"f{i}": 1 for i in range(10_000)}, "null": None}), ("known",), "x.")
    phrases = dropped.phrases()
    assert len(phrases) <= 40 and max(map(len, phrases)) < 100
    assert phrases[-1] == "unknown:(and more)" and "unknown:x.null" not in phrases
