# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""OpenCode (``opencode-ai``): its configuration, command line and JSON event stream, over any of three APIs.

The instruction goes in on stdin, word for word; as an argument, OpenCode would put it in quotes. Its configuration, the secret
included, is one file in HOME. Title calls (by giving the session a title), sharing, update checks and downloads are off.

Its first prompt depends on the run in one place, the date, which the proxy pins to the group. Over the Responses API each
request also carries a session id, which is not shown to the model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from nemo_polar.harnesses.base import Endpoint, HarnessTask, Install, Outcome, Plan
from nemo_polar.harnesses.config_files import as_json, skill_files
from nemo_polar.harnesses.options import HarnessOptions, last_line, merged, parse

_PROVIDER = "polar"
_PACKAGES = {
    "openai_chat": "@ai-sdk/openai-compatible",
    "openai_responses": "@ai-sdk/openai",
    "anthropic": "@ai-sdk/anthropic",
}
_EFFORT = {"openai_chat": "reasoningEffort", "openai_responses": "reasoningEffort", "anthropic": "effort"}
_FINISHED = "stop"
_REASONS = {
    "length": "the last reply was cut at its token limit",
    "tool-calls": "ended in the middle of its work",
}


class OpenCodeOptions(HarnessOptions):
    """The harness block of a config, for OpenCode."""

    api: Literal["openai_chat", "openai_responses", "anthropic"] = "openai_chat"
    """The dialect it speaks to the model."""
    system_prompt: str | None = None
    """In place of OpenCode's own; it still adds the date and the folders."""
    effort: Literal["minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    """How hard to think, asked for with every call; implies ``reasoning``."""
    reasoning: bool = False
    """Tell OpenCode that the model thinks."""
    model_options: dict[str, Any] = {}
    """More options of the model, as the AI SDK's package for the API names them, e.g. ``{parallelToolCalls: false}``."""
    without_tools: list[str] = []
    """Names of tools not to offer; ``task`` is the one that starts sub-agents."""
    skills: dict[str, str] = {}
    """More skills: name to the text of its SKILL.md."""
    mcp_servers: dict[str, dict[str, Any]] = {}
    """E.g. ``{calc: {command: python3, args: [server.py], env: {}}}``, or ``{url: ...}``; one with a ``type`` is taken as
    OpenCode writes it."""
    compaction: bool = True
    """Let it compact its history when the context is nearly full."""
    settings: dict[str, Any] = {}
    """More of its own opencode.json, put over everything else."""
    extra_args: list[str] = []
    """More of its own command line."""


class OpenCode:
    """See the module. Options are ``OpenCodeOptions``."""

    name: ClassVar[str] = "opencode"
    dialect: ClassVar[str] = "openai_chat"
    install: ClassVar[Install] = Install(
        "npm", "opencode-ai", "1.18.33", "opencode", native="opencode-linux-*/bin/opencode", env={"OPENCODE_PURE": "1"}
    )

    @staticmethod
    def dialect_for(options: Mapping[str, object]) -> str:
        """The dialect spoken with these options."""
        return parse(OpenCodeOptions, options).api

    def plan(self, endpoint: Endpoint, task: HarnessTask) -> Plan:
        """See ``Harness.plan``. OpenCode's own bound on steps writes into the history as if the model had spoken; it is not
        used, and the session's budget is the one that holds.
        """
        options = parse(OpenCodeOptions, task.options)
        folder = f"{task.home}/.config/opencode"
        return Plan(
            argv=("opencode", "run", "--format", "json", "--title", "Task", *options.extra_args),
            env={
                "OPENCODE_DISABLE_AUTOUPDATE": "1",
                "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
                "OPENCODE_DISABLE_EMBEDDED_WEB_UI": "1",
                "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
                "OPENCODE_DISABLE_MODELS_FETCH": "1",
                "OPENCODE_DISABLE_SHARE": "1",
                # Its own bound on a reply, 32000, goes below the model's.
                "OPENCODE_EXPERIMENTAL_OUTPUT_TOKEN_MAX": str(endpoint.max_output),
            },
            files={
                f"{folder}/opencode.json": as_json(merged(_config(endpoint, options), options.settings)),
                **skill_files(f"{folder}/skills", options.skills),
            },
            stdin=task.instruction.encode(),
        )

    def outcome(self, exit_code: int, stdout: bytes, stderr: bytes) -> Outcome:
        """See ``Harness.outcome``. A run has ended well when its last step is a finished one and the model did anything at all.

        OpenCode exits 1 after any error on the way, also one that it has worked round: then the events decide.
        """
        last, error, failed, called, words = None, None, False, False, [""]
        for line in stdout.split(b"\n"):
            event = _event(line)
            kind, part = event.get("type"), event.get("part")
            part = part if isinstance(part, dict) else {}
            if kind == "text":
                words.append(str(part.get("text") or ""))
            elif kind == "tool_use":
                called, words = True, [""]
            elif kind == "step_start":
                words = [""]
            elif kind == "step_finish":
                last, error = part.get("reason"), None
            elif kind == "error":
                error, failed = _message(event.get("error")), True
        text = "".join(words).strip()
        if error is not None:
            return Outcome(False, text or None, error)
        if last is None:
            return Outcome(False, text or None, last_line(stderr) or f"no step was finished (exit code {exit_code})")
        if last != _FINISHED:
            reason = _REASONS.get(str(last))
            return Outcome(False, text or None, f"{last}: {reason}" if reason else f"stopped with {last!r}")
        if exit_code != 0 and not failed:
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


def _message(error: Any) -> str:
    """One line of an error event."""
    if not isinstance(error, dict):
        return "an error that it does not name"
    data = error.get("data")
    message = data.get("message") if isinstance(data, dict) else None
    return " ".join(f"{error.get('name', 'error')}: {message or 'no message'}".split())[:500]


def _config(endpoint: Endpoint, options: OpenCodeOptions) -> dict[str, Any]:
    effort = {} if options.effort is None else {_EFFORT[options.api]: options.effort}
    model = {
        "name": endpoint.model,
        "tool_call": True,
        "reasoning": options.reasoning or options.effort is not None,
        "limit": {"context": endpoint.context, "output": endpoint.max_output},
        "options": effort | options.model_options,
    }
    provider = {
        "npm": _PACKAGES[options.api],
        "name": _PROVIDER,
        "options": {"baseURL": f"{endpoint.base_url}/v1", "apiKey": endpoint.secret, "timeout": False},
        "models": {endpoint.model: model},
    }
    config: dict[str, Any] = {
        "$schema": "https://opencode.ai/config.json",
        "model": f"{_PROVIDER}/{endpoint.model}",
        "small_model": f"{_PROVIDER}/{endpoint.model}",
        "provider": {_PROVIDER: provider},
        "enabled_providers": [_PROVIDER],
        "permission": {"*": "allow"} | dict.fromkeys(options.without_tools, "deny"),
        "autoupdate": False,
        "share": "disabled",
        # Git snapshots of the workspace, for an undo that nobody will ask for.
        "snapshot": False,
        "lsp": False,
        "formatter": False,
        # Blanking old results would change the history that replies were sampled in.
        "compaction": {"auto": options.compaction, "prune": False},
        "mcp": {name: _server(server) for name, server in options.mcp_servers.items()},
    }
    if options.system_prompt is not None:
        config["agent"] = {"build": {"prompt": options.system_prompt}}
    return config


def _server(server: Mapping[str, Any]) -> dict[str, Any]:
    """An MCP server as OpenCode writes it."""
    if "type" in server:
        return dict(server)
    if "url" in server:
        return {"type": "remote", "enabled": True, **server}
    command = [server.get("command", ""), *server.get("args", [])]
    return {"type": "local", "command": command, "environment": server.get("env", {}), "enabled": True}
