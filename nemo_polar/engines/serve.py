# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Serving a small aiohttp application on loopback: for the scripted servers and the relay, in a test's own loop or as a
process."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Awaitable, Callable

from aiohttp import web


class LocalServer:
    """One application on one TCP port. Handlers are cancelled when their client goes away."""

    def __init__(self, app: web.Application, *, host: str = "127.0.0.1", port: int = 0):
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
        self._host, self._port = host, port
        self.url = ""

    async def start(self) -> str:
        """Listen.

        Returns:
            The URL, without a trailing slash.

        Raises:
            OSError: the port cannot be had.
        """
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._port)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        return self.url

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def __aenter__(self) -> LocalServer:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()


def run_until_signal(server: LocalServer, close: Callable[[], Awaitable[None] | None] = lambda: None) -> None:
    """Serve until SIGTERM or SIGINT. The URL goes to standard output as one line of JSON, once it answers."""

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        async with server:
            sys.stdout.write(json.dumps({"url": server.url}) + "\n")
            sys.stdout.flush()
            await stop.wait()
        closing = close()
        if closing is not None:
            await closing

    asyncio.run(main())
