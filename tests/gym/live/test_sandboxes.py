# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""With the real NeMo Gym, whichever version is installed: our sandboxes through its registry, and its providers as ours.

Gym 0.4 has no provider that needs nothing installed (apptainer and opensandbox only), so there the way from Gym to us is shown
with our own providers: a Gym sandbox made by ``polar_local`` is a container to ``GymSandbox`` like any other.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nemo_gym", reason="NeMo Gym is not installed here (its environments run this: make test-gym)")

from nemo_polar.errors import SandboxError
from nemo_polar.gym.sandbox_provider import PolarLocalProvider, PolarProcessProvider
from nemo_polar.rollout.checks import check
from nemo_polar.rollout.compose import load_settings
from nemo_polar.rollout.run import Run
from nemo_polar.sandboxes.base import WORKDIR, SandboxSpec
from nemo_polar.sandboxes.gym import GymSandbox
from tests.support.cli import overrides, write_tasks
from tests.support.sandboxes import needs_bwrap, processes_appear, processes_with

pytestmark = pytest.mark.gym

base: Any = importlib.import_module("nemo_gym.sandbox.providers.base")
gym: Any = importlib.import_module("nemo_gym.sandbox")
registry: Any = importlib.import_module("nemo_gym.sandbox.providers.registry")

OURS = {"polar_local": PolarLocalProvider, "polar_process": PolarProcessProvider}
NAMES = [pytest.param("polar_local", marks=needs_bwrap), "polar_process"]
has_local = pytest.mark.skipif(
    "local" not in registry.list_providers(), reason="this Gym has no provider 'local' (0.4: apptainer and opensandbox only)"
)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Registered by hand only where the installed package's entry points are older than these providers."""
    if missing := OURS.keys() - set(registry.list_providers()):
        monkeypatch.setattr(registry, "_PROVIDER_REGISTRY", {name: OURS[name] for name in missing})
    yield


def test_gym_finds_both_by_their_entry_points() -> None:
    points = {point.name: point for point in importlib.metadata.entry_points(group=registry.ENTRY_POINT_GROUP)}
    if not OURS.keys() <= points.keys():
        pytest.skip("the installed nemo_polar has no entry points for them yet: install it again")
    assert {name: registry.get_provider_class(name) for name in OURS} == OURS
    assert {name: points[name].load() for name in OURS} == OURS


@pytest.mark.parametrize("name", NAMES)
async def test_a_gym_sandbox_of_ours_runs_commands_and_moves_files(name: str, tmp_path: Path) -> None:
    mark = secrets.token_hex(8)
    (tmp_path / "in").write_bytes(bytes(range(256)))
    spec = gym.SandboxSpec(env={"A": "1"}, files={"given.txt": "hello"}, ttl_s=600)
    async with gym.AsyncSandbox({name: {"scratch": str(tmp_path / "scratch")}}, spec) as box:
        await box.start()
        result = await box.exec("cat given.txt; echo $A; exit 4")
        assert (result.stdout, result.return_code, result.error_type) == ("hello1\n", 4, None)
        late = await box.exec("setsid sleep 100 & sleep 100", timeout_s=0.5, env={"MARK": mark})
        assert (late.error_type, processes_with(mark)) == ("timeout", [])
        await box.upload(tmp_path / "in", "a/b")
        await box.exec("cp a/b c")
        await box.download("c", tmp_path / "out")
        assert (tmp_path / "out").read_bytes() == bytes(range(256))
        assert await box.status() is base.SandboxStatus.RUNNING
        with pytest.raises(ValueError, match="user"):
            await box.exec("true", user="root")
    assert await box.status() is base.SandboxStatus.STOPPED
    assert [path.name for path in (tmp_path / "scratch").iterdir()] == []


