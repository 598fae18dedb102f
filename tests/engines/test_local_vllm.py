# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The embedded engine's life, with a stand-in for vLLM: ready means healthy, failure quotes the log, nothing of it is left."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import aiohttp
import pytest

from nemo_polar.engines.local_vllm import LocalVllm, VllmOptions
from nemo_polar.errors import EngineUnavailable

FAKE_VLLM = """
import http.server, json, os, pathlib, signal, subprocess, sys, time
folder = pathlib.Path(__file__).parent
seen = {"argv": sys.argv[1:], "env": dict(os.environ), "pid": os.getpid()}
mode = (folder / "mode").read_text()
if mode == "die":
    sys.exit("RuntimeError: no room for the KV cache")
worker = subprocess.Popen(["sh", "-c", "trap '' TERM; while :; do sleep 1; done"])
seen["worker"] = worker.pid
sys.path[:0] = os.environ["PYTHONPATH"].split(":")
seen["extension"] = [p.name for p in pathlib.Path(os.environ["PYTHONPATH"]).glob("*.py")]
(folder / "seen.json").write_text(json.dumps(seen))
print("loading weights", flush=True)
if mode == "hang":
    time.sleep(60)
if mode == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

class Health(http.server.BaseHTTPRequestHandler):
    count = 0
    def do_GET(self):
        Health.count += 1
        self.send_response(200 if Health.count > 2 else 503)
        self.end_headers()
    def log_message(self, *_):
        pass

port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Health).serve_forever()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a model folder and an interpreter that is the stand-in."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "fake.py").write_text(textwrap.dedent(FAKE_VLLM))
    (tmp_path / "mode").write_text("serve")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {tmp_path / "fake.py"} "$@"\n')
    python.chmod(0o755)
    return tmp_path


def engine(folder: Path, *, start_seconds: float = 20, options: VllmOptions | None = None) -> LocalVllm:
    return LocalVllm(
        folder / "model",
        python=folder / "python",
        log_path=folder / "logs" / "engine.log",
        start_seconds=start_seconds,
        options=options,
    )


def seen(folder: Path) -> dict[str, object]:
    return json.loads((folder / "seen.json").read_text())


def alive(pid: object) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def gone(pid: object, seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not alive(pid)


async def test_started_means_healthy_and_stopped_means_that_no_process_of_it_is_left(folder: Path) -> None:
    server = engine(folder)
    lines: list[str] = []
    server.progress = lambda _, line: lines.append(line)
    async with server:
        async with aiohttp.ClientSession() as http, http.get(f"{server.url}/health") as answer:
            assert answer.status == 200
        found = seen(folder)
        assert server.running and alive(found["worker"])
        assert "loading weights" in lines
    assert not server.running and gone(found["pid"]) and gone(found["worker"])
    await server.stop()


async def test_the_server_is_told_to_give_log_probabilities_that_can_be_trained_on(folder: Path) -> None:
    async with engine(folder, options=VllmOptions(threads=(0, 1), extra_args=("--max-log-len", "1"))):
        argv = seen(folder)["argv"]
    assert isinstance(argv, list)
    text = " ".join(argv)
    for wanted in (
        "--logprobs-mode processed_logprobs",
        "--generation-config vllm",
        "--enable-scale-out",
        "--dtype float32",
        "--host 127.0.0.1",
        "--worker-extension-cls polar_vllm_extension.WeightSync",
        "--max-log-len 1",
    ):
        assert wanted in text


async def test_the_server_sees_the_extension_alone_and_nothing_of_our_environment(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    monkeypatch.setenv("VLLM_USE_SOMETHING", "1")
    monkeypatch.setenv("VIRTUAL_ENV", "/a/venv")
    async with engine(folder, options=VllmOptions(threads=(0, 2, 3))):
        found = seen(folder)
    env = found["env"]
    assert isinstance(env, dict)
    assert found["extension"] == ["polar_vllm_extension.py"] and "/somewhere" not in env["PYTHONPATH"]
    assert not {"VLLM_USE_SOMETHING", "VIRTUAL_ENV"} & set(env)
    assert env["VLLM_CPU_OMP_THREADS_BIND"] == "0,2,3" and env["HF_HUB_OFFLINE"] == env["VLLM_NO_USAGE_STATS"] == "1"
    assert not os.access(env["PYTHONPATH"], os.F_OK)


async def test_a_server_that_dies_at_start_is_quoted(folder: Path) -> None:
    (folder / "mode").write_text("die")
    with pytest.raises(EngineUnavailable, match=r"(?s)ended with code 1 at start.*no room for the KV cache"):
        await engine(folder).start()


async def test_a_server_that_never_gets_ready_is_stopped_and_quoted(folder: Path) -> None:
    (folder / "mode").write_text("hang")
    with pytest.raises(EngineUnavailable, match=r"(?s)not ready after.*loading weights"):
        await engine(folder, start_seconds=1.5).start()
    assert gone(seen(folder)["pid"]) and gone(seen(folder)["worker"])


async def test_cancelling_the_start_leaves_nothing(folder: Path) -> None:
    (folder / "mode").write_text("hang")
    up = asyncio.Event()
    server = engine(folder)
    server.progress = lambda _, line: up.set() if line else None
    start = asyncio.create_task(server.start())
    await up.wait()
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert gone(seen(folder)["pid"]) and gone(seen(folder)["worker"])


async def test_a_server_that_ignores_the_request_to_end_is_killed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nemo_polar.engines.local_vllm.STOP_SECONDS", 0.5)
    (folder / "mode").write_text("stubborn")
    async with engine(folder):
        found = seen(folder)
    assert gone(found["pid"]) and gone(found["worker"])


@pytest.mark.parametrize(("missing", "how"), [("python", "make engine"), ("model/config.json", "make model")])
async def test_what_is_not_set_up_is_named_with_the_way_to_get_it(folder: Path, missing: str, how: str) -> None:
    (folder / missing).unlink()
    with pytest.raises(EngineUnavailable, match=f"does not exist; run `{how}`"):
        await engine(folder).start()


def test_the_launcher_ends_its_engine_when_the_process_that_started_it_is_killed(tmp_path: Path) -> None:
    """The real launcher, with a vllm package of one file."""
    package = tmp_path / "vllm" / "entrypoints" / "cli"
    package.mkdir(parents=True)
    code = "import os, sys, time; print(os.getpid(), *sys.argv[1:], flush=True); time.sleep(60)"
    (package / "main.py").write_text(code)
    parent = (
        "import os, subprocess, sys, time; from nemo_polar.engines.local_vllm import LAUNCHER; "
        "subprocess.Popen([sys.executable, '-c', LAUNCHER, str(os.getpid()), 'serve', 'm']); time.sleep(60)"
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    process = subprocess.Popen([sys.executable, "-c", parent], env=env, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pid, *arguments = process.stdout.readline().split()
    assert arguments == ["serve", "m"] and alive(pid)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert gone(pid)
