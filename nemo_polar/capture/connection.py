# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What one connection may cost: how long its header may take and how large it may be, how long its client may leave bytes
lying, how many connections there may be.

Whoever can reach a listener can do all of this without a secret, so none of it is the business of a call. An answer that can
still be given is given, in the listener's own shape; then, or where none can, the connection is closed.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, cast

from aiohttp import web

from nemo_polar.capture.limits import Limits
from nemo_polar.errors import CallError, HeaderTooLarge, TooSlow, Unavailable
from nemo_polar.settings import CaptureSettings

log = logging.getLogger("nemo_polar.capture")

Shape = Callable[[CallError], tuple[int, Mapping[str, str], bytes]]
"""Status, extra headers and JSON body of an error, as the clients of a listener know it."""
_SPARE_FILES = 256
"""Kept from connections: the journal, pipes of sandboxes, libraries."""
_LINGER_SECONDS = 10.0
"""At most, for a client to end the body of a request that was refused: closed at once, it might not see the answer."""


def connections_allowed(wanted: int) -> int:
    """``wanted``, or fewer where this process may not open so many files: two for each connection, as most have an engine call.

    Raises the process's own limit on open files first, as far as it may.
    """
    needed = 2 * wanted + _SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    allowed = max(1, (soft - _SPARE_FILES) // 2)
    log.warning("capture.max_connections is %d, but with %d open files at most (ulimit -n) it is %d", wanted, soft, allowed)
    return allowed


class Connections:
    """The open connections of one listener."""

    def __init__(self, settings: CaptureSettings, limits: Limits, shape: Shape) -> None:
        self.settings = settings
        self.limits = limits
        self.shape = shape
        self.most = connections_allowed(settings.max_connections)
        self.open: set[BoundedConnection] = set()

    def options(self) -> dict[str, Any]:
        """What aiohttp bounds by itself."""
        settings = self.settings
        return {
            "keepalive_timeout": settings.connection_idle_seconds,
            "lingering_time": min(_LINGER_SECONDS, settings.read_seconds),
            "max_line_size": settings.max_header_bytes,
            "max_field_size": settings.max_header_bytes,
        }

    def answer(self, error: CallError) -> web.Response:
        """An error as the last response of its connection."""
        status, headers, body = self.shape(error)
        response = web.Response(status=status, headers=dict(headers), body=body, content_type="application/json")
        response.force_close()
        return response

    def header_too_large(self) -> CallError:
        most = self.settings.max_header_bytes
        error = HeaderTooLarge(f"The request's header is over the limit of {most} bytes (capture.max_header_bytes).")
        return self.limits.refuse("max_header_bytes", error)

    def bytes_of(self, error: CallError) -> bytes:
        """The same, where there is no request that it could be the response to."""
        status, headers, body = self.shape(error)
        own = {"Content-Type": "application/json", "Content-Length": len(body), "Connection": "close"}
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *(f"{k}: {v}" for k, v in {**headers, **own}.items())]
        return "\r\n".join([*lines, "", ""]).encode() + body

    def sweep(self) -> None:
        """Cut connections that were closed a while ago, and whose client still has not taken the last bytes."""
        now = asyncio.get_running_loop().time()
        for connection in list(self.open):
            connection.cut_if_stuck(now)

    def abort(self) -> None:
        """Cut all that are still open, whatever lies ready for their clients."""
        for connection in list(self.open):
            connection.abort()


class BoundedConnection(web.RequestHandler):
    """One connection. Nothing here costs a request anything while it and its client are as they should be."""

    __slots__ = ("_closing_since", "_header_bytes", "_header_timer", "_wire", "connections")

    def __init__(self, server: web.Server, connections: Connections, **options: Any) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), **connections.options(), **options)
        self.connections = connections
        self._wire: asyncio.Transport | None = None
        """The transport, also after aiohttp has let go of it."""
        self._closing_since: float | None = None
        self._header_timer: asyncio.TimerHandle | None = None
        """Runs while a header has begun to arrive, and has not ended."""
        self._header_bytes = 0
        """Of that header."""

    # --- how many -----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        connections = self.connections
        if len(connections.open) >= connections.most:
            error = Unavailable(
                f"{connections.most} connections are open, which is the limit (capture.max_connections); try again shortly.",
                retry_after=1.0,
            )
            # A cast and no check: uvloop's transports are of classes of its own.
            cast("asyncio.Transport", transport).write(
                connections.bytes_of(connections.limits.refuse("max_connections", error))
            )
            transport.close()
            return
        self._wire = cast("asyncio.Transport", transport)
        connections.open.add(self)
        connections.limits.connections += 1
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        if self in self.connections.open:
            self.connections.open.remove(self)
            self.connections.limits.connections -= 1
        self._stop_header_timer()
        super().connection_lost(exc)

    # --- slow and large headers ---------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._waiter is None or self._waiter.done():
            if self._header_timer is not None:
                self._stop_header_timer()
            return
        # aiohttp still waits for a request, so what came is the beginning of a header.
        if self._force_close or not data:
            return
        self._header_bytes += len(data)
        if self._header_bytes > self.connections.settings.max_header_bytes:
            self._end_with(self.connections.header_too_large())
        elif self._header_timer is None:
            seconds = self.connections.settings.header_seconds
            self._header_timer = self._loop.call_later(seconds, self._header_late)

    def _stop_header_timer(self) -> None:
        self._header_bytes = 0
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _header_late(self) -> None:
        seconds = self.connections.settings.header_seconds
        error = TooSlow(f"The request's header did not arrive within {seconds:g} s (capture.header_seconds).")
        self._end_with(self.connections.limits.refuse("header_seconds", error))

    def _end_with(self, error: CallError) -> None:
        """Answer, and close."""
        self._stop_header_timer()
        if self._wire is not None and not self._wire.is_closing():
            self._wire.write(self.connections.bytes_of(error))
        self.force_close()

    # --- slow readers -------------------------------------------------------------------------------------------------

    async def _drain_helper(self) -> None:
        """Wait until the client has taken enough for more to be written. aiohttp calls this when too much lies ready."""
        seconds = self.connections.settings.write_seconds
        try:
            async with asyncio.timeout(seconds):
                await super()._drain_helper()
        except TimeoutError:
            self._cut()
            raise ConnectionResetError(f"the client took nothing for {seconds:g} s (capture.write_seconds)") from None

    def cut_if_stuck(self, now: float) -> None:
        """Cut the connection when it has been closing for so long that its client cannot want the rest."""
        if self._wire is None or not self._wire.is_closing():
            return
        if self._closing_since is None:
            self._closing_since = now
        elif now - self._closing_since >= self.connections.settings.write_seconds:
            self._cut()

    def _cut(self) -> None:
        self.connections.limits.refused["write_seconds"] += 1
        self.abort()

    def abort(self) -> None:
        """Cut the connection now."""
        if self._wire is not None:
            self._wire.abort()
