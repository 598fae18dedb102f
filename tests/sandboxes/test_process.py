# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The process sandbox isolates nothing, but it too has its own folders, a deadline, and leaves no process."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nemo_polar.errors import SandboxError
from nemo_polar.sandboxes.base import HOME, TOOLCHAIN, WORKDIR, SandboxSpec
from nemo_polar.sandboxes.process import ProcessSandbox
from tests.support.sandboxes import open_descriptors, processes_appear, processes_with


@pytest.fixture
async def sandbox(tmp_path: Path) -> AsyncIterator[ProcessSandbox]:
    tool = tmp_path / "toolchain" / "bin" / "hello"
    tool.parent.mkdir(parents=True)
    tool.write_text("#!/bin/sh\necho hello $1\n")
    tool.chmod(0o755)
    (tmp_path / "scratch").mkdir()
    box = ProcessSandbox(
        SandboxSpec(
            id="p",
            scratch=tmp_path / "scratch",
            toolchain=tmp_path / "toolchain",
            proxy_url="http://127.0.0.1:9",
            env={"CONFIG": f"{HOME}/.config"},
            max_output_bytes=1000,
        )
    )
    await box.start()
    yield box
    await box.stop()
    assert list((tmp_path / "scratch").iterdir()) == []


async def test_it_says_that_it_isolates_nothing_and_where_the_proxy_is(sandbox: ProcessSandbox) -> None:
    assert not sandbox.isolated and sandbox.proxy_url == "http://127.0.0.1:9"


async def test_paths_of_the_sandbox_stand_for_folders_of_the_scratch(sandbox: ProcessSandbox, tmp_path: Path) -> None:
    await sandbox.put({f"{HOME}/.config": b"conf", f"{WORKDIR}/run.sh": b'pwd; cat "$CONFIG"; echo "$1"; hello "$TMPDIR"'})
    result = await sandbox.exec(["sh", f"{WORKDIR}/run.sh", f"in {WORKDIR}/x"], timeout=10)
    scratch = tmp_path / "scratch"
    assert result.stdout.decode() == f"{scratch}/workspace\nconfin {WORKDIR}/x\nhello {scratch}/tmp\n"
    assert sandbox.host_path(f"{TOOLCHAIN}/bin") == f"{tmp_path}/toolchain/bin"
    assert sandbox.host_path(f"{WORKDIR} is a folder") == f"{WORKDIR} is a folder"


async def test_the_hosts_own_environment_does_not_leak_in(sandbox: ProcessSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOST_TOKEN", "secret")
    assert b"secret" not in (await sandbox.exec(["env"], timeout=10)).stdout


@pytest.mark.parametrize("way", ["end", "deadline", "cancel", "stop"])
async def test_daemons_die_however_the_command_ends(sandbox: ProcessSandbox, way: str) -> None:
    mark = secrets.token_hex(8)
    daemon = f"sleep 100.{int(mark, 16)}"
    script = f"(setsid sh -c '({daemon} >/dev/null 2>&1 &)' &); setsid {daemon} >/dev/null & {daemon} &"
    end = "sleep 0.2; exit 5" if way == "end" else "exec sleep 100"
    descriptors = open_descriptors()
    timeout = 0.5 if way == "deadline" else 60
    task = asyncio.create_task(sandbox.exec(["sh", "-c", f"{script} {end}"], timeout=timeout, env={"MARK": mark}))
    await processes_appear(mark)
    if way == "cancel":
        task.cancel()
    elif way == "stop":
        await sandbox.stop()
    [done] = await asyncio.gather(task, return_exceptions=True)
    assert processes_with(mark) == [] and open_descriptors() == descriptors
    match way:
        case "end":
            assert not isinstance(done, BaseException) and (done.exit_code, done.timed_out) == (5, False)
        case "deadline":
            assert not isinstance(done, BaseException) and (done.exit_code, done.timed_out) == (137, True)
        case "cancel":
            assert isinstance(done, asyncio.CancelledError)
        case _:
            assert isinstance(done, SandboxError)


async def test_output_is_bounded_and_stdin_is_passed(sandbox: ProcessSandbox) -> None:
    result = await sandbox.exec(["cat"], timeout=10, stdin=b"x" * 1_000_000)
    assert result.exit_code == 0 and result.truncated and len(result.stdout) < 1100


async def test_a_command_that_cannot_be_started_is_a_result_of_its_own(sandbox: ProcessSandbox) -> None:
    missing = await sandbox.exec(["no-such-command"], timeout=10)
    assert missing.exit_code == 127 and b"no such command" in missing.stderr
    await sandbox.put({f"{WORKDIR}/plain": b""})
    assert (await sandbox.exec([f"{WORKDIR}/plain"], timeout=10)).exit_code == 126


async def test_files_are_guarded_as_in_every_sandbox(sandbox: ProcessSandbox, tmp_path: Path) -> None:
    await sandbox.exec(["ln", "-s", str(tmp_path), "out"], timeout=10)
    with pytest.raises(SandboxError):
        await sandbox.put({f"{WORKDIR}/out/x": b"x"})
    with pytest.raises(SandboxError):
        await sandbox.get("/etc/passwd")
    await sandbox.snapshot(WORKDIR, tmp_path / "copy")
    assert (tmp_path / "copy/out").readlink() == tmp_path
