# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A rollout that has ended as the result that NeMo Gym stores: a scored row, or a failure that is never a score (rule 4).

What Gym does with either was read in ``nemo_gym/rollout_collection.py`` of 0.4.0 and 0.7.0; ``docs/gym-format.md`` says it, and
specifies the extra key ``polar``. Pure: plain data in and out, without an import of Gym.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nemo_polar.errors import ConfigError, GymError
from nemo_polar.gym.contiguity import check_contiguous
from nemo_polar.gym.items import Written, write_items
from nemo_polar.gym.main_trace import MainChoice, choose, leaf_of, own, starts_with
from nemo_polar.gym.plain import plain
from nemo_polar.gym.trace_json import main_to_json, trace_to_json
from nemo_polar.rollout.rolled import Rolled
from nemo_polar.rollout.roller import first_root
from nemo_polar.trajectory.records import Request
from nemo_polar.types import Status, Trace, Turn

FORMAT = "polar-gym"
VERSION = 1
KEY = "polar"
"""The extra key of a result, beside Gym's own."""

FAILURE_CLASS = "_ng_failure_class"
"""Gym writes a result that has this key into its failures file, whatever else is in it."""
NO_PERSIST = "_ng_no_persist"
"""Gym writes a result that has this key nowhere: a resumed collection runs the row again, as if it never had been."""

FAILURE_KINDS: Mapping[Status, str] = {
    Status.SANDBOX_FAILED: "provider_unavailable",
    Status.VERIFIER_FAILED: "verifier_error",
    Status.CANCELLED: "cancelled",
}
"""Statuses for which Gym 0.7.0 has a name (``nemo_gym/failure_kinds.py``). The others go by ``polar:<status>``."""

OURS = frozenset(
    (
        "response",
        "reward",
        "reward_components",
        "mask_sample",
        "failure_kind",
        "failure_reason",
        KEY,
        FAILURE_CLASS,
        NO_PERSIST,
        "_ng_failure_terminal",
        "_ng_failure_message",
    )
)
"""Keys of a result that are not the row's."""


def check_row(row: Mapping[str, Any]) -> None:
    """Refuse a dataset row whose data a result would have to drop. For before a rollout is begun.

    Raises:
        ConfigError: it has keys of a result; they are named.
    """
    if taken := sorted(OURS & row.keys()):
        raise ConfigError(f"the row has {', '.join(taken)}, which a result writes itself; rename them in the dataset")


def gym_result(rolled: Rolled, row: Mapping[str, Any], *, model: str, main: MainChoice = "first_prompt") -> dict[str, Any]:
    """What an agent answers to ``/run`` for a finished rollout: ``row`` with Gym's keys and ``polar``.

    Args:
        rolled: with its turns, and with the requests that are known.
        row: the body of ``/run``. Its keys survive, but for those in ``OURS``.
        model: the name the model goes by.
        main: which trace goes into ``response``.

    Raises:
        GymError: the rollout contradicts itself, or a number is not finite.
    """
    trajectory = rolled.trajectory
    if trajectory.status.infra or trajectory.reward is None:
        return _failure(rolled, row)
    for name, value in {"reward": trajectory.reward, **trajectory.components, **trajectory.metrics}.items():
        if not math.isfinite(value):
            raise GymError(f"{trajectory.rollout_id}: {name} is {value}, for which JSON has no number")
    try:
        response, told, traces = _response(rolled, row, model, main)
    except GymError as exc:
        raise GymError(f"{trajectory.rollout_id}: {exc}") from exc
    return {
        **_kept(row),
        "response": response,
        "reward": float(trajectory.reward),
        "reward_components": dict(trajectory.components),
        "mask_sample": False,
        "failure_kind": None,
        "failure_reason": None,
        KEY: {**_about(rolled), "main": told, "traces": [trace_to_json(trace) for trace in traces]},
    }


def _failure(rolled: Rolled, row: Mapping[str, Any]) -> dict[str, Any]:
    """A result that Gym keeps out of scores. It has neither a reward nor a response: 0.4.0 averages whatever reward it sees."""
    trajectory = rolled.trajectory
    status = trajectory.status
    kind = FAILURE_KINDS.get(status, f"polar:{status.value}")
    message = trajectory.error or status.value
    if not status.infra:
        kind, message = FAILURE_KINDS[Status.VERIFIER_FAILED], f"the rollout ended as {status.value} without a reward"
    return {
        **failure_row(row, kind, plain(message)),
        **({NO_PERSIST: True} if status is Status.CANCELLED else {}),
        KEY: {**_about(rolled), "main": None, "traces": []},
    }


def failure_row(row: Mapping[str, Any], kind: str, message: str, *, terminal: bool = False) -> dict[str, Any]:
    """Gym's failure for a row whose rollout came to no result of its own; with no reward, and no response.

    ``terminal``: a resumed collection need not run the row again.
    """
    return {
        **_kept(row),
        "mask_sample": True,
        "failure_kind": kind,
        "failure_reason": message,
        FAILURE_CLASS: kind,
        "_ng_failure_terminal": terminal,
        "_ng_failure_message": message,
    }


def _kept(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in OURS}


