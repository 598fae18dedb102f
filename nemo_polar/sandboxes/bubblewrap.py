# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The view of the world inside a local sandbox, as arguments for bubblewrap.

Inside there are: the host's ``/usr`` read-only, an ``/etc`` of our making, the sandbox's own folders, the toolchain, a few
devices, its own ``/proc`` and, when the proxy may be reached, one Unix socket. Nothing else of the host. This module only
looks at which folders the host has; it starts nothing.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nemo_polar.errors import SandboxError
from nemo_polar.sandboxes import relay
from nemo_polar.sandboxes.base import HOME, TOOLCHAIN, WORKDIR

SOCKET = "/run/polar.sock"
UID = 1000
_RELAY = "/run/polar-relay.py"
_PYTHON = "/opt/polar-python"
_LIBRARY_PATH = "LD_LIBRARY_PATH"
_SHM_BYTES = 512 * 1024 * 1024
_ROOT_FOLDERS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_HOST_ETC = (
    "alternatives",
    "ca-certificates",
    "ld.so.cache",
    "mime.types",
    "pki/ca-trust",
    "pki/tls/certs",
    "pki/tls/cert.pem",
    "protocols",
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
)
"""Taken from the host where it has them: all of it public, none of it about this host or its users."""
_ETC = {
    "passwd": f"root:x:0:0::/:/usr/sbin/nologin\npolar:x:{UID}:{UID}::{HOME}:/bin/sh\n",
    "group": f"root:x:0:\npolar:x:{UID}:\n",
    "hosts": "127.0.0.1 localhost polar\n::1 localhost\n",
    "hostname": "polar\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "resolv.conf": "",
    "machine-id": "00000000000000000000000000000001\n",
    "timezone": "UTC\n",
}


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of a command: fixed, so that runs do not differ, plus ``extra``."""
    fixed = {
        "PATH": f"{TOOLCHAIN}/bin:/usr/local/bin:/usr/bin:/bin",
        "HOME": HOME,
        "USER": "polar",
        "LOGNAME": "polar",
        "SHELL": "/bin/sh",
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "TERM": "dumb",
        "TMPDIR": "/tmp",
    }
    return {**fixed, **extra}


def write_etc(folder: Path) -> None:
    """Write our ``/etc`` files to the host folder that ``Mounts.etc`` names."""
    folder.mkdir(exist_ok=True)
    for name, text in _ETC.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o644)
    folder.chmod(0o755)


@dataclass(frozen=True, slots=True)
class Bind:
    """A host path and where it appears."""

    source: Path
    target: str
    writable: bool = False


@dataclass(frozen=True, slots=True)
class Python:
    """How to run the relay inside: with the Python that runs us, of which only what the relay needs is shown."""

    executable: str
    binds: tuple[Bind, ...] = ()
    hidden: tuple[str, ...] = ()
    """Folders below the binds that are covered by empty ones."""
    library_path: str | None = None


@functools.cache
def this_python() -> Python:
    """This interpreter, seen from inside. One under /usr is there already."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    prefix = Path(sys.base_prefix).resolve()
    executable = (prefix / "bin" / version).resolve()
    if executable.is_relative_to("/usr"):
        return Python(str(executable))
    library = prefix / "lib" / version
    binds = [Bind(executable, f"{_PYTHON}/bin/{version}"), Bind(library, f"{_PYTHON}/lib/{version}")]
    shared = prefix / "lib" / str(sysconfig.get_config_var("INSTSONAME"))
    has_shared = bool(sysconfig.get_config_var("Py_ENABLE_SHARED")) and shared.exists()
    if has_shared:
        binds.append(Bind(shared.resolve(), f"{_PYTHON}/lib/{shared.name}"))
    hidden = (f"{_PYTHON}/lib/{version}/site-packages",) if (library / "site-packages").is_dir() else ()
    return Python(f"{_PYTHON}/bin/{version}", tuple(binds), hidden, f"{_PYTHON}/lib" if has_shared else None)


