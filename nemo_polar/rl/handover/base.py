# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""One hand-over of weights to a running engine: pause, load, drop the stale cache, prove, bump the version, resume.

It stands between the trainer and a proxy whose engine is a ``ReplicaSet`` (of one, where there is one engine): the set ends
samples that are still on their way when weights change, notices restarts, and keeps out whoever is not at the version.
Every replica has to load and to prove the weights, or the update is refused for all.

While weights are replaced the proxy begins no samples. Replicas serve again before the proof, as they must to be scored,
but nobody draws from them until the proxy lets go; only then do samples carry the new version. A process that dies in
between leaves engines whose version was not proven: the first act after a restart is a hand-over, not a rollout.

After a refusal the engine is brought back to the weights proven last, proves those again, and serves on under their version
(``HandoverError.resumed_at``). Where that fails, or nothing was proven yet, or ``restore`` is off, it stays paused: calls
wait until ``restore`` or another ``hand_over`` succeeds. So the folder of the weights proven last has to stay until the next
are proven.

Here nothing is loaded (a subclass does that) and nothing trained.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from nemo_polar.capture.proxy import CaptureProxy
from nemo_polar.engines.base import Engine, TellsWeights
from nemo_polar.engines.replicas import ReplicaSet
from nemo_polar.errors import ConfigError, EngineError, HandoverError, HandoverFailed, LostWeights, WrongWeights
from nemo_polar.rl.handover.canary import Canary, Measured, Proof, have_before, judge, measure, trained
from nemo_polar.rl.handover.settings import HandoverSettings
from nemo_polar.rl.handover.weights_file import verify

log = logging.getLogger("nemo_polar.rl")
_DRAIN_LOOK_SECONDS = 0.02


@runtime_checkable
class Administered(Protocol):
    """An engine client that reaches its server's own routes for weights."""

    async def admin(self, path: str, body: Any = None, *, timeout: float = 60.0) -> Any: ...


@dataclass(frozen=True, slots=True)
class HandoverReport:
    """What an accepted hand-over did."""

    version: int
    method: str
    proofs: Mapping[str, Proof]
    """By replica."""
    seconds: Mapping[str, float]
    """By phase: check, before, pause, load, resume, prove. The proxy was held from ``pause`` on."""

    @property
    def canary_diff(self) -> float:
        """The largest difference between trainer and any replica, scored or drawn, in nats."""
        return max(max(p.max_diff, p.drawn_diff) for p in self.proofs.values())

    @property
    def told_apart(self) -> bool:
        """The old weights would have been refused, on every replica."""
        return all(p.told_apart for p in self.proofs.values())


@dataclass(frozen=True, slots=True)
class _Proven:
    folder: Path
    version: int
    canaries: Sequence[Canary]
    told: Mapping[str, int | None]
    """What each engine called them then; one that was never given a number has none."""


