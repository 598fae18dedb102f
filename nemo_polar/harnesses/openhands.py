# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""OpenHands (``openhands-sdk`` and ``openhands-tools``): its default agent, run by a short script of ours.

OpenHands is a library, so a script (``openhands_run``) goes into the sandbox as a file; it builds the default agent of the
package as published and runs it. The instruction goes in on stdin, word for word; the configuration, the secret included, is a
file in HOME. It is not streamed. Nothing in its first prompt depends on the run.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from nemo_polar.harnesses.base import Endpoint, HarnessTask, Install, Outcome, Plan
from nemo_polar.harnesses.config_files import as_json, skill_files
from nemo_polar.harnesses.options import HarnessOptions, last_line, merged, parse

_SCRIPT = Path(__file__).with_name("openhands_run.py").read_bytes()
_FINISHED = "finished"


class OpenHandsOptions(HarnessOptions):
    """The harness block of a config, for OpenHands."""

    system_prompt: str | None = None
    """In place of OpenHands' own."""
    append_system_prompt: str | None = None
    """After OpenHands' own."""
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    """How hard to think, asked for with every call; None: not said. OpenHands' own default is high."""
    without_tools: list[str] = []
    """Names of tools not to offer."""
    subagents: bool = False
    """Offer the tool that starts agents of its own; off in OpenHands' default agent too."""
    skills: dict[str, str] = {}
    """More skills: name to the text of its SKILL.md."""
    mcp_servers: dict[str, dict[str, Any]] = {}
    """E.g. ``{calc: {command: python3, args: [server.py]}}``."""
    compaction: bool = True
    """Let it summarise its history when the context is nearly full, or has 240 events."""
    retries: int = Field(default=2, ge=0)
    """Of one call to the model, 4 to 30 s apart. Its own default is 5."""
    settings: dict[str, Any] = {}
    """More of what the script hands to OpenHands, over everything else: ``llm`` ``agent`` ``condenser`` ``conversation``."""


class OpenHands:
    """See the module. Options are ``OpenHandsOptions``."""

    name: ClassVar[str] = "openhands"
    dialect: ClassVar[str] = "openai_chat"
    install: ClassVar[Install] = Install(
        "pip",
        "openhands-sdk",
        "1.58.2",
        "openhands-python",
        also=("openhands-tools==1.58.2",),
        imports=("openhands.sdk", "openhands.tools.preset.default"),
        env={"LITELLM_LOCAL_MODEL_COST_MAP": "True", "OPENHANDS_SUPPRESS_BANNER": "1"},
    )

    def plan(self, endpoint: Endpoint, task: HarnessTask) -> Plan:
        """See ``Harness.plan``."""
        options = parse(OpenHandsOptions, task.options)
        folder = f"{task.home}/.openhands"
        script, config = f"{folder}/polar/run.py", f"{folder}/polar/config.json"
        return Plan(
            argv=("openhands-python", script, config),
            env={
                "LITELLM_LOCAL_MODEL_COST_MAP": "True",
                "OPENHANDS_SUPPRESS_BANNER": "1",
                # It refuses contexts under 16k tokens otherwise; ours is what it is.
                "ALLOW_SHORT_CONTEXT_WINDOWS": "1",
                "LOG_LEVEL": "ERROR",
                "LOG_DIR": f"{folder}/logs",
            },
            files={
                script: _SCRIPT,
                # Its terminal is a real one; without this every result would begin and end with an escape code.
                f"{task.home}/.inputrc": b"set enable-bracketed-paste off\n",
                config: as_json(merged(_config(endpoint, task, options), options.settings)),
                **skill_files(f"{folder}/skills", options.skills),
            },
            stdin=task.instruction.encode(),
        )

    def outcome(self, exit_code: int, stdout: bytes, stderr: bytes) -> Outcome:
        """See ``Harness.outcome``. The script's last line says how the run ended."""
        said = _last_words(stdout)
        if said is None:
            return Outcome(False, None, last_line(stderr) or f"it did not come to its end (exit code {exit_code})")
        message, status, error = said.get("final_message"), said.get("status"), said.get("error")
        text = message if isinstance(message, str) else ""
        if status != _FINISHED or error:
            return Outcome(False, text or None, " ".join(f"{status}: {error or 'it gives no reason'}".split())[:500])
        if exit_code != 0:
            return Outcome(False, text or None, last_line(stderr) or f"exit code {exit_code}")
        if not text and not said.get("calls"):
            return Outcome(False, None, "the model neither wrote a word nor called a tool")
        return Outcome(True, text)


def _last_words(stdout: bytes) -> dict[str, Any] | None:
    line = stdout.rstrip().rsplit(b"\n", 1)[-1]
    try:
        said = json.loads(line)
    except ValueError:
        return None
    return said if isinstance(said, dict) and "status" in said else None


def _config(endpoint: Endpoint, task: HarnessTask, options: OpenHandsOptions) -> dict[str, Any]:
    room = max(endpoint.context - endpoint.max_output, endpoint.context // 4)
    return {
        "llm": {
            "model": f"openai/{endpoint.model}",
            "base_url": f"{endpoint.base_url}/v1",
            "api_key": endpoint.secret,
            "api_mode": "chat",
            "max_input_tokens": endpoint.context,
            "max_output_tokens": endpoint.max_output,
            "reasoning_effort": options.effort,
            "num_retries": options.retries,
            "retry_min_wait": 4,
            "retry_max_wait": 30,
            # A reply comes in one piece, however long it takes: the client must not give up and ask again.
            "timeout": math.ceil(task.seconds),
        },
        "agent": {},
        "condenser": {"max_tokens": room} if options.compaction else None,
        "conversation": {"max_iteration_per_run": task.turns or 10_000},
        "workspace": task.cwd,
        "system_prompt": options.system_prompt,
        "append_system_prompt": options.append_system_prompt,
        "without_tools": options.without_tools,
        # Not whichever the host has: with tmux there, results would look otherwise.
        "tool_params": {"terminal": {"terminal_type": "subprocess"}},
        "subagents": options.subagents,
        "skills": bool(options.skills),
        "mcp_servers": options.mcp_servers,
    }
