# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""npm harnesses: each in a folder of its own, started by the toolchain's Node or as the native program that they are.

The machine's npm installs, of whatever version; it decides nothing. Versions are exact, as npm under an old Node would choose
old releases in silence, and the program must say the version itself. npm may skip install scripts, so what those would have
linked is found without them.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from pathlib import Path

from nemo_polar.harnesses.base import Install
from nemo_polar.toolchain.host import Missing, Progress, run
from nemo_polar.toolchain.layout import NODE, Place

_VERSION = re.compile(r"(?<![\w.])v?(\d+\.\d+\.\d+(?:[-+][\w.+-]*)?)")
_ELF = b"\x7fELF"


def find_npm() -> str:
    """The machine's npm.

    Raises:
        Missing: there is none.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise Missing(
            "npm is missing: install Node.js (any version from 18 on) from your system's packages or from nodejs.org."
        )
    return npm


def install_package(progress: Progress, install: Install, part: Place) -> str:
    """Install into ``part``, launcher included; returns what it runs on, ``node`` or nothing.

    Raises:
        Missing: npm or the network fails, or no program for this machine is in the package.
    """
    wanted = {install.package: install.version, **dict(word.rsplit("@", 1) for word in install.also)}
    modules = _fetch(progress, f"installing {install.package} {install.version}", wanted, part)
    found = _described(modules, install)
    if found.get("version") != install.version:
        raise Missing(f"npm brought {install.package} {found.get('version')} where {install.version} is pinned.")
    program, runs_on = _program(modules, install, found)
    inside = program.relative_to(part.toolchain)
    start = f'"$here/bin/node" "$here/{inside}"' if runs_on else f'"$here/{inside}"'
    part.write_launcher(f'exec {start} "$@"\n')
    return runs_on


def install_node(progress: Progress, part: Place) -> None:
    """Install Node into ``part``.

    Raises:
        Missing: as ``install_package``.
    """
    modules = _fetch(progress, f"installing Node {NODE.version}", {NODE.package: NODE.version}, part)
    for path in [modules / "node/bin/node", *modules.glob("**/node-*-*/bin/node")]:
        if _is_native(path):
            part.launcher.symlink_to(Path("..") / path.relative_to(part.toolchain))
            return
    raise Missing(f"the npm package node@{NODE.version} has no program for this machine: Linux on x86-64 or arm64 is needed.")


def check_version(progress: Progress, install: Install, launcher: Path) -> str:
    """Start it and read the version it prints.

    Raises:
        Missing: it does not start, or says another version than is pinned.
    """
    with tempfile.TemporaryDirectory(prefix="polar-home-") as home:
        env = {"HOME": home, "TERM": "dumb", **install.env}
        said = run(progress, f"starting {install.binary}", [launcher, *install.probe], env=env, cwd=Path(home))
    versions = _VERSION.findall(said)
    if install.version not in versions:
        spoken = versions[-1] if versions else said.strip()[-100:] or "nothing"
        raise Missing(f"{install.binary} says that it is version {spoken} where {install.version} is pinned.")
    return install.version


def _fetch(progress: Progress, title: str, packages: dict[str, str], part: Place) -> Path:
    """Have npm put exact versions into ``part``; returns its ``node_modules``."""
    manifest = {"private": True, "dependencies": packages}
    (part.folder / "package.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    command = [find_npm(), "install", "--no-audit", "--no-fund", "--loglevel=error", "--prefix", part.folder]
    run(progress, title, command, cwd=part.folder)
    return part.folder / "node_modules"


def _described(modules: Path, install: Install) -> dict[str, object]:
    try:
        return json.loads((modules / install.package / "package.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise Missing(f"npm left no package {install.package}: run the same command again.") from exc


def _program(modules: Path, install: Install, package: dict[str, object]) -> tuple[Path, str]:
    """What to start, and what with."""
    if install.native:
        for path in sorted(modules.glob(install.native)):
            if _is_native(path):
                return path, ""
        raise Missing(
            f"{install.package} has no program for this machine: npm may be set to leave out optional packages "
            "(npm config get omit), or Linux on x86-64 or arm64 is needed."
        )
    commands = package.get("bin")
    entry = commands.get(install.binary) if isinstance(commands, dict) else commands
    if not isinstance(entry, str):
        raise Missing(f"{install.package} {install.version} has no command called {install.binary}.")
    path = modules / install.package / entry
    return path, "" if _is_native(path) else "node"


def _is_native(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4) == _ELF
    except OSError:
        return False
