# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A provider's API on a Unix socket that gives each request the next of its replies, for trying a real CLI without a proxy."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nemo_polar.harnesses.base import Endpoint, Harness, HarnessTask, Outcome
from nemo_polar.rollout.compose import home
from nemo_polar.sandboxes.base import HOME, TOOLCHAIN, WORKDIR, ExecResult
from tests.support.sandboxes import local_sandbox

TOOLS_FOLDER = home() / "toolchain"


def installed(name: str) -> bool:
    """Whether a harness is in this checkout's toolchain."""
    return (TOOLS_FOLDER / name / "polar.json").is_file()


class ScriptedModel:
    """``replies`` are the streams of events, in order; the requests' bodies are kept. What is no POST gets 404."""

    def __init__(self, *replies: list[dict[str, Any]]) -> None:
        self.replies, self.bodies = list(replies), list[bytes]()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        if head.startswith("POST"):
            self.bodies.append(await reader.readexactly(int(head.lower().split("content-length:")[1].split("\r\n")[0])))
            events = self.replies.pop(0)
            payload = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
            writer.write(f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n{payload}".encode())
        else:
            writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        await writer.drain()
        writer.close()


async def run_real(
    folder: Path, harness: Harness, model: ScriptedModel, instruction: str, *, made: str, **options: object
) -> tuple[ExecResult, Outcome, bytes]:
    """Run the real CLI in a local sandbox below ``folder``, which exists; also gives what it made in the file ``made``."""
    server = await asyncio.start_unix_server(model.serve, folder / "s", limit=2**24)
    async with server, local_sandbox(folder, toolchain=TOOLS_FOLDER, proxy_socket=folder / "s") as sandbox:
        endpoint = Endpoint(sandbox.proxy_url, "the-secret", "polar", 32768, 4096)
        plan = harness.plan(endpoint, HarnessTask(instruction, WORKDIR, HOME, TOOLCHAIN, 60, None, options))
        await sandbox.put(plan.files)
        result = await sandbox.exec(plan.argv, timeout=60, env=plan.env, stdin=plan.stdin)
        contents = await sandbox.exec(["cat", made], timeout=10)
        return result, harness.outcome(result.exit_code, result.stdout, result.stderr), contents.stdout


def responses_reply(*items: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The least that a client of the Responses API needs: each item, and the end."""
    usage = {"input_tokens": 9, "output_tokens": 9, "total_tokens": 18}
    done = {"id": "r", "object": "response", "status": "completed", "output": list(items), "usage": usage}
    finished = [{"type": "response.output_item.done", "output_index": n, "item": dict(item)} for n, item in enumerate(items)]
    return [*finished, {"type": "response.completed", "response": done}]


def messages_reply(*blocks: tuple[Mapping[str, Any], Mapping[str, Any]], stop: str = "end_turn") -> list[dict[str, Any]]:
    """A stream of the Messages API: for each block, how it starts and its one delta."""
    usage = {"input_tokens": 9, "output_tokens": 1}
    message = {"id": "m", "type": "message", "role": "assistant", "model": "polar", "content": [], "usage": usage}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": message}]
    for index, (start, delta) in enumerate(blocks):
        events += [
            {"type": "content_block_start", "index": index, "content_block": dict(start)},
            {"type": "content_block_delta", "index": index, "delta": dict(delta)},
            {"type": "content_block_stop", "index": index},
        ]
    ended = {"type": "message_delta", "delta": {"stop_reason": stop}, "usage": {"output_tokens": 9}}
    return [*events, ended, {"type": "message_stop"}]
