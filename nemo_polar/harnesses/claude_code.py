# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Claude Code (``@anthropic-ai/claude-code``): its environment, command line and event stream.

The instruction goes in on stdin, word for word but for one case: one that begins with ``/`` gets a line break before it, as
Claude Code would otherwise take it for a command of its own. The key is in a file that its ``apiKeyHelper`` prints, as every
command of the agent inherits the environment.

Claude Code 2.1.332 chooses its wire format by what it believes the model can do. A model it does not know is believed to take
system messages in mid-conversation and adaptive thinking; ``CLAUDE_CODE_MODEL_CAPABILITIES`` tells it otherwise, and
experimental betas are off. What is left is the plain API: system blocks, user and assistant messages, ``max_tokens``,
``thinking`` with a budget. Tools are all named from the start (``ENABLE_TOOL_SEARCH=false``): with its search for tools, the
list of tools would grow in mid-conversation, and each time the history would begin anew. Session and device ids are fixed, so
that two runs of a task send the same requests, byte for byte, until a tool's output differs.

Its first prompt holds the date, which the proxy pins to the group, and the version of the host's kernel (not with ``bare``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from nemo_polar.harnesses.base import Endpoint, HarnessTask, Install, Outcome, Plan
from nemo_polar.harnesses.options import HarnessOptions, last_line, merged, parse

CODING_TOOLS = ("Agent", "Bash", "Edit", "NotebookEdit", "Read", "Skill", "TaskStop", "Write")
"""What is of use in a sandbox that reaches nothing but the model. Its own choice has some twenty (``tools: [default]``): web
access, schedules, work trees, sessions of its own."""
_SESSION = "00000000-0000-4000-8000-000000000000"
_NOISE = b"[claude-code:unrecognized_model]"
_OFF = ("mid_conv_system", "mid_conv_tool_change")
_FIXED = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
    "CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS": "1",
    "CLAUDE_CODE_DISABLE_AUTO_MEMORY": "1",
    "CLAUDE_CODE_DISABLE_FILE_MENTIONS": "1",
    "CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK": "1",
    "CLAUDE_CODE_DISABLE_TERMINAL_TITLE": "1",
    "CLAUDE_CODE_TOTAL_TOKENS_REMINDER": "0",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_TELEMETRY": "1",
    "ENABLE_TOOL_SEARCH": "false",
    "IS_SANDBOX": "1",
}


class ClaudeCodeOptions(HarnessOptions):
    """The harness block of a config, for Claude Code."""

    tools: list[str] = list(CODING_TOOLS)
    """Built-in tools to offer; ``[default]`` for all of them, ``[]`` for none. Without ``Agent`` there are no sub-agents."""
    allowed_tools: list[str] = []
    """As its own ``--allowedTools``. All permission checks are off, so this is of use with hooks only."""
    disallowed_tools: list[str] = []
    """As its own ``--disallowedTools``, e.g. ``Bash(git *)``."""
    bare: bool = False
    """Its minimal mode: three tools, a prompt of two lines, no sub-agents, skills or CLAUDE.md. ``tools`` is then ignored."""
    system_prompt: str | None = None
    """In place of Claude Code's own."""
    append_system_prompt: str | None = None
    """After Claude Code's own."""
    thinking: Literal["on", "off", "adaptive"] | int = "on"
    """``on``: a budget as large as a reply; a number: a budget of that many tokens."""
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    """Asked for with every call, and recorded. How the model thinks is decided by the run, for all calls alike:
    ``policy.codec.template_options``."""
    agents: dict[str, dict[str, Any]] = {}
    """Sub-agents of your own, as its ``--agents`` takes them."""
    bundled_skills: bool = False
    """Offer the skills that come with Claude Code; they are about Anthropic's products."""
    skills: dict[str, str] = {}
    """More skills: name to the text of its SKILL.md."""
    mcp_servers: dict[str, dict[str, Any]] = {}
    """As under ``mcpServers`` of its own configuration, e.g. ``{calc: {command: python3, args: [server.py]}}``."""
    compaction: bool = True
    """Let it compact its history when the context is nearly full."""
    retries: int = Field(default=3, ge=0)
    """Of one call to the model. Its own default is 10."""
    settings: dict[str, Any] = {}
    """More of its own settings.json, put over everything else."""
    env: dict[str, str] = {}
    """More environment variables, put over everything else."""
    extra_args: list[str] = []
    """More of its own command line."""


