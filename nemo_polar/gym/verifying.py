# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What the Gym resources server does, without Gym: look over the verdict that a rollout brought, or reach one.

Polar's own agent has run the task's verifier when it answers, so its verdict is only checked. An agent of Gym's that took one
of our rows has not: the verifier is then run here, in a fresh sandbox that holds the task's files and whatever the agent says
that it left. Nothing here turns a failure into a reward.
"""

from __future__ import annotations

import asyncio
import math
import shutil
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from nemo_polar import registry
from nemo_polar.cancellation import uninterrupted
from nemo_polar.errors import PolarError, SandboxError, TaskFileError, VerifierError
from nemo_polar.gym.result import FAILURE_CLASS, FORMAT, KEY
from nemo_polar.gym.rows import TASK, row_to_task
from nemo_polar.rollout.checks import make_verifier
from nemo_polar.rollout.tasks import LoadedTask
from nemo_polar.sandboxes.base import WORKDIR, Sandbox, SandboxSpec
from nemo_polar.settings import Settings
from nemo_polar.types import Status
from nemo_polar.verifiers.base import Evidence, Verdict

WORKSPACE = "polar_workspace"
"""Key of a request: what an agent left behind, relative path to text (or as a task's ``files``), over the task's own files."""


class GymVerifySettings(Settings):
    """The keys of the resources server's block that are ours."""

    sandbox: str = "local"
    """By its name in the registry, or ``package.module:attribute``."""
    sandbox_options: dict[str, Any] = {}
    toolchain: str | None = None
    """Host folder mounted read-only in the sandbox, for verifiers that need more than the system has."""
    seconds: float = Field(default=120, gt=0)
    """For one verification, its sandbox included."""
    concurrency: int = Field(default=4, gt=0)
    """Verifications at the same time."""
    verifier: dict[str, Any] | None = None
    """For rows that are no Polar tasks: the verifier block they get. None: such rows are refused."""


def check_verdict(result: Mapping[str, Any]) -> None:
    """See that a result of Polar's agent is a score that its verifier gave.

    Raises:
        VerifierError: it is not; the message says why.
    """
    about = result.get(KEY)
    if not isinstance(about, Mapping) or about.get("format") != FORMAT:
        raise VerifierError(f"{KEY}: is not what Polar's agent writes (format {FORMAT})")
    rollout = about.get("rollout_id")
    known = {status.value: status for status in Status}
    status = known.get(str(about.get("status")))
    if status is None or status.infra:
        raise VerifierError(f"{rollout}: a rollout that ended as {about.get('status')} has no reward")
    if FAILURE_CLASS in result or result.get("mask_sample"):
        raise VerifierError(f"{rollout}: is marked as a failure, and brings a reward")
    numbers: dict[str, Any] = {"reward": result.get("reward")}
    components = result.get("reward_components")
    if not isinstance(components, Mapping):
        raise VerifierError(f"{rollout}: reward_components is missing")
    for name, value in {**components, **numbers}.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise VerifierError(f"{rollout}: {name} is {value!r}, which is no finite number")


def final_message(response: Mapping[str, Any]) -> str | None:
    """The text of the last message that the assistant wrote; None when it wrote none."""
    for item in reversed(response.get("output") or []):
        if isinstance(item, Mapping) and item.get("type") == "message" and item.get("role") == "assistant":
            texts = [part.get("text") for part in item.get("content") or [] if isinstance(part, Mapping)]
            text = "".join(t for t in texts if isinstance(t, str))
            if text:
                return text
    return None


async def verify_row(row: Mapping[str, Any], settings: GymVerifySettings) -> Verdict:
    """Run the verifier of a row's task on the row's files, what the agent left (``WORKSPACE``) and the response's last message.

    Raises:
        TaskFileError: the row is no task; names the field.
        VerifierError: no verdict could be reached.
        SandboxError: the sandbox cannot be made, filled or stopped.
    """
    loaded = row_to_task(row, default_verifier=settings.verifier, checks={"verifier": make_verifier})
    files, executable = _files(loaded, row.get(WORKSPACE))
    message = final_message(row.get("response") or {})
    began = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout(settings.seconds):
            folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="polar-verify-"))
            sandbox = None
            try:
                sandbox = _sandbox(loaded, settings, folder)
                await sandbox.start()
                await sandbox.put({f"{WORKDIR}/{path}": data for path, data in files.items()}, executable=executable)
                left = settings.seconds - (asyncio.get_running_loop().time() - began)
                evidence = Evidence(loaded.task.id, sandbox, message, loaded.folder, max(1.0, left))
                verdict = await make_verifier(loaded.task).verify(evidence)
            finally:
                await uninterrupted(_cleared(sandbox, folder))
    except TimeoutError:
        raise VerifierError(f"{loaded.task.id}: no verdict within {settings.seconds:g} s") from None
    except PolarError:
        raise
    except Exception as exc:  # a plug-in may raise anything; here it becomes one of ours
        raise VerifierError(f"{loaded.task.id}: {type(exc).__name__}: {exc}") from exc
    for name, value in {**verdict.components, "reward": verdict.reward}.items():
        if not math.isfinite(value):
            raise VerifierError(f"{loaded.task.id}: the verifier gave {value!r} for {name}, which is no finite number")
    return verdict


def _files(loaded: LoadedTask, left: Any) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """The workspace, and which of its files are executable (inside the sandbox)."""
    if left is not None:
        if not isinstance(left, Mapping):
            raise TaskFileError("must map paths to text", field=WORKSPACE)
        task = loaded.task.model_dump(exclude_unset=True)
        try:
            loaded = row_to_task({TASK: {**task, "files": {**task.get("files", {}), **left}}})
        except TaskFileError as exc:
            raise TaskFileError(f"holds what cannot be a task's files: {exc}", field=WORKSPACE) from exc
    files, executable = loaded.workspace()
    return files, tuple(f"{WORKDIR}/{path}" for path in executable)


def _sandbox(loaded: LoadedTask, settings: GymVerifySettings, folder: Path) -> Sandbox:
    spec = SandboxSpec(
        id=f"verify-{uuid.uuid4().hex[:16]}",
        scratch=folder,
        toolchain=Path(settings.toolchain).resolve() if settings.toolchain else None,
        options={**settings.sandbox_options, **loaded.task.sandbox},
    )
    return registry.resolve("sandboxes", settings.sandbox)(spec)


async def _cleared(sandbox: Sandbox | None, folder: Path) -> None:
    try:
        if sandbox is not None:
            await sandbox.stop()
    except SandboxError:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        raise
    await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
