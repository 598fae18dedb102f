# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Pi (``@earendil-works/pi-coding-agent``): its configuration, command line and JSON event stream, over any of the four APIs.

The instruction goes in on stdin, word for word (Pi trims white space at its ends): as an argument, a leading ``@`` would name
a file and 128 KiB would be the end. Pi 1.6.0's first prompt holds no date; the only things in it that depend on the run are
the working directory and the folder Pi is installed in, both fixed inside a sandbox.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from nemo_polar.harnesses.base import Endpoint, HarnessTask, Install, Outcome, Plan
from nemo_polar.harnesses.config_files import as_json, skill_files
from nemo_polar.harnesses.options import HarnessOptions, last_line, parse

_PROVIDER = "polar"
_RESERVE_TOKENS, _KEEP_TOKENS = 16384, 20000
"""What Pi keeps free before it compacts its history, and what it keeps of that history."""
_FINISHED = "stop"
_APIS = {
    "openai-completions": ("openai_chat", "/v1"),
    "openai-responses": ("openai_responses", "/v1"),
    "anthropic-messages": ("anthropic", ""),
    "google-generative-ai": ("gemini", "/v1beta"),
}
"""Each of Pi's APIs: our dialect, and what its base URL ends in."""


class PiOptions(HarnessOptions):
    """The harness block of a config, for Pi."""

    api: Literal["openai-completions", "openai-responses", "anthropic-messages", "google-generative-ai"] = "openai-completions"
    """The API it speaks to the model, by Pi's own names."""
    mode: Literal["json", "text"] = "json"
    """``text`` shows less of why a run ended."""
    tools: list[str] | None = None
    """Names of the tools to offer; None: Pi's own choice (read, bash, edit, write)."""
    system_prompt: str | None = None
    """In place of Pi's own."""
    thinking: Literal["off", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    """Asked for with every call; a level other than ``off`` implies ``reasoning``."""
    reasoning: bool = False
    """Tell Pi that the model thinks."""
    compat: dict[str, Any] = {}
    """Pi's ``compat`` flags for the model."""
    skills: dict[str, str] = {}
    """Skills: name to the text of its SKILL.md. Pi speaks no MCP."""
    settings: dict[str, Any] = {}
    """More of Pi's own settings.json."""
    extra_args: list[str] = []
    """More of Pi's own command line."""


class Pi:
    """See the module. Options are ``PiOptions``."""

    name: ClassVar[str] = "pi"
    dialect: ClassVar[str] = "openai_chat"
    install: ClassVar[Install] = Install("npm", "@earendil-works/pi-coding-agent", "1.6.0", "pi", env={"PI_OFFLINE": "1"})

    @staticmethod
    def dialect_for(options: Mapping[str, object]) -> str:
        """The dialect spoken with these options."""
        return _APIS[parse(PiOptions, options).api][0]

    def plan(self, endpoint: Endpoint, task: HarnessTask) -> Plan:
        """See ``Harness.plan``."""
        options = parse(PiOptions, task.options)
        argv = ["pi", "-p", "--mode", options.mode, "--no-session", "--provider", _PROVIDER, "--model", endpoint.model]
        if options.tools is not None:
            argv += ["--tools", ",".join(options.tools)] if options.tools else ["--no-tools"]
        if options.system_prompt is not None:
            argv += ["--system-prompt", options.system_prompt]
        if options.thinking is not None:
            argv += ["--thinking", options.thinking]
        argv += options.extra_args
        folder = f"{task.home}/.pi/agent"
        return Plan(
            argv=tuple(argv),
            env={"PI_CODING_AGENT_DIR": folder, "PI_OFFLINE": "1", "PI_SKIP_VERSION_CHECK": "1", "PI_TELEMETRY": "0"},
            files={
                f"{folder}/models.json": as_json(_models(endpoint, options)),
                f"{folder}/settings.json": as_json(_settings(endpoint, options)),
                **skill_files(f"{folder}/skills", options.skills),
            },
            stdin=task.instruction.encode(),
        )

    def outcome(self, exit_code: int, stdout: bytes, stderr: bytes) -> Outcome:
        """See ``Harness.outcome``. A run has ended well when Pi's last message is a finished one and Pi did anything at all."""
        if not stdout.lstrip().startswith(b'{"type":'):
            return _text_outcome(exit_code, stdout, stderr)
        last, called = None, False
        for line in stdout.split(b"\n"):
            message = _finished_message(line)
            if message is not None:
                last, called = message, called or _calls_tools(message)
        if last is None:
            return Outcome(False, None, last_line(stderr) or f"no message from the model (exit code {exit_code})")
        text = "".join(part.get("text") or "" for part in last["content"] if part.get("type") == "text")
        reason = last.get("stopReason")
        if reason != _FINISHED:
            why = {"length": "the last reply was cut at its token limit", "toolUse": "ended in the middle of a tool call"}
            detail = last.get("errorMessage") or why.get(str(reason), "")
            error = f"{reason}: {detail}" if detail else f"stopped with {reason!r}"
            return Outcome(False, text or None, " ".join(error.split())[:500])
        if exit_code != 0:
            return Outcome(False, text or None, last_line(stderr) or f"exit code {exit_code}")
        if not text and not called:
            return Outcome(False, None, "the model neither wrote a word nor called a tool")
        return Outcome(True, text)


def _models(endpoint: Endpoint, options: PiOptions) -> dict[str, Any]:
    model = {
        "id": endpoint.model,
        "name": endpoint.model,
        "reasoning": options.reasoning or options.thinking not in (None, "off"),
        "input": ["text"],
        "contextWindow": endpoint.context,
        "maxTokens": endpoint.max_output,
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
        "compat": options.compat,
    }
    provider = {
        "baseUrl": f"{endpoint.base_url}{_APIS[options.api][1]}",
        "api": options.api,
        "apiKey": endpoint.secret,
        "models": [model],
    }
    return {"providers": {_PROVIDER: provider}}


def _settings(endpoint: Endpoint, options: PiOptions) -> dict[str, Any]:
    """With a small context, Pi's own reserve would make it compact before its first call; a quarter of the context instead."""
    settings: dict[str, Any] = {"enableInstallTelemetry": False}
    quarter = endpoint.context // 4
    if quarter < _KEEP_TOKENS:
        settings["compaction"] = {"reserveTokens": min(_RESERVE_TOKENS, quarter), "keepRecentTokens": quarter}
    return settings | options.settings


def _finished_message(line: bytes) -> dict[str, Any] | None:
    """The assistant message that an event completes, if it does. Lines that output limits have cut are passed over."""
    if b'"message_end"' not in line[:64]:
        return None
    try:
        message = json.loads(line)["message"]
        return message if message["role"] == "assistant" and isinstance(message["content"], list) else None
    except (ValueError, KeyError, TypeError):
        return None


def _calls_tools(message: dict[str, Any]) -> bool:
    return any(part.get("type") == "toolCall" for part in message["content"])


def _text_outcome(exit_code: int, stdout: bytes, stderr: bytes) -> Outcome:
    text = stdout.decode(errors="replace").strip()
    if exit_code != 0 or not text:
        return Outcome(False, text or None, last_line(stderr) or f"no output (exit code {exit_code})")
    return Outcome(True, text)
