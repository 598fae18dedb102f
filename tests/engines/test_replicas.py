# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A replica set: sessions stay where their prefix is cached, what is lost is drawn elsewhere, and no sample mixes weights."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import replace

import pytest
from aiohttp import web

from nemo_polar.engines.base import Chunk, EngineInfo, GenerateRequest
from nemo_polar.engines.chat_prefix import ChatPrefixEngine
from nemo_polar.engines.hash_policy import HashPolicy
from nemo_polar.engines.replicas import ReplicaSet
from nemo_polar.engines.script import Fault, ScriptedReply
from nemo_polar.engines.serve import LocalServer
from nemo_polar.engines.vllm import VllmEngine
from nemo_polar.errors import EngineError, EngineOverloaded, EngineProtocol, EngineUnavailable
from nemo_polar.types import FinishReason, as_ids
from tests.support.engines import collect, until
from tests.support.replicas import Flaky, of, replica_set, served, slow, version_of

PROMPT = (11, 12, 13)


def policy() -> HashPolicy:
    return HashPolicy(512)


async def lost(replicas: ReplicaSet, session_id: str, engine: Flaky) -> None:
    """A call of that session finds that its replica has gone."""
    engine.down = True
    with pytest.raises(EngineUnavailable, match="nobody is there"):
        await collect(replicas, of(session_id))


# --- affinity ---------------------------------------------------------------------------------------------------------


async def test_a_session_stays_on_its_replica_and_sessions_are_spread() -> None:
    a, b, c = engines = Flaky(), Flaky(), Flaky()
    async with replica_set(*engines) as replicas:
        for _ in range(3):
            for session in range(9):
                await collect(replicas, of(f"s{session}"))
        assert [s.sessions for s in replicas.status()] == [3, 3, 3]
    homes = [set(e.asked) for e in engines]
    assert not (homes[0] & homes[1] or homes[0] & homes[2] or homes[1] & homes[2])
    assert [len(a.asked), len(b.asked), len(c.asked)] == [9, 9, 9]


async def test_a_new_session_goes_where_the_fewest_samples_are_open() -> None:
    a, b = Flaky([slow(), slow()]), Flaky()
    async with replica_set(a, b) as replicas:
        open_ones = [asyncio.create_task(collect(replicas, of("s0", max_tokens=2000))) for _ in range(2)]
        await until(lambda: a.core.running == 2)
        for session in ("s1", "s2", "s3"):  # more sessions on b already, and still it has less to do
            await collect(replicas, of(session))
        assert b.asked == ["s1", "s2", "s3"]
        assert [s.in_flight for s in replicas.status()] == [2, 0]
        for task in open_ones:
            task.cancel()
        await asyncio.gather(*open_ones, return_exceptions=True)
        assert [s.in_flight for s in replicas.status()] == [0, 0]


async def test_the_table_of_sessions_is_bounded() -> None:
    async with replica_set(Flaky(), Flaky(), sessions=10) as replicas:
        for session in range(50):
            await collect(replicas, of(f"s{session}", max_tokens=1))
        await collect(replicas, of("", max_tokens=1))  # no session: placed by load, remembered by nobody
        assert sum(s.sessions for s in replicas.status()) == 10


async def test_a_replica_that_has_too_much_to_do_is_spared_but_stays_in_service() -> None:
    a, b = Flaky([ScriptedReply(fault=Fault.OVERLOADED)]), Flaky()
    async with replica_set(a, b) as replicas:
        with pytest.raises(EngineOverloaded):
            await collect(replicas, of("s"))
        assert [s.healthy for s in replicas.status()] == [True, True]
        for _ in range(2):
            await collect(replicas, of("s"))
        assert (a.asked, b.asked) == (["s"], ["s", "s"])


