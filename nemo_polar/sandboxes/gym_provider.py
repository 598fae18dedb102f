# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""One sandbox of a NeMo Gym provider: made, used and closed through Gym's own protocol, whichever provider it is.

Every step has a bound in time, and whatever a provider raises becomes a ``SandboxError`` that names it. Gym is imported when a
sandbox is made. What is run inside, and what it means, is not known here.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import tempfile
from collections.abc import Awaitable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from nemo_polar.errors import SandboxError
from nemo_polar.sandboxes.gym_options import GymOptions

_T = TypeVar("_T")
GRACE_SECONDS = 15.0
"""For a provider to report the end of a command that ended in time."""
_CLOSE_SECONDS = 120.0
_CLOSE_TRIES = 2
_TAIL = 2000


class Provider(Protocol):
    """The methods of Gym's ``SandboxProvider`` that are used. Handles, requests and results are Gym's own types."""

    async def create(self, spec: Any) -> Any: ...
    async def exec(self, handle: Any, command: str, *, timeout_s: float | None = None) -> Any: ...
    async def upload_file(self, handle: Any, source_path: Path, target_path: str) -> None: ...
    async def download_file(self, handle: Any, source_path: str, target_path: Path) -> None: ...
    async def status(self, handle: Any) -> Any: ...
    async def close(self, handle: Any) -> None: ...
    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Ran:
    """What a provider says of a command."""

    stdout: str
    stderr: str
    code: int
    error: str | None
    """"timeout", "sandbox" or another word of the provider's, when ``code`` is not the command's."""


class GymBox:
    """See the module."""

    def __init__(self, options: GymOptions, scratch: Path) -> None:
        self.options = options
        self.handle: Any = None
        self._scratch = scratch
        self._provider: Provider | None = None
        self._creating: asyncio.Task[Any] | None = None

    @property
    def provider(self) -> Provider:
        if self._provider is None:
            raise SandboxError("no sandbox was made")
        return self._provider

    async def create(self) -> None:
        """Make the provider and the sandbox. If this is cancelled, ``close`` sees to what was being made.

        Raises:
            SandboxError: Gym is not installed, has no such provider, or the provider refuses.
        """
        options = self.options
        try:
            registry = importlib.import_module("nemo_gym.sandbox.providers.registry")
            base = importlib.import_module("nemo_gym.sandbox.providers.base")
        except ImportError as exc:
            raise SandboxError(f"the gym sandbox needs NeMo Gym (pip install 'nemo_polar[gym]'): {exc}") from exc
        try:
            self._provider = registry.create_provider({options.provider: dict(options.provider_config)})
            request = base.SandboxSpec(**{**options.spec, "image": options.image})
        except Exception as exc:  # a plug-in's constructor may raise anything
            raise SandboxError(f"Gym's provider {options.provider!r}: {_said(exc)}") from exc
        self._creating = asyncio.ensure_future(self.provider.create(request))
        self.handle = await self._bounded("make a sandbox", asyncio.shield(self._creating), options.start_seconds)

    async def run(self, command: str, *, timeout: float) -> Ran:
        """Run a shell command.

        Raises:
            SandboxError: the provider raised, or did not end it in time.
        """
        work = self.provider.exec(self.handle, command, timeout_s=timeout)
        result = await self._bounded("run a command", work, timeout + GRACE_SECONDS)
        return Ran(result.stdout or "", result.stderr or "", int(result.return_code), getattr(result, "error_type", None))

    async def control(self, command: str, *, ok: tuple[int, ...] = (0,), timeout: float | None = None) -> Ran:
        """Run a command of ours, whose failure is the sandbox's.

        Raises:
            SandboxError: as ``run``, or it ended with a code that is not in ``ok``.
        """
        ran = await self.run(command, timeout=self.options.transfer_seconds if timeout is None else timeout)
        if ran.error is not None or ran.code not in ok:
            said = (ran.stderr or ran.stdout).strip()[-_TAIL:] or "a command of ours failed"
            raise SandboxError(f"Gym's provider {self.options.provider!r}: {said} ({ran.error or f'exit code {ran.code}'})")
        return ran

    async def upload(self, data: bytes | Path, target: str) -> None:
        """A file into the sandbox, readable for whoever runs commands there.

        Raises:
            SandboxError: the provider refuses, or takes too long.
        """
        if isinstance(data, Path):
            await self._bounded(f"upload {target}", self.provider.upload_file(self.handle, data, target))
            return
        path = await asyncio.to_thread(self._temporary, data)
        try:
            await self._bounded(f"upload {target}", self.provider.upload_file(self.handle, path, target))
        finally:
            await asyncio.to_thread(path.unlink, True)

    async def download(self, source: str, target: Path) -> None:
        """A file out of the sandbox.

        Raises:
            SandboxError: the provider refuses, or takes too long.
        """
        await self._bounded(f"download {source}", self.provider.download_file(self.handle, source, target))

    async def read(self, source: str, *, max_bytes: int) -> bytes:
        """What is in a file inside.

        Raises:
            SandboxError: as ``download``, or it is larger.
        """
        path = await asyncio.to_thread(self._temporary, b"")
        try:
            await self.download(source, path)
            return await asyncio.to_thread(_limited, path, source, max_bytes)
        finally:
            await asyncio.to_thread(path.unlink, True)

    async def check_running(self) -> None:
        """Raises SandboxError unless the provider says that the sandbox runs."""
        status = await self._bounded("say how the sandbox is", self.provider.status(self.handle))
        if str(getattr(status, "value", status)) != "running":
            raise SandboxError(f"Gym's provider {self.options.provider!r} lost the sandbox: it is {status!s}")

    async def close(self) -> None:
        """End the sandbox and the provider's connections. May come at any time, and again if it failed.

        Raises:
            SandboxError: the provider could not end it: it may still run.
        """
        if self._creating is not None and not self._creating.done():
            await asyncio.wait([self._creating], timeout=_CLOSE_SECONDS)
            self._creating.cancel()
            await asyncio.wait([self._creating])
        if self._creating is not None and not self._creating.cancelled() and self._creating.exception() is None:
            for left in reversed(range(_CLOSE_TRIES)):
                try:
                    await self._bounded("close the sandbox", self.provider.close(self._creating.result()), _CLOSE_SECONDS)
                    break
                except SandboxError:
                    if not left:
                        raise
        self._creating = None
        if self._provider is not None:
            await self._bounded("close its connections", self._provider.aclose(), _CLOSE_SECONDS)
            self._provider = None

    async def _bounded(self, what: str, work: Awaitable[_T] | Coroutine[Any, Any, _T], seconds: float | None = None) -> _T:
        name, seconds = self.options.provider, self.options.transfer_seconds if seconds is None else seconds
        within = asyncio.timeout(seconds)
        try:
            async with within:
                return await work
        except Exception as exc:  # a provider's client may raise anything; here it becomes ours
            why = f"it took more than {seconds:.0f} s" if within.expired() else _said(exc)
            raise SandboxError(f"Gym's provider {name!r} could not {what}: {why}") from exc

    def _temporary(self, data: bytes) -> Path:
        fd, name = tempfile.mkstemp(prefix="gym-", dir=self._scratch)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            os.fchmod(fd, 0o644)
        return Path(name)


def _said(exc: Exception) -> str:
    return f"{type(exc).__name__}: {exc}" if str(exc) else type(exc).__name__


def _limited(path: Path, source: str, max_bytes: int) -> bytes:
    if path.stat().st_size > max_bytes:
        raise SandboxError(f"{source} has {path.stat().st_size} bytes; at most {max_bytes} are read")
    return path.read_bytes()
