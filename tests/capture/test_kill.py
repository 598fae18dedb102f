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
import time
from pathlib import Path

import aiohttp
import numpy as np
import pytest

from nemo_polar.capture.journal import JournalReader
from nemo_polar.engines.log import read_engine_log
from nemo_polar.trajectory.store import ENGINE_LOG, JOURNAL
from tests.support.proxy import TOOLS, joined, running

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
    replies = await killed(20, tmp_path)
    assert replies > 200, f"only {replies} replies: that is no load"


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_a_hundred_kills_under_load_lose_no_acknowledged_call(tmp_path):
    replies = await killed(100, tmp_path)
    print(f"100 kills, {replies} acknowledged replies, 0 lost")
    assert replies > 1000, f"only {replies} replies: that is no load"


@pytest.mark.soak
async def test_a_proxy_serves_within_two_seconds_on_a_journal_of_ten_thousand_calls(tmp_path):
    """Killed with its write-ahead log not folded in. The tokenizer of a real model, and Python itself, come on top."""
    code = _RECORD.format(folder=str(tmp_path))
    writer = await asyncio.create_subprocess_exec(sys.executable, "-c", code, cwd=REPOSITORY, stdout=asyncio.subprocess.PIPE)
    assert (await writer.communicate())[0] == b"written\n" and writer.returncode == -signal.SIGKILL
    assert (tmp_path / f"{JOURNAL}-wal").stat().st_size > 0
    started = time.perf_counter()
    async with running(tmp_path) as rig:
        client = await rig.session()
        await client.ask([{"role": "user", "content": "go"}])
        seconds = time.perf_counter() - started
        assert len(rig.turns("old")) == 10_000
    print(f"serving on a journal of 10,000 calls after {seconds:.2f} s")
    assert seconds < 2


_RECORD = """
import asyncio, os, signal
from pathlib import Path
from dataclasses import replace
from nemo_polar.capture.journal import Journal
from tests.capture.test_journal import turn_of
from tests.support.runs import call_row, session_row

async def main():
    journal = Journal(Path("{folder}") / "journal.db")
    journal.start()
    await journal.add_session(session_row("old", "r"))
    for start in range(0, 10_000, 500):
        made = [(n, turn_of("old", n, tokens=200)) for n in range(start, start + 500)]
        turns = [replace(turn, call_id=f"c{{n}}", request_id=f"q{{n}}") for n, turn in made]
        for turn in turns:
            journal.open_call(call_row(turn))
        await asyncio.gather(*(journal.add_turn(turn) for turn in turns))
    print("written", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def killed(times: int, tmp_path: Path) -> int:
    """Kill so many proxies under load, and check what each left. Returns how many replies had been acknowledged."""
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
        return await lives(times, server, tmp_path)
    finally:
        assert server.stdin is not None
        server.stdin.close()
        await server.wait()


async def lives(count: int, server: asyncio.subprocess.Process, tmp_path: Path) -> int:
    replies = 0
    for life in range(count):
        folder = tmp_path / str(life)
        folder.mkdir()
        acknowledged, sessions = await one_life(server, folder, 0.15 + 0.02 * (life % 20))
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
    return replies
