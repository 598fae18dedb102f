# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Host folders that an agent writes to, handled from outside without ever following what the agent made.

Every path is walked folder by folder from a trusted descriptor, refusing symbolic links on the way, so nothing the agent
does, even while we look, leads out. All functions block; sandboxes call them from a thread.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from nemo_polar.errors import SandboxError
from nemo_polar.sandboxes.base import HOME, TOOLCHAIN, WORKDIR

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_COPY_CHUNK = 1024 * 1024
MAX_DEPTH = 128
"""Folders inside folders that a snapshot follows."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Who the files we make inside belong to. None: whoever runs us."""

    uid: int
    gid: int


@dataclass(slots=True)
class _Budget:
    """What one copy may still take."""

    bytes: int
    entries: int

    def take(self, size: int = 0, entries: int = 0) -> None:
        self.bytes -= size
        self.entries -= entries
        if self.bytes < 0 or self.entries < 0:
            raise SandboxError(
                "the folder holds more bytes or files than a snapshot may take; raise snapshot_bytes or snapshot_files"
            )


@dataclass(frozen=True, slots=True)
class Folders:
    """The folders of one sandbox: absolute path inside -> host folder."""

    mounts: Mapping[str, Path]
    owner: Owner | None = None

    def make(self) -> None:
        """Make the host folders, empty and the owner's."""
        for inside, host in self.mounts.items():
            host.mkdir(exist_ok=True)
            with _opened(os.open(host, _FOLDER)) as folder:
                os.fchmod(folder, 0o1777 if inside == "/tmp" else 0o755)
                _give(folder, self.owner)

    def locate(self, path: str) -> tuple[Path, tuple[str, ...]]:
        """The host folder that holds ``path``, and the names below it.

        Raises:
            SandboxError: the path is not absolute, climbs with '..', or is in none of the folders.
        """
        pure = PurePosixPath(path)
        if not pure.is_absolute() or ".." in pure.parts or "\0" in path:
            raise SandboxError(f"{path!r}: a path must be absolute, without '..'")
        for inside, host in self.mounts.items():
            if pure.is_relative_to(inside):
                return host, pure.relative_to(inside).parts
        raise SandboxError(f"{path!r} is not inside {', '.join(self.mounts)}")

    def on_host(self, word: str, toolchain: Path | None) -> str:
        """``word``, or if it is a path in WORKDIR, HOME or TOOLCHAIN the host path that this stands for."""
        roots = {inside: self.mounts[inside] for inside in (WORKDIR, HOME)}
        if toolchain is not None:
            roots[TOOLCHAIN] = toolchain
        for inside, host in roots.items():
            if word == inside or (word.startswith(inside + "/") and not any(c.isspace() for c in word)):
                return f"{host}{word[len(inside) :]}"
        return word

    def write(self, path: str, data: bytes, mode: int) -> None:
        """Write one file whole, or not at all; folders on the way are made, and a link or file at ``path`` itself is replaced.

        Raises:
            SandboxError: a link or a file is in the way, or the host refuses (disk full).
        """
        root, names = self.locate(path)
        if not names:
            raise SandboxError(f"{path!r} is a folder of the sandbox, not a file")
        try:
            with _walk(root, names[:-1], self.owner, create=True) as folder:
                temporary = f".polar-{secrets.token_hex(8)}"
                fd = os.open(
                    temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder
                )
                try:
                    with os.fdopen(fd, "wb") as file:
                        file.write(data)
                        file.flush()
                        _give(fd, self.owner)
                        os.fchmod(fd, mode)
                    os.rename(temporary, names[-1], src_dir_fd=folder, dst_dir_fd=folder)
                except BaseException:
                    with contextlib.suppress(OSError):
                        os.unlink(temporary, dir_fd=folder)
                    raise
        except OSError as exc:
            raise SandboxError(f"{path}: cannot be written: {_why(exc)}") from exc

    def read(self, path: str, max_bytes: int) -> bytes:
        """One plain file.

        Raises:
            FileNotFoundError: no such file.
            SandboxError: a link on the way, not a plain file, or larger than ``max_bytes``.
        """
        root, names = self.locate(path)
        if not names:
            raise SandboxError(f"{path} is a folder, not a plain file")
        try:
            with _walk(root, names[:-1]) as folder:
                # O_NONBLOCK: opening a pipe that nobody writes to must not hang.
                fd = os.open(names[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
                with os.fdopen(fd, "rb") as file:
                    found = os.fstat(fd)
                    if not stat.S_ISREG(found.st_mode):
                        raise SandboxError(f"{path} is not a plain file")
                    data = file.read(max_bytes + 1) if found.st_size <= max_bytes else b""
                    if found.st_size > max_bytes or len(data) > max_bytes:
                        raise SandboxError(f"{path} has {max(found.st_size, len(data))} bytes; at most {max_bytes} are read")
                    return data
        except FileNotFoundError:
            raise FileNotFoundError(f"{path}: no such file in the sandbox") from None
        except OSError as exc:
            raise SandboxError(f"{path}: cannot be read: {_why(exc)}") from exc

    def copy_out(self, path: str, target: Path, *, max_bytes: int, max_entries: int) -> None:
        """Copy the folder ``path`` to the host folder ``target``, which must be missing or empty.

        Raises:
            SandboxError: too large, too deep, no folder, or the host refuses.
        """
        root, names = self.locate(path)
        try:
            target.mkdir(parents=True, exist_ok=True)
            with _walk(root, names) as source, _opened(os.open(target, _FOLDER)) as out:
                if os.listdir(out):  # noqa: PTH208  (a descriptor has no Path)
                    raise SandboxError(f"snapshot: the target {target} is not empty")
                _copy(source, out, _Budget(max_bytes, max_entries))
        except OSError as exc:
            raise SandboxError(f"{path}: cannot be copied out: {_why(exc)}") from exc


def _why(exc: OSError) -> str:
    if exc.errno in (errno.ELOOP, errno.ENOTDIR):
        return "a symbolic link or a file is in the way"
    return exc.strerror or str(exc)


@contextlib.contextmanager
def _opened(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def _walk(root: Path, names: tuple[str, ...], owner: Owner | None = None, *, create: bool = False) -> Iterator[int]:
    """A descriptor of the folder ``names`` below ``root``, no symbolic link followed below it."""
    fd = os.open(root, _FOLDER)
    try:
        for name in names:
            if create:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=fd)
                    made = _open_folder(fd, name)
                    with _opened(made):
                        _give(made, owner)
            below = _open_folder(fd, name)
            os.close(fd)
            fd = below
        yield fd
    finally:
        os.close(fd)


def _open_folder(folder: int, name: str) -> int:
    """Open a folder in ``folder``, taking back its permissions first if the agent removed them."""
    try:
        return os.open(name, _FOLDER, dir_fd=folder)
    except PermissionError:
        _unlock(folder, name)
        return os.open(name, _FOLDER, dir_fd=folder)


def _unlock(folder: int, name: str) -> None:
    """Give the owner all rights on a file or folder, through a descriptor that cannot be a link's target."""
    with _opened(os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)) as fd:
        if not stat.S_ISLNK(os.fstat(fd).st_mode):
            os.chmod(f"/proc/self/fd/{fd}", 0o700)  # noqa: PTH101


def _give(fd: int, owner: Owner | None) -> None:
    if owner is not None:
        os.fchown(fd, owner.uid, owner.gid)


def _copy(source: int, target: int, budget: _Budget, depth: int = 0) -> None:
    """Copy plain files, folders and links; pipes, sockets and devices are left out, set-uid bits dropped."""
    if depth > MAX_DEPTH:
        raise SandboxError(f"folders are nested more than {MAX_DEPTH} deep")
    with os.scandir(source) as entries:
        for entry in entries:
            name = entry.name
            budget.take(entries=1)
            if entry.is_symlink():
                os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
            elif entry.is_dir(follow_symlinks=False):
                os.mkdir(name, 0o700, dir_fd=target)
                with _opened(_open_folder(source, name)) as below, _opened(os.open(name, _FOLDER, dir_fd=target)) as out:
                    _copy(below, out, budget, depth + 1)
                    _finish(below, out, 0o700)
            elif entry.is_file(follow_symlinks=False):
                _copy_file(source, target, name, budget)


def _copy_file(source: int, target: int, name: str, budget: _Budget) -> None:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(name, flags, dir_fd=source)
    except PermissionError:
        _unlock(source, name)
        fd = os.open(name, flags, dir_fd=source)
    with _opened(fd):
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):  # swapped since it was listed
            return
        if found.st_size > budget.bytes:  # a sparse file: say so before writing it out
            budget.take(found.st_size)
        out = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=target)
        with os.fdopen(out, "wb", buffering=0) as file:
            while data := os.read(fd, _COPY_CHUNK):
                budget.take(len(data))
                file.write(data)
            _finish(fd, out, 0o600)


