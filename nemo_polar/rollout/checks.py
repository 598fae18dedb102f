# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What can be found wrong with settings, plug-ins and tasks before a process is started or a folder made. Starts nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nemo_polar import registry
from nemo_polar.errors import ConfigError, HarnessError, SandboxError, VerifierError
from nemo_polar.harnesses.base import Endpoint, Harness, HarnessTask
from nemo_polar.rollout.tasks import LoadedTask, Task, load_tasks
from nemo_polar.sandboxes.base import HOME, TOOLCHAIN, WORKDIR, SandboxSpec
from nemo_polar.settings import RunSettings
from nemo_polar.types import Kind
from nemo_polar.verifiers.base import Verifier


@dataclass(frozen=True, slots=True)
class Checked:
    """Settings whose plug-ins and tasks have been found and looked at."""

    settings: RunSettings
    tasks: list[LoadedTask]
    harness: Harness


def make_verifier(task: Task) -> Verifier:
    """The verifier of a task.

    Raises:
        PolarError: no such verifier, or its options are wrong.
    """
    make = registry.resolve("verifiers", task.verifier.type)
    try:
        return make(**task.verifier.options)
    except TypeError as exc:
        raise VerifierError(f"verifier {task.verifier.type!r}: {signature_mistake(exc)}") from exc


def check(settings: RunSettings) -> Checked:
    """Find the plug-ins, read the task files, and try everything that needs no process.

    Raises:
        ConfigError: the first thing that is wrong.
    """
    if not settings.env.tasks:
        raise ConfigError("env.tasks: name at least one task file")
    harness = check_plugins(settings)
    checks = {"verifier": make_verifier, "sandbox": lambda task: try_sandbox(settings, task.sandbox)}
    tasks = load_tasks(settings.env.tasks, checks=checks)
    if settings.env.only:
        known = {loaded.task.id for loaded in tasks}
        if absent := [name for name in settings.env.only if name not in known]:
            raise ConfigError(f"env.only: no task is called {', '.join(absent)}; known: {', '.join(sorted(known))}")
        tasks = [loaded for loaded in tasks if loaded.task.id in settings.env.only]
    return Checked(settings, tasks[: settings.env.limit], harness)


def check_plugins(settings: RunSettings) -> Harness:
    """Everything but the tasks: the kinds that are trained, the engine's name, the harness and the sandbox with their options.

    Returns:
        The harness.

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
    return harness


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


def signature_mistake(exc: TypeError) -> str:
    """``__init__() got an unexpected keyword argument 'x'`` without Python's own words for it."""
    return str(exc).rpartition("() ")[2]
