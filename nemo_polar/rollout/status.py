# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""How an attempt ended: which failures are the policy's, and which are ours (rule 4: those are never a reward)."""

from __future__ import annotations

from typing import Literal, TypeAlias

from nemo_polar.errors import EngineError, JournalError, PolarError, SandboxError, VerifierError
from nemo_polar.harnesses.base import Outcome
from nemo_polar.sandboxes.base import ExecResult
from nemo_polar.types import Status

StageName: TypeAlias = Literal["prepare", "run", "verify", "build"]

_OF_STAGE: dict[StageName, Status] = {
    "prepare": Status.SANDBOX_FAILED,
    "run": Status.SANDBOX_FAILED,
    "verify": Status.VERIFIER_FAILED,
    "build": Status.CAPTURE_FAILED,
}
COMMAND_NOT_FOUND = 127


class AttemptFailed(PolarError):
    """An attempt ended for a reason of infrastructure. Never leaves the rollout layer."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status


def failure(exc: BaseException, stage: StageName) -> AttemptFailed:
    """What an exception out of ``stage`` means."""
    if isinstance(exc, AttemptFailed):
        return exc
    if isinstance(exc, EngineError):
        status = Status.ENGINE_FAILED
    elif isinstance(exc, JournalError):
        status = Status.CAPTURE_FAILED
    elif isinstance(exc, SandboxError):
        status = Status.SANDBOX_FAILED
    elif isinstance(exc, VerifierError):
        status = Status.VERIFIER_FAILED
    else:
        status = _OF_STAGE[stage]
    if isinstance(exc, TimeoutError):
        return AttemptFailed(status, f"the rollout's deadline passed in the stage '{stage}'")
    text = str(exc) or type(exc).__name__
    return AttemptFailed(status, text if isinstance(exc, PolarError) else f"{type(exc).__name__}: {text}")


def captured_failure(infra_error: str) -> AttemptFailed:
    """A failure of the engine, the journal or the proxy that the harness was told of, as ``ErrorClass: message``."""
    engine = infra_error.startswith("Engine")
    return AttemptFailed(Status.ENGINE_FAILED if engine else Status.CAPTURE_FAILED, infra_error)


def judge(ran: ExecResult, outcome: Outcome, *, calls: int, budget: str | None) -> tuple[Status, str | None]:
    """The status of a harness's run, and one line on why when it is not ``completed``.

    A used-up budget goes before the time-out or the error that it led to. A harness that ends well without a single call is
    ``completed``, and no more than that: only the verifier gives reward.

    Raises:
        AttemptFailed: the harness is not there at all.
    """
    if ran.exit_code == COMMAND_NOT_FOUND and calls == 0:
        raise AttemptFailed(
            Status.SANDBOX_FAILED, f"the harness's command is not in the sandbox: {tail(ran.stderr) or 'exit 127'}"
        )
    if budget is not None:
        return Status.BUDGET, f"the budget of {budget} is used up"
    if ran.timed_out:
        return Status.TIMEOUT, f"stopped after {ran.seconds:.0f} s"
    if not outcome.ok:
        return Status.HARNESS_ERROR, outcome.error or f"exit code {ran.exit_code}"
    return Status.COMPLETED, None


def tail(output: bytes, limit: int = 300) -> str:
    """The end of a command's output on one line."""
    return " ".join(output[-4 * limit :].decode("utf-8", "replace").split())[-limit:]
