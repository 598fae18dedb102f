# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Polar's sandboxes behind Gym's provider methods: what is asked is done or refused by name, and nothing is left."""

from __future__ import annotations

import asyncio
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nemo_polar.gym.sandbox_provider import PolarLocalProvider, PolarProcessProvider, PolarProvider
from tests.support.gym_sandbox import (
    FakeCreateError,
    FakeHandle,
    FakeResources,
    FakeResult,
    FakeSpec,
    FakeStatus,
    install_fake_gym,
)
from tests.support.sandboxes import needs_bwrap, processes_appear, processes_with

KINDS = [pytest.param(PolarProcessProvider), pytest.param(PolarLocalProvider, marks=needs_bwrap)]
Make = Callable[..., PolarProvider]


@pytest.fixture(autouse=True)
def fake_gym(monkeypatch: pytest.MonkeyPatch) -> None:
    install_fake_gym(monkeypatch)


@asynccontextmanager
async def box(provider: PolarProvider, **spec: Any) -> AsyncIterator[FakeHandle]:
    handle = await provider.create(FakeSpec(**spec))
    try:
        yield handle
    finally:
        await provider.close(handle)


def nothing_in(folder: Path) -> bool:
    return list(folder.iterdir()) == []


def test_gym_is_not_loaded_before_a_sandbox_is_made() -> None:
    code = "import sys, nemo_polar.gym.sandbox_provider; assert not any(n.startswith('nemo_gym') for n in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_command_has_its_folder_environment_and_exit_code(kind: Make, tmp_path: Path) -> None:
    provider = kind(scratch=str(tmp_path))
    async with box(provider, env={"A": "1"}) as handle:
        assert (handle.provider_name, await provider.status(handle)) == (provider.name, FakeStatus.RUNNING)
        result = await provider.exec(handle, 'echo "$A$B"; echo oops >&2; touch made; exit 3', env={"B": "2"})
        assert result == FakeResult("12\n", "oops\n", 3)
        assert (await provider.exec(handle, "ls", cwd="/workspace")).stdout == "made\n"
        assert (await provider.exec(handle, "exit 125")).error_type is None
    assert await provider.status(handle) == FakeStatus.STOPPED and nothing_in(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_timeout_kills_the_tree_and_is_no_exit_code_of_the_command(kind: Make, tmp_path: Path) -> None:
    mark = secrets.token_hex(8)
    provider = kind(scratch=str(tmp_path))
    async with box(provider) as handle:
        result = await provider.exec(handle, "setsid sleep 100 & echo begun; sleep 100", timeout_s=0.5, env={"MARK": mark})
        assert (result.error_type, result.return_code, result.stdout) == ("timeout", 125, "begun\n")
        assert "timed out after 0.5 s" in result.stderr and processes_with(mark) == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["cancel", "close"])
async def test_a_command_under_way_dies_when_cancelled_or_closed(kind: Make, way: str, tmp_path: Path) -> None:
    mark = secrets.token_hex(8)
    provider = kind(scratch=str(tmp_path))
    async with box(provider) as handle:
        task = asyncio.create_task(provider.exec(handle, "setsid sleep 100 & sleep 100", env={"MARK": mark}))
        await processes_appear(mark)
        if way == "cancel":
            task.cancel()
        else:
            await provider.close(handle)
        [done] = await asyncio.gather(task, return_exceptions=True)
        assert processes_with(mark) == []
        assert isinstance(done, asyncio.CancelledError) if way == "cancel" else done.error_type == "sandbox"


