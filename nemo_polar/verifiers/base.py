# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What a verifier is: it turns what a finished sandbox left behind into a reward.

A verifier works on a *copy* of the workspace, in a fresh sandbox, with files the agent could not touch. If it fails
itself, that is a ``VerifierError``, never a reward of zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol

from nemo_polar.sandboxes.base import Sandbox


@dataclass(frozen=True, slots=True)
class Verdict:
    """A reward and what it is made of."""

    reward: float
    """Finite. By convention in [0, 1]."""
    components: Mapping[str, float] = field(default_factory=dict)
    detail: str = ""
    """The tail of the verifier's own output, for a person to read."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a verifier is given."""

    task_id: str
    sandbox: Sandbox
    """Fresh and started, with a copy of the agent's workspace in WORKDIR; the proxy is not reachable from it."""
    final_message: str | None
    task_dir: Path
    """Host folder the task came from: hidden files are taken from here."""
    seconds: float
    """The time left."""


class Verifier(Protocol):
    """Built from the task's verifier block."""

    name: ClassVar[str]

    async def verify(self, evidence: Evidence) -> Verdict:
        """Score it.

        Raises:
            VerifierError: no verdict could be reached; the message says why.
        """
        ...
