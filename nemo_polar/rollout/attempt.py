# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""One attempt at one rollout: prepare, run, verify.

Whatever happens, cancellation included, both sandboxes are stopped and the session is closed before ``run`` returns or raises;
what the session recorded is in ``record`` even then. Nothing here decides about retries or makes trajectories.
"""

from __future__ import annotations

import asyncio
import io
import shutil
import signal
import tarfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from nemo_polar.cancellation import uninterrupted
from nemo_polar.errors import SandboxError, VerifierError
from nemo_polar.harnesses.base import Endpoint, Harness, HarnessTask
from nemo_polar.rollout.deadline import Deadline
from nemo_polar.rollout.stages import Stages
from nemo_polar.rollout.status import AttemptFailed, StageName, captured_failure, failure, judge, tail
from nemo_polar.rollout.tasks import LoadedTask, Task
from nemo_polar.sandboxes.base import HOME, TOOLCHAIN, WORKDIR, ExecResult, Sandbox, SandboxSpec
from nemo_polar.settings import RunSettings, SamplingPolicy
from nemo_polar.types import Status, Turn
from nemo_polar.verifiers.base import Evidence, Verdict, Verifier

BUDGET_SECONDS = 15.0
"""How long a harness may go on once its budget is used up and its calls are refused; several would retry for minutes."""
HANG_SECONDS = 30.0
"""How long after a command's time-out its sandbox may take to end it, before the sandbox counts as lost."""


class OpenedSession(Protocol):
    """What opening a session gives."""

    @property
    def id(self) -> str: ...
    @property
    def secret(self) -> str: ...


class ClosedSession(Protocol):
    """What closing a session gives; see ``capture.sessions.SessionRecord``."""

    @property
    def turns(self) -> list[Turn]: ...
    @property
    def calls(self) -> int: ...
    @property
    def ambiguous(self) -> int: ...
    @property
    def infra_error(self) -> str | None: ...
    @property
    def budget_exhausted(self) -> str | None: ...
    @property
    def counters(self) -> dict[str, int]: ...


