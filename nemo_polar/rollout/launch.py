# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The engine's processes, when a run brings its own: the embedded server, and the recording relay in front of an engine."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from nemo_polar.child import signalled_with_parent
from nemo_polar.engines.local_vllm import LocalVllm, VllmOptions
from nemo_polar.errors import ConfigError, EngineUnavailable
from nemo_polar.rollout.folder import RunFolder
from nemo_polar.settings import EngineSettings, PolicySettings
from nemo_polar.trajectory.store import replica_log

RELAY_SECONDS = 20.0


@asynccontextmanager
async def launched_engine(
    engine: EngineSettings, policy: PolicySettings, folder: RunFolder, say: Callable[[str], None]
) -> AsyncIterator[tuple[str, ...]]:
    """The URLs to use, one a replica; none for an engine in this process. What was started is ended with the block.

    Raises:
        ConfigError: neither a URL nor something to launch where one is needed; launch options that do not exist.
        EngineUnavailable: the engine or the relay did not start.
    """
    async with AsyncExitStack() as stack:
        urls = engine.urls or ((engine.url,) if engine.url is not None else ())
        if engine.launch == "local_vllm":
            server = _local_vllm(engine, policy, folder, say)
            say("starting the embedded engine (about half a minute)")
            urls = ((await stack.enter_async_context(server)).url,)
        if engine.relay:
            if not urls:
                raise ConfigError("engine.relay: needs an engine with a URL")
            if engine.urls:
                # A relay and a log for each: an engine log has one writer, and a replica's relay falls with nobody else's.
                relays = [
                    _relay(url, replica_log(folder.path, n), folder.logs / f"relay-{n}.log") for n, url in enumerate(urls)
                ]
            else:
                relays = [_relay(urls[0], folder.engine_log, folder.logs / "relay.log")]
            urls = tuple([await stack.enter_async_context(relay) for relay in relays])
        yield urls


def _local_vllm(engine: EngineSettings, policy: PolicySettings, folder: RunFolder, say: Callable[[str], None]) -> LocalVllm:
    options: dict[str, Any] = dict(engine.launch_options)
    python = options.pop("python", None)
    if python is None or policy.model is None:
        missing = "engine.launch_options.python" if python is None else "policy.model"
        raise ConfigError(f"{missing}: needed to launch the embedded engine")
    fields = [field.name for field in dataclasses.fields(VllmOptions)]
    if unknown := sorted(set(options) - set(fields)):
        known = ", ".join(fields)
        raise ConfigError(f"engine.launch_options.{unknown[0]}: no such key; known: python, {known}")
    return LocalVllm(
        Path(policy.model),
        python=Path(python),
        log_path=folder.logs / "engine.log",
        options=VllmOptions(**options),
        progress=lambda seconds, line: say(f"starting the embedded engine: {seconds:.0f} s  {line[:80]}"),
    )


@asynccontextmanager
async def _relay(upstream: str, log: Path, output: Path) -> AsyncIterator[str]:
    """The recording relay as a process of its own, so that its log shares nothing with the proxy."""
    argv = (sys.executable, "-m", "nemo_polar.engines.relay", "--upstream", upstream, "--port", "0", "--log", str(log))
    with output.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
            preexec_fn=partial(signalled_with_parent, signal.SIGTERM),
        )
    assert process.stdout is not None
    try:
        try:
            line = await asyncio.wait_for(process.stdout.readline(), RELAY_SECONDS)
            url = str(json.loads(line)["url"])
        except (TimeoutError, ValueError, KeyError, TypeError) as exc:
            raise EngineUnavailable(f"the recording relay did not start; see {output}") from exc
        yield url
    finally:
        if process.returncode is None:
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), 5)
        except TimeoutError:
            process.kill()
            await process.wait()