# --- failover and health ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens_before", [0, 3])
async def test_a_call_that_fails_goes_up_as_it_is_and_the_next_one_elsewhere(tokens_before: int) -> None:
    fault = Fault.CUT if tokens_before else Fault.UNAVAILABLE
    a, b = Flaky([ScriptedReply(token_ids=range(1, 9), fault=fault, fault_after=3)]), Flaky()
    async with replica_set(a, b) as replicas:
        got: list[int] = []
        with pytest.raises(EngineUnavailable):
            async for chunk in replicas.generate(of("s")):
                got += chunk.token_ids.tolist()
        assert got == [1, 2, 3][:tokens_before] and b.asked == []
        await collect(replicas, of("s", prompt=[*PROMPT, *got]))
        assert (a.asked, b.asked) == (["s"], ["s"])


async def test_a_lost_replica_is_set_aside_and_taken_back_and_its_sessions_stay_where_they_went() -> None:
    a, b = Flaky(), Flaky()
    async with replica_set(a, b) as replicas:
        await collect(replicas, of("s"))
        await lost(replicas, "s", a)
        await collect(replicas, of("s"))
        status = replicas.status()
        assert (status[0].healthy, status[0].last_error, status[1].sessions) == (False, "nobody is there", 1)
        tried = a.connects
        await asyncio.sleep(0.2)
        a.down = False
        await served(replicas, True, True)
        assert a.connects == tried + 1  # a replica that does not even answer is not probed
        await collect(replicas, of("s"))
        assert b.asked == ["s", "s"]
        await collect(replicas, of("new"))
        assert a.asked[-1] == "new"


async def test_a_replica_that_goes_while_nothing_is_asked_of_it_is_noticed() -> None:
    a, b = Flaky(), Flaky()
    async with replica_set(a, b) as replicas:
        a.down = True
        await served(replicas, False, True)
        for session in range(4):
            await collect(replicas, of(f"s{session}"))
        assert a.asked == []


async def test_a_replica_that_fails_every_sample_is_tried_less_and_less() -> None:
    a, b = Flaky(), Flaky()
    async with replica_set(a, b, retry_seconds=0.05, retry_max_seconds=10) as replicas:
        a.core.push(*[ScriptedReply(fault=Fault.UNAVAILABLE)] * 100)
        failed = 0
        loop = asyncio.get_running_loop()
        began = loop.time()
        session = 0
        while loop.time() - began < 0.6:
            session += 1
            try:
                await collect(replicas, of(f"s{session}", max_tokens=1))
            except EngineUnavailable:
                failed += 1
            await asyncio.sleep(0.002)
        assert 2 <= failed <= 6 and session > 10 * failed  # it is back after 0, 0.05, 0.15 and 0.35 s


async def test_with_all_replicas_lost_every_problem_is_named_and_health_says_so() -> None:
    a, b = Flaky(), Flaky()
    async with replica_set(a, b) as replicas:
        await replicas.health()
        await lost(replicas, "s", a)
        await replicas.health()
        await lost(replicas, "s", b)
        for call in (collect(replicas, of("s")), replicas.health(), replicas.score(as_ids([1, 2]))):
            with pytest.raises(EngineUnavailable, match="a: nobody is there; b: nobody is there"):
                await call
        b.down = False
        await served(replicas, False, True)
        await replicas.health()
        await collect(replicas, of("s"))


async def test_scoring_goes_on_with_another_replica() -> None:
    a, b = Flaky(), Flaky()
    async with replica_set(a, b) as replicas:
        a.down = True
        assert len(await replicas.score(as_ids([1, 2, 3]))) == 3


async def test_a_late_failure_of_a_former_life_is_not_held_against_this_one() -> None:
    a, b = Flaky([slow()]), Flaky()
    async with replica_set(a, b, check_seconds=60) as replicas:
        long = replicas.generate(of("s", max_tokens=2000))
        await anext(long)
        await lost(replicas, "t", b)
        await lost(replicas, "u", a)
        a.down = False
        await served(replicas, True, False)
        a.down = True
        with pytest.raises(EngineUnavailable, match="mid-answer"):
            async for _ in long:
                pass
        assert replicas.status()[0].healthy


async def test_close_ends_the_watchers_and_every_engine() -> None:
    a, b = Flaky(), Flaky()
    before = asyncio.all_tasks()
    async with replica_set(a, b) as replicas:
        assert len(asyncio.all_tasks() - before) == 2
        await lost(replicas, "s", a)
    assert asyncio.all_tasks() == before and a.closed and b.closed