class Capture(Protocol):
    """The part of the capture proxy that an attempt uses."""

    @property
    def url(self) -> str: ...
    @property
    def socket(self) -> Path | None: ...

    async def open_session(
        self,
        *,
        rollout_id: str,
        task_id: str,
        group_id: str,
        attempt: int = 0,
        seconds: float | None = None,
        max_turns: int | None = None,
        max_tokens: int | None = None,
        sampling: SamplingPolicy | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> OpenedSession: ...

    async def close_session(self, session_id: str, *, grace: float = 0.0) -> ClosedSession: ...

    async def budget_spent(self, session_id: str) -> str: ...


@dataclass(frozen=True, slots=True)
class Workshop:
    """What all attempts of a run share."""

    settings: RunSettings
    capture: Capture
    harness: Harness
    make_sandbox: Callable[[SandboxSpec], Sandbox]
    make_verifier: Callable[[Task], Verifier]
    stages: Stages
    scratch: Path
    """Host folder for the sandboxes' scratch and for copies of workspaces."""
    logs: Path
    context: int
    """Tokens the engine takes, prompt and sample together."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Which rollout of which task."""

    rollout_id: str
    task_id: str
    group_id: str


@dataclass(slots=True)
class Attempt:
    """One try. Its fields are filled in as it goes, and stay valid when ``run`` raises."""

    shop: Workshop
    loaded: LoadedTask
    who: Identity
    number: int
    deadline: Deadline
    sampling: SamplingPolicy | None = None
    """What is drawn, where it is not the run's own policy."""
    record: ClosedSession | None = None
    ran: ExecResult | None = None
    status: Status = Status.CANCELLED
    note: str | None = None
    """One line on the status, when there is something to say."""
    final_message: str | None = None
    verdict: Verdict | None = None
    seconds: dict[StageName, float] = field(default_factory=dict)
    """Time spent in each stage, waiting for it not counted."""
    _at: StageName = "prepare"

    @property
    def name(self) -> str:
        return f"{self.who.rollout_id}.a{self.number}"

    async def run(self) -> None:
        """Go through the stages.

        Raises:
            AttemptFailed: for a reason of infrastructure.
        """
        stack = AsyncExitStack()
        try:
            try:
                await self._stages(stack)
            finally:
                await uninterrupted(stack.aclose())
        except Exception as exc:  # a plug-in may raise anything; here it becomes one of ours
            raise failure(exc, self._at) from exc

    async def _stages(self, stack: AsyncExitStack) -> None:
        shop = self.shop
        async with self._stage("prepare"):
            agent = await self._started_sandbox(stack, self.name, proxy=True)
            files, executable = self.loaded.workspace()
            await agent.put({f"{WORKDIR}/{path}": data for path, data in files.items()}, executable=_in_workdir(executable))
        verifying = await stack.enter_async_context(AsyncExitStack())
        fresh = asyncio.create_task(self._verifier_sandbox(verifying))
        stack.push_async_callback(_settle, fresh)  # before ``verifying`` closes, or a start could overtake its stop
        async with self._stage("run"):
            await self._run_harness(agent)
        async with self._stage("verify"):
            copy = shop.scratch / f"{self.name}.workspace"
            stack.push_async_callback(asyncio.to_thread, shutil.rmtree, copy, True)
            await agent.snapshot(WORKDIR, copy)
            await agent.stop()
            self.verdict = await self._verify(await fresh, copy)

    @asynccontextmanager
    async def _stage(self, name: StageName) -> AsyncIterator[None]:
        """A slot of the stage, within the deadline."""
        self._at = name
        async with getattr(self.shop.stages, name).slot(self.deadline):
            began = time.monotonic()
            try:
                async with asyncio.timeout(max(0.0, self.deadline.left())):
                    yield
            finally:
                self.seconds[name] = time.monotonic() - began

    async def _started_sandbox(self, stack: AsyncExitStack, name: str, *, proxy: bool) -> Sandbox:
        """A running sandbox that is stopped when ``stack`` closes."""
        shop, chosen = self.shop, self.shop.settings.sandbox
        scratch = shop.scratch / name
        scratch.mkdir(parents=True)
        stack.push_async_callback(asyncio.to_thread, shutil.rmtree, scratch, True)
        sandbox = shop.make_sandbox(
            SandboxSpec(
                id=name,
                scratch=scratch,
                toolchain=_whole_path(chosen.toolchain),
                proxy_socket=shop.capture.socket if proxy else None,
                proxy_url=shop.capture.url if proxy else None,
                max_output_bytes=chosen.max_output_bytes,
                options={**chosen.options, **self.loaded.task.sandbox},
            )
        )
        stack.push_async_callback(sandbox.stop)
        await sandbox.start()
        return sandbox

    async def _verifier_sandbox(self, stack: AsyncExitStack) -> Sandbox:
        """Made while the harness runs. Its wait for a slot is part of the run's time, so the deadline does not stand still."""
        async with self.shop.stages.prepare.slot():
            return await self._started_sandbox(stack, f"{self.name}.verify", proxy=False)

    async def _run_harness(self, sandbox: Sandbox) -> None:
        shop, budget = self.shop, self._budget()
        seconds = min(budget["seconds"] or float("inf"), self.deadline.left() - shop.settings.stages.verify_seconds)
        if seconds <= 0:
            raise AttemptFailed(Status.SANDBOX_FAILED, "no time is left to run the harness and then verify")
        session = await shop.capture.open_session(
            rollout_id=self.who.rollout_id,
            task_id=self.who.task_id,
            group_id=self.who.group_id,
            attempt=self.number,
            seconds=seconds + HANG_SECONDS,
            max_turns=budget["turns"],
            max_tokens=budget["tokens"],
            sampling=self.sampling,
            metadata=self._metadata(),
        )
        try:
            plan = shop.harness.plan(self._endpoint(sandbox, session.secret), self._harness_task(seconds, budget["turns"]))
            await sandbox.put(plan.files)
            command = sandbox.exec(plan.argv, timeout=seconds, env=plan.env, stdin=plan.stdin)
            ran = await _until_spent(_unless_hung(command, seconds), shop.capture.budget_spent(session.id))
        finally:
            self.record = await uninterrupted(shop.capture.close_session(session.id))
        self.ran = ran
        self._log({"stdout": ran.stdout, "stderr": ran.stderr})
        if self.record.infra_error is not None:
            raise captured_failure(self.record.infra_error)
        outcome = shop.harness.outcome(ran.exit_code, ran.stdout, ran.stderr)
        self.final_message = outcome.final_message
        self.status, self.note = judge(ran, outcome, calls=self.record.calls, budget=self.record.budget_exhausted)

    async def _verify(self, sandbox: Sandbox, workspace: Path) -> Verdict:
        packed = await asyncio.to_thread(_packed, workspace)
        unpacked = await sandbox.exec(("tar", "-xof", "-"), timeout=max(1.0, self.deadline.left()), stdin=packed, network=False)
        if unpacked.exit_code != 0:
            raise SandboxError(f"the workspace could not be copied for the verifier: {tail(unpacked.stderr)}")
        verdict = await self.shop.make_verifier(self.loaded.task).verify(
            Evidence(self.who.task_id, sandbox, self.final_message, self.loaded.folder, max(1.0, self.deadline.left()))
        )
        if not (isinstance(verdict.reward, int | float) and abs(verdict.reward) < float("inf")):
            raise VerifierError(f"the verifier gave {verdict.reward!r}, which is no finite reward")
        self._log({"verifier": verdict.detail.encode()})
        return verdict

    def _budget(self) -> dict[str, Any]:
        """The task's own bounds, over those of the run."""
        defaults, own = self.shop.settings.env.budget, self.loaded.task.budget
        return {
            name: getattr(own, name) if name in own.model_fields_set else getattr(defaults, name)
            for name in type(own).model_fields
        }

    def _metadata(self) -> dict[str, Any]:
        about: dict[str, Any] = {"harness": self.shop.harness.name}
        return about if self.sampling is None else about | {"sampling": self.sampling.model_dump(mode="json")}

    def _endpoint(self, sandbox: Sandbox, secret: str) -> Endpoint:
        settings = self.shop.settings
        limit = (self.sampling or settings.capture.sampling).max_tokens
        most = min(settings.policy.max_output, limit or settings.policy.max_output)
        return Endpoint(sandbox.proxy_url, secret, settings.capture.model, self.shop.context, most)

    def _harness_task(self, seconds: float, turns: int | None) -> HarnessTask:
        options = self.shop.settings.harness.options
        return HarnessTask(self.loaded.task.instruction, WORKDIR, HOME, TOOLCHAIN, seconds, turns, options)

    def _log(self, outputs: Mapping[str, bytes]) -> None:
        folder = self.shop.logs / self.name
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in outputs.items():
            (folder / f"{name}.log").write_bytes(data)


def _in_workdir(paths: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{WORKDIR}/{path}" for path in paths)


async def _settle(task: asyncio.Task[Sandbox]) -> None:
    """End a preparation that nobody waits for any more; its failure has been reported, or no longer matters."""
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()


async def _until_spent(command: Coroutine[Any, Any, ExecResult], spent: Coroutine[Any, Any, str]) -> ExecResult:
    """Run a harness to its end, or to a little after its budget is used up; it then counts as killed."""
    began = time.monotonic()
    running, spending = asyncio.create_task(command), asyncio.create_task(spent)
    try:
        await asyncio.wait((running, spending), return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            await asyncio.wait((running,), timeout=BUDGET_SECONDS)
        if running.done():
            return running.result()
        return ExecResult(128 + signal.SIGKILL, b"", b"", seconds=time.monotonic() - began)
    finally:
        for task in (running, spending):
            task.cancel()
        await asyncio.wait((running, spending))


async def _unless_hung(command: Coroutine[Any, Any, ExecResult], seconds: float) -> ExecResult:
    try:
        async with asyncio.timeout(seconds + HANG_SECONDS):
            return await command
    except TimeoutError:
        raise SandboxError(f"the sandbox did not end a command {HANG_SECONDS:.0f} s after its time was up") from None


def _packed(folder: Path) -> bytes:
    """A folder as a tar archive, owners left out."""
    buffer = io.BytesIO()

    def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for entry in sorted(folder.iterdir()):
            archive.add(entry, arcname=entry.name, filter=anonymous)
    return buffer.getvalue()


def _whole_path(folder: str | None) -> Path | None:
    """A sandbox has another working folder than whoever wrote this setting."""
    return Path(folder).resolve() if folder else None
