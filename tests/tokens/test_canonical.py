# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What two spellings of one conversation share, and what tells two conversations apart."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_polar.tokens.canonical import canonical_arguments, digest, fingerprints
from nemo_polar.types import Message, ModelCall, Reasoning, Role, SamplingParams, Text, ToolCall, ToolResult, ToolSpec

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def user(text: str) -> Message:
    return Message(Role.USER, (Text(text),))


def assistant(*parts) -> Message:
    return Message(Role.ASSISTANT, parts)


def prints(*messages: Message, **kwargs):
    return fingerprints(ModelCall(messages=messages, **kwargs), b"template")


@given(JSON)
def test_arguments_compare_as_parsed_json_however_they_are_spelled(value):
    spellings = [
        json.dumps(value),
        json.dumps(value, ensure_ascii=False),
        json.dumps(value, indent=3),
        json.dumps(value, separators=(",", ":"), sort_keys=True),
    ]
    assert len({canonical_arguments(s) for s in spellings}) == 1


@pytest.mark.parametrize(
    ("left", "right"), [("1", "1.0"), ("100000", "1e5"), ("-0.0", "0"), ("12345678901234567890", "12345678901234567000")]
)
def test_numbers_compare_as_ieee_doubles(left, right):
    assert canonical_arguments(left) == canonical_arguments(right)


@pytest.mark.parametrize(
    ("left", "right"), [("1", '"1"'), ("null", '""'), ("[]", "{}"), ("{", "{ "), ("NaN", "null"), ("true", "1")]
)
def test_different_values_stay_apart(left, right):
    assert canonical_arguments(left) != canonical_arguments(right)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ('{"content": "a  \\n\\tb \\t\\n\\n"}', '{"content": "a\\n\\tb\\n\\n"}'),
        ('{"lines": ["x ", " y"]}', '{"lines": ["x", " y"]}'),
        ("", "{}"),
        (" null\n", "{}"),
    ],
)
def test_line_ends_and_missing_arguments_are_written_in_several_ways(left, right):
    assert canonical_arguments(left) == canonical_arguments(right)


def test_white_space_within_and_before_a_line_tells_arguments_apart():
    assert len({canonical_arguments(f'{{"s": "{s}"}}') for s in ("a b", "a  b", " a b", "a b\\n", "a\\nb")}) == 5


def test_a_million_blanks_are_read_once():
    assert canonical_arguments(json.dumps({"s": " " * 1_000_000 + "x"}))


@pytest.mark.parametrize("text", ["[" * 100_000, "1" * 5000, '"\\ud800"', "\ud800", ""])
def test_no_argument_text_is_too_odd_to_fingerprint(text):
    assert canonical_arguments(text)


@given(st.lists(st.binary(max_size=4), max_size=4), st.lists(st.binary(max_size=4), max_size=4))
def test_digests_of_different_splits_differ(left, right):
    assert (digest(*left) == digest(*right)) == (left == right)


def test_text_blocks_and_a_string_are_the_same_text():
    blocks = Message(Role.USER, (Text("a"), Text("b")))
    assert prints(blocks).prefix == prints(user("ab")).prefix


def test_call_ids_are_compared_by_position_not_by_name():
    def conversation(name: str):
        return prints(
            user("go"),
            assistant(ToolCall(name, "f", '{"a": 1}')),
            Message(Role.TOOL, (ToolResult(name, (Text("done"),)),)),
        )

    assert conversation("call_1").prefix == conversation("toolu_9").prefix


def test_results_given_to_the_other_call_are_another_conversation():
    calls = assistant(ToolCall("a", "f", "{}"), ToolCall("b", "f", "{}"))
    left = prints(user("go"), calls, Message(Role.TOOL, (ToolResult("a", (Text("x"),)),)))
    right = prints(user("go"), calls, Message(Role.TOOL, (ToolResult("b", (Text("x"),)),)))
    assert left.prefix[:3] == right.prefix[:3]
    assert left.prefix[3] != right.prefix[3]


def test_reasoning_is_kept_out_of_the_prefix_and_compared_apart():
    with_it = prints(user("go"), assistant(Reasoning("hm"), Text("ok")), user("next"))
    without = prints(user("go"), assistant(Text("ok")), user("next"))
    assert with_it.prefix == without.prefix
    assert with_it.reasoning != without.reasoning
    assert with_it.request != without.request


def test_two_user_messages_are_not_one():
    assert prints(user("a"), user("b")).prefix[-1] != prints(user("ab")).prefix[-1]


def test_tools_are_under_every_prefix():
    plain = prints(user("a"))
    tooled = prints(user("a"), tools=(ToolSpec("f"),))
    assert not set(plain.prefix) & set(tooled.prefix)
    assert tooled.tools != prints(user("a"), tools=(ToolSpec("g"),)).tools


def test_sampling_tells_requests_apart_but_not_conversations():
    short, long = (prints(user("a"), sampling=SamplingParams(max_tokens=n)) for n in (10, 20))
    assert short.prefix == long.prefix
    assert short.request != long.request


@given(st.lists(st.sampled_from(["user", "assistant", "system"]), min_size=1, max_size=6), st.data())
def test_a_prefix_fingerprint_does_not_depend_on_what_follows(roles, data):
    messages = tuple(Message(Role(r), (Text(data.draw(st.text(max_size=5))),)) for r in roles)
    cut = data.draw(st.integers(1, len(messages)))
    assert prints(*messages).prefix[: cut + 1] == prints(*messages[:cut]).prefix
