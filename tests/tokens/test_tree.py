# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A request goes on the line it belongs to, or starts a root with the right reason; ids only ever grow."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_polar.tokens.canonical import fingerprints
from nemo_polar.tokens.tree import ConversationTree
from nemo_polar.types import (
    FinishReason,
    ForkReason,
    Message,
    ModelCall,
    Reasoning,
    Role,
    Sample,
    Text,
    ToolCall,
    ToolResult,
    ToolSpec,
    Turn,
    as_ids,
    as_logprobs,
)

TOOLS = (ToolSpec("f"),)


def user(text: str) -> Message:
    return Message(Role.USER, (Text(text),))


def says(text: str, *parts) -> Message:
    return Message(Role.ASSISTANT, (*parts, Text(text)))


def calls(call_id: str, arguments: str = '{"x": 1}') -> Message:
    return Message(Role.ASSISTANT, (ToolCall(call_id, "f", arguments),))


def result(call_id: str, text: str = "ok") -> Message:
    return Message(Role.TOOL, (ToolResult(call_id, (Text(text),)),))


class Session:
    """A tree with the part of the proxy around it that the tests need; ids are random."""

    def __init__(self, seed: int = 0) -> None:
        self.tree = ConversationTree()
        self.random = random.Random(seed)

    def place(self, *messages: Message, tools=TOOLS):
        call = ModelCall(messages=messages, tools=tools)
        return self.tree.place(call, fingerprints(call, b"t"))

    def answer(self, *messages: Message, reply: Message, tools=TOOLS, finish=FinishReason.STOP, delivered=True) -> Turn:
        call = ModelCall(messages=messages, tools=tools)
        prints = fingerprints(call, b"t")
        placement = self.tree.place(call, prints)
        parent = placement.parent
        ids = as_ids([self.random.randrange(100) for _ in range(self.random.randint(1, 5))])
        delta = as_ids([self.random.randrange(100) for _ in range(self.random.randint(1, 5))])
        turn = Turn(
            id=len(self.tree.turns),
            session_id="s",
            parent=parent.id if parent else None,
            prompt_delta=delta,
            sample=Sample(ids, as_logprobs([-1.0] * len(ids)), finish),
            reply=reply,
            request_id=f"r{len(self.tree.turns)}",
            call_id=f"c{len(self.tree.turns)}",
            delivered=delivered,
            fork_reason=placement.fork_reason,
            fork_of=placement.fork_of,
            prompt_len=len(delta) + (len(self.tree.ids_through(parent)) if parent else 0),
            tools_key=prints.tools,
            system_key=prints.system,
        )
        self.tree.add(turn, call, prints)
        return turn


def test_an_append_extends_the_reply_it_answers():
    s = Session()
    first = s.answer(user("go"), reply=calls("call_a"))
    placement = s.place(user("go"), calls("call_a", '{"x":1.0}'), result("call_a"))
    assert placement.parent is first
    assert placement.new == (result("call_a"),)
    assert not placement.ambiguous


def test_a_conversation_without_our_replies_is_new():
    s = Session()
    s.answer(user("go"), reply=says("done"))
    placement = s.place(user("other"))
    assert (placement.parent, placement.fork_reason) == (None, ForkReason.NEW)


def test_foreign_history_in_a_fresh_session_is_new():
    assert Session().place(user("go"), says("hello"), user("more")).fork_reason is ForkReason.NEW


def test_an_edited_reply_forks_and_names_the_turn_it_left():
    s = Session()
    first = s.answer(user("go"), reply=says("one"))
    second = s.answer(user("go"), says("one"), user("more"), reply=says("two"))
    placement = s.place(user("go"), says("one"), user("more"), says("TWO"), user("last"))
    assert placement.parent is first, "the longest recorded line is found; bridging an assistant message then fails"
    root = placement.as_root(ForkReason.EDITED, ModelCall(messages=(user("x"),)))
    assert (root.parent, root.fork_of, root.fork_reason) == (None, first.id, ForkReason.EDITED)
    assert s.place(user("go"), says("ONE"), user("more")).fork_reason is ForkReason.EDITED
    assert second.parent == first.id


