# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A request read with a history is the request read without one, whatever the history; and what repeats is not read again."""

from __future__ import annotations

import json
import random
from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nemo_polar.errors import BadRequest
from nemo_polar.types import ModelCall
from nemo_polar.wire.base import Route
from nemo_polar.wire.history import Read, is_plain
from tests.support import mutate
from tests.support.openai_chat import DIALECT, WEATHER, cycle
from tests.support.recording import recorded

ROUTE = Route("generate")
SYSTEM = {"role": "system", "content": "Be brief."}


def bodies(*documents: Any) -> list[bytes]:
    return [d if isinstance(d, bytes) else json.dumps(d).encode() for d in documents]


def talk(*messages: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "polar", "messages": list(messages), **fields}


def outcome(body: bytes, history: list[Read]) -> tuple[ModelCall | tuple[str, str | None, str | None], Read | None]:
    """The call, or what the error says; and what is to be remembered."""
    try:
        parsed = DIALECT.parse(body, ROUTE, history)
    except BadRequest as exc:
        return (exc.message, exc.param, exc.code), None
    return parsed.call, parsed.read


def exactly(call: Any) -> str:
    """``==`` takes 1, 1.0 and true for equal, and does not see the order of keys; this does."""
    return repr(call)


def same_with_any_history(requests: list[bytes]) -> None:
    """Read each request after those before it, and alone; and once more in a history of which it is a part."""
    history: list[Read] = []
    for body in requests:
        with_it, read = outcome(body, history)
        without, alone = outcome(body, [])
        assert exactly(with_it) == exactly(without)
        if read is None or alone is None:
            assert read is alone
            continue
        assert (read.plain, read.phrases, read.marks) == (alone.plain, alone.phrases, alone.marks)
        assert spelled(read) == spelled(alone)
        assert exactly((read.messages, read.tools)) == exactly((alone.messages, alone.tools))
        history = [*history[-3:], read]


def spelled(read: Read) -> list[bytes]:
    """The entries, each in one spelling; empty where one is nested too deeply to be written."""
    try:
        return [orjson.dumps(entry, option=orjson.OPT_SORT_KEYS) for entry in read.entries]
    except orjson.JSONEncodeError:
        return []


# --- cases with a name ------------------------------------------------------------------------------------------------

GO, CALLS, RESULT = cycle()
IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,", "detail": 1}}]}


def odd(value: Any) -> dict[str, Any]:
    """A message with a field that nobody knows, which is left out and named."""
    return {"role": "user", "content": "hi", "x": value}


CASES: dict[str, list[Any]] = {
    "append only": [
        talk(SYSTEM, GO),
        talk(SYSTEM, GO, CALLS),
        talk(SYSTEM, GO, CALLS, RESULT),
        talk(SYSTEM, GO, CALLS, RESULT, GO),
    ],
    "the same twice": [talk(SYSTEM, GO), talk(SYSTEM, GO)],
    "shorter": [talk(SYSTEM, GO, CALLS, RESULT), talk(SYSTEM, GO)],
    "edited at the start": [talk(SYSTEM, GO, CALLS, RESULT), talk({**SYSTEM, "content": "x"}, GO, CALLS, RESULT)],
    "edited in the middle": [
        talk(GO, CALLS, RESULT, GO),
        talk(GO, cycle(id="c1", function={"name": "f", "arguments": ""})[1], RESULT),
    ],
    "the call edited away": [talk(GO, CALLS, RESULT), talk(GO, {"role": "assistant", "content": "no"}, RESULT)],
    "the call id taken twice": [talk(GO, CALLS, RESULT), talk(GO, CALLS, CALLS, RESULT, RESULT)],
    "keys in another order": [talk(SYSTEM, GO), talk(dict(reversed(SYSTEM.items())), dict(reversed(GO.items())))],
    "unknown fields in another order": [talk({**GO, "x": "a", "y": "b"}), talk({"y": "b", **GO, "x": "a"})],
    "many unknown fields in another order": [
        talk({**GO, **{f"f{i}": "a" for i in order}}) for order in (range(40), range(39, -1, -1), range(40))
    ],
    "1, 1.0, true": [talk(odd(1)), talk(odd(1.0)), talk(odd(True)), talk(odd("1")), talk(odd([1])), talk(odd([True]))],
    "1 where a string belongs": [talk({**GO, "name": "1"}), talk({**GO, "name": 1}), talk({**GO, "name": True})],
    "0, -0.0, false, null": [talk(odd(0)), talk(odd(-0.0)), talk(odd(False)), talk(odd(None)), talk(odd(""))],
    "detail 1 or true": [talk(IMAGE), talk(json.loads(json.dumps(IMAGE).replace("1", "true")))],
    "unknown fields of several": [talk(odd(1), GO, {**GO, "y": 1}), talk(odd(1), GO, {**GO, "z": 1}), talk(GO, {**GO, "y": 1})],
    "as many unknown fields as are named": [
        talk(*({**GO, f"f{i}": 1} for i in range(n)), GO, {**GO, "last": 1}) for n in (30, 31, 32, 33, 40, 31)
    ],
    "unknown fields of the request": [talk(GO, a=1), talk(GO, b=2), talk(GO, CALLS, a=1)],
    "tools": [
        talk(GO, tools=[WEATHER]),
        talk(GO, CALLS, tools=[WEATHER]),
        talk(GO, tools=[]),
        talk(GO),
        talk(GO, tools=[WEATHER] * 2),
    ],
    "tools whose schema has other keys first": [
        talk(GO, tools=[WEATHER]),
        talk(GO, tools=[{**WEATHER, "function": dict(reversed(WEATHER["function"].items()))}]),
        talk(GO, tools=[json.loads(json.dumps(WEATHER, sort_keys=True))]),
    ],
    "tools whose schema says 1, 1.0 or true": [
        talk(GO, tools=[{"type": "function", "function": {"name": "f", "parameters": {"minimum": value}}}])
        for value in (1, 1.0, True, False, 0, -0.0)
    ],
    "a bad message after good ones": [
        talk(GO, CALLS),
        talk(GO, CALLS, {"role": "wizard"}),
        talk(GO, CALLS, 7),
        talk(GO, CALLS, RESULT),
    ],
    "tools that are no array": [talk(GO, tools=[WEATHER]), talk(GO, tools=""), talk(GO, tools={}), talk(GO, tools=0)],
    "nested past what can be serialised": [
        mutate.encode(talk(odd(mutate.raw("[" * n + "]" * n)), GO)) for n in (10, 300, 300, 1000, 300, 10)
    ],
    "tools nested past what can be serialised": [
        mutate.encode(talk(GO, tools=[{**WEATHER, "x": mutate.raw("[" * n + "]" * n)}])) for n in (10, 300, 300, 1000, 10)
    ],
    "lone surrogates": [
        b'{"model":"m","messages":[{"role":"user","content":"\\ud83d"}]}',
        '{"model":"m","messages":[{"role":"user","content":"\ufffd"}]}'.encode(),
        b'{"model":"m","messages":[{"role":"user","content":"\\ud83d"},{"role":"user","content":"x"}]}',
    ],
}


