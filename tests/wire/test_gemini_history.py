# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A Gemini request read with a history is the one read without, whatever the history; what repeats is not read again."""

from __future__ import annotations

import json
import random
from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nemo_polar.errors import BadRequest
from nemo_polar.wire.base import Route
from nemo_polar.wire.gemini.signature import Piece, sign
from nemo_polar.wire.history import Read
from nemo_polar.wire.openai_chat.dialect import OpenAIChat
from tests.support import mutate
from tests.support.gemini import DIALECT, HELLO, WEATHER, function_call, function_response, model, route, talk, user

SYSTEM = {"systemInstruction": {"parts": [{"text": "Be brief."}]}}
CALLS = model({"text": "hm", "thought": True}, {**function_call(), "thoughtSignature": sign(Piece(0, "hm"))}, function_call())
RESULTS = user(function_response(), function_response())
TOOLS = {"tools": [WEATHER, {"googleSearch": {}}]}


def bodies(*documents: Any) -> list[bytes]:
    return [d if isinstance(d, bytes) else mutate.encode(d) for d in documents]


def outcome(body: bytes, history: list[Read]) -> tuple[str, Read | None]:
    """The call, or what the error says; and what is to be remembered. Exactly: ``==`` takes 1, 1.0 and true for equal."""
    try:
        parsed = DIALECT.parse(body, route(), history)
    except BadRequest as exc:
        return repr((exc.message, exc.param, exc.code)), None
    return repr(parsed.call), parsed.read


def same_with_any_history(requests: list[bytes]) -> None:
    history: list[Read] = []
    for body in requests:
        with_it, read = outcome(body, history)
        without, alone = outcome(body, [])
        assert with_it == without
        if read is None or alone is None:
            assert read is alone
            continue
        assert (read.plain, read.phrases, read.marks) == (alone.plain, alone.phrases, alone.marks)
        assert repr((read.messages, read.tools)) == repr((alone.messages, alone.tools))
        assert len(read.entries) == len(read.messages) == len(read.marks) == len(read.plain)
        assert spelled(read) == spelled(alone)
        history = [*history[-3:], read]


def spelled(read: Read) -> list[bytes]:
    """The entries, each in one spelling; empty where one is nested too deeply to be written."""
    try:
        entries = [read.entries[0][1], *read.entries[1:]]
        return [orjson.dumps(entry, option=orjson.OPT_SORT_KEYS) for entry in entries]
    except orjson.JSONEncodeError:
        return []


def odd(value: Any) -> dict[str, Any]:
    """A content with a field that nobody knows, which is left out and named."""
    return {**HELLO, "x": value}


def called(**args: Any) -> dict[str, Any]:
    return model(function_call(args=args))


