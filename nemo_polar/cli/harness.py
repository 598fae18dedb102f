# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""``polar harness``: which harnesses there are, installing them, and whether what is installed works."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.markup import escape

from nemo_polar.cli.boundary import Exit, complain, leave
from nemo_polar.cli.console import print_json, stdout
from nemo_polar.errors import HarnessError
from nemo_polar.toolchain.check import check
from nemo_polar.toolchain.host import Progress
from nemo_polar.toolchain.install import Known, all_known, install, known
from nemo_polar.toolchain.layout import toolchain_folder

ALL = "all"


def list_command(*, as_json: bool) -> None:
    """See ``polar harness list --help``."""
    folder = toolchain_folder()
    harnesses, broken = all_known()
    rows = [_row(harness, folder) for harness in harnesses]
    if as_json:
        print_json({"toolchain": str(folder), "harnesses": rows, "broken": broken})
    else:
        out = stdout()
        for line in _columns(rows):
            out.print(line, highlight=False, markup=False)
        out.print(f"toolchain: {folder}", highlight=False, markup=False)
        for name, why in broken.items():
            out.print(f"{name} cannot be used: {why}", highlight=False, markup=False)
    leave(Exit.FINDINGS if broken else Exit.OK)


def install_command(names: Sequence[str], *, force: bool) -> None:
    """See ``polar harness install --help``.

    Raises:
        RegistryError: a name that nothing is called.
        HarnessError: one of them could not be installed; the others were.
    """
    folder, progress = toolchain_folder(), Progress(sys.stderr)
    wanted = _named(names)
    failed: list[str] = []
    for number, harness in enumerate(wanted, 1):
        count = f"[{number}/{len(wanted)}] {harness.name}"
        progress.say(count)
        try:
            done = install(harness, folder, progress, force=force)
        except HarnessError as exc:
            if len(wanted) == 1:
                raise
            complain(str(exc))
            failed.append(harness.name)
            continue
        nothing = "nothing to install" if harness.install.manager == "none" else "up to date"
        progress.say(f"{count}: {f'{harness.install.package} {harness.install.version} installed' if done else nothing}")
    if failed:
        raise HarnessError(f"not installed: {', '.join(failed)}; run the same command again when what they lack is there")


def doctor_command(names: Sequence[str], *, as_json: bool) -> None:
    """See ``polar harness doctor --help``."""
    folder = toolchain_folder()
    every, broken = all_known()
    wanted = _named(names) if names else [h for h in every if _is_installed(h, folder)]
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:  # each takes a second or two: no progress needed
        found = [check(harness, folder, Progress(nowhere)) for harness in wanted]
    absent = sorted({h.name for h in every} - {h.name for h in wanted}) if not names else []
    if as_json:
        print_json({"toolchain": str(folder), "checked": [asdict(f) for f in found], "not_installed": absent, "broken": broken})
    else:
        out = stdout()
        for f in found:
            mark = "[green]ok     [/]" if f.ok else "[red]wrong  [/]"
            out.print(f"{mark}  {f.name:15} {escape(f.detail)}", highlight=False)
            if not f.ok:
                out.print(f"         {'':15} {escape(f.fix)}", highlight=False)
        for name, why in broken.items():
            out.print(f"[red]wrong  [/]  {name:15} {escape(why)}", highlight=False)
        if absent:
            out.print(f"not installed: {', '.join(absent)} (polar harness install NAME)", highlight=False, markup=False)
    leave(Exit.OK if all(f.ok for f in found) and not broken else Exit.FINDINGS)


def _named(names: Sequence[str]) -> list[Known]:
    """Each once, in the order given; ``all`` stands for every one that there is."""
    chosen: dict[str, Known] = {}
    for name in names:
        for harness in all_known()[0] if name == ALL else [known(name)]:
            chosen.setdefault(harness.name, harness)
    return list(chosen.values())


def _is_installed(harness: Known, folder: Path) -> bool:
    return harness.install.manager == "none" or harness.place(folder).stamp() is not None


def _columns(rows: Sequence[Mapping[str, str | None]]) -> list[str]:
    """A table as lines, as wide as it needs to be: names are there to be copied."""
    titles = {
        "name": "name",
        "dialect": "API",
        "pinned": "pinned",
        "state": "installed",
        "binary": "command",
        "package": "package",
    }
    cells = [list(titles.values()), *([row[key] or "-" for key in titles] for row in rows)]
    widths = [max(len(line[n]) for line in cells) for n in range(len(titles))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]


def _row(harness: Known, folder: Path) -> dict[str, str | None]:
    how = harness.install
    stamp = None if how.manager == "none" else harness.place(folder).stamp()
    if how.manager == "none":
        state = "nothing to install"
    elif stamp is None:
        state = "no"
    else:
        state = stamp.version if harness.up_to_date(folder) else f"{stamp.version}, out of date"
    return {
        "name": harness.name,
        "dialect": harness.dialect,
        "package": how.package or None,
        "pinned": how.version or None,
        "binary": how.binary or None,
        "installed": stamp.version if stamp else None,
        "state": state,
    }
