# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""``polar proxy``: the capture proxy by itself. Sessions are opened over its control listener."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from nemo_polar.capture.proxy import CaptureProxy
from nemo_polar.cli.boundary import run_async, settle_heap
from nemo_polar.cli.console import stderr
from nemo_polar.errors import ConfigError
from nemo_polar.logs import Form, Level, to_stderr
from nemo_polar.rollout.address import SECRET, announced, facts_of
from nemo_polar.rollout.assemble import make_proxy
from nemo_polar.rollout.compose import load_proxy_settings
from nemo_polar.rollout.folder import RunFolder
from nemo_polar.rollout.launch import launched_engine
from nemo_polar.rollout.manifest import manifest_of
from nemo_polar.settings import ProxySettings
from nemo_polar.trajectory.codec import dumps
from nemo_polar.trajectory.store import write_manifest


def main(
    recipe: str | None,
    overrides: Sequence[str],
    *,
    out: Path,
    secret_file: Path | None,
    show_secret: bool,
    log_format: Form,
    log_level: Level,
    as_json: bool,
) -> None:
    """See ``polar proxy --help``."""
    settings = load_proxy_settings(recipe, overrides)
    if show_secret and secret_file is not None:
        raise ConfigError("--show-secret and --secret-file exclude each other")
    secret_file = None if show_secret else secret_file or out / SECRET
    with to_stderr(log_format, log_level):
        run_async(_serve(settings, RunFolder(out), secret_file, as_json))


async def _serve(settings: ProxySettings, folder: RunFolder, secret_file: Path | None, as_json: bool) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        folder.logs.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise ConfigError(f"{folder.path} cannot be made: {exc.strerror}") from exc
    console = stderr()

    def say(line: str) -> None:
        if console.is_terminal:
            console.print(line, markup=False, highlight=False)

    async with AsyncExitStack() as stack:
        urls = await stack.enter_async_context(launched_engine(settings.engine, settings.policy, folder, say))
        proxy = await make_proxy(settings.engine, settings.policy, settings.capture, folder, urls)
        stack.push_async_callback(proxy.stop)
        await proxy.start()
        write_manifest(folder.path, manifest_of(settings, proxy, time.time()))
        stack.enter_context(announced(proxy, folder, secret_file))
        settle_heap()
        _announce(proxy, folder, secret_file, as_json)
        await stop.wait()


def _announce(proxy: CaptureProxy, folder: RunFolder, secret_file: Path | None, as_json: bool) -> None:
    facts = facts_of(proxy, folder, secret_file)
    if secret_file is None:
        facts["control_secret"] = proxy.control_secret
    if as_json:
        print(dumps(facts), flush=True)
    else:
        print("\n".join(f"{key + ':':22}{value}" for key, value in facts.items()), flush=True)
