# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The proxies that are compared: how each is installed, started and told of a session.

``direct`` is no proxy at all: the client talks to the engine, which is what latency is compared with. The peers come from PyPI,
at a fixed version, each into an environment of its own below ``.polar/bench``, and are started as their own documentation says.
They keep their defaults, but for the log of every request where it can be turned off.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import orjson

from benchmarks import lag
from benchmarks.client import ask_json
from benchmarks.engine import MODEL
from benchmarks.process import Measured
from nemo_polar.errors import ConfigError, EngineError, EngineUnavailable
from nemo_polar.rollout.compose import home

REPOSITORY = str(Path(__file__).resolve().parents[1])
_START_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Setting:
    """What every proxy of a run is given."""

    engine_url: str
    tokenizer: Path
    """Folder; only ours tokenizes."""
    folder: Path
    """For this proxy's files."""


class Proxy(Protocol):
    """One proxy under test. ``process`` is None for ``direct``."""

    name: str
    url: str
    process: Measured | None
    refuses_streams: str | None
    """Why it cannot stream; None where it can."""

    async def start(self) -> None:
        """Start it and wait until it serves.

        Raises:
            ConfigError: it cannot be installed here.
            EngineError: it does not start.
        """
        ...

    async def session(self, name: str) -> tuple[str, tuple[str, ...]]:
        """Open a session: the path of its chat endpoint, and the headers that its calls carry."""
        ...

    def record_bytes(self) -> int | None:
        """Size of its record on disk as a reader of it finds it; None where it keeps none."""
        ...


@dataclass(slots=True)
class Direct:
    """The engine by itself."""

    setting: Setting
    name: str = "direct"
    url: str = ""
    process: Measured | None = None
    refuses_streams: str | None = None

    async def start(self) -> None:
        self.url = self.setting.engine_url

    async def session(self, name: str) -> tuple[str, tuple[str, ...]]:
        return "/v1/chat/completions", ()

    def record_bytes(self) -> int | None:
        return None


@dataclass(slots=True)
class PassThrough:
    """See ``passthrough.py``."""

    setting: Setting
    name: str = "passthrough"
    url: str = ""
    process: Measured | None = None
    refuses_streams: str | None = None

    async def start(self) -> None:
        argv = (sys.executable, "-m", "benchmarks.passthrough", "--engine", self.setting.engine_url)
        self.process = await _ours(self.name, argv, self.setting.folder)
        self.url = (await self.process.announced())["url"]

    async def session(self, name: str) -> tuple[str, tuple[str, ...]]:
        return "/v1/chat/completions", ()

    def record_bytes(self) -> int | None:
        return None


@dataclass(slots=True)
class Polar:
    """Ours: ``polar proxy`` with the vLLM engine, the real renderer and its journal on disk."""

    setting: Setting
    name: str = "polar"
    url: str = ""
    process: Measured | None = None
    refuses_streams: str | None = None
    _control: dict[str, str] = field(default_factory=dict)

    async def start(self) -> None:
        overrides = (
            f"engine.url={self.setting.engine_url}",
            "engine.options.probe=false",  # the replies are canned, so their log-probabilities are of no distribution
            f"policy.codec.tokenizer={self.setting.tokenizer}",
        )
        argv = (sys.executable, "-m", "benchmarks.polar_proxy", "--out", self.setting.folder, "--json", *overrides)
        self.process = await _ours(self.name, argv, self.setting.folder)
        self._control = await self.process.announced()
        self.url = self._control["url"]

    async def session(self, name: str) -> tuple[str, tuple[str, ...]]:
        secret = await asyncio.to_thread(Path(self._control["control_secret_file"]).read_text)
        body = {"rollout_id": name, "task_id": "bench", "group_id": name}
        headers = (f"authorization: Bearer {secret.strip()}",)
        opened = await ask_json(self._control["control_url"], "POST", "/sessions", body, headers)
        return "/v1/chat/completions", (f"authorization: Bearer {opened['secret']}",)

    def record_bytes(self) -> int | None:
        return _database_bytes(Path(self._control["journal"]))


@dataclass(slots=True)
class RllmGateway:
    """rllm-model-gateway, with its default store (SQLite). It asks the engine for ids and log-probabilities and keeps them."""

    setting: Setting
    name: str = "rllm-model-gateway"
    url: str = ""
    process: Measured | None = None
    refuses_streams: str | None = None

    async def start(self) -> None:
        python = await installed("rllm-model-gateway", "0.1.0")
        port = _free_port()
        argv = (
            *(python.with_name("rllm-model-gateway"), "--host", "127.0.0.1", "--port", str(port), "--log-level", "WARNING"),
            *("--worker", self.setting.engine_url + "/v1", "--db-path", self._store),
        )
        self.process = await Measured.start(self.name, argv, self.setting.folder / "stderr.log", talks=False)
        self.url = f"http://127.0.0.1:{port}"
        await _serving(self.process, self.url, "/health")

    async def session(self, name: str) -> tuple[str, tuple[str, ...]]:
        opened = await ask_json(self.url, "POST", "/sessions", {"session_id": name})
        return f"{opened['url']}/chat/completions", ()

    @property
    def _store(self) -> Path:
        return self.setting.folder / "traces.db"

    def record_bytes(self) -> int | None:
        return _database_bytes(self._store)


