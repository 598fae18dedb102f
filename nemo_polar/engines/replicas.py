# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Several engines that serve the same model, as one engine.

Affinity: a session's calls go to the replica that has its prefix cached, for as long as it serves; a session without one goes
where the fewest samples are open, then where the fewest sessions are at home.

Failover: one call of ``generate`` is one call of one replica. A replica that fails is set aside and the error goes up as it
is; what the caller draws next, be it afresh or from the ids it has, goes elsewhere. So one engine call stays one turn and one
line of an engine-side log, and no sample is continued behind its caller's back.

Weights: only replicas at the set's version serve, and every sample is drawn within one version. The set's version is the one
last given to ``resume``. A replica that missed an update, or was restarted and so has lost it, is out of service until it says
that it is at the version, or takes part in the next update; one that cannot say is out until the next update. What a replica
reports with its tokens is compared with the version the sample began under. A mismatch sets the replica aside, and fails the
call so that it is drawn elsewhere, or as a breach of protocol if tokens had been passed on.

Health: every replica has a watcher. It notices when one in service has gone or serves other weights than it should, and tries
those set aside again, after pauses that grow as long as no sample is drawn to its end. The set renders, parses and retries
nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing

import numpy as np

from nemo_polar.engines.affinity import Affinity
from nemo_polar.engines.base import Chunk, Engine, EngineInfo, GenerateRequest
from nemo_polar.engines.replica import OpenSample, Replica, ReplicaStatus, each, most_common, named
from nemo_polar.errors import EngineError, EngineOverloaded, EngineProtocol, EngineTimeout, EngineUnavailable, EngineWeights
from nemo_polar.types import FinishReason, LogProbs, TokenIds

log = logging.getLogger("nemo_polar.engines")
_REFUSED_SECONDS = 2.0
"""How long other replicas are preferred to one that said it has too much to do."""
_LEAVE_SECONDS = 2.0
"""How long readers of samples that were cut may take to let go."""