@pytest.mark.parametrize("kind", KINDS)
async def test_files_go_in_and_out_byte_for_byte(kind: Make, tmp_path: Path) -> None:
    data = bytes(range(256)) * 1000
    (tmp_path / "in").write_bytes(data)
    (tmp_path / "run").write_text("#!/bin/sh\necho ran\n")
    (tmp_path / "run").chmod(0o755)
    provider = kind(scratch=str(tmp_path / "scratch"))
    async with box(provider, workdir="/workspace/deep/er") as handle:
        await provider.upload_file(handle, tmp_path / "in", "a/b.bin")
        await provider.upload_file(handle, tmp_path / "run", "/workspace/run")
        assert (await provider.exec(handle, "cp a/b.bin copy; ../../run")).stdout == "ran\n"
        await provider.download_file(handle, "/workspace/deep/er/copy", tmp_path / "new" / "out")
        assert (tmp_path / "new" / "out").read_bytes() == data
        with pytest.raises(FileNotFoundError):
            await provider.download_file(handle, "missing", tmp_path / "x")
        for path in ("/etc/passwd", "../../../etc/passwd"):
            with pytest.raises(RuntimeError, match="passwd"):
                await provider.upload_file(handle, tmp_path / "in", path)
            with pytest.raises(RuntimeError, match="passwd"):
                await provider.download_file(handle, path, tmp_path / "x")


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"image": "python:3.12"}, "image"),
        ({"entrypoint": ["sleep"]}, "entrypoint"),
        ({"ports": (80,)}, "ports"),
        ({"resources": FakeResources(cpu=2, gpu=1)}, r"resources.cpu, resources.gpu;"),
        ({"provider_options": {"volumes": ["/:/host"]}}, "volumes"),
        ({"workdir": "/root"}, "/root"),
        ({"workdir": "/workspace/../etc"}, "without"),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_name_and_leaves_nothing(asked: Any, named: str, tmp_path: Path) -> None:
    provider = PolarProcessProvider(scratch=str(tmp_path))
    with pytest.raises(FakeCreateError, match=named):
        await provider.create(FakeSpec(**asked))
    assert nothing_in(tmp_path)


async def test_another_user_is_refused_by_name(tmp_path: Path) -> None:
    provider = PolarProcessProvider(scratch=str(tmp_path))
    async with box(provider) as handle:
        with pytest.raises(ValueError, match="user='root'"):
            await provider.exec(handle, "id", user="root")


@needs_bwrap
async def test_options_of_the_request_go_over_those_of_the_provider(tmp_path: Path) -> None:
    provider = PolarLocalProvider(scratch=str(tmp_path), options={"open_files": 100, "file_bytes": 1000})
    async with box(provider, provider_options={"open_files": 200}) as handle:
        assert (await provider.exec(handle, "ulimit -n")).stdout == "200\n"
        assert (await provider.exec(handle, "head -c 2000 /dev/zero > big")).return_code != 0


@needs_bwrap
async def test_the_local_one_has_no_network_and_none_of_the_hosts_files(tmp_path: Path) -> None:
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    provider = PolarLocalProvider(scratch=str(tmp_path))
    async with server, box(provider) as handle:
        result = await provider.exec(handle, f"bash -c ': </dev/tcp/127.0.0.1/{port}'")
        assert result.return_code != 0 and "refused" in result.stderr
        assert (await provider.exec(handle, f"ls {tmp_path}")).return_code != 0


async def test_a_sandbox_ends_with_its_ttl(tmp_path: Path) -> None:
    mark = secrets.token_hex(8)
    provider = PolarProcessProvider(scratch=str(tmp_path))
    async with box(provider, ttl_s=0.5) as handle:
        result = await provider.exec(handle, "sleep 100", env={"MARK": mark})
        assert result.error_type == "sandbox" and processes_with(mark) == []
        assert await provider.status(handle) == FakeStatus.STOPPED
    assert nothing_in(tmp_path)


async def test_one_that_is_not_ready_in_time_is_a_create_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("nemo_polar.sandboxes.process.ProcessSandbox.start", never)
    with pytest.raises(FakeCreateError, match="ready_timeout_s"):
        await PolarProcessProvider(scratch=str(tmp_path)).create(FakeSpec(ready_timeout_s=0.05))
    assert nothing_in(tmp_path)


async def test_closing_the_provider_after_one_sandbox_leaves_its_others_alone(tmp_path: Path) -> None:
    provider = PolarProcessProvider(scratch=str(tmp_path))
    async with box(provider) as kept:
        async with box(provider):
            pass
        await provider.aclose()
        assert (await provider.exec(kept, "echo here")).stdout == "here\n"


def test_wrong_settings_of_the_provider_are_refused() -> None:
    with pytest.raises(TypeError, match="imagee"):
        PolarLocalProvider(**{"imagee": "x"})
    with pytest.raises(ValueError, match="default_timeout_s"):
        PolarLocalProvider(default_timeout_s=0)
