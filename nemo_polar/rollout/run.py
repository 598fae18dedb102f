# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""One run, from settings to a finished run folder: engine, proxy, pipeline, manifest, report.

Everything that can be wrong with the settings, the plug-ins and the task files is found before a process is started or a folder
made. Whatever happens after that, processes are ended and the folder is left consistent, with a report of what there is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_polar.capture.journal import Journal
from nemo_polar.engines.base import Engine
from nemo_polar.logs import to_file
from nemo_polar.rollout.assemble import Say, make_build, make_shop, scratch_folder, serving_proxy, void
from nemo_polar.rollout.audited import audit_folder
from nemo_polar.rollout.checks import Checked
from nemo_polar.rollout.folder import RunFolder, create_run_folder, has_begun, read_json, write_json
from nemo_polar.rollout.launch import launched_engine
from nemo_polar.rollout.manifest import manifest_of, plain_settings, task_hashes
from nemo_polar.rollout.pipeline import Earlier, Pipeline, planned, progress_of
from nemo_polar.rollout.recorder import FolderRecorder
from nemo_polar.rollout.report import outcome_of
from nemo_polar.rollout.resume import Left, read_left, refuse_other_engine, take_over
from nemo_polar.trajectory.first_prompts import prompt_differences
from nemo_polar.trajectory.records import JournalReader
from nemo_polar.trajectory.store import engine_logs, write_manifest
from nemo_polar.types import Trajectory


@dataclass(frozen=True, slots=True)
class Finished:
    """What a run came to."""

    folder: RunFolder
    report: dict[str, Any]
    trajectories: list[Trajectory]
    cancelled: bool
    nothing_to_do: bool = False
    """The run had been finished before; it was only read."""


class Run:
    """One run. ``cancel`` may be called from a signal handler of the loop."""

    def __init__(
        self,
        checked: Checked,
        *,
        overwrite: bool = False,
        resume: bool = False,
        rescore: bool = False,
        say: Say = void,
    ) -> None:
        """How to go about it.

        Args:
            resume: go on with what is in the run folder; if no run was begun there, begin it.
            rescore: have the engine score what it drew once more, while it still serves, as part of the audit.
        """
        self.settings = checked.settings
        self.pipeline: Pipeline | None = None
        """Set once rollouts start; its ``progress`` is what to show."""
        self._checked = checked
        self._overwrite = overwrite
        self._resume = resume
        self._rescore = rescore
        self._say = say
        self._cancelled = False
        self._task: asyncio.Task[Any] | None = None

    def cancel(self) -> None:
        """End the run: rollouts under way are cleaned up and recorded as cancelled."""
        self._cancelled = True
        if self.pipeline is not None:
            self.pipeline.cancel()
        elif self._task is not None:
            self._task.cancel()

    async def run(self) -> Finished:
        """Do it.

        Raises:
            ConfigError: the run folder exists or is in use, the run to resume is another one, or an address cannot be bound.
            EngineError: the engine cannot be reached or trained on.
            JournalError: results cannot be written.
            CancelledError: cancelled before a rollout was started.
        """
        self._task = asyncio.current_task()
        settings = self.settings
        began = time.time()
        path = Path(settings.out) / settings.name
        resumes = self._resume and has_begun(path)
        folder = RunFolder(path) if resumes else create_run_folder(path, overwrite=self._overwrite)
        async with AsyncExitStack() as stack:
            stack.enter_context(folder.held())
            stack.enter_context(to_file(folder.logs / "polar.log"))
            left = await self._left(folder) if resumes else None
            if left is not None and len(left.earlier.kept) == self._total:
                return await self._finished_before(folder, left, began)
            scratch = await stack.enter_async_context(scratch_folder())
            urls = await stack.enter_async_context(launched_engine(settings.engine, settings.policy, folder, self._say))
            proxy = await serving_proxy(stack, settings, folder, urls, scratch, self._say)
            recorder = FolderRecorder(folder, proxy.journal)
            shop = make_shop(settings, self._checked.harness, proxy, folder, scratch)
            earlier = left.earlier if left is not None else Earlier()
            pipeline = Pipeline(shop, self._checked.tasks, make_build(settings.traces), recorder, earlier)
            manifest = manifest_of(settings, proxy, began, self._checked.tasks)
            if left is None:
                write_manifest(folder.path, manifest)
            else:
                refuse_other_engine(folder, left.manifest, manifest)
                for group_id, day in left.dates.items():
                    proxy.sessions.pin_date(group_id, day)
                await take_over(folder, left, recorder)
            self.pipeline = pipeline
            trajectories = await pipeline.run()
            report = outcome_of(pipeline.progress, trajectories, wall_s=time.time() - began, cancelled=self._cancelled)
            report["group_prompt_differences"] = await asyncio.to_thread(_parted, folder, report)
            report |= await self._audited(proxy.engine, folder)
            write_json(folder.report, report)
        return Finished(folder, report, trajectories, self._cancelled)

    @property
    def _total(self) -> int:
        return len(self._checked.tasks) * self.settings.group_size

    async def _left(self, folder: RunFolder) -> Left:
        """What is there to go on with."""
        tasks = self._checked.tasks
        every = [who for _, who in planned(tasks, self.settings.group_size)]
        left = await asyncio.to_thread(read_left, folder, plain_settings(self.settings), task_hashes(tasks), every)
        self._say(f"resuming: {len(left.earlier.kept)} of {len(every)} rollouts have a result")
        return left

    async def _finished_before(self, folder: RunFolder, left: Left, began: float) -> Finished:
        """Nothing is left to run. If it was interrupted before its report was written, that is made up for."""
        trajectories, progress = list(left.earlier.kept.values()), progress_of(self._total, left.earlier)
        before = read_json(folder.report)
        if before is not None and not before["cancelled"] and before["rollouts"] == self._total:
            self._say(f"nothing to do: all {self._total} rollouts have a result")
            return Finished(folder, before, trajectories, False, nothing_to_do=True)
        self._say(f"no rollout is left to run: all {self._total} have a result; making the report")
        journal = Journal(folder.journal)
        journal.start()
        try:
            await take_over(folder, left, FolderRecorder(folder, journal))
        finally:
            await journal.stop()
        report = outcome_of(progress, trajectories, wall_s=time.time() - began, cancelled=False)
        report["group_prompt_differences"] = await asyncio.to_thread(_parted, folder, report)
        report |= await self._audited(None, folder)
        write_json(folder.report, report)
        return Finished(folder, report, trajectories, False)

    async def _audited(self, engine: Engine | None, folder: RunFolder) -> dict[str, Any]:
        """The audit's part of the report; without an engine-side log there is nothing to audit against."""
        if not engine_logs(folder.path):
            return {"audited": False}
        if not self._rescore or self._cancelled:
            engine = None
        self._say("auditing" if engine is None else "auditing, and scoring every trace again")
        return {"audited": True, **(await audit_folder(folder.path, engine)).to_dict()}


def _parted(folder: RunFolder, report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Where the first prompts of the groups that the report names part."""
    if not report["group_prompt_mismatches"]:
        return []
    with JournalReader(folder.journal) as journal:
        return [difference.to_dict() for difference in prompt_differences(journal)]
