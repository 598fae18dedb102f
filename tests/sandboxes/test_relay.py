# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The relay as the program it is: real sockets on loopback, a real Unix socket behind."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from nemo_polar.sandboxes import relay
from tests.support.sandboxes import echo_socket

Serve: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def command(*args: str) -> list[str]:
    return [sys.executable, "-I", "-S", relay.__file__, *args]


@asynccontextmanager
async def relaying(path: Path) -> AsyncIterator[int]:
    """The port of a relay to ``path``, with a command that only waits."""
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        *command("--listen", str(port), "--connect", str(path), "--", "sh", "-c", "echo ready; exec sleep 60"),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    try:
        yield port
    finally:
        process.terminate()
        assert await process.wait() == 128 + signal.SIGTERM


@asynccontextmanager
async def server(path: Path, serve: Serve) -> AsyncIterator[Path]:
    listening = await asyncio.start_unix_server(serve, path)
    try:
        yield path
    finally:
        listening.close()


async def test_the_port_listens_before_the_command_starts(tmp_path: Path) -> None:
    code = "import socket,sys; s=socket.create_connection(('127.0.0.1',int(sys.argv[1]))); s.sendall(b'hi'); print(s.recv(9))"
    async with echo_socket(tmp_path / "s") as path:
        for _ in range(5):
            port = str(free_port())
            process = await asyncio.create_subprocess_exec(
                *command("--listen", port, "--connect", str(path), "--", sys.executable, "-I", "-S", "-c", code, port),
                stdout=asyncio.subprocess.PIPE,
            )
            assert (await process.communicate())[0] == b"b'hi'\n" and process.returncode == 0


async def test_many_streams_at_once_keep_their_bytes_apart_and_in_order(tmp_path: Path) -> None:
    async def one(port: int, number: int) -> None:
        data = hashlib.sha256(str(number).encode()).digest() * 8192
        reader, writer = await asyncio.open_connection("127.0.0.1", port)

        async def send() -> None:
            writer.write(data)
            await writer.drain()
            writer.write_eof()

        _, received = await asyncio.gather(send(), reader.read(-1))
        assert received == data
        writer.close()

    async with echo_socket(tmp_path / "s") as path, relaying(path) as port:
        await asyncio.gather(*(one(port, number) for number in range(64)))


async def test_each_side_can_end_its_half_and_go_on_reading(tmp_path: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"greeting")
        writer.write_eof()  # our half is over; the client's is not
        seen.append(await reader.read(-1))
        writer.close()

    seen: list[bytes] = []
    async with server(tmp_path / "s", serve) as path, relaying(path) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read(-1) == b"greeting"
        writer.write(b"answer")
        writer.write_eof()
        async with asyncio.timeout(5):
            while not seen:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert seen == [b"answer"]
        writer.close()


async def test_a_client_that_goes_away_is_noticed_by_the_proxy(tmp_path: Path) -> None:
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)
        gone.set()
        writer.close()

    async with server(tmp_path / "s", serve) as path, relaying(path) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.transport.abort()
        await asyncio.wait_for(gone.wait(), 5)


async def test_a_slow_reader_slows_its_writer_and_nobody_else(tmp_path: Path) -> None:
    sent = 0
    never = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        if await reader.readexactly(1) == b"q":
            writer.write(b"quick")
            writer.close()
            return
        try:
            while not never.is_set():
                writer.write(b"x" * 65536)
                await writer.drain()
                sent += 65536
        except ConnectionError:
            pass

    async with server(tmp_path / "s", serve) as path, relaying(path) as port:
        with socket.create_connection(("127.0.0.1", port)) as slow:
            slow.sendall(b"s")
            await asyncio.sleep(0.3)
            stuck = sent
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"q")
            assert await asyncio.wait_for(reader.read(-1), 5) == b"quick"
            writer.close()
            await asyncio.sleep(0.1)
            assert sent == stuck < 32 * 1024 * 1024  # it fills the kernel's buffers, and stops
        never.set()


async def test_a_proxy_that_is_down_closes_the_connection_and_one_that_comes_back_is_used(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with relaying(path) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await asyncio.wait_for(reader.read(-1), 5) == b""
        writer.close()
        async with echo_socket(path):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"back")
            assert await asyncio.wait_for(reader.readexactly(4), 5) == b"back"
            writer.close()


async def test_a_full_backlog_of_the_proxy_delays_clients_and_loses_none(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(1)
        listener.setblocking(False)
        async with relaying(path) as port:
            clients = [await asyncio.open_connection("127.0.0.1", port) for _ in range(12)]
            for _, writer in clients:
                writer.write(b"x")
            await asyncio.sleep(0.2)
            loop = asyncio.get_running_loop()
            for _ in clients:
                accepted, _ = await asyncio.wait_for(loop.sock_accept(listener), 5)
                with accepted:
                    assert await loop.sock_recv(accepted, 1) == b"x"
                    await loop.sock_sendall(accepted, b"y")
            for reader, writer in clients:
                assert await asyncio.wait_for(reader.readexactly(1), 5) == b"y"
                writer.close()


async def run(*args: str) -> tuple[int, bytes, bytes]:
    process = await asyncio.create_subprocess_exec(
        *command(*args), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out, err


@pytest.mark.parametrize("listening", [True, False])
async def test_limits_environment_and_signal_handling_reach_the_command(tmp_path: Path, listening: bool) -> None:
    listen = ["--listen", str(free_port()), "--connect", str(tmp_path / "s")] if listening else []
    script = 'ulimit -n; ulimit -c; echo "$SET:$GONE"; grep -h -e SigIgn -e SigBlk /proc/self/status'
    options = ["--limit", "nofile=77", "--limit", "core=0", "--env", "SET=a=b", "--env", "GONE=x", "--unset", "GONE"]
    code, out, _ = await run(*options, *listen, "--", "sh", "-c", script)
    assert code == 0
    *rest, _, blocked, _, ignored = out.split()
    assert rest == [b"77", b"0", b"a=b:"] and int(blocked, 16) == 0
    assert int(ignored, 16) & (1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1) == 0


async def test_a_port_that_is_taken_is_the_sandboxs_failure_and_not_the_commands(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, out, err = await run("--listen", str(taken.getsockname()[1]), "--connect", "/x", "--", "echo", "ran")
    assert (code, out) == (125, b"") and err.startswith(b"polar: relay: cannot listen")


async def test_signals_are_passed_on_to_the_command(tmp_path: Path) -> None:
    script = "trap 'echo caught; exit 9' USR1; echo ready; while :; do sleep 0.02; done"
    process = await asyncio.create_subprocess_exec(
        *command("--listen", str(free_port()), "--connect", "/x", "--", "sh", "-c", script), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None and await process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGUSR1)
    assert await process.stdout.read() == b"caught\n" and await process.wait() == 9


async def test_it_costs_little_to_start(tmp_path: Path) -> None:
    best = float("inf")
    for _ in range(5):
        before = os.times()
        begun = time.monotonic()
        assert (await run("--listen", str(free_port()), "--connect", "/x", "--", "true"))[0] == 0
        after = os.times()
        used = after.children_user + after.children_system - before.children_user - before.children_system
        best = min(best, used, time.monotonic() - begun)
    assert best < 0.2  # seconds of CPU; asyncio alone would take most of it
