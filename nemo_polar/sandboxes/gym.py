# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The gym sandbox: any sandbox provider of NeMo Gym (Docker, Apptainer, Enroot, remote services...) as one of Polar's.

A provider's sandbox either has files of its own, as a container has, or is a plain process on this host's files, as Gym's
``local`` is; which of them is seen at the start. In the first, WORKDIR, HOME and TOOLCHAIN are what they are everywhere, and
files travel as archives. In the second they stand for folders of the scratch, as in the process sandbox, with its limits.

What isolates an agent is the provider; nothing of it is checked here. How the proxy is reached is ``gym_reach``'s part.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, cast

from nemo_polar.cancellation import uninterrupted
from nemo_polar.errors import SandboxError
from nemo_polar.sandboxes import gym_scripts as scripts
from nemo_polar.sandboxes.base import HOME, TOOLCHAIN, WORKDIR, ExecResult
from nemo_polar.sandboxes.base import SandboxSpec as Spec
from nemo_polar.sandboxes.bubblewrap import environment
from nemo_polar.sandboxes.files import remove
from nemo_polar.sandboxes.gym_archive import pack_files, pack_folder, unpack_folder
from nemo_polar.sandboxes.gym_options import GymOptions
from nemo_polar.sandboxes.gym_provider import GymBox, Ran
from nemo_polar.sandboxes.gym_reach import Reach
from nemo_polar.sandboxes.host import HostSandbox

_LATE_SECONDS = 5.0
"""For the supervisor inside to end a tree at its deadline, before the provider is to end the supervisor."""
_END_SECONDS = 30.0
"""For a tree to be ended from outside, once its supervisor did not."""
_ENTRY_BYTES = 2048
"""Of an archive, for each entry, besides its contents."""


@dataclass(frozen=True, slots=True)
class _Facts:
    """What a sandbox was seen to have."""

    shared_files: bool = False
    """It is on this host's own file systems."""
    shared_network: bool = False
    session: str = ""
    """A program that starts a session of its own."""
    offline: str = ""
    """A command line that takes the network away."""
    alone: bool = False
    """There is no network to take: it has a loopback interface of its own and no other."""


