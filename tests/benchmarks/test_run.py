# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The benchmark does what it says: our own client takes its engine for vLLM, and a tiny run measures real proxies.

No time is asserted.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import orjson
import pytest
from typer.testing import CliRunner

from benchmarks.client import Answer, ask_json
from benchmarks.engine import MODEL
from benchmarks.plan import LONG, SHORT, Plan, Window
from benchmarks.process import Measured
from benchmarks.proxies import MAKERS, REPOSITORY
from benchmarks.report import KEYS, document
from benchmarks.run import Bench
from benchmarks.texts import POOL, TextSource, canned_replies
from nemo_polar.cli import app
from nemo_polar.engines.vllm import VllmEngine
from nemo_polar.errors import EngineProtocol
from nemo_polar.trajectory.records import JournalReader
from nemo_polar.types import FinishReason
from tests.support.engines import ask, collect
from tests.support.models import qwen3
from tests.support.tiny import write_tiny_tokenizer


class Silent:
    """A progress bar that isn't."""

    def __init__(self) -> None:
        self.steps = 0

    def step(self, what: str) -> None:
        self.steps += 1


@pytest.fixture
async def engine(tmp_path):
    folder = write_tiny_tokenizer(tmp_path / "tokenizer")
    pools = canned_replies(folder / "tokenizer.json", (SHORT,))
    file = tmp_path / "replies.json"
    file.write_bytes(orjson.dumps({str(n): [r.to_json() for r in pool] for n, pool in pools.items()}))
    argv = (sys.executable, "-m", "benchmarks.engine", "--replies", file)
    process = await Measured.start("engine", argv, tmp_path / "log", env={"PYTHONPATH": REPOSITORY})
    url = (await process.announced())["url"]
    yield url, {reply.ids for reply in pools[SHORT]}
    await process.stop()
    assert not process.alive


@pytest.mark.parametrize("gap_ms", [0, 1])
async def test_our_own_client_takes_the_engine_for_vllm(engine, gap_ms):
    url, replies = engine
    await ask_json(url, "POST", "/bench/gap", gap_ms)
    client = VllmEngine(url, probe=False)
    assert (await client.connect()).model == MODEL
    drawn = [await collect(client, ask(f"r{i}", max_tokens=SHORT)) for i in range(3)]
    await client.close()
    assert all(tuple(d.token_ids) in replies and d.finish_reason is FinishReason.STOP for d in drawn)
    assert len({tuple(d.token_ids) for d in drawn}) == 3
    assert all((d.logprobs < 0).all() and len(d.logprobs) == SHORT for d in drawn)
    assert (len(drawn[0].chunks) > 1) == bool(gap_ms)
    assert (await ask_json(url, "GET", "/bench/counts"))["/inference/v1/generate"] == 3


async def test_a_chat_call_gets_ids_and_log_probabilities_when_it_asks_and_only_then(engine):
    url, replies = engine
    body = {"model": MODEL, "max_tokens": SHORT, "messages": [{"role": "user", "content": "x" * 400}]}
    plain = await ask_json(url, "POST", "/v1/chat/completions", body)
    asked = await ask_json(url, "POST", "/v1/chat/completions", {**body, "logprobs": True, "return_token_ids": True})
    (choice,) = asked["choices"]
    assert tuple(choice["token_ids"]) in replies and len(choice["logprobs"]["content"]) == SHORT
    assert "token_ids" not in plain["choices"][0] and "prompt_token_ids" not in plain
    assert len(asked["prompt_token_ids"]) == asked["usage"]["prompt_tokens"] >= 100
    with pytest.raises(EngineProtocol, match="no reply of this length"):
        await ask_json(url, "POST", "/v1/chat/completions", {**body, "max_tokens": 3})


def test_no_two_texts_and_no_two_replies_are_alike(tmp_path):
    source = TextSource()
    texts = {source.take(2048) for _ in range(5000)}
    assert len(texts) == 5000 and {len(text.encode()) for text in texts} == {2048}
    pool = canned_replies(write_tiny_tokenizer(tmp_path) / "tokenizer.json", (SHORT,))[SHORT]
    assert len(set(pool)) == POOL and all(len(reply.ids) == len(reply.texts) == SHORT for reply in pool)


