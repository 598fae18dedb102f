# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""mini-swe-agent: its configuration, command line and what it leaves of its run.

Its whole configuration, the task and the secret included, is one file in HOME; nothing of it is in an argument or the
environment, which every command of the agent inherits. Its own default configuration goes before, in the toolchain's copy:
the same but for the kernel's version, which the first prompt would otherwise name. Commands run in the sandbox itself, through
its local environment.

It is neither streamed nor chatty: what it says of its end are two lines of the trajectory file it writes, which the command
line prints last. It exits 0 in most failures, so only the status ``Submitted`` counts as having ended well.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, ClassVar

import yaml
from pydantic import Field

from nemo_polar.harnesses.base import Edited, Endpoint, HarnessTask, Install, Outcome, Plan
from nemo_polar.harnesses.options import HarnessOptions, last_line, merged, parse

_SUBMITTED = "Submitted"
_REASONS = {
    "LimitsExceeded": "its limit of steps is used up",
    "RepeatedFormatError": "several replies in a row made no valid call of its tool",
    "TimeExceeded": "its time is up",
    "": "it was stopped in the middle of its work",
}
# The trajectory file is indented JSON: at this depth, each of these is one line of it whatever was submitted.
_SCRIPT = r"""trajectory=$1; shift
mini "$@"
code=$?
echo
grep -E '^    "(exit_status|submission)": ' "$trajectory" 2>/dev/null
exit $code"""
_KERNEL = r"\{\{\s*system\s*\}\} \{\{\s*release\s*\}\} \{\{\s*version\s*\}\} \{\{\s*machine\s*\}\}"
_LINE = re.compile(rb'^    "(exit_status|submission)": (".*"),?$', re.MULTILINE)


class MiniSweAgentOptions(HarnessOptions):
    """The harness block of a config, for mini-swe-agent."""

    config: str | None = None
    """Path, inside the sandbox, of a configuration to start from; None: mini's own default."""
    settings: dict[str, Any] = {}
    """More of mini's own configuration (``agent``, ``model``, ``environment``), put over everything else."""
    command_seconds: int = Field(default=60, gt=0)
    """For one command of the agent. mini's own default is 30."""
    attempts: int = Field(default=3, gt=0)
    """How often one call to the model is tried, 4 to 60 s apart. mini's own default is 10."""


class MiniSweAgent:
    """See the module. Options are ``MiniSweAgentOptions``."""

    name: ClassVar[str] = "mini_swe_agent"
    dialect: ClassVar[str] = "openai_chat"
    install: ClassVar[Install] = Install(
        "pip",
        "mini-swe-agent",
        "2.4.6",
        "mini",
        imports=("minisweagent.models.litellm_model",),
        edited=(Edited("minisweagent/config/mini.yaml", "mini.yaml", _KERNEL, "Linux {machine}"),),
        probe=("--help",),
        env={"MSWEA_CONFIGURED": "true", "MSWEA_SILENT_STARTUP": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    )

    def plan(self, endpoint: Endpoint, task: HarnessTask) -> Plan:
        """See ``Harness.plan``."""
        options = parse(MiniSweAgentOptions, task.options)
        folder = f"{task.home}/.config/mini-swe-agent"
        base, own, trajectory = (
            options.config or f"{task.toolchain}/mini_swe_agent/mini.yaml",
            f"{folder}/polar.yaml",
            f"{folder}/run.json",
        )
        settings = merged(_settings(endpoint, task, options), options.settings)
        return Plan(
            argv=("/bin/sh", "-c", _SCRIPT, "mini", trajectory, "-c", base, "-c", own, "-o", trajectory),
            env={
                "MSWEA_CONFIGURED": "true",
                "MSWEA_SILENT_STARTUP": "1",
                "MSWEA_GLOBAL_CONFIG_DIR": folder,
                "MSWEA_COST_TRACKING": "ignore_errors",
                "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": str(options.attempts),
                "LITELLM_LOCAL_MODEL_COST_MAP": "True",
                "TYPER_STANDARD_TRACEBACK": "1",
            },
            # Escaped to ASCII and on one line each: the task's text survives word for word.
            files={own: yaml.safe_dump(settings, default_style='"', width=math.inf).encode()},
        )

    def outcome(self, exit_code: int, stdout: bytes, stderr: bytes) -> Outcome:
        """See ``Harness.outcome``. A run has ended well when its last lines say ``Submitted``."""
        said = _last_words(stdout)
        status = said.get("exit_status")
        if status is None:
            return Outcome(False, None, last_line(stderr) or f"it left no trajectory (exit code {exit_code})")
        if status != _SUBMITTED:
            reason = _REASONS.get(status) or last_line(stderr) or f"exit code {exit_code}"
            return Outcome(False, said.get("submission") or None, f"{status}: {reason}" if status else reason)
        if exit_code != 0:
            return Outcome(False, said.get("submission") or None, last_line(stderr) or f"exit code {exit_code}")
        return Outcome(True, said.get("submission", ""))


def _settings(endpoint: Endpoint, task: HarnessTask, options: MiniSweAgentOptions) -> dict[str, Any]:
    """What goes over mini's default configuration."""
    return {
        "run": {"task": task.instruction},
        "agent": {"agent_class": "default", "step_limit": task.turns or 0, "cost_limit": 0.0},
        "environment": {"environment_class": "local", "cwd": task.cwd, "timeout": options.command_seconds},
        "model": {
            "model_class": "litellm",
            "model_name": f"openai/{endpoint.model}",
            "model_kwargs": {
                "api_base": f"{endpoint.base_url}/v1",
                "api_key": endpoint.secret,
                "max_tokens": endpoint.max_output,
                # A reply comes in one piece, however long it takes: the client must not give up and ask again.
                "timeout": float(math.ceil(task.seconds)),
            },
        },
    }


def _last_words(stdout: bytes) -> dict[str, str]:
    """The lines of the trajectory that end the output; empty when there are none."""
    found: dict[str, str] = {}
    for name, value in _LINE.findall(stdout):
        try:
            found[name.decode()] = json.loads(value)
        except ValueError:
            continue
    return found
