# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The real Gym, started and asked by its own commands in processes of their own, as ``polar gym`` words them.

What is run is chosen by environment variables, so that the same tests serve the quick check and a real model:

    POLAR_GYM_HARNESS      shell (the default: tool_agent.py), pi, codex, ...
    POLAR_GYM_SANDBOX      local
    POLAR_GYM_ENGINE       URL of a vLLM, without /v1; none: the scripted engine is started, with the demo's teacher
    POLAR_GYM_MODEL        its model
    POLAR_GYM_ROUTE        auto, none (through Gym's model server) or a URL: the agent's engine_url
    POLAR_GYM_TOKENIZER    the policy's folder; with the scripted engine a small one is made
    POLAR_GYM_SET          more settings of the agent, KEY=VALUE, one a line
    POLAR_GYM_WORDS        more overrides for Gym's start, separated by blanks
    POLAR_GYM_SECONDS      for the collection, 600 by default
    POLAR_GYM_LOCK         file that is locked while a Gym runs, as its head server's port is one for all on a host
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
START_SECONDS = 300.0
"""Gym starts Ray first, which takes minutes on a busy machine."""
COMMAND_SECONDS = 300.0


def setting(name: str, default: str = "") -> str:
    return os.environ.get(f"POLAR_GYM_{name}") or default


COLLECT_SECONDS = float(setting("SECONDS", "600"))
SCRIPTED = not setting("ENGINE")
ROUTE = setting("ROUTE", "auto")
HARNESS = setting("HARNESS", "shell")


def gym_version() -> tuple[int, ...]:
    return tuple(int(part) for part in version("nemo-gym").split(".")[:2])


@dataclass(frozen=True)
class Gym:
    """A Gym whose servers run."""

    folder: Path
    """Where it was started; the run folder is below."""
    log: Path

    @property
    def run_folder(self) -> Path:
        return self.folder / "runs" / "polar_agent"

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")


def polar(*words: str, cwd: Path, seconds: float = COMMAND_SECONDS) -> subprocess.CompletedProcess[str]:
    """``polar WORDS`` to its end."""
    argv = [sys.executable, "-m", "nemo_polar.cli", *words]
    return subprocess.run(argv, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=seconds, check=False)


def environment() -> dict[str, str]:
    """For our children: this repository's tests are importable, and Gym finds its own commands."""
    scripts = str(Path(sys.executable).parent)
    path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
    own = {"PYTHONPATH": path, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}", "POLAR_GYM_TOKENIZER": str(tokenizer())}
    return {**os.environ, **own}


def tokenizer() -> Path:
    """The policy's folder."""
    if given := setting("TOKENIZER"):
        return Path(given)
    from tests.support.models import tiny

    return tiny()


@contextlib.contextmanager
def scripted_engine(folder: Path) -> Iterator[str]:
    """A scripted vLLM with the teacher for a model; gives its URL."""
    argv = [sys.executable, "-m", "nemo_polar.engines.scripted_server", "--script", "tests.gym.live.teacher:teach"]
    argv += ["--vocab", "1024", "--max-context", "32768", "--log", str(folder / "engine.jsonl"), "--model", "teacher"]
    with (folder / "engine.log").open("w") as errors:
        process = subprocess.Popen(argv, env=environment(), stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["url"]
        finally:
            end(process, signal.SIGTERM)


def harness_settings() -> list[str]:
    """What the agent's block needs for the harness, and for the small tokenizer, which has no template of its own."""
    found = [f"harness={HARNESS}", f"sandbox={setting('SANDBOX', 'local')}"]
    if HARNESS == "shell":
        program = base64.b64encode(Path(__file__).with_name("tool_agent.py").read_bytes()).decode()
        found.append(f"harness_options={{command: 'echo {program} | base64 -d > $HOME/agent.py && python3 $HOME/agent.py'}}")
    if not setting("TOKENIZER"):
        template = REPOSITORY / "nemo_polar" / "demo" / "chat_template.jinja"
        found.append(f"overrides=['policy=smollm2','policy.codec.chat_template={template}']")
    return found + setting("SET").splitlines()


@contextlib.contextmanager
def started(folder: Path, engine_url: str, model: str, settings: Sequence[str] = ()) -> Iterator[Gym]:
    """Gym's servers with Polar's environment, ended as by Ctrl-C.

    Raises:
        AssertionError: they did not come up.
    """
    words = ["gym", "start", "--model-url", f"{engine_url}/v1", "--model", model, "--engine-url", ROUTE]
    words += ["--tokenizer", str(tokenizer()), "--out", "runs"]
    for value in (*harness_settings(), *settings):
        words += ["--set", value]
    words += setting("WORDS").split()
    gym = Gym(folder, folder / "gym.log")
    argv = [sys.executable, "-m", "nemo_polar.cli", *words]
    with only_one(), gym.log.open("w") as log:
        process = subprocess.Popen(argv, cwd=folder, env=environment(), stdout=log, stderr=subprocess.STDOUT)
        try:
            until = time.monotonic() + START_SECONDS
            while "servers ready! Polling" not in gym.said:
                assert process.poll() is None and time.monotonic() < until, gym.said[-6000:]
                time.sleep(0.5)
            yield gym
        finally:
            end(process, signal.SIGINT)


def end(process: subprocess.Popen[Any], how: int) -> None:
    """End a child of ours, at first politely."""
    if process.poll() is None:
        process.send_signal(how)
    try:
        process.wait(90)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise


@contextlib.contextmanager
def only_one() -> Iterator[None]:
    """No two Gyms on this host at a time, as far as they go by the same file."""
    path = Path(setting("LOCK", str(Path(tempfile.gettempdir()) / "polar-gym.lock")))
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def running(folder: Path, *settings: str) -> Iterator[Gym]:
    """The chosen engine and Gym over it."""
    with contextlib.ExitStack() as stack:
        url, model = setting("ENGINE"), setting("MODEL")
        if SCRIPTED:
            if ROUTE == "none":
                pytest.skip("the scripted engine takes token ids only; name a vLLM in POLAR_GYM_ENGINE")
            url, model = stack.enter_context(scripted_engine(folder)), "teacher"
        yield stack.enter_context(started(folder, url, model, settings))


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
