# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""An Anthropic request read with a history is the request read without one; and what repeats is not read again, although
clients move cache marks and flip strings and blocks from turn to turn."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_polar.errors import BadRequest
from nemo_polar.types import ModelCall
from nemo_polar.wire.history import Read
from nemo_polar.wire.openai_chat.dialect import OpenAIChat
from tests.support.anthropic_messages import DIALECT, EPHEMERAL, GENERATE, WEATHER, heard, request, result, said, text, use

SEARCH = {"type": "web_search_20250305", "name": "w"}
LATER = {"name": "later", "input_schema": {"type": "object"}, "defer_loading": True}


def outcome(body: bytes, history: list[Read]) -> tuple[ModelCall | tuple[str, str | None, str | None], Read | None]:
    """The call, or what the error says; and what is to be remembered."""
    try:
        parsed = DIALECT.parse(body, GENERATE, history)
    except BadRequest as exc:
        return (exc.message, exc.param, exc.code), None
    return parsed.call, parsed.read


def same_with_any_history(requests: list[bytes]) -> None:
    """Read each request after those before it, and alone. ``repr`` sees what ``==`` does not: 1 or 1.0, the order of keys."""
    history: list[Read] = []
    for body in requests:
        with_it, read = outcome(body, history)
        without, alone = outcome(body, [])
        assert repr(with_it) == repr(without)
        if read is None or alone is None:
            assert read is alone
            continue
        assert (read.plain, read.phrases, read.marks, read.tools_phrases) == (
            alone.plain,
            alone.phrases,
            alone.marks,
            alone.tools_phrases,
        )
        assert spelled(read) == spelled(alone)
        assert repr((read.messages, read.tools)) == repr((alone.messages, alone.tools))
        history = [*history[-3:], read]


def spelled(read: Read) -> list[bytes]:
    return [orjson.dumps(entry, option=orjson.OPT_SORT_KEYS) for entry in read.entries]


# --- cases with a name ------------------------------------------------------------------------------------------------

GO: dict[str, Any] = {"role": "user", "content": "go"}
GO_AS_BLOCKS = heard(text("go"))
GO_MARKED = heard(text("go", cache_control=EPHEMERAL))
CALLS = said(text("I go."), use("c1", input={"b": 1.0, "a": True}), use("c2", input={}))
RESULTS = heard(result("c2", "2"), result("c1", [text("1", cache_control=EPHEMERAL)], is_error=False))
RESULTS_AGAIN = heard(result("c2", "2"), result("c1", [text("1")], is_error=False, cache_control=EPHEMERAL))
FOUND = heard(result("c1", [{"type": "tool_reference", "tool_name": "later"}]))


def called(**fields: Any) -> dict[str, Any]:
    return said(use("c1", **fields))


