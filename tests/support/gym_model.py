# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A stand-in for Gym's ``vllm_model`` server, so that its client is tested where Gym is not installed.

It does to requests and answers what Gym 0.4.0 and 0.7.0 were seen to do (tests/gym/live holds it to that): unknown fields are
refused, ``metadata`` carries the rest, vLLM's errors become HTTP 500, an overflow an empty reply.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from nemo_polar.engines.gym_model import GymModelEngine
from nemo_polar.engines.script import ScriptedOptions
from nemo_polar.engines.scripted_core import ScriptedCore
from nemo_polar.engines.scripted_openai_routes import ScriptedOpenAIRoutes
from nemo_polar.engines.scripted_server import ScriptedServer
from nemo_polar.engines.serve import LocalServer
from tests.support.tiny import tiny_codec

_FIELDS = frozenset(
    (
        "model",
        "messages",
        "tools",
        "tool_choice",
        "temperature",
        "top_p",
        "max_tokens",
        "metadata",
        "seed",
        "presence_penalty",
        "frequency_penalty",
    )
)
_EMPTY = {
    "id": "chtcmpl-123",
    "object": "chat.completion",
    "created": 0,
    "model": "policy",
    "choices": [{"index": 0, "finish_reason": "length", "message": {"role": "assistant", "content": None}}],
}


class FakeGymModelServer:
    """``new``: as 0.7.0, which takes vLLM's own ids where they are; 0.4.0 asks /tokenize all the same. ``pinned``: 0.7.0's
    ``sampling_overrides``."""

    def __init__(self, base_urls: list[str], *, new: bool = True, token_ids: bool = True, pinned: dict[str, Any] | None = None):
        self._base_urls, self._new, self._token_ids, self._pinned = base_urls, new, token_ids, pinned or {}
        self.sessions: list[str] = []
        """The cookie of each request; empty: it had none."""
        self.app = web.Application()
        self.app.router.add_post("/v1/chat/completions", self._chat)
        self._http: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()

    async def _chat(self, http: web.Request) -> web.Response:
        body = await http.json()
        unknown = body.keys() - _FIELDS
        if unknown:
            return web.json_response(
                {"detail": [{"loc": ["body", *unknown], "msg": "Extra inputs are not permitted"}]}, status=422
            )
        self.sessions.append(http.cookies.get("polar_model", ""))
        session = self.sessions[-1] or str(len(self.sessions))
        base = self._base_urls[int(session) % len(self._base_urls)]
        response = await self._forwarded(base, body)
        response.set_cookie("polar_model", session)
        return response

    async def _forwarded(self, base: str, body: dict[str, Any]) -> web.Response:
        sent = json.loads(body.get("metadata", {}).get("extra_body", "{}")) | body | self._pinned
        if self._token_ids:
            sent |= {"logprobs": True, "top_logprobs": 0, "return_tokens_as_token_ids": True}
        status, answer = await self._post(base + "/v1/chat/completions", sent)
        if status == 400 and ("context length" in answer or "max_tokens" in answer):
            return web.json_response(_EMPTY)
        if status != 200:
            return web.json_response(f"Hit an exception in policy_model calling an inner server: {answer.encode()}", status=500)
        whole = json.loads(answer)
        if self._token_ids:
            await self._with_ids(base, sent, whole)
        return web.json_response(whole)

    async def _with_ids(self, base: str, sent: dict[str, Any], whole: dict[str, Any]) -> None:
        (choice,) = whole["choices"]
        content = choice.pop("logprobs")["content"]
        prompt = whole.get("prompt_token_ids") if self._new else None
        if prompt is None:
            again = {key: sent[key] for key in ("model", "messages", "tools") if key in sent}
            prompt = json.loads((await self._post(base + "/tokenize", again))[1])["tokens"]
        choice["message"] |= {
            "prompt_token_ids": prompt,
            "generation_token_ids": [int(entry["token"].removeprefix("token_id:")) for entry in content],
            "generation_log_probs": [entry["logprob"] for entry in content],
        }
        if self._new:
            whole.pop("prompt_token_ids"), choice.pop("token_ids")

    async def _post(self, url: str, body: Any) -> tuple[int, str]:
        self._http = self._http or aiohttp.ClientSession()
        async with self._http.post(url, json=body) as answer:
            return answer.status, await answer.text()


@asynccontextmanager
async def scripted_vllm(
    *replies: Any, script: Any = None, log: Path | None = None, tokenize: Any = None, **options: Any
) -> AsyncIterator[tuple[ScriptedOpenAIRoutes, str]]:
    """A scripted vLLM that takes ids and messages, with the tiny codec."""
    core = ScriptedCore(
        script or replies or None, log=log, options=ScriptedOptions(**{"model": "policy", "vocab": 512} | options)
    )
    server = ScriptedServer(core)
    routes = ScriptedOpenAIRoutes(server, tiny_codec(), tokenize_codec=tokenize)
    async with LocalServer(server.app) as listening:
        yield routes, listening.url
    core.close()


@asynccontextmanager
async def gym_engine(
    *urls: str, engine: dict[str, Any] | None = None, **server: Any
) -> AsyncIterator[tuple[FakeGymModelServer, GymModelEngine]]:
    """The stand-in before ``urls``, and a client of it."""
    fake = FakeGymModelServer(list(urls), **server)
    async with LocalServer(fake.app) as listening:
        client = GymModelEngine(listening.url, **{"max_context": 4096, "probe": False} | (engine or {}))
        try:
            yield fake, client
        finally:
            await client.close()
            await fake.close()
