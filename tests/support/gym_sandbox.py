# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for NeMo Gym's sandbox layer, so that what is built on it is tested where Gym is not installed.

The types have the fields and the errors that Gym 0.4 and 0.7 share. ``FakeGymProvider`` runs plain processes of this host, as
Gym's ``local`` does; ``FakeContainerProvider`` gives each sandbox a root of its own (bubblewrap), as a container has.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest

BASE = "nemo_gym.sandbox.providers.base"
REGISTRY = "nemo_gym.sandbox.providers.registry"


class FakeStatus(StrEnum):
    RUNNING = "running"
    STOPPED = "stopped"
    ERROR = "error"
    UNKNOWN = "unknown"


class FakeCreateError(RuntimeError):
    pass


@dataclass(frozen=True)
class FakeResources:
    cpu: float | None = None
    memory_mib: int | None = None
    disk_gib: int | None = None
    gpu: int | None = None
    gpu_type: str | None = None


@dataclass(frozen=True)
class FakeSpec:
    image: str | None = None
    ttl_s: float | None = None
    ready_timeout_s: float | None = None
    workdir: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    resources: Any = field(default_factory=FakeResources)
    entrypoint: list[str] | None = None
    provider_options: dict[str, Any] = field(default_factory=dict)
    ports: tuple[int, ...] = ()


@dataclass
class FakeHandle:
    sandbox_id: str
    provider_name: str
    raw: Any


@dataclass(frozen=True)
class FakeResult:
    stdout: str | None
    stderr: str | None
    return_code: int
    error_type: str | None = None


class FakeGymProvider:
    """Plain processes of this host. What it was asked to do is kept, and each step can be made to fail."""

    name: ClassVar[str] = "fake"
    made: ClassVar[list[FakeGymProvider]] = []
    fail: ClassVar[dict[str, Exception]] = {}
    """By method: raised when it is called."""
    hold: ClassVar[dict[str, asyncio.Event]] = {}
    """By method: waited for when it is called."""

    def __init__(self, *, root: str, **config: Any) -> None:
        self.root, self.config = Path(root), config
        self.open: dict[str, FakeHandle] = {}
        self.specs: list[FakeSpec] = []
        self.commands: list[str] = []
        self.closed = 0
        self.aclosed = 0
        type(self).made.append(self)

    async def _step(self, name: str) -> None:
        if name in self.hold:
            await self.hold[name].wait()
        if name in self.fail:
            raise self.fail[name]

    async def create(self, spec: FakeSpec) -> FakeHandle:
        await self._step("create")
        folder = self.root / f"box{len(self.specs)}-{id(self)}"
        self.prepare(folder)
        self.specs.append(spec)
        handle = FakeHandle(folder.name, self.name, folder)
        self.open[handle.sandbox_id] = handle
        return handle

    def prepare(self, folder: Path) -> None:
        folder.mkdir(parents=True)

    def argv(self, folder: Path, command: str, cwd: str | None) -> tuple[Sequence[str], Path]:
        return ["/bin/sh", "-c", command], Path(cwd or folder)

    def host(self, folder: Path, path: str) -> Path:
        return folder / path

    async def exec(
        self,
        handle: FakeHandle,
        command: str,
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_s: float | None = None,
        user: str | int | None = None,
    ) -> FakeResult:
        await self._step("exec")
        self.commands.append(command)
        argv, folder = self.argv(handle.raw, command, cwd)
        process = await asyncio.create_subprocess_exec(
            *argv,
            cwd=folder,
            env={**os.environ, **self.specs[-1].env, **(env or {})},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            out, err = await asyncio.wait_for(process.communicate(), timeout_s)
        except (TimeoutError, asyncio.CancelledError) as exc:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            if isinstance(exc, asyncio.CancelledError):
                raise
            return FakeResult(None, "out of time", 125, "timeout")
        assert process.returncode is not None
        return FakeResult(out.decode(errors="replace"), err.decode(errors="replace"), process.returncode)

    async def upload_file(self, handle: FakeHandle, source_path: Path, target_path: str) -> None:
        await self._step("upload_file")
        target = self.host(handle.raw, target_path)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source_path, target)

    async def download_file(self, handle: FakeHandle, source_path: str, target_path: Path) -> None:
        await self._step("download_file")
        shutil.copy2(self.host(handle.raw, source_path), target_path)

    async def status(self, handle: FakeHandle) -> FakeStatus:
        return FakeStatus.RUNNING if handle.sandbox_id in self.open else FakeStatus.STOPPED

    async def close(self, handle: FakeHandle) -> None:
        await self._step("close")
        self.closed += 1
        self.open.pop(handle.sandbox_id, None)
        shutil.rmtree(handle.raw, ignore_errors=True)

    async def aclose(self) -> None:
        self.aclosed += 1


