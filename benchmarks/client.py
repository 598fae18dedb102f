# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The load: conversations that grow as a harness's do, over keep-alive connections, and how long each call took.

All that can be is done before a call's clock starts (its body is put together from bytes made earlier) or after it has stopped
(the answer is read into the conversation), so that the client costs the machine little while it measures.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import urlsplit

import orjson

from benchmarks.engine import MODEL
from benchmarks.texts import TextSource
from nemo_polar.errors import EngineProtocol, EngineUnavailable

CALL_SECONDS = 120.0
_STATUS = re.compile(rb"HTTP/1\.1 (\d+)")
_LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.I)


# --- one connection ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Answer:
    """One answer, still as bytes. Times are from the moment the request was written, in seconds."""

    status: int
    raw: bytes
    seconds: float
    chunked: bool

    def body(self) -> bytes:
        """The body without its chunks' frames."""
        body = self.raw[self.raw.index(b"\r\n\r\n") + 4 :]
        if not self.chunked:
            return body
        pieces, at = [], 0
        while True:
            end = body.index(b"\r\n", at)
            size = int(body[at:end], 16)
            if not size:
                return b"".join(pieces)
            pieces.append(body[end + 2 : end + 2 + size])
            at = end + 4 + size


class Connection(asyncio.Protocol):
    """One request at a time over one keep-alive HTTP/1.1 connection."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._pieces: list[bytes] = []
        self._size = 0
        self._need: int | None = None
        """Bytes of the answer, head included; None until its head is whole, or when it is chunked."""
        self._head: bytes | None = None
        self._chunked = False
        self._waiting: asyncio.Future[Answer] | None = None
        self._began = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(EngineUnavailable(f"the proxy closed the connection in mid-call: {exc}"))

    async def call(self, request: bytes) -> Answer:
        """Send ``request``, head and body, and wait for the whole answer."""
        if self._transport.is_closing():
            raise EngineUnavailable("the proxy closed the connection between two calls")
        self._pieces, self._size, self._need, self._head, self._chunked = [], 0, None, None, False
        self._waiting = asyncio.get_running_loop().create_future()
        self._began = time.perf_counter()
        self._transport.write(request)
        return await asyncio.wait_for(self._waiting, CALL_SECONDS)

    def close(self) -> None:
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        self._pieces.append(data)
        self._size += len(data)
        if self._head is None:
            self._read_head()
            if self._head is None:
                return
        if self._need is None:
            # Only the last chunk is followed by an empty line of its own; it may come in two pieces.
            tail = data if len(data) >= 5 else b"".join(self._pieces[-5:])
            if not tail.endswith(b"0\r\n\r\n"):
                return
        elif self._size < self._need:
            return
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            raw = b"".join(self._pieces)
            status = _STATUS.match(raw)
            waiting.set_result(Answer(int(status[1]) if status else 0, raw, now - self._began, self._chunked))

    def _read_head(self) -> None:
        start = b"".join(self._pieces)
        self._pieces = [start]
        end = start.find(b"\r\n\r\n")
        if end < 0:
            return
        self._head = start[: end + 2]
        length = _LENGTH.search(self._head)
        self._need = end + 4 + int(length[1]) if length else None
        self._chunked = length is None


async def connect(url: str) -> Connection:
    """A connection to the host of ``url``."""
    parts = urlsplit(url)
    _, protocol = await asyncio.get_running_loop().create_connection(Connection, parts.hostname or "", parts.port or 80)
    return protocol


def request_bytes(method: str, target: str, host: str, headers: Sequence[str], body: bytes) -> bytes:
    """An HTTP/1.1 request; ``headers`` are whole lines."""
    lines = (f"{method} {target} HTTP/1.1", f"host: {host}", "content-type: application/json", *headers)
    return "\r\n".join((*lines, f"content-length: {len(body)}", "", "")).encode() + body


async def ask_json(url: str, method: str, target: str, value: Any = None, headers: Sequence[str] = ()) -> Any:
    """One request over a connection of its own, for set-up.

    Raises:
        EngineProtocol: the answer is not a success.
    """
    body = b"" if value is None else orjson.dumps(value)
    connection = await connect(url)
    try:
        answer = await connection.call(request_bytes(method, target, urlsplit(url).netloc, headers, body))
    finally:
        connection.close()
    if answer.status not in (200, 201):
        raise EngineProtocol(f"{method} {target}: HTTP {answer.status}: {answer.body()[:300]!r}")
    return orjson.loads(answer.body() or b"null")


# --- conversations ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Conversation:
    """What one agent has said and been told. ``messages`` are JSON, byte for byte as they are sent every time."""

    target: str
    """Path of the chat endpoint, for this conversation's session."""
    headers: tuple[str, ...]
    messages: list[bytes] = field(default_factory=list)
    size: int = 0
    """Bytes of them."""
    base: int = 0
    """How many of them the conversation is cut back to when it has grown past its limit."""

    def add(self, role: str, content: str) -> None:
        message = orjson.dumps({"role": role, "content": content})
        self.messages.append(message)
        self.size += len(message)

    def keep(self) -> None:
        """Make what there is now the base."""
        self.base = len(self.messages)

    def cut_back(self) -> None:
        """Return to the base."""
        del self.messages[self.base :]
        self.size = sum(map(len, self.messages))

    def branch(self) -> Conversation:
        """Another conversation that goes on from here, in the same session."""
        return Conversation(self.target, self.headers, list(self.messages), self.size, len(self.messages))

    def request(self, host: str, *, tokens: int, stream: bool) -> bytes:
        """The next call."""
        options = b'{"model":"%b","max_tokens":%d,"stream":%b,"messages":[' % (
            MODEL.encode(),
            tokens,
            b"true" if stream else b"false",
        )
        body = options + b",".join(self.messages) + b"]}"
        return request_bytes("POST", self.target, host, self.headers, body)


