# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Mutated request bodies of real clients: each gets a 2xx or the provider's 4xx, and leaves nothing behind.

Bodies are those that real harnesses sent (``tests/data/requests``) and that OpenAI's own client sends here. They are mutated
(``tests/support/mutate.py``) and sent over real sockets by several sessions at once, while one more session holds a
conversation that must stay exact to the token. What is particular to a dialect is in ``tests/support/fuzz_dialects.py``.
``make fuzz`` sends 10,000 a dialect; POLAR_FUZZ_CASES and POLAR_FUZZ_SEED change that.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import logging
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import AsyncOpenAI

from nemo_polar.engines.scripted import ScriptedEngine
from nemo_polar.errors import BadRequest, NotFound
from nemo_polar.settings import TracePolicy
from nemo_polar.trajectory.audit import audit_run
from nemo_polar.trajectory.store import ENGINE_LOG
from tests.support import mutate
from tests.support.fuzz_dialects import CHAT, DIALECTS, FuzzDialect, Told
from tests.support.mutate import Case
from tests.support.proxy import Client, Rig, running
from tests.support.raw_http import Answer, Connection, chunked, request
from tests.support.scripted_harness import ScriptedHarness
from tests.support.tiny import tiny_codec
from tests.test_exactness import drift, finished_run, write_run_manifest

SEED = int(os.environ.get("POLAR_FUZZ_SEED", "20250711"))
SECONDS = 20
"""For one answer, on a machine that does other things too."""
WORKERS = 6
SESSION_CASES = 40
"""After so many a worker's session is closed, and it opens another."""
LIMITS: dict[str, Any] = {
    **{"max_body_bytes": 1_000_000, "max_parts": 1500, "max_context": 40_000, "read_seconds": 5},
    **{"reuse_bytes": 4_000_000, "root_cache_bytes": 1_000_000},  # soon full, so that what still grows is something else
}
EVERY = pytest.mark.parametrize("name", DIALECTS)


# --- real bodies ------------------------------------------------------------------------------------------------------

_TOOL = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {"command": {}}}}}
_CALL = {"id": "call_1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
_TALK: list[dict[str, Any]] = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "List é 🙂."}]},
    {"role": "assistant", "content": None, "tool_calls": [_CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "a.txt"},
]
_SDK_CALLS: list[dict[str, Any]] = [
    {"messages": _TALK[:2]},
    {"messages": _TALK, "tools": [_TOOL], "stream": True, "stream_options": {"include_usage": True}},
    {"messages": _TALK, "tools": [_TOOL], "tool_choice": "auto", "parallel_tool_calls": True, "temperature": 0.7, "top_p": 0.9},
    {"messages": _TALK[1:2], "max_completion_tokens": 9, "stop": ["\n\n"], "seed": 3, "logprobs": True, "user": "u"},
    {
        "messages": _TALK[:2],
        "response_format": {"type": "text"},
        "presence_penalty": 0.5,
        "metadata": {"a": "b"},
        "store": False,
    },
]
_COMPLETION = {
    "id": "chatcmpl-x",
    "object": "chat.completion",
    "created": 1,
    "model": "polar",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop", "logprobs": None}],
}


async def sdk_bodies() -> list[bytes]:
    """What OpenAI's own client sends, as a server gets it."""
    bodies: list[bytes] = []

    async def keep(http: web.Request) -> web.Response:
        bodies.append(await http.read())
        return web.json_response(_COMPLETION)

    app = web.Application()
    app.router.add_post(CHAT.targets[0][0], keep)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        async with AsyncOpenAI(base_url=url, api_key="k", max_retries=0, timeout=20) as client:
            for fields in _SDK_CALLS:
                await client.chat.completions.create(model="polar", **fields)
    finally:
        await runner.cleanup()
    assert len(bodies) == len(_SDK_CALLS)
    return bodies


async def bodies(dialect: FuzzDialect) -> list[bytes]:
    """The bodies that are mutated, all of them good."""
    return [*dialect.bodies(), *(await sdk_bodies() if dialect is CHAT else [])]


# --- one case ---------------------------------------------------------------------------------------------------------


