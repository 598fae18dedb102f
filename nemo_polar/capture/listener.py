# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The HTTP server under both listeners: what it refuses by itself is answered in the listener's own shape.

aiohttp answers a request that is no HTTP in plain text, quotes the offending line to the client, and logs it with a traceback;
that line may hold a secret, and a sandbox could fill the log. Here the answer is one sentence that quotes nothing, the log has
one short line, and the connection is closed, so that whatever follows cannot be taken for a request.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import http_exceptions, web
from aiohttp.http import RawRequestMessage

from nemo_polar.capture.connection import BoundedConnection, Connections
from nemo_polar.wire.fields import shown

log = logging.getLogger("nemo_polar.capture")

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
Refusal = Callable[[int, str, bytes], web.Response]
"""Makes the answer for a status, one sentence, and the bytes that what is refused may have begun with: whoever sent them has
told by his request line which shape he can read, if they hold one."""
_REQUEST_LINE = 1024


async def serve(
    served: web.Application | Handler, refuse: Refusal, connections: Connections, *, shutdown_timeout: float
) -> list[web.BaseRunner]:
    """Runners, set up: the first is the one to listen with; clean up all of them, in this order.

    ``served``: an application, or one handler of everything, which is spared the way through a router.
    """
    inner: list[web.BaseRunner] = []
    options: dict[str, Any] = {}
    if isinstance(served, web.Application):
        runner = web.AppRunner(served, access_log=None)
        await runner.setup()
        if runner.server is None:
            raise RuntimeError("aiohttp made no server of the application")
        inner.append(runner)
        options["request_factory"] = runner.server.request_factory
        handler: Handler = runner.server.request_handler
    else:
        handler = served

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        if request.headers.get("Transfer-Encoding", "chunked").strip().lower() != "chunked":
            return _closing(refuse(400, "The only transfer coding served is chunked.", _line(request)))
        try:
            return await handler(request)
        except web.HTTPException as exc:  # the router's own: no such route, method or expectation
            return _closing(refuse(exc.status, f"{exc.reason}: {request.method} {shown(request.path)}.", _line(request)))

    # handler_cancellation: a client that goes away must be noticed while its sample is still being drawn.
    server = _Server(handle, refuse, connections, handler_cancellation=True, **options)
    outer = web.ServerRunner(server, shutdown_timeout=shutdown_timeout)
    await outer.setup()
    return [outer, *inner]


def _line(request: web.BaseRequest) -> bytes:
    return f"{request.method} {request.raw_path} ".encode("utf-8", "replace")


def _closing(response: web.Response) -> web.Response:
    response.force_close()
    return response


class _Server(web.Server):
    """Makes a ``_Connection`` of each connection."""

    def __init__(
        self,
        handler: Handler,
        refuse: Refusal,
        connections: Connections,
        **options: Any,
    ) -> None:
        super().__init__(handler, **options)
        self.refuse = refuse
        self.connections_open = connections

    def __call__(self) -> web.RequestHandler:
        return _Connection(self)


class _Connection(BoundedConnection):
    """One connection."""

    __slots__ = ("_beginning", "_refuse")

    def __init__(self, server: _Server) -> None:
        super().__init__(server, server.connections_open, access_log=None)
        self._refuse = server.refuse
        self._beginning = b""
        """Of the bytes that came last."""

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
        self._beginning = data[:_REQUEST_LINE]
        super().data_received(data)
        # Of a body that is malformed half-way aiohttp tells only the request after it, which the one that reads the body would
        # keep waiting.
        if self._messages and not isinstance(self._messages[-1][0], RawRequestMessage):
            reading = [self._current_request.content] if self._current_request is not None else []
            for body in (*reading, *(payload for _, payload in self._messages)):
                if not body.is_eof():
                    body.set_exception(web.RequestPayloadError("the body is malformed"))

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to what is no request (400), or to a handler that failed (500)."""
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun, so it can only be cut off")
        if status < 500:
            log.debug("refused what is not HTTP: %s", type(exc).__name__)
            if isinstance(exc, http_exceptions.LineTooLong):
                return self.connections.answer(self.connections.header_too_large())
            self.connections.limits.refused["malformed"] += 1
            return _closing(self._refuse(status, f"This is not a valid HTTP/1.1 request: {_problem(exc)}.", self._beginning))
        log.error("unforeseen failure below the handler", exc_info=exc)
        return _closing(self._refuse(status, "The proxy failed on this request; its log says why.", self._beginning))

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """What aiohttp would log with a traceback."""
        exc = kw.get("exc_info")
        if isinstance(exc, web.RequestPayloadError | http_exceptions.HttpProcessingError):
            log.debug("gave up a request body: %s", type(exc).__name__)  # the client's doing, and answered already
        else:
            log.error(*args, **kw)


def _problem(exc: BaseException | None) -> str:
    """What is wrong, in words that quote nothing of the request."""
    if isinstance(exc, http_exceptions.InvalidURLError):
        return "its target is not a URL"
    if isinstance(exc, http_exceptions.BadStatusLine):
        return "its request line is malformed"
    if isinstance(exc, http_exceptions.InvalidHeader):
        return "a header is malformed"
    if isinstance(exc, http_exceptions.ContentEncodingError):
        return "its content encoding is not supported"
    if isinstance(exc, http_exceptions.HttpProcessingError):
        # "What is wrong:", then, on further lines, where: the part that quotes.
        return exc.message.partition("\n")[0].rstrip(" :.") or "it is malformed"
    return "it is malformed"
