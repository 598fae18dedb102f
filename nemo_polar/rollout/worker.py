# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Rollouts as they are asked for, in this process: one proxy, one run folder, any number of rollouts at a time.

A run (``run.py``) knows its tasks before it starts. Here they come one by one from a trainer's own machinery: a NeMo Gym agent
server, a NeMo RL actor. What is recorded is the same, so ``polar audit`` and ``polar inspect`` read a worker's folder as any
other. It never decides what a failure means to the trainer: it hands over a ``Rolled`` whose status says how it ended.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

from nemo_polar.cancellation import uninterrupted
from nemo_polar.capture.proxy import CaptureProxy
from nemo_polar.errors import ConfigError, JournalError
from nemo_polar.harnesses.base import Harness
from nemo_polar.logs import to_file
from nemo_polar.rollout.assemble import Say, make_build, make_shop, scratch_folder, serving_proxy, void
from nemo_polar.rollout.attempt import Identity
from nemo_polar.rollout.checks import check_plugins, make_verifier, try_sandbox
from nemo_polar.rollout.folder import RunFolder, create_run_folder, write_json
from nemo_polar.rollout.launch import launched_engine
from nemo_polar.rollout.manifest import manifest_of
from nemo_polar.rollout.pipeline import Progress
from nemo_polar.rollout.recorder import FolderRecorder
from nemo_polar.rollout.rolled import Rolled
from nemo_polar.rollout.roller import Roller
from nemo_polar.rollout.tasks import LoadedTask
from nemo_polar.settings import RunSettings, SamplingPolicy
from nemo_polar.trajectory.records import JournalReader, Request
from nemo_polar.trajectory.store import write_manifest
from nemo_polar.types import Turn


class Worker:
    """``async with Worker(settings) as worker: await worker.rollout(...)``. The tasks of its settings are not looked at."""

    def __init__(self, settings: RunSettings, *, say: Say = void) -> None:
        """Look at everything that needs no process.

        Raises:
            ConfigError: the first thing that is wrong with the settings or their plug-ins.
        """
        self.settings = settings
        self.progress = Progress(total=0)
        self._harness: Harness = check_plugins(settings)
        self._say = say
        self._stack = AsyncExitStack()
        self._folder: RunFolder | None = None
        self._proxy: CaptureProxy | None = None
        self._roller: Roller | None = None
        self._open = asyncio.Semaphore(settings.stages.open)
        self._under_way: set[asyncio.Task[Rolled]] = set()
        self._ids: set[str] = set()

    @property
    def folder(self) -> RunFolder:
        """Where everything is recorded; after ``start``."""
        assert self._folder is not None, "the worker has not been started"
        return self._folder

    @property
    def proxy(self) -> CaptureProxy:
        """The capture proxy that serves its sandboxes; after ``start``."""
        assert self._proxy is not None, "the worker has not been started"
        return self._proxy

    @property
    def under_way(self) -> int:
        """Rollouts that have been asked for and have not ended."""
        return len(self._under_way)

    async def start(self) -> None:
        """Reach the engine and serve. What an earlier worker left under the same name is renamed out of the way.

        Raises:
            ConfigError: the folder cannot be made or is in use, or an address cannot be bound.
            EngineError: the engine cannot be reached or trained on.
        """
        settings, stack = self.settings, self._stack
        try:
            folder = create_run_folder(Path(settings.out) / settings.name, overwrite=True)
            stack.enter_context(folder.held())
            stack.enter_context(to_file(folder.logs / "polar.log"))
            scratch = await stack.enter_async_context(scratch_folder())
            urls = await stack.enter_async_context(launched_engine(settings.engine, settings.policy, folder, self._say))
            proxy = await serving_proxy(stack, settings, folder, urls, scratch, self._say)
            write_manifest(folder.path, manifest_of(settings, proxy, time.time()))
            shop = make_shop(settings, self._harness, proxy, folder, scratch)
            recorder = FolderRecorder(folder, proxy.journal)
            build = make_build(settings.traces)
            self._roller = Roller(shop, build, recorder, ended=self.progress.note, retried=self.progress.note_retry)
        except BaseException:
            await uninterrupted(stack.aclose())
            raise
        self._folder, self._proxy = folder, proxy

    async def stop(self) -> None:
        """Cancel what is under way, see it cleaned up and recorded, and end everything. Safe to call twice."""
        if self._roller is not None:
            self._roller.closing = True
            for task in self._under_way:
                task.cancel()
            if self._under_way:
                await uninterrupted(_all(self._under_way))
            self._roller = None
            statuses = {status.value: count for status, count in sorted(self.progress.statuses.items())}
            counts = {"rollouts": self.progress.done, "rollouts_retried": self.progress.retried, "statuses": statuses}
            await asyncio.to_thread(
                write_json, self.folder.report, counts | {"group_prompt_mismatches": self.progress.prompt_mismatches}
            )
        await uninterrupted(self._stack.aclose())

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def rollout(self, loaded: LoadedTask, who: Identity, *, sampling: SamplingPolicy | None = None) -> Rolled:
        """One rollout to its end, retries included; when cancelled, that is cleaned up and recorded first.

        It waits for its turn while the stages are full; its deadline runs from then on. ``sampling`` is what is drawn, where
        that is not the worker's own policy.

        Raises:
            ConfigError: the task's verifier or sandbox options are wrong, the id was used before, or the worker is not serving.
            JournalError: the result cannot be recorded.
        """
        if self._roller is None:
            raise ConfigError("the worker is not serving: it was not started, or has been stopped")
        if who.rollout_id in self._ids:
            raise ConfigError(f"there is a rollout {who.rollout_id!r} already; every one needs an id of its own")
        make_verifier(loaded.task)
        try_sandbox(self.settings, loaded.task.sandbox)
        self._ids.add(who.rollout_id)
        task = asyncio.create_task(self._roll(self._roller, loaded, who, sampling), name=who.rollout_id)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.cancel()
            await uninterrupted(_all({task}))
            raise

    async def _roll(self, roller: Roller, loaded: LoadedTask, who: Identity, sampling: SamplingPolicy | None) -> Rolled:
        async with self._open:
            self.progress.total += 1
            self.progress.started += 1
            rolled = await roller.roll(loaded, who, sampling=sampling)
        requests = await asyncio.to_thread(self._requests, rolled.turns)
        return Rolled(rolled.trajectory, rolled.turns, requests, rolled.first_prompt)

    def _requests(self, turns: tuple[Turn, ...]) -> dict[int, Request]:
        if not turns:
            return {}
        try:
            with JournalReader(self.folder.journal) as reader:
                return reader.requests(turns[0].session_id)
        except JournalError as exc:
            raise JournalError(f"the requests of a rollout that was recorded cannot be read back: {exc}") from exc


async def _all(tasks: set[asyncio.Task[Rolled]]) -> None:
    await asyncio.wait(tasks)
