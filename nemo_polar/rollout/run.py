# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""One run, from settings to a finished run folder: engine, proxy, pipeline, manifest, report.

Everything that can be wrong with the settings, the plug-ins and the task files is found before a process is started or a folder
made. Whatever happens after that, processes are ended and the folder is left consistent, with a report of what there is.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_polar import registry
from nemo_polar.capture.journal import Journal
from nemo_polar.capture.proxy import CaptureProxy
from nemo_polar.engines.base import Engine
from nemo_polar.engines.replicas import ReplicaSet
from nemo_polar.errors import ConfigError, HarnessError, SandboxError, VerifierError
from nemo_polar.harnesses.base import Endpoint, Harness, HarnessTask
from nemo_polar.logs import to_file
from nemo_polar.rollout.address import SECRET, announced
from nemo_polar.rollout.attempt import Workshop
from nemo_polar.rollout.audited import audit_folder
from nemo_polar.rollout.folder import RunFolder, create_run_folder, has_begun, read_json, write_json
from nemo_polar.rollout.launch import launched_engine
from nemo_polar.rollout.manifest import manifest_of, plain_settings, task_hashes
from nemo_polar.rollout.pipeline import Built, Earlier, Pipeline, planned, progress_of
from nemo_polar.rollout.recorder import FolderRecorder
from nemo_polar.rollout.report import outcome_of
from nemo_polar.rollout.resume import Left, read_left, refuse_other_engine, take_over
from nemo_polar.rollout.stages import Stages
from nemo_polar.rollout.tasks import LoadedTask, Task, load_tasks
from nemo_polar.sandboxes.base import HOME, TOOLCHAIN, WORKDIR, Sandbox, SandboxSpec
from nemo_polar.settings import CaptureSettings, EngineSettings, PolicySettings, RunSettings
from nemo_polar.tokens.load import load_codec
from nemo_polar.trajectory.build import build_traces
from nemo_polar.trajectory.first_prompts import prompt_differences
from nemo_polar.trajectory.records import JournalReader
from nemo_polar.trajectory.store import engine_logs, write_manifest
from nemo_polar.types import Kind, Trajectory, Turn
from nemo_polar.verifiers.base import Verifier

Say = Callable[[str], None]
"""Told in one line what is being done before rollouts start."""


@dataclass(frozen=True, slots=True)
class Checked:
    """Settings whose plug-ins and tasks have been found and looked at."""

    settings: RunSettings
    tasks: list[LoadedTask]
    harness: Harness


@dataclass(frozen=True, slots=True)
class Finished:
    """What a run came to."""

    folder: RunFolder
    report: dict[str, Any]
    trajectories: list[Trajectory]
    cancelled: bool
    nothing_to_do: bool = False
    """The run had been finished before; it was only read."""


def make_verifier(task: Task) -> Verifier:
    """The verifier of a task.

    Raises:
        PolarError: no such verifier, or its options are wrong.
    """
    make = registry.resolve("verifiers", task.verifier.type)
    try:
        return make(**task.verifier.options)
    except TypeError as exc:
        raise VerifierError(f"verifier {task.verifier.type!r}: {_signature_mistake(exc)}") from exc


def check(settings: RunSettings) -> Checked:
    """Find the plug-ins, read the task files, and try everything that needs no process.

    Raises:
        ConfigError: the first thing that is wrong.
    """
    if Kind.MAIN not in settings.traces.train_kinds:
        raise ConfigError("traces.train_kinds: the main line is always trained; leave 'main' in")
    registry.resolve("engines", settings.engine.name)
    harness: Harness = registry.resolve("harnesses", settings.harness.name)()
    try:
        harness.plan(
            Endpoint("http://127.0.0.1:1", "secret", settings.capture.model, 8192, settings.policy.max_output),
            HarnessTask("x", WORKDIR, HOME, TOOLCHAIN, settings.seconds, None, settings.harness.options),
        )
    except HarnessError as exc:
        raise ConfigError(f"harness.options: {exc}") from exc

    try_sandbox(settings, {})

    checks = {"verifier": make_verifier, "sandbox": lambda task: try_sandbox(settings, task.sandbox)}
    tasks = load_tasks(settings.env.tasks, checks=checks)
    if settings.env.only:
        known = {loaded.task.id for loaded in tasks}
        if absent := [name for name in settings.env.only if name not in known]:
            raise ConfigError(f"env.only: no task is called {', '.join(absent)}; known: {', '.join(sorted(known))}")
        tasks = [loaded for loaded in tasks if loaded.task.id in settings.env.only]
    return Checked(settings, tasks[: settings.env.limit], harness)


