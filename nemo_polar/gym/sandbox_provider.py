# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Polar's sandboxes as providers of NeMo Gym: ``polar_local`` (bubblewrap) and ``polar_process`` (no isolation).

Gym finds them through the entry point group ``nemo_gym.sandbox_providers`` and takes any class with the methods of its
``SandboxProvider``, so Gym is not imported here until one of them is used, and then only for the plain types it wants back.
What a request asks for and cannot be had (an image, resources, another user...) is refused by name; nothing is ignored.

Nothing of a command lives on after it, and ``polar_local`` has no network. In ``polar_process`` the paths /workspace and
/home/polar stand for folders of the host: they are translated as ``cwd`` and in transfers, but not in the text of a command.
"""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import math
import secrets
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

from nemo_polar.cancellation import uninterrupted
from nemo_polar.errors import SandboxError
from nemo_polar.sandboxes.base import WORKDIR, SandboxSpec
from nemo_polar.sandboxes.local import LocalSandbox
from nemo_polar.sandboxes.process import ProcessSandbox

RUNTIME_RETURN_CODE = 125
"""Of a result whose ``error_type`` says that there is no exit code of the command, as with Gym's own host providers."""

_HONOURED = ("ttl_s", "ready_timeout_s", "workdir", "env", "files", "metadata", "provider_options", "resources")
"""Fields of a request. Of ``resources`` only the empty ones; ``files`` are uploaded by Gym itself once the sandbox is made."""
_RESOURCES = ("cpu", "memory_mib", "disk_gib", "gpu", "gpu_type")


def _gym() -> Any:
    """Gym's module of provider types. Whoever calls a provider has loaded it already."""
    return importlib.import_module("nemo_gym.sandbox.providers.base")


@dataclass(slots=True)
class _Box:
    """What a handle carries for us."""

    sandbox: LocalSandbox | ProcessSandbox
    scratch: Path
    workdir: str
    metadata: Mapping[str, str]
    """Labels of the caller; kept, with no meaning to us."""
    closed: bool = False
    expiry: asyncio.TimerHandle | None = None
    expiring: asyncio.Task[None] | None = None


