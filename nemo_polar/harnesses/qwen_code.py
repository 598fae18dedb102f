# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Qwen Code (``@qwen-code/qwen-code``): its settings, command line and JSON event stream.

The instruction goes in on stdin, word for word (white space at its ends is lost; see ``typed``). The secret is in its settings
file, not in the environment that every command of the agent inherits. Background memory and title calls, usage statistics and
update checks are off.

Its first prompt depends on the run in one place, the date (named twice), which the proxy pins to the group.
"""

from __future__ import annotations

import json
import math
from typing import Any, ClassVar, Literal

from pydantic import Field

from nemo_polar.harnesses.base import Endpoint, HarnessTask, Install, Outcome, Plan
from nemo_polar.harnesses.config_files import as_json, skill_files
from nemo_polar.harnesses.options import HarnessOptions, last_line, merged, parse
from nemo_polar.harnesses.typed import typed

_SUBAGENT_TOOLS = ["agent", "list_agents"]
_LARGEST, _SMALLEST = 0.85, 0.25
"""Of the context, where it compacts: its own default, and what it keeps to work in however long replies may be."""


class QwenCodeOptions(HarnessOptions):
    """The harness block of a config, for Qwen Code."""

    system_prompt: str | None = None
    """In place of Qwen Code's own."""
    append_system_prompt: str | None = None
    """After Qwen Code's own."""
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    """How hard to think, asked for with every call as ``reasoning_effort``; its own setting is for models it knows."""
    body: dict[str, Any] = {}
    """More fields of every request, e.g. ``{chat_template_kwargs: {enable_thinking: false}}``."""
    without_tools: list[str] = []
    """Names of tools not to offer."""
    subagents: bool = True
    """Offer the tools that start agents of its own."""
    bundled_skills: bool = False
    """Offer the skills that come with Qwen Code; most are about Qwen Code itself or a desktop."""
    skills: dict[str, str] = {}
    """More skills: name to the text of its SKILL.md."""
    mcp_servers: dict[str, dict[str, Any]] = {}
    """As under ``mcpServers`` of its own settings, e.g. ``{calc: {command: python3, args: [server.py]}}``."""
    retries: int = Field(default=0, ge=0)
    """Of its HTTP client and after a rate limit. Around them it always tries seven times, over a minute and a half."""
    settings: dict[str, Any] = {}
    """More of its own settings.json, put over everything else."""
    extra_args: list[str] = []
    """More of its own command line."""


class QwenCode:
    """See the module. Options are ``QwenCodeOptions``."""

    name: ClassVar[str] = "qwen_code"
    dialect: ClassVar[str] = "openai_chat"
    install: ClassVar[Install] = Install("npm", "@qwen-code/qwen-code", "0.24.4", "qwen")

    def plan(self, endpoint: Endpoint, task: HarnessTask) -> Plan:
        """See ``Harness.plan``."""
        options = parse(QwenCodeOptions, task.options)
        folder = f"{task.home}/.qwen"
        argv = ["qwen", "--auth-type", "openai", "--approval-mode", "yolo", "--output-format", "stream-json"]
        if options.system_prompt is not None:
            argv += ["--system-prompt", options.system_prompt]
        if options.append_system_prompt is not None:
            argv += ["--append-system-prompt", options.append_system_prompt]
        if task.turns is not None:
            argv += ["--max-session-turns", str(task.turns)]
        said = typed(task.instruction, f"{folder}/commands", "md")
        return Plan(
            argv=(*argv, *options.extra_args),
            env={
                "QWEN_CODE_SUPPRESS_YOLO_WARNING": "1",
                # A reply takes as long as it takes: the run's own deadline is the one that holds.
                "QWEN_STREAM_MAX_LIFETIME_MS": "0",
                # Servers' tools are in the first prompt, not in whichever comes after they have started.
                "QWEN_CODE_LEGACY_MCP_BLOCKING": "1",
            },
            files={
                f"{folder}/settings.json": as_json(merged(_settings(endpoint, task, options), options.settings)),
                **skill_files(f"{folder}/skills", options.skills),
                **said.files,
            },
            stdin=said.stdin,
        )

    def outcome(self, exit_code: int, stdout: bytes, stderr: bytes) -> Outcome:
        """See ``Harness.outcome``. Its last event says how the run ended; one that only failed calls is marked an error.

        A last reply that was cut at its token limit is not marked in any way.
        """
        result, called = None, False
        for line in stdout.split(b"\n"):
            event = _event(line)
            if event.get("type") == "result":
                result = event
            called = called or (event.get("type") == "assistant" and b'"type":"tool_use"' in line)
        if result is None:
            return Outcome(False, None, last_line(stderr) or f"it left no result (exit code {exit_code})")
        text = result.get("result")
        text = text if isinstance(text, str) else None
        if result.get("is_error") or result.get("subtype") != "success":
            error = result.get("error")
            message = error.get("message") if isinstance(error, dict) else None
            return Outcome(False, text, " ".join(str(message or text or result.get("subtype")).split())[:500])
        if exit_code != 0:
            return Outcome(False, text, last_line(stderr) or f"exit code {exit_code}")
        if not text and not called:
            return Outcome(False, None, "the model neither wrote a word nor called a tool")
        return Outcome(True, text or "")


def _event(line: bytes) -> dict[str, Any]:
    """One event; empty for what is none, or was cut by a limit on output."""
    if not line.startswith(b'{"type":'):
        return {}
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


def _settings(endpoint: Endpoint, task: HarnessTask, options: QwenCodeOptions) -> dict[str, Any]:
    effort = {} if options.effort is None else {"reasoning_effort": options.effort}
    model = {
        "name": endpoint.model,
        "generationConfig": {
            "contextWindowSize": endpoint.context,
            "samplingParams": {"max_tokens": endpoint.max_output},
            "maxRetries": options.retries,
            "timeout": math.ceil(task.seconds) * 1000,
            "streamIdleTimeoutMs": 0,
            "extra_body": effort | options.body,
        },
    }
    hidden = options.without_tools + ([] if options.subagents else _SUBAGENT_TOOLS)
    return {
        "$version": 4,
        "general": {"enableAutoUpdate": False, "chatRecording": False},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "memory": {"enableManagedAutoMemory": False, "enableManagedAutoDream": False, "enableAutoSkill": False},
        "tools": {"disabled": hidden},
        "skills": {"disabledLevels": [] if options.bundled_skills else ["bundled"]},
        "context": {
            # Room for one more reply: past the context, the proxy would cut it.
            "autoCompactThreshold": min(_LARGEST, max(_SMALLEST, 1 - endpoint.max_output / endpoint.context))
        },
        "mcpServers": options.mcp_servers,
        "model": model,
        "security": {"auth": {"selectedType": "openai", "apiKey": endpoint.secret, "baseUrl": f"{endpoint.base_url}/v1"}},
    }
