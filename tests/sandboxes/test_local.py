# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The local sandbox's life: what a command sees and leaves, its deadline, its output, and that nothing of it lives on."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
import time
from pathlib import Path

import pytest

from nemo_polar.errors import SandboxError
from nemo_polar.sandboxes import bubblewrap, privilege
from nemo_polar.sandboxes.base import HOME, WORKDIR, SandboxSpec
from nemo_polar.sandboxes.local import LocalSandbox
from tests.support.sandboxes import (
    children,
    command_lines,
    echo_socket,
    local_sandbox,
    mounts,
    needs_bwrap,
    open_descriptors,
    processes_appear,
    processes_disappear,
    processes_with,
    python,
)

pytestmark = needs_bwrap


async def test_a_command_sees_fixed_paths_names_and_environment(tmp_path: Path) -> None:
    async with local_sandbox(tmp_path, env={"FROM_SPEC": "1"}) as sandbox:
        result = await sandbox.exec(["sh", "-c", "pwd; id -u; uname -n; date +%Z; env"], timeout=10, env={"SECRET": "s"})
    lines = result.stdout.decode().splitlines()
    assert result.exit_code == 0 and lines[:4] == [WORKDIR, "1000", "polar", "UTC"]
    assert set(lines[4:]) - {f"PWD={WORKDIR}", "SHLVL=0", "_=/usr/bin/env"} == {
        "FROM_SPEC=1",
        "SECRET=s",
        f"HOME={HOME}",
        "LANG=C.UTF-8",
        "LOGNAME=polar",
        "PATH=/opt/polar/bin:/usr/local/bin:/usr/bin:/bin",
        "SHELL=/bin/sh",
        "TERM=dumb",
        "TMPDIR=/tmp",
        "TZ=UTC",
        "USER=polar",
    }


async def test_the_commands_own_library_path_is_kept_from_the_relays(tmp_path: Path) -> None:
    async with local_sandbox(tmp_path) as sandbox:
        own = await sandbox.exec(["sh", "-c", "echo $LD_LIBRARY_PATH"], timeout=10, env={"LD_LIBRARY_PATH": "/own"})
        none = await sandbox.exec(["sh", "-c", "echo $LD_LIBRARY_PATH"], timeout=10)
    assert (own.stdout, none.stdout) == (b"/own\n", b"\n")


@pytest.mark.parametrize("network", [True, False])
async def test_exit_codes_are_the_commands_own(tmp_path: Path, network: bool) -> None:
    commands = {
        0: ["true"],
        3: ["sh", "-c", "exit 3"],
        125: ["sh", "-c", "exit 125"],
        137: ["sh", "-c", "kill -KILL $$"],
        143: ["sh", "-c", "kill -TERM $$"],
        127: ["no-such-command"],
        126: ["/etc"],
    }
    async with echo_socket(tmp_path / "s") as socket, local_sandbox(tmp_path, proxy_socket=socket) as sandbox:
        for code, argv in commands.items():
            result = await sandbox.exec(argv, timeout=10, network=network)
            assert (result.exit_code, result.timed_out) == (code, False), (argv, result)


async def test_stdin_files_and_folders_pass_from_one_command_to_the_next(tmp_path: Path) -> None:
    async with local_sandbox(tmp_path) as sandbox:
        await sandbox.put({f"{WORKDIR}/a/b.sh": b"cat > /tmp/kept; cp /tmp/kept ~/kept"}, executable=[f"{WORKDIR}/a/b.sh"])
        await sandbox.exec(["sh", "b.sh"], timeout=10, stdin=b"x" * 300_000, cwd=f"{WORKDIR}/a")
        assert await sandbox.get("/tmp/kept") == b"x" * 300_000
        writable = await sandbox.exec(["sh", "-c", "test -x a/b.sh && echo >> a/b.sh && touch a/new && cat ~/kept"], timeout=10)
        assert writable.exit_code == 0 and len(writable.stdout) == 300_000


