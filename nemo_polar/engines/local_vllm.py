# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The embedded engine: a vLLM server on this machine's CPUs, started and stopped with the run.

It lives in an environment of its own (``make engine``) and is one process group that does not outlive us: ``stop`` kills all
of it, and it is told to end when we are killed ourselves. This module knows how to start a server that can be trained on;
talking to it is the business of ``engines/vllm.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from nemo_polar.errors import EngineUnavailable

ProgressCallback = Callable[[float, str], None]
"""Seconds since the start, and the last line of the server's log."""

EXTENSION = Path(__file__).with_name("vllm_extension.py")
EXTENSION_MODULE = "polar_vllm_extension"
TAIL_BYTES = 4096
POLL_SECONDS = 0.5
STOP_SECONDS = 10.0

LAUNCHER = """
import ctypes, os, runpy, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() != int(sys.argv.pop(1)):
    sys.exit("the process that started this engine is gone")
runpy.run_module("vllm.entrypoints.cli.main", run_name="__main__", alter_sys=True)
"""
"""Runs in the engine's Python. prctl(1) is PR_SET_PDEATHSIG; we may have died before it, hence the look at the parent."""


@dataclass(frozen=True, slots=True)
class LoraOptions:
    """An adapter that can be replaced while the server runs. It is served under a name of its own, beside the base model's."""

    folder: Path
    """The adapter to start with, as peft writes it."""
    name: str = "adapter"
    """What ``VllmEngine(model=...)`` has to ask for: who asks for the base model gets the base model."""
    max_rank: int = 16


@dataclass(frozen=True, slots=True)
class VllmOptions:
    """How the server is started. The defaults give log-probabilities that a float32 trainer reproduces to about 1e-4."""

    served_model: str = "policy"
    dtype: str = "float32"
    """bfloat16 is faster, and off by 0.1 to 0.2 against a trainer's forward pass."""
    max_context: int = 8192
    """Tokens. More than the model has positions for answers NaN."""
    max_sequences: int = 32
    """Samples that are drawn at the same time; more wait in the server."""
    kv_cache_gib: int = 2
    threads: Sequence[int] | None = None
    """CPU numbers for the model's threads; None: those this process may use. (vLLM's own choice keeps one back.)"""
    seed: int = 0
    tool_call_parser: str | None = None
    """vLLM's name of how the model writes tool calls (``hermes``), for its chat API, which refuses tools without one. Token ids
    need none."""
    lora: LoraOptions | None = None
    """Costs decoding speed also where the base model is asked for (about half, with 16 samples at once)."""
    extra_args: tuple[str, ...] = ()