@dataclass
class Fuzz:
    """One run over many cases."""

    rig: Rig
    dialect: FuzzDialect
    bases: list[bytes]
    statuses: Counter[int] = field(default_factory=Counter)
    tried: Counter[str] = field(default_factory=Counter)
    given: list[tuple[str, Told]] = field(default_factory=list)
    """Of each 2xx the session and what the client was told, to be compared with the journal and the engine's log."""
    failures: list[str] = field(default_factory=list)

    async def send(
        self, client: Client, connection: Connection | None, case: Case, target: str
    ) -> tuple[Connection | None, str | None]:
        """Send one case; the connection if it can be used again, and what was wrong with the answer."""
        sent = case.sent()
        body = chunked(sent.body) if sent.chunked else sent.body
        headers = [*self.dialect.headers(client.secret), *sent.headers]
        headers += [("Transfer-Encoding", "chunked")] if sent.chunked else []
        data = request(body, target=target, headers=headers, length=not sent.chunked)
        for fresh in (False, True):
            if connection is None or fresh:
                connection = await Connection.open(self.rig.proxy.url)
            try:
                await connection.send(data)
                answer = await connection.answer(SECONDS)
            except TimeoutError:
                await connection.close()
                return None, f"no answer within {SECONDS} s"
            if answer is not None:
                break
            await connection.close()  # kept alive, and closed meanwhile: a client sends it once more, on a new one
        else:
            return None, "the connection was closed without an answer"
        self.statuses[answer.status] += 1
        problem = self._problem(answer, client.session_id, target)
        if answer.headers.get("connection") == "close" or problem is not None:
            await connection.close()
            return None, problem
        return connection, problem

    def _problem(self, answer: Answer, session_id: str, target: str) -> str | None:
        if 200 <= answer.status < 300:
            try:
                told = self.dialect.told(answer, target)
            except Exception as exc:  # whatever a reader stumbles over
                return f"not a good answer ({exc!r}): {answer.body[:300]!r} ... {answer.body[-300:]!r}"
            self.given += [] if told is None else [(session_id, told)]
            return None
        if not 400 <= answer.status < 500:
            return f"status {answer.status}: {answer.body[:300]!r}"
        return bad_error(answer, self.dialect)

    async def work(self, worker: int, numbers: Iterator[int]) -> None:
        """Take numbers until there are none; each is a case."""
        client: Client | None = None
        connection: Connection | None = None
        grown = self.bases
        for done, number in enumerate(numbers, 1):
            rng = random.Random(f"{SEED}/{number}")
            target = rng.choices(*zip(*self.dialect.targets, strict=True))[0]
            if client is None:
                client, grown = await self.rig.session(f"fuzz-{worker}-{done}"), self.bases
            # The first few are of each kind; after that chance will do.
            first = mutate.MUTATORS[number] if number < len(mutate.MUTATORS) else None
            case = mutate.draw(rng, grown, self.dialect.words, first)
            self.tried.update(step.name for step in case.steps)
            connection, problem = await self.send(client, connection, case, target)
            if problem is not None:
                self.failures.append(await self._shrunk(number, case, target, problem))
            if rng.random() < 0.2:
                grown = [*self.bases, *[await self._grown(client, rng)] * len(self.bases)]
            if done % SESSION_CASES == 0:
                await self._over(client)
                client = None
        if client is not None:
            await self._over(client)
        if connection is not None:
            await connection.close()

    async def _grown(self, client: Client, rng: random.Random) -> bytes:
        """A conversation with a reply of ours in it: mutations of it go on a recorded line, or just miss it."""
        body = json.loads(rng.choice(self.bases))
        self.dialect.short(body)
        status, _, answer = await client.post(body, path=self.dialect.targets[0][0])
        assert status == 200 and answer is not None, answer
        self.dialect.go_on(body, answer)
        return json.dumps(body).encode()

    async def _over(self, client: Client) -> None:
        for _ in range(200):  # what was answered may still be being noted as delivered
            if not self.rig.proxy.sessions.get(client.session_id).live:
                break
            await asyncio.sleep(0.01)
        live = self.rig.proxy.sessions.get(client.session_id).live
        if live:
            self.failures.append(f"session {client.session_id} still has {len(live)} live replies")
        await self.rig.proxy.close_session(client.session_id)

    async def _shrunk(self, number: int, case: Case, target: str, problem: str) -> str:
        """The failing case with as few steps as fail too, written out."""
        for simpler in case.simpler():
            client = await self.rig.session(f"shrink-{number}")
            connection, again = await self.send(client, None, simpler, target)
            if connection is not None:
                await connection.close()
            await self.rig.proxy.close_session(client.session_id)
            if again is not None:
                case, problem = simpler, again
                break
        sent = case.sent()
        shown = sent.body if len(sent.body) < 4000 else sent.body[:2000] + b" ... " + sent.body[-2000:]
        return f"case {number} of seed {SEED} ({case.name}): {problem}\n  {target}\n  headers {sent.headers}\n  body {shown!r}"


