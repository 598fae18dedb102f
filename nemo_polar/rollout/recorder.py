# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Results into a run folder: rows in the journal, lines in ``trajectories.jsonl``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from nemo_polar.capture.journal import Journal
from nemo_polar.rollout.attempt import Identity
from nemo_polar.rollout.folder import RunFolder
from nemo_polar.trajectory.store import append_trajectory
from nemo_polar.types import Trajectory, Turn


class FolderRecorder:
    """See ``pipeline.Recorder``. All methods raise ``JournalError`` when the disk refuses."""

    def __init__(self, folder: RunFolder, journal: Journal) -> None:
        self._folder = folder
        self._journal = journal

    async def kinds(self, turns: Sequence[Turn]) -> None:
        await asyncio.gather(*(self._journal.set_kind(t.session_id, t.id, t.kind) for t in turns))

    async def attempt(self, who: Identity, number: int, result: dict[str, Any]) -> None:
        await self._journal.add_result(who.rollout_id, who.group_id, who.task_id, number, result)

    async def trajectory(self, trajectory: Trajectory, attempt: int) -> None:
        await asyncio.to_thread(append_trajectory, self._folder.trajectories, trajectory)
