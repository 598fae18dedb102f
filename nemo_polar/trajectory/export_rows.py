# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What a row of a token export is: one trace with the reward of its rollout, exactly as the trajectory file holds it.

Advantages are not in it, as they depend on which rollouts are compared.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from nemo_polar.types import Trace, Trajectory

FORMAT = "polar-export"
VERSION = 1

Row: TypeAlias = dict[str, Any]


def about(trajectory: Trajectory, trace: Trace) -> Row:
    """What rows of every kind say of where they come from."""
    return {
        "trace_id": trace.id,
        "rollout_id": trajectory.rollout_id,
        "task_id": trajectory.task_id,
        "group_id": trajectory.group_id,
        "status": trajectory.status.value,
        "reward": trajectory.reward,
        "components": dict(trajectory.components),
        "kind": trace.kind.value,
    }


def token_row(trajectory: Trajectory, trace: Trace) -> Row:
    """A trace as a row. Its arrays stay arrays: ``token_ids`` and ``weights_version`` int32[N], ``logprobs`` float32[N],
    ``loss_mask`` bool[N]; each writer has its own form for them."""
    return {
        **about(trajectory, trace),
        "parent": trace.parent,
        "fork_reason": None if trace.fork_reason is None else trace.fork_reason.value,
        "spans": [{"start": s.start, "end": s.end, "role": s.role, "turn": s.turn} for s in trace.spans],
        "token_ids": trace.token_ids,
        "loss_mask": trace.loss_mask,
        "logprobs": trace.logprobs,
        "weights_version": trace.weights_version,
    }