class GymSandbox(HostSandbox):
    """See the module. ``spec.options`` are ``GymOptions``. On this host's files it keeps them as every ``HostSandbox`` does."""

    name: ClassVar[str] = "gym"
    isolated: ClassVar[bool] = False
    """Whether it is, is the provider's matter."""
    options_type = GymOptions

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self._box = GymBox(self._options, spec.scratch)
        self._reach = Reach(self._box)
        self._facts = _Facts()
        self._mark = secrets.token_hex(12)
        self._stage = f"/tmp/.polar-{self._mark}"
        self._numbers = itertools.count()
        self._finished: list[str] = []

    @property
    def _options(self) -> GymOptions:
        return cast(GymOptions, self.options)

    async def start(self) -> None:
        """Have the provider make the sandbox, look at it, and find the way to the proxy.

        Raises:
            SandboxError: Gym or its provider refuses, something is missing inside, or a promise of the options cannot be kept.
        """
        if self._state != "new":
            raise SandboxError(f"sandbox {self.spec.id} cannot be started: it is {self._state}")
        if not self.spec.scratch.is_dir():
            raise SandboxError(f"the scratch folder {self.spec.scratch} does not exist")
        self._state = "starting"
        await self._box.create()
        self._facts = await self._look()
        if self._facts.shared_files:
            self._stage = str(self.spec.scratch / "gym")
            await uninterrupted(asyncio.to_thread(self._make_folders))
            await asyncio.to_thread(Path(self._stage).mkdir, 0o700)
        else:
            await self._box.control(scripts.make_folders([WORKDIR, HOME, "/tmp"], self._stage))
            await self._bring_toolchain()
        if self._state != "starting":
            raise SandboxError(f"sandbox {self.spec.id} was stopped while it started")
        self._state = "started"
        try:
            if self.spec.proxy_url is not None or self.spec.proxy_socket is not None:
                same = self._facts.shared_network
                self.proxy_url = await self._reach.find(
                    self.spec.proxy_url, same_network=same, stage=self._stage, run=lambda argv, s: self.exec(argv, timeout=s)
                )
        except BaseException:
            if self._state == "started":
                self._state = "starting"
            raise

    async def _look(self) -> _Facts:
        ran = await self._box.control(scripts.LOOK)
        pairs = [(line.partition("=")[0], line.partition("=")[2]) for line in ran.stdout.splitlines()]
        name = self._options.provider
        if missing := [value for key, value in pairs if key == "missing"]:
            raise SandboxError(f"a sandbox of Gym's provider {name!r} has no {', '.join(missing)}: use another image")
        said = dict(pairs)
        here = bool(said.get("boot")) and said["boot"] == await asyncio.to_thread(_boot_id)
        shared_network = here and said.get("network") == os.readlink("/proc/self/ns/net")  # noqa: PTH115
        facts = _Facts(
            shared_files=here and said.get("mounts") == os.readlink("/proc/self/ns/mnt"),  # noqa: PTH115
            shared_network=shared_network,
            session=said.get("session", ""),
            offline=said.get("offline", ""),
            alone="alone" in said and not shared_network and self._options.forward_to is None,
        )
        if not (facts.offline or facts.alone) and self._options.network_off == "enforced":
            raise SandboxError(
                f"a sandbox of Gym's provider {name!r} cannot take the network from a command (no permission "
                "for unshare -n inside), as the verifier's must be. Set sandbox.options.network_off=declared if what they can "
                "reach from there is acceptable, or take a provider that allows it"
            )
        return facts

    async def _bring_toolchain(self) -> None:
        if self.spec.toolchain is None or self._options.toolchain == "none":
            return
        if self._options.toolchain == "image":
            if (await self._box.control(f"[ -d {TOOLCHAIN}/bin ]", ok=(0, 1))).code != 0:
                raise SandboxError(
                    f"the image {self._options.image!r} has no {TOOLCHAIN}/bin: build the toolchain folder into it, or set "
                    "sandbox.options.toolchain to upload (into each sandbox) or none (the harness needs nothing of it)"
                )
            return
        archive = self.spec.scratch / "toolchain.tar"
        try:
            await uninterrupted(asyncio.to_thread(pack_folder, self.spec.toolchain, archive))
            await self._box.upload(archive, f"{self._stage}/toolchain.tar")
        finally:
            await asyncio.to_thread(archive.unlink, True)
        inside = f"{self._stage}/toolchain.tar"
        await self._box.control(f"mkdir -p {TOOLCHAIN} && tar -xof {inside} -C {TOOLCHAIN} && rm -f {inside}")

    def inside_path(self, word: str) -> str:
        """``word``; or, on this host's files, the host path that a path in WORKDIR, HOME or TOOLCHAIN stands for."""
        return self.folders.on_host(word, self.spec.toolchain) if self._facts.shared_files else word

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
        """See ``Sandbox.exec``. Output is kept on the sandbox's disk until the command ends."""
        command = self._exec(list(argv), timeout, {**self.spec.env, **(env or {})}, stdin, cwd, network)
        return await self._supervise(argv, timeout, command)

    async def _exec(
        self, argv: list[str], timeout: float, extra: Mapping[str, str], stdin: bytes, cwd: str, network: bool
    ) -> ExecResult:
        began = time.monotonic()
        number = next(self._numbers)
        place = scripts.Place(f"{self._stage}/{number}", f"{self._mark}.{number}.", self.spec.max_output_bytes)
        enforced = not network and self._options.network_off == "enforced"
        script = place.run(
            [self.inside_path(word) for word in argv],
            env=self._environment(extra),
            path=self.inside_path(f"{TOOLCHAIN}/bin"),
            cwd=self._folder(cwd),
            stdin=bool(stdin),
            session=self._facts.session,
            offline=self._facts.offline if enforced else "",
        )
        try:
            await self._box.upload(script.encode(errors="surrogateescape"), f"{place.at}.run")
            if stdin:
                await self._box.upload(stdin, f"{place.at}.in")
            left = max(0.0, timeout - (time.monotonic() - began))
            keep = [*self._options.keep_env, *self._options.spec.get("env", {})]
            finished, self._finished = self._finished, []
            line = scripts.supervise(f"{place.at}.run", left, keep, finished)
            ran = await self._box.run(line, timeout=left + _LATE_SECONDS)
            result = await self._result(place, ran, began, cwd)
        except BaseException:
            await uninterrupted(self._box.control(place.finish(), timeout=_END_SECONDS))
            raise
        self._finished.append(place.at)
        self._reach.check()
        return result

    async def _result(self, place: scripts.Place, ran: Ran, began: float, cwd: str) -> ExecResult:
        if ran.error not in (None, "timeout"):
            raise SandboxError(f"Gym's provider {self._options.provider!r}: {ran.error}: {ran.stderr.strip()[-2000:]}")
        code, report = ran.code, scripts.Report.parse(ran.stdout)
        if report is None:  # the supervisor was killed: by the provider's time-out, by what it ran, or with the whole sandbox
            await self._box.check_running()
            report = scripts.Report.parse((await self._box.control(place.finish(), timeout=_END_SECONDS)).stdout)
            code = code if 128 < code < 256 and ran.error is None else 137
        if report is None or report.left:
            raise SandboxError(f"sandbox {self.spec.id}: processes of the command will not die")
        if report.nowhere:
            raise SandboxError(f"{cwd}: there is no such folder in the sandbox")
        late = report.late or ran.error == "timeout"
        stdout, stderr = [
            await self._box.read(f"{place.at}.{name}", max_bytes=size) if size else b""
            for name, size in (("out", report.out), ("err", report.err))
        ]
        return ExecResult(137 if late else code, stdout, stderr, late, report.cut, time.monotonic() - began)

    def _environment(self, extra: Mapping[str, str]) -> dict[str, str]:
        own = environment({"TMPDIR": str(self.folders.mounts["/tmp"])} if self._facts.shared_files else {})
        del own["PATH"]  # the image's, or this host's, after the toolchain
        return {name: self.inside_path(value) for name, value in {**own, **extra}.items()}

    def _folder(self, cwd: str) -> str:
        if not self._facts.shared_files:
            return cwd
        root, names = self.folders.locate(cwd)
        return str(root.joinpath(*names))

    async def put(self, files: Mapping[str, bytes], *, executable: Sequence[str] = ()) -> None:
        """See ``Sandbox.put``."""
        if self._facts.shared_files or not files:
            await super().put(files, executable=executable)
            return
        self._check_started()
        members, lines = {}, [scripts.PLACE]
        for number, (path, data) in enumerate(files.items()):
            root, names = self._locate(path)
            if not names:
                raise SandboxError(f"{path!r} is a folder of the sandbox, not a file")
            members[f"f{number}"] = data
            lines.append(scripts.join(["place", f"f{number}", "755" if path in executable else "644", root, *names]))
        members["place.sh"] = "\n".join(lines).encode()
        at = f"{self._stage}/{next(self._numbers)}"
        await self._box.upload(await asyncio.to_thread(pack_files, members), f"{at}.tar")
        await uninterrupted(self._box.control(scripts.unpack(f"{at}.tar", f"{at}.files", "place.sh")))

    async def get(self, path: str, *, max_bytes: int = 64 * 1024 * 1024) -> bytes:
        """See ``Sandbox.get``."""
        if self._facts.shared_files:
            return await super().get(path, max_bytes=max_bytes)
        self._check_started()
        root, names = self._locate(path)
        ran = await self._box.control(scripts.find_file(root, names), ok=(0, scripts.MISSING, scripts.ELSEWHERE))
        if ran.code == scripts.MISSING:
            raise FileNotFoundError(f"{path}: no such file in the sandbox")
        if ran.code == scripts.ELSEWHERE:
            raise SandboxError(f"{path} is not a plain file, or a symbolic link is in the way")
        if _number(ran.stdout) > max_bytes:
            raise SandboxError(f"{path} has {_number(ran.stdout)} bytes; at most {max_bytes} are read")
        return await self._box.read("/".join([root, *names]), max_bytes=max_bytes) if _number(ran.stdout) else b""

    async def snapshot(self, path: str, target: Path) -> None:
        """See ``Sandbox.snapshot``. ``target`` must be missing or empty; permissions and times (in seconds) are kept."""
        if self._facts.shared_files:
            await super().snapshot(path, target)
            return
        self._check_started()
        root, names = self._locate(path)
        inside = f"{self._stage}/{next(self._numbers)}.tar"
        most = self.options.snapshot_bytes + self.options.snapshot_files * _ENTRY_BYTES
        ran = await self._box.control(scripts.pack(root, names, inside, most), ok=(0, scripts.MISSING, scripts.ELSEWHERE))
        if ran.code != 0:
            raise SandboxError(f"{path}: no such folder in the sandbox, or a symbolic link is in the way")
        if _number(ran.stdout) > most:
            raise SandboxError(f"{path} holds more than a snapshot may take; raise snapshot_bytes or snapshot_files")
        archive = self.spec.scratch / "snapshot.tar"
        limits = {"max_bytes": self.options.snapshot_bytes, "max_entries": self.options.snapshot_files}
        try:
            await self._box.download(inside, archive)
            await uninterrupted(asyncio.to_thread(unpack_folder, archive, target, **limits))
        finally:
            await asyncio.to_thread(archive.unlink, True)
        await self._box.control(f"rm -f {inside}*")

    def _locate(self, path: str) -> tuple[str, tuple[str, ...]]:
        """The folder of the sandbox that holds ``path``, and the names below it."""
        host, names = self.folders.locate(path)
        return next(inside for inside, folder in self.folders.mounts.items() if folder == host), names

    async def stop(self) -> None:
        """See ``Sandbox.stop``. One whose provider failed to close it may be stopped again.

        Raises:
            SandboxError: the provider could not end it: it may still run.
        """
        self._state = "stopped"
        for task in list(self._running):
            task.cancel()
        if self._running:
            await uninterrupted(asyncio.wait(self._running))
        await uninterrupted(self._end())

    async def _end(self) -> None:
        await self._reach.close()
        shared, self._facts = self._facts.shared_files, _Facts()
        try:
            if shared:  # no container takes them along
                await self._box.control(scripts.end_all(f"{self._mark}."), timeout=_END_SECONDS)
        finally:
            try:
                await self._box.close()
            finally:
                for folder in (*self._made(), Path(self._stage)) if shared else ():
                    await asyncio.to_thread(remove, folder)


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise SandboxError(f"the sandbox said {text[-200:]!r} where a number of bytes was asked for") from None


def _boot_id() -> str:
    """Of this host's kernel; a virtual machine has another."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