class ClaudeCode:
    """See the module. Options are ``ClaudeCodeOptions``."""

    name: ClassVar[str] = "claude_code"
    dialect: ClassVar[str] = "anthropic"
    install: ClassVar[Install] = Install(
        "npm", "@anthropic-ai/claude-code", "2.1.332", "claude", native="@anthropic-ai/claude-code-linux-*/claude"
    )

    def plan(self, endpoint: Endpoint, task: HarnessTask) -> Plan:
        """See ``Harness.plan``."""
        options = parse(ClaudeCodeOptions, task.options)
        folder = f"{task.home}/.claude"
        files = {
            f"{folder}/.claude.json": _json({"userID": "0" * 64, "hasCompletedOnboarding": True}),
            f"{folder}/polar.key": endpoint.secret.encode(),
            f"{folder}/polar.json": _json(merged(_settings(), options.settings)),
        }
        argv = ["claude", "-p", "--model", endpoint.model, "--output-format", "stream-json", "--verbose"]
        argv += ["--dangerously-skip-permissions", "--no-session-persistence", "--session-id", _SESSION]
        argv += ["--settings", f"{folder}/polar.json"]
        argv += ["--bare"] if options.bare else ["--tools", ",".join(options.tools)]
        if task.turns is not None:
            argv += ["--max-turns", str(task.turns)]
        for flag, words in (("--allowedTools", options.allowed_tools), ("--disallowedTools", options.disallowed_tools)):
            argv += [flag, ",".join(words)] if words else []
        if options.effort is not None:
            argv += ["--effort", options.effort]
        texts = {"--system-prompt-file": options.system_prompt, "--append-system-prompt-file": options.append_system_prompt}
        for flag, text in texts.items():
            if text is not None:
                path = f"{folder}/{flag[2:]}.md"
                files[path] = text.encode()
                argv += [flag, path]
        if options.agents:
            files[f"{folder}/polar-agents.json"] = _json(options.agents)
            argv += ["--agents", f"{folder}/polar-agents.json"]
        if options.mcp_servers:
            files[f"{folder}/polar-mcp.json"] = _json({"mcpServers": options.mcp_servers})
            argv += ["--mcp-config", f"{folder}/polar-mcp.json", "--strict-mcp-config"]
        for name, text in options.skills.items():
            files[f"{folder}/skills/{name}/SKILL.md"] = text.encode()
        return Plan(
            argv=(*argv, *options.extra_args),
            env={"CLAUDE_CONFIG_DIR": folder, **_environment(endpoint, task, options), **options.env},
            files=files,
            stdin=(f"\n{task.instruction}" if task.instruction.startswith("/") else task.instruction).encode(),
        )

    def outcome(self, exit_code: int, stdout: bytes, stderr: bytes) -> Outcome:
        """See ``Harness.outcome``. A run has ended well when its result says so and the model said or did anything at all."""
        lines = stdout.split(b"\n")
        result = next((found for line in reversed(lines) if (found := _result(line)) is not None), None)
        said = b"\n".join(line for line in stderr.split(b"\n") if not line.startswith(_NOISE))
        if result is None:
            return Outcome(False, None, last_line(said) or f"it gave no result (exit code {exit_code})")
        text = result.get("result")
        text = text if isinstance(text, str) else None
        subtype = str(result.get("subtype"))
        if result.get("is_error") or subtype != "success":
            # An error of the API comes as the result's text, under the subtype "success".
            errors = [str(error) for error in result.get("errors") or []]
            reason = "; ".join(errors) or text or str(result.get("terminal_reason"))
            return Outcome(False, None, " ".join((reason if subtype == "success" else f"{subtype}: {reason}").split())[:500])
        if exit_code != 0:
            return Outcome(False, text, last_line(said) or f"exit code {exit_code}")
        if result.get("num_turns") == 0:
            return Outcome(False, None, text or "it never asked the model")
        if not text and not any(line.startswith(b'{"type":"assistant"') and b'"type":"tool_use"' in line for line in lines):
            return Outcome(False, None, "the model neither wrote a word nor called a tool")
        return Outcome(True, text or "")


def _environment(endpoint: Endpoint, task: HarnessTask, options: ClaudeCodeOptions) -> dict[str, str]:
    """How the model is reached, what it can do, and what stays off."""
    milliseconds = str(max(1000, int(task.seconds * 1000)))
    env = {
        **_FIXED,
        "ANTHROPIC_BASE_URL": endpoint.base_url,
        "CLAUDE_CODE_SUBAGENT_MODEL": endpoint.model,
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(endpoint.context),
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(endpoint.max_output),
        "CLAUDE_CODE_MODEL_CAPABILITIES": _capabilities(options),
        "CLAUDE_CODE_MAX_RETRIES": str(options.retries),
        # A slow engine must not look like a lost one.
        "API_TIMEOUT_MS": milliseconds,
        "CLAUDE_STREAM_IDLE_TIMEOUT_MS": milliseconds,
    }
    for tier in ("FABLE", "OPUS", "SONNET", "HAIKU"):
        env[f"ANTHROPIC_DEFAULT_{tier}_MODEL"] = endpoint.model
    if options.thinking == "off":
        env["CLAUDE_CODE_DISABLE_THINKING"] = "1"
    elif isinstance(options.thinking, int):
        env["MAX_THINKING_TOKENS"] = str(options.thinking)
    if not options.bundled_skills:
        env["CLAUDE_CODE_DISABLE_BUNDLED_SKILLS"] = "1"
    if not options.compaction:
        env["DISABLE_AUTO_COMPACT"] = "1"
    return env


def _capabilities(options: ClaudeCodeOptions) -> str:
    """For every model name: each capability, with a minus where it is to be believed absent."""
    adaptive = options.thinking == "adaptive"
    effort = adaptive or options.effort is not None
    words = [f"-{name}" for name in _OFF]
    return ",".join([*words, "adaptive_thinking" if adaptive else "-adaptive_thinking", "effort" if effort else "-effort"])


def _settings() -> dict[str, Any]:
    """Its settings.json: the key, and no lines about itself in commits."""
    return {
        "apiKeyHelper": 'cat "$CLAUDE_CONFIG_DIR/polar.key"',
        "attribution": {"commit": "", "pr": ""},
        "includeCoAuthoredBy": False,
        "enabledPlugins": {"cc-plugin-plugin-authoring@builtin": False},
    }


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=2).encode() + b"\n"


def _result(line: bytes) -> Mapping[str, Any] | None:
    """The run's result, if this line is it. Lines that output limits have cut are passed over."""
    if not line.startswith(b"{") or b'"type":"result"' not in line:
        return None
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and event.get("type") == "result" else None
