# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Where things lie in a toolchain folder, and what a stamp says. Nothing here starts a program.

    bin/                    what a sandbox has on its PATH: one launcher a harness, and ``node``
    node/                   the Node that all harnesses written for it share
    NAME/                   one harness; nothing of it lies elsewhere but its launcher
    NAME/polar.json         its stamp, written last
    NAME.part/              an installation under way: a small toolchain of its own, moved into place when it is proven to work

The folder is mounted read-only into sandboxes, at another path: everything in it finds the rest relative to itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from nemo_polar.harnesses.base import Install
from nemo_polar.rollout.compose import home

NODE_VERSION = "24.21.0"
NODE = Install("npm", "node", NODE_VERSION, "node")
_FORMAT = 1
"""Raised when the way of installing changes, so that everything is installed anew."""
_LOCKS = Path(__file__).parent / "locks"


def toolchain_folder() -> Path:
    """Below ``POLAR_HOME``, else ``.polar`` in the checkout or the working folder."""
    return home() / "toolchain"


def lock_file(name: str) -> Path | None:
    """The list of all packages a harness that ships with Polar is made of, where there is one."""
    path = _LOCKS / f"{name}.txt"
    return path if path.is_file() else None


def inputs(name: str, install: Install) -> str:
    """A hash of all that decides what an installation holds."""
    lock = lock_file(name)
    parts = [_FORMAT, NODE_VERSION, asdict(install), lock.read_text(encoding="utf-8") if lock else None]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Stamp:
    """What was installed."""

    inputs: str
    package: str
    version: str
    """Found in the package itself, not merely asked for."""
    runs_on: str
    """``node``, ``python3.12`` and so on, or empty: the program itself."""


@dataclass(frozen=True, slots=True)
class Place:
    """One harness in one toolchain folder."""

    toolchain: Path
    name: str
    binary: str

    @property
    def folder(self) -> Path:
        return self.toolchain / self.name

    @property
    def launcher(self) -> Path:
        return self.toolchain / "bin" / self.binary

    @property
    def _stamp(self) -> Path:
        return self.folder / "polar.json"

    def stamp(self) -> Stamp | None:
        """None: nothing that came to its end is there."""
        try:
            return Stamp(**json.loads(self._stamp.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def write_stamp(self, stamp: Stamp) -> None:
        self._stamp.write_text(json.dumps(asdict(stamp), indent=2) + "\n", encoding="utf-8")

    def part(self) -> Place:
        """The same harness in an empty folder to install into."""
        place = Place(self.toolchain / f"{self.name}.part", self.name, self.binary)
        shutil.rmtree(place.toolchain, ignore_errors=True)
        for folder in (place.folder, place.launcher.parent):
            folder.mkdir(parents=True)
        return place

    def take(self, part: Place) -> None:
        """Put what lies in ``part`` in the place of what is here; a run that has the old one open keeps it."""
        old = self.toolchain / f"{self.name}.old"
        shutil.rmtree(old, ignore_errors=True)
        self.launcher.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            self.folder.rename(old)
        part.folder.rename(self.folder)
        part.launcher.replace(self.launcher)
        shutil.rmtree(old, ignore_errors=True)
        shutil.rmtree(part.toolchain, ignore_errors=True)

    def write_launcher(self, lines: str) -> None:
        """A shell script that knows the toolchain as ``$here``, wherever it is mounted and whoever links to the script."""
        start = '#!/bin/sh\nhere=$(dirname -- "$(readlink -f -- "$0")")\nhere=$(cd -- "$here/.." && pwd)\n'
        self.launcher.write_text(start + lines, encoding="utf-8")
        self.launcher.chmod(0o755)
