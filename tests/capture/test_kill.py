# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Rule 5 for the whole proxy: after kill -9, every reply a client had in full is in the journal, with all it stands on."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from pathlib import Path

import aiohttp
import numpy as np

from nemo_polar.capture.journal import JournalReader
from nemo_polar.engines.log import read_engine_log
from nemo_polar.trajectory.store import ENGINE_LOG, JOURNAL
from tests.support.proxy import TOOLS, joined

REPOSITORY = Path(__file__).parents[2]


async def chat_for_ever(
    http: aiohttp.ClientSession, url: str, session_id: str, secret: str, acknowledged: list, streamed: bool
):
    """Hold conversations of up to five turns until the proxy dies, noting every reply that came in full."""
    while True:
        messages = [{"role": "user", "content": f"go {random.random()}"}]
        for _ in range(5):
            body = {"model": "polar", "messages": messages, "tools": TOOLS, "stream": streamed}
            async with http.post(
                url + "/v1/chat/completions", json=body, headers={"Authorization": f"Bearer {secret}"}
            ) as response:
                raw = await response.read()
            if streamed:
                stream = joined(raw)
                assert stream["done"], "a stream without its end is not acknowledged"
                text, name = stream["content"], stream["id"]
            else:
                answer = json.loads(raw)
                text, name = answer["choices"][0]["message"]["content"], answer["id"]
            acknowledged.append((session_id, name.removeprefix("chatcmpl-"), text))
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "more"}]


async def one_life(server: asyncio.subprocess.Process, folder: Path, seconds: float) -> tuple[list, list]:
    assert server.stdin is not None and server.stdout is not None
    server.stdin.write(f"{folder}\n".encode())
    served = json.loads(await server.stdout.readline())
    acknowledged: list = []
    async with aiohttp.ClientSession() as http:
        clients = [
            asyncio.create_task(chat_for_ever(http, served["url"], *session, acknowledged, streamed=i % 2 == 0))
            for i, session in enumerate(served["sessions"])
        ]
        await asyncio.sleep(seconds)
        os.kill(served["pid"], signal.SIGKILL)
        outcomes = await asyncio.gather(*clients, return_exceptions=True)
    for outcome in outcomes:
        assert isinstance(outcome, aiohttp.ClientError | ConnectionError | AssertionError | json.JSONDecodeError), outcome
    return acknowledged, served["sessions"]


async def test_twenty_kills_under_load_lose_no_acknowledged_call(tmp_path):
    server = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.support.serve",
        "4",
        cwd=REPOSITORY,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        await twenty_lives(server, tmp_path)
    finally:
        assert server.stdin is not None
        server.stdin.close()
        await server.wait()


async def twenty_lives(server: asyncio.subprocess.Process, tmp_path: Path) -> None:
    replies = 0
    for life in range(20):
        folder = tmp_path / str(life)
        folder.mkdir()
        acknowledged, sessions = await one_life(server, folder, 0.15 + 0.02 * life)
        replies += len(acknowledged)
        log = {c.request_id: c for c in read_engine_log(folder / ENGINE_LOG)}
        with JournalReader(folder / JOURNAL) as journal:
            turns = {session_id: journal.turns(session_id) for session_id, _ in sessions}
        by_call = {(s, t.call_id): t for s, of_session in turns.items() for t in of_session}
        for session_id, call_id, text in acknowledged:
            assert by_call[session_id, call_id].reply.text == text
        for of_session in turns.values():
            lines: dict[int, np.ndarray] = {}
            for turn in of_session:  # what is there stands on what is there, and is what the engine says
                before = lines[turn.parent] if turn.parent is not None else np.empty(0, np.int32)
                prompt = np.concatenate([before, turn.prompt_delta])
                lines[turn.id] = np.concatenate([prompt, turn.sample.token_ids])
                if turn.request_id in log:  # the engine died with the proxy: its last line may be missing
                    assert np.array_equal(log[turn.request_id].prompt_ids, prompt)
    assert replies > 200, f"only {replies} replies: that is no load"
