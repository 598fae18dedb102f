# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Sandboxes for tests: started in a temporary folder, with Python and a proxy to talk to inside."""

from __future__ import annotations

import asyncio
import functools
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nemo_polar.sandboxes.base import ExecResult, SandboxSpec
from nemo_polar.sandboxes.bubblewrap import this_python
from nemo_polar.sandboxes.local import LocalSandbox


@functools.cache
def why_no_bwrap() -> str | None:
    """Why the local sandbox cannot run on this machine; None when it can."""
    path = shutil.which("bwrap")
    if path is None:
        return "bubblewrap is not installed (apt-get install bubblewrap)"
    probe = subprocess.run([path, "--unshare-all", "--ro-bind", "/", "/", "true"], capture_output=True, text=True, check=False)
    return None if probe.returncode == 0 else f"bubblewrap cannot make namespaces here: {probe.stderr.strip()}"


needs_bwrap = pytest.mark.skipif(why_no_bwrap() is not None, reason=str(why_no_bwrap()))


@asynccontextmanager
async def local_sandbox(scratch: Path, name: str = "box", **spec: Any) -> AsyncIterator[LocalSandbox]:
    """A started local sandbox in a new folder below ``scratch``, stopped at the end."""
    folder = scratch / name
    folder.mkdir()
    sandbox = LocalSandbox(SandboxSpec(id=name, scratch=folder, **spec))
    await sandbox.start()
    try:
        yield sandbox
    finally:
        await sandbox.stop()


async def python(sandbox: LocalSandbox, code: str, *args: str, timeout: float = 20, **options: Any) -> ExecResult:
    """Run ``code`` inside with the Python that the sandbox has for its relay."""
    inside = this_python()
    env: Mapping[str, str] = {"LD_LIBRARY_PATH": inside.library_path} if inside.library_path else {}
    return await sandbox.exec([inside.executable, "-I", "-c", code, *args], timeout=timeout, env=env, **options)


@asynccontextmanager
async def echo_socket(path: Path) -> AsyncIterator[Path]:
    """A Unix socket that answers with what it is sent and closes when its client has."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_unix_server(serve, path)
    try:
        yield path
    finally:
        server.close()


def processes_with(needle: str) -> list[int]:
    """Host pids, zombies aside, whose environment or command line holds ``needle``."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
            text = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
        except OSError:  # ended meanwhile, or another user's
            continue
        if needle.encode() in text and state != "Z":
            found.append(int(entry.name))
    return found


async def processes_appear(needle: str, count: int = 1) -> list[int]:
    """Wait for ``processes_with(needle)`` to find at least ``count``."""
    async with asyncio.timeout(20):
        while len(found := processes_with(needle)) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return found


async def processes_disappear(needle: str) -> None:
    """Wait for ``processes_with(needle)`` to find none."""
    async with asyncio.timeout(20):
        while processes_with(needle):  # noqa: ASYNC110  (the kernel tells nobody)
            await asyncio.sleep(0.01)


def children() -> list[str]:
    """Pids of this process's own children, zombies included."""
    return [pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()]


def open_descriptors() -> int:
    """How many this process has."""
    return len(list(Path("/proc/self/fd").iterdir()))


def mounts() -> str:
    """What is mounted in this process's namespace."""
    return Path("/proc/self/mountinfo").read_text()


def command_lines() -> list[bytes]:
    """Those of all processes of this machine."""
    found: list[bytes] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes())
        except OSError:
            continue
    return found
