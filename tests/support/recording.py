# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Request bodies of real harnesses: ``tests/data/requests/<name>.jsonl``, one body a line, byte for byte as it was sent.

``python -m tests.support.recording [NAME]...`` makes them again: each harness runs in a local sandbox against the proxy with a
scripted engine. Made by harnesses inside a sandbox, they name no path, host or secret of the machine they were made on. Those
with long prompts are told to take a short one and fewer tools; the shape of what they send is the same. The one thing of the
host that a harness tells, the release of its kernel, is written over.
"""

from __future__ import annotations

import asyncio
import json
import platform
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from nemo_polar import registry
from nemo_polar.engines.scripted import ScriptedEngine
from nemo_polar.harnesses.base import Endpoint, HarnessTask
from nemo_polar.rollout.compose import home
from nemo_polar.sandboxes.base import HOME, TOOLCHAIN, WORKDIR
from nemo_polar.trajectory.store import ENGINE_LOG
from tests.support.proxy import Client, running
from tests.support.sandboxes import local_sandbox

CONTEXT = 1_000_000
KERNEL = b"6.1.0"
FOLDER = Path(__file__).parents[1] / "data" / "requests"
ODD = "tab\t 'quotes' \"double\" \\ é 漢字 🙂 <|endoftext|>"
NASTY = ODD + " <|im_end|> </tool_call>"


def recorded(name: str) -> list[bytes]:
    """The bodies of one recording, in the order of its runs and, in each, of its requests."""
    return (FOLDER / f"{name}.jsonl").read_bytes().splitlines()


def _call(name: str, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


_SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
_BASH = ("bash", "terminal", "run_shell_command", "Bash", "exec_command")
_UNCLOSED = {name: f'<tool_call>\n{{"name": "{name}", "arguments": {{"command": "ls"\n</tool_call>' for name in _BASH}
_SHORT = {"system_prompt": "Be brief."}
_QWEN_TOOLS = [
    *("cron_create", "cron_delete", "cron_list", "edit", "enter_worktree", "exit_worktree", "get_goal", "glob", "grep_search"),
    *("list_agents", "loop_wakeup", "monitor", "notebook_edit", "read_mcp_resource", "record_artifact", "report_findings"),
    *("send_message", "skill", "task_stop", "tool_search", "update_goal", "web_fetch", "zoom_image"),
]
_GEMINI_TOOLS = ["update_topic", "list_directory", "grep_search", "glob", "enter_plan_mode", "web_fetch", "google_web_search"]


@dataclass(frozen=True)
class Recording:
    """Runs of one harness: what the model says in each."""

    harness: str
    runs: Sequence[Sequence[str]]
    options: Mapping[str, Any] = field(default_factory=dict)


def _runs(shell: str, write: str, path: str, content: str, read: str, **more: Any) -> list[list[str]]:
    """Three turns of work, and one run in which everything goes wrong."""

    def bash(command: str) -> str:
        return _call(shell, command=command, **more)

    made = _call(write, **{path: "/workspace/b.txt", content: ODD}) + "\n" + _call(read, **{path: "/workspace/a.txt"})
    return [
        ["I will look.\n" + bash("echo hi > a.txt; ls -a"), made, bash("cat b.txt"), "It is done."],
        [_call("nope", x=1), _UNCLOSED[shell], _call(read), bash("seq 1 200; exit 3"), "It is done."],
    ]


_PI = [
    [
        "I will look.\n" + _call("bash", command="echo hi > a.txt; ls -a"),
        _call("write", path="b.txt", content=ODD) + "\n" + _call("read", path="a.txt"),
        _call("edit", path="b.txt", edits=[{"oldText": "tab", "newText": "x"}]),
        "It is done.",
    ],
    [_call("nope", x=1), _UNCLOSED["bash"], _call("read"), _call("bash", command="seq 1 200; exit 3"), ""],
]
_OPENCODE = _runs("bash", "write", "filePath", "content", "read", description="One step")
_OPENCODE_OPTIONS = {**_SHORT, "without_tools": ["task", "todowrite", "webfetch", "glob", "grep", "edit"]}
RECORDINGS: dict[str, Recording] = {
    "pi": Recording("pi", _PI),
    "pi_openai_responses": Recording("pi", _PI, {"api": "openai-responses", "thinking": "high"}),
    "pi_anthropic": Recording("pi", _PI, {"api": "anthropic-messages", "thinking": "high"}),
    "pi_gemini": Recording("pi", _PI, {"api": "google-generative-ai", "thinking": "high"}),
    "mini_swe_agent": Recording(
        "mini_swe_agent",
        [
            [
                "I will look.\n" + _call("bash", command="echo hi > a.txt; ls -a"),
                _call("bash", command=f"printf '%s' {json.dumps(ODD, ensure_ascii=False)}")
                + "\n"
                + _call("bash", command="ls /x"),
                "Only words.",
                _call("bash", command=_SUBMIT),
            ],
            [
                _call("nope", x=1),
                _UNCLOSED["bash"],
                _call("bash", command="seq 1 200; exit 3"),
                _call("bash", command=_SUBMIT),
            ],
        ],
    ),
    "qwen_code": Recording(
        "qwen_code",
        _runs("run_shell_command", "write_file", "file_path", "content", "read_file", is_background=False),
        {**_SHORT, "without_tools": _QWEN_TOOLS, "subagents": False},
    ),
    "gemini_cli": Recording(
        "gemini_cli",
        _runs("run_shell_command", "write_file", "file_path", "content", "read_file"),
        {**_SHORT, "without_tools": _GEMINI_TOOLS, "subagents": False},
    ),
    "codex": Recording(
        "codex",
        [
            [
                "I will look.\n" + _call("exec_command", cmd="echo hi > a.txt; ls -a"),
                _call("exec_command", cmd=f"printf '%s' {json.dumps(ODD, ensure_ascii=False)}")
                + "\n"
                + _call("view_image", path="/workspace/a.txt"),
                "It is done.",
            ],
            [_call("nope", x=1), _UNCLOSED["exec_command"], _call("exec_command", cmd="seq 1 200; exit 3"), "It is done."],
        ],
        {**_SHORT, "effort": "high"},
    ),
    "claude_code": Recording("claude_code", _runs("Bash", "Write", "file_path", "content", "Read"), _SHORT),
    "opencode": Recording("opencode", _OPENCODE, _OPENCODE_OPTIONS),
    "opencode_openai_responses": Recording("opencode", _OPENCODE, {**_OPENCODE_OPTIONS, "api": "openai_responses"}),
    "opencode_anthropic": Recording("opencode", _OPENCODE, {**_OPENCODE_OPTIONS, "api": "anthropic"}),
    "openhands": Recording(
        "openhands",
        [
            [
                "I will look.\n" + _call("terminal", command="echo hi > a.txt; ls -a"),
                _call("file_editor", command="create", path="/workspace/b.txt", file_text=ODD)
                + "\n"
                + _call("file_editor", command="view", path="/workspace/a.txt"),
                _call("finish", message="It is done."),
            ],
            [
                _call("nope", x=1),
                _UNCLOSED["terminal"],
                _call("file_editor"),
                _call("terminal", command="seq 1 200; exit 3"),
                "It is done.",
            ],
        ],
        {**_SHORT, "without_tools": ["task_tracker"]},
    ),
}


@asynccontextmanager
async def _tap(socket: Path, upstream: str, bodies: list[bytes]) -> AsyncIterator[None]:
    """A Unix socket that keeps the bodies sent to it and has ``upstream`` answer them."""
    async with aiohttp.ClientSession(auto_decompress=False) as http:

        async def forward(request: web.Request) -> web.StreamResponse:
            bodies.append(await request.read())
            dropped = ("host", "content-length", "accept-encoding", "connection")
            kept = {name: value for name, value in request.headers.items() if name.lower() not in dropped}
            async with http.post(upstream + request.path_qs, data=bodies[-1], headers=kept) as answer:
                headers = {"Content-Type": answer.headers["Content-Type"]}
                return web.Response(status=answer.status, body=await answer.read(), headers=headers)

        app = web.Application()
        app.router.add_post("/{path:.*}", forward)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.UnixSite(runner, str(socket)).start()
        try:
            yield
        finally:
            await runner.cleanup()


async def record(
    harness: str, instruction: str, replies: Sequence[str], options: Mapping[str, Any] | None = None
) -> list[bytes]:
    """What ``harness`` sends when the model answers with ``replies``."""
    adapter = registry.resolve("harnesses", harness)()
    bodies: list[bytes] = []
    with tempfile.TemporaryDirectory(prefix="polar-") as name:
        folder = Path(name)
        # A token a byte: contexts must hold the longest of prompts.
        engine = ScriptedEngine(None, log=folder / ENGINE_LOG, vocab=259, reply_tokens=(4, 12), max_context=CONTEXT)
        async with running(folder, engine=engine) as rig:
            client: Client = await rig.session()
            for reply in replies:
                rig.engine.core.push(rig.ids(reply))
            async with (
                _tap(folder / "tap", rig.proxy.url, bodies),
                local_sandbox(folder, toolchain=home() / "toolchain", proxy_socket=folder / "tap") as sandbox,
            ):
                endpoint = Endpoint(sandbox.proxy_url, client.secret, "polar", CONTEXT, 4096)
                plan = adapter.plan(endpoint, HarnessTask(instruction, WORKDIR, HOME, TOOLCHAIN, 100, None, options or {}))
                await sandbox.put(plan.files)
                await sandbox.exec(plan.argv, timeout=100, env=plan.env, stdin=plan.stdin)
    return bodies


def main(names: Sequence[str]) -> None:
    for name in names or RECORDINGS:
        recording = RECORDINGS[name]
        bodies: list[bytes] = []
        for number, replies in enumerate(recording.runs):
            instruction = f"Task {number}: write a.txt.\n{NASTY}"
            bodies += asyncio.run(record(recording.harness, instruction, replies, recording.options))
        assert all(b"\n" not in body for body in bodies)
        bodies = [body.replace(platform.release().encode(), KERNEL) for body in bodies]
        (FOLDER / f"{name}.jsonl").write_bytes(b"".join(body + b"\n" for body in bodies))
        print(f"{name}: {len(bodies)} requests, {sum(map(len, bodies))} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
