# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""One command of NeMo Gym, as data and as a person would type it. Starts nothing."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Command:
    """What to run, where, and with what beside the environment that there is."""

    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str] = field(default_factory=dict)
    secret: str | None = None
    """An argument that is not to be shown."""

    def shown(self, here: Path) -> str:
        """It for a shell in ``here``."""
        words = ["***" if word == self.secret else shlex.quote(word) for word in self.argv]
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.env.items()]
        line = " ".join([*variables, *words])
        return line if self.cwd == here else f"cd {shlex.quote(str(self.cwd))} && {line}"
