# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What a sandbox is: a place where a harness runs, reaching nothing but the proxy.

``start, exec, put, get, stop``; every ``exec`` has a deadline, and nothing of it lives on after it ends. Paths are those
*inside* the sandbox: ``WORKDIR`` and ``HOME`` are the same for every run, so two rollouts of a task send the same first prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol

WORKDIR = "/workspace"
HOME = "/home/polar"
TOOLCHAIN = "/opt/polar"


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """What a sandbox needs to know."""

    id: str
    """Unique; names folders and processes."""
    scratch: Path
    """Host folder that may be used and is empty; the sandbox removes what it made there at ``stop``."""
    toolchain: Path | None = None
    """Host folder mounted read-only at TOOLCHAIN."""
    proxy_socket: Path | None = None
    """Host path of the proxy's Unix socket; reachable inside at ``Sandbox.proxy_url``. None: nothing is reachable."""
    proxy_url: str | None = None
    """The proxy's TCP address on the host, for sandboxes without a network of their own."""
    env: Mapping[str, str] = field(default_factory=dict)
    max_output_bytes: int = 8 * 1024 * 1024
    """Kept of stdout and of stderr each; more is counted and dropped."""
    options: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExecResult:
    """What a command left behind."""

    exit_code: int
    """128 + signal when a signal ended it."""
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    truncated: bool = False
    """Output was over ``max_output_bytes``."""
    seconds: float = 0.0


class Sandbox(Protocol):
    """One sandbox. Built from a ``SandboxSpec``."""

    name: ClassVar[str]
    isolated: ClassVar[bool]
    proxy_url: str
    """Where the proxy is, seen from inside; valid after ``start``."""

    def __init__(self, spec: SandboxSpec) -> None: ...

    async def start(self) -> None:
        """Make it ready.

        Raises:
            SandboxError: it cannot be; the message says what is missing and how to get it.
        """
        ...

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
        """Run a command. At the deadline, or when cancelled, its whole process tree is killed.

        With ``network`` False not even the proxy is reachable.

        Raises:
            SandboxError: the sandbox itself failed (a command that fails is an ordinary result).
        """
        ...

    async def put(self, files: Mapping[str, bytes], *, executable: Sequence[str] = ()) -> None:
        """Write files; missing folders are made. Paths must be absolute and inside WORKDIR, HOME or /tmp.

        Raises:
            SandboxError: a path leads elsewhere (also through a symbolic link that the agent made), or the disk is full.
        """
        ...

    async def get(self, path: str, *, max_bytes: int = 64 * 1024 * 1024) -> bytes:
        """One file.

        Raises:
            FileNotFoundError: no such file.
            SandboxError: it leads out of the sandbox, is not a plain file or is too large.
        """
        ...

    async def snapshot(self, path: str, target: Path) -> None:
        """Copy a folder out to the host: plain files, folders and links (as links), nothing else, no devices, no set-uid bits.

        Raises:
            SandboxError: it is too large or leads out of the sandbox.
        """
        ...

    async def stop(self) -> None:
        """Kill what runs, unmount, remove. Safe to call twice and after a failed ``start``."""
        ...
