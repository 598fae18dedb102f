# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The comparisons an audit is made of: recorded turns with engine calls, and traces with both. Pure, on packed arrays.

Nothing here uses what ``build.py`` computes: these checks hold whatever made the traces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from nemo_polar.trajectory.audit_report import AuditReport, Code
from nemo_polar.types import FinishReason, LogProbs, TokenIds, Trace, Turn


class EngineCall(Protocol):
    """What the engine-side log says of one sample (``engines.log.EngineCall``)."""

    @property
    def request_id(self) -> str: ...
    @property
    def prompt_ids(self) -> TokenIds: ...
    @property
    def token_ids(self) -> TokenIds: ...
    @property
    def logprobs(self) -> LogProbs: ...
    @property
    def temperature(self) -> float: ...
    @property
    def top_p(self) -> float: ...
    @property
    def top_k(self) -> int: ...


def first_difference(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> int | None:
    """The first index at which two arrays differ (the shorter one's length, if it is a prefix); None when they are equal.

    Bits are compared, so that NaN equals itself and 0.0 differs from -0.0.
    """
    size = min(len(a), len(b))
    x, y = a[:size].view(np.int32), b[:size].view(np.int32)
    if not np.array_equal(x, y):
        return int(np.argmax(x != y))
    return None if len(a) == len(b) else size


def check_turns(
    rollout_id: str, turns: Sequence[Turn], log: Mapping[str, Sequence[EngineCall]], report: AuditReport
) -> dict[int, EngineCall]:
    """Compare every turn of a session with the engine's own record of it.

    The prompt of a turn is assembled in one buffer while walking the tree in depth-first order, so that the work is linear in
    the log. Returns turn id to engine call, for the turns that have one.
    """
    children: dict[int | None, list[Turn]] = {}
    known = {t.id for t in turns}
    leaf: dict[int, int] = {}
    for turn in sorted(turns, key=lambda t: t.id, reverse=True):
        leaf.setdefault(turn.id, turn.id)
        if turn.parent is not None and (turn.parent not in known or turn.parent >= turn.id):
            message = f"its parent {turn.parent} is missing or not older"
            report.find(Code.TREE, f"{rollout_id}/{leaf[turn.id]}", turn.id, 0, message)
            continue
        children.setdefault(turn.parent, []).append(turn)
        if turn.parent is not None:
            leaf[turn.parent] = leaf[turn.id]

    calls: dict[int, EngineCall] = {}
    ends: dict[int | None, int] = {None: 0}
    buffer = np.empty(1024, dtype=np.int32)
    stack = list(children.get(None, ()))
    while stack:
        turn = stack.pop()
        start = ends[turn.parent]
        prompt_len = start + len(turn.prompt_delta)
        ends[turn.id] = end = prompt_len + len(turn.sample)
        if end > len(buffer):
            buffer = np.concatenate([buffer, np.empty(max(end, 2 * len(buffer)) - len(buffer), dtype=np.int32)])
        buffer[start:prompt_len] = turn.prompt_delta
        buffer[prompt_len:end] = turn.sample.token_ids
        call = _check_turn(f"{rollout_id}/{leaf[turn.id]}", turn, buffer[:prompt_len], log, report)
        if call is not None:
            calls[turn.id] = call
        stack += children.get(turn.id, ())
    return calls


def _check_turn(
    trace: str, turn: Turn, prompt: TokenIds, log: Mapping[str, Sequence[EngineCall]], report: AuditReport
) -> EngineCall | None:
    entries = log.get(turn.request_id, ())
    if not entries:
        if len(turn.sample):  # a reply that had no room for a token is recorded without asking the engine
            message = f"the engine log has no request {turn.request_id}"
            report.find(Code.UNLOGGED_TURN, trace, turn.id, len(prompt), message)
        return None
    # A request that was repeated under the same id has several entries: the turn is the one whose tokens it has.
    call = next((e for e in entries if _drawn_difference(turn, e.token_ids, turn.sample.token_ids) is None), entries[0])
    at = first_difference(prompt, call.prompt_ids)
    if at is not None:
        message = f"recorded prompt ({len(prompt)} tokens) is not the engine's ({len(call.prompt_ids)}) for {turn.request_id}"
        report.find(Code.PROMPT, trace, turn.id, at, message)
    elif turn.prompt_len != len(prompt):
        report.find(Code.PROMPT, trace, turn.id, None, f"prompt_len is {turn.prompt_len}, the prompt has {len(prompt)} tokens")
    at = _drawn_difference(turn, call.token_ids, turn.sample.token_ids)
    if at is not None:
        message = f"recorded sample is not the engine's for {turn.request_id}"
        report.find(Code.SAMPLE, trace, turn.id, len(prompt) + at, message)
    at = _drawn_difference(turn, call.logprobs, turn.sample.logprobs)
    if at is not None:
        message = f"recorded log-probabilities are not the engine's for {turn.request_id}"
        report.find(Code.LOGPROB, trace, turn.id, len(prompt) + at, message)
    used, top_k = turn.sample.sampling, (-1, 0)
    same_k = used.top_k == call.top_k or (used.top_k in top_k and call.top_k in top_k)
    if not (np.isclose(used.temperature, call.temperature) and np.isclose(used.top_p, call.top_p) and same_k):
        message = f"drawn with temperature {call.temperature}, top_p {call.top_p}, top_k {call.top_k}; recorded is {used}"
        report.find(Code.SAMPLING, trace, turn.id, None, message)
    return call


def _drawn_difference(turn: Turn, drawn: npt.NDArray[Any], kept: npt.NDArray[Any]) -> int | None:
    """Where ``kept`` leaves what the engine drew. A sample that we cut (aborted, or at a stop string) may be shorter."""
    if turn.sample.finish_reason is FinishReason.ABORT or turn.sample.stop is not None:
        drawn = drawn[: len(kept)]
    return first_difference(drawn, kept)


def check_trace(trace: Trace, turns: Mapping[int, Turn], calls: Mapping[int, EngineCall], report: AuditReport) -> None:
    """Compare a trace with the engine's own record of each of its samples, and count its drift."""
    sampled = _check_spans(trace, report)
    reported: set[int] = set()
    for span in trace.spans:
        if span.role != "sampled":
            continue
        trained = trace.loss_mask[span.start : span.end]
        turn, call = turns.get(span.turn), calls.get(span.turn)
        if turn is None or call is None:
            code = Code.DROPPED_TURN if turn is None else Code.UNLOGGED_TURN
            report.drift_tokens += int(np.count_nonzero(trained))
            report.find(code, trace.id, span.turn, span.start, f"span without a {'turn' if turn is None else 'engine call'}")
            continue
        at = first_difference(trace.token_ids[: span.start], call.prompt_ids)
        if at is not None:
            report.drift_tokens += int(np.count_nonzero(trained))
            if at not in reported:  # one wrong token is in the context of every later span: say it once
                reported.add(at)
                message = f"what precedes this sample is not the prompt of {call.request_id}"
                report.find(Code.TRACE_CONTEXT, trace.id, span.turn, at, message)
        ids_at = _drawn_difference(turn, call.token_ids, trace.token_ids[span.start : span.end])
        if ids_at is not None:
            if at is None:
                report.drift_tokens += int(np.count_nonzero(trained[ids_at:]))
            message = f"sampled ids are not those of {call.request_id}"
            report.find(Code.TRACE_SAMPLE, trace.id, span.turn, span.start + ids_at, message)
        lps_at = _drawn_difference(turn, call.logprobs, trace.logprobs[span.start : span.end])
        if lps_at is not None:
            message = f"log-probabilities are not those of {call.request_id}"
            report.find(Code.TRACE_LOGPROB, trace.id, span.turn, span.start + lps_at, message)
    for name, wrong in (
        ("trained", trace.loss_mask & ~sampled),
        ("given a log-probability", (trace.logprobs != 0) & ~sampled),
        ("given a weights version", (trace.weights_version != -1) & ~sampled),
    ):
        if wrong.any():
            at = int(np.argmax(wrong))
            if name == "trained":
                report.drift_tokens += int(np.count_nonzero(wrong))
            report.find(Code.TRACE_SPANS, trace.id, None, at, f"a token that was not sampled is {name}")


def _check_spans(trace: Trace, report: AuditReport) -> npt.NDArray[np.bool_]:
    """Which tokens of the trace lie in sampled spans. bool[N]"""
    sampled = np.zeros(len(trace), dtype=np.bool_)
    at = 0
    for span in trace.spans:
        if span.start != at or span.end <= span.start or span.end > len(trace):
            report.find(Code.TRACE_SPANS, trace.id, span.turn, at, f"span [{span.start}, {span.end}) does not follow {at}")
        sampled[span.start : span.end] = span.role == "sampled"
        at = span.end
    if at != len(trace):
        report.find(Code.TRACE_SPANS, trace.id, None, at, f"spans end at {at}, the trace at {len(trace)}")
    return sampled
