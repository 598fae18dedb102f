# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The local sandbox: bubblewrap, one set of namespaces a command.

Each ``exec`` gets its own user, mount, pid, network, IPC, UTS and cgroup namespaces over the sandbox's folders; when the
command ends, its pid namespace is killed by the kernel and waited for. What an agent can reach is: its own folders, read-only
system files, and one loopback port that leads to the proxy. It bounds processes, not memory or disk: run the whole of Polar
in a cgroup for those.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, cast

from nemo_polar.cancellation import uninterrupted
from nemo_polar.errors import SandboxError
from nemo_polar.sandboxes import bubblewrap, privilege, seccomp
from nemo_polar.sandboxes.base import WORKDIR, ExecResult
from nemo_polar.sandboxes.files import Owner
from nemo_polar.sandboxes.host import HostSandbox
from nemo_polar.sandboxes.options import LocalOptions
from nemo_polar.sandboxes.run import memory_file, readable, run

_START_SECONDS = 20.0
"""For the probe at ``start``, and for bubblewrap to say which process is its namespace's first."""
_HOST_ENV = {"PATH": privilege.HOST_PATH, "LANG": "C.UTF-8"}
_HELP = (
    "The local sandbox needs unprivileged user namespaces: see that user.max_user_namespaces is not 0, and that neither "
    "kernel.unprivileged_userns_clone=0, kernel.apparmor_restrict_unprivileged_userns=1 nor a container's seccomp profile "
    "forbids them (as root, the option own_uid=false needs no unprivileged ones), or choose another sandbox"
)


class LocalSandbox(HostSandbox):
    """See the module. ``spec.options`` are ``LocalOptions``."""

    name: ClassVar[str] = "local"
    isolated: ClassVar[bool] = True
    options_type = LocalOptions

    @property
    def _options(self) -> LocalOptions:
        return cast(LocalOptions, self.options)

    def _owner(self) -> Owner | None:
        return privilege.owner_for(self.spec.id) if self._options.own_uid else None

    @property
    def _etc(self) -> Path:
        return self.spec.scratch / "etc"

    def _made(self) -> list[Path]:
        return [*super()._made(), self._etc]

    async def start(self) -> None:
        """Make the folders and prove that a command runs.

        Raises:
            SandboxError: bubblewrap is missing or cannot make namespaces here; the message says what to do.
        """
        if self._state != "new":
            raise SandboxError(f"sandbox {self.spec.id} cannot be started: it is {self._state}")
        bubblewrap.find_bwrap()
        if self.folders.owner is not None:
            privilege.check_tools()
        for path, what in ((self.spec.toolchain, "toolchain folder"), (self.spec.proxy_socket, "proxy socket")):
            if path is not None and not path.exists():
                raise SandboxError(f"the {what} {path} does not exist")
        await uninterrupted(asyncio.to_thread(self._prepare))  # or a stop would overtake it
        self._state = "started"
        self.proxy_url = f"http://127.0.0.1:{self._options.port}"
        try:
            probe = await self.exec(["true"], timeout=_START_SECONDS)
            if probe.exit_code != 0:
                raise SandboxError(f"the sandbox cannot run a command: {probe.stderr.decode(errors='replace').strip()}")
        except SandboxError:
            self._state = "new"
            raise

    def _prepare(self) -> None:
        self._make_folders()
        bubblewrap.write_etc(self._etc)
        if self.folders.owner is not None and self.spec.proxy_socket is not None:
            privilege.open_socket_to_group(self.spec.proxy_socket)

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
        """See ``Sandbox.exec``. Nothing a command leaves running lives on, at its end as at the deadline."""
        command = self._exec(list(argv), timeout, {**self.spec.env, **(env or {})}, stdin, cwd, network)
        return await self._supervise(argv, timeout, command)

    async def _exec(
        self, argv: list[str], timeout: float, extra: Mapping[str, str], stdin: bytes, cwd: str, network: bool
    ) -> ExecResult:
        socket = self.spec.proxy_socket if network else None
        env = bubblewrap.environment(extra)
        workspace, home, tmp = self.folders.mounts.values()
        mounts = bubblewrap.Mounts(workspace, home, tmp, self._etc, self.spec.toolchain)
        binds = mounts.binds(socket)
        stage = None
        bwrap = Path(bubblewrap.find_bwrap()[0])
        if self.folders.owner is not None:
            stage = privilege.Stage.of(self.folders.owner, [bwrap, self._etc, *(bind.source for bind in binds)])
            bwrap = stage.shown(bwrap)
            binds = [bubblewrap.Bind(stage.shown(bind.source), bind.target, bind.writable) for bind in binds]
        limits = {"core": 0, "nofile": self._options.open_files, "nproc": self._options.processes}
        if self._options.file_bytes is not None:
            limits["fsize"] = self._options.file_bytes
        port = self._options.port if socket is not None else None
        launcher = bubblewrap.launcher(argv, python=mounts.python, env=env, limits=limits, port=port)

        with contextlib.ExitStack() as stack:
            namespace = _Namespace(stack)
            filter_fd = memory_file("seccomp", seccomp.program())
            stack.callback(os.close, filter_fd)
            options = bubblewrap.arguments(
                binds, python=mounts.python, env=env, cwd=cwd, status_fd=namespace.write_end, seccomp_fd=filter_fd
            )
            # In a file, not on the command line: the environment holds the session's secret, and every user can read command
            # lines.
            options_fd = memory_file("options", b"".join(word.encode() + b"\0" for word in options))
            stack.callback(os.close, options_fd)
            line = [str(bwrap), "--args", str(options_fd), "--", *launcher]
            result = await run(
                line if stage is None else stage.wrap(line),
                env=_HOST_ENV,
                cwd=Path("/"),
                stdin=stdin,
                timeout=timeout,
                max_output_bytes=self.spec.max_output_bytes,
                pass_fds=(namespace.write_end, filter_fd, options_fd),
                end=namespace.end,
            )
            ran = namespace.exit_code is not None
        complaint = result.stderr.decode(errors="replace").strip()[-2000:]
        if result.exit_code == 125 and complaint.startswith("polar: relay:"):
            raise SandboxError(f"sandbox {self.spec.id}: {complaint}")
        if not ran and not result.timed_out:
            raise SandboxError(f"bubblewrap could not run the command (exit {result.exit_code}): {complaint}. {_HELP}")
        return result


