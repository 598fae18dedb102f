# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A crowd does not keep the event loop from its timers, and everyone in it has a turn."""

from __future__ import annotations

import asyncio
import time

from nemo_polar.capture.share import LoopShare


def work(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


async def passes_during(share: LoopShare | None, members: int) -> int:
    """How many passes the loop makes while a crowd that is ready all at once does its work."""
    passes = 0
    over = False

    def count() -> None:
        nonlocal passes
        passes += 1
        if not over:
            asyncio.get_running_loop().call_soon(count)

    async def member() -> None:
        if share is not None:
            await share.turn()
        work(0.001)

    asyncio.get_running_loop().call_soon(count)
    await asyncio.gather(*(member() for _ in range(members)))
    over = True
    return passes


async def test_the_work_of_a_crowd_is_spread_over_many_passes():
    assert await passes_during(LoopShare(0.003), 100) >= 15
    assert await passes_during(None, 100) <= 3, "which without a share is one pass"


async def test_a_member_that_is_cancelled_in_the_queue_holds_nobody_up():
    share = LoopShare(0.001)

    async def member() -> str:
        await share.turn()
        work(0.002)
        return "done"

    tasks = [asyncio.create_task(member()) for _ in range(20)]
    await asyncio.sleep(0)
    for task in tasks[10:15]:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert results.count("done") == 15
