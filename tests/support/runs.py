# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Synthetic runs: random trees of turns, and an engine log that does not come from them.

A ``FakePolicy`` draws every sample and keeps, like a real engine, the whole prompt it was asked with; the turns keep deltas. So
the log and the tree are two accounts of the same calls.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from nemo_polar.capture.journal import CallRow, Journal, SessionRow
from nemo_polar.engines.log import EngineCall, EngineLog
from nemo_polar.settings import TracePolicy
from nemo_polar.trajectory.build import build_traces
from nemo_polar.trajectory.store import (
    ENGINE_LOG,
    JOURNAL,
    TRAJECTORIES,
    Manifest,
    append_trajectory,
    write_manifest,
)
from nemo_polar.types import (
    FinishReason,
    ForkReason,
    Kind,
    Message,
    Role,
    Sample,
    SamplingParams,
    Status,
    Text,
    TokenIds,
    ToolCall,
    Trajectory,
    Turn,
    as_ids,
    as_logprobs,
)

VOCABULARY = 1000


@dataclass
class FakePolicy:
    """Draws random tokens and logs what it was given."""

    rng: random.Random
    log: list[EngineCall] = field(default_factory=list)
    version: int = 0

    def draw(self, request_id: str, prompt: TokenIds, count: int, finish: FinishReason, sampling: SamplingParams) -> Sample:
        ids = as_ids([self.rng.randrange(VOCABULARY) for _ in range(count)])
        logprobs = as_logprobs([-self.rng.random() * 5 for _ in range(count)])
        self.log.append(
            EngineCall(
                request_id,
                prompt.copy(),
                ids.copy(),
                logprobs.copy(),
                finish.value,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                weights_version=self.version,
            )
        )
        return Sample(ids, logprobs, finish, weights_version=(self.version, self.version), sampling=sampling)


def draw_tree(policy: FakePolicy, session_id: str, size: int, *, plain: bool = False, branching: int = 3) -> list[Turn]:
    """A random tree of ``size`` turns, each under one of the last ``branching`` or, with branching over 1, at times a root.

    ``plain``: everything delivered, untempered and finished, kind main.
    """
    rng = policy.rng
    turns: list[Turn] = []
    whole: list[TokenIds] = []
    for i in range(size):
        parent = rng.choice(turns[-branching:]) if turns and (branching == 1 or rng.random() < 0.85) else None
        continues = parent is not None and parent.sample.finish_reason is FinishReason.ABORT and rng.random() < 0.7
        delta = as_ids([rng.randrange(VOCABULARY) for _ in range(0 if continues else rng.randint(1, 12))])
        prompt = delta if parent is None else as_ids(np.concatenate([whole[parent.id], delta]))
        finish, sampling, kind, delivered = FinishReason.STOP, SamplingParams(), Kind.MAIN, True
        if not plain:
            finish = rng.choice([FinishReason.STOP, FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORT])
            sampling = SamplingParams(temperature=0.5) if rng.random() < 0.1 else sampling
            kind = rng.choice([Kind.MAIN, Kind.MAIN, Kind.SUBAGENT, Kind.COMPACTION, Kind.AUXILIARY])
            delivered = rng.random() < 0.8
            policy.version += rng.random() < 0.1
        request_id = f"{session_id}-q{i}"
        sample = policy.draw(request_id, prompt, rng.randint(0 if not plain else 1, 9), finish, sampling)
        fork = None
        if parent is None:
            fork = ForkReason.NEW if not turns else rng.choice([ForkReason.EDITED, ForkReason.TOOLS, ForkReason.NEW])
        turns.append(
            Turn(
                id=i,
                session_id=session_id,
                parent=None if parent is None else parent.id,
                prompt_delta=delta,
                sample=sample,
                reply=Message(Role.ASSISTANT, (Text(f"reply {i}"), ToolCall(f"c{i}", "shell", "{}", rng.random() < 0.1))),
                request_id=request_id,
                call_id=f"{session_id}-c{i}",
                kind=kind,
                delivered=delivered,
                fork_reason=fork,
                fork_of=rng.randrange(i) if fork in (ForkReason.EDITED, ForkReason.TOOLS) else None,
                continues=continues,
                prompt_len=len(prompt),
            )
        )
        whole.append(as_ids(np.concatenate([prompt, sample.token_ids])))
    return turns


def trajectory_of(rollout_id: str, turns: list[Turn], policy: TracePolicy, status: Status = Status.COMPLETED) -> Trajectory:
    """What a rollout worker would make of the turns."""
    built = build_traces(rollout_id, turns, policy, infra=status.infra)
    reward = None if status.infra else 1.0
    return Trajectory(rollout_id, "task", "group", status, built.traces, reward, {"passed": 1.0}, built.masked)


def call_row(turn: Turn) -> CallRow:
    """The row that the proxy writes before it asks the engine."""
    fork = None if turn.fork_reason is None else turn.fork_reason.value
    return CallRow(
        turn.call_id,
        turn.session_id,
        turn.request_id,
        1.0,
        "openai_chat",
        turn.parent,
        fork,
        turn.prompt_len,
        True,
        (),
        0,
        "main",
    )


def session_row(session_id: str, rollout_id: str, attempt: int = 0) -> SessionRow:
    return SessionRow(session_id, rollout_id, "task", "group", attempt, 1.0, "model", "codec", b"\x01\x02", {"node": "n0"})


def make_run(
    run_dir: Path,
    *,
    seed: int = 0,
    rollouts: int = 3,
    size: int = 14,
    plain: bool = False,
    branching: int = 3,
    policy: TracePolicy | None = None,
) -> dict[str, list[Turn]]:
    """Write a whole run folder. Returns the turns by rollout id."""
    trace_policy = policy or TracePolicy()
    fake = FakePolicy(random.Random(seed))
    made = {f"r{n}": draw_tree(fake, f"s{n}", size, plain=plain, branching=branching) for n in range(rollouts)}
    run_dir.mkdir(parents=True, exist_ok=True)
    log = EngineLog(run_dir / ENGINE_LOG)
    for call in fake.log:
        log.append(call)
    log.append(EngineCall("polar-probe-1", as_ids([1]), as_ids([2]), as_logprobs([-1.0]), "stop"))
    log.close()

    async def record() -> None:
        journal = Journal(run_dir / JOURNAL)
        journal.start()
        for n, (rollout_id, turns) in enumerate(made.items()):
            await journal.add_session(session_row(f"s{n}", rollout_id))
            for turn in turns:
                journal.open_call(call_row(turn))
                await journal.add_turn(replace(turn, delivered=False))
                if turn.delivered:
                    journal.mark_delivered(turn.session_id, turn.id)
                await journal.set_kind(turn.session_id, turn.id, turn.kind)
            await journal.close_session(f"s{n}", 2.0, "closed")
            await journal.add_result(rollout_id, "group", "task", 0, {"status": "completed", "reward": 1.0})
        await journal.stop()

    asyncio.run(record())
    for rollout_id, turns in made.items():
        append_trajectory(run_dir / TRAJECTORIES, trajectory_of(rollout_id, turns, trace_policy))
    write_manifest(
        run_dir,
        Manifest(
            created_at=1.0,
            model="model",
            codec="codec",
            codec_fingerprint="0102",
            thinking_retention="all",
            traces=trace_policy,
        ),
    )
    return made
