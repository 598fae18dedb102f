# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What the set-up is made of: steps and their stamps, and from the package's own file what any installing needs.

Standard library only, Python 3.8 and later. It knows nothing of what a step does.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nemo_polar.toolchain import host
    from nemo_polar.toolchain.host import Missing, Progress, find_python, locked, run

ROOT = Path(__file__).resolve().parent.parent


def _load(path: Path) -> ModuleType:
    """A module of the package by its file: the package is not installed yet, and this Python may be too old for it."""
    spec = importlib.util.spec_from_file_location(f"polar_set_up_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    spec.loader.exec_module(module)
    return module


if not TYPE_CHECKING:
    host = _load(ROOT / "nemo_polar" / "toolchain" / "host.py")
    Missing, Progress, find_python, locked, run = host.Missing, host.Progress, host.find_python, host.locked, host.run


@dataclass(frozen=True)
class Step:
    """One part of the set-up."""

    name: str
    work: Callable[[Progress], None]
    inputs: Callable[[], str]
    """A hash of everything that decides the result."""
    present: Callable[[], bool]
    """Whether the result is still there, stamp or no stamp."""

    def stamp(self, state: Path) -> Path:
        return state / "stamps" / self.name

    def up_to_date(self, state: Path) -> bool:
        stamp = self.stamp(state)
        return stamp.exists() and stamp.read_text(encoding="utf-8") == self.inputs() and self.present()

    def bring(self, state: Path, count: str, *, force: bool = False) -> None:
        """Do the step unless it is up to date."""
        if not force and self.up_to_date(state):
            print(f"{count} {self.name}: up to date", flush=True)
            return
        started = time.monotonic()
        stamp = self.stamp(state)
        stamp.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            stamp.unlink()
        print(f"{count} {self.name}", flush=True)
        self.work(Progress())
        stamp.write_text(self.inputs(), encoding="utf-8")
        print(f"{count} {self.name}: done in {time.monotonic() - started:.0f} s", flush=True)
