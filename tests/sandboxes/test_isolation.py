# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A hostile program inside the local sandbox reaches its own folders and the proxy, and nothing else."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from nemo_polar.errors import SandboxError
from nemo_polar.sandboxes import privilege, seccomp
from nemo_polar.sandboxes.base import HOME, WORKDIR
from nemo_polar.sandboxes.local import LocalSandbox
from tests.support.sandboxes import echo_socket, local_sandbox, needs_bwrap, processes_appear, python

pytestmark = needs_bwrap

REPO = Path(__file__).parents[2]


@pytest.fixture(params=[True, False] if os.geteuid() == 0 else [True], ids=lambda own: "own_uid" if own else "root's uid")
async def sandbox(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LocalSandbox]:
    async with echo_socket(tmp_path / "proxy.sock") as proxy:
        async with local_sandbox(tmp_path, proxy_socket=proxy, options={"own_uid": request.param}) as box:
            yield box


async def attempt(sandbox: LocalSandbox, code: str, *args: object, **options: Any) -> dict[str, str]:
    """Run attempts inside; for each name, "" when it succeeded, else the error's name."""
    result = await python(sandbox, HARNESS.replace("ATTEMPTS", code), *map(str, args), **options)
    assert result.exit_code == 0, result.stderr.decode()
    return json.loads(result.stdout)


HARNESS = """
import ctypes, errno, json, os, signal, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *args):
    if getattr(libc, name)(*args) == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
def connect(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as s:
        s.settimeout(5)
        s.connect(address)
def open_fd(path, flags):
    os.close(os.open(path, flags))
outcome = {}
def attempt(name, do):
    try:
        do()
        outcome[name] = ""
    except OSError as exc:
        outcome[name] = "gaierror" if isinstance(exc, socket.gaierror) else errno.errorcode.get(exc.errno, "?")
ATTEMPTS
print(json.dumps(outcome))
"""


async def test_the_network_is_the_proxy_alone(sandbox: LocalSandbox, tmp_path: Path) -> None:
    abstract = f"\0polar-test-{secrets.token_hex(8)}"
    with socket.socket() as tcp, socket.socket(socket.AF_UNIX) as unix, socket.socket(socket.AF_UNIX) as hidden:
        tcp.bind(("127.0.0.1", 0))
        unix.bind(str(tmp_path / "other.sock"))
        hidden.bind(abstract)
        for listener in (tcp, unix, hidden):
            listener.listen()
        code = """
port, path, abstract = int(sys.argv[1]), sys.argv[2], "\\0" + sys.argv[3]
attempt("proxy", lambda: connect(socket.AF_INET, ("127.0.0.1", 8080)))
attempt("proxy socket", lambda: connect(socket.AF_UNIX, "/run/polar.sock"))
attempt("host loopback", lambda: connect(socket.AF_INET, ("127.0.0.1", port)))
attempt("unix", lambda: connect(socket.AF_UNIX, path))
attempt("abstract", lambda: connect(socket.AF_UNIX, abstract))
attempt("dns", lambda: socket.getaddrinfo("example.com", 80))
attempt("outside", lambda: connect(socket.AF_INET, ("192.0.2.1", 80)))
attempt("outside, v6", lambda: connect(socket.AF_INET6, ("2001:db8::1", 80)))
attempt("vsock", lambda: connect(40, (2, 1)))
attempt("crypto", lambda: socket.socket(38, socket.SOCK_SEQPACKET))
attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
attempt("packet", lambda: socket.socket(17, socket.SOCK_RAW))
"""
        found = await attempt(sandbox, code, tcp.getsockname()[1], tmp_path / "other.sock", abstract[1:])
        assert found == {
            "proxy": "",
            "proxy socket": "",
            "host loopback": "ECONNREFUSED",
            "unix": "ENOENT",
            "abstract": "ECONNREFUSED",
            "dns": "gaierror",
            "outside": "ENETUNREACH",
            "outside, v6": "ENETUNREACH",
            "vsock": "EAFNOSUPPORT",
            "crypto": "EAFNOSUPPORT",
            "raw": "EPERM",
            "packet": "EAFNOSUPPORT",
        }
        closed = await attempt(sandbox, code, tcp.getsockname()[1], "/x", "x", network=False)
        assert closed["proxy"] == "ECONNREFUSED" and closed["proxy socket"] == "ENOENT"


