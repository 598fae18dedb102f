# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""One dialect on a port, with scripted answers, for the vendors' own clients to talk to. No proxy, no engine, no tokens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from nemo_polar.errors import CallError, NotFound, Unauthorized
from nemo_polar.types import ModelCall, Reply
from nemo_polar.wire.base import Dialect
from nemo_polar.wire.recognise import match
from tests.support.openai_chat import deltas

SECRET = "s3cret"
MODELS = ["polar", "org/name"]


@dataclass
class ScriptedServer:
    """Answers with scripted replies (the last one again and again), or one scripted error, through the dialect."""

    dialect: Dialect
    answers: Sequence[Reply]
    error: CallError | None = None
    error_after: int | None = None
    """Send so many deltas, then the error within the stream."""
    calls: list[ModelCall] = field(default_factory=list)
    retries: list[bool] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def answer(self) -> Reply:
        """The reply to the latest call, or to the first one before there is any."""
        return self.answers[min(max(len(self.calls), 1), len(self.answers)) - 1]

    @answer.setter
    def answer(self, reply: Reply) -> None:
        self.answers = [reply]

    async def handle(self, http: web.Request) -> web.StreamResponse:
        self.retries.append(self.dialect.is_retry(http.headers))
        try:
            return await self.respond(http)
        except CallError as exc:
            status, headers, body = self.dialect.error(exc)
            return web.Response(status=status, headers=headers, body=body, content_type="application/json")

    async def respond(self, http: web.Request) -> web.StreamResponse:
        found = match([self.dialect], http.method, http.path, http.headers, http.query)
        if found is None:
            raise NotFound(f"There is no {http.path}.")
        if self.dialect.secret(http.headers, http.query) != SECRET:
            raise Unauthorized("The API key is not valid.")
        route = found[1]
        if route.kind == "models":
            return _json(self.dialect.models(MODELS, 5, 4096))
        if route.kind == "model":
            return _json(self.dialect.model(route.model or "", 5, 4096))
        call = self.dialect.parse(await http.read(), route).call
        self.calls.append(call)
        if self.error is not None and self.error_after is None:
            raise self.error
        if route.kind == "count_tokens":
            return _json(self.dialect.count(self.answer.usage.prompt_tokens))
        return await self.stream(http, call) if call.stream else _json(self.dialect.reply(call, self.answer))

    async def stream(self, http: web.Request, call: ModelCall) -> web.StreamResponse:
        answer = self.answer
        encoder = self.dialect.stream(call, answer.id, answer.created, answer.model, answer.usage.prompt_tokens)
        response = web.StreamResponse(headers={"Content-Type": encoder.content_type})
        await response.prepare(http)
        first = encoder.keep_alive()  # made before what starts the stream, as the proxy does, and sent after it
        await response.write(encoder.start() + first)
        for i, delta in enumerate(deltas(answer.message)):
            if self.error is not None and i == self.error_after:
                await response.write(encoder.error(self.error))
                return response
            await response.write(encoder.delta(delta))
            await response.write(encoder.keep_alive())
        await response.write(encoder.finish(answer))
        return response


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")


@asynccontextmanager
async def serving(dialect: Dialect, answer: Reply) -> AsyncIterator[ScriptedServer]:
    """A server of ``dialect`` on 127.0.0.1 which gives ``answer`` until it is told another."""
    server = ScriptedServer(dialect, [answer])
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        server.port = runner.addresses[0][1]
        yield server
    finally:
        await runner.cleanup()
