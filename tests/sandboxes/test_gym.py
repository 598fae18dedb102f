# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A provider of Gym as a sandbox of Polar's: what every sandbox promises holds, on this host's files and on a container's."""

from __future__ import annotations

import asyncio
import secrets
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nemo_polar.errors import ConfigError, SandboxError
from nemo_polar.rollout.checks import try_sandbox
from nemo_polar.sandboxes.base import HOME, TOOLCHAIN, WORKDIR, SandboxSpec
from nemo_polar.sandboxes.gym import GymSandbox
from tests.support.gym_sandbox import FakeForwardingProvider, FakeGymProvider, install_fake_gym
from tests.support.rollouts import settings
from tests.support.sandboxes import needs_bwrap, open_descriptors, processes_appear, processes_with

CONTAINERS = [pytest.param("fake_container", marks=needs_bwrap)]
KINDS = ["fake", *CONTAINERS]


@pytest.fixture(autouse=True)
def fake_gym(monkeypatch: pytest.MonkeyPatch) -> None:
    install_fake_gym(monkeypatch)


def make(folder: Path, provider: str = "fake", *, polar: dict[str, Any] | None = None, **options: Any) -> GymSandbox:
    (folder / "scratch").mkdir(exist_ok=True)
    config = {"root": str(folder / "boxes"), **options.pop("provider_config", {})}
    whole = {"provider": provider, "provider_config": config, **options}
    return GymSandbox(SandboxSpec(**{"id": "g", "scratch": folder / "scratch", "options": whole, **(polar or {})}))


@asynccontextmanager
async def started(folder: Path, provider: str = "fake", **options: Any) -> AsyncIterator[GymSandbox]:
    sandbox = make(folder, provider, **options)
    try:
        await sandbox.start()
        yield sandbox
    finally:
        await sandbox.stop()
    assert_nothing_left(folder)


def assert_nothing_left(folder: Path) -> None:
    assert list((folder / "scratch").iterdir()) == []
    [provider] = FakeGymProvider.made
    assert provider.open == {} and provider.aclosed == 1


