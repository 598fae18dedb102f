# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A reply that is followed while it is drawn: nothing is lost, the first and the last words do not wait, silence is noticed."""

from __future__ import annotations

import asyncio
from itertools import chain

from nemo_polar.capture.live import LiveReply
from nemo_polar.errors import CallError
from nemo_polar.types import TextDelta


def live() -> LiveReply:
    return LiveReply("id", 1, b"", grace=0.0)


async def collected(reply: LiveReply, silence: float = 5.0, interval: float = 0.0) -> list[list[str]]:
    return [[d.text for d in batch] async for batch in reply.follow(silence, interval)]  # type: ignore[union-attr]


async def test_what_comes_within_the_interval_goes_out_together_and_nothing_is_lost():
    reply = live()
    following = asyncio.create_task(collected(reply, interval=0.2))
    for n in range(30):
        reply.publish([TextDelta(str(n))])
        await asyncio.sleep(0.01)
    reply.fail(CallError("the end"))
    batches = await asyncio.wait_for(following, 1)
    assert batches[0] == ["0"], "the first word does not wait"
    assert [*chain(*batches)] == [str(n) for n in range(30)]
    assert len(batches) <= 5


async def test_the_end_does_not_wait_for_the_interval():
    reply = live()
    following = asyncio.create_task(collected(reply, interval=30.0))
    reply.publish([TextDelta("a")])
    await asyncio.sleep(0.01)
    reply.publish([TextDelta("b")])
    await asyncio.sleep(0.01)
    reply.fail(CallError("the end"))
    assert await asyncio.wait_for(following, 1) == [["a"], ["b"]]


async def test_each_reader_has_everything_and_silence_is_an_empty_batch():
    reply = live()
    early = asyncio.create_task(collected(reply, silence=0.05))
    await asyncio.sleep(0.12)
    reply.publish([TextDelta("a"), TextDelta("b")])
    late = asyncio.create_task(collected(reply))
    await asyncio.sleep(0.01)
    reply.fail(CallError("the end"))
    assert await late == [["a", "b"]]
    batches = await early
    assert batches[0] == [] and [*chain(*batches)] == ["a", "b"]
    assert reply._waiting == reply._ending == []


async def test_a_reader_that_is_cancelled_leaves_nothing_behind():
    reply = live()
    following = asyncio.create_task(collected(reply))
    await asyncio.sleep(0.01)
    assert len(reply._waiting) == 1
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    assert reply._waiting == []
