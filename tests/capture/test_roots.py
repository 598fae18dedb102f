# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A group's first prompt is rendered once, what is kept is bounded, and what a fingerprint does not decide is not kept."""

from __future__ import annotations

import asyncio

import pytest

from nemo_polar.capture.roots import RootCache, cacheable
from nemo_polar.errors import TokenError
from nemo_polar.types import ModelCall, as_ids
from tests.support.conversations import assistant, user
from tests.support.proxy import running

USER = {"role": "user", "content": "go"}


async def test_those_who_ask_at_once_share_one_rendering():
    cache, rendered = RootCache(1000), 0

    async def render():
        nonlocal rendered
        rendered += 1
        await asyncio.sleep(0.01)
        return as_ids([1, 2])

    prompts = await asyncio.gather(*(cache.get(b"k", render) for _ in range(8)), cache.get(b"other", render))
    assert (rendered, cache.hits) == (2, 7)
    assert all(p.tolist() == [1, 2] for p in prompts) and not prompts[0].flags.writeable


async def test_a_failure_goes_to_all_who_wait_and_is_not_kept():
    cache = RootCache(1000)

    async def fail():
        await asyncio.sleep(0.01)
        raise TokenError("no")

    async def render():
        return as_ids([1])

    outcomes = await asyncio.gather(*(cache.get(b"k", fail) for _ in range(3)), return_exceptions=True)
    assert [type(o) for o in outcomes] == [TokenError] * 3
    assert (await cache.get(b"k", render)).tolist() == [1]


async def test_what_is_kept_is_bounded_and_a_waiter_that_leaves_harms_nobody():
    cache = RootCache(20)

    async def render():
        await asyncio.sleep(0.01)
        return as_ids([1, 2, 3])

    leaving = asyncio.create_task(cache.get(b"0", render))
    staying = asyncio.create_task(cache.get(b"0", render))
    await asyncio.sleep(0)
    leaving.cancel()
    assert (await staying).tolist() == [1, 2, 3]
    for n in range(1, 5):
        await cache.get(bytes([n]), render)
    assert cache.bytes <= 20


@pytest.mark.parametrize(("messages", "expected"), [((user("a"),), True), ((user("a"), assistant("b"), user("c")), False)])
def test_a_conversation_with_an_assistants_turn_is_not_decided_by_its_fingerprint(messages, expected):
    assert cacheable(ModelCall(messages=messages)) is expected


async def test_the_rollouts_of_a_group_have_one_first_prompt(tmp_path):
    async with running(tmp_path) as rig:
        clients = [await rig.session(f"r{n}") for n in range(4)]
        await asyncio.gather(*(c.ask([USER]) for c in clients))
        prompts = {rig.turns(c.session_id)[0].prompt_delta.tobytes() for c in clients}
        assert len(prompts) == 1
        assert rig.proxy._calls.roots.hits == 3
