# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The wire between a harness and the proxy: an ordinary sandbox whose one way out passes a forwarder that can go wrong.

The forwarder reads requests to know where they begin and end, passes bytes on as they are, and notes the status of each answer.
Told to, it resets the client's connection in the middle of an answer, or answers a request itself with an error in the
provider's own shape; the proxy then never sees that request.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from nemo_polar import registry
from nemo_polar.errors import CallError, Overloaded
from nemo_polar.sandboxes.base import WORKDIR, ExecResult, SandboxSpec
from nemo_polar.sandboxes.local import LocalSandbox

_TIMES = "/tmp/polar-times"
_TIMED = f'"$@"; code=$?; times > {_TIMES} 2>/dev/null; exit $code'
_CLOCK = re.compile(rb"(\d+)m([\d.]+)s")
_LIMIT = 1 << 20
_CHUNK = 65536


@dataclass(slots=True)
class Switch:
    """What is to go wrong next, and what has passed. One loop."""

    dialect: str = "openai_chat"
    cut_after: int | None = None
    """Bytes of the answer under way to let pass before the client's connection is reset; once."""
    answer: int | None = None
    """The status that the next POST is answered with; once."""
    passed: Counter[str] = field(default_factory=Counter)
    """Answers to POSTs by status; ``cut`` for those cut off."""
    harness_cpu_s: float = 0.0
    """Processor time of the commands run behind the wire, as far as they ended by themselves."""

    def canned(self, status: int) -> bytes:
        """A whole answer in the provider's error shape."""
        error: CallError = Overloaded("Too many requests (made up by the wire).", retry_after=1.0)
        if status != 429:
            error = CallError("An internal error (made up by the wire).")
        _, extra, body = registry.resolve("dialects", self.dialect)().error(error)
        headers = {"content-type": "application/json", **extra, "content-length": str(len(body))}
        head = f"HTTP/1.1 {status} Error\r\n" + "".join(f"{k}: {v}\r\n" for k, v in headers.items())
        return head.encode() + b"\r\n" + body


SWITCH = Switch()
"""That of this process: each cell has its own."""


class WireSandbox(LocalSandbox):
    """A ``LocalSandbox`` behind such a wire."""

    name: ClassVar[str] = "local"

    def __init__(self, spec: SandboxSpec) -> None:
        self._wire = None if spec.proxy_socket is None else Wire(SWITCH, str(spec.proxy_socket))
        self._server: asyncio.Server | None = None
        super().__init__(spec if self._wire is None else replace(spec, proxy_socket=spec.scratch / "wire.sock"))

    async def start(self) -> None:
        if self._wire is not None and self.spec.proxy_socket is not None:
            self._server = await asyncio.start_unix_server(self._wire.serve, self.spec.proxy_socket, limit=_LIMIT)
        await super().start()

    async def exec(
        self,
        argv: Sequence[str],
        *,
        timeout: float,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        cwd: str = WORKDIR,
        network: bool = True,
    ) -> ExecResult:
        """See ``Sandbox.exec``. A namespace that is killed takes its account with it, so a shell inside keeps one."""
        if self._wire is None or list(argv) == ["true"]:
            return await super().exec(argv, timeout=timeout, env=env, stdin=stdin, cwd=cwd, network=network)
        words = ["/bin/sh", "-c", _TIMED, "sh", *argv]
        result = await super().exec(words, timeout=timeout, env=env, stdin=stdin, cwd=cwd, network=network)
        with contextlib.suppress(FileNotFoundError):
            spent = _CLOCK.findall(await self.get(_TIMES))
            SWITCH.harness_cpu_s += sum(60 * float(m) + float(s) for m, s in spent)
        return result

    async def stop(self) -> None:
        await super().stop()
        if self._server is not None:
            self._server.close()
            self._server = None
            assert self._wire is not None
            self._wire.close()


class Wire:
    """The connections of one sandbox."""

    def __init__(self, switch: Switch, upstream: str) -> None:
        self._switch, self._upstream = switch, upstream
        self._tasks: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of the harness's side, to its end."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            up_reader, up_writer = await asyncio.open_unix_connection(self._upstream, limit=_LIMIT)
            connection = _Connection(self._switch, reader, writer, up_reader, up_writer)
            answers = asyncio.create_task(connection.pass_answers())
            try:
                while await connection.pass_request():
                    pass
                up_writer.write_eof()
                await answers
            finally:
                answers.cancel()
                up_writer.close()
        except (asyncio.IncompleteReadError, OSError, asyncio.CancelledError):
            pass  # one side has gone, or the sandbox has been stopped
        finally:
            self._tasks.discard(task)
            writer.close()


@dataclass(slots=True)
class _Connection:
    switch: Switch
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    up_reader: asyncio.StreamReader
    up_writer: asyncio.StreamWriter
    posted: bool = False
    """The request under way is a POST."""
    sent: int = 0
    """Bytes of its answer passed on."""

    async def pass_request(self) -> bool:
        """Pass on one request. False at the end of the connection."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return False
        body = await _body(head, self.reader)
        self.posted, self.sent = head.startswith(b"POST "), 0
        if self.posted and self.switch.answer is not None:
            status, self.switch.answer = self.switch.answer, None
            self.switch.passed[f"{status} made up"] += 1
            self.writer.write(self.switch.canned(status))
            await self.writer.drain()
            return True
        self.up_writer.write(head + body)
        await self.up_writer.drain()
        return True

    async def pass_answers(self) -> None:
        """Answers, as they come."""
        switch = self.switch
        while data := await self.up_reader.read(_CHUNK):
            if self.sent == 0 and self.posted:
                switch.passed[data[9:12].decode(errors="replace")] += 1
            if switch.cut_after is not None and self.posted and self.sent + len(data) >= switch.cut_after:
                self.writer.write(data[: max(0, switch.cut_after - self.sent)])
                await self.writer.drain()
                switch.cut_after = None
                switch.passed["cut"] += 1
                _reset(self.writer)
                return
            self.sent += len(data)
            self.writer.write(data)
            await self.writer.drain()
        self.writer.close()


async def _body(head: bytes, reader: asyncio.StreamReader) -> bytes:
    """The body that follows ``head``, framed as it came."""
    fields = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:] if b":" in line)
    if b"chunked" in fields.get(b"transfer-encoding", b""):
        parts: list[bytes] = []
        while True:
            size = await reader.readuntil(b"\r\n")
            data = await reader.readexactly(int(size.split(b";")[0], 16) + 2)
            parts += [size, data]
            if len(data) == 2:
                return b"".join(parts)
    return await reader.readexactly(int(fields.get(b"content-length", b"0")))


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close at once, with what was not read thrown away."""
    with contextlib.suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
