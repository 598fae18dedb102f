# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What the local and the process sandbox have in common: folders on this host, and a life with one start and one stop.

How a command is run, and how its process tree ends, is the subclass's part.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from nemo_polar.cancellation import uninterrupted
from nemo_polar.errors import SandboxError
from nemo_polar.sandboxes.base import HOME, WORKDIR, ExecResult, SandboxSpec
from nemo_polar.sandboxes.files import Folders, Owner, remove
from nemo_polar.sandboxes.options import HostOptions, parse

_SUBFOLDERS = {WORKDIR: "workspace", HOME: "home", "/tmp": "tmp"}


class HostSandbox:
    """Base of the sandboxes whose files lie in ``spec.scratch``: ``workspace``, ``home`` and ``tmp`` below it."""

    options_type: ClassVar[type[HostOptions]] = HostOptions

    def __init__(self, spec: SandboxSpec) -> None:
        self.spec = spec
        self.options = parse(self.options_type, spec.options)
        self.folders = Folders({inside: spec.scratch / name for inside, name in _SUBFOLDERS.items()}, self._owner())
        self.proxy_url = ""
        self._state = "new"
        self._running: set[asyncio.Task[ExecResult]] = set()

    def _owner(self) -> Owner | None:
        return None

    def _made(self) -> list[Path]:
        """Folders below the scratch that ``stop`` removes."""
        return list(self.folders.mounts.values())

    async def put(self, files: Mapping[str, bytes], *, executable: Sequence[str] = ()) -> None:
        """See ``Sandbox.put``. A link or file at the path itself is replaced; nothing is ever written through a link."""
        self._check_started()

        def write() -> None:
            for path, data in files.items():
                self.folders.write(path, data, 0o755 if path in executable else 0o644)

        await uninterrupted(asyncio.to_thread(write))

    async def get(self, path: str, *, max_bytes: int = 64 * 1024 * 1024) -> bytes:
        """See ``Sandbox.get``."""
        self._check_started()
        return await asyncio.to_thread(self.folders.read, path, max_bytes)

    async def snapshot(self, path: str, target: Path) -> None:
        """See ``Sandbox.snapshot``. ``target`` must be missing or empty; permissions and times are kept."""
        self._check_started()
        limits = {"max_bytes": self.options.snapshot_bytes, "max_entries": self.options.snapshot_files}
        await uninterrupted(asyncio.to_thread(self.folders.copy_out, path, target, **limits))

    async def stop(self) -> None:
        """See ``Sandbox.stop``. Commands still running end with ``SandboxError``."""
        if self._state == "stopped":
            return
        self._state = "stopped"
        for task in list(self._running):
            task.cancel()
        if self._running:
            await uninterrupted(asyncio.wait(self._running))

        def clear() -> None:
            for folder in self._made():
                remove(folder)

        await uninterrupted(asyncio.to_thread(clear))

    def _check_started(self) -> None:
        if self._state != "started":
            raise SandboxError(f"sandbox {self.spec.id} is {self._state}: it must be started first")

    def _make_folders(self) -> None:
        if not self.spec.scratch.is_dir():
            raise SandboxError(f"the scratch folder {self.spec.scratch} does not exist")
        try:
            self.folders.make()
        except OSError as exc:
            raise SandboxError(f"{self.spec.scratch}: the sandbox's folders cannot be made: {exc.strerror}") from exc

    async def _supervise(self, argv: Sequence[str], timeout: float, command: Coroutine[Any, Any, ExecResult]) -> ExecResult:
        """Await a command so that ``stop`` can end it too."""
        try:
            self._check_started()
            if not argv or any("\0" in word for word in argv):
                raise SandboxError("a command needs at least one word, and no word may hold a NUL")
            if not math.isfinite(timeout):
                raise SandboxError("a command needs a finite timeout, in seconds")
        except SandboxError:
            command.close()
            raise
        task = asyncio.ensure_future(command)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            return await task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if self._state == "stopped" and not (current and current.cancelling()):
                raise SandboxError(f"sandbox {self.spec.id} was stopped while a command ran") from None
            raise
