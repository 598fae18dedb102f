# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The kinds of token-in/token-out server, for tests that hold for all of them: client, scripted server, and raw events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nemo_polar.engines.script import ScriptedOptions
from nemo_polar.engines.scripted_core import ScriptedCore
from nemo_polar.engines.scripted_http import ScriptedHttp
from nemo_polar.engines.scripted_server import ScriptedServer
from nemo_polar.engines.scripted_sglang_server import INPUT_MARGIN, ScriptedSglangServer
from nemo_polar.engines.serve import LocalServer
from nemo_polar.engines.sglang import SglangEngine
from nemo_polar.engines.token_engine import TokenEngine
from nemo_polar.engines.vllm import VllmEngine
from tests.support.engines import PROMPT, Drawn, ask, collect

Logprobs = Sequence[Any]


@dataclass(frozen=True)
class Kind:
    """One kind of server."""

    name: str
    engine: type[TokenEngine]
    server: Callable[[ScriptedCore], ScriptedHttp]
    command: tuple[str, ...]
    """The scripted server as a process: module and arguments."""
    event: Callable[..., bytes]
    """``event(ids, logprobs, finish=None, before=[])``; ``before`` are the ids (all at -1.0) that earlier events had."""
    error: bytes
    """An event that says "boom" with status 500."""
    server_id: str
    """Prefix of the server's own request ids."""
    input_margin: int
    """How much shorter than the context a prompt has to be."""
    logprobs_remedy: str
    weights_remedy: str

    def __str__(self) -> str:
        return self.name


def _vllm_event(ids: list[Any], logprobs: Logprobs | None, finish: str | None = None, before: Sequence[int] = ()) -> bytes:
    content = None
    if logprobs is not None:
        content = {"content": [{"token_id": i, "logprob": x} for i, x in zip(ids, logprobs, strict=False)]}
    choice = {"index": 0, "token_ids": ids, "logprobs": content, "finish_reason": finish}
    return sse({"request_id": "generate-tokens-r1", "choices": [choice]})


def sglang_event(
    ids: list[Any], logprobs: Logprobs, finish: Any = None, before: Sequence[int] = (), *, repeats: bool = True, **meta: Any
) -> bytes:
    """``repeats``: with the ids of earlier events. ``meta`` is added to the metadata."""
    new = [[x, i, None] for i, x in zip(ids, logprobs, strict=True)]
    triples = [*([-1.0, i, None] for i in before), *new] if repeats else new
    total = len(before) + len(new)
    reason = {"type": finish} if isinstance(finish, str) else finish
    counts = {"prompt_tokens": len(PROMPT), "completion_tokens": total, "output_token_logprobs_length": total}
    raw = {"id": "r1", "finish_reason": reason, "weight_version": "default", "output_token_logprobs": triples, **counts, **meta}
    return sse({"text": "", "output_ids": [t[1] for t in triples], "meta_info": raw})


def sse(raw: Any) -> bytes:
    return b"data: " + json.dumps(raw).encode() + b"\n\n"


VLLM = Kind(
    name="vllm",
    engine=VllmEngine,
    server=ScriptedServer,
    command=("nemo_polar.engines.scripted_server",),
    event=_vllm_event,
    error=sse({"error": {"message": "boom", "code": 500}}),
    server_id="generate-tokens-",
    input_margin=0,
    logprobs_remedy="--logprobs-mode processed_logprobs",
    weights_remedy="VLLM_SERVER_DEV_MODE",
)
SGLANG = Kind(
    name="sglang",
    engine=SglangEngine,
    server=ScriptedSglangServer,
    command=("nemo_polar.engines.scripted_sglang_server",),
    event=sglang_event,
    error=sse({"error": {"message": "boom", "type": "invalid_request_error", "code": 500, "retryable": False}}),
    server_id="",
    input_margin=INPUT_MARGIN,
    logprobs_remedy="without SGLANG_RETURN_ORIGINAL_LOGPROB",
    weights_remedy="admin-api-key",
)
SGLANG_INCREMENTAL = Kind(
    **{
        **SGLANG.__dict__,
        "name": "sglang-incremental",
        "server": partial(ScriptedSglangServer, incremental=True),
        "command": (*SGLANG.command, "--incremental-streaming-output"),
        "event": partial(sglang_event, repeats=False),
    }
)
KINDS = (VLLM, SGLANG, SGLANG_INCREMENTAL)
every_kind = pytest.mark.parametrize("kind", KINDS, ids=str)


@asynccontextmanager
async def served(
    kind: Kind, script: Any = None, *, log: Path | None = None, client: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[tuple[Any, Any]]:
    """(scripted server on a real socket of this loop, engine that talks to it); ``options`` are ``ScriptedOptions``."""
    server = kind.server(ScriptedCore(script, log=log, options=ScriptedOptions(**options)))
    async with LocalServer(server.app) as listening, connected(kind, listening.url, **(client or {})) as engine:
        yield server, engine
    server.core.close()


@asynccontextmanager
async def connected(kind: Kind, url: str, **options: Any) -> AsyncIterator[Any]:
    """A client, closed in the end."""
    engine = kind.engine(url, **options)
    try:
        yield engine
    finally:
        await engine.close()


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
DONE = b"data: [DONE]\n\n"


@asynccontextmanager
async def raw_server(*writes: bytes, hold: bool = False) -> AsyncIterator[str]:
    """A server that answers any request with these bytes, in so many writes."""
    connections: set[asyncio.Task[Any]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
        await reader.readexactly(length)
        for data in writes:
            writer.write(data)
            await writer.drain()
            await asyncio.sleep(0.005)
        if hold:
            await reader.read()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await asyncio.gather(*connections, return_exceptions=True)


async def from_raw(kind: Kind, *writes: bytes, hold: bool = False, **options: Any) -> Drawn:
    """The sample that a client reads from a stream of these bytes, sent after the HTTP head."""
    async with raw_server(HEAD + writes[0], *writes[1:], hold=hold) as url, connected(kind, url, **options) as engine:
        return await collect(engine, ask())
