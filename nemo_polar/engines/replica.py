# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What a replica set knows of one replica, and of one sample that is open on it. No decision is made here."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from nemo_polar.engines.base import Chunk, Engine, EngineInfo, TellsWeights
from nemo_polar.errors import EngineError, EngineTimeout

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """One replica, for people and for metrics."""

    url: str
    healthy: bool
    """It is given samples."""
    weights_version: int | None
    """None: it serves what it was started with, or does not say."""
    in_flight: int
    """Samples open on it."""
    sessions: int
    """Sessions whose calls go to it."""
    last_error: str | None
    """Why it is out of service, or was last."""


@dataclass(slots=True, eq=False)
class OpenSample:
    """One engine call. It is drawn on one replica, within one weights version."""

    epoch: int
    """The replica's, when the sample began: a failure of an earlier life says nothing about this one."""
    version: int | None
    """The set's weights version when it began."""
    drawn: bool = False
    """Tokens of it were passed on."""
    finished: bool = False
    cut: bool = False
    """No more is read: it ends as aborted."""
    _scope: asyncio.Timeout | None = None
    _left: asyncio.Event = field(default_factory=asyncio.Event)

    async def next(self, chunks: AsyncIterator[Chunk]) -> Chunk | None:
        """The next chunk; None at the end, or when the sample is cut."""
        if self.cut:
            return None
        try:
            async with asyncio.timeout(None) as self._scope:
                return await anext(chunks)
        except StopAsyncIteration:
            return None
        except TimeoutError:
            if not self.cut:
                raise
            return None
        finally:
            self._scope = None

    def end(self) -> None:
        """Cut it, in the middle of waiting for a chunk if need be."""
        if not self.cut and self._scope is not None:
            self._scope.reschedule(0.0)
        self.cut = True

    def leave(self) -> None:
        self._left.set()

    async def left(self) -> None:
        """Return when its reader has let go of it."""
        await self._left.wait()


@dataclass(slots=True, eq=False)
class Replica:
    """One engine of a set."""

    url: str
    engine: Engine
    info: EngineInfo | None = None
    """None until it was first connected."""
    problem: str | None = "not connected yet"
    """Why it is given no samples; None: it serves."""
    last_error: str | None = None
    version: int | None = None
    """The weights it serves, as far as is known."""
    paused: bool = False
    """It was paused, and nothing has happened since that may have cost it its weights."""
    says: bool = False
    """Asked for its weights, it has answered with a number."""
    tells: bool = False
    """Its samples were seen to end with the number of their weights."""
    failures: int = 0
    """Since a sample was last drawn on it to the end."""
    epoch: int = 0
    """How often it came into service."""
    refused_until: float = 0.0
    """Loop time. It said that it has too much to do; others are preferred until then."""
    due: float = 0.0
    """Loop time at which it is looked at next."""
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when ``due`` has changed."""
    samples: set[OpenSample] = field(default_factory=set)

    def look_at(self, due: float) -> None:
        """Have the watcher look at loop time ``due``."""
        self.due = due
        self.wake.set()

    async def told_version(self) -> int | None:
        """The weights it says it serves; None where it has no number for them, or cannot say.

        Raises:
            EngineError: it does not answer.
        """
        told = await self.engine.weights_version() if isinstance(self.engine, TellsWeights) else None
        self.says |= told is not None
        return told


async def each(
    replicas: Iterable[Replica], do: Callable[[Replica], Awaitable[_T]], seconds: float
) -> tuple[dict[Replica, _T], dict[Replica, EngineError]]:
    """``do`` for all of them at once, each within ``seconds``: what came of it, and what did not."""
    done: dict[Replica, _T] = {}
    failed: dict[Replica, EngineError] = {}

    async def one(replica: Replica) -> None:
        try:
            async with asyncio.timeout(seconds):
                done[replica] = await do(replica)
        except TimeoutError:
            failed[replica] = EngineTimeout(f"no answer within {seconds:g} s")
        except EngineError as exc:
            failed[replica] = exc

    await asyncio.gather(*map(one, replicas))
    return done, failed


def named(version: int | None) -> str:
    """A weights version in a message."""
    return "it was started with" if version is None else str(version)


def most_common(versions: Iterable[int | None]) -> int | None:
    """The version most of them are at; of several, the newest."""
    counts = Counter(versions)
    return max(counts, key=lambda version: (counts[version], -1 if version is None else version))