def _about(rolled: Rolled) -> dict[str, Any]:
    """What ``polar`` says of every rollout."""
    t = rolled.trajectory
    return {
        "format": FORMAT,
        "version": VERSION,
        "rollout_id": t.rollout_id,
        "group_id": t.group_id,
        "task_id": t.task_id,
        "status": t.status.value,
        "error": plain(t.error),
        "attempts": int(t.metrics.get("attempts", 1)),
        "first_prompt": rolled.first_prompt,
        "masked": {reason.value: count for reason, count in t.masked.items()},
        "metrics": {name: value for name, value in t.metrics.items() if math.isfinite(value)},
    }


# --- the response -----------------------------------------------------------------------------------------------------


def _response(
    rolled: Rolled, row: Mapping[str, Any], model: str, choice: MainChoice
) -> tuple[dict[str, Any], dict[str, Any], tuple[Trace, ...]]:
    """The response, what ``polar.main`` says of its trace, and the other traces as they are then trained."""
    trajectory, turns = rolled.trajectory, rolled.turns
    chosen = choose(trajectory.traces, turns, choice)
    main, *others = own(trajectory.traces, chosen) if chosen is not None else (None,)
    line = _line(rolled, main)
    written = write_items(line, rolled.requests, main)
    chain = check_contiguous(written.items)
    if chain.generations != written.generations or (main is not None and len(chain.logprobs) != main.loss_mask.sum()):
        raise GymError("the response does not say all that its trace trains")
    asked = _asked(row)
    cut = bool(written.calls) and written.calls[-1].cut
    response = {
        "id": f"resp_{plain(trajectory.rollout_id)}",
        "object": "response",
        "created_at": min((turn.sample.started_at for turn in turns), default=0.0),
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "error": None,
        "model": model,
        "output": written.items,
        "parallel_tool_calls": asked.get("parallel_tool_calls", True),
        "tool_choice": asked.get("tool_choice", "auto"),
        "tools": list(_tools(rolled.requests.get(line[0].id) if line else None)),
        "temperature": line[0].sample.sampling.temperature if line else None,
        "top_p": line[0].sample.sampling.top_p if line else None,
        "usage": _usage(turns),
    }
    return response, _main(main, written, turns), tuple(t for t in others if t is not None)


def _asked(row: Mapping[str, Any]) -> Mapping[str, Any]:
    asked = row.get("responses_create_params")
    return {name: value for name, value in asked.items() if value is not None} if isinstance(asked, Mapping) else {}


def _line(rolled: Rolled, main: Trace | None) -> list[Turn]:
    """The turns of the trace; without one (all were dropped for their length), of the newest line from the first prompt."""
    by_id = {turn.id: turn for turn in rolled.turns}
    if main is not None:
        line = _up(by_id, leaf_of(main))
        if sum(map(len, line)) != len(main):
            raise GymError(f"trace {main.id} is not made of the turns that came with it")
        return line
    root = first_root(rolled.turns)
    for turn_id in sorted(by_id, reverse=True) if root is not None else ():
        line = _up(by_id, turn_id)
        if line[0] is root:
            return line
    return []


def _up(by_id: Mapping[int, Turn], leaf: int) -> list[Turn]:
    line: list[Turn] = []
    at: int | None = leaf
    while at is not None:
        if at not in by_id:
            raise GymError(f"turn {at} did not come with the rollout's traces")
        line.append(by_id[at])
        at = line[-1].parent
    return line[::-1]


def _main(main: Trace | None, written: Written, turns: Sequence[Turn]) -> dict[str, Any]:
    """``polar.main``: the trace in the response, and how much of it is trained."""
    root = first_root(turns)
    starts = main is not None and root is not None and starts_with(main, root)
    first = written.generations[0][0] if written.generations else None
    told: dict[str, Any] = {"id": None} if main is None else main_to_json(main, written.generations)
    return {
        **told,
        "calls": len(written.calls),
        "trained_calls": sum(1 for item in written.items if "generation_token_ids" in item),
        "trained_tokens": sum(end - start for start, end in written.generations),
        "calls_without_messages": sum(call.request is None for call in written.calls[1:]),
        "first_prompt": starts and root is not None and first == len(root.prompt_delta),
        "note": _note(main, written),
    }


def _note(main: Trace | None, written: Written) -> str | None:
    """Why the response has no token fields; None when it has."""
    if written.generations:
        return None
    if not written.calls:
        return "the harness made no call on its main line"
    return "no trace was kept" if main is None else "no sample on this trace is trained"


def _tools(request: Request | None) -> Iterator[dict[str, Any]]:
    """What the harness offered, as function tools (a freeform tool's text stands under one parameter)."""
    for tool in (request.tools or ()) if request is not None else ():
        yield {
            "type": "function",
            "name": plain(tool.name),
            "description": plain(tool.description),
            "parameters": plain(tool.parameters),
            "strict": tool.strict,
        }


def _usage(turns: Sequence[Turn]) -> dict[str, Any]:
    """Tokens of all model calls of the rollout, side lines included. A sample that was continued had its prompt once. What an
    engine cached, and which tokens were reasoning, is not recorded."""
    prompts = sum(turn.prompt_len for turn in turns if not turn.continues)
    drawn = sum(len(turn.sample) for turn in turns)
    return {
        "input_tokens": prompts,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": drawn,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompts + drawn,
    }
