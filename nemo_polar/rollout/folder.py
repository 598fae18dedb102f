# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The folder of one run, and what lies where in it.

runs/<name>/manifest.json        what was run: settings, versions, model, tasks
           /journal.db           sessions, calls, turns, results
           /engine.jsonl         the engine's own log, for the audit
           /trajectories.jsonl   what a trainer reads
           /report.json          counts, statuses, rewards
           /logs/                output of harnesses, verifiers and the engine
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_polar.errors import ConfigError
from nemo_polar.trajectory.store import ENGINE_LOG, JOURNAL, MANIFEST, TRAJECTORIES


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths of one run."""

    path: Path

    @property
    def journal(self) -> Path:
        return self.path / JOURNAL

    @property
    def engine_log(self) -> Path:
        return self.path / ENGINE_LOG

    @property
    def trajectories(self) -> Path:
        return self.path / TRAJECTORIES

    @property
    def report(self) -> Path:
        return self.path / "report.json"

    @property
    def logs(self) -> Path:
        return self.path / "logs"


def create_run_folder(path: Path, *, overwrite: bool = False) -> RunFolder:
    """A new, empty run folder.

    With ``overwrite``, what is there is renamed to ``<name>.old-<n>``; nothing is ever deleted. So is, without asking, what
    is left of a run that ended before its first rollout (its engine could not be reached, say): it holds nothing but logs.

    Raises:
        ConfigError: something is there already, or the folder cannot be made.
    """
    try:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            if not overwrite and not _never_started(path):
                raise ConfigError(f"{path} is not empty; choose another name=, or give --overwrite to rename it out of the way")
            number = 1
            while (aside := path.with_name(f"{path.name}.old-{number}")).exists():
                number += 1
            path.rename(aside)
        folder = RunFolder(path)
        folder.logs.mkdir(parents=True)
    except OSError as exc:
        raise ConfigError(f"{path} cannot be made: {exc.strerror}") from exc
    return folder


def _never_started(path: Path) -> bool:
    """True for a folder of ours from before its manifest was written."""
    return path.is_dir() and (path / "logs").is_dir() and not any((path / name).exists() for name in (MANIFEST, TRAJECTORIES))


def write_json(path: Path, value: Any) -> None:
    """Write a file whole or not at all."""
    part = path.with_name(path.name + ".part")
    with part.open("w", encoding="utf-8") as file:
        json.dump(value, file, indent=2, ensure_ascii=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
