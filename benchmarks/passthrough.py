# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The least that an HTTP proxy of JSON can do on the same stack as ours: ``python -m benchmarks.passthrough --engine URL``.

aiohttp on uvloop; a request is parsed and written again with orjson (as one that changes anything in it has to), the answer is
handed on as it comes. It keeps nothing, counts nothing and checks nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import signal

import aiohttp
import orjson
import uvloop
from aiohttp import web

from benchmarks import lag

_JSON = {"Content-Type": "application/json"}


async def serve(engine: str) -> None:
    """Serve on a free port of loopback until SIGTERM."""
    lag.install()
    session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None))

    async def handle(request: web.Request) -> web.StreamResponse:
        body = orjson.loads(await request.read())
        async with session.post(engine + request.path, data=orjson.dumps(body), headers=_JSON) as answer:
            if not body.get("stream"):
                return web.Response(body=await answer.read(), status=answer.status, headers=_JSON)
            response = web.StreamResponse(status=answer.status, headers={"Content-Type": answer.headers["Content-Type"]})
            await response.prepare(request)
            async for piece in answer.content.iter_any():
                await response.write(piece)
            await response.write_eof()
            return response

    app = web.Application(client_max_size=2**30)
    app.router.add_post("/{path:.*}", handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(orjson.dumps({"url": f"http://127.0.0.1:{runner.addresses[0][1]}"}).decode(), flush=True)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()
    await session.close()
    await runner.cleanup()


def main() -> None:
    parser = argparse.ArgumentParser(description="A pass-through, to compare proxies with.")
    parser.add_argument("--engine", required=True, help="URL")
    uvloop.run(serve(parser.parse_args().engine))


if __name__ == "__main__":
    main()