CASES: dict[str, list[Any]] = {
    "append only": [
        talk(HELLO, **SYSTEM, **TOOLS),
        talk(HELLO, CALLS, RESULTS, **SYSTEM, **TOOLS),
        talk(HELLO, CALLS, RESULTS, model({"text": "a"}), HELLO, **SYSTEM, **TOOLS),
        talk(HELLO, CALLS, RESULTS, model({"text": "a"}), HELLO, CALLS, RESULTS, **SYSTEM, **TOOLS),
    ],
    "chunks of a reply": [
        talk(HELLO, model({"text": "a"}), model({"text": "b"})),
        talk(HELLO, model({"text": "a"}), model({"text": "b"}), model({"text": "c"}), HELLO),
        talk(HELLO, model({"text": "a"}, {"text": "b"})),
        talk(HELLO, model({"text": "a"})),
    ],
    "a system instruction comes and goes": [
        talk(HELLO),
        talk(HELLO, **SYSTEM),
        talk(HELLO, systemInstruction="Be brief."),
        talk(HELLO),
        talk(user({"text": "Be brief."}), HELLO),
        talk({"systemInstruction": "Be brief.", **HELLO}),
    ],
    "a system instruction that says nothing": [
        talk(HELLO, systemInstruction={"parts": [{"text": "", "x": 1}]}),
        talk(HELLO),
        talk(HELLO, systemInstruction={"parts": [{"text": "a", "x": 1}]}),
        talk(HELLO, systemInstruction={"parts": [{"text": "a"}]}),
    ],
    "contents that look like a system instruction": [
        talk(HELLO, **SYSTEM),
        talk(["systemInstruction", SYSTEM["systemInstruction"]], HELLO),
        talk(HELLO, CALLS, RESULTS),
        talk(HELLO, [CALLS], RESULTS),
        talk({"parts": [{"text": "Be brief."}]}, HELLO),
    ],
    "keys of arguments in another order": [talk(HELLO, called(a="1", b="2")), talk(HELLO, called(b="2", a="1"))],
    "keys of a result in another order": [
        talk(HELLO, CALLS, user(function_response(response=response)))
        for response in ({"a": "1", "b": "2"}, {"b": "2", "a": "1"})
    ],
    "keys within a value in another order": [
        talk(HELLO, called(o=[{"a": "1", "b": "2"}])),
        talk(HELLO, called(o=[{"b": "2", "a": "1"}])),
    ],
    "keys in another order elsewhere": [talk(HELLO), talk(dict(reversed(HELLO.items())))],
    "1, 1.0, true": [talk(HELLO, called(a=value)) for value in (1, 1.0, True, 0, -0.0, False, None, "1")],
    "unknown 1, 1.0, true": [talk(odd(value)) for value in (1, 1.0, True, "1", [1], None)],
    "names in another case": [
        talk(HELLO, {"role": "model", "parts": [{"function_call": {"name": "f", "args": {}}}]}),
        talk(HELLO, {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {}}}]}),
    ],
    "results go by what is still unanswered": [
        talk(HELLO, CALLS, user(function_response()), user(function_response())),
        talk(HELLO, CALLS, user(function_response()), HELLO, user(function_response())),
        talk(HELLO, CALLS, user(function_response()), user(function_response()), user(function_response())),
    ],
    "the calls edited away": [talk(HELLO, CALLS, RESULTS), talk(HELLO, model({"text": "no"}), RESULTS)],
    "one id for several calls": [
        talk(HELLO, model(function_call(id="a"), function_call("time", id="a")), user(function_response(id="a"))),
        talk(
            HELLO,
            model(function_call(id="a"), function_call("time", id="a")),
            user(function_response(id="a")),
            user(function_response("time")),
            user(function_response("time", id="a")),
        ),
    ],
    "ids count on": [talk(HELLO, CALLS, RESULTS), talk(HELLO, CALLS, RESULTS, CALLS, RESULTS), talk(HELLO, CALLS, CALLS)],
    "left out of several": [
        talk(odd(1), model({"text": "a", "thoughtSignature": "x"}), odd(1)),
        talk(odd(1), model({"text": "a"}), odd(1)),
        talk(odd(1), model({"text": "a", "thoughtSignature": "y"}), {**HELLO, "y": 1}),
    ],
    "tools": [
        talk(HELLO, **TOOLS),
        talk(HELLO, tools=[WEATHER]),
        talk(HELLO, tools=[]),
        talk(HELLO),
        talk(HELLO, tools=WEATHER),
        talk(HELLO, tools=""),
    ],
    "a bad content after good ones": [talk(HELLO, CALLS), talk(HELLO, CALLS, 7), talk(HELLO, CALLS, {"role": 1}), talk(7)],
    "nested past what can be serialised": [
        talk(odd(mutate.raw("[" * n + "]" * n)), called(a=mutate.raw("[" * n + "]" * n))) for n in (10, 100, 300, 100, 300, 10)
    ],
}


@pytest.mark.parametrize("name", CASES)
def test_the_history_does_not_show(name):
    requests = bodies(*CASES[name])
    same_with_any_history(requests)
    same_with_any_history(requests[::-1])