def try_sandbox(settings: RunSettings, options: Mapping[str, object]) -> None:
    """See whether the sandbox takes the run's options with a task's over them. Making one starts nothing.

    Raises:
        ConfigError: it does not.
    """
    make = registry.resolve("sandboxes", settings.sandbox.name)
    try:
        make(SandboxSpec(id="check", scratch=Path(os.devnull), options={**settings.sandbox.options, **options}))
    except SandboxError as exc:
        raise ConfigError(f"sandbox: {exc}") from exc


def void(_: object) -> None:
    """Drop a value."""


async def make_proxy(
    engine: EngineSettings, policy: PolicySettings, capture: CaptureSettings, folder: RunFolder, urls: Sequence[str]
) -> CaptureProxy:
    """A proxy that journals into ``folder``, for the engine at ``urls`` (one a replica, none in this process); not started.

    Raises:
        ConfigError: no tokenizer there, or engine options that do not exist.
    """
    codec = await asyncio.to_thread(load_codec, policy.codec)
    client = make_replicas(engine, urls, folder.engine_log)
    retention = policy.codec.thinking_retention
    return CaptureProxy(capture, codec=codec, engine=client, journal=Journal(folder.journal), thinking_retention=retention)


def make_replicas(settings: EngineSettings, urls: Sequence[str], log: Path) -> Engine:
    """One client for the engine at ``urls``, all replicas of it; they are called by the names they have in the settings.

    Raises:
        ConfigError: its options are wrong.
    """
    if not settings.urls:
        return make_engine(settings, urls[0] if urls else None, log)
    return ReplicaSet({name: make_engine(settings, url, log) for name, url in zip(settings.urls, urls, strict=True)})


def make_engine(settings: EngineSettings, url: str | None, log: Path) -> Engine:
    """The engine client. One that runs in this process writes its own log to ``log``.

    Raises:
        ConfigError: its options are wrong.
    """
    make = registry.resolve("engines", settings.name)
    options = dict(settings.options)
    if url is not None:
        options["url"] = url
    elif settings.name == "scripted":
        options.setdefault("log", log)
    try:
        return make(**options)
    except TypeError as exc:
        raise ConfigError(f"engine.options: {_signature_mistake(exc)}") from exc


def _signature_mistake(exc: TypeError) -> str:
    """``__init__() got an unexpected keyword argument 'x'`` without Python's own words for it."""
    return str(exc).rpartition("() ")[2]


@asynccontextmanager
async def _scratch() -> AsyncIterator[Path]:
    """A short path on the host, as Unix sockets below it must fit in 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="polar-"))
    try:
        yield folder
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


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
            scratch = await stack.enter_async_context(_scratch())
            urls = await stack.enter_async_context(launched_engine(settings.engine, settings.policy, folder, self._say))
            proxy = await self._proxy(stack, folder, urls, scratch)
            recorder = FolderRecorder(folder, proxy.journal)
            pipeline = self._pipeline(proxy, folder, scratch, recorder, left.earlier if left is not None else Earlier())
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

    async def _proxy(self, stack: AsyncExitStack, folder: RunFolder, urls: Sequence[str], scratch: Path) -> CaptureProxy:
        settings = self.settings
        self._say("loading the tokenizer")
        # Sessions are made in this process: the control listener is for watching, and only there when its port is given.
        socket = settings.capture.socket or str(scratch / "proxy.sock")
        control = settings.capture.control and settings.capture.control_port != 0
        capture = settings.capture.model_copy(update={"socket": socket, "control": control})
        proxy = await make_proxy(settings.engine, settings.policy, capture, folder, urls)
        self._say("connecting the engine")
        stack.push_async_callback(proxy.stop)
        await proxy.start()
        if control:
            stack.enter_context(announced(proxy, folder, folder.logs / SECRET))
        return proxy

    def _pipeline(
        self, proxy: CaptureProxy, folder: RunFolder, scratch: Path, recorder: FolderRecorder, earlier: Earlier
    ) -> Pipeline:
        settings = self.settings
        sandbox = registry.resolve("sandboxes", settings.sandbox.name)

        def make_sandbox(spec: SandboxSpec) -> Sandbox:
            return sandbox(spec)

        def build(rollout_id: str, turns: list[Turn], infra: bool) -> Built:
            built = build_traces(rollout_id, turns, settings.traces, infra=infra)
            return built.traces, built.masked

        shop = Workshop(
            settings=settings,
            capture=proxy,
            harness=self._checked.harness,
            make_sandbox=make_sandbox,
            make_verifier=make_verifier,
            stages=Stages(settings.stages),
            scratch=scratch,
            logs=folder.logs,
            context=proxy.info.max_context,
        )
        return Pipeline(shop, self._checked.tasks, build, recorder, earlier)


def _parted(folder: RunFolder, report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Where the first prompts of the groups that the report names part."""
    if not report["group_prompt_mismatches"]:
        return []
    with JournalReader(folder.journal) as journal:
        return [difference.to_dict() for difference in prompt_differences(journal)]
