# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Runs a plan: an engine, the proxies, and the same windows of load through each of them in turn.

The proxies take turns within a round, window by window, so that what disturbs the machine disturbs all of them alike; a ratio
is always of two figures of one round. Every window is checked: as many requests have reached the engine as there were calls.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import orjson

from benchmarks import plan as P
from benchmarks.client import Client, Conversation, Load, ask_json
from benchmarks.plan import Plan, Window
from benchmarks.process import Measured
from benchmarks.proxies import MAKERS, REPOSITORY, LagSeries, Proxy, Setting
from benchmarks.texts import TextSource, canned_replies
from nemo_polar.errors import ConfigError, EngineProtocol, EngineUnavailable, PolarError

Watch = Callable[[Measured], AbstractAsyncContextManager[None]]
"""Looks on at a process while it is under load."""


class Progress(Protocol):
    """Told what is being done, and when a step is over."""

    def step(self, what: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Result:
    """One window through one proxy in one round."""

    proxy: str
    window: Window
    round: int
    cpu_ms: float | None
    """A call; None for ``direct``."""
    seconds: list[float]
    """Of each call."""
    lag_ms: list[float]


@dataclass(frozen=True, slots=True)
class Memory:
    """What a proxy keeps, over many calls at one history."""

    proxy: str
    history_kb: int
    calls: int
    rss_kb_per_call: float
    """Slope by least squares."""
    record_bytes_per_call: float | None
    written_bytes_per_call: float
    """All that the process had written to disk, so with what a write-ahead log writes twice."""


@dataclass(slots=True)
class Measurements:
    """All of a run."""

    plan: Plan
    proxies: list[str]
    results: list[Result] = field(default_factory=list)
    memory: list[Memory] = field(default_factory=list)
    unavailable: dict[str, str] = field(default_factory=dict)
    """Proxies that could not be installed, started or run to the end, and why."""
    no_stream: dict[str, str] = field(default_factory=dict)


class Bench:
    """One run. ``proxies``: names of ``MAKERS``."""

    def __init__(self, plan: Plan, proxies: Sequence[str], *, tokenizer: Path, out: Path, progress: Progress) -> None:
        if unknown := [name for name in proxies if name not in MAKERS]:
            raise ConfigError(f"no proxy {unknown[0]!r}; known: {', '.join(MAKERS)}")
        self._plan, self._tokenizer, self._out, self._progress = plan, tokenizer.resolve(), out.resolve(), progress
        self._tested: list[_Tested] = []
        self._engine_url = ""
        self._gap = 0.0
        self.found = Measurements(plan, list(proxies))

    async def run(self) -> Measurements:
        """Measure.

        Raises:
            PolarError: the engine, the pass-through or our own proxy failed; of a peer that fails, the reason is kept instead.
        """
        async with AsyncExitStack() as stack:
            await self._start_engine(stack)
            for name in self.found.proxies:
                self._progress.step(f"{name}: start, and build histories")
                await self._guard(name, lambda name=name: self._start_proxy(name, stack))
            if self._plan.memory_calls:
                # Before the windows: the peaks of 256 calls at a time would leave the allocator room that hides what is kept.
                for history in reversed(self._plan.histories):
                    for tested in self._turns(0):
                        self._progress.step(f"{tested.proxy.name}: memory and journal at {history} KB")
                        if tested.proxy.process is not None:
                            await self._guard(tested.proxy.name, lambda t=tested, h=history: self._measure_memory(t, h))
            for round in range(self._plan.rounds):
                for at, window in enumerate(self._plan.windows):
                    for tested in self._turns(round + at):
                        self._progress.step(f"round {round + 1}: {tested.proxy.name}: {window.title}")
                        if tested.takes(window):
                            await self._guard(tested.proxy.name, lambda t=tested, w=window, r=round: self._measure(t, w, r))
        return self.found

    async def hold(self, window: Window, seconds: float, watch: Watch) -> tuple[int, float]:
        """Load our proxy alone with ``window`` again and again while ``watch`` looks on.

        Returns:
            Calls made, and milliseconds of CPU a call.
        """
        async with AsyncExitStack() as stack:
            await self._start_engine(stack)
            self._progress.step("polar: start, and build histories")
            await self._start_proxy("polar", stack)
            (tested,) = self._tested
            process = tested.proxy.process
            assert process is not None
            self._progress.step(f"polar: {window.title}, for {seconds:g} s")
            await self._ready(tested, window)
            calls = 0
            async with watch(process):
                before, until = process.cpu_seconds(), time.monotonic() + seconds
                while time.monotonic() < until:
                    await self._load(tested, window)
                    calls += window.calls
                cpu = await process.settled_cpu() - before
        return calls, cpu * 1000 / calls

    def steps(self) -> int:
        """How often ``progress.step`` will be called, if nothing fails."""
        each = self._plan.rounds * len(self._plan.windows) + 1
        return len(self.found.proxies) * (each + len(self._plan.histories) * bool(self._plan.memory_calls))

    # --- start --------------------------------------------------------------------------------------------------------

    async def _start_engine(self, stack: AsyncExitStack) -> None:
        self._out.mkdir(parents=True, exist_ok=True)
        replies = self._out / "replies.json"
        pools = canned_replies(self._tokenizer / "tokenizer.json", (P.SHORT, P.LONG))
        replies.write_bytes(
            orjson.dumps({str(n): [r.to_json() for r in pool] for n, pool in pools.items()}, option=orjson.OPT_NON_STR_KEYS)
        )
        argv = (sys.executable, "-m", "benchmarks.engine", "--replies", replies)
        engine = await Measured.start("the instant engine", argv, self._out / "engine.log", env={"PYTHONPATH": REPOSITORY})
        stack.push_async_callback(engine.stop)
        self._engine_url = (await engine.announced())["url"]

    async def _start_proxy(self, name: str, stack: AsyncExitStack) -> None:
        folder = self._out / name
        folder.mkdir(parents=True)
        proxy = MAKERS[name](Setting(self._engine_url, self._tokenizer, folder))
        try:
            await proxy.start()
        finally:
            if proxy.process is not None:
                stack.push_async_callback(proxy.process.stop)
        if proxy.refuses_streams:
            self.found.no_stream[name] = proxy.refuses_streams
        tested = _Tested(proxy, Client(proxy.url, TextSource(len(self._tested))))
        stack.callback(tested.client.close)
        await self._set_gap(0.0)
        for history in self._plan.histories:
            tested.conversations[history] = await tested.histories(history)
        self._tested.append(tested)

    def _turns(self, shift: int) -> list[_Tested]:
        """Who is measured when: another one first each time."""
        at = shift % len(self._tested)
        return [*self._tested[at:], *self._tested[:at]]

    async def _guard(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Do ``work``; when it fails for a peer, that peer is out, and the reason is kept."""
        error: Exception | None = None
        try:
            await work()
        except* (PolarError, OSError) as group:
            error = _first(group)
        if error is None:
            return
        if name not in ("direct", "passthrough", "polar"):
            self.found.unavailable[name] = str(error) or type(error).__name__
            self._tested = [tested for tested in self._tested if tested.proxy.name != name]
        elif isinstance(error, ConfigError):
            raise error
        else:
            log = self._out / name / "stderr.log"
            raise EngineUnavailable(f"{name}: {str(error) or type(error).__name__}; what it wrote is in {log}") from error

    # --- one window ---------------------------------------------------------------------------------------------------

    async def _measure(self, tested: _Tested, window: Window, round: int) -> None:
        proxy = tested.proxy
        lag = LagSeries(proxy)
        requests = await self._requests()
        await self._ready(tested, window)
        lag.begin()
        before = 0.0 if proxy.process is None else await proxy.process.settled_cpu()
        seconds = await self._load(tested, window)
        cpu = None if proxy.process is None else (await proxy.process.settled_cpu() - before) * 1000 / window.calls
        lag_ms = await lag.end()
        await self._check(requests, window.calls, proxy.name)
        self.found.results.append(Result(proxy.name, window, round, cpu, seconds, lag_ms))

    async def _ready(self, tested: _Tested, window: Window) -> None:
        await self._set_gap(window.gap_ms)
        await tested.client.reconnect(window.concurrency)

    async def _load(self, tested: _Tested, window: Window) -> list[float]:
        """The calls of ``window``; seconds of each."""
        load = Load(P.NEW_BYTES, window.tokens, window.stream, window.limit, window.gap_ms * window.tokens / 1000)
        conversations = tested.conversations[window.history_kb]
        return await tested.client.window(conversations, load, calls=window.calls, concurrency=window.concurrency)

    async def _measure_memory(self, tested: _Tested, history_kb: int) -> None:
        """Many calls alike, with a look at the process now and then."""
        proxy, process = tested.proxy, tested.proxy.process
        assert process is not None
        await self._set_gap(0.0)
        load = Load(P.NEW_BYTES, P.SHORT, False, Window(history_kb, 1, False, 0).limit)
        conversations = tested.conversations[history_kb]
        calls: list[int] = []
        rss: list[float] = []
        record: list[int | None] = []
        written: list[int] = []
        requests = await self._requests()
        await tested.client.reconnect(P.MEMORY_CONCURRENCY)
        for done in range(0, self._plan.memory_calls + 1, P.MEMORY_STEP):
            if done:
                await tested.client.window(
                    conversations[: P.SESSIONS], load, calls=P.MEMORY_STEP, concurrency=P.MEMORY_CONCURRENCY
                )
            await process.settled_cpu()
            if done >= min(P.MEMORY_SKIP, self._plan.memory_calls // 4):
                calls.append(done)
                rss.append(process.rss_kb())
                record.append(proxy.record_bytes())
                written.append(process.written_bytes())
        await self._check(requests, self._plan.memory_calls // P.MEMORY_STEP * P.MEMORY_STEP, proxy.name)
        slope = float(np.polyfit(calls, rss, 1)[0])
        counted = calls[-1] - calls[0]
        kept = None if record[0] is None or record[-1] is None else (record[-1] - record[0]) / counted
        self.found.memory.append(Memory(proxy.name, history_kb, counted, slope, kept, (written[-1] - written[0]) / counted))

    async def _set_gap(self, gap_ms: float) -> None:
        if gap_ms != self._gap:
            await ask_json(self._engine_url, "POST", "/bench/gap", gap_ms)
            self._gap = gap_ms

    async def _requests(self) -> int:
        counts = await ask_json(self._engine_url, "GET", "/bench/counts")
        return sum(count for path, count in counts.items() if path.endswith(("/generate", "/completions")))

    async def _check(self, before: int, calls: int, name: str) -> None:
        """Raise unless every call has reached the engine once."""
        reached = await self._requests() - before
        if reached != calls:
            raise EngineProtocol(f"{name}: {calls} calls were made, and {reached} requests reached the engine")


@dataclass(slots=True)
class _Tested:
    """A proxy with its load."""

    proxy: Proxy
    client: Client
    conversations: dict[int, list[Conversation]] = field(default_factory=dict)
    """By history."""

    def takes(self, window: Window) -> bool:
        """A whole reply of a paced engine is another thing only for a proxy that streams from the engine itself: ours."""
        if window.stream and self.proxy.refuses_streams:
            return False
        if window.tokens == P.LONG and self.proxy.process is None:
            return False  # for the CPU of a token
        return window.stream or not window.gap_ms or self.proxy.name == "polar"

    async def histories(self, history_kb: int) -> list[Conversation]:
        """Conversations whose history is that long, by real turns. Those of one session branch from one history."""
        turns = P.TURNS if history_kb > 8 else 1
        target = history_kb * 1024 * 15 // 16
        roots: list[Conversation] = []
        texts = TextSource(10_000 + history_kb)
        for number in range(P.SESSIONS):
            path, headers = await self.proxy.session(f"bench-{history_kb}-{number}")
            root = Conversation(path, headers)
            root.add("system", f"You are agent {number}. You solve tasks in a sandbox.\n" + texts.take(200))
            roots.append(root)
        # Framing and the reply are about 160 bytes a turn; escaped characters of the text come on top.
        size = max((target - roots[0].size) // turns - 160, 100)
        load = Load(int(size * 0.95), P.SHORT, False)
        await self.client.reconnect(P.MEMORY_CONCURRENCY)
        for _ in range(turns):
            await self.client.window(roots, load, calls=P.SESSIONS, concurrency=P.MEMORY_CONCURRENCY)
        for root in roots:
            root.keep()
        branches = [root.branch() for _ in range(P.BRANCHES - 1) for root in roots]
        return [*roots, *branches]


def _first(group: BaseExceptionGroup[Exception]) -> Exception:
    """One of the errors in ``group``."""
    for error in group.exceptions:
        return _first(error) if isinstance(error, BaseExceptionGroup) else error
    raise AssertionError("an empty group")
