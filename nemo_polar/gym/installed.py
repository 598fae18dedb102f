# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Which NeMo Gym there is, in this Python environment or another. Gym is looked at, never imported: that takes it seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_polar.errors import ConfigError
from nemo_polar.gym import look

OLDEST = (0, 4)
OLDEST_PYTHON = (3, 12)
_PROBE_SECONDS = 60.0
_ROOTS_VARIABLE = "NEMO_GYM_EXTRA_ROOTS"

HOW_TO_INSTALL = """\
NeMo Gym 0.4.0 needs Python 3.12 or newer, Gym 0.7.0 Python 3.13.14 or newer:
  python3.12 -m venv gym && gym/bin/pip install 'nemo_polar[gym]' nemo-gym==0.4.0
Then use the polar of that environment, or name it to this one: --gym gym"""


@dataclass(frozen=True, slots=True)
class Gym:
    """An environment with NeMo Gym in it."""

    python: Path
    """Its interpreter, by the path that makes it this environment's."""
    prefix: Path
    site: Path
    """Where Gym's own trees (environments, resources_servers and so on) lie."""
    scripts: Path
    version: str
    is_venv: bool
    """Whether it is a virtual environment, with an ``activate`` of the kind that Gym sources."""
    has_pytest: bool
    extra_roots: bool
    """Whether it looks for components in the folders of NEMO_GYM_EXTRA_ROOTS, or only in the working folder and its own."""

    @property
    def command(self) -> Path:
        """Its ``gym``."""
        return self.scripts / "gym"

    @property
    def has_environment_servers(self) -> bool:
        """Whether rollouts are reached through environment servers."""
        return (self.site / "environment_servers").is_dir()


def find_gym(where: str | None = None) -> Gym:
    """The Gym of this environment, or of the one that ``where`` names: its folder, its Python or a command in it.

    Raises:
        ConfigError: there is no such environment, no Gym in it, none that is supported, or no nemo_polar beside it.
    """
    python = Path(sys.executable) if where is None else _python_of(Path(where).expanduser())
    facts = look.look() if where is None else _asked(python)
    here = f"{facts['prefix']} (Python {facts['python']})"
    if tuple(facts["python_info"]) < OLDEST_PYTHON:
        raise ConfigError(f"there is no NeMo Gym for the Python of {here}.\n{HOW_TO_INSTALL}")
    if facts["version"] is None:
        raise ConfigError(f"NeMo Gym is not installed in {here}.\n{HOW_TO_INSTALL}")
    if _numbers(facts["version"]) < OLDEST:
        raise ConfigError(f"NeMo Gym {facts['version']} in {here} is too old; Polar works with 0.4.0 and 0.7.0")
    if not facts["polar"]:
        raise ConfigError(f"nemo_polar is not installed in {here}, where Gym's servers run: {python} -m pip install nemo_polar")
    site = Path(facts["site"])
    gym = Gym(
        python=python,
        prefix=Path(facts["prefix"]),
        site=site,
        scripts=Path(facts["scripts"]),
        version=facts["version"],
        is_venv=facts["is_venv"],
        has_pytest=facts["pytest"],
        extra_roots=_ROOTS_VARIABLE in (site / "nemo_gym" / "__init__.py").read_text(encoding="utf-8"),
    )
    if not gym.command.is_file():
        raise ConfigError(f"NeMo Gym {gym.version} in {here} has no command {gym.command}; install it again")
    return gym


def _python_of(where: Path) -> Path:
    """The interpreter of an environment. Links are not followed: a virtual environment's is one."""
    if where.is_file() and where.name.startswith("python"):
        return where.absolute()
    for candidate in (where / "bin" / "python", where / "python", where.parent / "python") if where.exists() else ():
        if candidate.is_file():
            return candidate.absolute()
    raise ConfigError(f"--gym {where}: no Python environment is there; give its folder, its Python or its gym command")


def _asked(python: Path) -> Mapping[str, Any]:
    """``look`` as another interpreter sees it."""
    program = Path(look.__file__).read_text(encoding="utf-8")
    try:  # from a folder where no package lies by chance
        done = subprocess.run(
            [python, "-c", program], cwd="/", capture_output=True, text=True, timeout=_PROBE_SECONDS, check=True
        )
        return json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as exc:
        detail = (getattr(exc, "stderr", None) or str(exc)).strip().splitlines() or [""]
        raise ConfigError(f"--gym: {python} cannot say what is installed there: {detail[-1]}") from exc


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
