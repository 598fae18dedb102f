# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A capture proxy with a scripted engine, a journal and an engine-side log, and a client that plays a harness."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from nemo_polar.capture.journal import Journal, JournalReader
from nemo_polar.capture.proxy import CaptureProxy
from nemo_polar.capture.sessions import SessionHandle
from nemo_polar.engines.base import Engine
from nemo_polar.engines.log import read_engine_log
from nemo_polar.engines.scripted import ScriptedEngine
from nemo_polar.settings import CaptureSettings
from nemo_polar.tokens.base import Codec
from nemo_polar.trajectory.store import ENGINE_LOG, JOURNAL
from nemo_polar.types import Turn
from tests.support.tiny import tiny_codec

TOOLS = [{"type": "function", "function": {"name": "write", "description": "Write.", "parameters": {"type": "object"}}}]


@dataclass
class Rig:
    """A running proxy and what is around it."""

    proxy: CaptureProxy
    engine: Any
    codec: Codec
    folder: Path
    http: aiohttp.ClientSession
    handles: dict[str, SessionHandle] = field(default_factory=dict)

    async def session(self, name: str = "r", **kwargs: Any) -> Client:
        """A harness's view of a new session."""
        kwargs = {"rollout_id": name, "task_id": "t", "group_id": "g", **kwargs}
        handle = await self.proxy.open_session(**kwargs)
        self.handles[name] = handle
        return Client(self, handle.secret, handle.id)

    def turns(self, session_id: str) -> list[Turn]:
        """As the journal has them."""
        with JournalReader(self.folder / JOURNAL) as reader:
            return reader.turns(session_id)

    async def delivered(self, session_id: str) -> list[Turn]:
        """The turns, once the journal has noted that the client has them all; that is a moment after the client does."""
        for _ in range(100):
            turns = self.turns(session_id)
            if all(t.delivered for t in turns):
                return turns
            await asyncio.sleep(0.02)
        raise AssertionError(f"not noted as delivered: {[t.id for t in turns if not t.delivered]}")

    def engine_log(self):
        return [c for c in read_engine_log(self.folder / ENGINE_LOG) if not c.request_id.startswith("polar-probe")]

    def ids(self, text: str, *, end: bool = True) -> list[int]:
        """Text as the model would sample it."""
        tokenizer = self.codec.tokenizer  # type: ignore[attr-defined]
        return [*tokenizer.encode(text), *([tokenizer.token_id("<|im_end|>")] if end else [])]

    def call(self, name: str = "write", **arguments: Any) -> list[int]:
        """A tool call as the model would sample it."""
        body = json.dumps({"name": name, "arguments": arguments})
        return self.ids(f"<tool_call>\n{body}\n</tool_call>")


@dataclass
class Client:
    """Speaks Chat Completions with one session's secret."""

    rig: Rig
    secret: str
    session_id: str

    def body(self, messages: list[dict[str, Any]], **kwargs: Any) -> dict[str, Any]:
        return {"model": "polar", "messages": messages, "tools": TOOLS, **kwargs}

    async def post(self, body: Any, *, path: str = "/v1/chat/completions", headers: dict[str, str] | None = None):
        """Status, headers and parsed JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.rig.http.post(
            self.rig.proxy.url + path, data=data, headers={"Authorization": f"Bearer {self.secret}", **(headers or {})}
        ) as response:
            raw = await response.read()
            return response.status, response.headers, (json.loads(raw) if raw else None)

    async def ask(
        self, messages: list[dict[str, Any]], *, headers: dict[str, str] | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """The reply to ``messages``; fails the test on any other status than 200."""
        status, _, answer = await self.post(self.body(messages, **kwargs), headers=headers)
        assert status == 200, answer
        return answer

    async def message(self, messages: list[dict[str, Any]], **kwargs: Any) -> dict[str, Any]:
        """The assistant message of the reply."""
        return (await self.ask(messages, **kwargs))["choices"][0]["message"]

    def stream(self, messages: list[dict[str, Any]], **kwargs: Any):
        """An open streamed response."""
        return self.rig.http.post(
            self.rig.proxy.url + "/v1/chat/completions",
            json=self.body(messages, stream=True, **kwargs),
            headers={"Authorization": f"Bearer {self.secret}"},
        )


def joined(raw: bytes) -> dict[str, Any]:
    """A Chat Completions stream put together: content, reasoning, calls, finish reason."""
    out: dict[str, Any] = {"content": "", "reasoning": "", "calls": [], "finish": None, "done": False, "id": None}
    for line in raw.decode().splitlines():
        if line == "data: [DONE]":
            out["done"] = True
        elif line.startswith("data: "):
            chunk = json.loads(line[6:])
            if "error" in chunk:
                out["error"] = chunk["error"]
                continue
            out["id"] = chunk["id"]
            for choice in chunk["choices"]:
                delta = choice["delta"]
                out["content"] += delta.get("content") or ""
                out["reasoning"] += delta.get("reasoning_content") or ""
                out["calls"] += delta.get("tool_calls") or []
                out["finish"] = choice.get("finish_reason") or out["finish"]
    return out


@asynccontextmanager
async def running(
    folder: Path,
    script: Any = None,
    *,
    codec: Codec | None = None,
    engine: Engine | None = None,
    clock: Callable[[], float] = time.time,
    monotonic: Callable[[], float] = time.monotonic,
    **settings: Any,
) -> AsyncGenerator[Rig, None]:
    """A rig; ``settings`` are the proxy's, those that begin with ``engine_`` and are not its own the scripted engine's."""
    codec = codec or tiny_codec()
    own = {k: settings.pop(k) for k in list(settings) if k in CaptureSettings.model_fields}
    engine = engine or ScriptedEngine(script, log=folder / ENGINE_LOG, **{"vocab": 259, "reply_tokens": (4, 12), **settings})
    own = {"keep_alive_seconds": 0.2, "shutdown_seconds": 0.2, "grace_seconds": 0.3, **own}
    proxy = CaptureProxy(
        CaptureSettings(**own),
        codec=codec,
        engine=engine,
        journal=Journal(folder / JOURNAL),
        clock=clock,
        monotonic=monotonic,
    )
    await proxy.start()
    try:
        async with aiohttp.ClientSession() as http:
            yield Rig(proxy, engine, codec, folder, http)
    finally:
        await proxy.stop()
