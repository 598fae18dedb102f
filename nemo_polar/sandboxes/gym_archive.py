# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Archives that travel to and from a provider's sandbox. What comes from there was packed by a program that the agent may have
replaced, so nothing in it is trusted: nothing is ever written through a link, outside the target, or beyond the bounds given.

All functions block; the sandbox calls them from a thread.
"""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from nemo_polar.errors import SandboxError
from nemo_polar.sandboxes.files import MAX_DEPTH


def pack_files(files: Mapping[str, bytes]) -> bytes:
    """Plain files by name."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o644
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def pack_folder(folder: Path, archive: Path) -> None:
    """All that is in a host folder of ours, owners left out.

    Raises:
        SandboxError: it cannot be read, or the disk is full.
    """

    def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    try:
        with tarfile.open(archive, "w", format=tarfile.PAX_FORMAT) as packed:
            for entry in sorted(folder.iterdir()):
                packed.add(entry, arcname=entry.name, filter=anonymous)
    except OSError as exc:
        raise SandboxError(f"{folder} cannot be packed: {exc}") from exc


def unpack_folder(archive: Path, target: Path, *, max_bytes: int, max_entries: int) -> None:
    """Unpack to the host folder ``target``, which must be missing or empty: plain files, folders and links (as links).

    Devices, pipes and sockets are left out, set-uid bits dropped. A second name of one file becomes a file of its own.

    Raises:
        SandboxError: too large, too deep, not an archive, a name that leads out or comes twice, or the host refuses.
    """
    try:
        target.mkdir(parents=True, exist_ok=True)
        if any(target.iterdir()):
            raise SandboxError(f"snapshot: the target {target} is not empty")
        with tarfile.open(archive, "r:") as packed:
            _Unpacking(packed, target, max_bytes, max_entries).run()
    except (tarfile.TarError, OSError, UnicodeError) as exc:
        raise SandboxError(f"the sandbox's archive cannot be unpacked: {exc}") from exc


class _Unpacking:
    """Links are made last, when all folders are there, so no path that is written to can lead through one."""

    def __init__(self, packed: tarfile.TarFile, target: Path, max_bytes: int, max_entries: int) -> None:
        self._packed = packed
        self._target = target
        self._bytes, self._entries = max_bytes, max_entries
        self._links: list[tuple[Path, str]] = []
        self._modes: list[tuple[Path, tarfile.TarInfo, int]] = []

    def run(self) -> None:
        for member in self._packed:
            place = self._place(member.name)
            if place == self._target:
                continue
            self._take(entries=1)
            if member.isdir():
                place.mkdir(0o700, parents=True, exist_ok=True)
                self._modes.append((place, member, 0o700))
            elif member.issym():
                place.parent.mkdir(0o700, parents=True, exist_ok=True)
                self._links.append((place, member.linkname))
            elif member.islnk():
                self._copy_again(place, member)
            elif member.isreg():
                self._write(place, member)
        for place, leads_to in self._links:
            place.symlink_to(leads_to)
        for place, member, floor in reversed(self._modes):
            place.chmod(member.mode & 0o777 | floor)
            seconds = max(0, int(member.mtime))
            os.utime(place, (seconds, seconds))

    def _place(self, name: str) -> Path:
        parts = PurePosixPath(name).parts
        if name.startswith("/") or ".." in parts or "\0" in name:
            raise SandboxError(f"the sandbox's archive holds {name!r}, which leads out of it")
        if len(parts) > MAX_DEPTH:
            raise SandboxError(f"folders are nested more than {MAX_DEPTH} deep")
        return self._target.joinpath(*parts)

    def _take(self, size: int = 0, entries: int = 0) -> None:
        self._bytes -= size
        self._entries -= entries
        if self._bytes < 0 or self._entries < 0:
            raise SandboxError(
                "the folder holds more bytes or files than a snapshot may take; raise snapshot_bytes or snapshot_files"
            )

    def _write(self, place: Path, member: tarfile.TarInfo) -> None:
        self._take(member.size)
        place.parent.mkdir(0o700, parents=True, exist_ok=True)
        source = self._packed.extractfile(member)
        assert source is not None
        with source, place.open("xb") as file:
            shutil.copyfileobj(source, file)
        self._modes.append((place, member, 0o600))

    def _copy_again(self, place: Path, member: tarfile.TarInfo) -> None:
        first = self._place(member.linkname)
        if not first.is_file():
            return
        self._take(first.stat().st_size)
        place.parent.mkdir(0o700, parents=True, exist_ok=True)
        with first.open("rb") as source, place.open("xb") as file:
            shutil.copyfileobj(source, file)
        self._modes.append((place, member, 0o600))