def test_changed_tools_fork_as_such():
    s = Session()
    first = s.answer(user("go"), reply=says("one"))
    placement = s.place(user("go"), says("one"), user("more"), tools=())
    assert (placement.parent, placement.fork_reason, placement.fork_of) == (None, ForkReason.TOOLS, first.id)


def test_minted_ids_tell_equal_samples_apart():
    s = Session()
    first = s.answer(user("go"), reply=calls("call_a"))
    second = s.answer(user("go"), reply=calls("call_b"))
    for turn, name in ((first, "call_a"), (second, "call_b")):
        placement = s.place(user("go"), calls(name), result(name))
        assert placement.parent is turn
        assert not placement.ambiguous


def test_ids_further_up_the_line_tell_samples_apart_too():
    s = Session()
    turns = {}
    for name in ("call_a", "call_b"):
        s.answer(user("go"), reply=calls(name))
        turns[name] = s.answer(user("go"), calls(name), result(name), reply=says("same"))
    for name, turn in turns.items():
        assert s.place(user("go"), calls(name), result(name), says("same"), user("more")).parent is turn


def test_where_nothing_tells_them_apart_the_latest_delivered_is_taken_and_counted():
    s = Session()
    s.answer(user("go"), reply=says("same"))
    second = s.answer(user("go"), reply=says("same"))
    s.answer(user("go"), reply=says("same"), delivered=False)
    placement = s.place(user("go"), says("same"), user("more"))
    assert placement.parent is second
    assert placement.ambiguous


def test_renamed_call_ids_still_match():
    s = Session()
    first = s.answer(user("go"), reply=calls("call_a"))
    assert s.place(user("go"), calls("their_own_0"), result("their_own_0")).parent is first


def test_echoed_reasoning_must_be_ours_and_dropped_reasoning_may_be():
    s = Session()
    first = s.answer(user("go"), reply=says("ok", Reasoning("because")))
    assert s.place(user("go"), says("ok"), user("more")).parent is first
    assert s.place(user("go"), says("ok", Reasoning(" because ")), user("more")).parent is first
    assert s.place(user("go"), says("ok", Reasoning("edited")), user("more")).parent is None


def test_an_aborted_sample_is_no_reply_to_extend():
    s = Session()
    s.answer(user("go"), reply=says("par"), finish=FinishReason.ABORT)
    assert s.place(user("go"), says("par"), user("more")).parent is None


def test_a_turn_out_of_order_is_refused():
    s = Session()
    turn = s.answer(user("go"), reply=says("x"))
    call = ModelCall(messages=(user("go"),))
    with pytest.raises(ValueError, match="turn 0"):
        s.tree.add(turn, call, fingerprints(call, b"t"))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31))
def test_random_histories_find_their_own_line_and_ids_only_grow(seed):
    rng = random.Random(seed)
    s = Session(seed)
    lines: list[tuple[list[Message], Turn | None]] = [([user("root")], None)]
    for step in range(25):
        history, parent = rng.choice(lines)
        placement = s.place(*history)
        assert placement.parent is parent
        name = f"call_{step}"
        reply = (
            calls(name, rng.choice(['{"x": 1}', '{ "x" : 2 }', "{oops", "3"]))
            if rng.random() < 0.6
            else says(f"text {rng.randrange(3)} {step}")
        )
        turn = s.answer(*history, reply=reply)
        prompt = s.tree.prompt_of(turn)
        if parent is not None:
            line = s.tree.ids_through(parent)
            assert np.array_equal(prompt[: len(line)], line)
        assert np.array_equal(s.tree.ids_through(turn), np.concatenate([prompt, turn.sample.token_ids]))
        follow = [*history, reply, result(name) if reply.tool_calls else user(f"more {step}")]
        lines.append((follow, turn))
