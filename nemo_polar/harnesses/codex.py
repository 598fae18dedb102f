# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Codex (``@openai/codex``): its configuration, command line and event stream.

The instruction goes in on stdin, word for word. All of the configuration, the secret included, is one file in ``CODEX_HOME``:
nothing of it is in an argument or in the environment, which every command of the agent inherits.

Codex 0.171.0 chooses its wire format by the model's name. A name it does not know (as ``polar``) gets the plain one: function
tools and a history that only grows. It then says once that it has no metadata for the model, which is no failure. Names it
does know give freeform tools or tools inside the input: leave ``capture.model`` as it is.

Its first prompt depends on the run in one place, the date, which the proxy pins to the group. Item ids and metadata differ, and
are not shown to the model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from nemo_polar.harnesses.base import Endpoint, HarnessTask, Install, Outcome, Plan
from nemo_polar.harnesses.options import HarnessOptions, last_line, merged, parse

_PROVIDER = "polar"
_WORK = ("command_execution", "file_change", "mcp_tool_call", "collab_tool_call", "web_search", "todo_list")
"""Items that show that the model did something."""


class CodexOptions(HarnessOptions):
    """The harness block of a config, for Codex."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    """Reasoning effort, asked for with every call, and recorded. How the model thinks is decided by the run, for all calls
    alike: ``policy.codec.template_options``."""
    system_prompt: str | None = None
    """In place of Codex's own."""
    append_system_prompt: str | None = None
    """After Codex's own, as a developer message."""
    subagents: bool = True
    """Offer the tools that start agents of its own."""
    bundled_skills: bool = False
    """Offer the skills that come with Codex; they are about OpenAI's products."""
    skills: dict[str, str] = {}
    """More skills: name to the text of its SKILL.md."""
    mcp_servers: dict[str, dict[str, Any]] = {}
    """As in Codex's own configuration, e.g. ``{calc: {command: python3, args: [server.py]}}``."""
    compact_at: int | None = Field(default=None, gt=0)
    """Tokens after which it compacts its history; None: 90 % of the context, or where one more reply would not fit."""
    features: dict[str, bool] = {}
    """Codex's own feature flags (``codex features list``)."""
    config: dict[str, Any] = {}
    """More of Codex's own config.toml, put over everything else."""
    extra_args: list[str] = []
    """More of its own command line."""


class Codex:
    """See the module. Options are ``CodexOptions``."""

    name: ClassVar[str] = "codex"
    dialect: ClassVar[str] = "openai_responses"
    install: ClassVar[Install] = Install(
        "npm", "@openai/codex", "0.171.0", "codex", native="@openai/codex-linux-*/vendor/*/bin/codex"
    )

    def plan(self, endpoint: Endpoint, task: HarnessTask) -> Plan:
        """See ``Harness.plan``. There is no bound on turns in Codex: the session's budget is the one that holds."""
        options = parse(CodexOptions, task.options)
        folder = f"{task.home}/.codex"
        files = {f"{folder}/config.toml": _toml(merged(_config(endpoint, task, options), options.config))}
        for name, text in options.skills.items():
            files[f"{folder}/skills/{name}/SKILL.md"] = text.encode()
        if options.system_prompt is not None:
            files[f"{folder}/system.md"] = options.system_prompt.encode()
        return Plan(
            argv=("codex", "exec", "--json", "--skip-git-repo-check", "--ephemeral", *options.extra_args, "-"),
            env={"CODEX_HOME": folder},
            files=files,
            stdin=task.instruction.encode(),
        )

    def outcome(self, exit_code: int, stdout: bytes, stderr: bytes) -> Outcome:
        """See ``Harness.outcome``. A run has ended well when its last turn was completed and anything was said or done."""
        text, ended, error, worked = None, None, None, False
        for line in stdout.split(b"\n"):
            event = _event(line)
            kind = event.get("type")
            if kind in ("turn.completed", "turn.failed"):
                ended = kind
            if kind in ("turn.failed", "error"):
                error = _reason(event) or error
            item = event.get("item") if kind == "item.completed" else None
            if isinstance(item, dict):
                worked |= item.get("type") in _WORK
                if item.get("type") == "agent_message":
                    text = str(item.get("text") or "")
        if ended != "turn.completed":
            return Outcome(False, text, error or last_line(stderr) or f"it never ended its turn (exit code {exit_code})")
        if exit_code != 0:
            return Outcome(False, text, error or last_line(stderr) or f"exit code {exit_code}")
        if not text and not worked:
            return Outcome(False, None, "the model neither wrote a word nor called a tool")
        return Outcome(True, text or "")


def _config(endpoint: Endpoint, task: HarnessTask, options: CodexOptions) -> dict[str, Any]:
    """Codex's config.toml. What is off would call a host that is not the model's."""
    room = max(endpoint.context // 2, endpoint.context - endpoint.max_output)
    return {
        "model": endpoint.model,
        "model_provider": _PROVIDER,
        "model_context_window": endpoint.context,
        "model_auto_compact_token_limit": options.compact_at or min(endpoint.context * 9 // 10, room),
        "model_reasoning_effort": options.effort,
        "model_instructions_file": "system.md" if options.system_prompt is not None else None,
        "developer_instructions": options.append_system_prompt,
        "approval_policy": "never",
        "sandbox_mode": "danger-full-access",
        "check_for_update_on_startup": False,
        "web_search": "disabled",
        "analytics": {"enabled": False},
        "feedback": {"enabled": False},
        "history": {"persistence": "none"},
        "otel": {"exporter": "none", "metrics_exporter": "none", "trace_exporter": "none"},
        "features": {"apps": False, "plugins": False, "multi_agent": options.subagents, **options.features},
        "skills": {"bundled": {"enabled": options.bundled_skills}},
        "mcp_servers": options.mcp_servers,
        "model_providers": {
            _PROVIDER: {
                "name": _PROVIDER,
                "base_url": f"{endpoint.base_url}/v1",
                "wire_api": "responses",
                "experimental_bearer_token": endpoint.secret,
                "requires_openai_auth": False,
                "supports_websockets": False,
                # Keep-alives are no events to it: a slow engine must not look like a lost one.
                "stream_idle_timeout_ms": max(1000, int(task.seconds * 1000)),
            }
        },
    }


def _toml(tree: Mapping[str, Any]) -> bytes:
    """A config as TOML, each top-level key on a line of its own; keys without a value are left out."""
    lines = [f"{_value(str(key))} = {_value(value)}" for key, value in tree.items() if value is not None]
    return "\n".join([*lines, ""]).encode()


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_value(str(k))} = {_value(v)}" for k, v in value.items() if v is not None) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    # A JSON string is a TOML basic string but for DEL, which TOML wants escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _event(line: bytes) -> dict[str, Any]:
    """One line of the event stream; nothing for lines that output limits have cut."""
    if not line.startswith(b"{"):
        return {}
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


def _reason(event: Mapping[str, Any]) -> str | None:
    """What an error event says, on one line. The provider's own body may be inside, as JSON."""
    error = event.get("error")
    message = error.get("message") if isinstance(error, dict) else event.get("message")
    if not isinstance(message, str):
        return None
    try:
        inner = json.loads(message)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        inner = message
    return " ".join(str(inner).split())[:500] or None