class Handover(ABC):
    """See the module. One hand-over at a time; others wait for it."""

    def __init__(self, proxy: CaptureProxy, settings: HandoverSettings):
        """``proxy`` has been started.

        Raises:
            ConfigError: its engine is no ``ReplicaSet``.
        """
        if not isinstance(proxy.engine, ReplicaSet):
            raise ConfigError(
                "weights are handed over to a ReplicaSet, so that samples on their way are ended and restarts noticed: give "
                "the proxy ReplicaSet({'engine': engine}) for a single engine"
            )
        self.settings = settings
        self._proxy = proxy
        self._set: ReplicaSet = proxy.engine
        self._proven: _Proven | None = None
        self._turn = asyncio.Lock()

    @property
    def version(self) -> int | None:
        """The version proven last; None before the first proof."""
        return None if self._proven is None else self._proven.version

    @property
    def held(self) -> bool:
        """The proxy begins no samples: a hand-over is under way, or was refused and could not be undone."""
        return not self._proxy.gate.open.is_set()

    # --- a subclass's part --------------------------------------------------------------------------------------------

    @abstractmethod
    async def _load(self, name: str, engine: Engine, folder: Path, version: int) -> None:
        """Make one engine, which is paused, hold the weights in ``folder``, which is whole.

        Raises:
            HandoverFailed: it does not.
            EngineError: it cannot be reached, or refuses.
        """

    # --- the hand-over ------------------------------------------------------------------------------------------------

    async def hand_over(self, weights: Path | str, version: int, canaries: Sequence[Canary]) -> HandoverReport:
        """Make the engine serve ``weights``, a sealed folder (``weights_file.py``), as ``version``, and prove that it does.

        Raises:
            DamagedWeights: the folder is not whole. Nothing was touched.
            HandoverError: one of its kinds, refused; see the module for where that leaves the engine.
            ValueError: no canaries.
        """
        clock = _Clock()
        _require(canaries)
        async with self._turn:
            async with clock.phase("check"):
                folder = await asyncio.to_thread(_checked, weights, version)
            try:
                async with clock.phase("before"):  # an engine that is paused would not answer
                    before = None if self.held else await self._measure_served(canaries)
                async with clock.phase("pause"):
                    told = await self._pause()
                async with clock.phase("load"):
                    await self._load_all(folder, version)
                    await self._same_process(told)
                async with clock.phase("resume"):
                    await self._serve(version)
                async with clock.phase("prove"):
                    proofs = await self._prove(canaries, before)
                    self._proven = _Proven(folder, version, tuple(canaries), await self._told())
            except (HandoverError, EngineError) as exc:
                raise await self._refused(exc, version) from exc
            self._proxy.let_go(version)
        report = HandoverReport(version, self.settings.method, proofs, clock.seconds)
        log.info("weights version %d serves: canaries within %.2g nats, %.1f s", version, report.canary_diff, clock.total)
        return report

    async def adopt(self, weights: Path | str, version: int, canaries: Sequence[Canary]) -> Mapping[str, Proof]:
        """Prove that the engine serves ``weights`` (sealed) as ``version`` already, as after its start, and remember them as
        proven. Nothing is loaded or paused; ``version`` is what the proxy records.

        Raises:
            WrongWeights: it serves others, or the proxy records another version. It goes on as it was.
            DamagedWeights: the folder is not whole.
            HandoverFailed: it could not be asked.
        """
        _require(canaries)
        async with self._turn:
            folder = await asyncio.to_thread(_checked, weights, version)
            if self.held:
                raise HandoverFailed("the engine is paused, and proves nothing; restore or hand over weights first")
            if self._proxy.gate.weights_version != version:
                recorded = self._proxy.gate.weights_version
                raise WrongWeights(f"samples are recorded under weights version {recorded}, and {version} is to be adopted")
            try:
                proofs = await self._prove(canaries, None)
                self._proven = _Proven(folder, version, tuple(canaries), await self._told())
            except EngineError as exc:
                raise HandoverFailed(f"the weights served could not be proven: {exc}") from exc
            return proofs

    async def check(self) -> None:
        """Ask every replica whether it still serves what was proven last: cheap, for the time between two hand-overs.

        Raises:
            LostWeights: one does not. The engine was treated as after a refused update.
        """
        async with self._turn:
            if self._proven is None:
                return
            try:
                await self._not_lost()
            except (HandoverError, EngineError) as exc:
                raise await self._refused(exc, self._proven.version) from exc

    async def restore(self) -> None:
        """Bring the engine back to the weights proven last, prove them again, and serve.

        Raises:
            HandoverError: that failed too, or nothing was ever proven; the engine stays paused.
        """
        async with self._turn:
            try:
                await self._restore()
            except (HandoverError, EngineError) as exc:
                await self._stay_paused()
                raise _as_handover(exc) from exc

    # --- its steps ----------------------------------------------------------------------------------------------------

    async def _measure_served(self, canaries: Sequence[Canary]) -> dict[str, Measured]:
        """What the engines say under the weights to be replaced; it also puts the canaries' old keys into their caches."""
        await self._not_lost()
        found = {name: await measure(engine, canaries) for name, engine in self._set.engines.items()}
        if self._proven is not None and have_before(canaries):
            expected = trained(canaries, before=True)
            for name, measured in found.items():
                off = float(np.abs(measured.scores - expected).max())
                if not off <= self.settings.bound:
                    raise LostWeights(
                        f"{name}: before the update its scores are up to {off:.3g} nats from the trainer's for the weights it "
                        "should serve: it was restarted, or changed by somebody else"
                    )
        return found

    async def _not_lost(self) -> None:
        if self._proven is None:
            return
        for name, told in (await self._told()).items():
            if told != self._proven.told.get(name):
                raise LostWeights(
                    f"{name} says it serves the weights {_called(told)}, and said {_called(self._proven.told.get(name))} when "
                    f"version {self._proven.version} was proven: it was restarted, or changed by somebody else"
                )

    async def _told(self) -> dict[str, int | None]:
        """What each engine that can tell says it serves."""
        engines = self._set.engines.items()
        return {name: await engine.weights_version() for name, engine in engines if isinstance(engine, TellsWeights)}

    async def _pause(self) -> dict[str, int | None]:
        self._proxy.hold()
        if self.settings.in_flight == "finish":
            with suppress(TimeoutError):
                async with asyncio.timeout(self.settings.finish_seconds):
                    while any(replica.in_flight for replica in self._set.status()):  # noqa: ASYNC110 (the set has no event)
                        await asyncio.sleep(_DRAIN_LOOK_SECONDS)
        await self._set.pause(afresh=True)
        return await self._told()

    async def _load_all(self, folder: Path, version: int) -> None:
        for name, engine in self._set.engines.items():
            await self._load(name, engine, folder, version)

    async def _same_process(self, told: Mapping[str, int | None]) -> None:
        """Raise where an engine says something else than when it was paused: it was restarted under the load."""
        for name, now in (await self._told()).items():
            if now != told.get(name):
                raise LostWeights(
                    f"{name} said it served the weights {_called(told.get(name))} when it was paused, and says {_called(now)} "
                    "now: it was restarted while it loaded, or changed by somebody else"
                )

    async def _serve(self, version: int) -> None:
        """Drop the prefix caches and serve under ``version``, on all replicas. The proxy still holds."""
        await self._set.resume(version)
        late = [f"{r.url}: {r.last_error}" for r in self._set.status() if not r.healthy or r.weights_version != version]
        if late:
            raise HandoverFailed(f"not all replicas serve weights version {version}: {'; '.join(late)}")

    async def _prove(self, canaries: Sequence[Canary], before: Mapping[str, Measured] | None) -> dict[str, Proof]:
        proofs: dict[str, Proof] = {}
        for name, engine in self._set.engines.items():
            after = await measure(engine, canaries)
            was = None if before is None else before[name]
            try:
                proofs[name] = judge(canaries, was, after, bound=self.settings.bound, still=self.settings.still)
            except HandoverError as exc:
                raise type(exc)(f"{name}: {exc}") from exc
        return proofs

    # --- after a refusal ----------------------------------------------------------------------------------------------

    async def _refused(self, cause: HandoverError | EngineError, version: int) -> HandoverError:
        """The error to raise, once the engine is where it is to be."""
        error = _as_handover(cause)
        log.error("weights version %d is refused: %s: %s", version, type(error).__name__, error)
        try:
            if self.settings.restore and self._proven is not None:
                await self._restore()
                error.resumed_at = self._proven.version
        except (HandoverError, EngineError) as exc:
            log.error("the engine could not be brought back either, and stays paused: %s", exc)
            error.add_note(f"nor could the weights proven last be restored: {type(exc).__name__}: {exc}")
        if error.resumed_at is None:
            await self._stay_paused()
        return error

    async def _restore(self) -> None:
        if self._proven is None:
            raise HandoverFailed("no weights were proven yet, so there are none to go back to")
        folder, version, canaries = self._proven.folder, self._proven.version, self._proven.canaries
        await asyncio.to_thread(_checked, folder, version)
        await self._pause()
        await self._load_all(folder, version)
        await self._serve(version)
        await self._prove(canaries, None)
        self._proven = _Proven(folder, version, canaries, await self._told())
        self._proxy.let_go(version)
        log.warning("the engine is back at weights version %d", version)

    async def _stay_paused(self) -> None:
        self._proxy.hold()
        with suppress(EngineError):  # one that is gone draws nothing either
            await self._set.pause()