@dataclass(slots=True)
class AgentLightning:
    """Agent Lightning's API gateway. It asks the engine for ids and log-probabilities and keeps all events in memory."""

    setting: Setting
    name: str = "agentlightning"
    url: str = ""
    process: Measured | None = None
    refuses_streams: str | None = "agentlightning 1.0.2 answers 400 to a request that asks for a stream"

    async def start(self) -> None:
        python = await installed("agentlightning", "1.0.2")
        port = _free_port()
        argv = (
            *(python.with_name("agl-server"), "host=127.0.0.1", f"port={port}", f"default_proxy.model_name={MODEL}"),
            *(f"hydra.run.dir={self.setting.folder}", "hydra.output_subdir=null"),
        )
        self.process = await Measured.start(self.name, argv, self.setting.folder / "stderr.log", talks=False)
        self.url = f"http://127.0.0.1:{port}"
        await _serving(self.process, self.url, "/healthz")
        await ask_json(self.url, "POST", "/api/models", [{"model": MODEL, "endpoint": self.setting.engine_url + "/v1"}])

    async def session(self, name: str) -> tuple[str, tuple[str, ...]]:
        await ask_json(self.url, "POST", "/api/rollouts", [{"rollout_id": name, "input": {}}])
        return f"/proxy/rollout/{name}/attempt/0/mode/train/openai/v1/chat/completions", ()

    def record_bytes(self) -> int | None:
        return None


MAKERS: dict[str, Callable[[Setting], Proxy]] = {
    "direct": Direct,
    "passthrough": PassThrough,
    "polar": Polar,
    "rllm-model-gateway": RllmGateway,
    "agentlightning": AgentLightning,
}


# --- help -------------------------------------------------------------------------------------------------------------


async def _ours(name: str, argv: tuple[str | Path, ...], folder: Path) -> Measured:
    """Start a module of this repository, with a lag sampler that can be asked."""
    env = {"PYTHONPATH": REPOSITORY, lag.VARIABLE: str(folder / "lag.json")}
    return await Measured.start(name, argv, folder / "stderr.log", env=env)


class LagSeries:
    """The lag of one of our processes' event loop over a window. Of other processes it knows nothing."""

    def __init__(self, proxy: Proxy) -> None:
        self._process = proxy.process if isinstance(proxy, PassThrough | Polar) else None
        self._file = proxy.setting.folder / "lag.json" if isinstance(proxy, PassThrough | Polar) else None

    def begin(self) -> None:
        if self._process is not None:
            self._process.signal(signal.SIGUSR1)

    async def end(self) -> list[float]:
        """Milliseconds, one for every 5 ms."""
        if self._process is None or self._file is None:
            return []
        self._process.signal(signal.SIGUSR2)
        deadline = time.monotonic() + 10
        while not self._file.exists():
            if time.monotonic() > deadline:
                raise EngineUnavailable(f"{self._process.name} does not answer a signal: {self._process.last_words()}")
            await asyncio.sleep(0.005)
        samples = orjson.loads(self._file.read_bytes())
        self._file.unlink()
        return samples


async def installed(package: str, version: str) -> Path:
    """The Python of an environment that has ``package`` and nothing else of ours; made when it is not there.

    Raises:
        ConfigError: no interpreter here will take it, with pip's reason.
    """
    folder = home() / "bench" / f"{package}-{version}"
    python = folder / "bin" / "python"
    if (folder / "ready").exists():
        return python
    problem = ""
    # The newest first: some need it, and the newest is the fastest.
    for interpreter in _interpreters():
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        problem = await _run(interpreter, "-m", "venv", folder)
        problem = problem or await _run(python, "-m", "pip", "install", "--quiet", f"{package}=={version}")
        if not problem:
            (folder / "ready").touch()
            return python
    raise ConfigError(f"{package} {version} cannot be installed here: {problem or 'no Python was found'}")


def _interpreters() -> list[str]:
    found = [shutil.which(f"python3.{minor}") for minor in (13, 12, 11)]
    base = Path(sys.base_prefix) / "bin" / "python3"
    return [str(base), *(path for path in found if path)]


async def _run(*argv: str | Path) -> str:
    """Run a command; empty when it worked, else the last line it wrote."""
    process = await asyncio.create_subprocess_exec(
        *map(str, argv),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
    )
    output, _ = await process.communicate()
    lines = output.decode("utf-8", "replace").strip().splitlines()
    return "" if process.returncode == 0 else (lines[-1] if lines else f"exit code {process.returncode}")


async def _serving(process: Measured, url: str, path: str) -> None:
    """Wait until ``path`` is answered."""
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            await ask_json(url, "GET", path)
            return
        except (OSError, EngineError):
            if not process.alive or time.monotonic() > deadline:
                raise EngineUnavailable(f"{process.name} did not start: {process.last_words()}") from None
            await asyncio.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _database_bytes(path: Path) -> int:
    """Committed pages of an SQLite file that another process writes, those in its write-ahead log included."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)) as db:
        pages = db.execute("PRAGMA page_count").fetchone()[0]
        return pages * db.execute("PRAGMA page_size").fetchone()[0]
