# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The capture proxy: listeners, sessions and weight updates around the life of calls (``calls.py``).

It speaks provider APIs to harnesses and token ids to the engine, and keeps what passed in the journal. It binds loopback and a
Unix socket, nothing beyond, unless told to.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, replace
from heapq import nsmallest
from pathlib import Path
from typing import Any

from aiohttp import web

from nemo_polar import logs, registry
from nemo_polar.capture.calls import Calls
from nemo_polar.capture.connection import Connections, Shape
from nemo_polar.capture.control import control_app, control_error, control_refusal
from nemo_polar.capture.draw import Drawer, Gate
from nemo_polar.capture.journal import Journal, SessionRow
from nemo_polar.capture.limits import Limits
from nemo_polar.capture.listener import Handler, Refusal, serve
from nemo_polar.capture.meter import Meter
from nemo_polar.capture.roots import RootCache
from nemo_polar.capture.seen import SeenRequests
from nemo_polar.capture.sessions import Session, SessionHandle, SessionRecord, SessionStore
from nemo_polar.capture.share import LoopShare
from nemo_polar.engines.base import Engine, EngineInfo, TellsWeights
from nemo_polar.engines.replicas import ReplicaSet
from nemo_polar.errors import ConfigError, EngineError, JournalError
from nemo_polar.settings import CaptureSettings, SamplingPolicy
from nemo_polar.tokens.base import Codec

log = logging.getLogger("nemo_polar.capture")
_SWEEP_SECONDS = 5.0
"""At most between two looks for sessions and connections that are over."""
_ENDED_BY = {"expired": "session_seconds", "idle": "idle_seconds"}
"""The setting behind how a session ended."""

_FALLBACK = "openai_chat"


