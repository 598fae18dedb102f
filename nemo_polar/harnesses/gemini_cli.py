# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Gemini CLI (``@google/gemini-cli``): its settings, command line and JSON event stream.

The instruction goes in on stdin, word for word (see ``typed``). The key is in the environment, which is where this CLI takes it
from; it is told to keep such variables from the commands that it runs. Usage statistics, update checks and its own calls that
look for loops are off.

Its first prompt depends on the run in one place, the date, which the proxy pins to the group.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar, Literal

from pydantic import Field

from nemo_polar.harnesses.base import Endpoint, HarnessTask, Install, Outcome, Plan
from nemo_polar.harnesses.config_files import as_json, skill_files
from nemo_polar.harnesses.options import HarnessOptions, last_line, merged, parse
from nemo_polar.harnesses.typed import typed

_WINDOW = 1_048_576
"""Tokens that Gemini CLI takes the context of every model but Gemma for. It compacts at a fraction of this, so the fraction is
what tells it the real one."""
_COMPACT_AT = 0.85
"""Of the context, at most."""


class GeminiCliOptions(HarnessOptions):
    """The harness block of a config, for Gemini CLI."""

    system_prompt: str | None = None
    """In place of Gemini CLI's own."""
    thinking: Literal["off", "minimal", "low", "medium", "high"] | int | None = None
    """A level, or a budget in tokens, asked for with every call; None: not said. Thoughts are asked for but where it is off."""
    generation: dict[str, Any] = {}
    """More of ``generationConfig``, in the spelling of Google's SDK, e.g. ``{temperature: 0.7}``."""
    without_tools: list[str] = ["google_web_search", "web_fetch"]
    """Names of tools not to offer. The two need Google's servers."""
    subagents: bool = True
    """Offer the tool that starts agents of its own."""
    skills: dict[str, str] = {}
    """More skills: name to the text of its SKILL.md."""
    mcp_servers: dict[str, dict[str, Any]] = {}
    """As under ``mcpServers`` of its own settings, e.g. ``{calc: {command: python3, args: [server.py]}}``."""
    attempts: int = Field(default=3, gt=0, le=10)
    """How often one call to the model is tried, 5 to 30 s apart. Its own default is 10."""
    settings: dict[str, Any] = {}
    """More of its own settings.json, put over everything else."""
    extra_args: list[str] = []
    """More of its own command line."""


class GeminiCli:
    """See the module. Options are ``GeminiCliOptions``."""

    name: ClassVar[str] = "gemini_cli"
    dialect: ClassVar[str] = "gemini"
    install: ClassVar[Install] = Install("npm", "@google/gemini-cli", "0.61.0", "gemini")

    def plan(self, endpoint: Endpoint, task: HarnessTask) -> Plan:
        """See ``Harness.plan``."""
        options = parse(GeminiCliOptions, task.options)
        folder = f"{task.home}/.gemini"
        said = typed(task.instruction, f"{folder}/commands", "toml")
        env = {
            "GOOGLE_GEMINI_BASE_URL": endpoint.base_url,
            "GEMINI_API_KEY": endpoint.secret,
            # One process, not one that starts another with more memory.
            "GEMINI_CLI_NO_RELAUNCH": "true",
        }
        files = {
            f"{folder}/settings.json": as_json(merged(_settings(endpoint, task, options), options.settings)),
            **skill_files(f"{folder}/skills", options.skills),
            **said.files,
        }
        if options.system_prompt is not None:
            env["GEMINI_SYSTEM_MD"] = f"{folder}/system.md"
            files[f"{folder}/system.md"] = options.system_prompt.encode()
        argv = ("gemini", "--approval-mode", "yolo", "--model", endpoint.model, "--output-format", "stream-json")
        return Plan((*argv, *options.extra_args), env, files, said.stdin)

    def outcome(self, exit_code: int, stdout: bytes, stderr: bytes) -> Outcome:
        """See ``Harness.outcome``. Its last event says how the run ended; the final message is what followed the last call.

        A last reply that was cut at its token limit is not marked in any way.
        """
        result, called, words, complaint = None, False, [""], None
        for line in stdout.split(b"\n"):
            event = _event(line)
            kind = event.get("type")
            if kind == "message" and event.get("role") == "assistant":
                words.append(str(event.get("content") or ""))
            elif kind in ("tool_use", "tool_result"):
                called, words = True, [""]
            elif kind == "error":
                complaint = event.get("message")
            elif kind == "result":
                result = event
        text = "".join(words).strip()
        if result is None:
            return Outcome(False, text or None, last_line(stderr) or f"it left no result (exit code {exit_code})")
        if result.get("status") != "success":
            error = result.get("error")
            message = error.get("message") if isinstance(error, dict) else None
            return Outcome(False, text or None, " ".join(str(message or complaint or result.get("status")).split())[:500])
        if exit_code != 0:
            return Outcome(False, text or None, last_line(stderr) or f"exit code {exit_code}")
        if not text and not called:
            return Outcome(False, None, "the model neither wrote a word nor called a tool")
        return Outcome(True, text)


def _event(line: bytes) -> dict[str, Any]:
    """One event; empty for what is none, or was cut by a limit on output."""
    if not line.startswith(b'{"type":'):
        return {}
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


def _settings(endpoint: Endpoint, task: HarnessTask, options: GeminiCliOptions) -> dict[str, Any]:
    room = min(_COMPACT_AT * endpoint.context, max(endpoint.context - endpoint.max_output, endpoint.context // 4))
    model: dict[str, Any] = {
        "name": endpoint.model,
        "compressionThreshold": room / _WINDOW,
        "disableLoopDetection": True,
    }
    if task.turns is not None:
        model["maxSessionTurns"] = task.turns
    generation = {"maxOutputTokens": endpoint.max_output, **_thinking(options.thinking), **options.generation}
    return {
        "general": {
            "enableAutoUpdate": False,
            "maxAttempts": options.attempts,
            "sessionRetention": {"enabled": False},
        },
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "model": model,
        "modelConfigs": {
            "customOverrides": [{"match": {"model": endpoint.model}, "modelConfig": {"generateContentConfig": generation}}]
        },
        "tools": {"exclude": options.without_tools + ([] if options.subagents else ["invoke_agent"])},
        "mcpServers": options.mcp_servers,
        "security": {
            "auth": {"selectedType": "gemini-api-key"},
            "folderTrust": {"enabled": False},
            "environmentVariableRedaction": {"enabled": True},
        },
    }


def _thinking(asked: str | int | None) -> dict[str, Any]:
    if asked is None:
        return {}
    if isinstance(asked, int):
        return {"thinkingConfig": {"includeThoughts": asked > 0, "thinkingBudget": asked}}
    if asked == "off":
        return {"thinkingConfig": {"includeThoughts": False, "thinkingBudget": 0}}
    return {"thinkingConfig": {"includeThoughts": True, "thinkingLevel": asked.upper()}}