# --- what the replicas are --------------------------------------------------------------------------------------------


async def test_the_context_is_the_smallest_and_a_replica_that_is_not_there_is_waited_for() -> None:
    a, b, c = Flaky(max_context=4096), Flaky(max_context=2048), Flaky()
    c.down = True
    async with replica_set(a, b, c, connect=False) as replicas:
        info = await replicas.connect()
        assert (info.model, info.max_context, info.takes_ids, info.scores) == ("scripted", 2048, True, True)
        assert info.weights_version == 0
        await served(replicas, True, True, False)
        c.down = False
        await served(replicas, True, True, True)


async def test_with_nobody_there_connect_names_all() -> None:
    a, b = Flaky(), Flaky()
    a.down = b.down = True
    async with replica_set(a, b, connect=False) as replicas:
        with pytest.raises(EngineUnavailable, match="a: nobody is there; b: nobody is there"):
            await replicas.connect()


@pytest.mark.parametrize(
    ("other", "message"),
    [(Flaky(model="other"), "a: 'scripted'.*b: 'other'"), (Flaky(logprobs="raw"), "b: .*raw log-probabilities")],
    ids=["another model", "untrainable"],
)
async def test_replicas_that_are_not_alike_or_not_trainable_are_refused(other: Flaky, message: str) -> None:
    async with replica_set(Flaky(), other, connect=False) as replicas:
        with pytest.raises(EngineProtocol, match=message):
            await replicas.connect()


@pytest.mark.parametrize(
    ("options", "why"),
    [({"model": "other"}, "serves 'other'"), ({"max_context": 64}, "context is 64"), ({"logprobs": "raw"}, "raw log-prob")],
    ids=["another model", "a smaller context", "untrainable"],
)
async def test_a_replica_that_comes_late_must_be_like_the_others(options: dict, why: str) -> None:
    a, late = Flaky(), Flaky(**options)
    late.down = True
    async with replica_set(a, late) as replicas:
        late.down = False
        await until(lambda: why in (replicas.status()[1].last_error or ""))
        assert not replicas.status()[1].healthy and late.asked == []


# --- weights ----------------------------------------------------------------------------------------------------------


async def test_an_update_reaches_all_and_running_samples_end_with_their_ids() -> None:
    a, b = Flaky([slow()]), Flaky([slow()])
    async with replica_set(a, b) as replicas:
        running = [asyncio.create_task(collect(replicas, of(s, max_tokens=2000))) for s in "st"]
        await until(lambda: a.core.running and b.core.running)
        await replicas.pause()
        cut = await asyncio.gather(*running)
        assert all(d.finish_reason is FinishReason.ABORT and version_of(policy(), PROMPT, d) == {0} for d in cut)
        waiting = asyncio.create_task(collect(replicas, of("s")))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await replicas.resume(3)
        assert version_of(policy(), PROMPT, await waiting) == {3}
        assert [(s.healthy, s.weights_version) for s in replicas.status()] == [(True, 3)] * 2


async def test_a_replica_that_missed_an_update_serves_nobody_until_the_next_one() -> None:
    a, b = Flaky(), Flaky()
    async with replica_set(a, b) as replicas:
        await replicas.pause()
        b.broken = {"resume"}
        await replicas.resume(1)
        assert [(s.healthy, s.weights_version) for s in replicas.status()] == [(True, 1), (False, 0)]
        b.broken = set()  # it works again, and is still at the old weights: nobody may label them as the new ones
        await asyncio.sleep(0.2)
        assert "weights version 0, the others 1" in (replicas.status()[1].last_error or "")
        for session in range(6):
            assert version_of(policy(), PROMPT, await collect(replicas, of(f"s{session}"))) == {1}
        assert b.asked == []
        await replicas.pause()
        await replicas.resume(2)
        await served(replicas, True, True)
        for session in range(6):
            assert version_of(policy(), PROMPT, await collect(replicas, of(f"t{session}"))) == {2}
        assert len(b.asked) == 6  # it has no session yet, so all the new ones are its


