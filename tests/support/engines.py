# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Shared by the engine tests: requests, whole samples, servers in this loop and in processes of their own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nemo_polar.engines.base import Chunk, Engine, GenerateRequest
from nemo_polar.engines.script import ScriptedOptions
from nemo_polar.engines.scripted_core import ScriptedCore
from nemo_polar.engines.scripted_server import ScriptedServer
from nemo_polar.engines.serve import LocalServer
from nemo_polar.types import FinishReason, SamplingParams, as_ids

PROMPT = (11, 12, 13, 14)


def ask(
    request_id: str = "r1", prompt: Any = PROMPT, *, max_tokens: int = 16, stop: tuple[int, ...] = (), **sampling: Any
) -> GenerateRequest:
    """A request with the usual values filled in."""
    return GenerateRequest(request_id, as_ids(prompt), SamplingParams(**sampling), stop, max_tokens)


@dataclass
class Drawn:
    """One whole sample."""

    token_ids: list[int]
    logprobs: np.ndarray
    finish_reason: FinishReason | None
    chunks: list[Chunk]


async def collect(engine: Engine, request: GenerateRequest) -> Drawn:
    """Read a sample to its end."""
    chunks = [chunk async for chunk in engine.generate(request)]
    ids = [i for chunk in chunks for i in chunk.token_ids.tolist()]
    logprobs = np.concatenate([chunk.logprobs for chunk in chunks]) if chunks else np.zeros(0, np.float32)
    assert all(chunk.finish_reason is None for chunk in chunks[:-1])
    return Drawn(ids, logprobs, chunks[-1].finish_reason if chunks else None, chunks)


@contextlib.asynccontextmanager
async def scripted_server(
    script: Any = None, *, log: Path | None = None, **options: Any
) -> AsyncIterator[tuple[ScriptedServer, str]]:
    """A scripted server on a real socket of this loop."""
    server = ScriptedServer(ScriptedCore(script, log=log, options=ScriptedOptions(**options)))
    async with LocalServer(server.app) as listening:
        yield server, listening.url
    server.core.close()


@contextlib.asynccontextmanager
async def process(module: str, *args: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """``python -m module args`` and the URL it prints; killed at the end, if it still runs."""
    child = await asyncio.create_subprocess_exec(sys.executable, "-m", module, *args, stdout=asyncio.subprocess.PIPE)
    try:
        assert child.stdout is not None
        line = await asyncio.wait_for(child.stdout.readline(), 30)
        yield child, json.loads(line)["url"]
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


async def until(condition: Any, seconds: float = 3.0) -> None:
    """Wait for ``condition()`` to be true; fail when it isn't in time."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 (what is waited for has no event)
            await asyncio.sleep(0.01)