async def test_the_toolchain_is_there_and_read_only(tmp_path: Path) -> None:
    tool = tmp_path / "toolchain" / "bin" / "hello"
    tool.parent.mkdir(parents=True)
    tool.write_text("#!/bin/sh\necho hello\n")
    tool.chmod(0o755)
    async with local_sandbox(tmp_path, toolchain=tmp_path / "toolchain") as sandbox:
        assert (await sandbox.exec(["hello"], timeout=10)).stdout == b"hello\n"
        assert (await sandbox.exec(["sh", "-c", "echo > /opt/polar/bin/hello"], timeout=10)).exit_code != 0


async def test_the_deadline_ends_the_whole_tree(tmp_path: Path) -> None:
    mark = secrets.token_hex(8)
    async with local_sandbox(tmp_path) as sandbox:
        script = "trap '' TERM; setsid sleep 100 & sleep 100 & echo begun; sleep 100"
        result = await sandbox.exec(["sh", "-c", script], timeout=0.5, env={"MARK": mark})
        assert result.timed_out and result.exit_code == 137 and result.stdout == b"begun\n" and result.seconds < 5
        assert processes_with(mark) == []


async def test_a_deadline_before_the_command_begins_leaves_nothing(tmp_path: Path) -> None:
    mark = secrets.token_hex(8)
    async with local_sandbox(tmp_path) as sandbox:
        for timeout in (0.0, 0.001, 0.005, 0.02, 0.05):
            result = await sandbox.exec(["sh", "-c", "sleep 100; exit", mark], timeout=timeout)
            assert result.timed_out
            assert processes_with(mark) == []


async def test_what_a_command_leaves_running_dies_with_it(tmp_path: Path) -> None:
    mark = secrets.token_hex(8)
    async with local_sandbox(tmp_path) as sandbox:
        script = "(setsid sh -c 'exec >/dev/null 2>&1; sleep 100' &) ; setsid sleep 100 & sleep 0.2"
        result = await sandbox.exec(["sh", "-c", script], timeout=10, env={"MARK": mark})
        assert result.exit_code == 0 and not result.timed_out
        assert processes_with(mark) == []


async def test_cancelling_ends_the_whole_tree_before_the_cancellation_is_seen(tmp_path: Path) -> None:
    mark = secrets.token_hex(8)
    async with local_sandbox(tmp_path) as sandbox:
        before = set(children())
        for _ in range(3):
            task = asyncio.create_task(
                sandbox.exec(["sh", "-c", "setsid sleep 100 & sleep 100"], timeout=60, env={"MARK": mark})
            )
            await processes_appear(mark)
            for _ in range(8):  # those that come while the tree is being killed must not cut that short
                task.cancel()
                await asyncio.sleep(0)
            with pytest.raises(asyncio.CancelledError):
                await task
            assert processes_with(mark) == [] and set(children()) == before


OTHER_PROCESS = """
import asyncio, sys
from pathlib import Path
from nemo_polar.sandboxes.base import SandboxSpec
from nemo_polar.sandboxes.local import LocalSandbox
async def main():
    sandbox = LocalSandbox(SandboxSpec(id="other", scratch=Path(sys.argv[1])))
    await sandbox.start()
    await sandbox.exec(["sh", "-c", "setsid sleep 100 & sleep 100"], timeout=60, env={"MARK": sys.argv[2]})
asyncio.run(main())
"""


async def test_nothing_survives_the_death_of_the_process_that_runs_it(tmp_path: Path) -> None:
    mark = secrets.token_hex(8)
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", OTHER_PROCESS, str(tmp_path), mark)
    await processes_appear(mark, count=4)  # that process itself, the shell, and what the shell started
    process.kill()
    await process.wait()
    await processes_disappear(mark)