CASES: dict[str, list[dict[str, Any]]] = {
    "append only": [
        request(messages=[GO][:n] if n == 1 else [GO, CALLS, RESULTS, GO][:n], system=[text("s", cache_control=EPHEMERAL)])
        for n in (1, 2, 3, 4)
    ],
    "marks move, strings flip": [
        request(messages=[GO_MARKED, CALLS, RESULTS], system="s"),
        request(messages=[GO_AS_BLOCKS, CALLS, RESULTS_AGAIN], system=[text("s", cache_control=EPHEMERAL)]),
        request(messages=[GO, CALLS, RESULTS, GO_MARKED], system=[text("s")]),
        request(messages=[GO, CALLS, RESULTS, GO]),
    ],
    "a mark is all that differs": [request(messages=[GO_MARKED]), request(messages=[GO]), request(messages=[GO_MARKED])],
    "the system comes and goes": [
        request(messages=[GO, CALLS], system=system) for system in ("s", None, "s", "", [text("s")], [text("")], "t", [])
    ],
    "edited in the middle": [request(messages=[GO, CALLS, RESULTS]), request(messages=[GO, called(), heard(result("c1"))])],
    "the call edited away": [request(messages=[GO, CALLS, RESULTS]), request(messages=[GO, said(text("no")), RESULTS])],
    "the call id taken twice": [
        request(messages=[GO, CALLS, RESULTS]),
        request(messages=[GO, CALLS, called(name="other"), RESULTS, RESULTS]),
    ],
    "results in another order": [
        request(messages=[GO, CALLS, RESULTS]),
        request(messages=[GO, CALLS, heard(*RESULTS["content"][::-1])]),
    ],
    "inputs that python takes for equal": [
        request(messages=[GO, called(input=value), heard(result("c1"))])
        for value in ({"a": 1}, {"a": 1.0}, {"a": True}, {"a": -0.0}, {"a": 0}, {"a": 1, "b": 2}, {"b": 2, "a": 1}, {})
    ],
    "inputs of strings in another order": [
        request(messages=[GO, called(input=value)]) for value in ({"a": "1", "b": "2"}, {"b": "2", "a": "1"})
    ],
    "an input with a mark for data": [
        request(messages=[GO, called(input=value)]) for value in ({"cache_control": EPHEMERAL}, {}, {"cache_control": None})
    ],
    "is_error in all its forms": [
        request(messages=[GO, called(), heard(result("c1", is_error=value))]) for value in (True, False, None, 1, 0, "")
    ],
    "turns joined": [
        request(messages=[GO, said(text("a")), called(), heard(result("c1"))]),
        request(messages=[GO, said(text("a")), called(), heard(result("c1")), GO]),
        request(messages=[GO, said(text("a"), *called()["content"]), heard(result("c1")), GO]),
        request(messages=[GO, said(text("a"))]),
    ],
    "a tool found meanwhile": [
        request(messages=[GO, called()], tools=[WEATHER]),
        request(messages=[GO, called(), FOUND], tools=[WEATHER]),
        request(messages=[GO, called(), FOUND], tools=[WEATHER, LATER]),
        request(messages=[GO, called(), FOUND, GO], tools=[WEATHER, LATER]),
        request(messages=[GO, called(), FOUND, GO], tools=[WEATHER, {**LATER, "description": "Changed."}]),
        request(messages=[GO, called(), FOUND, GO]),
    ],
    "tools": [
        request(tools=tools)
        for tools in (
            [WEATHER],
            [WEATHER, WEATHER],
            [],
            [{**WEATHER, "cache_control": EPHEMERAL}],
            [{**WEATHER, "input_schema": dict(reversed(WEATHER["input_schema"].items()))}],
            [WEATHER, SEARCH],
            [WEATHER],
        )
    ],
    "a choice of what was left out": [
        request(
            tools=[WEATHER, LATER, {"type": "web_search_20250305", "name": "w"}], tool_choice={"type": "tool", "name": name}
        )
        for name in ("w", "weather", "later", "w", "x")
    ],
    "unknown fields of several": [
        request(messages=[{**GO, "x": 1}, GO, {**GO, "y": 1}]),
        request(messages=[{**GO, "x": 1}, GO, {**GO, "z": 1}]),
        request(messages=[{**GO, "x": True}, GO]),
        request(messages=[GO, {**GO, "y": 1}]),
    ],
    "a bad message after good ones": [
        request(messages=[GO, CALLS]),
        request(messages=[GO, CALLS, {"role": "wizard"}], system="s"),
        request(messages=[GO, CALLS, 7], system="s"),
        request(messages=[GO, CALLS, heard(result("c9"))]),
        request(messages=[GO, CALLS, RESULTS]),
    ],
}


@pytest.mark.parametrize("name", CASES)
def test_the_history_does_not_show(name):
    requests = [json.dumps(body).encode() for body in CASES[name]]
    same_with_any_history(requests)
    same_with_any_history(requests[::-1])


MESSAGES = st.sampled_from(
    [
        *(GO, GO_AS_BLOCKS, GO_MARKED, CALLS, RESULTS, RESULTS_AGAIN, FOUND, {"role": "system", "content": "left: 7"}),
        *(said(text("a", cache_control=EPHEMERAL)), called(input={"a": 1}), called(input={"a": 1.0})),
        *({"role": "assistant", "content": "a"}, {**GO, "x": 1}, {**GO, "x": True}, {"role": "user"}),
    ]
)
TALKS = st.builds(
    request,
    messages=st.lists(MESSAGES, min_size=1, max_size=7),
    system=st.sampled_from([None, "s", [text("s")], [text("s", cache_control=EPHEMERAL)]]),
    tools=st.sampled_from([None, [WEATHER], [WEATHER, LATER]]),
)


@given(st.lists(TALKS, min_size=2, max_size=5), st.integers(1, 6))
@settings(max_examples=300, deadline=None)
def test_the_history_does_not_show_in_any_mix_of_messages(talks, cut):
    base = talks[0]
    grown = [{**talk, "messages": base["messages"][:cut] + talk["messages"]} for talk in talks]
    same_with_any_history([json.dumps(body).encode() for body in (base, *grown)])


def test_what_repeats_is_taken_over_as_the_same_objects():
    def read(messages: list[Any], *history: Read, **fields: Any):
        return DIALECT.parse(json.dumps(request(messages=messages, tools=[WEATHER], **fields)).encode(), GENERATE, history)

    first = read([GO_MARKED, CALLS, RESULTS], system="s")
    assert first.read is not None
    again = read([GO, CALLS, RESULTS_AGAIN, GO_MARKED], first.read, system=[text("s", cache_control=EPHEMERAL)])
    assert all(a is b for a, b in zip(first.call.messages, again.call.messages, strict=False))
    assert len(again.call.messages) == 5 and again.call.tools is first.call.tools
    edited = read([GO, said(text("else")), GO], first.read, system="s")
    assert [a is b for a, b in zip(first.call.messages, edited.call.messages, strict=True)] == [True, True, False, False]


def test_what_another_dialect_read_is_not_taken_over():
    body = json.dumps({"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": [text("hi")], "name": "n"}]})
    other = OpenAIChat().parse(body.encode(), GENERATE)
    assert other.read is not None and other.call.messages[0].name == "n"
    assert outcome(body.encode(), [other.read])[0] == outcome(body.encode(), [])[0]
