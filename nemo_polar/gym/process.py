# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""One command of NeMo Gym as a child process: signals go through to it, and nothing that it started is left behind.

It gets a process group of its own. Gym ends its servers at a SIGINT only, so that is what it is sent for a SIGTERM, too, and
when this process dies. When it is gone, whatever still runs in its group is ended: Gym 0.4.0 leaves its servers when one of
them fails to start. Other processes are never touched.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from nemo_polar.child import signalled_with_parent
from nemo_polar.errors import ConfigError
from nemo_polar.gym.command import Command

POLL_SECONDS = 0.1
PATIENCE_SECONDS = 60.0
"""For a command to end after the first signal."""
TERM_SECONDS = 5.0
"""For what is left of the group to end by itself."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    exit_code: int
    """As a shell has it: 128 and the signal's number where one ended it."""
    interrupted: bool
    """A signal came for it."""
    left_behind: int
    """Processes of its group that had to be ended."""


def run(command: Command, *, patience: float = PATIENCE_SECONDS) -> Ended:
    """Run it to its end, with this process's own input and output.

    Raises:
        ConfigError: it cannot be started.
    """
    try:
        process = subprocess.Popen(
            command.argv,
            cwd=command.cwd,
            env={**os.environ, **command.env},
            start_new_session=True,
            preexec_fn=_interrupt_with_parent,
        )
    except OSError as exc:
        raise ConfigError(f"{command.argv[0]} cannot be started: {exc.strerror}") from exc
    try:
        with _forwarded(process.pid) as signals:
            # Not reaped yet: as long as its id is taken, the group's id is, and no stranger can get it.
            while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
                time.sleep(POLL_SECONDS)
                if signals and time.monotonic() - signals[0] > patience:
                    _send(process.pid, signal.SIGKILL)
            left = end_group(process.pid)
    finally:
        end_group(process.pid)
        code = process.wait()
    return Ended(128 - code if code < 0 else code, bool(signals), left)


def end_group(group: int, *, seconds: float = TERM_SECONDS) -> int:
    """End every process of a group but its leader.

    Returns:
        How many there were.
    """
    found = members(group)
    if not found:
        return 0
    _send(group, signal.SIGTERM)
    deadline = time.monotonic() + seconds
    while members(group) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    while members(group):
        _send(group, signal.SIGKILL)
        time.sleep(POLL_SECONDS)
    return len(found)


def members(group: int) -> list[int]:
    """The living processes of a group but its leader."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == group:
            continue
        with suppress(OSError, ValueError, IndexError):
            state, _, number = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[:3]
            if int(number) == group and state not in "ZX":
                found.append(int(entry.name))
    return found


def check_port(port: int) -> None:
    """Raise ``ConfigError`` when something listens on Gym's head port on this machine."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as exc:
            raise ConfigError(
                f"port {port} is in use ({exc.strerror}): most likely a NeMo Gym runs on this machine already "
                f"(gym env status). Stop it, or give this one another, and name it to polar gym collect as well: "
                f"+head_server.host=127.0.0.1 +head_server.port={port + 1}"
            ) from exc


def _interrupt_with_parent() -> None:
    """In the child, before it starts: be interrupted when the parent dies; have signals at their defaults."""
    signalled_with_parent(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def _forwarded(group: int) -> Iterator[list[float]]:
    """Hand SIGINT and SIGTERM on in this block: the first as a SIGINT to the leader, the second as a SIGTERM to the whole
    group, further ones as a SIGKILL. Yields when they came."""
    came: list[float] = []

    def forward(number: int, frame: FrameType | None) -> None:
        came.append(time.monotonic())
        if len(came) == 1:
            with suppress(ProcessLookupError):
                os.kill(group, signal.SIGINT)
        else:
            _send(group, signal.SIGTERM if len(came) == 2 else signal.SIGKILL)

    before: dict[signal.Signals, Callable[..., object] | int | None] = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.signal(number, forward)
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]


def _send(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
