# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Finished rollouts made up for the tests of what Gym stores: random trees, and small ones written out turn by turn.

Needs nothing but the package, as it is also used in Gym's own environments.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from nemo_polar.rollout.rolled import Rolled
from nemo_polar.settings import TracePolicy
from nemo_polar.trajectory.build import build_traces
from nemo_polar.trajectory.records import Request
from nemo_polar.types import (
    FinishReason,
    ForkReason,
    Image,
    MaskReason,
    Message,
    Part,
    Reasoning,
    Role,
    Sample,
    Status,
    Text,
    ToolCall,
    ToolResult,
    ToolSpec,
    Trajectory,
    Turn,
    as_ids,
    as_logprobs,
)
from tests.support.runs import FakePolicy, draw_tree

ROW: dict[str, Any] = {
    "responses_create_params": {"input": [{"role": "user", "content": "Do it."}], "parallel_tool_calls": False},
    "agent_ref": {"type": "responses_api_agents", "name": "polar_agent"},
    "verifier_metadata": {"tests": ["a"]},
    "_ng_task_index": 3,
    "_ng_rollout_index": 1,
}

SAID: tuple[Part, ...] = (
    Text("plain"),
    Text("half a pair: \ud83d"),
    Reasoning("I think."),
    Image("data:image/png;base64,AA==", "image/png"),
    ToolCall("given", "look", '{"at": 1}'),
    ToolResult("c0", (Text("out\n"), Image("file://x"))),
    ToolResult("c1", (), is_error=True),
)


def drawn(tree: tuple[int, int], policy: TracePolicy | None = None) -> Rolled:
    """A random rollout: seed and number of turns. Some of its requests are not known."""
    fake = FakePolicy(random.Random(tree[0]))
    rng = random.Random(tree[0] + 1)
    turns = [replace(turn, reply=_reply(rng, turn.id)) for turn in draw_tree(fake, "s", tree[1])]
    requests = {turn.id: _request(rng) for turn in turns if not turn.continues and rng.random() < 0.9}
    return rolled(turns, requests, policy)


def rolled(turns: list[Turn], requests: dict[int, Request] | None = None, policy: TracePolicy | None = None) -> Rolled:
    """A rollout of these turns that was scored 0.5."""
    built = build_traces("r", turns, policy or TracePolicy())
    made = Trajectory("r", "t", "g", Status.COMPLETED, built.traces, 0.5, {"passed": 1.0}, built.masked, {"attempts": 2.0})
    return Rolled(made, tuple(turns), requests or {}, "f" * 16)


def failed(status: Status, error: str | None = "it is gone") -> Rolled:
    """A rollout that ended in a failure of infrastructure after one call."""
    turns = [turn(0)]
    built = build_traces("r", turns, TracePolicy(), infra=True)
    made = Trajectory("r", "t", "g", status, built.traces, None, {}, {MaskReason.INFRA: 2}, {"attempts": 3.0}, error)
    return Rolled(made, tuple(turns), {}, "f" * 16)


def turn(
    id: int, parent: int | None = None, *parts: Part, prompt: tuple[int, ...] = (7, 8, 9), sampled: int = 2, **more: Any
) -> Turn:
    """A delivered turn that drew ``sampled`` tokens: 100 times its id, and up."""
    finish = more.pop("finish", FinishReason.STOP)
    logprobs = [-0.1 * (n + 1) for n in range(sampled)]
    sample = Sample(as_ids([100 * id + n for n in range(sampled)]), as_logprobs(logprobs), finish, started_at=50.0 + id)
    fork = ForkReason.NEW if parent is None else None
    defaults: dict[str, Any] = {"delivered": True, "fork_reason": fork, "prompt_len": 3}
    delta = () if more.get("continues") else prompt
    reply = Message(Role.ASSISTANT, parts or (Text(f"reply {id}"),))
    return Turn(id, "s", parent, as_ids(delta), sample, reply, f"q{id}", f"c{id}", **{**defaults, **more})


def asked(*messages: Message, tools: tuple[ToolSpec, ...] | None = None) -> Request:
    return Request(messages, tools)


def _reply(rng: random.Random, number: int) -> Message:
    parts: tuple[Part, ...] = (
        Reasoning("Hm. "),
        Reasoning("So."),
        Text(f"reply {number}"),
        Text(""),
        ToolCall(f"call{number}", "shell", '{"cmd": "ls', malformed=True),
    )
    return Message(Role.ASSISTANT, tuple(part for part in parts if rng.random() < 0.6))


def _request(rng: random.Random) -> Request:
    messages = tuple(
        Message(rng.choice(list(Role)), tuple(rng.choices(SAID, k=rng.randint(0, 3)))) for _ in range(rng.randint(0, 3))
    )
    tools = (
        ToolSpec("shell", "Runs.", {"type": "object", "properties": {"n": {"maximum": 2**70}}}),
        ToolSpec("look", strict=True),
    )
    return Request(messages, tools)
