# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Request bodies of real harnesses: ``tests/data/requests/<harness>.jsonl``, one body a line, byte for byte as it was sent.

``python -m tests.support.recording`` makes them again: each harness runs in a local sandbox against the proxy with a scripted
engine. Made by harnesses inside a sandbox, they name no path, host or secret of the machine they were made on.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
from aiohttp import web

from nemo_polar import registry
from nemo_polar.harnesses.base import Endpoint, HarnessTask
from nemo_polar.rollout.compose import home
from nemo_polar.sandboxes.base import HOME, TOOLCHAIN, WORKDIR
from tests.support.proxy import Client, running
from tests.support.sandboxes import local_sandbox

FOLDER = Path(__file__).parents[1] / "data" / "requests"
ODD = "tab\t 'quotes' \"double\" \\ é 漢字 🙂 <|endoftext|>"
NASTY = ODD + " <|im_end|> </tool_call>"


def recorded(harness: str) -> list[bytes]:
    """The bodies of one harness, in the order of its runs and, in each, of its requests."""
    return (FOLDER / f"{harness}.jsonl").read_bytes().splitlines()


def _call(name: str, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


_SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
RUNS: dict[str, list[list[str]]] = {
    "pi": [
        [
            "I will look.\n" + _call("bash", command="echo hi > a.txt; ls -a"),
            _call("write", path="b.txt", content=ODD) + "\n" + _call("read", path="a.txt"),
            _call("edit", path="b.txt", edits=[{"oldText": "tab", "newText": "x"}]),
            "It is done.",
        ],
        [
            _call("nope", x=1),
            '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"\n</tool_call>',
            _call("read"),
            _call("bash", command="seq 1 200; exit 3"),
            "",
        ],
    ],
    "mini_swe_agent": [
        [
            "I will look.\n" + _call("bash", command="echo hi > a.txt; ls -a"),
            _call("bash", command=f"printf '%s' {json.dumps(ODD, ensure_ascii=False)}") + "\n" + _call("bash", command="ls /x"),
            "Only words.",
            _call("bash", command=_SUBMIT),
        ],
        [
            _call("nope", x=1),
            '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"\n</tool_call>',
            _call("bash", command="seq 1 200; exit 3"),
            _call("bash", command=_SUBMIT),
        ],
    ],
}


@asynccontextmanager
async def _tap(socket: Path, upstream: str, bodies: list[bytes]) -> AsyncIterator[None]:
    """A Unix socket that keeps the bodies sent to it and has ``upstream`` answer them."""
    async with aiohttp.ClientSession(auto_decompress=False) as http:

        async def forward(request: web.Request) -> web.StreamResponse:
            bodies.append(await request.read())
            kept = {name: request.headers[name] for name in ("Authorization", "Content-Type")}
            async with http.post(upstream + request.path, data=bodies[-1], headers=kept) as answer:
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


async def record(harness: str, instruction: str, replies: Sequence[str]) -> list[bytes]:
    """What ``harness`` sends when the model answers with ``replies``."""
    adapter = registry.resolve("harnesses", harness)()
    bodies: list[bytes] = []
    with tempfile.TemporaryDirectory(prefix="polar-") as name:
        folder = Path(name)
        async with running(folder) as rig:
            client: Client = await rig.session()
            for reply in replies:
                rig.engine.core.push(rig.ids(reply))
            async with (
                _tap(folder / "tap", rig.proxy.url, bodies),
                local_sandbox(folder, toolchain=home() / "toolchain", proxy_socket=folder / "tap") as sandbox,
            ):
                endpoint = Endpoint(sandbox.proxy_url, client.secret, "polar", 65536, 1024)
                plan = adapter.plan(endpoint, HarnessTask(instruction, WORKDIR, HOME, TOOLCHAIN, 100))
                await sandbox.put(plan.files)
                await sandbox.exec(plan.argv, timeout=100, env=plan.env, stdin=plan.stdin)
    return bodies


def main() -> None:
    for harness, runs in RUNS.items():
        bodies: list[bytes] = []
        for number, replies in enumerate(runs):
            bodies += asyncio.run(record(harness, f"Task {number}: write a.txt.\n{NASTY}", replies))
        assert all(b"\n" not in body for body in bodies)
        (FOLDER / f"{harness}.jsonl").write_bytes(b"".join(body + b"\n" for body in bodies))
        print(f"{harness}: {len(bodies)} requests")


if __name__ == "__main__":
    main()
