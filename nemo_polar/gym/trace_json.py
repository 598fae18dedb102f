# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A trace as plain JSON, without base64, so that any program can read it out of a Gym rollout file; and back, bit for bit.

What a trace holds only on sampled tokens (log-probabilities, weights versions) is listed for those alone. The trace that is in
``response`` is written as what the response does not say of it. ``docs/gym-format.md`` specifies both forms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from nemo_polar.errors import GymError
from nemo_polar.gym.contiguity import Chain, float_array, int_array
from nemo_polar.types import ForkReason, Kind, LogProbs, Mask, Span, TokenIds, Trace

Ranges = Sequence[tuple[int, int]]


def trace_to_json(trace: Trace) -> dict[str, Any]:
    """A trace in full.

    Raises:
        GymError: it has log-probabilities or versions on tokens that were not sampled, or some that are not finite.
    """
    sampled = _sampled(trace)
    return {
        **_head(trace, sampled),
        "token_ids": trace.token_ids.tolist(),
        "trained": _ranges(trace.loss_mask),
        "logprobs": floats(trace.logprobs[sampled]),
    }


def trace_from_json(value: Mapping[str, Any]) -> Trace:
    """The inverse of ``trace_to_json``.

    Raises:
        GymError: not a trace, or one that contradicts itself.
    """
    token_ids = int_array(_field(value, "token_ids"), "token_ids")
    trained = np.zeros(len(token_ids), dtype=np.bool_)
    for start, end in _pairs(value, "trained"):
        if not 0 <= start < end <= len(token_ids):
            raise GymError(f"trained: [{start}, {end}) is not in {len(token_ids)} tokens")
        trained[start:end] = True
    return _trace(value, token_ids, trained, float_array(_field(value, "logprobs"), "logprobs"))


def main_to_json(trace: Trace, generations: Ranges) -> dict[str, Any]:
    """What a response with these ``generations`` (ranges of the trace, in order) does not say of the trace it holds.

    Raises:
        GymError: as ``trace_to_json`` does.
    """
    sampled = _sampled(trace)
    told = _mask(generations, len(trace))
    return {
        **_head(trace, sampled),
        "rest_token_ids": trace.token_ids[generations[-1][1] if generations else 0 :].tolist(),
        "rest_logprobs": floats(trace.logprobs[sampled & ~told]),
    }


def main_from_json(value: Mapping[str, Any], chain: Chain) -> Trace:
    """The trace that ``chain``, the token fields of a response, and ``value`` tell of together.

    Raises:
        GymError: they contradict each other.
    """
    token_ids = np.concatenate([chain.token_ids, int_array(_field(value, "rest_token_ids"), "rest_token_ids")])
    spans = _spans(value, len(token_ids))
    sampled, trained = _mask_of(spans, len(token_ids)), _mask(chain.generations, len(token_ids))
    if (trained & ~sampled).any():
        at = int(np.argmax(trained & ~sampled))
        raise GymError(f"the response has token {at} as generated, the spans have it as given")
    rest = float_array(_field(value, "rest_logprobs"), "rest_logprobs")
    if len(rest) != np.count_nonzero(sampled & ~trained):
        raise GymError(f"rest_logprobs: {len(rest)} for {np.count_nonzero(sampled & ~trained)} sampled tokens")
    logprobs = np.zeros(len(token_ids), dtype=np.float32)
    logprobs[trained] = chain.logprobs
    logprobs[sampled & ~trained] = rest
    return _trace(value, token_ids, trained, logprobs[sampled])


def floats(values: LogProbs) -> list[float]:
    """float32[N] as the shortest decimal numbers that give the same bits when they are read and rounded to float32.

    Raises:
        GymError: one is not finite, for which JSON has no number.
    """
    if not np.isfinite(values).all():
        raise GymError("a log-probability is not finite")
    return orjson.loads(orjson.dumps(np.ascontiguousarray(values), option=orjson.OPT_SERIALIZE_NUMPY))


# --- both forms -------------------------------------------------------------------------------------------------------