def _finish(source: int, target: int, floor: int) -> None:
    """Permission bits (set-uid and the like dropped, our own rights kept) and time of a copied entry."""
    found = os.fstat(source)
    os.fchmod(target, stat.S_IMODE(found.st_mode) & 0o777 | floor)
    os.utime(target, ns=(found.st_mtime_ns, found.st_mtime_ns))


def remove(path: Path) -> None:
    """Remove a folder and all in it, whatever its permissions and however deep it is nested. Missing is fine.

    Folders are lifted up to the top before they are emptied, so neither the call stack nor the number of open descriptors
    grows with the depth. Nothing may be writing to it any more.

    Raises:
        SandboxError: the host refuses.
    """
    try:
        with _opened(os.open(path.parent, _FOLDER)) as parent:
            with _opened(_open_folder(parent, path.name)) as top:
                _empty(top, top)
                while names := os.listdir(top):  # noqa: PTH208
                    for name in names:
                        with _opened(_open_folder(top, name)) as folder:
                            _empty(folder, top)
                        os.rmdir(name, dir_fd=top)
            os.rmdir(path.name, dir_fd=parent)
    except FileNotFoundError:
        return
    except OSError as exc:
        raise SandboxError(f"{path} cannot be removed: {_why(exc)}") from exc


def _empty(folder: int, top: int) -> None:
    """Unlink the files in ``folder`` and move its folders up to ``top``."""
    os.fchmod(folder, 0o700)
    with os.scandir(folder) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for child, is_folder in found:
        if not is_folder:
            os.unlink(child, dir_fd=folder)
        elif folder != top:
            try:
                os.rename(child, f".polar-{secrets.token_hex(16)}", src_dir_fd=folder, dst_dir_fd=top)
            except PermissionError:  # moving a folder changes its '..', which needs write permission on it
                _unlock(folder, child)
                os.rename(child, f".polar-{secrets.token_hex(16)}", src_dir_fd=folder, dst_dir_fd=top)