def bad_error(answer: Answer, dialect: FuzzDialect = CHAT) -> str | None:
    """What is wrong with an error answer; None when it has the provider's shape, a sentence and, for a field, its name."""
    try:
        body = answer.json()
        refused = dialect.refused(body, answer.status)
        message = refused.message
        assert message.endswith(".") and "\n" not in message and 5 < len(message) < 600, "its message is no sentence"
        assert "Traceback" not in message and ".py" not in message, "its message shows the inside"
        assert refused.named, "its param is missing"
    except (AssertionError, KeyError, TypeError, ValueError) as exc:
        return f"not the provider's error ({exc!r}): {answer.status} {answer.body[:600]!r}"
    return None


# --- many cases -------------------------------------------------------------------------------------------------------


class Memory(NamedTuple):
    """What the process holds, this test's client included."""

    rss_kb: int
    objects: int
    """Python objects that the collector knows: those that hold others. A leak of anything but bytes shows here at once."""

    @classmethod
    def now(cls) -> Memory:
        gc.collect()
        with suppress(OSError, AttributeError):
            ctypes.CDLL("libc.so.6").malloc_trim(0)  # else it is the most that was ever held
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return cls(pages * os.sysconf("SC_PAGE_SIZE") // 1024, len(gc.get_objects()))


def script(asked: Any) -> list[int] | None:
    """Mostly what the hash model says; a tool call now and then."""
    if len(asked.prompt_ids) % 3:
        return None
    tokenizer = tiny_codec().tokenizer  # type: ignore[attr-defined]
    text = 'On it.\n<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
    return [*tokenizer.encode(text), tokenizer.token_id("<|im_end|>")]


async def converse(harness: ScriptedHarness, stop: asyncio.Event) -> None:
    """The session that behaves."""
    while not stop.is_set():
        await harness.step()
        with suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                await stop.wait()


async def settled(read: Any, wanted: int) -> int:
    """What ``read`` comes to, once it is down to ``wanted`` or has had a moment to be."""
    for _ in range(100):
        if read() <= wanted:
            break
        await asyncio.sleep(0.02)
    return read()


def fds() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def run_cases(
    folder: Path, dialect: FuzzDialect, cases: int, log: pytest.LogCaptureFixture, *, readings: int = 10
) -> tuple[Fuzz, list[Memory]]:
    """Send ``cases``, check all that must hold after them. Returns the run and the memory before each of ``readings``
    stretches of it, and at the end."""
    bases = await bodies(dialect)
    memory: list[Memory] = []
    engine = ScriptedEngine(script, log=folder / ENGINE_LOG, vocab=259, reply_tokens=(4, 12), max_context=LIMITS["max_context"])
    async with running(folder, engine=engine, grace_seconds=0.02, **LIMITS) as rig:
        proxy, policy = rig.proxy, TracePolicy()
        good = await rig.session("good")
        tasks, files = len(asyncio.all_tasks()), fds()
        fuzz, stop = Fuzz(rig, dialect, bases), asyncio.Event()

        def numbers() -> Iterator[int]:
            for number in range(cases):
                if number % max(1, cases // readings) == 0:
                    memory.append(Memory.now())
                yield number

        shared = numbers()
        behaved = asyncio.create_task(converse(ScriptedHarness(_scripted(rig), good, SEED, thinks=False), stop))
        await asyncio.gather(*(fuzz.work(worker, shared) for worker in range(WORKERS)))
        stop.set()
        await behaved
        await rig.http.close()
        memory.append(Memory.now())

        assert fuzz.failures == [], "\n".join(fuzz.failures[:5])
        assert sum(fuzz.statuses.values()) >= cases
        assert [record.getMessage() for record in log.records] == []
        assert proxy.status()["calls_in_flight"] == 0
        assert [s.id for s in proxy.sessions] == [good.session_id]
        assert await settled(lambda: len(proxy.sessions.get(good.session_id).live), 0) == 0
        assert await settled(lambda: len(asyncio.all_tasks()), tasks) <= tasks
        assert await settled(fds, files) <= files
        every_success_is_recorded(fuzz)
        traces = await finished_run(rig, good.session_id, "good", policy)
    write_run_manifest(folder, rig.codec, policy)
    report = audit_run(folder)
    assert (report.drift_tokens, drift(traces, folder, good.session_id)) == (0, 0)
    assert report.trained_tokens > 0
    return fuzz, memory


def _scripted(rig: Rig) -> Rig:
    """The rig as ``ScriptedHarness`` knows it; what it wants said is left to the script, which other sessions share."""
    rig.engine.core.push = lambda *_: None
    return rig


def every_success_is_recorded(fuzz: Fuzz) -> None:
    """Each 2xx is a turn in the journal, and that turn is what the engine's own log says."""
    log = {call.request_id: call for call in fuzz.rig.engine_log()}
    turns = {(s, t.call_id): t for s in {session for session, _ in fuzz.given} for t in fuzz.rig.turns(s)}
    for session, told in fuzz.given:
        turn = turns[session, told.call_id]
        call = log[turn.request_id]
        assert turn.sample.token_ids.tolist() == call.token_ids[: len(turn.sample)].tolist()
        assert turn.sample.logprobs.tolist() == call.logprobs[: len(turn.sample)].tolist()
        assert turn.prompt_len == len(call.prompt_ids)
        if told.prompt_tokens is not None:
            assert (told.prompt_tokens, told.completion_tokens) == (len(call.prompt_ids), len(turn.sample))


@EVERY
async def test_mutated_bodies_get_a_2xx_or_a_4xx_of_the_providers_and_leave_nothing(name, tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    fuzz, memory = await run_cases(tmp_path, DIALECTS[name], 150, caplog, readings=3)
    assert fuzz.statuses[200] > 15 and fuzz.statuses[400] > 15, fuzz.statuses
    assert set(fuzz.tried) == set(mutate.MUTATORS)
    assert memory[-1].rss_kb - memory[1].rss_kb < 100_000
    assert memory[-1].objects - memory[1].objects < 10 * 100


@EVERY
@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_ten_thousand_mutations(name, tmp_path, caplog):
    """Memory: over the last seven tenths less than one object is left over for each case (the test keeps one a success),
    and less than 4 KB, where a body is 6 KB. What there is comes in steps: the allocator's, after bursts of large bodies.
    """
    cases = int(os.environ.get("POLAR_FUZZ_CASES", "10000"))
    caplog.set_level(logging.WARNING)
    began = time.monotonic()
    fuzz, memory = await run_cases(tmp_path, DIALECTS[name], cases, caplog)
    kilobytes, objects = ((last - first) / (0.7 * cases) for first, last in zip(memory[3], memory[-1], strict=True))
    counts = ", ".join(f"{status}: {count}" for status, count in sorted(fuzz.statuses.items()))
    print(f"\n{name}: {cases} cases of seed {SEED} in {time.monotonic() - began:.0f} s; {counts}")
    print(f"RSS {[m.rss_kb for m in memory]} KB; a case {kilobytes:.2f} KB and {objects:.2f} objects")
    assert objects < 1
    assert kilobytes < 4


# --- the dialect alone ------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
WORDS = sorted({word for dialect in DIALECTS.values() for word in (*dialect.words.fields, *dialect.words.inner, "x")})
TURN = st.just([{"role": "user", "content": "hi"}]) | st.just([{"role": "user", "parts": [{"text": "hi"}]}])
PLAUSIBLE = st.dictionaries(st.sampled_from(WORDS), JSON | TURN, max_size=8)


def parses_or_refuses(dialect: FuzzDialect, body: bytes) -> None:
    for target, _ in dialect.targets:
        with suppress(BadRequest, NotFound):
            dialect.dialect.parse(body, dialect.route(target))


@EVERY
@given(value=JSON | PLAUSIBLE)
@settings(max_examples=150, deadline=None)
def test_any_json_is_parsed_or_a_bad_request(name, value):
    parses_or_refuses(DIALECTS[name], json.dumps(value).encode())


@EVERY
@given(body=st.binary(max_size=60))
def test_any_bytes_are_parsed_or_a_bad_request(name, body):
    parses_or_refuses(DIALECTS[name], body)


@EVERY
@given(seed=st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_any_mutation_is_parsed_or_a_bad_request(name, seed):
    dialect = DIALECTS[name]
    parses_or_refuses(dialect, mutate.draw(random.Random(seed), dialect.bodies(), dialect.words).sent().body)