def reply_text(answer: Answer, *, stream: bool) -> str:
    """What the assistant said.

    Raises:
        EngineProtocol: it is not a whole reply.
    """
    body = answer.body()
    try:
        if not stream:
            (choice,) = orjson.loads(body)["choices"]
            if choice["finish_reason"] != "stop":
                raise ValueError(f"finish reason {choice['finish_reason']!r}")
            return choice["message"]["content"]
        events = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: ")]
        if events[-1] != b"[DONE]":
            raise ValueError("the stream has no end")
        choices = [choice for event in events[:-1] for choice in orjson.loads(event)["choices"]]
        if not any(choice["finish_reason"] == "stop" for choice in choices):
            raise ValueError("no finish reason in the stream")
        return "".join(choice["delta"].get("content") or "" for choice in choices)
    except (KeyError, IndexError, TypeError, ValueError) as exc:
        raise EngineProtocol(f"not a whole reply ({exc!r}): {body[:200]!r}") from exc


# --- a window of load -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Load:
    """What every call of a window is like."""

    new_bytes: int
    """Of new text."""
    tokens: int
    """Of the reply, its end token included."""
    stream: bool
    limit: int | None = None
    """Bytes of history past which a conversation is cut back to its base before the next call; None: never."""
    spread: float = 0.0
    """Seconds over which the first calls begin, so that paced streams are not all at the same token."""


class Client:
    """The connections to one proxy."""

    def __init__(self, url: str, texts: TextSource) -> None:
        self._url, self._texts = url, texts
        self._host = urlsplit(url).netloc
        self._connections: list[Connection] = []

    async def reconnect(self, connections: int) -> None:
        """New connections in place of those there are: some servers close one that has been idle for a few seconds."""
        self.close()
        self._connections = [await connect(self._url) for _ in range(connections)]

    async def window(self, conversations: Sequence[Conversation], load: Load, *, calls: int, concurrency: int) -> list[float]:
        """Seconds of each of ``calls`` calls, ``concurrency`` of them under way at a time; a conversation has one at a time.

        There must be as many connections.

        Raises:
            EngineProtocol: an answer is not a whole reply.
            EngineUnavailable: the proxy closed a connection.
        """
        seconds: list[float] = []
        shares = [range(worker, calls, concurrency) for worker in range(concurrency)]
        async with asyncio.TaskGroup() as group:
            for worker, share in enumerate(shares):
                mine = conversations[worker::concurrency]
                wait = load.spread * worker / concurrency
                group.create_task(self._work(self._connections[worker], mine, load, len(share), wait, seconds))
        return seconds

    async def _work(
        self,
        connection: Connection,
        conversations: Sequence[Conversation],
        load: Load,
        calls: int,
        wait: float,
        seconds: list[float],
    ) -> None:
        await asyncio.sleep(wait)
        for at in range(calls):
            conversation = conversations[at % len(conversations)]
            if load.limit is not None and conversation.size > load.limit:
                conversation.cut_back()
            conversation.add("user", self._texts.take(load.new_bytes))
            request = conversation.request(self._host, tokens=load.tokens, stream=load.stream)
            answer = await connection.call(request)
            if answer.status != 200:
                raise EngineProtocol(f"HTTP {answer.status}: {answer.body()[:300]!r}")
            seconds.append(answer.seconds)
            conversation.add("assistant", reply_text(answer, stream=load.stream))

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        self._connections.clear()