class PolarProvider:
    """Base of both; see the module. One instance may serve any number of sandboxes."""

    name: ClassVar[str] = "polar"
    sandbox_type: ClassVar[type[LocalSandbox] | type[ProcessSandbox]] = ProcessSandbox

    def __init__(
        self,
        *,
        toolchain: str | None = None,
        scratch: str | None = None,
        shell: str = "/bin/sh",
        default_timeout_s: float = 180.0,
        max_output_bytes: int = 8 * 1024 * 1024,
        max_file_bytes: int = 1024**3,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Keys of the provider's block in a Gym config.

        Args:
            toolchain: host folder that is shown read-only as /opt/polar, its ``bin`` first on PATH. scratch: host folder
            below which each sandbox has one of its own; None: the system's folder for temporary files. shell: runs commands,
            as ``shell -c``. default_timeout_s: for commands that name none. max_output_bytes: kept of stdout and of stderr
            each. max_file_bytes: of one download. options: the sandbox's own, see ``nemo_polar.sandboxes.options``.

        Raises:
            ValueError: a value is out of range.
        """
        if not default_timeout_s > 0 or not math.isfinite(default_timeout_s):
            raise ValueError("default_timeout_s must be a positive number of seconds")
        if max_output_bytes <= 0 or max_file_bytes <= 0:
            raise ValueError("max_output_bytes and max_file_bytes must be positive")
        self._toolchain = None if toolchain is None else Path(toolchain).expanduser().resolve()
        self._scratch = None if scratch is None else Path(scratch).expanduser().resolve()
        self._shell = shell
        self._default_timeout_s = default_timeout_s
        self._max_output_bytes = max_output_bytes
        self._max_file_bytes = max_file_bytes
        self._options = dict(options or {})

    async def create(self, spec: Any) -> Any:
        """A ready sandbox for Gym's ``SandboxSpec``. ``provider_options`` are the sandbox's own, over those of the provider.

        Returns:
            Gym's ``SandboxHandle``.

        Raises:
            SandboxCreateError: it cannot be made, or the request asks for something it cannot have.
        """
        gym = _gym()
        if refused := _refused(spec):
            raise gym.SandboxCreateError(
                f"{self.name}: it cannot honour {', '.join(refused)}; leave that out, or take a provider of containers"
            )
        try:
            box = await self._started(spec)
        except TimeoutError as exc:
            raise gym.SandboxCreateError(f"{self.name}: not ready within ready_timeout_s={spec.ready_timeout_s}") from exc
        except (SandboxError, OSError) as exc:
            raise gym.SandboxCreateError(f"{self.name}: {exc}") from exc
        if spec.ttl_s is not None:
            box.expiry = asyncio.get_running_loop().call_later(float(spec.ttl_s), self._expire, box)
        return gym.SandboxHandle(sandbox_id=box.sandbox.spec.id, provider_name=self.name, raw=box)

    async def _started(self, spec: Any) -> _Box:
        if self._scratch is not None:
            self._scratch.mkdir(parents=True, exist_ok=True)
        name = f"{self.name}-{secrets.token_hex(6)}"
        scratch = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self._scratch))
        try:
            sandbox = self.sandbox_type(
                SandboxSpec(
                    id=name,
                    scratch=scratch,
                    toolchain=self._toolchain,
                    env={str(key): str(value) for key, value in spec.env.items()},
                    max_output_bytes=self._max_output_bytes,
                    options={**self._options, **spec.provider_options},
                )
            )
            box = _Box(sandbox, scratch, spec.workdir or WORKDIR, dict(spec.metadata))
            try:
                async with asyncio.timeout(spec.ready_timeout_s):
                    await sandbox.start()
                    await self._make_workdir(box)
            except BaseException:
                await uninterrupted(sandbox.stop())
                raise
        except BaseException:
            await uninterrupted(asyncio.to_thread(shutil.rmtree, scratch, True))
            raise
        return box

    async def _make_workdir(self, box: _Box) -> None:
        """Raises SandboxError when the request's working folder lies outside the folders that the sandbox has."""
        _, names = box.sandbox.folders.locate(box.workdir)
        if names:
            keep = f"{box.workdir.rstrip('/')}/.polar"  # a file makes its folders, never through a link
            await box.sandbox.put({keep: b""})
            await box.sandbox.exec(["rm", "-f", ".polar"], timeout=30, cwd=box.workdir)

    async def exec(
        self,
        handle: Any,
        command: str,
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_s: int | float | None = None,
        user: str | int | None = None,
    ) -> Any:
        """Run a command in the shell. A relative ``cwd`` is below the sandbox's working folder.

        Returns:
            Gym's ``SandboxExecResult``. At the time-out the whole tree is killed and ``error_type`` is "timeout", with the
            output that there was; where the sandbox itself failed it is "sandbox". The return code of both is 125.

        Raises:
            ValueError: ``user`` was given.
        """
        if user is not None:
            raise ValueError(f"{self.name}: it cannot run a command as another user (user={user!r})")
        box: _Box = handle.raw
        seconds = self._default_timeout_s if timeout_s is None else float(timeout_s)
        try:
            result = await box.sandbox.exec(
                [self._shell, "-c", command], timeout=seconds, env=env, cwd=_below(box.workdir, cwd or "."), network=False
            )
        except (SandboxError, OSError) as exc:
            return self._result(b"", str(exc).encode(), RUNTIME_RETURN_CODE, "sandbox")
        if result.timed_out:
            note = f"{result.stderr.decode(errors='replace')}\n{self.name}: the command timed out after {seconds:g} s".strip()
            return self._result(result.stdout, note.encode(), RUNTIME_RETURN_CODE, "timeout")
        return self._result(result.stdout, result.stderr, result.exit_code, None)

    @staticmethod
    def _result(stdout: bytes, stderr: bytes, code: int, error_type: str | None) -> Any:
        out, err = (data.decode(errors="replace") for data in (stdout, stderr))
        return _gym().SandboxExecResult(stdout=out, stderr=err, return_code=code, error_type=error_type)

    async def upload_file(self, handle: Any, source_path: Path, target_path: str) -> None:
        """Copy one host file in; it stays executable. A relative target is below the working folder.

        Raises:
            FileNotFoundError: no such host file.
            RuntimeError: the target is outside /workspace, /home/polar and /tmp, behind a link, or the disk is full.
        """
        box: _Box = handle.raw
        target = _below(box.workdir, target_path)
        source = Path(source_path)
        data, mode = await asyncio.to_thread(lambda: (source.read_bytes(), source.stat().st_mode))
        try:
            await box.sandbox.put({target: data}, executable=[target] if mode & 0o100 else [])
        except SandboxError as exc:
            raise RuntimeError(f"{self.name}: upload to {target_path!r} failed: {exc}") from exc

    async def download_file(self, handle: Any, source_path: str, target_path: Path) -> None:
        """Copy one file out. A relative source is below the working folder.

        Raises:
            FileNotFoundError: no such file in the sandbox.
            RuntimeError: it is outside /workspace, /home/polar and /tmp, behind a link, no plain file or too large.
        """
        box: _Box = handle.raw
        target = Path(target_path)
        try:
            data = await box.sandbox.get(_below(box.workdir, source_path), max_bytes=self._max_file_bytes)
        except SandboxError as exc:
            raise RuntimeError(f"{self.name}: download of {source_path!r} failed: {exc}") from exc

        def write() -> None:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)

        await asyncio.to_thread(write)

    async def status(self, handle: Any) -> Any:
        """Gym's ``SandboxStatus``: running until it is closed or its ``ttl_s`` is over."""
        status = _gym().SandboxStatus
        return status.STOPPED if handle.raw.closed else status.RUNNING

    async def close(self, handle: Any) -> None:
        """Kill what runs in it and remove its folders. May be called again.

        Raises:
            RuntimeError: something cannot be killed or removed.
        """
        box: _Box = handle.raw
        if box.expiry is not None:
            box.expiry.cancel()
        if box.expiring is not None:
            await asyncio.wait([box.expiring])
        try:
            await self._close(box)
        except SandboxError as exc:
            raise RuntimeError(f"{self.name}: {handle.sandbox_id} cannot be closed: {exc}") from exc

    async def _close(self, box: _Box) -> None:
        if box.closed and not box.scratch.exists():
            return
        box.closed = True
        await box.sandbox.stop()
        await uninterrupted(asyncio.to_thread(shutil.rmtree, box.scratch, True))

    def _expire(self, box: _Box) -> None:
        box.expiring = asyncio.ensure_future(self._close(box))
        box.expiring.add_done_callback(lambda task: task.cancelled() or task.exception())  # ``close`` tries again, and says

    async def aclose(self) -> None:
        """Nothing is shared by the sandboxes of a provider. Those that are open stay so: Gym 0.4 calls this after each."""


class PolarLocalProvider(PolarProvider):
    """Namespaces of its own for each command, no network. ``options`` are ``nemo_polar.sandboxes.options.LocalOptions``."""

    name = "polar_local"
    sandbox_type = LocalSandbox


class PolarProcessProvider(PolarProvider):
    """Plain processes of this user, with a deadline and an end to the tree. For trusted code only."""

    name = "polar_process"
    sandbox_type = ProcessSandbox


def _refused(spec: Any) -> list[str]:
    """The fields of a request that say something which cannot be done here, those of a later Gym included."""
    found = [field.name for field in dataclasses.fields(spec) if field.name not in _HONOURED and getattr(spec, field.name)]
    return [*found, *(f"resources.{name}" for name in _RESOURCES if _asked(spec, name))]


def _asked(spec: Any, name: str) -> bool:
    value = getattr(spec.resources, name, None)
    return value is not None and value != 0


def _below(workdir: str, path: str) -> str:
    return str(PurePosixPath(workdir) / path)
