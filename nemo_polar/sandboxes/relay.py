# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The first program inside a sandbox: sets limits, opens the one way out and runs the command.

    relay.py [--limit NAME=N]... [--env K=V]... [--unset K]... [--listen PORT --connect SOCKET] -- COMMAND [ARG]...

With ``--listen``, 127.0.0.1:PORT is forwarded to the Unix socket SOCKET for as long as the command runs; the command starts
only once the port listens. Without it the command simply takes this process's place. Exit codes are the command's own, 128 +
signal when a signal ended it, 127 when there is no such command and 126 when it cannot be run.

It runs under ``python -I -S`` inside any image, so it is one file and uses only the quick parts of the standard library. It
holds no secret and checks none: whoever can reach the port could reach the socket too.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import select
import signal
import socket
import sys
import time

TYPE_CHECKING = False  # as in typing, which is slow to import
if TYPE_CHECKING:
    from typing import NoReturn

CHUNK = 64 * 1024
"""Bytes read at a time; also the most that waits in one direction of a stream, so that a slow reader slows its writer."""
TURN = 8
"""Chunks that one stream may move before the others get their turn."""
BACKLOG = 512
RETRY_SECONDS = 0.02
"""Between attempts, while the proxy's backlog is full or no descriptor is left."""
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


class Half:
    """One direction of a stream: bytes read from ``source`` wait in ``pending`` until ``sink`` takes them."""

    __slots__ = ("done", "ended", "pending", "sink", "source")

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self.source, self.sink = source, sink
        self.pending = memoryview(b"")
        self.ended = False  # the source has sent its end of file
        self.done = False  # and it has been passed on

    def pump(self) -> bool:
        """Move what can be moved without waiting, up to a turn's worth. True when the turn ended first."""
        for _ in range(TURN):
            if not self.pending and not self.ended:
                try:
                    data = self.source.recv(CHUNK)
                except BlockingIOError:
                    return False
                self.pending, self.ended = memoryview(data), not data
            if not self.pending:
                if not self.done:
                    self._close()
                return False
            try:
                sent = self.sink.send(self.pending)
            except BlockingIOError:
                return False
            self.pending = self.pending[sent:]
        return True

    def _close(self) -> None:
        self.done = True
        try:
            self.sink.shutdown(socket.SHUT_WR)
        except OSError as exc:
            if exc.errno != errno.ENOTCONN:
                raise


class Stream:
    """A client's connection and the proxy's."""

    __slots__ = ("client", "down", "proxy", "up")

    def __init__(self, client: socket.socket, proxy: socket.socket) -> None:
        self.client, self.proxy = client, proxy
        self.up, self.down = Half(client, proxy), Half(proxy, client)

    def pump(self) -> bool:
        """True when there is more to move at once."""
        up_has_more = self.up.pump()
        return self.down.pump() or up_has_more

    @property
    def done(self) -> bool:
        return self.up.done and self.down.done


