# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Going on with a run that was interrupted: what of it stays, and whether it is the run that is asked for.

Whatever ended it (Ctrl-C, ``kill -9``, a full disk), the folder tells which rollouts have a result about the policy. Those
stay. All others are run again as a new attempt; what their earlier attempts drew stays in the journal, and counts as masked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from nemo_polar.errors import ConfigError
from nemo_polar.rollout.attempt import Identity
from nemo_polar.rollout.differences import Difference, engine_differences, resume_differences
from nemo_polar.rollout.folder import RunFolder
from nemo_polar.rollout.pipeline import Earlier
from nemo_polar.rollout.roller import Recorder, result_of
from nemo_polar.trajectory.records import JournalReader
from nemo_polar.trajectory.store import Manifest, keep_trajectories, read_manifest, read_trajectories
from nemo_polar.types import Trajectory


@dataclass(frozen=True, slots=True)
class Left:
    """What an interrupted run left in its folder."""

    manifest: Manifest
    earlier: Earlier
    unrecorded: Mapping[str, int] = field(default_factory=dict)
    """Kept rollouts whose trajectory was written and whose result was not, to the attempt it is of: killed in between."""
    dates: Mapping[str, date] = field(default_factory=dict)
    """Group to the date its rollouts were given, so that those run again on another day send the same first prompt."""


def read_left(folder: RunFolder, settings: Mapping[str, Any], tasks: Mapping[str, str], planned: Sequence[Identity]) -> Left:
    """Read a folder. Blocks on the disk; changes nothing.

    Args:
        settings: those that are asked for, and ``tasks`` the hashes of the tasks, both as a manifest has them.
        planned: every rollout of the run.

    Raises:
        ConfigError: it is the folder of another run; the first settings that differ are named with both values.
        JournalError: a file of it cannot be read.
    """
    manifest = read_manifest(folder.path)
    refuse(folder.path, resume_differences(manifest, settings, tasks))
    known = {who.rollout_id for who in planned}
    kept: dict[str, Trajectory] = {}
    if folder.trajectories.exists():
        for trajectory in read_trajectories(folder.trajectories):
            if not trajectory.status.infra and trajectory.rollout_id in known:
                kept[trajectory.rollout_id] = trajectory
    attempts: dict[str, int] = {}
    with JournalReader(folder.journal) as journal:
        results, sessions = journal.results(), journal.sessions()
        for row in [*sessions, *results]:
            attempts[row.rollout_id] = max(row.attempt + 1, attempts.get(row.rollout_id, 0))
    recorded = {(row.rollout_id, row.attempt) for row in results}
    unrecorded = {name: n for name, t in kept.items() if (name, n := _attempt(t)) not in recorded}
    retried = sum(row.payload.get("final") is False for row in results)
    dates = {s.group_id: date.fromisoformat(s.metadata["pinned_date"]) for s in sessions if "pinned_date" in s.metadata}
    return Left(manifest, Earlier(kept, attempts, retried), unrecorded, dates)


async def take_over(folder: RunFolder, left: Left, recorder: Recorder) -> None:
    """Make the folder what it would be had every rollout that is run again not been begun. Called with the journal open.

    Raises:
        JournalError: it cannot be written.
    """
    for name, attempt in left.unrecorded.items():
        trajectory = left.earlier.kept[name]
        await recorder.attempt(Identity(name, trajectory.task_id, trajectory.group_id), attempt, result_of(trajectory))
    if folder.trajectories.exists():
        kept = left.earlier.kept
        await asyncio.to_thread(keep_trajectories, folder.trajectories, lambda t: t.rollout_id in kept and not t.status.infra)


def refuse_other_engine(folder: RunFolder, before: Manifest, now: Manifest) -> None:
    """Make sure that the engine serves the model of the run, and that it is rendered alike.

    Raises:
        ConfigError: it does not.
    """
    refuse(folder.path, engine_differences(before, now))


def refuse(path: Path, found: Sequence[Difference]) -> None:
    """Raise ``ConfigError`` naming what differs, if anything does."""
    if found:
        told = "; ".join(d.told("there", "asked for") for d in found[:5])
        more = f"; and {len(found) - 5} more" if len(found) > 5 else ""
        raise ConfigError(f"{path} is another run: {told}{more}. Ask for the same, or choose another name=")


def _attempt(trajectory: Trajectory) -> int:
    """The number of the attempt that a trajectory is of."""
    return int(trajectory.metrics.get("attempts", 1.0)) - 1
