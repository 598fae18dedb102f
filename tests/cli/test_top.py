# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""``polar top`` shows what a running proxy does, finds it by its folder, and says clearly when there is none."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import socket
import stat
import sys
import termios
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from nemo_polar.cli import app
from nemo_polar.cli.boundary import Exit
from nemo_polar.cli.watch import Unreachable, Watcher, quantile
from nemo_polar.errors import ConfigError
from nemo_polar.rollout.address import Address, announced, find
from nemo_polar.rollout.folder import RunFolder
from tests.support.cli import overrides, write_tasks
from tests.support.proxy import Rig, running


async def polar(*words: str) -> Result:
    """A command in a thread, so that a proxy in this one can answer it."""
    return await asyncio.to_thread(CliRunner().invoke, app, list(words))


@asynccontextmanager
async def announced_rig(folder: Path, **settings: Any) -> AsyncIterator[Rig]:
    async with running(folder, **settings) as rig:
        RunFolder(folder).logs.mkdir()
        with announced(rig.proxy, RunFolder(folder), folder / "control.secret"):
            yield rig


async def work(rig: Rig, client: Any, seconds: float) -> int:
    """Calls one after the other; how many."""
    end, calls = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        await client.ask([{"role": "user", "content": f"go {calls}"}])
        calls += 1
        await asyncio.sleep(0.01)
    return calls


async def test_one_frame_has_rates_times_and_the_busiest_sessions(tmp_path: Path) -> None:
    async with announced_rig(tmp_path) as rig:
        client = await rig.session("task[bold].0\x1b[2J")
        working = asyncio.create_task(work(rig, client, 2.5))
        plain = await polar("top", str(tmp_path), "--once", "--interval", "0.3")
        found = await polar("top", str(tmp_path), "--json", "--interval", "0.5")
        await working
        assert plain.exit_code == found.exit_code == Exit.OK, plain.output + found.output
        shown = json.loads(found.stdout)
        assert shown["url"] == rig.proxy.control_url and (shown["ok"], shown["paused"], shown["sessions"]) == (True, False, 1)
        assert shown["per_second"]["calls"] > 1 and shown["per_second"]["sampled_tokens"] > shown["per_second"]["calls"]
        call, added = shown["seconds"]["call"], shown["seconds"]["added"]
        assert 0 < call["p50"] <= call["p99"] < 10 and 0 < added["p50"] <= call["p99"]
        assert shown["seconds"]["loop_lag"]["p50"] is not None and shown["journal"]["healthy"]
        assert shown["memory_bytes"] > 1e6
        (busiest,) = shown["busiest"]
        assert busiest["counters"]["sampled_tokens"] > 0 and busiest["turns"] > 0
        assert "healthy" in plain.stdout and "task[bold].0" in plain.stdout and "\x1b" not in plain.stdout
        for text in (plain.output, found.output):
            assert rig.proxy.control_secret not in text and client.secret not in text


async def test_a_proxy_that_cannot_serve_or_is_paused_is_shown_so(tmp_path: Path) -> None:
    async with announced_rig(tmp_path) as rig:
        await rig.proxy.pause()
        assert "paused" in (await polar("top", str(tmp_path), "--once", "--interval", "0.1")).stdout
        await rig.proxy.journal.stop()
        result = await polar("top", str(tmp_path), "--once", "--interval", "0.1")
        assert result.exit_code == Exit.OK and "cannot serve: the journal" in result.stdout


