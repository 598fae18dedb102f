# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A Responses request read with a history is the request read without one; and what repeats is not read again."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_polar.errors import BadRequest
from nemo_polar.types import ModelCall
from nemo_polar.wire.base import Route
from nemo_polar.wire.history import Read
from nemo_polar.wire.openai_responses.items import ItemsRead
from tests.support import openai_chat
from tests.support.openai_responses import (
    CRM,
    DIALECT,
    GO_ON,
    HI,
    OTHER_ID,
    PATCH,
    REPLY_ID,
    TOOLS,
    WEATHER,
    function_call,
    output,
    said,
    thought,
)

ROUTE = Route("generate")
THOUGHT = thought("r", id=f"rs_{REPLY_ID}_0")
SAID = said("t", id=f"msg_{REPLY_ID}_1")
CALL_1 = function_call("c1", id=f"fc_{REPLY_ID}_2")
CALL_2 = function_call("c2", id=f"fc_{REPLY_ID}_3")
OTHER = said("u", id=f"msg_{OTHER_ID}_0")
LITE = {"type": "additional_tools", "tools": [PATCH]}
LITE_1 = {"type": "additional_tools", "tools": [{**PATCH, "x": 1}]}
LITE_TRUE = {"type": "additional_tools", "tools": [{**PATCH, "x": True}]}
SEALED = {"type": "reasoning", "summary": [], "encrypted_content": "foreign"}


def odd(value: Any) -> dict[str, Any]:
    """A message with a field that nobody knows, which is left out and named."""
    return {"role": "user", "content": "hi", "x": value}


def bodies(*documents: Any) -> list[bytes]:
    return [json.dumps({"model": "polar", **d}).encode() for d in documents]


def talk(*items: Any, **fields: Any) -> dict[str, Any]:
    return {"input": list(items), **fields}


def outcome(body: bytes, history: list[Read]) -> tuple[ModelCall | tuple[str, str | None, str | None], ItemsRead | None]:
    """The call, or what the error says; and what is to be remembered."""
    try:
        parsed = DIALECT.parse(body, ROUTE, history)
    except BadRequest as exc:
        return (exc.message, exc.param, exc.code), None
    assert parsed.read is None or isinstance(parsed.read, ItemsRead)
    return parsed.call, parsed.read


def same_with_any_history(requests: list[bytes], between: tuple[Read, ...] = ()) -> None:
    """Read each request after those before it, and alone."""
    history: list[Read] = [*between]
    for body in requests:
        with_it, read = outcome(body, history)
        without, alone = outcome(body, [])
        assert repr(with_it) == repr(without)  # == takes 1, 1.0 and true for equal
        if read is None or alone is None:
            assert read is alone
            continue
        assert json.dumps(read.entries, sort_keys=True) == json.dumps(alone.entries, sort_keys=True)
        assert repr(replace(read, entries=[])) == repr(replace(alone, entries=[]))
        history = [*history[-3:], read]


CASES: dict[str, list[Any]] = {
    "append only": [
        talk(HI),
        talk(HI, THOUGHT, SAID, CALL_1, CALL_2, output("c1"), output("c2")),
        talk(HI, THOUGHT, SAID, CALL_1, CALL_2, output("c1"), output("c2"), OTHER, GO_ON),
    ],
    "instructions change": [talk(HI, instructions="a"), talk(HI, instructions="b"), talk(HI), talk(HI, instructions="a")],
    "instructions in place of a message": [talk(HI, instructions="a"), talk({"role": "system", "content": "a"}, HI)],
    "a string": [{"input": "hi"}, talk(HI), {"input": "hi"}, {"input": "ho"}, {"input": ""}, {"input": ["hi"]}],
    "more of the same reply": [talk(HI, THOUGHT), talk(HI, THOUGHT, SAID), talk(HI, THOUGHT, SAID, CALL_1)],
    "less of the same reply": [talk(HI, THOUGHT, SAID, CALL_1), talk(HI, THOUGHT, SAID), talk(HI, THOUGHT, GO_ON)],
    "more of the same reply, without ids": [talk(HI, said("a")), talk(HI, said("a"), said("b")), talk(HI, said("a"), GO_ON)],
    "the reply goes on after its results": [
        talk(HI, CALL_1, output("c1")),
        talk(HI, CALL_1, output("c1"), CALL_2, output("c2")),
        talk(HI, CALL_1, output("c1"), OTHER),
        talk(HI, CALL_1, output("c1"), LITE, CALL_2, output("c2"), OTHER),
    ],
    "an id makes known where an earlier item came from": [
        talk(HI, said("a"), CALL_1),
        talk(HI, said("a"), OTHER),
        talk(HI, said("a"), CALL_1, OTHER),
        talk(HI, said("a"), CALL_1, output("c1"), CALL_2),
    ],
    "the call edited away": [talk(HI, CALL_1, output("c1")), talk(HI, SAID, output("c1"))],
    "the call in a stored reply": [talk(HI, CALL_1, output("c1")), talk(HI, output("c1"), previous_response_id="resp_x")],
    "tools in items": [talk(LITE, HI), talk(LITE, HI, SAID), talk(LITE_1, HI), talk(LITE_TRUE, HI), talk(HI, tools=[PATCH])],
    "tools": [talk(HI, tools=[WEATHER]), talk(HI, SAID, tools=[WEATHER]), talk(HI, tools=TOOLS), talk(HI, tools=[]), talk(HI)],
    "tools whose schema has other keys first": [
        talk(HI, tools=[WEATHER]),
        talk(HI, tools=[json.loads(json.dumps(WEATHER, sort_keys=True))]),
    ],
    "names that had to be numbered": [
        talk(HI, function_call("a", "find", namespace="crm"), tools=[CRM]),
        talk(HI, function_call("a", "find", namespace="crm"), tools=[{"type": "function", "name": "crm__find"}, CRM]),
        talk(HI, function_call("a", "find", namespace="crm"), tools=[CRM]),
    ],
    "phrases": [talk(HI, SEALED, odd(1)), talk(HI, odd(1)), talk(HI, SEALED, odd(1), {**HI, "y": 2})],
    "1, 1.0, true": [
        talk(odd(1)),
        talk(odd(1.0)),
        talk(odd(True)),
        talk(odd("1")),
        talk({**HI, "id": 1}),
        talk({**HI, "id": True}),
    ],
    "keys in another order": [talk(HI, SAID), talk(dict(reversed(HI.items())), dict(reversed(SAID.items())))],
    "a bad item after good ones": [
        talk(HI, CALL_1),
        talk(HI, CALL_1, {"type": "wizard"}),
        talk(HI, CALL_1, 7),
        talk(HI, CALL_1, {"type": [1]}),
        talk(HI, CALL_1, {"type": "message", "role": []}),
        talk(HI, CALL_1, {**SAID, "id": 7}),
    ],
}


