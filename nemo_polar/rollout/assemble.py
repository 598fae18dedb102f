# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Putting the parts of a run together, as its settings say: engine clients, the proxy, the workshop of its attempts.

It knows every part and does none of their work.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from nemo_polar import registry
from nemo_polar.capture.journal import Journal
from nemo_polar.capture.proxy import CaptureProxy
from nemo_polar.engines.base import Engine
from nemo_polar.engines.replicas import ReplicaSet
from nemo_polar.errors import ConfigError
from nemo_polar.harnesses.base import Harness
from nemo_polar.rollout.address import SECRET, announced
from nemo_polar.rollout.attempt import Workshop
from nemo_polar.rollout.checks import make_verifier, signature_mistake
from nemo_polar.rollout.folder import RunFolder
from nemo_polar.rollout.roller import Build, Built
from nemo_polar.rollout.stages import Stages
from nemo_polar.sandboxes.base import Sandbox, SandboxSpec
from nemo_polar.settings import CaptureSettings, EngineSettings, PolicySettings, RunSettings, TracePolicy
from nemo_polar.tokens.load import load_codec
from nemo_polar.trajectory.build import build_traces
from nemo_polar.types import Turn

Say = Callable[[str], None]
"""Told in one line what is being done before rollouts start."""


def void(_: object) -> None:
    """Drop a value."""


async def make_proxy(
    engine: EngineSettings, policy: PolicySettings, capture: CaptureSettings, folder: RunFolder, urls: Sequence[str]
) -> CaptureProxy:
    """A proxy that journals into ``folder``, for the engine at ``urls`` (one a replica, none in this process); not started.

    Raises:
        ConfigError: no tokenizer there, or engine options that do not exist.
    """
    codec = await asyncio.to_thread(load_codec, policy.codec)
    client = make_replicas(engine, urls, folder.engine_log)
    retention = policy.codec.thinking_retention
    return CaptureProxy(capture, codec=codec, engine=client, journal=Journal(folder.journal), thinking_retention=retention)


def make_replicas(settings: EngineSettings, urls: Sequence[str], log: Path) -> Engine:
    """One client for the engine at ``urls``, all replicas of it; they are called by the names they have in the settings.

    Raises:
        ConfigError: its options are wrong.
    """
    if not settings.urls:
        return make_engine(settings, urls[0] if urls else None, log)
    return ReplicaSet({name: make_engine(settings, url, log) for name, url in zip(settings.urls, urls, strict=True)})


def make_engine(settings: EngineSettings, url: str | None, log: Path) -> Engine:
    """The engine client. One that runs in this process writes its own log to ``log``.

    Raises:
        ConfigError: its options are wrong.
    """
    make = registry.resolve("engines", settings.name)
    options = dict(settings.options)
    if url is not None:
        options["url"] = url
    elif settings.name == "scripted":
        options.setdefault("log", log)
    try:
        return make(**options)
    except TypeError as exc:
        raise ConfigError(f"engine.options: {signature_mistake(exc)}") from exc


@asynccontextmanager
async def scratch_folder() -> AsyncIterator[Path]:
    """A short path on the host, as Unix sockets below it must fit in 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="polar-"))
    try:
        yield folder
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


async def serving_proxy(
    stack: AsyncExitStack, settings: RunSettings, folder: RunFolder, urls: Sequence[str], scratch: Path, say: Say
) -> CaptureProxy:
    """A proxy that serves sandboxes until ``stack`` closes.

    Raises:
        ConfigError: no tokenizer there, engine options that do not exist, or an address that cannot be bound.
        EngineError: the engine cannot be reached or trained on.
    """
    say("loading the tokenizer")
    # Sessions are made in this process: the control listener is for watching, and only there when its port is given.
    socket = settings.capture.socket or str(scratch / "proxy.sock")
    control = settings.capture.control and settings.capture.control_port != 0
    capture = settings.capture.model_copy(update={"socket": socket, "control": control})
    proxy = await make_proxy(settings.engine, settings.policy, capture, folder, urls)
    say("connecting the engine")
    stack.push_async_callback(proxy.stop)
    await proxy.start()
    if control:
        stack.enter_context(announced(proxy, folder, folder.logs / SECRET))
    return proxy


def make_shop(settings: RunSettings, harness: Harness, proxy: CaptureProxy, folder: RunFolder, scratch: Path) -> Workshop:
    """What the attempts of a run share; ``proxy`` serves already."""
    sandbox = registry.resolve("sandboxes", settings.sandbox.name)

    def make_sandbox(spec: SandboxSpec) -> Sandbox:
        return sandbox(spec)

    return Workshop(
        settings=settings,
        capture=proxy,
        harness=harness,
        make_sandbox=make_sandbox,
        make_verifier=make_verifier,
        stages=Stages(settings.stages),
        scratch=scratch,
        logs=folder.logs,
        context=proxy.info.max_context,
    )


def make_build(policy: TracePolicy) -> Build:
    """How a rollout's turns become traces."""

    def build(rollout_id: str, turns: list[Turn], infra: bool) -> Built:
        built = build_traces(rollout_id, turns, policy, infra=infra)
        return built.traces, built.masked

    return build