@asynccontextmanager
async def listening() -> AsyncIterator[int]:
    """A port of this host that takes connections."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_command_has_its_folder_a_fixed_environment_and_exact_output(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOST_TOKEN", "secret")
    async with started(tmp_path, kind, polar={"env": {"FROM_SPEC": "a 'b' $c\n{d}"}}) as sandbox:
        where = sandbox.inside_path(WORKDIR)
        assert (kind == "fake_container") == (where == WORKDIR)
        result = await sandbox.exec(
            ["sh", "-c", 'pwd; printf "%s|%s|" "$FROM_SPEC" "$1"; cat', "x", "in"], timeout=20, stdin=b"\xff\0"
        )
        assert (result.exit_code, result.stderr) == (0, b"")
        assert result.stdout == f"{where}\na 'b' $c\n{{d}}|in|".encode() + b"\xff\0"
        env = dict(line.partition("=")[::2] for line in (await sandbox.exec(["env"], timeout=20)).stdout.decode().splitlines())
        assert "HOST_TOKEN" not in env and (env["HOME"], env["TZ"]) == (sandbox.inside_path(HOME), "UTC")
        assert env["PATH"].startswith(f"{TOOLCHAIN}/bin:/")


@pytest.mark.parametrize("kind", KINDS)
async def test_exit_codes_are_the_commands_own(kind: str, tmp_path: Path) -> None:
    async with started(tmp_path, kind) as sandbox:
        codes = {
            0: "exit 0",
            3: "exit 3",
            125: "exit 125",
            137: "kill -KILL $$",
            143: "kill -TERM $$",
            127: "exec no-such-command",
        }
        for code, command in codes.items():
            result = await sandbox.exec(["sh", "-c", command], timeout=20)
            assert (result.exit_code, result.timed_out) == (code, False)
        missing = await sandbox.exec(["no-such-command"], timeout=20)
        assert missing.exit_code == 127 and b"no-such-command: not found" in missing.stderr


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["end", "deadline", "cancel", "stop"])
async def test_the_whole_tree_dies_however_the_command_ends(kind: str, way: str, tmp_path: Path) -> None:
    mark = secrets.token_hex(8)
    script = "trap '' TERM; (setsid sh -c '(sleep 100 >/dev/null 2>&1 &)' &); setsid sleep 100 & sleep 100 & echo begun;"
    script += "sleep 0.2; exit 5" if way == "end" else "sleep 100"
    async with started(tmp_path, kind) as sandbox:
        task = asyncio.create_task(
            sandbox.exec(["sh", "-c", script], timeout=1.5 if way == "deadline" else 60, env={"MARK": mark})
        )
        await processes_appear(mark)
        if way == "cancel":
            task.cancel()
        elif way == "stop":
            await sandbox.stop()
        [done] = await asyncio.gather(task, return_exceptions=True)
        assert processes_with(mark) == []
        if way in ("end", "deadline"):
            assert not isinstance(done, BaseException) and done.stdout == b"begun\n"
            assert (done.exit_code, done.timed_out) == ((5, False) if way == "end" else (137, True))
        else:
            assert isinstance(done, asyncio.CancelledError if way == "cancel" else SandboxError)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_deadline_before_the_command_begins_leaves_nothing(kind: str, tmp_path: Path) -> None:
    mark = secrets.token_hex(8)
    async with started(tmp_path, kind) as sandbox:
        for timeout in (0.0, 0.01, 0.1):
            result = await sandbox.exec(["sh", "-c", "sleep 100; exit", mark], timeout=timeout)
            assert result.timed_out and processes_with(mark) == []


@pytest.mark.parametrize("kind", KINDS)
async def test_a_command_that_kills_its_process_group_is_an_ordinary_result(kind: str, tmp_path: Path) -> None:
    async with started(tmp_path, kind) as sandbox:
        result = await sandbox.exec(["sh", "-c", "echo before; kill -KILL 0"], timeout=20)
        assert (result.exit_code, result.stdout, result.timed_out) == (137, b"before\n", False)


@needs_bwrap
async def test_a_command_that_kills_its_supervisor_is_no_failure_of_the_sandbox(tmp_path: Path) -> None:
    mark = secrets.token_hex(8)
    async with started(tmp_path, "fake_container") as sandbox:
        script = "echo before; setsid sleep 100 & kill -KILL $PPID; sleep 100"
        result = await sandbox.exec(["sh", "-c", script], timeout=20, env={"MARK": mark})
        assert (result.exit_code, result.stdout) == (137, b"before\n") and processes_with(mark) == []


@pytest.mark.parametrize("kind", KINDS)
async def test_output_is_bounded_and_says_so(kind: str, tmp_path: Path) -> None:
    async with started(tmp_path, kind, polar={"max_output_bytes": 1000}) as sandbox:
        result = await sandbox.exec(
            ["sh", "-c", "head -c 1000000 /dev/zero | tr '\\0' a; echo the end; echo x >&2"], timeout=20
        )
        assert result.truncated and len(result.stdout) < 1100 and result.stderr == b"x\n"
        assert (
            result.stdout.startswith(b"aaaa")
            and result.stdout.endswith(b"the end\n")
            and b"[999008 bytes left out]" in result.stdout
        )


@pytest.mark.parametrize("kind", KINDS)
async def test_files_go_in_and_out(kind: str, tmp_path: Path) -> None:
    data = bytes(range(256)) * 2000
    async with started(tmp_path, kind) as sandbox:
        script = (
            b"#!/bin/sh\ncat < 'a b/c' > /tmp/x && cp 'a b/c' copy\n"
            if kind == "fake_container"
            else b"#!/bin/sh\ncp 'a b/c' copy"
        )
        await sandbox.put(
            {f"{WORKDIR}/a b/c": data, f"{WORKDIR}/run": script, f"{HOME}/empty": b""}, executable=[f"{WORKDIR}/run"]
        )
        assert (await sandbox.exec(["./run"], timeout=20)).exit_code == 0
        assert await sandbox.get(f"{WORKDIR}/copy") == data and await sandbox.get(f"{HOME}/empty") == b""
        await sandbox.put({f"{WORKDIR}/copy": b"new"})
        assert await sandbox.get(f"{WORKDIR}/copy") == b"new"
        with pytest.raises(FileNotFoundError):
            await sandbox.get(f"{WORKDIR}/missing/file")
        with pytest.raises(SandboxError, match="at most 10"):
            await sandbox.get(f"{WORKDIR}/a b/c", max_bytes=10)
        with pytest.raises(SandboxError):
            await sandbox.get(f"{WORKDIR}/a b")


@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_is_written_or_read_through_a_link_the_agent_made(kind: str, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "f").write_text("theirs")
    async with started(tmp_path, kind) as sandbox:
        script = f"ln -s {tmp_path}/outside out; ln -s {tmp_path}/outside/f file; ln -s nowhere dangling; "
        script += "mkdir folder; ln -s folder to_folder"
        await sandbox.exec(["sh", "-c", script], timeout=20)
        for path in (f"{WORKDIR}/out/f", f"{WORKDIR}/folder", "/etc/passwd", f"{WORKDIR}/../x", WORKDIR):
            with pytest.raises(SandboxError):
                await sandbox.put({path: b"x"})
        for path in (f"{WORKDIR}/out/f", f"{WORKDIR}/file", "/etc/passwd"):
            with pytest.raises(SandboxError):
                await sandbox.get(path)
        for name in ("file", "dangling", "to_folder"):
            await sandbox.put({f"{WORKDIR}/{name}": b"ours"})
            assert await sandbox.get(f"{WORKDIR}/{name}") == b"ours"
    assert (tmp_path / "outside" / "f").read_text() == "theirs" and len(list((tmp_path / "outside").iterdir())) == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_a_snapshot_has_files_folders_and_links_and_is_bounded(kind: str, tmp_path: Path) -> None:
    script = "mkdir -p d/e; echo x > d/f; chmod 4755 d/f; ln d/f hard; ln -s /etc/passwd l; mkfifo p; echo y > d/e/g; "
    script += "chmod 0 d/e/g d/e"
    async with started(tmp_path, kind, snapshot_bytes=100_000, snapshot_files=50) as sandbox:
        assert (await sandbox.exec(["sh", "-c", script], timeout=20)).exit_code == 0
        await sandbox.snapshot(WORKDIR, tmp_path / "copy")
        copy = tmp_path / "copy"
        assert sorted(str(p.relative_to(copy)) for p in copy.rglob("*")) == ["d", "d/e", "d/e/g", "d/f", "hard", "l"]
        assert (copy / "d/f").read_text() == (copy / "hard").read_text() == "x\n"
        assert (copy / "d/f").stat().st_mode & 0o7777 == 0o755 and str((copy / "l").readlink()) == "/etc/passwd"
        with pytest.raises(SandboxError, match="not empty"):
            await sandbox.snapshot(WORKDIR, copy)
        await sandbox.exec(["sh", "-c", "mkdir many; cd many; for n in $(seq 60); do : > $n; done"], timeout=20)
        with pytest.raises(SandboxError, match="snapshot_files"):
            await sandbox.snapshot(f"{WORKDIR}/many", tmp_path / "many")
        await sandbox.exec(["sh", "-c", "head -c 1000000 /dev/zero > big"], timeout=20)
        with pytest.raises(SandboxError, match="snapshot_bytes"):
            await sandbox.snapshot(WORKDIR, tmp_path / "big")


@pytest.mark.parametrize("kind", KINDS)
async def test_without_a_network_not_even_this_host_is_reachable(kind: str, tmp_path: Path) -> None:
    async with listening() as port, started(tmp_path, kind) as sandbox:
        command = ["bash", "-c", f": < /dev/tcp/127.0.0.1/{port}"]
        assert (await sandbox.exec(command, timeout=20)).exit_code == 0
        assert (await sandbox.exec(command, timeout=20, network=False)).exit_code != 0
        assert (await sandbox.exec(["sh", "-c", "exit 7"], timeout=20, network=False)).exit_code == 7


@needs_bwrap
async def test_where_no_network_cannot_be_kept_it_must_be_declared(tmp_path: Path) -> None:
    config = {"without": ["unshare"]}
    with pytest.raises(SandboxError, match="network_off=declared"):
        async with started(tmp_path, "fake_container", provider_config=config):
            pass
    assert_nothing_left(tmp_path)
    FakeGymProvider.made.clear()
    async with started(tmp_path, "fake_container", provider_config=config, network_off="declared") as sandbox:
        assert (await sandbox.exec(["true"], timeout=20, network=False)).exit_code == 0


@needs_bwrap
async def test_a_sandbox_that_has_no_network_needs_none_taken(tmp_path: Path) -> None:
    config = {"without": ["unshare"], "network": "none"}
    async with listening() as port, started(tmp_path, "fake_container", provider_config=config) as sandbox:
        command = ["bash", "-c", f": < /dev/tcp/127.0.0.1/{port}"]
        assert (await sandbox.exec(command, timeout=20, network=False)).exit_code != 0


def proxy(port: int) -> dict[str, Any]:
    return {"proxy_url": f"http://127.0.0.1:{port}", "proxy_socket": Path("/unused")}


@pytest.mark.parametrize("kind", KINDS)
async def test_on_this_hosts_network_the_proxys_own_address_is_used(kind: str, tmp_path: Path) -> None:
    async with listening() as port, started(tmp_path, kind, polar=proxy(port)) as sandbox:
        assert sandbox.proxy_url == f"http://127.0.0.1:{port}"


@needs_bwrap
async def test_on_another_network_the_error_says_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match=r"proxy_url.*capture\.host.*forward_to"):
        async with started(tmp_path, "fake_container", provider_config={"network": "none"}, polar=proxy(9)):
            pass
    assert_nothing_left(tmp_path)


async def test_an_address_that_is_given_is_used_and_proved(tmp_path: Path) -> None:
    async with listening() as port:
        given = "http://127.0.0.2:{port}/"  # this host too, and listened on by nobody
        with pytest.raises(SandboxError, match=rf"cannot be reached at http://127.0.0.2:{port} .*capture.host"):
            async with started(tmp_path, proxy_url=given, polar=proxy(port)):
                pass
        FakeGymProvider.made.clear()
        async with started(tmp_path, proxy_url="http://localhost:{port}", polar=proxy(port)) as sandbox:
            assert sandbox.proxy_url == f"http://localhost:{port}"


@needs_bwrap
async def test_a_forwarded_port_is_used_and_its_loss_is_the_sandboxs_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeForwardingProvider, "ended", asyncio.Event())
    async with listening() as port, started(tmp_path, "fake_forwarding", forward_to="10.1.2.3", polar=proxy(port)) as sandbox:
        assert sandbox.proxy_url == f"http://127.0.0.1:{port}"
        assert FakeForwardingProvider.forwarded == [("10.1.2.3", (port,))]
        assert (await sandbox.exec(["true"], timeout=20)).exit_code == 0
        assert FakeForwardingProvider.ended is not None
        FakeForwardingProvider.ended.set()
        with pytest.raises(SandboxError, match="the tunnel is gone"):
            await sandbox.exec(["true"], timeout=20)


@needs_bwrap
@pytest.mark.parametrize(
    ("provider", "options", "said"),
    [
        ("fake_container", {"forward_to": "10.1.2.3"}, "forwards no ports"),
        ("fake_forwarding", {"forward_to": "myhost"}, "myhost"),
        ("fake_forwarding", {"forward_to": "10.1.2.3", "provider_config": {"forwarding": False}}, "forwarding is off"),
    ],
)
async def test_forwarding_that_cannot_be_is_named(provider: str, options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match=said):
        async with started(tmp_path, provider, polar=proxy(9), **options):
            pass
    assert_nothing_left(tmp_path)


async def test_a_sandbox_without_a_proxy_needs_no_way_to_it(tmp_path: Path) -> None:
    async with started(tmp_path) as sandbox:
        assert sandbox.proxy_url == ""


def toolchain(folder: Path) -> Path:
    tool = folder / "toolchain" / "bin" / "hello"
    tool.parent.mkdir(parents=True)
    tool.write_text("#!/bin/sh\necho hello\n")
    tool.chmod(0o755)
    (folder / "toolchain" / "again").symlink_to("bin/hello")
    return folder / "toolchain"


async def test_on_this_hosts_files_the_toolchain_is_the_hosts_folder(tmp_path: Path) -> None:
    async with started(tmp_path, polar={"toolchain": toolchain(tmp_path)}) as sandbox:
        assert (await sandbox.exec(["hello"], timeout=20)).stdout == b"hello\n"
        assert (await sandbox.exec([f"{TOOLCHAIN}/again"], timeout=20)).stdout == b"hello\n"


@needs_bwrap
async def test_in_a_container_the_toolchain_is_in_the_image_or_is_uploaded(tmp_path: Path) -> None:
    polar = {"toolchain": toolchain(tmp_path)}
    with pytest.raises(SandboxError, match=r"'tools:1'.*toolchain to upload"):
        async with started(tmp_path, "fake_container", polar=polar, image="tools:1"):
            pass
    assert FakeGymProvider.made[0].specs[0].image == "tools:1"
    FakeGymProvider.made.clear()
    async with started(tmp_path, "fake_container", polar=polar, toolchain="upload") as sandbox:
        assert (await sandbox.exec(["sh", "-c", "hello; /opt/polar/again"], timeout=20)).stdout == b"hello\nhello\n"
    FakeGymProvider.made.clear()
    async with started(tmp_path, "fake_container", polar=polar, toolchain="none") as sandbox:
        assert (await sandbox.exec(["hello"], timeout=20)).exit_code == 127


@needs_bwrap
async def test_an_image_without_a_needed_program_is_named(tmp_path: Path) -> None:
    # A file that cannot be run stands for one that is not there.
    with pytest.raises(SandboxError, match="has no tar: use another image"):
        async with started(tmp_path, "fake_container", provider_config={"without": ["tar"]}):
            pass


async def test_variables_of_the_request_and_those_to_be_kept_reach_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONDA", "a b")
    monkeypatch.setenv("OTHER", "x")
    async with started(tmp_path, keep_env=["CONDA", "UNSET_ONE"], spec={"env": {"OF_SPEC": "1"}}) as sandbox:
        out = (await sandbox.exec(["sh", "-c", 'echo "$CONDA|$OTHER|$OF_SPEC|${UNSET_ONE-unset}"'], timeout=20)).stdout
        assert out == b"a b||1|unset\n"


async def test_no_secret_of_the_environment_is_on_a_command_line_of_the_providers(tmp_path: Path) -> None:
    secret = secrets.token_hex(16)
    async with started(tmp_path) as sandbox:
        await sandbox.exec(["true"], timeout=20, env={"KEY": secret})
        assert not any(secret in command for command in FakeGymProvider.made[0].commands)
        with pytest.raises(SandboxError, match="bad name"):
            await sandbox.exec(["true"], timeout=20, env={"bad name": "x"})


async def test_a_missing_working_folder_is_said(tmp_path: Path) -> None:
    async with started(tmp_path) as sandbox:
        with pytest.raises(SandboxError, match="no such folder"):
            await sandbox.exec(["true"], timeout=20, cwd=f"{WORKDIR}/none")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"spec": {"files": {}}}, "files"),
        ({"spec": {"image": "x"}}, "image"),
        ({"spec": {"workdir": "/x"}}, "workdir"),
        ({"proxy_url": "proxy:80"}, "proxy_url"),
        ({"keep_env": ["a b"]}, "a b"),
        ({"network_off": "no"}, "network_off"),
        ({"providr": "x"}, "providr"),
    ],
)
def test_wrong_options_are_named_before_anything_is_started(options: dict[str, Any], said: str) -> None:
    run = settings(sandbox={"name": "gym", "options": {"provider": "fake", **options}})
    with pytest.raises(ConfigError, match=said):
        try_sandbox(run, {})
    assert FakeGymProvider.made == []


def test_a_task_names_its_own_image_over_the_runs() -> None:
    try_sandbox(settings(sandbox={"name": "gym", "options": {"provider": "fake", "image": "a"}}), {"image": "b"})
    with pytest.raises(ConfigError, match="provider"):
        try_sandbox(settings(sandbox={"name": "gym"}), {})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"provider": "nobody"}, "nobody"),
        ({"spec": {"no_such_field": 1}}, "no_such_field"),
    ],
)
async def test_what_gym_refuses_is_a_sandbox_error(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    sandbox = make(tmp_path, **options)
    with pytest.raises(SandboxError, match=said):
        await sandbox.start()
    await sandbox.stop()


@pytest.mark.parametrize("step", ["create", "exec", "upload_file", "download_file"])
async def test_whatever_a_provider_raises_is_a_sandbox_error_and_the_sandbox_is_closed(step: str, tmp_path: Path) -> None:
    sandbox = make(tmp_path)
    FakeGymProvider.fail[step] = ConnectionError("the service is gone")
    with pytest.raises(SandboxError, match="the service is gone"):
        await sandbox.start()
        await sandbox.exec(["echo", "x"], timeout=20)
    del FakeGymProvider.fail[step]
    await sandbox.stop()
    assert_nothing_left(tmp_path)


async def test_a_sandbox_that_was_being_made_when_its_start_was_cancelled_is_closed(tmp_path: Path) -> None:
    FakeGymProvider.hold["create"] = asyncio.Event()
    sandbox = make(tmp_path)
    task = asyncio.create_task(sandbox.start())
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.wait([task])
    stopping = asyncio.create_task(sandbox.stop())
    await asyncio.sleep(0.05)
    FakeGymProvider.hold["create"].set()
    await stopping
    [provider] = FakeGymProvider.made
    assert (provider.closed, provider.open) == (1, {})


async def test_one_that_could_not_be_closed_says_so_and_can_be_closed_again(tmp_path: Path) -> None:
    sandbox = make(tmp_path)
    await sandbox.start()
    FakeGymProvider.fail["close"] = ConnectionError("not now")
    with pytest.raises(SandboxError, match="not now"):
        await sandbox.stop()
    FakeGymProvider.fail.clear()
    await sandbox.stop()
    await sandbox.stop()
    assert_nothing_left(tmp_path)


async def test_a_sandbox_that_takes_too_long_to_make_is_given_up(tmp_path: Path) -> None:
    FakeGymProvider.hold["create"] = asyncio.Event()
    sandbox = make(tmp_path, start_seconds=0.05)
    with pytest.raises(SandboxError, match="make a sandbox: it took more than"):
        await sandbox.start()
    FakeGymProvider.hold["create"].set()
    await sandbox.stop()
    assert_nothing_left(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
async def test_many_commands_leave_no_file_or_descriptor(kind: str, tmp_path: Path) -> None:
    async with started(tmp_path, kind) as sandbox:
        await sandbox.exec(["true"], timeout=20)
        before = open_descriptors()
        for _ in range(3):
            await sandbox.exec(["sh", "-c", "echo x"], timeout=20, stdin=b"in")
        assert open_descriptors() == before
        stage = FakeGymProvider.made[0].commands[-1].split("/bin/sh ")[1].split()[0].rpartition("/")[0]
        left = await sandbox.exec(["sh", "-c", f"ls -A {stage}"], timeout=20)
        assert {name.partition(b".")[0] for name in left.stdout.split()} == {left.stdout.split()[0].partition(b".")[0]}


async def test_without_gym_the_error_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nemo_gym.sandbox.providers.registry", None)
    with pytest.raises(SandboxError, match=r"nemo_polar\[gym\]"):
        await make(tmp_path).start()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


async def test_a_proxy_that_nobody_listens_for_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="cannot be reached"):
        async with started(tmp_path, polar=proxy(free_port())):
            pass
    assert_nothing_left(tmp_path)