@pytest.mark.parametrize("name", CASES)
def test_the_history_does_not_show(name):
    requests = bodies(*CASES[name])
    same_with_any_history(requests)
    same_with_any_history(requests[::-1])
    same_with_any_history([*requests, *requests])


ITEMS = st.sampled_from(
    [
        *(HI, GO_ON, THOUGHT, SAID, CALL_1, CALL_2, OTHER, LITE, SEALED, said("a"), function_call("c3"), odd(1), odd(True)),
        *(output("c1"), output("c2"), output("c3")),
    ]
)


@given(st.lists(st.tuples(st.lists(ITEMS, max_size=8), st.sampled_from(["", "a"])), min_size=2, max_size=5))
@settings(max_examples=150, deadline=None)
def test_the_history_does_not_show_in_any_mix_of_items(talks):
    made = [function_call("c1"), function_call("c2"), function_call("c3")]  # so that most results have their call
    requests = [talk(HI, *made, HI, *items, instructions=told) for items, told in talks]
    same_with_any_history(bodies(*requests))


@given(st.lists(ITEMS, min_size=1, max_size=8), st.data())
@settings(max_examples=150, deadline=None)
def test_the_history_does_not_show_where_one_conversation_is_cut_and_goes_on(items, data):
    cuts = data.draw(st.lists(st.integers(0, len(items)), min_size=1, max_size=4))
    whole = [HI, function_call("c1"), function_call("c2"), function_call("c3"), *items]
    same_with_any_history(bodies(*(talk(*whole[: 4 + cut]) for cut in cuts), talk(*whole)))


def test_what_repeats_is_taken_over_as_the_same_objects():
    first, second, third = bodies(
        talk(HI, instructions="a", tools=TOOLS),
        talk(HI, THOUGHT, SAID, CALL_1, output("c1"), instructions="a", tools=TOOLS),
        talk(HI, THOUGHT, SAID, CALL_1, output("c1"), OTHER, GO_ON, instructions="a", tools=TOOLS),
    )
    history: list[Read] = []
    calls = []
    for body in (first, second, third):
        parsed = DIALECT.parse(body, ROUTE, history)
        assert parsed.read is not None
        history = [parsed.read]
        calls.append(parsed.call)
    assert [len(call.messages) for call in calls] == [2, 4, 6]
    for before, after in pairwise(calls):
        assert all(a is b for a, b in zip(before.messages, after.messages, strict=False))
        assert after.tools is before.tools


def test_a_request_of_another_dialect_is_no_history():
    entries = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}]
    chat = openai_chat.DIALECT.parse(json.dumps({"model": "m", "messages": entries}).encode(), ROUTE).read
    ours = DIALECT.parse(json.dumps({"model": "m", "input": entries}).encode(), ROUTE).read
    assert chat is not None and ours is not None
    assert len(chat.messages) == 3 and len(ours.messages) == 2
    same_with_any_history(bodies(talk(*entries), talk(*entries, GO_ON)), between=(chat,))
    again = openai_chat.DIALECT.parse(json.dumps({"model": "m", "messages": entries}).encode(), ROUTE, [ours]).read
    assert again is not None and again.messages == chat.messages
    assert all(a is not b for a, b in zip(again.messages, ours.messages, strict=False))