async def test_the_hosts_files_are_not_there(sandbox: LocalSandbox, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    other = tmp_path / "other" / "workspace"
    other.mkdir(parents=True)
    paths = [
        tmp_path / "secret",
        other,
        REPO,
        Path("/etc/shadow"),
        Path("/root"),
        Path("/work"),
        Path("/var/lib"),
        Path("/sys/kernel"),
    ]
    paths += [
        Path("/proc/1/root/etc/shadow"),
        Path("/proc/1/cwd") / str(tmp_path)[1:],
        Path("/run/user"),
        Path("/boot"),
        Path.home(),
    ]
    code = "for path in sys.argv[1:]: attempt(path, lambda: os.stat(path))"
    assert set((await attempt(sandbox, code, *paths)).values()) == {"ENOENT"}


async def test_only_its_own_folders_are_writable(sandbox: LocalSandbox) -> None:
    code = """
import json, os, stat
found = []
for top, folders, files in os.walk("/"):
    if top == "/":
        folders[:] = [name for name in folders if name not in ("usr", "proc")] + ["usr/local", "proc/sys/kernel"]
    try:
        os.close(os.open(os.path.join(top, ".probe"), os.O_CREAT | os.O_WRONLY)); os.unlink(os.path.join(top, ".probe"))
        found.append(top)
    except OSError:
        pass
    for name in files:
        path = os.path.join(top, name)
        if stat.S_ISREG(os.lstat(path).st_mode) or path.startswith("/proc"):
            try:
                os.close(os.open(path, os.O_WRONLY)); found.append(path)
            except OSError:
                pass
print(json.dumps(sorted(found)))
"""
    result = await python(sandbox, code)
    assert json.loads(result.stdout) == ["/dev/shm", HOME, "/tmp", WORKDIR], result.stderr


async def test_the_hosts_processes_can_be_neither_seen_nor_touched(sandbox: LocalSandbox, tmp_path: Path) -> None:
    mark = secrets.token_hex(8)
    async with local_sandbox(tmp_path, "neighbour") as neighbour:
        sleeping = asyncio.create_task(neighbour.exec(["sleep", "100", mark], timeout=60))
        theirs = await processes_appear(mark)
        code = """
pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
outcome["pids"] = str(len(pids))
others = [open(f"/proc/{p}/cmdline").read() for p in pids if p not in (1, os.getpid(), os.getppid())]
outcome["marks"] = str(sum(sys.argv[-1] in line for line in others))
for pid in map(int, sys.argv[1:-1]):
    attempt(f"kill {pid}", lambda: os.kill(pid, 0))
    attempt(f"ptrace {pid}", lambda: call("ptrace", 16, pid, 0, 0))
    attempt(f"look {pid}", lambda: os.stat(f"/proc/{pid}"))
"""
        pids = [os.getpid(), os.getppid(), *theirs]
        found = await attempt(sandbox, code, *pids, mark)
        sleeping.cancel()
        await asyncio.wait([sleeping])
    assert int(found.pop("pids")) <= 4 and found.pop("marks") == "0"
    assert set(found.values()) <= {"ESRCH", "ENOENT"} and len(found) == 3 * len(pids)


async def test_no_way_leads_back_to_privilege(sandbox: LocalSandbox) -> None:
    code = """
NEWUSER, NEWNS, NEWPID = 0x10000000, 0x00020000, 0x20000000
attempt("user namespace", lambda: call("unshare", NEWUSER))
attempt("mount namespace", lambda: call("unshare", NEWNS))
attempt("clone", lambda: call("syscall", 56 if os.uname().machine == "x86_64" else 220, NEWUSER | 17, 0, 0, 0, 0))
attempt("mount", lambda: call("mount", b"none", b"/tmp", b"tmpfs", 0, None))
attempt("remount", lambda: call("mount", None, b"/usr", None, 32, None))
attempt("umount", lambda: call("umount2", b"/proc", 2))
attempt("pivot", lambda: call("syscall", 155 if os.uname().machine == "x86_64" else 41, b"/tmp", b"/tmp"))
attempt("chroot", lambda: os.chroot("/tmp"))
attempt("setuid", lambda: os.setuid(0))
attempt("setgroups", lambda: os.setgroups([0]))
attempt("chown", lambda: (open("/tmp/f", "w").close(), os.chown("/tmp/f", 0, 0)))
attempt("block device", lambda: os.mknod("/tmp/b", 0o60600, os.makedev(8, 0)))
attempt("character device", lambda: os.mknod("/tmp/c", 0o20600, os.makedev(1, 1)))
attempt("hostname", lambda: socket.sethostname("x"))
attempt("keyring", lambda: call("syscall", 250 if os.uname().machine == "x86_64" else 219, 0, -4, 1))
attempt("io_uring", lambda: call("syscall", 425, 8, 0))
attempt("bpf", lambda: call("syscall", 321 if os.uname().machine == "x86_64" else 280, 0, 0, 0))
attempt("perf", lambda: call("syscall", 298 if os.uname().machine == "x86_64" else 241, 0, 0, -1, -1, 0))
attempt("join pid 1's namespace", lambda: call("setns", os.open("/proc/1/ns/mnt", os.O_RDONLY), 0))
attempt("core_pattern", lambda: open_fd("/proc/sys/kernel/core_pattern", os.O_WRONLY))
attempt("sysrq", lambda: open_fd("/proc/sysrq-trigger", os.O_WRONLY))
attempt("kernel memory", lambda: open_fd("/proc/kcore", os.O_RDONLY))
attempt("terminal", lambda: open_fd("/dev/tty", os.O_RDWR))
"""
    found = await attempt(sandbox, code)
    assert {name: error for name, error in found.items() if not error} == {}
    assert found["io_uring"] == "ENOSYS" and found["keyring"] == "EPERM" and found["user namespace"] == "EPERM"
    status = (await sandbox.exec(["cat", "/proc/self/status"], timeout=10)).stdout.decode()
    facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert {int(facts[f"Cap{kind}"], 16) for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {0}
    assert facts["NoNewPrivs"] == "1" and facts["Seccomp"] == "2"


async def test_set_uid_programs_give_nothing(sandbox: LocalSandbox) -> None:
    result = await sandbox.exec(["sh", "-c", "cp /bin/sh ./s; chmod u+s ./s; ./s -c 'id -u'; sudo -n id; true"], timeout=10)
    assert result.stdout == b"1000\n"


def uids_of(pid: int) -> str:
    """Its four uids, as the host counts them."""
    return Path(f"/proc/{pid}/status").read_text().split("Uid:\t")[1].split("\n")[0]


@pytest.mark.skipif(os.geteuid() != 0 or privilege.owner_for("x") is None, reason="only root has uids to give away")
async def test_roots_sandboxes_run_under_uids_of_their_own(tmp_path: Path) -> None:
    mark, uids = secrets.token_hex(8), set[str]()
    for name in ("one", "two"):
        async with local_sandbox(tmp_path, name) as box:
            running = asyncio.create_task(box.exec(["sleep", "100"], timeout=60, env={"MARK": mark}))
            for pid in await processes_appear(mark):
                uids.add(uids_of(pid))
            running.cancel()
            await asyncio.wait([running])
    assert len(uids) == 2 and all(int(uid) > 2**30 for line in uids for uid in line.split())


def test_the_filter_knows_both_architectures_and_refuses_others() -> None:
    assert len(seccomp.program("x86_64")) % 8 == 0 and len(seccomp.program("aarch64")) % 8 == 0
    assert seccomp.program("x86_64") != seccomp.program("aarch64")
    with pytest.raises(SandboxError, match="riscv64"):
        seccomp.program("riscv64")
