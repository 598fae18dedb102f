# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Weights are replaced while samples are drawn: every recorded token has the version whose weights give its log-probability."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from nemo_polar.settings import TracePolicy
from nemo_polar.trajectory.build import build_traces
from tests.capture.test_calls import USER
from tests.support.weights import POLICY, canaries, handing_over, weights

CLIENTS, UPDATES = 6, 4
LOAD = {"reply_tokens": (20, 60), "token_delay": 0.004}


@pytest.mark.parametrize("in_flight", ["abort", "finish"])
@pytest.mark.parametrize("replicas", [1, 2])
async def test_every_token_has_the_version_that_drew_it(tmp_path, in_flight: str, replicas: int):
    """The hash model of a version is another model, so a log-probability says which version made it."""
    settings = {"in_flight": in_flight}
    async with handing_over(tmp_path, settings=settings, servers=[LOAD] * replicas) as (handover, rig, _):
        over = asyncio.Event()

        async def play(number: int) -> str:
            client = await rig.session(f"r{number}")
            messages: list[dict[str, Any]] = [{"role": "user", "content": f"hello {number}, a prompt longer than a block"}]
            while not over.is_set():
                messages += [await client.message(messages), USER]
            return client.session_id

        players = [asyncio.create_task(play(number)) for number in range(CLIENTS)]
        for version in range(1, UPDATES + 1):
            await asyncio.sleep(0.4)
            report = await handover.hand_over(
                weights(tmp_path / f"w{version}", version), version, canaries(version, version - 1)
            )
            assert report.told_apart
        await asyncio.sleep(0.3)
        over.set()
        sessions = await asyncio.gather(*players)
        seen: set[int] = set()
        aborted = 0
        for session in sessions:
            turns = rig.turns(session)
            aborted += sum(turn.continues for turn in turns)
            for trace in build_traces("r", turns, TracePolicy(), infra=False).traces:
                scores = {v: POLICY.score(trace.token_ids, v) for v in range(UPDATES + 1)}
                for at in np.flatnonzero(trace.weights_version >= 0):
                    version = int(trace.weights_version[at])
                    seen.add(version)
                    assert abs(scores[version][at] - trace.logprobs[at]) < 1e-4, (session, at, version)
        assert seen == set(range(UPDATES + 1))
        assert aborted > 0 if in_flight == "abort" else aborted == 0
