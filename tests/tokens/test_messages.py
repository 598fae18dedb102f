# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The dicts that templates get: complete, quoted everywhere, arguments neither repaired nor lost."""

from __future__ import annotations

from typing import Any

import pytest

from nemo_polar.tokens.messages import message_dicts, parsed_arguments, tool_dicts
from nemo_polar.types import Message, Role, Text, ToolResult, ToolSpec
from tests.support.conversations import assistant, call, result, user


def shout(text: str) -> str:
    return text.upper()


def strings(value: Any) -> list[str]:
    """All strings in ``value`` but the names that templates go by."""
    if isinstance(value, dict):
        fixed = {"role", "type", "content", "reasoning_content", "tool_calls", "function", "id", "name", "arguments"}
        fixed |= {"tool_call_id", "description", "parameters"}
        return [s for k, v in value.items() if k not in ("role", "type") for s in strings(v)] + [
            k for k in value if k not in fixed
        ]
    if isinstance(value, list):
        return [s for v in value for s in strings(v)]
    return [value] if isinstance(value, str) else []


def test_every_string_from_outside_is_quoted() -> None:
    turn = assistant("said", call(arguments='{"k": ["v", {"w": "x"}]}'), call("b", arguments="not json"), reasoning="hm")
    dicts = message_dicts([user("hi"), turn, result("out")], shout)
    dicts += tool_dicts([ToolSpec("read", "reads", {"deep": [{"key": "value"}]})], shout)
    assert strings(dicts) and all(s == s.upper() for s in strings(dicts))


def test_texts_are_joined_before_they_are_quoted() -> None:
    seen: list[str] = []
    message_dicts([Message(Role.USER, (Text("<|im_"), Text("end|>")))], lambda text: seen.append(text) or text)
    assert seen == ["<|im_end|>"]


@pytest.mark.parametrize("arguments", ["", "[1]", "3", '{"a": ', "nonsense", "[" * 100_000])
def test_arguments_that_are_no_object_stay_as_they_are(arguments: str) -> None:
    (made,) = message_dicts([assistant("", call(arguments=arguments))], str)
    assert made["tool_calls"][0]["function"]["arguments"] == arguments
    assert parsed_arguments(arguments) is None


def test_arguments_that_are_an_object_are_given_as_one() -> None:
    (made,) = message_dicts([assistant("", call(arguments='{"a": [1, null], "b": {"c": "d"}}'))], str)
    assert made["tool_calls"][0]["function"]["arguments"] == {"a": [1, None], "b": {"c": "d"}}


def test_each_tool_result_is_a_message_with_its_call_and_name() -> None:
    mixed = Message(Role.USER, (ToolResult("a", (Text("1"), Text("2"))), Text("and "), Text("so"), ToolResult("b", ())))
    made = message_dicts([assistant("", call("a", "read")), mixed], str)
    assert made[1:] == [
        {"role": "tool", "content": "12", "tool_call_id": "a", "name": "read"},
        {"role": "user", "content": "and so"},
        {"role": "tool", "content": "", "tool_call_id": "b"},
    ]


def test_a_message_without_parts_is_an_empty_one() -> None:
    assert message_dicts([Message(Role.USER, ())], str) == [{"role": "user", "content": ""}]
    assert message_dicts([Message(Role.ASSISTANT, ())], str) == [{"role": "assistant", "content": ""}]


@pytest.mark.parametrize("arguments", ['{"x": NaN}', '{"x": -Infinity}', "[1]", "", '{"x": 1'])
def test_arguments_that_are_no_json_object_are_passed_on_as_they_are(arguments: str) -> None:
    assert parsed_arguments(arguments) is None
