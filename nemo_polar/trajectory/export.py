# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Trajectories as JSON lines for other programs: one row a trace, arrays as plain lists, no base64.

An export is a view: nothing reads it back. Advantages are not in it, as they depend on which rollouts are compared.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

from nemo_polar.errors import JournalError
from nemo_polar.trajectory.codec import dumps
from nemo_polar.types import Kind, Status, Trace, Trajectory

FORMAT = "polar-export"
VERSION = 1


def export_row(trajectory: Trajectory, trace: Trace) -> dict[str, Any]:
    """One trace with the reward of its rollout, as plain JSON data."""
    return {
        "trace_id": trace.id,
        "rollout_id": trajectory.rollout_id,
        "task_id": trajectory.task_id,
        "group_id": trajectory.group_id,
        "status": trajectory.status.value,
        "reward": trajectory.reward,
        "components": dict(trajectory.components),
        "kind": trace.kind.value,
        "parent": trace.parent,
        "fork_reason": None if trace.fork_reason is None else trace.fork_reason.value,
        "spans": [{"start": s.start, "end": s.end, "role": s.role, "turn": s.turn} for s in trace.spans],
        "token_ids": trace.token_ids.tolist(),
        "loss_mask": trace.loss_mask.astype("u1").tolist(),
        "logprobs": trace.logprobs.tolist(),
        "weights_version": trace.weights_version.tolist(),
    }


def export_jsonl(
    trajectories: Iterable[Trajectory],
    target: Path,
    *,
    min_reward: float | None = None,
    kinds: Collection[Kind] | None = None,
    statuses: Collection[Status] | None = None,
    trained_only: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Write ``target``, whole or not at all, and return its number of rows.

    Args:
        min_reward: leave out rollouts with less, or with no reward.
        kinds: traces of these kinds only.
        statuses: rollouts that ended so; by default every way that is about the policy (rule 4: no infrastructure failures).
        trained_only: leave out traces whose loss mask is all zero.
        progress: called after each trajectory with (trajectories read, rows written).

    Raises:
        JournalError: the disk refused it, or ``trajectories`` cannot be read.
    """
    target = Path(target)
    draft = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    rows = 0
    try:
        with draft.open("wb") as file:
            file.write(dumps({"format": FORMAT, "version": VERSION}).encode() + b"\n")
            for number, trajectory in enumerate(trajectories, start=1):
                if _wanted(trajectory, min_reward, statuses):
                    for trace in trajectory.traces:
                        if (kinds is None or trace.kind in kinds) and (not trained_only or trace.loss_mask.any()):
                            file.write(dumps(export_row(trajectory, trace)).encode() + b"\n")
                            rows += 1
                if progress is not None:
                    progress(number, rows)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(target)
    except OSError as exc:
        raise JournalError(f"{target} cannot be written: {exc}") from exc
    finally:
        draft.unlink(missing_ok=True)
    return rows


def _wanted(trajectory: Trajectory, min_reward: float | None, statuses: Collection[Status] | None) -> bool:
    if trajectory.status.infra if statuses is None else trajectory.status not in statuses:
        return False
    return min_reward is None or (trajectory.reward is not None and trajectory.reward >= min_reward)
