# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The process sandbox: no isolation at all, for where nothing better runs and the agent is trusted. Only ever chosen by name.

A command is a plain process of this user: it sees the host's files, network and processes, and ``network=False`` cannot be
enforced. What it does give: folders and environment of its own, a deadline, and an end to the process tree, daemons included
(a process that both leaves its session and wipes its environment gets away).

Paths differ from the other sandboxes. WORKDIR, HOME, TOOLCHAIN and (for ``put``, ``get`` and ``cwd``) /tmp stand for folders of
the host here. Words of the command line and environment values that *are* a path in one of the first three are translated;
text that merely mentions one, such as a shell script, is not and should say ``$HOME``, ``$TMPDIR`` or use relative paths. First
prompts that name the working directory differ between rollouts.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from nemo_polar.cancellation import uninterrupted
from nemo_polar.errors import SandboxError
from nemo_polar.sandboxes import relay
from nemo_polar.sandboxes.base import WORKDIR, ExecResult
from nemo_polar.sandboxes.bubblewrap import environment
from nemo_polar.sandboxes.host import HostSandbox
from nemo_polar.sandboxes.run import run

_MARK = "POLAR_PROCESS_TREE"
_KILL_SECONDS = 10.0


class ProcessSandbox(HostSandbox):
    """See the module. ``spec.options`` are ``HostOptions``."""

    name: ClassVar[str] = "process"
    isolated: ClassVar[bool] = False

    async def start(self) -> None:
        """Make the folders.

        Raises:
            SandboxError: they cannot be made.
        """
        if self._state != "new":
            raise SandboxError(f"sandbox {self.spec.id} cannot be started: it is {self._state}")
        await uninterrupted(asyncio.to_thread(self._make_folders))  # or a stop would overtake it
        self.proxy_url = self.spec.proxy_url or ""
        self._state = "started"

    def host_path(self, word: str) -> str:
        """``word``, or if it is a path in WORKDIR, HOME or TOOLCHAIN the host path that this stands for."""
        return self.folders.on_host(word, self.spec.toolchain)

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
        """See ``Sandbox.exec``; ``network`` is not enforced. The host's PATH is searched after the toolchain."""
        tree = _Tree(secrets.token_hex(16))
        path = os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin")
        if self.spec.toolchain is not None:
            path = f"{self.spec.toolchain}/bin:{path}"
        own = {"PATH": path, "TMPDIR": str(self.folders.mounts["/tmp"])}
        values = {**environment(own), **self.spec.env, **(env or {})}
        folder, names = self.folders.locate(cwd)
        command = run(
            [sys.executable, "-I", "-S", relay.__file__, "--limit", "core=0", "--", *map(self.host_path, argv)],
            env={name: self.host_path(value) for name, value in values.items()} | {_MARK: tree.mark},
            cwd=folder.joinpath(*names),
            stdin=stdin,
            timeout=timeout,
            max_output_bytes=self.spec.max_output_bytes,
            end=tree.end,
        )
        return await self._supervise(argv, timeout, command)


class _Tree:
    """The processes of one command: its session, its descendants, and whatever carries its mark in the environment."""

    def __init__(self, mark: str) -> None:
        self.mark = mark
        self._needle = f"{_MARK}={mark}".encode()

    async def end(self, leader: int) -> None:
        """Kill them, again and again until there is none: a process may fork while it is being looked for.

        Raises:
            SandboxError: some will not die.
        """
        deadline = time.monotonic() + _KILL_SECONDS
        while True:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(leader, signal.SIGKILL)
            left = self._find(leader)
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not left:
                return
            if time.monotonic() > deadline:
                raise SandboxError(f"processes {sorted(left)} of the sandbox will not die")
            await asyncio.sleep(0.01)

    def _find(self, leader: int) -> set[int]:
        parents: dict[int, int] = {}
        found: set[int] = set()
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                state, parent, _, session = (entry / "stat").read_text().rsplit(")", 1)[1].split()[:4]
                if state in "ZX":
                    continue
                parents[int(entry.name)] = int(parent)
                if int(session) == leader or self._needle in (entry / "environ").read_bytes().split(b"\0"):
                    found.add(int(entry.name))
            except OSError:  # ended meanwhile, or another user's
                continue
        found.add(leader)
        grown = True
        while grown:
            more = {pid for pid, parent in parents.items() if parent in found} - found
            found |= more
            grown = bool(more)
        return found & parents.keys()
