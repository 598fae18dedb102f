# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What an agent left in its folders never leads out of them, whatever it is."""

from __future__ import annotations

import os
import socket
import stat
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_polar.errors import SandboxError
from nemo_polar.sandboxes.files import MAX_DEPTH, Folders, remove

LIMITS = {"max_bytes": 10_000_000, "max_entries": 10_000}


@pytest.fixture
def box(tmp_path: Path) -> Folders:
    folders = Folders({"/workspace": tmp_path / "workspace", "/tmp": tmp_path / "tmp"})
    folders.make()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("secret")
    return folders


def test_a_file_is_written_whole_and_read_back(box: Folders, tmp_path: Path) -> None:
    box.write("/workspace/a/b/c", b"\0data", 0o755)
    assert box.read("/workspace/a/b/c", 5) == b"\0data"
    assert stat.S_IMODE((tmp_path / "workspace/a/b/c").stat().st_mode) == 0o755
    assert [path.name for path in (tmp_path / "workspace/a/b").iterdir()] == ["c"]


@pytest.mark.parametrize(
    "path", ["workspace/x", "/workspace/../x", "/x", "/workspacex", "/workspace", "/tmp/", "", "/workspace/\0"]
)
def test_paths_that_are_not_inside_are_refused(box: Folders, path: str) -> None:
    with pytest.raises(SandboxError):
        box.write(path, b"", 0o644)
    with pytest.raises(SandboxError):
        box.read(path, 10)


@given(st.lists(st.sampled_from(["..", ".", "a", "workspace", "", "tmp", "\0", "/"]), max_size=6))
def test_every_path_that_is_located_lies_below_its_folder(parts: list[str]) -> None:
    folders = Folders({"/workspace": Path("/host/workspace"), "/tmp": Path("/host/tmp")})
    try:
        root, names = folders.locate("/" + "/".join(parts))
    except SandboxError:
        return
    assert root in folders.mounts.values() and all(name not in ("", ".", "..") and "/" not in name for name in names)


def test_links_on_the_way_are_never_followed(box: Folders, tmp_path: Path) -> None:
    (tmp_path / "workspace/out").symlink_to(tmp_path / "outside")
    (tmp_path / "workspace/up").symlink_to("..")
    (tmp_path / "workspace/loop").symlink_to("loop")
    for way in ("out", "up/outside", "loop"):
        with pytest.raises(SandboxError, match="in the way"):
            box.read(f"/workspace/{way}/secret", 100)
        with pytest.raises(SandboxError, match="in the way"):
            box.write(f"/workspace/{way}/new", b"x", 0o644)
        with pytest.raises(SandboxError):
            box.copy_out(f"/workspace/{way}", tmp_path / "copy", **LIMITS)
    assert [path.name for path in (tmp_path / "outside").iterdir()] == ["secret"]


def test_a_link_at_the_path_itself_is_not_read_and_is_replaced_when_written(box: Folders, tmp_path: Path) -> None:
    link = tmp_path / "workspace/link"
    link.symlink_to(tmp_path / "outside/secret")
    with pytest.raises(SandboxError, match="in the way"):
        box.read("/workspace/link", 100)
    box.write("/workspace/link", b"mine", 0o644)
    assert not link.is_symlink() and link.read_bytes() == b"mine"
    assert (tmp_path / "outside/secret").read_text() == "secret"


def test_only_plain_files_of_a_bounded_size_are_read(box: Folders, tmp_path: Path) -> None:
    work = tmp_path / "workspace"
    os.mkfifo(work / "pipe")
    (work / "folder").mkdir()
    (work / "big").write_bytes(b"x" * 11)
    with (work / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(work / "socket"))
        for name in ("pipe", "folder", "big", "sparse", "socket"):
            with pytest.raises(SandboxError):
                box.read(f"/workspace/{name}", 10)
    with pytest.raises(FileNotFoundError):
        box.read("/workspace/none", 10)
    with pytest.raises(FileNotFoundError):
        box.read("/workspace/none/none", 10)


def test_a_folder_in_the_files_place_is_an_error_and_leaves_nothing(box: Folders, tmp_path: Path) -> None:
    (tmp_path / "workspace/f").mkdir()
    with pytest.raises(SandboxError):
        box.write("/workspace/f", b"x", 0o644)
    assert [path.name for path in (tmp_path / "workspace").iterdir()] == ["f"]


def test_a_snapshot_has_files_folders_and_links_and_nothing_else(box: Folders, tmp_path: Path) -> None:
    work = tmp_path / "workspace"
    (work / "sub").mkdir()
    (work / "sub/script").write_text("#!/bin/sh")
    (work / "sub/script").chmod(0o6755)
    os.utime(work / "sub/script", (1000, 2000))
    (work / "out").symlink_to(tmp_path / "outside")
    (work / "nowhere").symlink_to("none")
    os.mkfifo(work / "pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(work / "sock"))
        box.copy_out("/workspace", tmp_path / "copy", **LIMITS)
    copy = tmp_path / "copy"
    assert sorted(str(path.relative_to(copy)) for path in copy.rglob("*")) == ["nowhere", "out", "sub", "sub/script"]
    assert (copy / "out").readlink() == tmp_path / "outside" and (copy / "nowhere").is_symlink()
    found = (copy / "sub/script").stat()
    assert stat.S_IMODE(found.st_mode) == 0o755 and found.st_mtime == 2000


def test_a_snapshot_is_bounded_in_bytes_entries_and_depth(box: Folders, tmp_path: Path) -> None:
    work = tmp_path / "workspace"
    with (work / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    begun = time.monotonic()
    with pytest.raises(SandboxError, match="more bytes or files"):
        box.copy_out("/workspace", tmp_path / "one", **LIMITS)
    assert time.monotonic() - begun < 1
    (work / "sparse").unlink()
    for number in range(20):
        (work / str(number)).touch()
    with pytest.raises(SandboxError, match="more bytes or files"):
        box.copy_out("/workspace", tmp_path / "two", max_bytes=100, max_entries=19)
    box.copy_out("/workspace", tmp_path / "three", max_bytes=100, max_entries=20)
    (work / "/".join(["d"] * (MAX_DEPTH + 2))).mkdir(parents=True)
    with pytest.raises(SandboxError, match="deep"):
        box.copy_out("/workspace", tmp_path / "four", **LIMITS)


def test_a_snapshot_goes_only_into_an_empty_folder(box: Folders, tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="not empty"):
        box.copy_out("/workspace", tmp_path / "outside", **LIMITS)


def test_removal_follows_no_link_and_forgives_a_second_time(box: Folders, tmp_path: Path) -> None:
    work = tmp_path / "workspace"
    (work / "a/b").mkdir(parents=True)
    (work / "a/b/out").symlink_to(tmp_path / "outside")
    (work / "a/hard").hardlink_to(tmp_path / "outside/secret")
    remove(work)
    remove(work)
    assert not work.exists() and (tmp_path / "outside/secret").read_text() == "secret"


def test_removal_refuses_a_link_in_the_folders_own_place(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real/file").touch()
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(SandboxError):
        remove(tmp_path / "link")
    assert (tmp_path / "real/file").exists()