class Relay:
    """All streams in one thread, on an edge-triggered epoll: a stream that waits for its reader costs nothing."""

    def __init__(self, port: int, path: str) -> None:
        self.path = path
        self.listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind(("127.0.0.1", port))
        self.listener.listen(BACKLOG)
        self.listener.setblocking(False)
        self.epoll = select.epoll()
        self.epoll.register(self.listener, select.EPOLLIN)
        self.streams: dict[int, Stream] = {}  # by each of its two descriptors
        self.unfinished: set[Stream] = set()  # streams whose turn ended before their data
        self.waiting: list[socket.socket] = []  # clients for whom the proxy had no room yet

    def run(self, wake: int) -> None:
        """Serve until something can be read from ``wake``."""
        woken = False
        while not woken:
            timeout = 0 if self.unfinished else RETRY_SECONDS if self.waiting else None
            ready, self.unfinished = self.unfinished, set()
            for fd, _ in self.epoll.poll(timeout):
                if fd == wake:
                    woken = True
                elif fd == self.listener.fileno():
                    self._accept()
                elif fd in self.streams:
                    ready.add(self.streams[fd])
            for stream in ready:
                self._pump(stream)
            waiting, self.waiting = self.waiting, []
            for client in waiting:
                self._connect(client)

    def _accept(self) -> None:
        try:
            client, _ = self.listener.accept()
        except BlockingIOError:
            return
        except OSError:  # gone again already, or no descriptor left until a stream ends
            time.sleep(RETRY_SECONDS)
            return
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connect(client)

    def _connect(self, client: socket.socket) -> None:
        proxy = None
        try:
            proxy = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            proxy.setblocking(False)
            proxy.connect(self.path)  # at once, or not at all: a Unix socket has no handshake
        except OSError as exc:
            if proxy is not None:
                proxy.close()
            if isinstance(exc, BlockingIOError):
                self.waiting.append(client)
            else:  # the proxy is down: its client sees the connection closed, as it would without a relay
                client.close()
            return
        stream = Stream(client, proxy)
        for sock in (client, proxy):
            self.streams[sock.fileno()] = stream
            self.epoll.register(sock, select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET)

    def _pump(self, stream: Stream) -> None:
        try:
            if stream.pump():
                self.unfinished.add(stream)
            if not stream.done:
                return
        except OSError:  # a reset on either side ends both, as it would on a direct connection
            pass
        self.unfinished.discard(stream)
        for sock in (stream.client, stream.proxy):
            del self.streams[sock.fileno()]
            sock.close()


def fail(message: str, code: int) -> NoReturn:
    os.write(2, f"polar: {message}\n".encode())
    os._exit(code)


def execute(argv: list[str], limits: list[tuple[str, int]], env: dict[str, str]) -> NoReturn:
    """Become the command. Python ignores SIGPIPE and SIGXFSZ; the command must not inherit that."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ, *FORWARDED):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for name, value in limits:
        which = getattr(resource, "RLIMIT_" + name.upper())
        hard = resource.getrlimit(which)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (value, value))
    try:
        os.execvpe(argv[0], argv, env)
    except (FileNotFoundError, NotADirectoryError):
        fail(f"{argv[0]}: no such command", 127)
    except (OSError, ValueError) as exc:
        fail(f"{argv[0]}: cannot be run: {exc}", 126)


def supervise(relay: Relay, argv: list[str], limits: list[tuple[str, int]], env: dict[str, str]) -> NoReturn:
    """Run the command in its own session beside the relay, pass signals on to it, and leave as it leaves."""
    wake, poke = os.pipe()
    os.set_blocking(poke, False)
    relay.epoll.register(wake, select.EPOLLIN)
    signal.set_wakeup_fd(poke, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    child = os.fork()
    if child == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        execute(argv, limits, env)
    waiting: list[int] = []
    for number in FORWARDED:
        signal.signal(number, lambda received, _frame: waiting.append(received))
    while True:
        relay.run(wake)
        os.read(wake, 4096)
        while waiting:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, waiting.pop(0))
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def main(args: list[str]) -> NoReturn:
    limits: list[tuple[str, int]] = []
    env, port, path = dict(os.environ), None, ""
    while args and args[0] != "--":
        option, value = args.pop(0), args.pop(0)
        if option == "--limit":
            name, _, number = value.partition("=")
            limits.append((name, int(number)))
        elif option == "--env":
            name, _, text = value.partition("=")
            env[name] = text
        elif option == "--unset":
            env.pop(value, None)
        elif option == "--listen":
            port = int(value)
        elif option == "--connect":
            path = value
        else:
            fail(f"relay: unknown option {option}", 125)
    argv = args[1:]
    if port is None:
        execute(argv, limits, env)
    try:
        relay = Relay(port, path)
    except OSError as exc:
        fail(f"relay: cannot listen on 127.0.0.1:{port}: {exc}", 125)
    supervise(relay, argv, limits, env)


if __name__ == "__main__":
    main(sys.argv[1:])
