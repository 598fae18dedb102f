# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Replica sets of scripted engines that can be lost, restarted and made stubborn, and a check of which weights drew what."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from nemo_polar.engines.base import Chunk, EngineInfo, GenerateRequest
from nemo_polar.engines.hash_policy import HashPolicy
from nemo_polar.engines.replicas import ReplicaSet
from nemo_polar.engines.script import ScriptedReply
from nemo_polar.engines.scripted import ScriptedEngine
from nemo_polar.errors import EngineError, EngineUnavailable
from nemo_polar.types import SamplingParams, as_ids
from tests.support.engines import Drawn

QUICK: dict[str, Any] = {
    "check_seconds": 0.03,
    "probe_seconds": 2.0,
    "update_seconds": 1.0,
    "retry_seconds": 0.02,
    "retry_max_seconds": 0.05,
}


class Flaky(ScriptedEngine):
    """In this process, without a socket: ``down`` refuses everything, ``broken`` refuses what it names."""

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self.down = False
        self.broken: set[str] = set()
        self.asked: list[str] = []
        """Session ids, in the order of their calls."""
        self.connects = 0
        self.closed = False

    def _answer(self, what: str) -> None:
        if self.down:
            raise EngineUnavailable("nobody is there")
        if what in self.broken:
            raise EngineError(f"{what} does not work")

    def restart(self) -> None:
        """What a new process knows of its weights: nothing."""
        self.core.set_version(0)
        self.core.resume()
        self.down = False

    async def connect(self) -> EngineInfo:
        self.connects += 1
        self._answer("connect")
        return await super().connect()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        self.asked.append(request.session_id)
        self._answer("generate")
        async with contextlib.aclosing(super().generate(request)) as chunks:
            async for chunk in chunks:
                if self.down:
                    raise EngineUnavailable("lost in mid-answer")
                yield chunk

    async def score(self, token_ids: Any) -> Any:
        self._answer("score")
        return await super().score(token_ids)

    async def health(self) -> None:
        self._answer("health")

    async def weights_version(self) -> int | None:
        self._answer("weights_version")
        return await super().weights_version()

    async def pause(self) -> None:
        self._answer("pause")
        await super().pause()

    async def resume(self, weights_version: int) -> None:
        self._answer("resume")
        await super().resume(weights_version)

    async def close(self) -> None:
        self.closed = True
        await super().close()


@contextlib.asynccontextmanager
async def replica_set(*engines: Any, connect: bool = True, **options: Any) -> AsyncIterator[ReplicaSet]:
    """A set of replicas called ``a``, ``b``, ..., connected, with short times; closed in the end."""
    replicas = ReplicaSet(dict(zip("abcdef", engines, strict=False)), **{**QUICK, **options})
    try:
        if connect:
            await replicas.connect()
        yield replicas
    finally:
        await replicas.close()


def of(session_id: str, request_id: str = "", prompt: Any = (11, 12, 13), max_tokens: int = 8) -> GenerateRequest:
    """A request of that session."""
    return GenerateRequest(request_id or f"of-{session_id}", as_ids(prompt), SamplingParams(), (), max_tokens, session_id)


def slow(tokens: int = 2000, delay: float = 0.005) -> ScriptedReply:
    """A reply that is still being drawn when something happens."""
    return ScriptedReply(token_ids=[1 + at % 250 for at in range(tokens)], token_delay=delay)


def version_of(policy: HashPolicy, prompt: Any, drawn: Drawn | Any, versions: range = range(10)) -> set[int]:
    """The weights versions that give these log-probabilities to all of these tokens: one, if they come from one."""
    return {version for version in versions if _fits(policy, prompt, drawn, version)}


def _fits(policy: HashPolicy, prompt: Any, drawn: Drawn | Any, version: int) -> bool:
    prefix = policy.prefix(as_ids(prompt), version)
    for token_id, logprob in zip(drawn.token_ids, drawn.logprobs, strict=True):
        if not math.isclose(policy.distribution(prefix).logprob(int(token_id)), logprob, abs_tol=1e-5):
            return False
        prefix.push(int(token_id))
    return True


async def served(replicas: ReplicaSet, *healthy: bool) -> None:
    """Wait until each replica is, or is not, in service."""
    async with asyncio.timeout(3):
        while tuple(s.healthy for s in replicas.status()) != healthy:  # noqa: ASYNC110 (it has no event)
            await asyncio.sleep(0.005)