class CaptureProxy:
    """One proxy in front of one engine and one model."""

    def __init__(
        self,
        settings: CaptureSettings,
        *,
        codec: Codec,
        engine: Engine,
        journal: Journal,
        thinking_retention: str = "all",
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self.codec = codec
        self.engine = engine
        self.journal = journal
        self.url = ""
        self.socket: Path | None = Path(settings.socket) if settings.socket else None
        self.control_url: str | None = None
        self.control_secret = "polar-control-" + secrets.token_urlsafe(32)
        self.info: EngineInfo
        self.limits = Limits(settings)
        self.meter = Meter()
        self.sessions = SessionStore(settings.max_sessions, self.limits, clock, monotonic)
        self.gate = Gate(0, asyncio.Event())
        self._retention = thinking_retention
        self._clock = clock
        self._threads = ThreadPoolExecutor(settings.render_threads, "polar-render")
        self._runners: list[web.BaseRunner] = []
        self.seen = SeenRequests(settings.reuse_bytes)
        self.roots = RootCache(settings.root_cache_bytes)
        self._connections: list[Connections] = []
        self._housekeeping: list[asyncio.Task[None]] = []
        self._calls: Calls

    # --- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect the engine, open the journal, start the listeners.

        Raises:
            EngineError: the engine is not there, or its log-probabilities cannot be trained on.
            JournalError: the journal cannot be opened.
            ConfigError: an address cannot be bound.
        """
        self.info = await self.engine.connect()
        self.gate.weights_version = await self._served_version()
        if self.settings.max_context is not None:
            self.info = replace(self.info, max_context=min(self.info.max_context, self.settings.max_context))
        self.journal.start()
        share = LoopShare()
        drawer = Drawer(
            engine=self.engine,
            info=self.info,
            codec=self.codec,
            journal=self.journal,
            gate=self.gate,
            model=self.settings.model,
            retries=self.settings.engine_retries,
            deadline=self.settings.call_seconds,
            share=share,
            clock=self._clock,
        )
        dialects = {name: registry.resolve("dialects", name)() for name in registry.names("dialects")}
        self._calls = Calls(
            settings=self.settings,
            limits=self.limits,
            dialects=list(dialects.values()),
            fallback=dialects[_FALLBACK],
            sessions=self.sessions,
            codec=self.codec,
            info=self.info,
            journal=self.journal,
            drawer=drawer,
            seen=self.seen,
            roots=self.roots,
            threads=self._threads,
            share=share,
            clock=self._clock,
            started_at=int(self._clock()),
            retention=self._retention,
        )
        self.gate.open.set()
        try:
            handle = self.meter.counted(self._calls.handle)
            data = await self._listen(handle, self._calls.refuse, self._calls.fallback.error)
            port = await self._bind(data, self.settings.host, self.settings.port)
            self.url = f"http://{self.settings.host}:{port}"
            if self.socket is not None:
                with suppress(FileNotFoundError):
                    self.socket.unlink()
                await web.UnixSite(data, str(self.socket)).start()
            if self.settings.control:
                control = await self._listen(control_app(self), control_refusal, control_error)
                port = await self._bind(control, self.settings.control_host, self.settings.control_port)
                self.control_url = f"http://{self.settings.control_host}:{port}"
        except OSError as exc:
            await self.stop()
            raise ConfigError(f"the proxy cannot listen: {exc}; choose another address in the capture settings") from exc
        self._housekeeping = [
            asyncio.create_task(self._keep_sweeping(), name="sweep"),
            asyncio.create_task(self.meter.watch_lag(), name="watch lag"),
        ]

    async def _served_version(self) -> int:
        """The weights version that the engine says it serves; 0 when it does not say, as before the first update."""
        version = self.info.weights_version
        if version is None and isinstance(self.engine, TellsWeights):
            with suppress(EngineError):  # a server may lack the route; whoever updates weights will be told
                version = await self.engine.weights_version()
        return version or 0

    async def _listen(self, served: web.Application | Handler, refuse: Refusal, shape: Shape) -> web.BaseRunner:
        connections = Connections(self.settings, self.limits, shape)
        runners = await serve(served, refuse, connections, shutdown_timeout=self.settings.shutdown_seconds)
        self._connections.append(connections)
        self._runners += runners
        return runners[0]

    @staticmethod
    async def _bind(runner: web.BaseRunner, host: str, port: int) -> int:
        """Listen on TCP; the port that was got."""
        await web.TCPSite(runner, host, port).start()
        return runner.addresses[0][1]

    async def stop(self) -> None:
        """Let calls in flight end within the shutdown time, abort and record the rest, close everything."""
        for task in self._housekeeping:
            task.cancel()
        self._housekeeping.clear()
        running = [live.task for session in self.sessions for live in session.live if live.task is not None]
        if running:
            _, late = await asyncio.wait(running, timeout=self.settings.shutdown_seconds)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        for runner in self._runners:
            await runner.cleanup()
        self._runners.clear()
        for connections in self._connections:
            connections.abort()
        self._connections.clear()
        for session in self.sessions:
            with suppress(JournalError):
                await self._end(session, "shutdown")
        await self.journal.stop()
        await self.engine.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self.socket is not None:
            with suppress(OSError):
                self.socket.unlink()

    # --- sessions -----------------------------------------------------------------------------------------------------

    async def open_session(
        self,
        *,
        rollout_id: str,
        task_id: str,
        group_id: str,
        attempt: int = 0,
        seconds: float | None = None,
        max_turns: int | None = None,
        max_tokens: int | None = None,
        sampling: SamplingPolicy | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> SessionHandle:
        """A session with a secret of its own, on disk before it is handed out.

        Args:
            seconds: life of the secret; at most ``session_seconds``.
            max_turns: replies it may be given.
            max_tokens: tokens that may be sampled for it.
            sampling: what is drawn for it, where that is not the proxy's own policy (a validation, say).

        Raises:
            Overloaded: the bound on sessions is reached.
            JournalError: it cannot be recorded.
        """
        if self.sessions.full:
            await self.sweep()
        session, handle = self.sessions.open(
            rollout_id=rollout_id,
            task_id=task_id,
            group_id=group_id,
            attempt=attempt,
            seconds=min(seconds or self.settings.session_seconds, self.settings.session_seconds),
            max_turns=max_turns,
            max_tokens=max_tokens,
            sampling=sampling,
            metadata=metadata or {},
        )
        row = SessionRow(
            id=session.id,
            rollout_id=rollout_id,
            task_id=task_id,
            group_id=group_id,
            attempt=attempt,
            created_at=session.created_at,
            model=self.info.model,
            codec=self.codec.name,
            codec_fingerprint=self.codec.fingerprint,
            metadata={**session.metadata, "pinned_date": session.date.pinned.isoformat()},
        )
        try:
            await self.journal.add_session(row)
        except JournalError:
            self.sessions.remove(session.id, "unrecorded")
            raise
        with logs.about(session.id, rollout_id):
            log.info("session opened")
        return handle

    async def budget_spent(self, session_id: str) -> str:
        """Return when a budget of the session is used up: which one."""
        session = self.sessions.get(session_id)
        await session.spent.wait()
        return session.budget_exhausted or ""

    async def close_session(self, session_id: str, *, grace: float = 0.0) -> SessionRecord:
        """End a session: its secret dies at once, calls under way get ``grace`` seconds, then are aborted and recorded.

        Raises:
            PolarError: there is no open session of that id.
        """
        session = self.sessions.revoke(session_id)
        running = [live.task for live in session.live if live.task is not None and not live.task.done()]
        if running:
            _, late = await asyncio.wait(running, timeout=grace)
            for task in late:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        try:
            await self._end(session, "closed")
        except JournalError as exc:
            session.failures[b""] = f"JournalError: {exc}"
        return session.record()

    async def _end(self, session: Session, status: str) -> None:
        """Forget a session, and note why it ended. Raises ``JournalError`` when that cannot be noted; forgotten it is."""
        self.sessions.remove(session.id, status)
        with logs.about(session.id, session.rollout_id):
            log.info("session ended: %s, %d turns", status, len(session.tree.turns))
        self.seen.forget(session.id)
        await self.journal.close_session(session.id, self._clock(), status)

    async def sweep(self) -> None:
        """Close the sessions that have expired or been idle for too long, and the connections that nobody reads any more."""
        for connections in self._connections:
            connections.sweep()
        over = self.sessions.over(self.settings.idle_seconds)
        for _, status in over:
            self.limits.refused[_ENDED_BY[status]] += 1
        noted = await asyncio.gather(*(self._end(session, status) for session, status in over), return_exceptions=True)
        for (session, status), problem in zip(over, noted, strict=True):
            if isinstance(problem, JournalError):
                with logs.about(session.id, session.rollout_id):
                    log.warning("that the session has ended (%s) could not be recorded: %s", status, problem)
            elif problem is not None:
                raise problem

    async def _keep_sweeping(self) -> None:
        settings = self.settings
        bounds = (settings.idle_seconds or _SWEEP_SECONDS, settings.session_seconds, settings.write_seconds)
        period = min(_SWEEP_SECONDS, min(bounds) / 4)
        while True:
            await asyncio.sleep(period)
            try:
                await self.sweep()
            except Exception:  # the boundary of the task: one sweep that fails must not be the last
                log.exception("unforeseen failure while closing idle sessions and connections")

    # --- weight updates -----------------------------------------------------------------------------------------------

    async def pause(self) -> None:
        """Stop drawing: new calls wait, running samples are aborted in the engine and will go on from their ids."""
        self.hold()
        await self.engine.pause()

    async def resume(self, weights_version: int) -> None:
        """Draw again, under ``weights_version``."""
        await self.engine.resume(weights_version)
        self.let_go(weights_version)

    def hold(self) -> None:
        """Begin no more samples: calls wait. Those running are left alone, and so is the engine."""
        self.gate.open.clear()

    def let_go(self, weights_version: int) -> None:
        """Begin samples again, and record them as drawn under ``weights_version``, which the engine is known to serve."""
        self.gate.weights_version = weights_version
        self.gate.open.set()

    # --- how it is ----------------------------------------------------------------------------------------------------

    async def problem(self) -> str | None:
        """One sentence when the proxy cannot serve; None when it can."""
        if not self.journal.healthy:
            return f"the journal: {self.journal.last_error}"
        try:
            await self.engine.health()
        except EngineError as exc:
            return f"the engine: {exc}"
        return None

    def status(self) -> dict[str, Any]:
        return {
            "model": self.info.model,
            "codec": self.codec.name,
            "takes_ids": self.info.takes_ids,
            "max_context": self.info.max_context,
            "paused": not self.gate.open.is_set(),
            "weights_version": self.gate.weights_version,
            "sessions": len(self.sessions),
            "calls_in_flight": self.calls_in_flight,
            "replicas": [asdict(replica) for replica in self.engine.status()] if isinstance(self.engine, ReplicaSet) else [],
        }

    @property
    def calls_in_flight(self) -> int:
        """Replies being drawn."""
        return self._calls.in_flight

    def busiest(self, most: int) -> list[dict[str, Any]]:
        """How the sessions are that have most calls under way, then those that had one last."""
        found = nsmallest(most, self.sessions, key=lambda s: (-len(s.live), -s.last_active))
        return [self.session_status(session.id) for session in found]

    def session_status(self, session_id: str) -> dict[str, Any]:
        session = self.sessions.get(session_id)
        return {
            "id": session.id,
            "rollout_id": session.rollout_id,
            "task_id": session.task_id,
            "group_id": session.group_id,
            "attempt": session.attempt,
            "expires_at": session.expires_at,
            "turns": len(session.tree.turns),
            "in_flight": len(session.live),
            "idle_seconds": self.sessions.idle_seconds(session),
            "counters": dict(session.counters),
            "infra_error": session.infra_error,
            "budget_exhausted": session.budget_exhausted,
        }
