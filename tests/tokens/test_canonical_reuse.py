# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Fingerprints of a request are the same whatever earlier request they were helped by."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_polar.tokens.canonical import Printed, fingerprints
from nemo_polar.types import Message, ModelCall, Reasoning, Role, SamplingParams, Text, ToolCall, ToolResult, ToolSpec
from nemo_polar.wire.base import Route
from nemo_polar.wire.history import Read
from tests.support.openai_chat import DIALECT
from tests.support.recording import recorded

TEMPLATES = (b"t", b"other")


def text(role: Role, words: str) -> Message:
    return Message(role, (Text(words),))


# Shared objects, as a reader with a history hands them on; equal ones that are not the same object stand beside them.
POOL = [
    text(Role.SYSTEM, "be brief"),
    text(Role.SYSTEM, "be brief"),
    text(Role.DEVELOPER, "and kind"),
    text(Role.USER, "go"),
    text(Role.USER, "go"),
    text(Role.ASSISTANT, "done"),
    Message(Role.ASSISTANT, (Reasoning("hm"), Text("done"))),
    Message(Role.ASSISTANT, (ToolCall("a", "f", '{"x": 1}'),)),
    Message(Role.ASSISTANT, (ToolCall("b", "f", '{"x": 1.0}'), ToolCall("a", "g", "{"))),
    Message(Role.TOOL, (ToolResult("a", (Text("one"),)),)),
    Message(Role.TOOL, (ToolResult("b", (Text("two"),), is_error=True),)),
]
TOOLS = [(), (ToolSpec("f"),), (ToolSpec("f"),), (ToolSpec("f", parameters={"a": 1, "b": 2}),)]
CALLS = st.builds(
    ModelCall,
    messages=st.lists(st.sampled_from(POOL), min_size=1, max_size=8).map(tuple),
    tools=st.sampled_from(TOOLS),
    sampling=st.sampled_from([SamplingParams(), SamplingParams(max_tokens=5)]),
)


def helped(before: ModelCall, call: ModelCall, template: bytes, templates: tuple[bytes, ...] = TEMPLATES) -> None:
    alone = fingerprints(call, template)
    for other in templates:
        assert fingerprints(call, template, Printed(before, fingerprints(before, other))) == alone


@given(CALLS, CALLS, st.sampled_from(TEMPLATES))
@settings(max_examples=300, deadline=None)
def test_an_earlier_request_does_not_show(before, call, template):
    helped(before, call, template)


@given(CALLS, st.lists(st.sampled_from(POOL), max_size=4), st.integers(0, 8))
@settings(max_examples=300, deadline=None)
def test_an_earlier_request_that_this_one_goes_on_or_leaves_does_not_show(before, added, kept):
    call = ModelCall(messages=(*before.messages[:kept], *added) or before.messages, tools=before.tools)
    helped(before, call, TEMPLATES[0])
    helped(call, before, TEMPLATES[0])


@given(st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_a_chain_of_help_does_not_show_in_what_real_harnesses_send(seed):
    rng = random.Random(seed)
    requests = rng.choices([*recorded("pi"), *recorded("mini_swe_agent")], k=6)
    history: list[Read] = []
    before: Printed | None = None
    for body in requests:
        parsed = DIALECT.parse(body, Route("generate"), history)
        assert parsed.read is not None
        history.append(parsed.read)
        prints = fingerprints(parsed.call, b"t", before)
        assert prints == fingerprints(parsed.call, b"t")
        before = Printed(parsed.call, prints)
