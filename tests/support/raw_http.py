# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""HTTP by hand: a client that sends any bytes at all and reads whatever answers come, to do what a hostile one may do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

CHAT = "/v1/chat/completions"


@dataclass(frozen=True)
class Answer:
    """One response, its body put together."""

    status: int
    headers: dict[str, str]
    """Names in lower case; of several equal ones the last."""
    body: bytes
    head: bytes = b""
    """Status line and headers as they came."""

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Exchange:
    """All that came back on one connection."""

    answers: list[Answer]
    closed: bool
    """The server closed the connection."""
    rest: bytes = b""
    """Bytes at the end that make no whole answer."""

    @property
    def statuses(self) -> list[int]:
        return [answer.status for answer in self.answers]


def request(
    body: bytes = b"",
    *,
    secret: str | None = None,
    method: str = "POST",
    target: str = CHAT,
    headers: Sequence[tuple[str, str]] = (),
    length: bool = True,
) -> bytes:
    """One request; latin-1 in the head, so that it may hold any byte. ``headers`` go as they are, repeated ones too."""
    lines = [f"{method} {target} HTTP/1.1", "Host: polar"]
    lines += [f"Authorization: Bearer {secret}"] if secret is not None else []
    lines += [f"{name}: {value}" for name, value in headers]
    lines += [f"Content-Length: {len(body)}"] if length else []
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def chunked(body: bytes, size: int = 1000) -> bytes:
    """``body`` in chunks, for ``Transfer-Encoding: chunked``."""
    pieces = [body[i : i + size] for i in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


class Connection:
    """One connection, kept open from request to request while the server does."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._seen = b""

    @classmethod
    async def open(cls, url: str) -> Connection:
        host, port = url.removeprefix("http://").split(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def send(self, data: bytes) -> None:
        """Send it all; a server that no longer reads is not an error here: what it has answered counts."""
        with suppress(ConnectionError):
            self._writer.write(data)
            await self._writer.drain()

    async def answer(self, seconds: float) -> Answer | None:
        """The next answer; None when the server closed the connection instead.

        Raises:
            TimeoutError: neither happened within ``seconds``.
        """
        async with asyncio.timeout(seconds):
            while True:
                found = _first(self._seen, closed=False)
                if found is not None:
                    answer, self._seen = found
                    return answer
                if not await self._more():
                    found = _first(self._seen, closed=True)
                    self._seen = found[1] if found else self._seen
                    return found[0] if found else None

    async def everything(self, quiet: float) -> Exchange:
        """Answers until the server closes the connection, or is silent for ``quiet`` seconds."""
        closed = False
        with suppress(TimeoutError):
            while not closed:
                async with asyncio.timeout(quiet):
                    closed = not await self._more()
        answers: list[Answer] = []
        while (found := _first(self._seen, closed=closed)) is not None:
            answers.append(found[0])
            self._seen = found[1]
        return Exchange(answers, closed, self._seen)

    async def _more(self) -> bool:
        try:
            piece = await self._reader.read(65536)
        except ConnectionError:
            return False
        self._seen += piece
        return bool(piece)

    async def close(self) -> None:
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()


async def exchange(url: str, *pieces: bytes, quiet: float = 0.3) -> Exchange:
    """Send ``pieces``, a moment apart, on a connection of their own."""
    connection = await Connection.open(url)
    try:
        for i, piece in enumerate(pieces):
            await asyncio.sleep(0.02 if i else 0)
            await connection.send(piece)
        return await connection.everything(quiet)
    finally:
        await connection.close()


def _first(data: bytes, *, closed: bool) -> tuple[Answer, bytes] | None:
    """The first whole answer in ``data``, and what follows it. Interim answers (1xx) are skipped."""
    head, separator, rest = data.partition(b"\r\n\r\n")
    if not separator:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    status = int(first.split(" ")[1])
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if status < 200:
        return _first(rest, closed=closed)
    if headers.get("transfer-encoding") == "chunked":
        found = _unchunked(rest)
        return None if found is None else (Answer(status, headers, found[0], head), found[1])
    if "content-length" in headers:
        length = int(headers["content-length"])
        return None if len(rest) < length else (Answer(status, headers, rest[:length], head), rest[length:])
    return (Answer(status, headers, rest, head), b"") if closed else None


def _unchunked(data: bytes) -> tuple[bytes, bytes] | None:
    body = b""
    while True:
        size, separator, rest = data.partition(b"\r\n")
        if not separator:
            return None
        length = int(size, 16)
        if len(rest) < length + 2:
            return None
        body, data = body + rest[:length], rest[length + 2 :]
        if not length:
            return body, data
