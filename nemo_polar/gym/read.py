# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Reading a Gym result back: all traces of a rollout, the one in ``response`` included, as a trainer takes them.

A result may have been through Gym's servers, its files and other hands. Whatever does not fit together is refused, never
mended: a token that cannot be vouched for is not one to train on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nemo_polar.errors import GymError
from nemo_polar.gym.contiguity import check_contiguous
from nemo_polar.gym.main_trace import trained_turns
from nemo_polar.gym.result import FORMAT, KEY, VERSION
from nemo_polar.gym.trace_json import main_from_json, trace_from_json
from nemo_polar.types import Trace


def read_traces(result: Mapping[str, Any]) -> tuple[Trace, ...]:
    """The traces of a result: the one in ``response`` first, then the others in their order; none for a failure.

    Raises:
        GymError: no result of ours, of another version, or changed since it was written; the row is named.
    """
    try:
        return _traces(result)
    except GymError as exc:
        raise GymError(f"{_row(result)}: {exc}") from exc


def _traces(result: Mapping[str, Any]) -> tuple[Trace, ...]:
    polar = result.get(KEY)
    if not isinstance(polar, Mapping) or polar.get("format") != FORMAT:
        raise GymError(f"no result of Polar's: its key {KEY!r} is not there, or of another format")
    if polar.get("version") != VERSION:
        raise GymError(f"{FORMAT} version {polar.get('version')}; this Polar reads version {VERSION}")
    traces: list[Trace] = []
    main = polar.get("main")
    if isinstance(main, Mapping):
        try:
            traces += _main(result, main)
        except GymError as exc:
            raise GymError(f"response and {KEY}.main: {exc}") from exc
    elif main is not None:
        raise GymError(f"{KEY}.main is no object")
    others = polar.get("traces")
    if not isinstance(others, list):
        raise GymError(f"{KEY}.traces is no list")
    for index, value in enumerate(others):
        if not isinstance(value, Mapping):
            raise GymError(f"{KEY}.traces[{index}] is no object")
        try:
            traces.append(trace_from_json(value))
        except GymError as exc:
            raise GymError(f"{KEY}.traces[{index}]: {exc}") from exc
    _check_owners(traces)
    return tuple(traces)


def _main(result: Mapping[str, Any], main: Mapping[str, Any]) -> list[Trace]:
    response = result.get("response")
    output = response.get("output") if isinstance(response, Mapping) else None
    if not isinstance(output, list) or not all(isinstance(item, Mapping) for item in output):
        raise GymError("response.output is no list of items")
    chain = check_contiguous(output)
    if main.get("trained_tokens") != len(chain.logprobs):
        raise GymError(f"{len(chain.logprobs)} generated tokens in the response, {main.get('trained_tokens')} were written")
    return [] if main.get("id") is None else [main_from_json(main, chain)]


def _check_owners(traces: list[Trace]) -> None:
    """Rule 3, over the traces of one rollout."""
    ids = [trace.id for trace in traces]
    if len(set(ids)) < len(ids):
        raise GymError("a trace is there twice")
    seen: dict[int, str] = {}
    for trace in traces:
        for turn in trained_turns([trace]):
            if turn in seen:
                raise GymError(f"turn {turn} is trained by {seen[turn]} and by {trace.id}")
            seen[turn] = trace.id


def _row(result: Mapping[str, Any]) -> str:
    polar = result.get(KEY)
    rollout = polar.get("rollout_id") if isinstance(polar, Mapping) else None
    return f"row {result.get('_ng_task_index')}.{result.get('_ng_rollout_index')} (rollout {rollout})"