BASES = bodies(
    talk(HELLO, CALLS, RESULTS, model({"text": "a"}), HELLO, **SYSTEM, **TOOLS),
    talk(
        user({"text": "a"}, {"inlineData": {"mimeType": "image/png", "data": "AA=="}}),
        model({"text": "b"}),
        model({"functionCall": {"name": "f", "args": {"a": 1, "b": [1.5, None]}, "id": "x"}}),
        user({"function_response": {"name": "f", "id": "x", "response": {"a": 1, "b": 2}}}, {"text": "and"}),
        generationConfig={"temperature": 1, "thinkingConfig": {"includeThoughts": True}, "stopSequences": ["a"]},
        toolConfig={"functionCallingConfig": {"mode": "AUTO"}},
        tools=[
            {"functionDeclarations": [{"name": "f", "parameters": {"type": "OBJECT", "properties": {"a": {"type": "STRING"}}}}]}
        ],
        systemInstruction="Be brief.",
    ),
)


@given(st.integers(0, 2**32), st.integers(1, 6))
@settings(max_examples=200, deadline=None)
@example(0, 6)
def test_the_history_does_not_show_in_mutations_of_one_conversation(seed, length):
    rng = random.Random(seed)
    base = rng.choice(BASES)
    requests = [mutate.Case(base, rng.choice(BASES), mutate.draw(rng, [base]).steps).sent().body for _ in range(length)]
    same_with_any_history([base, *requests, base])


CONTENTS = st.sampled_from(
    [
        HELLO,
        CALLS,
        RESULTS,
        odd(1),
        odd(1.0),
        odd(True),
        called(a=1, b=2),
        called(b=2, a=1),
        model(),
        model({"text": "x"}),
        user(),
    ]
)


@given(st.lists(st.tuples(st.lists(CONTENTS, max_size=6), st.sampled_from([{}, SYSTEM])), min_size=2, max_size=5))
@settings(max_examples=200, deadline=None)
def test_the_history_does_not_show_in_any_mix_of_contents(talks):
    same_with_any_history(bodies(*(talk(*contents, **system) for contents, system in talks)))


def test_what_repeats_is_taken_over_as_the_same_objects():
    first = DIALECT.parse(json.dumps(talk(HELLO, CALLS, **SYSTEM, **TOOLS)).encode(), route())
    assert first.read is not None
    again = DIALECT.parse(json.dumps(talk(HELLO, CALLS, RESULTS, **SYSTEM, **TOOLS)).encode(), route(), [first.read])
    assert [a is b for a, b in zip(first.call.messages, again.call.messages, strict=False)] == [True] * 3
    assert again.call.tools is first.call.tools and again.read is not None
    assert [a is b for a, b in zip(first.read.entries, again.read.entries, strict=False)] == [True] * 3


def test_what_another_dialect_read_is_never_taken_over():
    """A session's history is of all its requests."""
    hi, chat_tool = {"role": "user", "content": "hi"}, {"type": "function", "function": {"name": "f"}}
    chat = OpenAIChat().parse(orjson.dumps({"model": "m", "messages": [hi], "tools": [chat_tool]}), Route("generate")).read
    ours = DIALECT.parse(orjson.dumps(talk(HELLO, **TOOLS)), route()).read
    assert chat is not None and ours is not None
    for body in (talk(hi), talk(HELLO, tools=[chat_tool])):
        assert outcome(orjson.dumps(body), [chat])[0] == outcome(orjson.dumps(body), [])[0]
    with pytest.raises(BadRequest):
        OpenAIChat().parse(orjson.dumps({"model": "m", "messages": [HELLO]}), Route("generate"), [ours])
    with pytest.raises(BadRequest):
        OpenAIChat().parse(orjson.dumps({"model": "m", "messages": [hi], **TOOLS}), Route("generate"), [ours])


def test_what_has_one_key_an_object_is_compared_without_being_written():
    """Which is most of what a harness sends."""
    read = DIALECT.parse(
        json.dumps(talk(HELLO, model(function_call()), user(function_response()), **SYSTEM)).encode(), route()
    ).read
    assert read is not None and read.plain == (True,) * 4
