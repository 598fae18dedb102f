# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The proxy over replicas in processes of their own: one is killed under load and comes back, weights are updated meanwhile.

No harness sees any of it, and journal, trajectories and weights versions agree with what the relays in front of the replicas
wrote down.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from nemo_polar.engines.hash_policy import HashPolicy
from nemo_polar.engines.log import EngineCall, EngineLog, read_engine_log
from nemo_polar.engines.relay import Relay
from nemo_polar.engines.replicas import ReplicaSet
from nemo_polar.engines.serve import LocalServer
from nemo_polar.engines.vllm import VllmEngine
from nemo_polar.settings import TracePolicy
from nemo_polar.trajectory.audit import audit_run
from nemo_polar.trajectory.store import engine_logs, replica_log
from tests.support.engines import process, until
from tests.support.proxy import Client, joined, running
from tests.support.replicas import QUICK, served, version_of
from tests.support.tiny import tiny_codec
from tests.test_exactness import finished_run, write_run_manifest

SERVER = "nemo_polar.engines.scripted_server"
OPTIONS = ("--vocab", "259", "--reply-tokens", "5", "30", "--token-delay", "0.004", "--max-context", "100000")


@asynccontextmanager
async def relayed(url: str, log: Path) -> AsyncIterator[str]:
    """A recording relay: it outlives the engine behind it."""
    relay = Relay(url, EngineLog(log))
    async with LocalServer(relay.app) as listening:
        yield listening.url
    await relay.close()


async def converse(client: Client, number: int, stop: asyncio.Event, statuses: Counter) -> None:
    """Conversations of five turns until told to stop; streamed and whole replies in turn."""
    rng = random.Random(number)
    while not stop.is_set():
        messages: list[dict[str, Any]] = [{"role": "user", "content": f"go {rng.random()}"}]
        for turn in range(5):
            if (turn + number) % 2:
                async with client.stream(messages) as response:
                    stream = joined(await response.read())
                    assert stream["done"] and "error" not in stream, stream
                    statuses[response.status] += 1
                said: dict[str, Any] = {"role": "assistant", "content": stream["content"] or None}
                if stream["calls"]:
                    said["tool_calls"] = stream["calls"]
            else:
                status, _, answer = await client.post(client.body(messages))
                assert status == 200, answer
                statuses[status] += 1
                said = answer["choices"][0]["message"]
            messages += [said, {"role": "user", "content": "more"}]


async def more(statuses: Counter) -> None:
    """Wait until twenty more calls were answered."""
    enough = statuses[200] + 20
    await until(lambda: statuses[200] >= enough, 20)


async def test_a_replica_killed_under_load_and_weight_updates_are_seen_by_nobody_and_drift_is_zero(tmp_path: Path) -> None:
    policy, traces, statuses, stop = HashPolicy(259), TracePolicy(), Counter(), asyncio.Event()
    async with AsyncExitStack() as stack:
        servers = await asyncio.gather(*(stack.enter_async_context(process(SERVER, *OPTIONS)) for _ in range(2)))
        names = "ab"
        urls = [await stack.enter_async_context(relayed(u, replica_log(tmp_path, n))) for n, (_, u) in enumerate(servers)]
        engine = ReplicaSet({n: VllmEngine(u, connect_timeout=2.0) for n, u in zip(names, urls, strict=True)}, **QUICK)
        rig = await stack.enter_async_context(running(tmp_path, engine=engine))
        clients = [await rig.session(f"r{n}") for n in range(6)]
        load = [asyncio.create_task(converse(c, n, stop, statuses)) for n, c in enumerate(clients)]
        await more(statuses)
        assert [s.sessions for s in engine.status()] == [3, 3]

        await until(lambda: sum(sample.drawn for sample in engine._replicas[0].samples) >= 2, 20)
        servers[0][0].send_signal(signal.SIGKILL)
        await served(engine, False, True)
        await more(statuses)
        await rig.proxy.pause()
        await rig.proxy.resume(1)

        port = servers[0][1].rpartition(":")[2]
        await stack.enter_async_context(process(SERVER, *OPTIONS, "--port", port))
        await until(lambda: "weights version 0, the others 1" in (engine.status()[0].last_error or ""), 20)
        await more(statuses)
        assert not engine.status()[0].healthy
        await rig.proxy.pause()
        await rig.proxy.resume(2)
        assert [(s.healthy, s.weights_version) for s in engine.status()] == [(True, 2), (True, 2)]
        new = await rig.session("r6")
        load.append(asyncio.create_task(converse(new, 6, stop, statuses)))
        await until(lambda: engine.status()[0].sessions == 1, 20)
        await more(statuses)
        stop.set()
        await asyncio.gather(*load)

        turns = {c.session_id: rig.turns(c.session_id) for c in (*clients, new)}
        for number, client in enumerate((*clients, new)):
            assert rig.proxy.sessions.get(client.session_id).infra_error is None
            await finished_run(rig, client.session_id, f"r{number}", traces)
    assert set(statuses) == {200}

    write_run_manifest(tmp_path, tiny_codec(), traces)
    report = audit_run(tmp_path)
    assert report.findings == [] and report.drift_tokens == 0
    assert report.sampled_tokens == report.trained_tokens + sum(report.masked_tokens.values()) and report.trained_tokens > 0

    logs = [[c for c in read_engine_log(path) if not c.request_id.startswith("polar-probe")] for path in engine_logs(tmp_path)]
    homes = [{c.request_id.split("-")[1] for c in log} for log in logs]
    assert len(homes[0]) == 4 and len(homes[1]) >= 6  # those of the killed one moved, and stayed; the new session is its own
    first = {c.request_id for c in logs[0]}
    by_request: dict[str, EngineCall] = {c.request_id: c for log in logs for c in log}
    drawn, moved = Counter(), 0
    for of_session in turns.values():
        for turn in of_session:
            moved += turn.continues and of_session[turn.parent or 0].request_id in first and turn.request_id not in first
            call = by_request[turn.request_id]
            if len(call.token_ids) >= 3:  # else too short to tell versions apart for certain
                (version,) = version_of(policy, call.prompt_ids, call, range(4))
                assert version in turn.sample.weights_version
                drawn[version] += 1
    assert set(drawn) == {0, 1, 2} and moved > 0
