# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""All cells, a few at a time, each in a process of its own; every row is on disk when its cell has ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nemo_polar import registry
from nemo_polar.errors import RegistryError
from nemo_polar.harnesses.base import Harness
from tests.harness_matrix import table
from tests.harness_matrix.cell import Cell
from tests.harness_matrix.rules import CRASHED, MISSING, RAN, broken
from tests.harness_matrix.scenarios import SCENARIOS, Scenario
from tests.harness_matrix.tools import HARNESSES, Toolset

_GRACE_SECONDS = 130
"""For all of a cell but its harness."""
_REPOSITORY = Path(__file__).resolve().parents[2]

Say = Callable[[str], None]


def plan(harnesses: Sequence[str], scenarios: Sequence[str], families: Sequence[str]) -> list[tuple[str, str, str]]:
    """Harness, scenario and family of each cell. The plain scenario with every family, the others with the first; those with
    sub-agents or a compaction with the harnesses that have such.

    A harness's plain cells come first: they tell how long its first prompt is.
    """
    met = [(h, s) for s in scenarios for h in harnesses if _meet(HARNESSES[h], SCENARIOS[s])]
    cells = [(h, s, f) for h, s in met for f in (families if s == "plain" else families[:1])]
    return sorted(cells, key=lambda cell: (cell[1] != "plain", SCENARIOS[cell[1]].overflows or SCENARIOS[cell[1]].compacts))


def _meet(toolset: Toolset, scenario: Scenario) -> bool:
    return (toolset.compacts or not scenario.compacts) and (bool(toolset.agent) or not scenario.delegates)


@dataclass(slots=True)
class Matrix:
    """One run of the matrix."""

    out: Path
    toolchain: Path
    say: Say
    jobs: int = 2
    seconds: float = 120
    resume: bool = False
    """Keep the rows that are there, as far as they pass."""
    rows: dict[tuple[str, str, str], dict[str, Any]] = field(default_factory=dict)

    async def run(self, cells: Iterable[tuple[str, str, str]]) -> list[dict[str, Any]]:
        """Every row, in the order of ``cells``."""
        cells = list(cells)
        slots = asyncio.Semaphore(self.jobs)

        async def one(key: tuple[str, str, str]) -> None:
            async with slots:
                row = await self._row(*key)
            self.rows[key] = row
            self._tell(row, len(cells))

        async with asyncio.TaskGroup() as group:
            for key in cells:
                group.create_task(one(key))
        return [self.rows[key] for key in cells]

    async def _row(self, harness: str, scenario: str, family: str) -> dict[str, Any]:
        folder = self.out / "cells" / f"{harness}.{scenario}.{family}"
        cell = Cell(harness, scenario, family, toolchain=str(self.toolchain), seconds=self.seconds)
        kept = _read(folder / "row.json") if self.resume else None
        if kept is not None and not broken(kept):
            return kept
        folder.mkdir(parents=True, exist_ok=True)
        absent = self._absent(harness)
        if absent is not None:
            row = {**asdict(cell), "state": MISSING, "why": absent}
        else:
            row = await self._ran(cell, folder)
        (folder / "row.json").write_text(json.dumps(row, indent=1, ensure_ascii=False))
        return row

    def _absent(self, name: str) -> str | None:
        """Why a harness cannot be run, if so."""
        try:
            harness: Harness = registry.resolve("harnesses", name)()
        except RegistryError:
            return "no adapter"
        binary = self.toolchain / "bin" / harness.install.binary
        return None if binary.exists() else f"polar harness install {name}"

    async def _ran(self, cell: Cell, folder: Path) -> dict[str, Any]:
        about = {**asdict(cell), "first_prompt": self._first_prompt(cell)}
        (folder / "cell.json").write_text(json.dumps(about))
        (folder / "row.json").unlink(missing_ok=True)
        argv = (sys.executable, "-m", "tests.harness_matrix.cell", str(folder))
        why = ""
        with (folder / "cell.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *argv, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, cwd=_REPOSITORY, start_new_session=True
            )
            try:
                async with asyncio.timeout(2 * cell.seconds + _GRACE_SECONDS):
                    code = await process.wait()
                why = f"exit code {code}; see {folder / 'cell.log'}"
            except TimeoutError:
                why = f"hung; see {folder}"
            finally:
                if process.returncode is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    await process.wait()
        row = _read(folder / "row.json")
        return {**about, "state": CRASHED, "why": why} if row is None else {**row, "state": RAN}

    def _first_prompt(self, cell: Cell) -> int | None:
        plain = self.rows.get((cell.harness, "plain", cell.family)) or _read(
            self.out / "cells" / f"{cell.harness}.plain.{cell.family}" / "row.json"
        )
        return (plain or {}).get("first_prompt")

    def _tell(self, row: dict[str, Any], total: int) -> None:
        wrong = broken(row)
        figures = ""
        if row["state"] == RAN:
            figures = (
                f" {row['wall_s']:.0f} s, {row['calls']} calls, {row['turns']} turns, {sum(row['main_traces'])} main, "
                f"forks {table.counts(row['forks'])}, drift {row['drift_tokens']}, {', '.join(sorted(set(row['statuses'])))}"
            )
        self.say(
            f"[{len(self.rows):3}/{total}] {'BROKEN' if wrong else 'ok    '} {table.name(row)}:{figures}"
            + "".join(f"\n      {w}" for w in wrong)
        )


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None
