# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Running one host process under a deadline, with bounded output, and leaving nothing of it.

It never decides how a process tree is killed: the sandbox hands in ``end``. Processes are watched through pidfds, so no
thread and no child watcher is needed, and a pid that was used again is never signalled.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from nemo_polar.cancellation import uninterrupted
from nemo_polar.errors import SandboxError
from nemo_polar.sandboxes.base import ExecResult

_T = TypeVar("_T")
_DRAIN_SECONDS = 10.0
"""For output still in the pipes once every writer is dead; reached only if a writer could not be killed."""


async def readable(fd: int) -> None:
    """Return when ``fd`` can be read: for a pidfd, when its process has ended."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, lambda: future.done() or future.set_result(None))
    try:
        await future
    finally:
        loop.remove_reader(fd)


class _Output:
    """One output pipe. All of it is read, so that no writer ever waits; of more than ``limit`` bytes, both ends are kept."""

    def __init__(self, limit: int):
        self._head_limit, self._tail_limit = limit // 2, limit - limit // 2
        self._head, self._tail = bytearray(), bytearray()
        self._total = 0
        self.read_end, self.write_end = os.pipe()

    async def drain(self) -> None:
        """Read until every writer has gone. The caller closes ``read_end``.

        By hand: uvloop's pipe transport closes its descriptor a second time, a moment after the first, when another thread may
        have been given the same number.
        """
        os.set_blocking(self.read_end, False)
        while True:
            await readable(self.read_end)
            try:
                data = os.read(self.read_end, 256 * 1024)
            except BlockingIOError:
                continue
            if not data:
                return
            self._take(data)

    def _take(self, data: bytes) -> None:
        self._total += len(data)
        room = self._head_limit - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > 2 * self._tail_limit + 1024 * 1024:
            del self._tail[: len(self._tail) - self._tail_limit]

    @property
    def truncated(self) -> bool:
        return self._total > self._head_limit + self._tail_limit

    @property
    def text(self) -> bytes:
        """What was kept; where something is missing, a line says how much."""
        if not self.truncated:
            return bytes(self._head + self._tail)
        tail = self._tail[len(self._tail) - self._tail_limit :]
        missing = self._total - len(self._head) - len(tail)
        return b"%b\n[%d bytes left out]\n%b" % (self._head, missing, tail)


def _stdin(data: bytes) -> int:
    """A descriptor to read ``data`` from. A file in memory, not a pipe: it needs no writer that could block or break."""
    if not data:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    return memory_file("stdin", data)


def memory_file(name: str, data: bytes) -> int:
    """An anonymous file holding ``data``, positioned at its start. The caller closes it."""
    fd = os.memfd_create(name)
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


async def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    timeout: float,
    max_output_bytes: int,
    end: Callable[[int], Awaitable[None]],
    stdin: bytes = b"",
    cwd: Path | None = None,
    pass_fds: Sequence[int] = (),
) -> ExecResult:
    """Run ``argv`` as the leader of its own session and process group.

    ``end`` is given its pid (not yet reaped, so the number cannot mean anything else) once it has exited, or at the deadline,
    or when this call is cancelled. It must kill what is left of the tree and return only when all of it is gone; it is never
    cut short.

    Raises:
        SandboxError: the process cannot be started.
    """
    started = time.monotonic()
    source = _stdin(stdin)
    out, err = _Output(max_output_bytes), _Output(max_output_bytes)
    try:
        process = subprocess.Popen(  # noqa: ASYNC220  (as asyncio does it too; it returns once the program has started)
            list(argv),
            stdin=source,
            stdout=out.write_end,
            stderr=err.write_end,
            env=dict(env),
            cwd=cwd,
            pass_fds=pass_fds,
            start_new_session=True,
        )
        pidfd = os.pidfd_open(process.pid)
    except (OSError, ValueError) as exc:
        os.close(out.read_end)
        os.close(err.read_end)
        raise SandboxError(f"{argv[0]} cannot be started: {exc}") from exc
    finally:
        for fd in (source, out.write_end, err.write_end):
            os.close(fd)

    drains = [asyncio.ensure_future(out.drain()), asyncio.ensure_future(err.drain())]

    async def finish() -> None:
        try:
            await end(process.pid)
            await readable(pidfd)
            process.wait()
            await asyncio.wait(drains, timeout=_DRAIN_SECONDS)
        finally:
            os.close(pidfd)
            for drain in drains:
                drain.cancel()
            await asyncio.gather(*drains, return_exceptions=True)
            os.close(out.read_end)
            os.close(err.read_end)

    timed_out = False
    try:
        with contextlib.suppress(TimeoutError):
            timed_out = True
            async with asyncio.timeout(max(timeout, 0)):
                await readable(pidfd)
                timed_out = False
    finally:
        await uninterrupted(finish())
    code = process.returncode
    return ExecResult(
        exit_code=code if code >= 0 else 128 - code,
        stdout=out.text,
        stderr=err.text,
        timed_out=timed_out,
        truncated=out.truncated or err.truncated,
        seconds=time.monotonic() - started,
    )
