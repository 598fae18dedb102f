# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What each harness calls the tools that the scripted model uses, and their arguments.

To add a harness: one entry of ``HARNESSES``. Of several spellings of a tool, the model takes the first that the prompt offers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Raw:
    """A JSON number as the model writes it: valid, and not as any serialiser would."""

    text: str


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool. ``args`` names the arguments that take what the model wants to say, in the order of its parameters."""

    name: str
    args: tuple[str, ...]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """More arguments, each time."""
    odd: Mapping[str, Raw] = field(default_factory=dict)
    """Numbers that do not change what the tool does, written oddly."""
    words: bool = False
    """The command is a list of words."""


@dataclass(frozen=True, slots=True)
class Toolset:
    """The tools of one harness."""

    shell: tuple[Tool, ...]
    """Command."""
    write: tuple[Tool, ...] = ()
    """Path and text; without one, a shell command writes the file."""
    read: tuple[Tool, ...] = ()
    """Path."""
    parallel: bool = True
    """Takes two calls in one reply."""
    submit: str | None = None
    """The shell command that ends a run; without one, text without a call ends it."""
    reserve: int = 0
    """Tokens of the context that it keeps free: it compacts its history that much before the end."""
    agent: tuple[Tool, ...] = ()
    """Starts a sub-agent: what it is to do. Its result is the report, unless there is ``wait``."""
    wait: Tool | None = None
    """Waits for a report: a list of sub-agents' ids, as ``agent_id`` finds them in results of ``agent``."""
    agent_id: str = ""
    """A regular expression with one group."""
    compacts: bool = False
    """Compacts its history by itself, by a summary that the model writes."""
    compact_option: str | None = None
    """The adapter's option for the tokens after which it does; without one, a short context makes it."""
    compact_room: int = 0
    """Tokens of context more, where it is to compact before it is told that the context is used up."""
    summary_tag: str | None = None
    """What it wants a summary to be wrapped in; one without is asked for again."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Arguments no tool knows, for the harnesses that let such pass."""


_STRANGE = {
    "note": [Raw("1.50"), Raw("-0"), Raw("1E+2"), Raw("12345678901234567890"), Raw("0.1e-6")],
    "ключ": {"b": None, "a": Raw("1e0")},
}
_DESCRIBED = {"description": "One step of the task."}
_PART = {"description": "A delegated part", "subagent_type": "general-purpose"}

HARNESSES: dict[str, Toolset] = {
    "pi": Toolset(
        shell=(Tool("bash", ("command",), odd={"timeout": Raw("1e2")}),),
        write=(Tool("write", ("path", "content")),),
        read=(Tool("read", ("path",), odd={"offset": Raw("1.0"), "limit": Raw("20E1")}),),
        compacts=True,
        extra=_STRANGE,
    ),
    "mini_swe_agent": Toolset(
        shell=(Tool("bash", ("command",)),),
        submit="printf 'COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\\nAll of it is done \\360\\237\\221\\215\\n'",
        extra=_STRANGE,
    ),
    "codex": Toolset(
        shell=(
            Tool("shell_command", ("command",), odd={"timeout_ms": Raw("60000")}),
            Tool("exec_command", ("cmd",)),
            Tool("shell", ("command",), words=True),
        ),
        agent=(Tool("multi_agent_v1__spawn_agent", ("message",)), Tool("spawn_agent", ("message",))),
        wait=Tool("multi_agent_v1__wait_agent", ("targets",), odd={"timeout_ms": Raw("60000")}),
        agent_id=r'"agent_id":\s*"([^"]+)"',
        compacts=True,
        compact_option="compact_at",
    ),
    "claude_code": Toolset(
        shell=(Tool("Bash", ("command",), fixed=_DESCRIBED, odd={"timeout": Raw("1.2e5")}),),
        write=(Tool("Write", ("file_path", "content")),),
        read=(Tool("Read", ("file_path",), odd={"limit": Raw("2.0e2")}),),
        reserve=13_000,
        agent=(Tool("Agent", ("prompt",), fixed={**_PART, "run_in_background": False}),),
        compacts=True,
        summary_tag="summary",
    ),
    "qwen_code": Toolset(
        shell=(Tool("run_shell_command", ("command",), fixed={**_DESCRIBED, "is_background": False}),),
        write=(Tool("write_file", ("file_path", "content")),),
        read=(Tool("read_file", ("file_path",), odd={"offset": Raw("0.0"), "limit": Raw("2E2")}),),
        reserve=20_000,
        agent=(Tool("agent", ("prompt",), fixed={**_PART, "run_in_background": False}),),
        compacts=True,
        summary_tag="state_snapshot",
    ),
    "gemini_cli": Toolset(
        shell=(Tool("run_shell_command", ("command",), fixed=_DESCRIBED),),
        write=(Tool("write_file", ("file_path", "content")),),
        read=(Tool("read_file", ("file_path",)),),
    ),
    "opencode": Toolset(
        shell=(Tool("bash", ("command",), fixed=_DESCRIBED, odd={"timeout": Raw("6E4")}),),
        write=(Tool("write", ("filePath", "content")),),
        read=(Tool("read", ("filePath",), odd={"limit": Raw("2e3")}),),
        agent=(Tool("task", ("prompt",), fixed={**_PART, "subagent_type": "general"}),),
        compacts=True,
        compact_room=6_000,
    ),
    "openhands": Toolset(
        shell=(Tool("terminal", ("command",)), Tool("execute_bash", ("command",))),
        write=(
            Tool("file_editor", ("path", "file_text"), fixed={"command": "create"}),
            Tool("str_replace_editor", ("path", "file_text"), fixed={"command": "create"}),
        ),
        read=(Tool("file_editor", ("path",), fixed={"command": "view"}),),
        compacts=True,
    ),
}