@pytest.mark.parametrize("name", NAMES)
async def test_gym_gets_its_own_error_for_what_cannot_be_had(name: str, tmp_path: Path) -> None:
    provider = gym.create_provider({name: {"scratch": str(tmp_path)}})
    for asked, named in ({"image": "x"}, "image"), ({"resources": {"cpu": 2}}, "resources.cpu"):
        with pytest.raises(base.SandboxCreateError, match=named):
            await provider.create(gym.SandboxSpec(**asked))


@pytest.mark.parametrize("name", NAMES)
async def test_stopping_a_gym_sandbox_of_ours_ends_what_runs_in_it(name: str) -> None:
    mark = secrets.token_hex(8)
    box = gym.AsyncSandbox({name: {}}, gym.SandboxSpec())
    await box.start()
    task = asyncio.create_task(box.exec("setsid sleep 100 & sleep 100", env={"MARK": mark}))
    await processes_appear(mark)
    await box.stop()
    assert (await task).error_type == "sandbox" and processes_with(mark) == []


def sandbox(folder: Path, provider: str, **spec: Any) -> GymSandbox:
    folder.mkdir(exist_ok=True)
    return GymSandbox(SandboxSpec(**{"id": "g", "scratch": folder, "options": {"provider": provider}, **spec}))


@pytest.mark.parametrize("provider", [pytest.param("local", marks=has_local), pytest.param("polar_local", marks=needs_bwrap)])
async def test_a_gym_provider_is_a_sandbox_of_ours(provider: str, tmp_path: Path) -> None:
    mark = secrets.token_hex(8)
    scratch = tmp_path / "scratch"
    box = sandbox(scratch, provider)
    try:
        await box.start()
        await box.put({f"{WORKDIR}/d/run": b"#!/bin/sh\ncat; printf '\\377' >> out; exit 3"}, executable=[f"{WORKDIR}/d/run"])
        result = await box.exec(["d/run"], timeout=30, stdin=b"\xff\0in")
        assert (result.exit_code, result.stdout) == (3, b"\xff\0in") and await box.get(f"{WORKDIR}/out") == b"\xff"
        late = await box.exec(["sh", "-c", "(setsid sleep 100 &); sleep 100"], timeout=1, env={"MARK": mark})
        assert late.timed_out and processes_with(mark) == []
        await box.snapshot(WORKDIR, tmp_path / "copy")
        assert (tmp_path / "copy/d/run").stat().st_mode & 0o111 == 0o111 and (tmp_path / "copy/out").read_bytes() == b"\xff"
        task = asyncio.create_task(box.exec(["sh", "-c", "setsid sleep 100 & sleep 100"], timeout=60, env={"MARK": mark}))
        await processes_appear(mark)
        await box.stop()
        with pytest.raises(SandboxError):
            await task
        assert processes_with(mark) == []
    finally:
        await box.stop()
    assert list(scratch.iterdir()) == []


@needs_bwrap
async def test_without_a_way_to_the_proxy_the_start_fails_and_says_what_to_set(tmp_path: Path) -> None:
    box = sandbox(tmp_path / "scratch", "polar_local", proxy_url="http://127.0.0.1:9")
    try:
        with pytest.raises(SandboxError, match="proxy_url"):
            await box.start()
    finally:
        await box.stop()


@has_local
async def test_whole_rollouts_run_and_are_verified_in_sandboxes_of_gyms_local_provider(tmp_path: Path) -> None:
    words = overrides(write_tasks(tmp_path), "sandbox=gym", "sandbox.options.provider=local", turns=3)
    run = Run(check(load_settings(None, words)))
    finished = await run.run()
    rewards = {(t.task_id, t.reward) for t in finished.trajectories}
    assert rewards == {("writes", 1.0), ("fails", 0.0)} and len(finished.trajectories) == 4
    assert finished.report["audited"] and finished.report["ok"], json.dumps(finished.report)
    assert all(trajectory.traces and trajectory.traces[0].loss_mask.any() for trajectory in finished.trajectories)
    assert finished.report["drift_tokens"] == 0
