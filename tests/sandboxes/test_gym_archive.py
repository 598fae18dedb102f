# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""An archive from a provider's sandbox may have been made by the agent: nothing in it reaches beyond the target."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from nemo_polar.errors import SandboxError
from nemo_polar.sandboxes.gym_archive import pack_files, pack_folder, unpack_folder

FILE, LINK, HARD, FOLDER, DEVICE = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE


def archive(folder: Path, *members: tuple[bytes, str, str]) -> Path:
    """An archive of (type, name, link target or contents)."""
    path = folder / "a.tar"
    with tarfile.open(path, "w") as packed:
        for kind, name, text in members:
            member = tarfile.TarInfo(name)
            member.type, member.mode = kind, 0o644
            if kind == FILE:
                member.size = len(text)
            else:
                member.linkname = text
            packed.addfile(member, io.BytesIO(text.encode()) if kind == FILE else None)
    return path


def unpack(folder: Path, *members: tuple[bytes, str, str], max_bytes: int = 1000, max_entries: int = 10) -> Path:
    unpack_folder(archive(folder, *members), folder / "out", max_bytes=max_bytes, max_entries=max_entries)
    return folder / "out"


@pytest.mark.parametrize(
    "members",
    [
        [(FILE, "/abs", "x")],
        [(FILE, "../up", "x")],
        [(FOLDER, "d/../../up", "")],
        [(LINK, "../up", "x")],
        [(HARD, "h", "../outside/f")],
        [(LINK, "l", "../outside"), (FILE, "l/f", "x")],
        [(FILE, "l/f", "x"), (LINK, "l", "../outside")],
        [(LINK, "l", "../outside"), (LINK, "l/g", "x")],
        [(FILE, "f", "x"), (FILE, "f", "y")],
        [(FILE, "f", "x"), (FILE, "f/g", "y")],
        [(LINK, "f", "../outside/f"), (LINK, "f", "z")],
        [(FILE, "d/" * 200 + "f", "x")],
    ],
)
def test_what_leads_out_or_comes_twice_is_refused(members: list[tuple[bytes, str, str]], tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "f").write_text("theirs")
    with pytest.raises(SandboxError):
        unpack(tmp_path, *members)
    assert [p.name for p in (tmp_path / "outside").iterdir()] == ["f"] and (tmp_path / "outside/f").read_text() == "theirs"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.tar", "out", "outside"]


def test_links_stay_links_and_devices_are_left_out(tmp_path: Path) -> None:
    out = unpack(tmp_path, (LINK, "l", "/etc/passwd"), (DEVICE, "null", ""), (FILE, "d/f", "x"), (HARD, "d/again", "d/f"))
    assert sorted(str(p.relative_to(out)) for p in out.rglob("*")) == ["d", "d/again", "d/f", "l"]
    assert str((out / "l").readlink()) == "/etc/passwd" and (out / "d/again").read_text() == "x"
    (out / "d/f").write_text("changed")
    assert (out / "d/again").read_text() == "x"


def test_bounds_hold_for_bytes_for_entries_and_for_second_names(tmp_path: Path) -> None:
    for number, members in enumerate(
        [
            [(FILE, "f", "x" * 1001)],
            [(FILE, "f", "x" * 600), (HARD, "g", "f")],
            [(FOLDER, f"d{n}", "") for n in range(11)],
        ]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.raises(SandboxError, match="snapshot_bytes or snapshot_files"):
            unpack(folder, *members)


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"no archive" * 100)
    with pytest.raises(SandboxError, match="cannot be unpacked"):
        unpack_folder(tmp_path / "a.tar", tmp_path / "out", max_bytes=1000, max_entries=10)


def test_what_is_packed_is_what_is_unpacked(tmp_path: Path) -> None:
    (tmp_path / "in" / "d").mkdir(parents=True)
    (tmp_path / "in" / "d" / "run").write_text("x")
    (tmp_path / "in" / "d" / "run").chmod(0o755)
    (tmp_path / "in" / "l").symlink_to("d/run")
    pack_folder(tmp_path / "in", tmp_path / "a.tar")
    unpack_folder(tmp_path / "a.tar", tmp_path / "out", max_bytes=10, max_entries=3)
    assert (tmp_path / "out/l").read_text() == "x" and (tmp_path / "out/d/run").stat().st_mode & 0o777 == 0o755
    (tmp_path / "b.tar").write_bytes(pack_files({"a b": b"\xff"}))
    unpack_folder(tmp_path / "b.tar", tmp_path / "b", max_bytes=10, max_entries=1)
    assert (tmp_path / "b/a b").read_bytes() == b"\xff"
