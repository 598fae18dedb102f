# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Installing a harness: made beside its place, proven to work there, then moved in; skipped while its stamp is up to date."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_polar import registry
from nemo_polar.errors import HarnessError, RegistryError
from nemo_polar.harnesses.base import Install
from nemo_polar.toolchain import npm, python
from nemo_polar.toolchain.host import Missing, Progress, locked
from nemo_polar.toolchain.layout import NODE, Place, Stamp, inputs

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_TAKEN = ("bin", NODE.package)


@dataclass(frozen=True, slots=True)
class Known:
    """A harness that can be named, and how it is installed."""

    name: str
    dialect: str
    install: Install

    def place(self, toolchain: Path) -> Place:
        return Place(toolchain, self.name, self.install.binary)

    def up_to_date(self, toolchain: Path) -> bool:
        """Whether what is installed is what would be installed now."""
        place = self.place(toolchain)
        stamp = place.stamp()
        node = stamp is not None and stamp.runs_on == "node"
        return (
            stamp is not None
            and stamp.inputs == inputs(self.name, self.install)
            and place.launcher.exists()
            and (not node or node_is_there(toolchain))
        )


def known(name: str) -> Known:
    """The harness that ``name`` stands for.

    Raises:
        RegistryError: no such harness, or it cannot be imported.
        HarnessError: it does not say how it is installed.
    """
    harness: Any = registry.resolve("harnesses", name)
    install = getattr(harness, "install", None)
    if not isinstance(install, Install) or install.manager not in ("npm", "pip", "none"):
        raise HarnessError(
            f"the harness {name!r} does not say how it is installed: its class attribute 'install' is no Install"
        )
    if not _NAME.fullmatch(harness.name) or harness.name in _TAKEN:
        raise HarnessError(
            f"the harness {name!r} cannot be installed as {harness.name!r}: that is no name for a folder of its own"
        )
    return Known(harness.name, harness.dialect, install)


def all_known() -> tuple[list[Known], dict[str, str]]:
    """Every harness that resolves by name, and for those that cannot be loaded, why."""
    found: list[Known] = []
    broken: dict[str, str] = {}
    for name in registry.names("harnesses"):
        try:
            found.append(known(name))
        except (RegistryError, HarnessError) as exc:
            broken[name] = str(exc)
    return found, broken


def node_is_there(toolchain: Path) -> bool:
    """Whether the toolchain has the Node that harnesses written for it run on."""
    place = _node(toolchain)
    stamp = place.stamp()
    return stamp is not None and stamp.inputs == inputs("node", NODE) and place.launcher.exists()


def install(harness: Known, toolchain: Path, progress: Progress, *, force: bool = False) -> bool:
    """Install a harness, and Node if it needs that; returns False if it was there already, or is nothing to install.

    Raises:
        HarnessError: it cannot be installed. One sentence: what is missing, and how to get it.
    """
    if harness.install.manager == "none":
        return False
    try:
        toolchain.mkdir(parents=True, exist_ok=True)
        with locked(toolchain / "install.lock", progress):
            if not force and harness.up_to_date(toolchain):
                return False
            _bring(harness, toolchain, progress)
            return True
    except Missing as exc:
        raise HarnessError(f"{harness.name}: {exc}") from exc
    except OSError as exc:
        raise HarnessError(f"{harness.name} cannot be installed in {toolchain}: {exc}") from exc


def _bring(harness: Known, toolchain: Path, progress: Progress) -> None:
    how = harness.install
    if how.manager == "npm":
        npm.find_npm()

    def make(part: Place) -> Stamp:
        if how.manager == "npm":
            runs_on = npm.install_package(progress, how, part)
            if runs_on:
                _bring_node(toolchain, progress)
                (part.launcher.parent / "node").symlink_to(_node(toolchain).launcher)
            version = npm.check_version(progress, how, part.launcher)
        else:
            runs_on = python.install_packages(progress, harness.name, how, part)
            version = python.check_starts(progress, how, part)
        return Stamp(inputs(harness.name, how), how.package, version, runs_on)

    _swap(harness.place(toolchain), make)


def _bring_node(toolchain: Path, progress: Progress) -> None:
    if node_is_there(toolchain):
        return

    def make(part: Place) -> Stamp:
        npm.install_node(progress, part)
        version = npm.check_version(progress, NODE, part.launcher)
        return Stamp(inputs("node", NODE), NODE.package, version, "")

    _swap(_node(toolchain), make)


def _swap(place: Place, make: Callable[[Place], Stamp]) -> None:
    """Make a part, and put it in place if that comes to its end; otherwise nothing of it is left."""
    part = place.part()
    try:
        part.write_stamp(make(part))
        place.take(part)
    finally:
        shutil.rmtree(part.toolchain, ignore_errors=True)


def _node(toolchain: Path) -> Place:
    return Place(toolchain, NODE.package, NODE.binary)
