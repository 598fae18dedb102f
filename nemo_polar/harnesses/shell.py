# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Any command as a harness. The contract is its environment:

    POLAR_BASE_URL, POLAR_API_KEY, POLAR_MODEL   where the model is; the URL is without /v1
    POLAR_INSTRUCTION_FILE                       the task, as a file
    POLAR_INSTRUCTION                            the task, as text; left out when it is longer than 100 kB
    POLAR_WORKDIR, POLAR_SECONDS, POLAR_TURNS    where to work, and the bounds (turns only if there is one)
    POLAR_CONTEXT, POLAR_MAX_OUTPUT              tokens

and the same endpoint under the names that common clients read by themselves: OPENAI_BASE_URL, OPENAI_API_BASE (both with /v1),
OPENAI_API_KEY, OPENAI_MODEL, ANTHROPIC_BASE_URL, ANTHROPIC_API_KEY, ANTHROPIC_MODEL, GOOGLE_GEMINI_BASE_URL, GEMINI_API_KEY,
GEMINI_MODEL. It has done well when it exits 0; what it wrote to stdout is its final message.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from nemo_polar.harnesses.base import Endpoint, HarnessTask, Install, Outcome, Plan
from nemo_polar.harnesses.options import HarnessOptions, last_line, parse

_MESSAGE_BYTES = 64 * 1024
_VARIABLE_BYTES = 100_000
"""Linux takes no environment variable over 128 KiB."""


class ShellOptions(HarnessOptions):
    """The harness block of a config, for a command."""

    command: str | list[str] = Field(min_length=1)
    """A shell command, or the words of one to run without a shell."""
    files: dict[str, str] = {}
    """Text files to write first: absolute path, or relative to HOME."""
    env: dict[str, str] = {}
    """More environment variables."""


class Shell:
    """See the module. Options are ``ShellOptions``."""

    name: ClassVar[str] = "shell"
    dialect: ClassVar[str] = "openai_chat"
    install: ClassVar[Install] = Install("none")

    def plan(self, endpoint: Endpoint, task: HarnessTask) -> Plan:
        """See ``Harness.plan``."""
        options = parse(ShellOptions, task.options)
        command = options.command
        instruction = task.instruction.encode()
        instruction_file = f"{task.home}/instruction.txt"
        env = {
            "POLAR_BASE_URL": endpoint.base_url,
            "POLAR_API_KEY": endpoint.secret,
            "POLAR_MODEL": endpoint.model,
            "POLAR_CONTEXT": str(endpoint.context),
            "POLAR_MAX_OUTPUT": str(endpoint.max_output),
            "POLAR_INSTRUCTION_FILE": instruction_file,
            "POLAR_WORKDIR": task.cwd,
            "POLAR_SECONDS": f"{task.seconds:g}",
            **_vendor_variables(endpoint),
        }
        if len(instruction) <= _VARIABLE_BYTES:
            env["POLAR_INSTRUCTION"] = task.instruction
        if task.turns is not None:
            env["POLAR_TURNS"] = str(task.turns)
        files = {instruction_file: instruction}
        for path, text in options.files.items():
            files[path if path.startswith("/") else f"{task.home}/{path}"] = text.encode()
        argv = ("/bin/sh", "-c", command) if isinstance(command, str) else tuple(command)
        return Plan(argv=argv, env=env | options.env, files=files)

    def outcome(self, exit_code: int, stdout: bytes, stderr: bytes) -> Outcome:
        """See ``Harness.outcome``."""
        text = stdout[-_MESSAGE_BYTES:].decode(errors="replace").strip() or None
        if exit_code != 0:
            return Outcome(False, text, last_line(stderr) or f"exit code {exit_code}")
        return Outcome(True, text)


def _vendor_variables(endpoint: Endpoint) -> dict[str, str]:
    """The endpoint as the providers' own clients look for it."""
    versioned = f"{endpoint.base_url}/v1"
    return {
        "OPENAI_BASE_URL": versioned,
        "OPENAI_API_BASE": versioned,
        "OPENAI_API_KEY": endpoint.secret,
        "OPENAI_MODEL": endpoint.model,
        "ANTHROPIC_BASE_URL": endpoint.base_url,
        "ANTHROPIC_API_KEY": endpoint.secret,
        "ANTHROPIC_MODEL": endpoint.model,
        "GOOGLE_GEMINI_BASE_URL": endpoint.base_url,
        "GEMINI_API_KEY": endpoint.secret,
        "GEMINI_MODEL": endpoint.model,
    }