async def test_a_replica_that_was_brought_to_the_version_by_others_is_taken_back() -> None:
    a, b = Flaky(), Flaky()
    async with replica_set(a, b) as replicas:
        b.broken = {"pause"}
        await replicas.pause()
        b.broken = set()
        await replicas.resume(1)
        await served(replicas, True, False)
        b.core.set_version(1)
        await served(replicas, True, True)


async def test_a_replica_whose_update_ended_before_it_could_serve_is_started_again() -> None:
    class Half(Flaky):
        async def resume(self, weights_version: int) -> None:
            self.core.set_version(weights_version)
            await super().resume(weights_version)

    a, b = Flaky(), Half()
    async with replica_set(a, b) as replicas:
        await replicas.pause()
        b.broken = {"resume"}
        await replicas.resume(1)
        assert not b.core._go.is_set() and b.core.weights_version == 1
        b.broken = set()
        await served(replicas, True, True)
        assert b.core._go.is_set()


async def test_a_restarted_replica_has_lost_its_weights_and_stays_out_until_the_next_update() -> None:
    a, b = Flaky(), Flaky()
    async with replica_set(a, b) as replicas:
        await replicas.resume(4)
        b.restart()
        await served(replicas, True, False)
        for session in range(6):
            assert version_of(policy(), PROMPT, await collect(replicas, of(f"s{session}"))) == {4}
        assert b.asked == []
        await replicas.pause()
        await replicas.resume(5)
        await served(replicas, True, True)


@pytest.mark.parametrize("noticed", [True, False], ids=["seen to be gone", "too quick to be seen"])
async def test_a_replica_that_restarts_while_weights_are_replaced_is_not_given_the_new_label(noticed: bool) -> None:
    a, b = Flaky(), Flaky()
    async with replica_set(a, b) as replicas:
        if not noticed:
            await replicas.resume(1)  # its version tells then
        await replicas.pause()
        if noticed:
            b.down = True
            await until(lambda: replicas.status()[1].last_error == "nobody is there")
        b.restart()
        await replicas.resume(2)
        await asyncio.sleep(0.1)
        assert [s.healthy for s in replicas.status()] == [True, False]
        assert b.core.weights_version == 0


async def test_an_engine_that_cannot_say_what_it_serves_is_out_from_a_failure_to_the_next_update() -> None:
    class Silent(Flaky):
        async def weights_version(self) -> int | None:
            self._answer("weights_version")
            return None

    a, b = Silent(), Silent()
    async with replica_set(a, b) as replicas:
        await lost(replicas, "s", a)  # before any update, all serve what they were started with
        a.down = False
        await served(replicas, True, True)
        await replicas.pause()
        await replicas.resume(1)
        await asyncio.sleep(0.1)
        assert [s.healthy for s in replicas.status()] == [True, True]
        await lost(replicas, "s", b if replicas.status()[1].sessions else a)
        for engine in (a, b):
            engine.down = False
        await asyncio.sleep(0.2)
        assert sorted(s.healthy for s in replicas.status()) == [False, True]
        await replicas.pause()
        await replicas.resume(2)
        await served(replicas, True, True)


async def test_replicas_found_at_different_versions_serve_the_one_most_are_at() -> None:
    engines = Flaky(), Flaky(), Flaky()
    for engine in engines[1:]:
        engine.core.set_version(7)
    async with replica_set(*engines, connect=False) as replicas:
        assert (await replicas.connect()).weights_version == 7
        assert [s.healthy for s in replicas.status()] == [False, True, True]
        assert "weights version 0, the others 7" in (replicas.status()[0].last_error or "")


