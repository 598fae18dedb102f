# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What an installed harness is worth: there, the pinned version, and it starts. Changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nemo_polar.toolchain import npm, python
from nemo_polar.toolchain.host import Missing, Progress
from nemo_polar.toolchain.install import Known, node_is_there


@dataclass(frozen=True, slots=True)
class Health:
    """One harness."""

    name: str
    ok: bool
    detail: str
    fix: str = ""
    """How to get it right; empty when it is."""


def check(harness: Known, toolchain: Path, progress: Progress) -> Health:
    """Look at one harness, and start it."""
    how, place = harness.install, harness.place(toolchain)
    again = f"polar harness install {harness.name}"
    if how.manager == "none":
        return Health(harness.name, True, "runs a command that you bring; nothing to install")
    stamp = place.stamp()
    if stamp is None or not place.launcher.exists():
        return Health(harness.name, False, f"{how.package} {how.version} is not installed in {toolchain}", again)
    if stamp.version != how.version or stamp.package != how.package:
        detail = f"{stamp.package} {stamp.version} is installed, and {how.package} {how.version} is pinned"
        return Health(harness.name, False, detail, again)
    if stamp.runs_on == "node" and not node_is_there(toolchain):
        return Health(harness.name, False, "it lacks its Node", again)
    if stamp.runs_on.startswith("python") and not (place.folder / "bin" / stamp.runs_on).exists():
        return Health(harness.name, False, "it lacks its Python", f"{again} --force")
    try:
        if how.manager == "npm":
            version = npm.check_version(progress, how, place.launcher)
        else:
            version = python.check_starts(progress, how, place)
    except Missing as exc:
        return Health(harness.name, False, str(exc), f"{again} --force")
    stale = "" if harness.up_to_date(toolchain) else f"; {again} would bring it up to date"
    return Health(
        harness.name, True, f"{how.package} {version} starts{f', on {stamp.runs_on}' if stamp.runs_on else ''}{stale}"
    )