def test_a_chunked_answer_is_read_without_its_frames():
    raw = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\nb\r\ndefghijklmn\r\n0\r\n\r\n"
    assert Answer(200, raw, 0.1, True).body() == b"abcdefghijklmn"


async def test_cpu_time_counts_children_and_threads_that_have_ended(tmp_path):
    burn = "import time; t = time.process_time()\nwhile time.process_time() - t < {}: pass"
    script = (
        "import subprocess, sys, threading, time\n"
        f"code = {burn.format(0.3)!r}\n"
        "thread = threading.Thread(target=exec, args=(code,)); thread.start(); thread.join()\n"
        "child = subprocess.Popen([sys.executable, '-c', code + '\\ntime.sleep(60)'])\n"
        "time.sleep(60)"
    )
    process = await Measured.start("burner", (sys.executable, "-c", script), tmp_path / "log", talks=False)
    try:
        for _ in range(200):
            if (cpu := await process.settled_cpu(0.1)) > 0.6:
                break
        assert cpu > 0.6
        assert process.rss_kb() > 8000
    finally:
        await process.stop()


async def test_a_tiny_run_measures_real_proxies(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.plan.SESSIONS", 8)
    monkeypatch.setattr("benchmarks.plan.BRANCHES", 1)
    windows = (
        Window(1, 1, False, 3),
        Window(1, 4, True, 6, gap_ms=1.0),
        Window(1, 4, True, 4, tokens=LONG, gap_ms=1.0),
        Window(16, 4, False, 8),
    )
    progress = Silent()
    plan = Plan(1, windows, histories=(1, 16), memory_calls=64)
    out = tmp_path / "out"
    bench = Bench(plan, ["direct", "passthrough", "polar"], tokenizer=qwen3(), out=out, progress=progress)
    found = await bench.run()
    assert progress.steps == bench.steps()
    assert not found.unavailable and not found.no_stream

    doc = orjson.loads(orjson.dumps(document(found, {})))
    rows = {(row["proxy"], row["history_kb"], row["stream"]): row for row in doc["rows"]}
    assert len(rows) == 9 and all(set(row) == set(KEYS) for row in rows.values())
    assert all(row["ratio_passthrough"] == 1.0 for (proxy, *_), row in rows.items() if proxy == "passthrough")
    for key in ("cpu_ms", "ratio_passthrough", "added_p50_ms", "added_p99_ms", "lag_p99_ms", "rss_kb_per_call"):
        assert all(row[key] is not None for (proxy, *_), row in rows.items() if proxy == "polar"), key
    assert rows["polar", 1, True]["us_per_streamed_token"] is not None
    # The journal's share of a call is of its new text: 2 KB more of it at neither history.
    assert 2048 < rows["polar", 16, False]["journal_bytes_per_call"] < 16 * 1024

    with JournalReader(out / "polar" / "journal.db") as journal:
        turns = [turn for session in journal.sessions() for turn in journal.turns(session.id)]
    roots = [turn for turn in turns if turn.parent is None]
    assert len(roots) == 2 * 8, "every call but a conversation's first extends the one before"
    assert max(turn.prompt_len for turn in turns) > 16 * 1024 / 5
    assert np.all([turn.sample.finish_reason is FinishReason.STOP for turn in turns])


def test_the_command_says_what_it_needs(tmp_path):
    def polar(*argv: str):
        return CliRunner().invoke(app, ["bench", "proxy", "--out", str(tmp_path / "out"), *argv])

    wrong = polar("--quick", "--tokenizer", str(tmp_path))
    assert wrong.exit_code == 2 and "has no tokenizer.json" in wrong.stderr
    wrong = polar("--only", "no such window")
    assert wrong.exit_code == 2 and "matches none of" in wrong.stderr
    wrong = polar("--proxies", "no-such-proxy", "--tokenizer", str(write_tiny_tokenizer(tmp_path / "tokenizer")))
    assert wrong.exit_code == 2 and all(name in wrong.stderr for name in MAKERS)
    assert not (tmp_path / "out").exists()


def test_the_benchmarks_stay_out_of_the_wheel():
    text = (Path(REPOSITORY) / "setup.py").read_text()
    assert 'find_packages(include=["nemo_polar", "nemo_polar.*"])' in text