async def test_two_replicas_at_different_versions_never_draw_one_sample() -> None:
    """Whatever is lost, restarted and updated: each call's tokens have the log-probabilities of exactly one version."""
    a, b = engines = Flaky(token_delay=0.001), Flaky(token_delay=0.001)
    seen: set[int] = set()
    async with replica_set(*engines, check_seconds=0.2) as replicas:

        async def session(name: str) -> None:
            while True:
                prompt = list(PROMPT)
                while len(prompt) < 60:
                    ids, logprobs = [], []
                    with suppress(EngineError):
                        async with aclosing(replicas.generate(of(name, prompt=prompt, max_tokens=60 - len(prompt)))) as chunks:
                            async for chunk in chunks:
                                ids += chunk.token_ids.tolist()
                                logprobs += chunk.logprobs.tolist()
                                if chunk.finish_reason is not None:
                                    break
                    if ids:
                        drawn = type("Call", (), {"token_ids": ids, "logprobs": logprobs})
                        versions = version_of(policy(), prompt, drawn, range(8))
                        assert len(versions) == 1, f"{len(ids)} tokens fit versions {versions}"
                        seen.update(versions)
                    prompt += ids
                    await asyncio.sleep(0.002)

        clients = [asyncio.create_task(session(f"s{n}")) for n in range(3)]
        for version in range(1, 8):
            victim, other = (a, b) if version % 2 else (b, a)
            await asyncio.sleep(0.06)
            victim.down = True
            await asyncio.sleep(0.02)
            if version % 3 == 0:
                victim.restart()
            await replicas.pause()
            victim.down = False
            other.broken = {"resume"} if version == 4 else set()
            with suppress(EngineError):
                await replicas.resume(version)
            other.broken = set()
            if not replicas._open.is_set():
                await replicas.resume(version)
        await asyncio.sleep(0.1)
        failed = [task.exception() for task in clients if task.done()]
        for task in clients:
            task.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
    assert failed == [] and len(seen) >= 6


@pytest.mark.parametrize("tokens_before", [0, 1])
async def test_tokens_of_other_weights_than_believed_fail_the_call(tokens_before: int) -> None:
    """Before a token was passed on, the error is one that is tried again elsewhere; after one, it is a breach of protocol."""
    a, b = Flaky(), Flaky()
    async with replica_set(a, b, check_seconds=60) as replicas:
        await replicas.resume(1)
        if not tokens_before:
            a.restart()  # and nobody has noticed
            with pytest.raises(EngineUnavailable, match="under weights version 0 when it should be at 1"):
                await collect(replicas, of("s"))
        else:
            a.core.push(slow())
            stream = replicas.generate(of("s", max_tokens=2000))
            await anext(stream)
            next(iter(a.core._running)).weights_version = 0
            with pytest.raises(EngineProtocol, match="under weights version 0 when it should be at 1"):
                async for _ in stream:
                    pass
        assert not replicas.status()[0].healthy
        assert version_of(policy(), PROMPT, await collect(replicas, of("s"))) == {1}


async def test_a_replica_whose_samples_no_longer_say_their_weights_has_lost_them() -> None:
    class Like(Flaky):
        """As vLLM: the last chunk tells, and fresh weights have no number."""

        async def generate(self, request: GenerateRequest) -> AsyncGenerator[Chunk, None]:
            async with aclosing(super().generate(request)) as chunks:
                async for chunk in chunks:
                    told = chunk.finish_reason is not None and self.core.weights_version
                    yield replace(chunk, weights_version=told or None)

    a, b = Like(), Like()
    async with replica_set(a, b, check_seconds=60) as replicas:
        await replicas.resume(1)
        assert version_of(policy(), PROMPT, await collect(replicas, of("s"))) == {1}
        a.restart()  # and nobody has noticed
        with pytest.raises(EngineProtocol, match="weights version it was started with when it should be at 1"):
            await collect(replicas, of("s"))
        assert not replicas.status()[0].healthy


async def test_what_a_replica_said_before_an_update_does_not_bring_it_back_after() -> None:
    class Slow(Flaky):
        held = asyncio.Event()

        async def connect(self) -> EngineInfo:
            if self.connects:
                await self.held.wait()
            return await super().connect()

    a, b = Flaky(), Slow()
    async with replica_set(a, b) as replicas:
        await lost(replicas, "t", a)
        await lost(replicas, "t", b)
        a.down = b.down = False
        await served(replicas, True, False)
        await asyncio.sleep(0.1)  # b has said that it is at version 0, as all are, and is being connected
        await replicas.resume(1)
        b.held.set()
        for _ in range(200):  # not even until it is looked at again
            await asyncio.sleep(0)
            assert [s.healthy for s in replicas.status()] == [True, False]