class _Namespace:
    """What bubblewrap says of the namespaces it made, and how they are ended."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        for fd in (self._read_end, self.write_end):
            stack.callback(os.close, fd)
        self._said = b""

    def _read(self) -> dict[str, int]:
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._read_end, 65536):
                self._said += data
        found: dict[str, int] = {}
        for line in self._said.split(b"\n")[:-1]:
            found.update(json.loads(line))
        return found

    @property
    def exit_code(self) -> int | None:
        """None when the command never ran, or bubblewrap itself was killed."""
        return self._read().get("exit-code")

    async def end(self, monitor: int) -> None:
        """Kill the namespace's first process, with which the kernel kills all others, and wait until it, the last, is gone."""
        if "child-pid" not in self._read() and _alive(monitor):
            # Killed before it has set its child up, bubblewrap would leave that waiting for ever.
            pidfd = os.pidfd_open(monitor)
            try:
                waits = [asyncio.ensure_future(readable(fd)) for fd in (self._read_end, pidfd)]
                await asyncio.wait(waits, timeout=_START_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                for wait in waits:
                    wait.cancel()
                await asyncio.gather(*waits, return_exceptions=True)
            finally:
                os.close(pidfd)
        first = self._read().get("child-pid")
        if first is not None:
            with contextlib.suppress(ProcessLookupError):
                await _kill(first)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(monitor, signal.SIGKILL)


def _alive(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"


async def _kill(pid: int) -> None:
    pidfd = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        await readable(pidfd)
        _reap(pidfd)
    finally:
        os.close(pidfd)


def _reap(pidfd: int) -> None:
    """Orphans come to us where we are a container's first process, and are nobody's zombies then."""
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