def _head(trace: Trace, sampled: Mask) -> dict[str, Any]:
    return {
        "id": trace.id,
        "kind": trace.kind.value,
        "parent": trace.parent,
        "fork_reason": None if trace.fork_reason is None else trace.fork_reason.value,
        "spans": [[s.start, s.end, s.role, s.turn] for s in trace.spans],
        "weights_version": _counted(trace.weights_version[sampled]),
    }


def _trace(value: Mapping[str, Any], token_ids: TokenIds, trained: Mask, drawn: LogProbs) -> Trace:
    """A trace, given its log-probabilities on sampled tokens."""
    spans = _spans(value, len(token_ids))
    sampled = _mask_of(spans, len(token_ids))
    count = int(np.count_nonzero(sampled))
    counted = _pairs(value, "weights_version")
    if any(times < 1 for _, times in counted) or sum(times for _, times in counted) != count or len(drawn) != count:
        raise GymError(f"{len(drawn)} log-probabilities and versions {counted} for {count} sampled tokens")
    if (trained & ~sampled).any():
        raise GymError("a token that was not sampled is trained")
    versions = np.full(len(token_ids), -1, dtype=np.int32)
    versions[sampled] = np.repeat([version for version, _ in counted], [times for _, times in counted]) if counted else -1
    logprobs = np.zeros(len(token_ids), dtype=np.float32)
    logprobs[sampled] = drawn
    reason, parent, trace_id = (_field(value, name) for name in ("fork_reason", "parent", "id"))
    if not isinstance(trace_id, str) or not isinstance(parent, str | None):
        raise GymError(f"id {trace_id!r} or parent {parent!r} is no text")
    try:
        kind, fork = Kind(_field(value, "kind")), None if reason is None else ForkReason(reason)
    except ValueError as exc:
        raise GymError(str(exc)) from exc
    return Trace(trace_id, token_ids, trained, logprobs, versions, spans, kind, parent, fork)


def _spans(value: Mapping[str, Any], size: int) -> tuple[Span, ...]:
    spans: list[Span] = []
    at = 0
    for entry in _list(value, "spans"):
        match entry:
            case [int(start), int(end), "prompt" | "context" | "sampled" as role, int(turn)] if start == at < end <= size:
                spans.append(Span(start, end, role, turn))
                at = end
            case _:
                raise GymError(f"spans: {entry!r} does not follow {at}, in {size} tokens")
    if at != size:
        raise GymError(f"spans: they end at {at}, the trace at {size}")
    return tuple(spans)


def _sampled(trace: Trace) -> Mask:
    sampled = _mask_of(trace.spans, len(trace))
    if (trace.logprobs[~sampled] != 0).any() or (trace.weights_version[~sampled] != -1).any():
        raise GymError(f"trace {trace.id} has a log-probability or a version on a token that was not sampled")
    return sampled


def _mask_of(spans: Sequence[Span], size: int) -> Mask:
    return _mask([(s.start, s.end) for s in spans if s.role == "sampled"], size)


def _mask(ranges: Ranges, size: int) -> Mask:
    mask = np.zeros(size, dtype=np.bool_)
    for start, end in ranges:
        mask[start:end] = True
    return mask


def _ranges(mask: Mask) -> list[list[int]]:
    """``[start, end)`` of every run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    return edges.reshape(-1, 2).tolist()


def _counted(values: npt.NDArray[np.int32]) -> list[list[int]]:
    """Runs of equal values as ``[value, how many]``."""
    if not len(values):
        return []
    starts = np.concatenate([[0], np.flatnonzero(np.diff(values)) + 1])
    return np.stack([values[starts], np.diff(np.concatenate([starts, [len(values)]]))], axis=1).tolist()


def _field(value: Mapping[str, Any], name: str) -> Any:
    if name not in value:
        raise GymError(f"{name} is missing")
    return value[name]


def _list(value: Mapping[str, Any], name: str) -> list[Any]:
    found = _field(value, name)
    if not isinstance(found, list):
        raise GymError(f"{name} is no list")
    return found


def _pairs(value: Mapping[str, Any], name: str) -> list[tuple[int, int]]:
    pairs: list[tuple[int, int]] = []
    for entry in _list(value, name):
        match entry:
            case [int(first), int(second)]:
                pairs.append((first, second))
            case _:
                raise GymError(f"{name}: {entry!r} is no pair of integers")
    return pairs