async def test_a_replica_that_cannot_be_paused_has_its_samples_cut_and_is_set_aside() -> None:
    a, b = Flaky([slow()]), Flaky()
    async with replica_set(a, b) as replicas:
        running = asyncio.create_task(collect(replicas, of("s", max_tokens=2000)))
        await until(lambda: a.core.running)
        await asyncio.sleep(0.02)
        a.broken = {"pause"}
        await replicas.pause()
        cut = await asyncio.wait_for(running, 1)
        assert cut.finish_reason is FinishReason.ABORT and cut.token_ids and a.core.running == 0
        await replicas.resume(1)
        assert [s.healthy for s in replicas.status()] == [False, True]


async def test_a_call_that_the_pause_missed_ends_before_the_new_weights_serve() -> None:
    """It was under way to the engine and waits there: drawn after the update, it would be stamped with the wrong version."""
    a = Flaky()
    async with replica_set(a) as replicas:
        await a.pause()
        late = asyncio.create_task(collect(replicas, of("s")))
        await asyncio.sleep(0.02)
        await replicas.pause()
        await replicas.resume(1)
        ended = await asyncio.wait_for(late, 1)
        assert (ended.token_ids, ended.finish_reason) == ([], FinishReason.ABORT)


async def test_an_update_that_reaches_nobody_says_so_and_can_be_tried_again() -> None:
    a, b = Flaky(), Flaky()
    async with replica_set(a, b) as replicas:
        a.broken = b.broken = {"pause", "resume"}
        with pytest.raises(EngineError, match="no replica could be paused: a: pause does not work; b: pause does not work"):
            await replicas.pause()
        await collect(replicas, of("s"))  # nothing has changed
        a.broken = b.broken = {"resume"}
        await replicas.pause()
        with pytest.raises(EngineError, match="a: resume does not work; b: resume does not work"):
            await replicas.resume(1)
        waiting = asyncio.create_task(collect(replicas, of("s")))
        a.broken = b.broken = set()
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await replicas.resume(1)
        assert version_of(policy(), PROMPT, await waiting) == {1}


async def test_a_replica_that_takes_too_long_over_an_update_is_left_behind() -> None:
    class Stuck(Flaky):
        async def resume(self, weights_version: int) -> None:
            await asyncio.Event().wait()

    a, b = Flaky(), Stuck()
    async with replica_set(a, b, update_seconds=0.1) as replicas:
        await replicas.pause()
        await replicas.resume(1)
        assert [s.healthy for s in replicas.status()] == [True, False]
        assert "no answer within 0.1 s" in (replicas.status()[1].last_error or "")


async def test_chat_only_replicas_are_resumed_without_a_pause() -> None:
    engines = [ChatPrefixEngine("http://127.0.0.1:9", "m", max_context=10) for _ in range(2)]
    async with replica_set(*engines, connect=False) as replicas:
        for replica in replicas._replicas:
            replica.info, replica.problem = object(), None  # type: ignore[assignment]
        with pytest.raises(EngineError, match="cannot be paused"):
            await replicas.pause()
        await replicas.resume(1)
        assert await replicas.weights_version() == 1


@pytest.mark.parametrize(
    ("answer", "told"), [({"weight_version": "7"}, 7), ({"weight_version": "default"}, None), (None, None)], ids=str
)
async def test_vllm_says_which_weights_it_serves_if_it_can(answer: dict | None, told: int | None) -> None:
    async def weight_info(_: web.Request) -> web.Response:
        return web.json_response(answer)

    app = web.Application()
    if answer is not None:  # outside dev mode there is no such route
        app.router.add_get("/weight_info", weight_info)
    async with LocalServer(app) as server:
        engine = VllmEngine(server.url)
        assert await engine.weights_version() == told
    with pytest.raises(EngineUnavailable):
        await engine.weights_version()
    await engine.close()


def test_a_set_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        ReplicaSet({})
