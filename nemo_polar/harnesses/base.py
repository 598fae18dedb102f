# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What a harness adapter is: data in, a plan out.

An adapter says which files, environment and command line make a vendor's CLI talk to our proxy, and how to read its final
message. It never touches the network, the disk or a clock, and never changes the harness itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the proxy is, seen from inside the sandbox."""

    base_url: str
    """Without a trailing slash and without ``/v1``, e.g. ``http://127.0.0.1:8080``."""
    secret: str
    """The session's secret; goes where the provider's API key goes."""
    model: str
    context: int
    """Tokens."""
    max_output: int
    """Tokens."""


@dataclass(frozen=True, slots=True)
class HarnessTask:
    """What an adapter may know of a task."""

    instruction: str
    cwd: str
    home: str
    toolchain: str
    """Folder, inside the sandbox, where pinned CLIs lie (``<toolchain>/bin`` is on PATH)."""
    seconds: float
    turns: int | None = None
    options: Mapping[str, object] = field(default_factory=dict)
    """The harness block of the config, minus its name."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to put into the sandbox and what to run there."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Absolute path inside the sandbox (usually below ``home``) to contents."""
    stdin: bytes = b""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a CLI's own output says of its run. Never reward: only the verifier gives that."""

    ok: bool
    final_message: str | None = None
    error: str | None = None
    """One line, when the harness says that it failed."""


@dataclass(frozen=True, slots=True)
class Edited:
    """A copy of one of a pip package's own files with one place changed, so that first prompts are the same on every host."""

    source: str
    """Relative to where packages are installed."""
    target: str
    """Relative to ``<toolchain>/<name>``."""
    pattern: str
    """A regular expression that must match exactly once."""
    replacement: str
    """``{machine}`` in it becomes this machine's, e.g. ``x86_64``."""


@dataclass(frozen=True, slots=True)
class Install:
    """How ``polar harness install`` brings a harness: one npm or pip package, pinned, in the folder ``<toolchain>/<name>``."""

    manager: str
    """``npm``, ``pip`` or ``none``."""
    package: str = ""
    version: str = ""
    binary: str = ""
    """The command it puts on PATH, which is the package's own of that name. With pip, where the package has none of that name:
    a Python that sees the packages, for a script of the adapter's own."""
    also: tuple[str, ...] = ()
    """More packages, pinned, as the manager writes them: ``name@version`` or ``name==version``."""
    native: str = ""
    """npm: where the program itself lies in ``node_modules``, as a glob, when it needs no Node. Otherwise the package's own
    command is run, by Node where it is a script."""
    imports: tuple[str, ...] = ()
    """pip: modules that must be importable, when starting the command alone does not show it."""
    edited: tuple[Edited, ...] = ()
    probe: tuple[str, ...] = ("--version",)
    """Arguments with which it starts and ends at once; with npm, it must print the version."""
    env: Mapping[str, str] = field(default_factory=dict)
    """For that start: quiet and offline."""


class Harness(Protocol):
    """One coding agent."""

    name: ClassVar[str]
    dialect: ClassVar[str]
    install: ClassVar[Install]

    def plan(self, endpoint: Endpoint, task: HarnessTask) -> Plan:
        """Files, environment and argv for one run.

        Raises:
            HarnessError: an option is unknown or out of range.
        """
        ...

    def outcome(self, exit_code: int, stdout: bytes, stderr: bytes) -> Outcome:
        """Read the CLI's own output. The exit code alone is never trusted: several CLIs exit 0 having done nothing."""
        ...