async def test_stop_ends_commands_under_way_and_may_come_twice(tmp_path: Path) -> None:
    mark = secrets.token_hex(8)
    async with local_sandbox(tmp_path) as sandbox:
        task = asyncio.create_task(sandbox.exec(["sleep", "100"], timeout=60, env={"MARK": mark}))
        await processes_appear(mark)
        await sandbox.stop()
        with pytest.raises(SandboxError, match="stopped"):
            await task
        assert processes_with(mark) == [] and list((tmp_path / "box").iterdir()) == []
        await sandbox.stop()
        with pytest.raises(SandboxError, match="stopped"):
            await sandbox.exec(["true"], timeout=1)


async def test_a_flood_of_output_neither_fills_memory_nor_stops_the_writer(tmp_path: Path) -> None:
    async with local_sandbox(tmp_path, max_output_bytes=100_000) as sandbox:
        script = "head -c 30000000 /dev/zero | tr '\\0' a; head -c 30000000 /dev/zero >&2; echo the end"
        result = await sandbox.exec(["sh", "-c", script], timeout=30)
    assert result.exit_code == 0 and result.truncated
    assert len(result.stdout) < 101_000 and len(result.stderr) < 101_000
    assert result.stdout.startswith(b"aaaa") and result.stdout.endswith(b"the end\n") and b"bytes left out" in result.stdout


BOMB = """
import os, time
while True:
    try:
        os.fork()
    except OSError:
        time.sleep(0.2)
"""


async def test_a_fork_bomb_is_bounded_and_ends_at_the_deadline(tmp_path: Path) -> None:
    if os.geteuid() == 0 and privilege.owner_for("x") is None:
        pytest.skip("root without uids to spare: the kernel sets no bound on its processes")
    mark = secrets.token_hex(8)
    async with local_sandbox(tmp_path, options={"processes": 40}) as sandbox:
        running = asyncio.create_task(python(sandbox, BOMB, mark, timeout=1.5))
        most = 0
        while not running.done():
            most = max(most, len(processes_with(mark)))
            await asyncio.sleep(0.2)
        assert (await running).seconds < 20
        assert 3 < most <= 45  # bubblewrap's own two besides
        assert processes_with(mark) == []
        assert (await sandbox.exec(["true"], timeout=10)).exit_code == 0


def own_namespaces() -> set[str]:
    return {str(path.readlink()) for path in Path("/proc/self/ns").iterdir()}


def folders_in(path: Path) -> list[str]:
    return sorted(str(found.relative_to(path)) for found in path.rglob("*") if found.is_dir())


NAMESPACES = "for n in net pid mnt user ipc uts; do readlink /proc/self/ns/$n; done; echo x > f$$; sleep 100 & exit 0"


async def test_fifty_runs_leave_no_process_mount_namespace_file_or_descriptor(tmp_path: Path) -> None:
    mark = secrets.token_hex(8)  # a word of each command line, so that bubblewrap's own processes are found by it too
    seen: set[str] = set()

    async def one(number: int) -> None:
        async with echo_socket(tmp_path / f"s{number}") as socket:
            async with local_sandbox(tmp_path, f"box{number}", proxy_socket=socket) as sandbox:
                for _ in range(3):
                    seen.update((await sandbox.exec(["sh", "-c", NAMESPACES, mark], timeout=20)).stdout.decode().split())
                await sandbox.exec(["sh", "-c", "sleep 100; exit", mark], timeout=0.1)
                task = asyncio.create_task(sandbox.exec(["sh", "-c", "sleep 100; exit", mark], timeout=20))
                await asyncio.sleep(0.1)
                assert processes_with(mark)
                task.cancel()
                await asyncio.wait([task])

    await one(0)  # what Python opens once and keeps does not count
    descriptors, mounted = open_descriptors(), mounts()
    for first in range(1, 10, 3):
        await asyncio.gather(*(one(number) for number in range(first, first + 3)))

    assert len(seen) > 12 and seen.isdisjoint(own_namespaces())  # some really were made; numbers are soon used again
    # A namespace lives by a process, a descriptor or a mount, and there is none of the three.
    assert processes_with(mark) == []
    assert (open_descriptors(), mounts()) == (descriptors, mounted)
    assert folders_in(tmp_path) == [f"box{number}" for number in range(10)]


