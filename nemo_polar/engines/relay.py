# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A recording relay in front of a real engine: everything passes through, every generate call is logged.

    python -m nemo_polar.engines.relay --upstream http://127.0.0.1:8000 --log engine.jsonl

It prints its URL as JSON and serves until SIGTERM. What the audit compares a run with comes from here, so this reads the
passing bytes by itself, with none of the engine client's code. It changes no byte of a body, retries nothing, and when either
side goes away it lets the other know by breaking its connection too.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from typing import Any

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from nemo_polar.engines.log import EngineCall, EngineLog
from nemo_polar.engines.serve import LocalServer, run_until_signal
from nemo_polar.types import as_ids, as_logprobs

GENERATE_PATH = "/inference/v1/generate"
_HOP_BY_HOP = frozenset(
    ("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade")
)
_MAX_BODY = 256 * 1024 * 1024


class GenerateTap:
    """Writes one engine call down from the bytes that pass: the request's body, then the answer's, cut anywhere."""

    def __init__(self, log: EngineLog, body: dict[str, Any]):
        self._log = log
        self._body = body
        self._started_at = time.time()
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._version: int | None = None
        self._rest = b""
        self._streamed = bool(body.get("stream"))
        self._written = False

    def feed(self, data: bytes) -> None:
        """Bytes of the answer. The line is written before the bytes with the finish reason go on to the client."""
        self._rest += data
        if not self._streamed:
            return
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            if line.startswith(b"data: {"):
                self._read(line[6:])

    def close(self) -> None:
        """The answer is over, or lost."""
        if not self._streamed:
            self._read(self._rest)
        self._write("abort")

    def _read(self, text: bytes) -> None:
        try:
            choices = json.loads(text).get("choices") or []
            for choice in choices:
                self._take(choice)
        except (ValueError, TypeError, KeyError, AttributeError):
            return  # not for us to judge: the client sees the same bytes, and the call ends as an abort here

    def _take(self, choice: dict[str, Any]) -> None:
        ids = choice.get("token_ids") or []
        content = (choice.get("logprobs") or {}).get("content") or []
        given = [entry.get("logprob") for entry in content]
        given += [None] * (len(ids) - len(given))
        self._ids += [int(i) for i in ids]
        self._logprobs += [math.nan if x is None else float(x) for x in given[: len(ids)]]
        for span in choice.get("weight_versions") or []:
            self._version = int(span["version"]) if str(span["version"]).isdecimal() else None
        if choice.get("finish_reason"):
            self._write(str(choice["finish_reason"]))

    def _write(self, finish_reason: str) -> None:
        if self._written:
            return
        self._written = True
        params = self._body.get("sampling_params") or {}
        self._log.append(
            EngineCall(
                request_id=str(self._body.get("request_id", "")),
                prompt_ids=as_ids(self._body["token_ids"]),
                token_ids=as_ids(self._ids),
                logprobs=as_logprobs(self._logprobs),
                finish_reason=finish_reason,
                temperature=float(params.get("temperature", 1.0)),
                top_p=float(params.get("top_p", 1.0)),
                top_k=int(params.get("top_k", -1)),
                started_at=self._started_at,
                ended_at=time.time(),
                weights_version=self._version,
            )
        )


class Relay:
    """``upstream``: the engine's URL. One event loop; ``close`` when the server has stopped."""

    def __init__(self, upstream: str, log: EngineLog):
        self._upstream, self._log = upstream.rstrip("/"), log
        self._session: aiohttp.ClientSession | None = None
        self.app = web.Application(client_max_size=_MAX_BODY)
        self.app.router.add_route("*", "/{path:.*}", self._pass)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
        self._log.close()

    async def _pass(self, http: web.Request) -> web.StreamResponse:
        body = await http.read()
        tap: GenerateTap | None = None
        try:
            async with self._client().request(
                http.method,
                URL(self._upstream + http.raw_path, encoded=True),
                headers=_headers(http.headers, request=True),
                data=body or None,
                allow_redirects=False,
            ) as upstream:
                if http.path == GENERATE_PATH and upstream.status == 200:
                    tap = _tap(self._log, body)
                return await self._answer(http, upstream, tap)
        except aiohttp.ClientConnectorError as exc:
            error = {"error": {"message": f"the engine behind the relay cannot be reached: {exc}", "code": 502}}
            return web.json_response(error, status=502)
        except aiohttp.ClientError:
            return _hang_up(http)
        finally:
            if tap is not None:
                tap.close()

    async def _answer(self, http: web.Request, upstream: aiohttp.ClientResponse, tap: GenerateTap | None) -> web.StreamResponse:
        response = web.StreamResponse(status=upstream.status, reason=upstream.reason, headers=_headers(upstream.headers))
        await response.prepare(http)
        while data := await upstream.content.readany():
            if tap is not None:
                tap.feed(data)
            await response.write(data)
        if tap is not None:
            tap.close()
        await response.write_eof()
        return response

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None),
                auto_decompress=False,
                skip_auto_headers=("User-Agent", "Content-Type", "Accept", "Accept-Encoding"),
            )
        return self._session


def _tap(log: EngineLog, body: bytes) -> GenerateTap | None:
    try:
        raw = json.loads(body)
    except ValueError:
        return None
    return GenerateTap(log, raw) if isinstance(raw, dict) and isinstance(raw.get("token_ids"), list) else None


def _headers(headers: Any, *, request: bool = False) -> CIMultiDict[str]:
    """Those that go on. A request asks for no compression: the tap reads the answer as it is."""
    drop = _HOP_BY_HOP | {"host", "content-length", "accept-encoding"} if request else _HOP_BY_HOP
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in drop)


def _hang_up(http: web.Request) -> web.StreamResponse:
    """The other side was lost: so is this one, for a clean end would say that the answer is whole."""
    if http.transport is not None:
        http.transport.abort()
    return web.Response(status=502)


def main() -> None:
    parser = argparse.ArgumentParser(description="A relay that records what an engine is given and what it draws.")
    parser.add_argument("--upstream", required=True, help="URL of the engine")
    parser.add_argument("--log", required=True, help="engine-side log to append to")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    args = parser.parse_args()
    relay = Relay(args.upstream, EngineLog(args.log))
    run_until_signal(LocalServer(relay.app, host=args.host, port=args.port), relay.close)


if __name__ == "__main__":
    main()
