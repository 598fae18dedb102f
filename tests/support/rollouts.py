# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Fakes for the layers around the rollout pipeline: what they open is counted, so that a test sees what was left open."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from nemo_polar.errors import SandboxError
from nemo_polar.harnesses.base import Endpoint, HarnessTask, Install, Outcome, Plan
from nemo_polar.rollout.attempt import Identity, Workshop
from nemo_polar.rollout.pipeline import Earlier, Pipeline
from nemo_polar.rollout.roller import Built
from nemo_polar.rollout.stages import Stages
from nemo_polar.rollout.tasks import LoadedTask, Task
from nemo_polar.sandboxes.base import ExecResult, Sandbox, SandboxSpec
from nemo_polar.settings import RunSettings
from nemo_polar.trajectory.build import build_traces
from nemo_polar.types import FinishReason, Message, Role, Sample, Text, Trajectory, Turn, as_ids, as_logprobs
from nemo_polar.verifiers.base import Evidence, Verdict

Hook = Callable[[str], Awaitable[Any]]
"""Called with a sandbox's or session's name where something can go wrong; raises or waits to make it so."""


async def nothing(_: str) -> None:
    return None


def settings(**changes: Any) -> RunSettings:
    base: dict[str, Any] = {
        "name": "test",
        "group_size": 2,
        "seconds": 30,
        "env": {"tasks": ["unused.yaml"], "budget": {"seconds": 5}},
        "harness": {"name": "fake"},
        "sandbox": {"name": "fake"},
        "engine": {"name": "fake"},
        "policy": {"name": "fake", "codec": {"tokenizer": "unused"}},
        "stages": {"prepare": 2, "run": 2, "verify": 2, "build": 1, "verify_seconds": 1},
    }
    return RunSettings.model_validate(base | changes)


def task(name: str = "t", **fields: Any) -> LoadedTask:
    block = {"id": name, "instruction": "do", "verifier": {"type": "fake"}, "files": {"a.txt": "A"}} | fields
    return LoadedTask(Task.model_validate(block), Path())


def turn(session_id: str, prompt: Sequence[int] = (1, 2, 3)) -> Turn:
    sample = Sample(as_ids([7, 8]), as_logprobs([-0.5, -0.25]), FinishReason.STOP)
    reply = Message(Role.ASSISTANT, (Text("ok"),))
    return Turn(0, session_id, None, as_ids(prompt), sample, reply, "r0", "c0", delivered=True, prompt_len=len(prompt))


@dataclass
class FakeRecord:
    turns: list[Turn]
    calls: int = 1
    ambiguous: int = 0
    infra_error: str | None = None
    budget_exhausted: str | None = None
    counters: dict[str, int] = field(default_factory=dict)


@dataclass
class FakeSession:
    id: str
    secret: str = "secret"


@dataclass
class FakeWorld:
    """The shared state of all fakes of one test."""

    on_start: Hook = nothing
    on_exec: Hook = nothing
    on_verify: Hook = nothing
    on_stop: Hook = nothing
    on_close: Callable[[str], FakeRecord] = lambda name: FakeRecord([turn(name)])
    exec_result: ExecResult = field(default_factory=lambda: ExecResult(0, b"out", b""))
    outcome: Outcome = field(default_factory=lambda: Outcome(True, "done"))
    reward: float = 1.0
    spent: asyncio.Event = field(default_factory=asyncio.Event)
    open_sandboxes: set[str] = field(default_factory=set)
    stopped: Counter[str] = field(default_factory=Counter)
    open_sessions: set[str] = field(default_factory=set)
    sessions: list[dict[str, Any]] = field(default_factory=list)
    workspaces: list[dict[str, bytes]] = field(default_factory=list)
    specs: list[SandboxSpec] = field(default_factory=list)
    url: str = "http://127.0.0.1:1"
    socket: Path | None = None

    # the capture proxy

    async def open_session(self, **about: Any) -> FakeSession:
        self.sessions.append(about)
        name = f"{about['rollout_id']}.a{about['attempt']}"
        self.open_sessions.add(name)
        return FakeSession(name)

    async def close_session(self, session_id: str, *, grace: float = 0.0) -> FakeRecord:
        await asyncio.sleep(0)
        self.open_sessions.remove(session_id)
        return self.on_close(session_id)

    async def budget_spent(self, session_id: str) -> str:
        await self.spent.wait()
        return "turns"