async def test_it_can_be_pointed_at_a_proxy_elsewhere(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        (tmp_path / "secret").write_text(rig.proxy.control_secret + "\n")
        words = ["top", "--control", str(rig.proxy.control_url), "--once", "--interval", "0.1"]
        assert (await polar(*words, "--secret-file", str(tmp_path / "secret"))).exit_code == Exit.OK
        (tmp_path / "secret").write_text("another")
        wrong = await polar(*words, "--secret-file", str(tmp_path / "secret"))
        assert wrong.exit_code == Exit.USAGE and "another control secret" in wrong.stderr
        missing = await polar(*words)
        assert missing.exit_code == Exit.USAGE and "--secret-file" in missing.stderr


async def test_what_cannot_be_reached_or_is_no_proxy_is_said_in_one_sentence(tmp_path: Path) -> None:
    nobody = await polar("top", str(tmp_path), "--once")
    assert nobody.exit_code == Exit.USAGE and "no proxy that can be watched runs in" in nobody.stderr
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with pytest.raises(Unreachable, match="no proxy can be reached"):
            Watcher(Address(f"http://127.0.0.1:{free.getsockname()[1]}", "x")).look(1)
    async with running(tmp_path) as rig:
        with pytest.raises(Unreachable, match="no control listener"):
            await asyncio.to_thread(Watcher(Address(rig.proxy.url, "x")).look, 1)


async def test_an_announced_proxy_is_found_while_it_runs_and_its_secret_is_its_owners(tmp_path: Path) -> None:
    async with announced_rig(tmp_path) as rig:
        secret = tmp_path / "control.secret"
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
        assert rig.proxy.control_secret not in (tmp_path / "logs" / "proxy.json").read_text()
        assert find(tmp_path) == Address(str(rig.proxy.control_url), rig.proxy.control_secret)
    assert not secret.exists()
    with pytest.raises(ConfigError):
        find(tmp_path)


def test_a_rollout_can_be_watched_when_its_control_port_is_given_and_keeps_a_log(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder, seen = tmp_path / "runs" / "small", []

    def watch() -> None:
        end = time.monotonic() + 30
        while not seen and time.monotonic() < end:
            with contextlib.suppress(ConfigError, Unreachable):
                watcher = Watcher(find(folder))
                if (look := watcher.look(5)).busiest:
                    seen.append(look)
                watcher.close()
            time.sleep(0.02)

    watching = threading.Thread(target=watch)
    watching.start()
    engine = "engine.options={script: null, vocab: 1024, reply_tokens: [4, 8], token_delay: 0.02}"
    words = overrides(write_tasks(tmp_path), engine, f"capture.control_port={port}", "env.limit=1")
    result = CliRunner().invoke(app, ["rollout", *words])
    watching.join()
    assert result.exit_code == Exit.OK, result.output
    assert seen[0].busiest[0]["rollout_id"].startswith("writes.0.")
    assert {path.name for path in (folder / "logs").iterdir()}.isdisjoint({"proxy.json", "control.secret"})
    records = [json.loads(line) for line in (folder / "logs" / "polar.log").read_text().splitlines()]
    assert [r["message"].partition(":")[0] for r in records].count("session opened") == 2
    assert {r["rollout"] for r in records if "rollout" in r} == {"writes.0.0", "writes.0.1"}


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    ours, theirs = pty.openpty()
    yield ours, theirs
    os.close(ours)


async def test_on_a_terminal_it_draws_until_q_is_pressed_and_leaves_the_terminal_as_it_was(
    tmp_path: Path, terminal: tuple[int, int]
) -> None:
    ours, theirs = terminal
    before = termios.tcgetattr(theirs)
    async with announced_rig(tmp_path):
        command = [sys.executable, "-m", "nemo_polar.cli", "top", str(tmp_path), "--interval", "0.1"]
        env = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "30"}
        ends = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
        process = await asyncio.create_subprocess_exec(*command, **ends, env=env, start_new_session=True)
        try:
            drawn = b""
            async with asyncio.timeout(30):
                while drawn.count(b"journal:") < 3:
                    drawn += await asyncio.to_thread(os.read, ours, 65536)
            os.write(ours, b"q")
            reading = asyncio.create_task(asyncio.to_thread(_read_on, ours, drawn))
            assert await asyncio.wait_for(process.wait(), 10) == Exit.OK
            assert termios.tcgetattr(theirs) == before
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            os.close(theirs)
        assert (await reading).count(b"\x1b[?1049h") == (await reading).count(b"\x1b[?1049l") == 1


def _read_on(fd: int, before: bytes) -> bytes:
    """All that the terminal shows, until its other side has closed."""
    with contextlib.suppress(OSError):
        while piece := os.read(fd, 65536):
            before += piece
    return before


QUANTILES = [
    (0.5, [(1.0, 0), (2.0, 10), (float("inf"), 10)], 1.5),
    (0.5, [(1.0, 10), (float("inf"), 10)], 0.5),
    (0.99, [(1.0, 0), (2.0, 0), (float("inf"), 5)], 2.0),
    (0.5, [(1.0, 0), (float("inf"), 0)], None),
    (0.5, [], None),
]


@pytest.mark.parametrize(("share", "buckets", "value"), QUANTILES)
def test_quantiles_are_interpolated_as_prometheus_does(
    share: float, buckets: list[tuple[float, float]], value: float | None
) -> None:
    assert quantile(share, buckets) == value
