# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The folder of one run, and what lies where in it.

runs/<name>/manifest.json        what was run: settings, versions, model, tasks
           /journal.db           sessions, calls, turns, results
           /engine.jsonl         the engine's own log, for the audit
           /trajectories.jsonl   what a trainer reads
           /report.json          counts, statuses, rewards
           /logs/                output of harnesses, verifiers and the engine; run.lock, held by the run that works here
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_polar.errors import ConfigError
from nemo_polar.trajectory.store import ENGINE_LOG, JOURNAL, MANIFEST, TRAJECTORIES
from nemo_polar.whole import write_whole


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

    @property
    def lock(self) -> Path:
        return self.logs / "run.lock"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Work in this folder alone. The hold ends with the block, or with the process, however that ends.

        Raises:
            ConfigError: another run works in it, or it cannot be locked.
        """
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
            fd = os.open(self.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as exc:
            raise ConfigError(f"{self.lock} cannot be made: {exc.strerror}") from exc
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as exc:
                raise ConfigError(f"a run is under way in {self.path}; wait for it, or choose another name=") from exc
            except OSError as exc:
                raise ConfigError(f"{self.lock} cannot be locked: {exc.strerror}") from exc
            yield
        finally:
            os.close(fd)


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
                raise ConfigError(
                    f"{path} is not empty; choose another name=, give --resume to go on with that run, "
                    "or --overwrite to rename it out of the way"
                )
            if RunFolder(path).lock.exists():
                with RunFolder(path).held():
                    pass
            number = 1
            while (aside := path.with_name(f"{path.name}.old-{number}")).exists():
                number += 1
            path.rename(aside)
        folder = RunFolder(path)
        folder.logs.mkdir(parents=True)
    except OSError as exc:
        raise ConfigError(f"{path} cannot be made: {exc.strerror}") from exc
    return folder


def has_begun(path: Path) -> bool:
    """True for the folder of a run that got as far as its first rollout: it has a manifest."""
    return (path / MANIFEST).is_file()


def _never_started(path: Path) -> bool:
    """True for a folder of ours from before its manifest was written."""
    return path.is_dir() and (path / "logs").is_dir() and not any((path / name).exists() for name in (MANIFEST, TRAJECTORIES))


def read_json(path: Path) -> dict[str, Any] | None:
    """What ``write_json`` wrote; None when there is no such file."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None


def write_json(path: Path, value: Any) -> None:
    """Write a file whole or not at all."""
    write_whole(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())