@dataclass
class FakeSandbox:
    world: FakeWorld
    spec: SandboxSpec
    name: ClassVar[str] = "fake"
    isolated: ClassVar[bool] = True
    proxy_url: str = "http://127.0.0.1:8080"
    files: dict[str, bytes] = field(default_factory=dict)

    async def start(self) -> None:
        self.world.open_sandboxes.add(self.spec.id)
        self.world.specs.append(self.spec)
        await self.world.on_start(self.spec.id)

    async def exec(self, argv: Sequence[str], *, timeout: float, **_: Any) -> ExecResult:
        if argv[0] == "tar":
            return ExecResult(0, b"", b"")
        assert self.spec.id in self.world.open_sandboxes
        await self.world.on_exec(self.spec.id)
        return self.world.exec_result

    async def put(self, files: Mapping[str, bytes], *, executable: Sequence[str] = ()) -> None:
        self.files |= files

    async def get(self, path: str, *, max_bytes: int = 0) -> bytes:
        return self.files[path]

    async def snapshot(self, path: str, target: Path) -> None:
        if self.spec.id not in self.world.open_sandboxes:
            raise SandboxError("stopped already")
        _write(target, {n.removeprefix(f"{path}/"): data for n, data in self.files.items() if n.startswith(f"{path}/")})

    async def stop(self) -> None:
        await self.world.on_stop(self.spec.id)
        self.world.open_sandboxes.discard(self.spec.id)
        self.world.stopped[self.spec.id] += 1


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    folder.mkdir(parents=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)


@dataclass
class FakeHarness:
    world: FakeWorld
    name: ClassVar[str] = "fake"
    dialect: ClassVar[str] = "openai_chat"
    install: ClassVar[Install] = Install("none")

    def plan(self, endpoint: Endpoint, task: HarnessTask) -> Plan:
        return Plan(("agent", task.instruction), {"KEY": endpoint.secret})

    def outcome(self, exit_code: int, stdout: bytes, stderr: bytes) -> Outcome:
        return self.world.outcome


@dataclass
class FakeVerifier:
    world: FakeWorld
    name: ClassVar[str] = "fake"

    async def verify(self, evidence: Evidence) -> Verdict:
        assert isinstance(evidence.sandbox, FakeSandbox)
        await self.world.on_verify(evidence.sandbox.spec.id)
        return Verdict(self.world.reward, {"tests": self.world.reward})


@dataclass
class FakeRecorder:
    attempts: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)
    trajectories: dict[str, Trajectory] = field(default_factory=dict)
    on_trajectory: Hook = nothing

    async def kinds(self, turns: Sequence[Turn]) -> None:
        await asyncio.sleep(0)

    async def attempt(self, who: Identity, number: int, result: dict[str, Any]) -> None:
        await asyncio.sleep(0)
        self.attempts[who.rollout_id, number] = result

    async def trajectory(self, trajectory: Trajectory, attempt: int) -> None:
        await self.on_trajectory(trajectory.rollout_id)
        assert trajectory.rollout_id not in self.trajectories
        self.trajectories[trajectory.rollout_id] = trajectory


def pipeline(
    world: FakeWorld,
    recorder: FakeRecorder,
    folder: Path,
    tasks: Sequence[LoadedTask],
    *,
    earlier: Earlier | None = None,
    **changes: Any,
) -> Pipeline:
    chosen = settings(**changes)

    def make_sandbox(spec: SandboxSpec) -> Sandbox:
        return FakeSandbox(world, spec)

    def build(rollout_id: str, turns: list[Turn], infra: bool) -> Built:
        built = build_traces(rollout_id, turns, chosen.traces, infra=infra)
        return built.traces, built.masked

    shop = Workshop(
        settings=chosen,
        capture=world,
        harness=FakeHarness(world),
        make_sandbox=make_sandbox,
        make_verifier=lambda _: FakeVerifier(world),
        stages=Stages(chosen.stages),
        scratch=folder / "scratch",
        logs=folder / "logs",
        context=8192,
    )
    return Pipeline(shop, tasks, build, recorder, earlier)


def trained_ids(trajectory: Trajectory) -> list[int]:
    return [int(i) for trace in trajectory.traces for i in trace.token_ids[np.flatnonzero(trace.loss_mask)]]