class ReplicaSet:
    """``replicas``: name (usually the URL) to engine.

    ``sessions``: how many sessions are remembered. ``check_seconds``: between two looks at a replica in service; a server that
    restarts faster than that may go unnoticed until a sample tells. ``probe_seconds``, ``update_seconds``: how long one replica
    may take to connect, and to pause or to resume. ``retry_seconds``, ``retry_max_seconds``: pauses between tries to take a
    replica back (the first is at once).
    """

    name = "replicas"

    def __init__(
        self,
        replicas: Mapping[str, Engine],
        *,
        sessions: int = 65_536,
        check_seconds: float = 5.0,
        probe_seconds: float = 60.0,
        update_seconds: float = 90.0,
        retry_seconds: float = 0.5,
        retry_max_seconds: float = 30.0,
    ):
        if not replicas:
            raise ValueError("a replica set needs at least one engine")
        self._replicas = [Replica(url, engine) for url, engine in replicas.items()]
        self._affinity: Affinity[Replica] = Affinity(sessions)
        self._check_seconds, self._probe_seconds, self._update_seconds = check_seconds, probe_seconds, update_seconds
        self._retry_seconds, self._retry_max_seconds = retry_seconds, retry_max_seconds
        self._info: EngineInfo | None = None
        self._version: int | None = None
        self._open = asyncio.Event()
        """Clear while weights are replaced."""
        self._open.set()
        self._updates = 0
        """Pauses and resumes begun or ended: what was asked before one of them is not to be acted on after it."""
        self._watchers: list[asyncio.Task[None]] = []

    # --- life -----------------------------------------------------------------------------------------------------

    async def connect(self) -> EngineInfo:
        """See ``Engine.connect``. It is enough that one replica is there; the context is the smallest of those that are.

        Raises:
            EngineUnavailable: none is there.
            EngineProtocol: one cannot be trained on, or they don't serve the same model in the same way.
        """
        found, failed = await each(self._replicas, self._connect, self._probe_seconds)
        for replica, error in failed.items():
            if not error.retryable:
                raise EngineProtocol(f"{replica.url}: {error}") from error
            replica.problem = replica.last_error = str(error)
            log.warning("replica %s is not there yet: %s", replica.url, error)
        if not found:
            raise EngineUnavailable(f"no replica can be reached: {self._problems()}")
        infos = [info for info, _ in found.values()]
        if len({(info.model, info.takes_ids) for info in infos}) > 1:
            served = "; ".join(f"{r.url}: {i.model!r}, takes_ids={i.takes_ids}" for r, (i, _) in found.items())
            raise EngineProtocol(f"replicas must serve the same model in the same way, but: {served}")
        self._version = most_common(version for _, version in found.values())
        self._info = EngineInfo(
            infos[0].model,
            min(info.max_context for info in infos),
            takes_ids=infos[0].takes_ids,
            streams=all(info.streams for info in infos),
            scores=all(info.scores for info in infos),
            weights_version=self._version,
        )
        for replica, (info, version) in found.items():
            self._take_back(replica, info, version)
            if (problem := self._wrong_version(version)) is not None:
                self._set_aside(replica, problem)
        if not self._watchers:
            self._watchers = [asyncio.create_task(self._watch(r), name=f"watch {r.url}") for r in self._replicas]
        return self._info

    async def _connect(self, replica: Replica) -> tuple[EngineInfo, int | None]:
        return await replica.engine.connect(), await replica.told_version()

    async def health(self) -> None:
        """See ``Engine.health``: one replica that serves will do."""
        serving = [r for r in self._replicas if r.problem is None]
        checks = {asyncio.ensure_future(r.engine.health()): r for r in serving}
        errors: list[str] = []
        try:
            for check in asyncio.as_completed(checks):
                try:
                    return await check
                except EngineError as exc:
                    errors.append(str(exc))
        finally:
            for check in checks:
                check.cancel()
            await asyncio.gather(*checks, return_exceptions=True)
        raise EngineUnavailable("no replica can serve: " + "; ".join(filter(None, [*errors, self._problems()])))

    async def close(self) -> None:
        """End the watchers and close every engine."""
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        self._watchers.clear()
        await asyncio.gather(*(replica.engine.close() for replica in self._replicas))

    async def weights_version(self) -> int | None:
        """The version all replicas in service are at; None: what they were started with."""
        return self._version

    @property
    def engines(self) -> dict[str, Engine]:
        """Each replica's own engine, in service or not, by the name it was given."""
        return {replica.url: replica.engine for replica in self._replicas}

    def status(self) -> list[ReplicaStatus]:
        """How each replica is, in the order they were given."""
        return [
            ReplicaStatus(
                url=replica.url,
                healthy=replica.problem is None,
                weights_version=replica.version,
                in_flight=len(replica.samples),
                sessions=self._affinity.sessions(replica),
                last_error=replica.last_error,
            )
            for replica in self._replicas
        ]

    # --- sampling -------------------------------------------------------------------------------------------------

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        """See ``Engine.generate``. While weights are replaced it waits, and is placed after.

        Raises:
            EngineUnavailable: no replica serves, or the chosen one failed: a retry goes to another.
            EngineWeights: tokens were passed on, and then the engine says that they are of other weights.
            EngineError: what the replica's engine raises.
        """
        await self._open.wait()
        replica = self._place(request.session_id)
        sample = OpenSample(replica.epoch, self._version)
        replica.samples.add(sample)
        try:
            async with aclosing(replica.engine.generate(request)) as chunks:
                while (chunk := await sample.next(chunks)) is not None:
                    self._check_weights(replica, sample, chunk, request.request_id)
                    if chunk.finish_reason is not None:
                        sample.finished = True
                        if chunk.finish_reason is not FinishReason.ABORT:
                            replica.failures = 0
                    sample.drawn |= len(chunk.token_ids) > 0
                    yield chunk
            if sample.cut and not sample.finished:
                yield Chunk(np.empty(0, np.int32), np.empty(0, np.float32), FinishReason.ABORT)
        except (EngineUnavailable, EngineTimeout) as exc:
            if sample.epoch == replica.epoch:
                self._set_aside(replica, str(exc))
            raise
        except EngineOverloaded:
            replica.refused_until = _now() + _REFUSED_SECONDS
            self._affinity.forget(request.session_id)
            raise
        finally:
            replica.samples.discard(sample)
            sample.leave()

    async def score(self, token_ids: TokenIds) -> LogProbs:
        """See ``Engine.score``. Nothing is drawn, so a replica that fails is followed by another."""
        for _ in self._replicas:
            replica = self._least_loaded()
            epoch = replica.epoch
            try:
                return await replica.engine.score(token_ids)
            except (EngineUnavailable, EngineTimeout) as exc:
                if epoch == replica.epoch:
                    self._set_aside(replica, str(exc))
        raise EngineUnavailable(f"no replica could score: {self._problems()}")

    def _place(self, session_id: str) -> Replica:
        home = self._affinity.find(session_id)
        if home is not None and home.problem is None:
            return home
        replica = self._least_loaded()
        if session_id:
            self._affinity.put(session_id, replica)
        return replica

    def _least_loaded(self) -> Replica:
        serving = [r for r in self._replicas if r.problem is None]
        if not serving:
            raise EngineUnavailable(f"no replica can serve: {self._problems()}")
        now = _now()
        return min(serving, key=lambda r: (r.refused_until > now, len(r.samples), self._affinity.sessions(r)))

    def _check_weights(self, replica: Replica, sample: OpenSample, chunk: Chunk, request_id: str) -> None:
        told = chunk.weights_version
        if sample.version is None:
            return
        whole = chunk.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
        if told == sample.version:
            replica.tells |= whole
            return
        if told is None and not (whole and replica.tells):
            return  # most engines tell with the last chunk only
        problem = f"it drew under weights version {named(told)} when it should be at {named(sample.version)}"
        if sample.epoch == replica.epoch:
            self._set_aside(replica, problem)
        message = f"{request_id}: {replica.url}: {problem}"
        raise EngineWeights(message) if sample.drawn else EngineUnavailable(message)

    # --- weights --------------------------------------------------------------------------------------------------

    async def pause(self, *, afresh: bool = False) -> None:
        """See ``Engine.pause``; on all replicas at once. One that cannot be paused is set aside and its samples are cut.

        Args:
            afresh: take what each says it serves now for granted, also where it was paused before and has been restarted since.
                For who is about to load weights into all of them, and to prove that they serve.

        Raises:
            EngineError: none could be paused; nothing has changed then.
        """
        self._updates += 1
        self._open.clear()

        async def pause_one(replica: Replica) -> int | None:
            return await self._pause(replica, afresh)

        paused, failed = await each(self._connected(), pause_one, self._update_seconds)
        self._updates += 1
        if not paused:
            self._open.set()
            raise self._all_failed("no replica could be paused", failed)
        for replica, version in paused.items():
            replica.paused, replica.version = True, version
        for replica, error in failed.items():
            replica.paused = False
            self._set_aside(replica, f"it could not be paused for a weight update: {error}")
        await self._cut(failed)

    async def resume(self, weights_version: int) -> None:
        """See ``Engine.resume``; on all replicas that were paused (or, without a pause, on those in service). One that does not
        reach the version is set aside.

        Raises:
            EngineError: none reached it; the set stays as it was.
        """
        self._updates += 1
        was_open = self._open.is_set()
        self._open.clear()
        there = [r for r in self._connected() if (r.problem is None if was_open else r.paused)]
        # What is still open began before the pause and has not ended with it: under way to the engine, or held up by it.
        await self._cut(self._replicas)

        async def to_version(replica: Replica) -> EngineInfo:
            return await self._resume(replica, weights_version)

        reached, failed = await each(there, to_version, self._update_seconds)
        self._updates += 1
        if not reached:
            if was_open:
                self._open.set()
            raise self._all_failed(f"no replica could be resumed at weights version {weights_version}", failed)
        self._version = weights_version
        for replica in self._replicas:
            if replica in reached:
                self._take_back(replica, reached[replica], weights_version)
            elif replica.info is not None:
                why = f": {failed[replica]}" if replica in failed else ""
                self._set_aside(replica, f"it missed the update to weights version {weights_version}{why}")
                replica.look_at(_now())
        self._open.set()

    def _connected(self) -> list[Replica]:
        return [r for r in self._replicas if r.info is not None]

    async def _pause(self, replica: Replica, afresh: bool) -> int | None:
        await replica.engine.pause()
        return replica.version if replica.paused and not afresh else await replica.told_version()

    async def _resume(self, replica: Replica, weights_version: int) -> EngineInfo:
        told = await replica.told_version()
        if told not in (replica.version, weights_version):
            raise EngineError(
                f"it says it serves weights version {named(told)}, and was at {named(replica.version)} before the update: "
                "it was restarted, or updated by somebody else"
            )
        await replica.engine.resume(weights_version)
        told = await replica.told_version()
        if told not in (None, weights_version):
            raise EngineError(f"it says it serves weights version {told} after it was set to {weights_version}")
        if replica.info is not None and replica.problem is None:
            return replica.info
        return await self._reconnect(replica)  # it was out of service, and can be back with this update

    async def _cut(self, replicas: Iterable[Replica]) -> None:
        """End the samples open on ``replicas``: their readers see an abort, with the ids they have."""
        samples = [sample for replica in replicas for sample in replica.samples]
        for sample in samples:
            sample.end()
        if samples:
            leaving = asyncio.gather(*(sample.left() for sample in samples))
            try:
                await asyncio.wait_for(leaving, _LEAVE_SECONDS)
            except TimeoutError:
                log.warning("a reader of a sample that was cut is still busy with its last tokens")

    # --- health ---------------------------------------------------------------------------------------------------

    async def _watch(self, replica: Replica) -> None:
        """Look after one replica for as long as the set lives."""
        replica.look_at(_now() + self._check_seconds if replica.problem is None else replica.due)
        while True:
            replica.wake.clear()
            try:
                async with asyncio.timeout_at(replica.due):
                    await replica.wake.wait()
                continue
            except TimeoutError:
                replica.due = _now() + self._check_seconds
            try:
                if replica.problem is None or not self._open.is_set():
                    await self._check(replica)
                else:
                    await self._try(replica)
            except Exception:  # the last boundary: without its watcher a replica would stay as it is for ever
                log.exception("unforeseen failure while looking after replica %s", replica.url)

    async def _check(self, replica: Replica) -> None:
        """See whether a replica is still there, and as it should be. Being slow is no fault: calls have a time limit."""
        before = self._updates
        try:
            told = await replica.told_version()
        except EngineUnavailable as exc:
            replica.paused = False  # what comes back may be another process, with other weights
            self._set_aside(replica, str(exc))
            return
        except EngineError:
            return
        if before != self._updates or not self._open.is_set() or replica.problem is not None:
            return  # a weight update is under way, or was: its own checks hold
        if (told is not None or replica.says) and (problem := self._wrong_version(told)) is not None:
            self._set_aside(replica, problem)

    async def _try(self, replica: Replica) -> None:
        """Take a replica back, if it is what it should be."""
        before = self._updates
        try:
            async with asyncio.timeout(self._probe_seconds):
                info, version = await self._recover(replica)
        except (EngineError, TimeoutError) as exc:
            problem = str(exc) or f"it did not connect within {self._probe_seconds:g} s"
            replica.failures += 1
            replica.due = _now() + self._patience(replica)
            if problem != replica.problem:
                log.warning("replica %s stays out of service: %s", replica.url, problem)
            replica.problem = replica.last_error = problem
            return
        if before != self._updates:
            replica.due = _now()  # weights were replaced meanwhile: all of it is to be asked again
            return
        self._take_back(replica, info, version)

    async def _recover(self, replica: Replica) -> tuple[EngineInfo, int | None]:
        told = await replica.told_version()
        if (problem := self._wrong_version(told)) is not None:
            replica.version = told
            raise EngineError(problem)
        if replica.paused and told is not None:
            # It has the weights, by its own word; the update ended for it before it could serve them.
            await replica.engine.resume(told)
            replica.paused = False
        return await self._reconnect(replica), told

    async def _reconnect(self, replica: Replica) -> EngineInfo:
        info = await replica.engine.connect()
        assert self._info is not None
        if (info.model, info.takes_ids) != (self._info.model, self._info.takes_ids):
            raise EngineError(f"it serves {info.model!r} (takes_ids={info.takes_ids}), not {self._info.model!r}")
        if info.max_context < self._info.max_context:
            raise EngineError(f"its context is {info.max_context} tokens, and {self._info.max_context} were promised")
        return info

    def _wrong_version(self, told: int | None) -> str | None:
        if told == self._version:
            return None
        if told is None:
            return (
                f"it does not say that it serves weights version {named(self._version)}, so it may have lost it in a restart; "
                "it is back with the next weight update"
            )
        return f"it serves weights version {named(told)}, the others {named(self._version)}"

    def _take_back(self, replica: Replica, info: EngineInfo, version: int | None) -> None:
        if replica.problem is not None:
            replica.epoch += 1
            log.info("replica %s is in service", replica.url)
        replica.info, replica.version, replica.problem = info, version, None
        replica.paused = False

    def _set_aside(self, replica: Replica, problem: str) -> None:
        if replica.problem is None:
            log.warning("replica %s is out of service: %s", replica.url, problem)
            replica.failures += 1
            replica.look_at(_now() + self._patience(replica))
        replica.problem = replica.last_error = problem

    def _patience(self, replica: Replica) -> float:
        """Seconds until a replica is tried again: none after the first failure, then ever more."""
        return min(self._retry_seconds * (2 ** min(replica.failures - 1, 16) - 1), self._retry_max_seconds)

    # --- in words -------------------------------------------------------------------------------------------------

    def _all_failed(self, what: str, failed: Mapping[Replica, EngineError]) -> EngineError:
        others = {r.url: r.problem for r in self._replicas if r.problem is not None}
        why = "; ".join(f"{url}: {text}" for url, text in {**others, **{r.url: e for r, e in failed.items()}}.items())
        kind = EngineError if failed and not any(e.retryable for e in failed.values()) else EngineUnavailable
        return kind(f"{what}: {why}")

    def _problems(self) -> str:
        return "; ".join(f"{r.url}: {r.problem}" for r in self._replicas if r.problem is not None)


def _now() -> float:
    return asyncio.get_running_loop().time()