class LocalVllm:
    """One embedded server. ``async with LocalVllm(...) as server: server.url``."""

    def __init__(
        self,
        model_dir: Path,
        *,
        python: Path,
        log_path: Path,
        port: int = 0,
        options: VllmOptions | None = None,
        start_seconds: float = 300.0,
        progress: ProgressCallback | None = None,
    ) -> None:
        """``python`` is the engine environment's interpreter; ``port`` 0 takes a free one when the server starts."""
        self.model_dir = model_dir
        self.python = python
        self.log_path = log_path
        self.port = port
        self.options = options or VllmOptions()
        self.start_seconds = start_seconds
        self.progress = progress
        self._process: asyncio.subprocess.Process | None = None
        self._path: tempfile.TemporaryDirectory[str] | None = None

    @property
    def url(self) -> str:
        """Base URL, without a trailing slash. Valid after ``start``."""
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> LocalVllm:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def command(self) -> list[str]:
        """The command line. ``--enable-scale-out`` is what serves ``/inference/v1/generate``."""
        options = self.options
        return [
            *(str(self.python), "-c", LAUNCHER, str(os.getpid())),
            *("serve", str(self.model_dir), "--served-model-name", options.served_model),
            *("--host", "127.0.0.1", "--port", str(self.port)),
            *("--dtype", options.dtype, "--enforce-eager", "--max-model-len", str(options.max_context)),
            *("--max-num-seqs", str(options.max_sequences), "--seed", str(options.seed)),
            # A prompt in several chunks ends the whole server when its sample has a seed: torch's CPU generator has no offset.
            *("--no-enable-chunked-prefill", "--max-num-batched-tokens", str(options.max_context)),
            *("--logprobs-mode", "processed_logprobs", "--generation-config", "vllm", "--enable-scale-out"),
            *("--worker-extension-cls", f"{EXTENSION_MODULE}.WeightSync"),
            *("--no-enable-log-requests", "--disable-uvicorn-access-log"),
            *_tool_calls(options.tool_call_parser),
            *_lora(options.lora),
            *options.extra_args,
        ]

    def environment(self, path: str) -> dict[str, str]:
        """What the server sees. ``path`` holds the worker extension alone: nothing else of ours may leak into its imports."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("VLLM_", "PYTHON", "VIRTUAL_ENV"))}
        if self.options.lora is not None:
            kept["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
        threads = self.options.threads if self.options.threads is not None else sorted(os.sched_getaffinity(0))
        return kept | {
            "PYTHONPATH": path,
            "PYTHONUNBUFFERED": "1",
            "VLLM_CPU_KVCACHE_SPACE": str(self.options.kv_cache_gib),
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(str(cpu) for cpu in threads),
            "VLLM_SERVER_DEV_MODE": "1",  # pause, resume, reset_prefix_cache, collective_rpc
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "no_proxy": "127.0.0.1,localhost",
        }

    async def start(self) -> None:
        """Start the server and return when it answers ``/health`` (about half a minute).

        Raises:
            EngineUnavailable: it cannot be started, ended, or was not ready in ``start_seconds``; quotes the end of its log.
        """
        if self._process is not None:
            return
        for needed, how in ((self.python, "make engine"), (self.model_dir / "config.json", "make model")):
            if not needed.exists():
                raise EngineUnavailable(f"{needed} does not exist; run `{how}`")
        self.port = self.port or _free_port()
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        self._path = tempfile.TemporaryDirectory(prefix="polar-vllm-")
        shutil.copyfile(EXTENSION, Path(self._path.name) / f"{EXTENSION_MODULE}.py")
        started = time.monotonic()
        with self.log_path.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self.command(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
                env=self.environment(self._path.name),
                start_new_session=True,
            )
        try:
            await self._wait_ready(started)
        except BaseException:
            await self.stop()
            raise

    async def _wait_ready(self, started: float) -> None:
        assert self._process is not None
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as http:
            while True:
                elapsed = time.monotonic() - started
                if self._process.returncode is not None:
                    raise EngineUnavailable(f"the engine ended with code {self._process.returncode} at start.{self._quote()}")
                if elapsed > self.start_seconds:
                    raise EngineUnavailable(f"the engine was not ready after {elapsed:.0f} s.{self._quote()}")
                try:
                    async with http.get(f"{self.url}/health") as answer:
                        if answer.status == 200:
                            return
                except (aiohttp.ClientError, TimeoutError):
                    pass
                if self.progress is not None:
                    self.progress(elapsed, self.log_tail(1))
                await asyncio.sleep(POLL_SECONDS)

    async def stop(self) -> None:
        """End the server's whole process group: asked first, killed after ten seconds. Safe to call twice."""
        process, self._process = self._process, None
        if process is not None:
            _signal_group(process.pid, signal.SIGTERM)
            try:
                await asyncio.wait_for(process.wait(), STOP_SECONDS)
            except TimeoutError:
                pass
            finally:
                _signal_group(process.pid, signal.SIGKILL)
            await process.wait()
        if self._path is not None:
            self._path.cleanup()
            self._path = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    def log_tail(self, lines: int = 15) -> str:
        """The last lines of the server's log."""
        try:
            with self.log_path.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - TAIL_BYTES))
                text = log.read().decode("utf-8", "replace")
        except FileNotFoundError:
            return ""
        return "\n".join([line for line in text.splitlines() if line.strip()][-lines:])

    def _quote(self) -> str:
        return f" The end of {self.log_path}:\n{self.log_tail()}"


def _tool_calls(parser: str | None) -> tuple[str, ...]:
    return () if parser is None else ("--enable-auto-tool-choice", "--tool-call-parser", parser)


def _lora(lora: LoraOptions | None) -> tuple[str, ...]:
    if lora is None:
        return ()
    return ("--enable-lora", "--max-lora-rank", str(lora.max_rank), "--lora-modules", f"{lora.name}={lora.folder}")


def _free_port() -> int:
    """A port that is free now. Another process may take it before the server does; then the server's own error is quoted."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)
