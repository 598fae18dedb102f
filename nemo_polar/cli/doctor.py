# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""``polar doctor``: what this machine has and lacks. It starts small programs to see whether they work, and changes nothing."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from packaging.requirements import Requirement
from rich.markup import escape

from nemo_polar.cli.boundary import Exit, leave
from nemo_polar.cli.console import print_json, stdout
from nemo_polar.rollout.compose import engine_python, home

TRY_SECONDS = 60.0
DISK_GIB = 12
"""The engine's environment, the toolchain and the model, with room to unpack them."""
_NAMESPACES = ("--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "true")


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor."""

    name: str
    ok: bool
    detail: str
    fix: str = ""
    """How to get it; empty when it is there."""
    needed_for: str = "all"
    """``all``, or what alone needs it: the demo, the local sandbox."""


def main(*, as_json: bool) -> None:
    """See ``polar doctor --help``."""
    findings = [check() for check in CHECKS]
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        out = stdout()
        for f in findings:
            mark = "[green]ok     [/]" if f.ok else "[red]missing[/]"
            out.print(f"{mark}  {f.name:11} {escape(f.detail)}", highlight=False)
            if not f.ok:
                out.print(f"         {'':11} needed for {f.needed_for}: {escape(f.fix)}", highlight=False)
    leave(Exit.OK if all(f.ok for f in findings) else Exit.FINDINGS)


def attempt(argv: Sequence[str | Path], env: dict[str, str] | None = None) -> tuple[bool, str]:
    """Whether a command works, and the last line it printed."""
    try:
        ran = subprocess.run(
            [str(word) for word in argv],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TRY_SECONDS,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **(env or {})},
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        return False, str(exc)
    lines = (ran.stdout if ran.returncode == 0 else ran.stderr or ran.stdout).strip().splitlines()
    return ran.returncode == 0, lines[-1] if lines else f"exit code {ran.returncode}"


def python() -> Finding:
    ok = (3, 11) <= sys.version_info[:2] <= (3, 13)
    found = ".".join(map(str, sys.version_info[:3]))
    return Finding("python", ok, f"{found} at {sys.executable}", "" if ok else "take Python 3.11, 3.12 or 3.13")


def packages() -> Finding:
    try:
        wanted = [Requirement(text) for text in requires("nemo_polar") or ()]
    except PackageNotFoundError:
        return Finding("packages", False, "nemo_polar is not installed", "make package, or pip install nemo_polar")
    wrong = []
    for requirement in wanted:
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            found = version(requirement.name)
        except PackageNotFoundError:
            found = None
        if found is None or not requirement.specifier.contains(found, prereleases=True):
            wrong.append(f"{requirement.name}{requirement.specifier} (found {found or 'none'})")
    detail = ", ".join(wrong) or f"nemo_polar {version('nemo_polar')} and all it needs"
    return Finding("packages", not wrong, detail, "make package" if wrong else "")


def bubblewrap() -> Finding:
    found = shutil.which("bwrap")
    if found is None:
        return Finding("bubblewrap", False, "no bwrap on PATH", "make system, or install bubblewrap", "sandbox=local")
    _, text = attempt([found, "--version"])
    return Finding("bubblewrap", True, f"{text} at {found}", needed_for="sandbox=local")


def namespaces() -> Finding:
    found = shutil.which("bwrap")
    ok, text = (False, "cannot be tried without bubblewrap") if found is None else attempt([found, *_NAMESPACES])
    fix = "sysctl kernel.unprivileged_userns_clone=1 kernel.apparmor_restrict_unprivileged_userns=0, or take sandbox=process"
    detail = "user, mount, pid and network namespaces work" if ok else text
    return Finding("namespaces", ok, detail, "" if ok else fix, "sandbox=local")


def npm() -> Finding:
    found = shutil.which("npm")
    fix = "" if found else "install Node.js from your system's packages"
    return Finding("npm", found is not None, found or "no npm on PATH", fix, "setting up the toolchain")


def toolchain() -> Finding:
    folder = home() / "toolchain"
    ok, text = attempt([folder / "bin" / "pi", "--version"], {"PI_OFFLINE": "1"})
    return Finding("toolchain", ok, f"pi {text} in {folder}" if ok else text, "" if ok else "make toolchain", "harness=pi")


def engine() -> Finding:
    interpreter = engine_python()
    code = "import importlib.util, importlib.metadata as m; assert importlib.util.find_spec('vllm'); print(m.version('vllm'))"
    ok, text = attempt([interpreter, "-c", code])
    return Finding(
        "engine", ok, f"vLLM {text} at {interpreter}" if ok else text, "" if ok else "make engine", "engine=local_vllm"
    )


def model() -> Finding:
    folder = home() / "models" / "demo"
    missing = [name for name in ("config.json", "tokenizer.json", "model.safetensors") if not (folder / name).is_file()]
    detail = f"{folder} lacks {', '.join(missing)}" if missing else str(folder)
    return Finding("model", not missing, detail, "make model" if missing else "", "the demo")


def disk() -> Finding:
    folder = next(path for path in (home(), *home().parents) if path.exists())
    free = shutil.disk_usage(folder).free / 1024**3
    set_up = (home() / "models" / "demo").exists() and engine_python().exists()
    need = 1 if set_up else DISK_GIB
    fix = "" if free >= need else f"free {need} GiB, or set POLAR_HOME to another disk"
    return Finding("disk", free >= need, f"{free:.0f} GiB free at {folder}", fix)


def loopback() -> Finding:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            with socket.create_connection(server.getsockname(), timeout=5):
                pass
    except OSError as exc:
        return Finding("loopback", False, f"127.0.0.1 cannot be used: {exc}", "bring the interface lo up")
    return Finding("loopback", True, "127.0.0.1 can be listened on and connected to")


CHECKS: tuple[Callable[[], Finding], ...] = (
    python,
    packages,
    bubblewrap,
    namespaces,
    npm,
    toolchain,
    engine,
    model,
    disk,
    loopback,
)
