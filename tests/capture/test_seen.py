# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What is remembered of requests is bounded, belongs to one session, and changes no answer."""

from __future__ import annotations

import orjson

from nemo_polar.capture.seen import SeenRequests
from nemo_polar.tokens.canonical import Printed, fingerprints
from nemo_polar.wire.base import Route
from nemo_polar.wire.openai_chat.dialect import OpenAIChat

DIALECT = OpenAIChat()


def keep(seen: SeenRequests, session: str, *texts: str) -> tuple[int, bool]:
    """Read and remember a conversation; how many of its messages were taken over, and whether it is remembered."""
    body = orjson.dumps({"model": "m", "messages": [{"role": "user", "content": t} for t in texts]})
    before = seen.reads(session, "openai_chat")
    parsed = DIALECT.parse(body, Route("generate"), before)
    assert parsed == DIALECT.parse(body, Route("generate"))
    assert parsed.read is not None
    printed = seen.nearest(session, parsed.read)
    prints = fingerprints(parsed.call, b"t", printed)
    assert prints == fingerprints(parsed.call, b"t")
    old = {id(m) for read in before for m in read.messages}
    seen.keep(session, parsed.read, Printed(parsed.call, prints), len(body))
    return sum(id(m) in old for m in parsed.call.messages), parsed.read in seen.reads(session, "openai_chat")


def test_a_request_takes_over_what_it_repeats_of_its_own_session_and_nothing_of_another():
    seen = SeenRequests(10_000)
    assert keep(seen, "a", "one", "two") == (0, True)
    assert keep(seen, "a", "one", "two", "three") == (2, True)
    assert keep(seen, "b", "one", "two") == (0, True)
    assert len(seen.reads("a", "openai_chat")) == 1, "it took the place of the one it goes on"


def test_several_lines_of_a_session_are_kept_side_by_side_up_to_four():
    seen = SeenRequests(10_000)
    for name in "pqrst":
        keep(seen, "a", name, "x")
    assert len(seen.reads("a", "openai_chat")) == 4
    assert keep(seen, "a", "t", "x", "y") == (2, True)
    assert keep(seen, "a", "p", "x", "y") == (0, True)


def test_bytes_are_bounded_over_all_sessions_and_a_closed_one_leaves_none():
    seen = SeenRequests(600)
    for n in range(50):
        keep(seen, f"s{n}", "x" * 100)
        assert seen.bytes <= 600
    assert keep(seen, "big", "x" * 1000) == (0, False)
    for n in range(50):
        seen.forget(f"s{n}")
    assert seen.bytes == 0


def test_what_another_dialect_read_is_not_taken_over():
    seen = SeenRequests(10_000)
    keep(seen, "a", "hello")
    assert len(seen.reads("a", "openai_chat")) == 1
    assert seen.reads("a", "anthropic") == []