@pytest.mark.parametrize("name", CASES)
def test_the_history_does_not_show(name):
    requests = bodies(*CASES[name])
    same_with_any_history(requests)
    same_with_any_history(requests[::-1])


@pytest.mark.parametrize("harness", ["pi", "mini_swe_agent"])
def test_the_history_does_not_show_in_what_real_harnesses_send(harness):
    same_with_any_history(recorded(harness))
    same_with_any_history(recorded(harness)[::-1])


# --- cases without ----------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**32), st.integers(1, 6))
@settings(max_examples=150, deadline=None)
@example(0, 6)
def test_the_history_does_not_show_in_mutations_of_one_conversation(seed, length):
    rng = random.Random(seed)
    known = [*recorded("pi"), *recorded("mini_swe_agent")]
    base = rng.choice(known)
    requests = [mutate.Case(base, rng.choice(known), mutate.draw(rng, [base]).steps).sent().body for _ in range(length)]
    same_with_any_history([base, *requests, base])


MESSAGES = st.sampled_from(
    [SYSTEM, GO, CALLS, RESULT, IMAGE, odd(1), odd(1.0), odd(True), odd({"a": [1]}), {"role": "assistant"}]
)


@given(st.lists(st.lists(MESSAGES, max_size=6), min_size=2, max_size=5))
@settings(max_examples=200, deadline=None)
def test_the_history_does_not_show_in_any_mix_of_messages(talks):
    same_with_any_history(bodies(*(talk(*messages) for messages in talks)))


def test_what_repeats_is_taken_over_as_the_same_objects():
    def body(*messages: Any, **fields: Any) -> bytes:
        return json.dumps(talk(*messages, **fields)).encode()

    first = DIALECT.parse(body(SYSTEM, GO, CALLS, tools=[WEATHER]), ROUTE)
    assert first.read is not None
    again = DIALECT.parse(body(SYSTEM, GO, CALLS, RESULT, tools=[WEATHER]), ROUTE, [first.read])
    assert all(a is b for a, b in zip(first.call.messages, again.call.messages, strict=False))
    assert again.call.tools is first.call.tools
    edited = DIALECT.parse(body(SYSTEM, {**GO, "content": "else"}, CALLS), ROUTE, [first.read])
    assert [a is b for a, b in zip(first.call.messages, edited.call.messages, strict=True)] == [True, False, False]


@pytest.mark.parametrize("value", [1, 1.0, True, [1], {"a": {"b": [None, False]}}])
def test_a_value_with_scalars_that_python_confuses_is_not_plain(value):
    assert not is_plain(value)


def test_nesting_to_any_depth_is_judged_without_recursion_to_it():
    deep: Any = "x"
    for _ in range(1000):
        deep = [deep]
    assert not is_plain(deep)
    assert is_plain({"a": [{"b": None}, "c"]})