class FakeContainerProvider(FakeGymProvider):
    """A root file system of its own for each sandbox; the network is the host's unless ``network`` is "none"."""

    name = "fake_container"

    def prepare(self, folder: Path) -> None:
        for name in ("tmp", "usr", "proc", "dev", "etc", "opt"):
            (folder / name).mkdir(parents=True)
        for name in ("bin", "lib", "lib64", "sbin"):
            (folder / name).symlink_to(f"usr/{name}")

    def argv(self, folder: Path, command: str, cwd: str | None) -> tuple[Sequence[str], Path]:
        words = ["bwrap", "--die-with-parent", "--unshare-pid", "--bind", str(folder), "/"]
        words += ["--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev", "--chdir", cwd or "/"]
        if self.config.get("network") == "none":
            words.append("--unshare-net")
        for without in self.config.get("without", ()):
            words += ["--ro-bind", "/dev/null", f"/usr/bin/{without}"]
        return [*words, "/bin/sh", "-c", command], folder

    def host(self, folder: Path, path: str) -> Path:
        return folder / path.lstrip("/")


class FakeForwardingProvider(FakeContainerProvider):
    """A container that can forward ports: what it was asked for is kept; the forwarding ends when ``ended`` is set."""

    name = "fake_forwarding"
    ended: ClassVar[asyncio.Event | None] = None
    forwarded: ClassVar[list[tuple[str, tuple[int, ...]]]] = []

    def validate_port_forwarding(self) -> None:
        if self.config.get("forwarding") is False:
            raise NotImplementedError("forwarding is off in this provider's config")

    async def forward_ports(self, handle: FakeHandle, target_address: str, ports: tuple[int, ...], *, ready_file: str) -> None:
        self.forwarded.append((target_address, ports))
        self.host(handle.raw, ready_file).write_text("ready\n")
        if self.ended is None:
            await asyncio.Event().wait()
        else:
            await self.ended.wait()
            raise RuntimeError("the tunnel is gone")


PROVIDERS: dict[str, Callable[..., FakeGymProvider]] = {
    kind.name: kind for kind in (FakeGymProvider, FakeContainerProvider, FakeForwardingProvider)
}


def install_fake_gym(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Have Gym's two sandbox modules be stand-ins for this test, whether Gym is installed or not."""
    base, registry = ModuleType(BASE), ModuleType(REGISTRY)
    for name, stand_in in {
        "SandboxSpec": FakeSpec,
        "SandboxResources": FakeResources,
        "SandboxHandle": FakeHandle,
        "SandboxExecResult": FakeResult,
        "SandboxStatus": FakeStatus,
        "SandboxCreateError": FakeCreateError,
    }.items():
        setattr(base, name, stand_in)

    def create_provider(config: dict[str, dict[str, Any]]) -> FakeGymProvider:
        [(name, keywords)] = config.items()
        if name not in PROVIDERS:
            raise ValueError(f"Unknown sandbox provider {name!r}")
        return PROVIDERS[name](**keywords)

    registry.__dict__["create_provider"] = create_provider
    monkeypatch.setitem(sys.modules, BASE, base)
    monkeypatch.setitem(sys.modules, REGISTRY, registry)
    monkeypatch.setattr(FakeGymProvider, "made", [])
    monkeypatch.setattr(FakeGymProvider, "fail", {})
    monkeypatch.setattr(FakeGymProvider, "hold", {})
    monkeypatch.setattr(FakeForwardingProvider, "forwarded", [])
    monkeypatch.setattr(FakeForwardingProvider, "ended", None)
    return base