class _Clock:
    """Seconds by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @asynccontextmanager
    async def phase(self, name: str) -> AsyncIterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = time.monotonic() - began

    @property
    def total(self) -> float:
        return sum(self.seconds.values())


def _require(canaries: Sequence[Canary]) -> None:
    if not canaries:
        raise ValueError("a hand-over without canaries proves nothing; give at least one")


def _checked(weights: Path | str, version: int) -> Path:
    """The folder, absolute, once it is known to be whole and of that version."""
    folder = Path(weights).resolve()
    manifest = verify(folder)
    if manifest.version not in (None, version):
        raise WrongWeights(f"{folder} holds weights version {manifest.version}, and {version} was to be handed over")
    return folder


def _called(version: int | None) -> str:
    return "it was started with" if version is None else f"of version {version}"


def _as_handover(exc: HandoverError | EngineError) -> HandoverError:
    return exc if isinstance(exc, HandoverError) else HandoverFailed(f"{type(exc).__name__}: {exc}")


def administered(name: str, engine: Engine) -> Administered:
    """The engine, as one whose server's own routes can be called.

    Raises:
        HandoverFailed: it is none.
    """
    if not isinstance(engine, Administered):
        raise HandoverFailed(f"{name}: an engine of kind {engine.name!r} has no routes to load weights by")
    return engine