@functools.cache
def find_bwrap() -> tuple[str, frozenset[str]]:
    """Path of bubblewrap and the options it knows.

    Raises:
        SandboxError: it is not installed.
    """
    path = shutil.which("bwrap")
    if path is None:
        raise SandboxError(
            "the local sandbox needs bubblewrap: install it (apt-get install bubblewrap, or dnf install bubblewrap)"
        )
    text = subprocess.run([path, "--help"], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL).stdout
    return path, frozenset(word for word in text.split() if word.startswith("--"))


@dataclass(frozen=True, slots=True)
class Mounts:
    """The host paths that one sandbox shows."""

    workspace: Path
    home: Path
    tmp: Path
    etc: Path
    toolchain: Path | None = None
    python: Python = field(default_factory=this_python)

    def binds(self, socket: Path | None) -> list[Bind]:
        """Everything to be bound, besides what every sandbox takes from the host itself."""
        found = [
            Bind(self.workspace, WORKDIR, writable=True),
            Bind(self.home, HOME, writable=True),
            Bind(self.tmp, "/tmp", writable=True),
            *(Bind(self.etc / name, f"/etc/{name}") for name in _ETC),
            *self.python.binds,
            Bind(Path(relay.__file__).resolve(), _RELAY),
        ]
        if self.toolchain is not None:
            found.append(Bind(self.toolchain, TOOLCHAIN))
        if socket is not None:
            found.append(Bind(socket, SOCKET))
        return found


def arguments(
    binds: list[Bind], *, python: Python, env: Mapping[str, str], cwd: str, status_fd: int, seccomp_fd: int
) -> list[str]:
    """bubblewrap's options for one command, without the command itself."""
    known = find_bwrap()[1]
    args = ["--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    if "--disable-userns" in known:
        args.append("--disable-userns")
    args += ["--die-with-parent", "--new-session", "--cap-drop", "ALL", "--uid", str(UID), "--gid", str(UID)]
    args += ["--hostname", "polar", "--json-status-fd", str(status_fd), "--seccomp", str(seccomp_fd)]
    args += ["--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev"]
    if "--size" in known:
        args += ["--size", str(_SHM_BYTES)]
    # Read-only /proc: its sysctls belong to the whole host, and bubblewrap does not guard them where we are uid 0 outside.
    args += ["--tmpfs", "/dev/shm", "--remount-ro", "/dev", "--remount-ro", "/proc"]
    for name in _ROOT_FOLDERS:
        path = Path("/") / name
        if path.is_symlink():
            args += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            args += ["--ro-bind", str(path), str(path)]
    for name in _HOST_ETC:
        args += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    args += ["--symlink", "/usr/share/zoneinfo/UTC", "/etc/localtime", "--symlink", "/tmp", "/var/tmp", "--dir", "/run"]
    for bind in binds:
        args += ["--bind" if bind.writable else "--ro-bind", str(bind.source), bind.target]
    for folder in python.hidden:
        args += ["--tmpfs", folder, "--remount-ro", folder]
    args += ["--remount-ro", "/", "--chdir", cwd, "--clearenv"]
    for name, value in env.items():
        args += ["--setenv", name, value]
    if python.library_path is not None:  # for the relay's Python alone; the relay puts the command's own value back
        args += ["--setenv", _LIBRARY_PATH, python.library_path]
    return args


def launcher(
    argv: list[str], *, python: Python, env: Mapping[str, str], limits: Mapping[str, int], port: int | None
) -> list[str]:
    """The command line inside: the relay, with a way out when ``port`` is given, then ``argv``."""
    line = [python.executable, "-I", "-S", _RELAY]
    for name, value in limits.items():
        line += ["--limit", f"{name}={value}"]
    if python.library_path is not None:
        line += ["--env", f"{_LIBRARY_PATH}={env[_LIBRARY_PATH]}"] if _LIBRARY_PATH in env else ["--unset", _LIBRARY_PATH]
    if port is not None:
        line += ["--listen", str(port), "--connect", SOCKET]
    return [*line, "--", *argv]