async def test_stop_removes_what_the_agent_made_hard_to_remove(tmp_path: Path) -> None:
    code = """
import os
os.makedirs("locked/in"); open("locked/in/f", "w").close()
os.chmod("locked/in/f", 0); os.chmod("locked/in", 0); os.chmod("locked", 0)
os.mkfifo("pipe"); os.symlink("/", "root"); os.symlink("loop", "loop")
for _ in range(2500):
    os.mkdir("d" * 100); os.chdir("d" * 100)
open("deep", "w").close(); os.chmod(".", 0o100)
"""
    async with local_sandbox(tmp_path) as sandbox:
        assert (await python(sandbox, code)).exit_code == 0
        begun = time.monotonic()
    assert list((tmp_path / "box").iterdir()) == []
    assert time.monotonic() - begun < 10


async def test_without_bubblewrap_the_error_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    bubblewrap.find_bwrap.cache_clear()
    with pytest.raises(SandboxError, match="apt-get install bubblewrap"):
        await LocalSandbox(SandboxSpec(id="x", scratch=tmp_path)).start()


async def test_a_bubblewrap_that_cannot_make_namespaces_is_an_error_that_says_what_to_enable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "bin" / "bwrap"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    fake.chmod(0o755)
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    bubblewrap.find_bwrap.cache_clear()
    sandbox = LocalSandbox(SandboxSpec(id="x", scratch=tmp_path / "scratch"))
    try:
        with pytest.raises(SandboxError, match=r"No permissions.*max_user_namespaces"):
            await sandbox.start()
        await sandbox.stop()
        assert list((tmp_path / "scratch").iterdir()) == []
    finally:
        bubblewrap.find_bwrap.cache_clear()


async def test_wrong_options_and_missing_parts_are_named(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="prot"):
        LocalSandbox(SandboxSpec(id="x", scratch=tmp_path, options={"prot": 1}))
    for spec, words in (
        ({"toolchain": tmp_path / "none"}, "toolchain folder"),
        ({"proxy_socket": tmp_path / "none"}, "proxy socket"),
        ({"scratch": tmp_path / "none"}, "scratch folder"),
    ):
        with pytest.raises(SandboxError, match=words):
            await LocalSandbox(SandboxSpec(**{"id": "x", "scratch": tmp_path} | spec)).start()


async def test_no_secret_of_the_environment_is_on_a_command_line(tmp_path: Path) -> None:
    secret = secrets.token_hex(16)
    async with local_sandbox(tmp_path) as sandbox:
        task = asyncio.create_task(sandbox.exec(["sleep", "100"], timeout=60, env={"KEY": secret}))
        await processes_appear(secret)
        lines = command_lines()
        task.cancel()
        await asyncio.wait([task])
    assert not any(secret.encode() in line for line in lines)


async def test_two_runs_see_the_same_files_and_facts(tmp_path: Path) -> None:
    code = """
import json, os, platform, socket
facts = {"env": dict(os.environ), "cwd": os.getcwd(), "host": socket.gethostname(), "uid": os.getuid()}
facts |= {path: sorted(os.listdir(path)) for path in ("/", "/etc", "/dev", "/run", "/tmp", os.path.expanduser("~"), ".")}
facts |= {path: open(path).read() for path in ("/etc/passwd", "/etc/hosts", "/etc/machine-id")}
print(json.dumps(facts, sort_keys=True))
"""
    found: list[str] = []
    for name in ("one", "two"):
        async with local_sandbox(tmp_path, name) as sandbox:
            found.append((await python(sandbox, code)).stdout.decode())
    assert found[0] == found[1] and json.loads(found[0])["uid"] == 1000
