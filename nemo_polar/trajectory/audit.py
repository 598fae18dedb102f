# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Proof of rules 1-3 on a finished run: journal, trajectories and masks against the engine's *own* log.

The journal's word is not taken: every prompt and sample is compared with ``engine.jsonl``, which the engine side wrote. The
comparisons are in ``audit_checks``; here it is decided what is compared with what, and every sampled token is accounted for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from nemo_polar.errors import AuditError, JournalError, TokenError
from nemo_polar.settings import TracePolicy
from nemo_polar.trajectory.audit_checks import EngineCall, check_trace, check_turns, first_difference
from nemo_polar.trajectory.audit_report import AuditReport, Code, Finding
from nemo_polar.trajectory.build import BuiltTraces, build_traces
from nemo_polar.trajectory.records import CallRow, JournalReader, ResultRow, SessionRow
from nemo_polar.trajectory.store import ENGINE_LOG, JOURNAL, TRAJECTORIES, engine_logs, read_manifest, read_trajectories
from nemo_polar.types import LogProbs, Mask, MaskReason, Status, TokenIds, Trace, Trajectory, Turn

__all__ = ["AuditReport", "Auditor", "Code", "Finding", "audit_run"]

Score = Callable[[TokenIds], LogProbs]
"""Log-probability of every token given those before it, under the weights served now. int32[N] to float32[N]"""

OWN_REQUESTS = ("polar-probe-", "polar-score-")
"""Request ids that Polar uses for itself: their samples are nobody's turns."""


def audit_run(run_dir: Path, *, score: Score | None = None, served_version: int | None = None) -> AuditReport:
    """Audit the run in ``run_dir`` (journal, ``trajectories.jsonl``, ``manifest.json``, and the engine-side log or logs).

    With ``score``, trained tokens that were drawn under ``served_version`` (by default the latest in the run) are re-scored.

    Raises:
        AuditError: one of the files is missing or cannot be read.
    """
    from nemo_polar.engines.log import read_engine_log  # a file reader; the only thing of that layer used here

    run_dir = Path(run_dir)
    logs = engine_logs(run_dir) or [run_dir / ENGINE_LOG]
    log: Sequence[EngineCall] = [call for path in logs for call in read_engine_log(path)]
    try:
        policy = read_manifest(run_dir).traces
        with JournalReader(run_dir / JOURNAL) as journal:
            auditor = Auditor(log, policy, journal.results())
            for session in journal.sessions():
                auditor.add_session(session, journal.turns(session.id), journal.calls(session.id))
            for trajectory in read_trajectories(run_dir / TRAJECTORIES):
                auditor.add_trajectory(trajectory)
            report = auditor.finish()
        if score is not None:
            auditor.rescore(read_trajectories(run_dir / TRAJECTORIES), score, served_version)
    except JournalError as exc:
        raise AuditError(str(exc)) from exc
    return report


class Auditor:
    """Takes the sessions of a run, then its trajectories, then adds up."""

    def __init__(self, log: Iterable[EngineCall], policy: TracePolicy, results: Sequence[ResultRow] = ()) -> None:
        self.report = AuditReport()
        self._policy = policy
        self._results = results
        self._attempts: dict[str, int] = {}
        """Rollout id to the attempt that its trajectory is made of: the last one with a result."""
        self._infra: set[tuple[str, int]] = set()
        """Rollout id and attempt of those that failed for reasons of infrastructure."""
        for row in results:
            if Status(row.payload["status"]).infra:
                self._infra.add((row.rollout_id, row.attempt))
            self._attempts[row.rollout_id] = max(row.attempt, self._attempts.get(row.rollout_id, 0))
        self._log: dict[str, list[EngineCall]] = {}
        for call in log:
            if not call.request_id.startswith(OWN_REQUESTS):
                self._log.setdefault(call.request_id, []).append(call)
        self._accounted: set[str] = set()
        self._cut_off: set[str] = set()
        """Ids of sessions that nobody closed: their proxy was killed."""
        self._sessions: dict[str, SessionRow] = {}
        """Rollout id to the session its trajectory is made of."""
        self._turns: dict[str, dict[int, Turn]] = {}
        self._calls: dict[str, dict[int, EngineCall]] = {}
        self._trained: dict[str, dict[int, Mask]] = {}
        """Session id to turn id to which of its sampled tokens some trace trains."""
        self._rollouts: set[str] = set()
        self._seen_traces: set[str] = set()

    # --- journal against engine log -----------------------------------------------------------------------------------

    def add_session(self, session: SessionRow, turns: Sequence[Turn], calls: Sequence[CallRow]) -> None:
        """Compare the turns of a session with the engine log."""
        report = self.report
        report.calls += len(calls)
        report.turns += len(turns)
        for turn in turns:
            report.bridged_turns += turn.parent is not None
            report.sampled_tokens += len(turn.sample)
            report.malformed_calls += sum(c.malformed for c in turn.reply.tool_calls)
            if turn.fork_reason is not None:
                report.forks[turn.fork_reason.value] = report.forks.get(turn.fork_reason.value, 0) + 1
        if session.closed_at is None:
            self._cut_off.add(session.id)
        self._turns[session.id] = {t.id: t for t in turns}
        self._calls[session.id] = check_turns(session.rollout_id, turns, self._log, report)
        self._account_calls(session, turns, calls)
        if session.attempt == self._attempts.get(session.rollout_id, session.attempt):
            last = self._sessions.get(session.rollout_id)
            if last is None or (last.attempt, last.created_at) <= (session.attempt, session.created_at):
                self._sessions[session.rollout_id] = session

    def _account_calls(self, session: SessionRow, turns: Sequence[Turn], calls: Sequence[CallRow]) -> None:
        recorded = {t.request_id for t in turns}
        opened = {(c.call_id, c.request_id) for c in calls}
        astray = {t.call_id for t in turns if (t.call_id, t.request_id) not in opened}
        self._accounted |= recorded
        self.report.failed_calls += sum(len(self._log[r]) - 1 for r in recorded if r in self._log)
        for call in calls:
            if call.request_id in recorded or call.request_id not in self._log:
                continue
            self._accounted.add(call.request_id)
            # A session that was closed had all its calls ended first; only one that was cut off may have some in flight.
            cut_off = session.closed_at is None or (session.rollout_id, session.attempt) in self._infra
            if call.call_id in astray or (call.ended_at is None and not cut_off):
                message = f"call {call.call_id}: its request {call.request_id} was answered, but its turn is not there"
                self.report.find(Code.DROPPED_TURN, None, None, None, f"session {session.id}: {message}")
            elif call.ended_at is None:
                self.report.lost_in_flight += 1
            else:
                self.report.failed_calls += 1

    # --- trajectories against both ------------------------------------------------------------------------------------

    def add_trajectory(self, trajectory: Trajectory) -> None:
        """Compare a trajectory with the engine log, and with what the build rule makes of its session."""
        report, rollout_id = self.report, trajectory.rollout_id
        report.rollouts += rollout_id not in self._rollouts
        self._rollouts.add(rollout_id)
        session = self._sessions.get(rollout_id)
        turns = self._turns[session.id] if session else {}
        calls = self._calls[session.id] if session else {}
        trained = self._trained.setdefault(session.id if session else rollout_id, {})
        before = sum(map(np.count_nonzero, trained.values()))
        for trace in trajectory.traces:
            report.traces += 1
            if trace.id in self._seen_traces:
                report.find(Code.DUPLICATE_TRACE, trace.id, None, 0, "this trace is there twice")
            self._seen_traces.add(trace.id)
            check_trace(trace, turns, calls, report)
            self._note_trained(trace, trained)
        count = int(sum(map(np.count_nonzero, trained.values())) - before)
        report.trained_tokens += count
        for reason, tokens in trajectory.masked.items():
            report.masked_tokens[reason] = report.masked_tokens.get(reason, 0) + tokens
        sampled = sum(len(t.sample) for t in turns.values())
        if sampled != count + sum(trajectory.masked.values()):
            message = f"{sampled} tokens sampled, {count} trained, masked {dict(trajectory.masked)}"
            report.find(Code.ACCOUNT, None, None, None, f"{rollout_id}: {message}")
        try:
            built = build_traces(rollout_id, list(turns.values()), self._policy, infra=trajectory.status.infra)
        except TokenError as exc:
            report.find(Code.TREE, None, None, None, f"{rollout_id}: {exc}")
        else:
            self._compare_built(trajectory, built)

    def _note_trained(self, trace: Trace, trained: dict[int, Mask]) -> None:
        for span in trace.spans:
            mask = trace.loss_mask[span.start : span.end]
            if span.role != "sampled" or not mask.any():
                continue
            seen = trained.get(span.turn)
            if seen is None:
                trained[span.turn] = mask.copy()
                continue
            size = min(len(seen), len(mask))
            twice = seen[:size] & mask[:size]
            if twice.any():
                at = span.start + int(np.argmax(twice))
                message = f"{np.count_nonzero(twice)} tokens are trained a second time"
                self.report.find(Code.TRAINED_TWICE, trace.id, span.turn, at, message)
            longer = mask.copy() if len(mask) > len(seen) else seen.copy()
            longer[:size] = seen[:size] | mask[:size]
            trained[span.turn] = longer

    def _compare_built(self, trajectory: Trajectory, built: BuiltTraces) -> None:
        report = self.report
        expected = {t.id: t for t in built.traces}
        for trace in trajectory.traces:
            want = expected.get(trace.id)
            if want is None:
                report.find(Code.EXTRA_TRACE, trace.id, None, 0, "the session's tree has no such trace to keep")
                continue
            if trace.spans != want.spans:
                pairs = zip(trace.spans, want.spans, strict=False)
                at = next((got.start for got, due in pairs if got != due), min(len(trace), len(want)))
                report.find(Code.TRACE_CONTENT, trace.id, None, at, "spans are not those of its turns")
            for name in ("token_ids", "logprobs", "weights_version"):
                at = first_difference(getattr(trace, name), getattr(want, name))
                if at is not None:
                    report.find(Code.TRACE_CONTENT, trace.id, None, at, f"{name} are not those of its turns")
            at = first_difference(trace.loss_mask.astype(np.int32), want.loss_mask.astype(np.int32))
            if at is not None:
                report.find(Code.MASK, trace.id, None, at, "the loss mask is not what the trace policy says")
            got, due = ((t.kind, t.parent, t.fork_reason) for t in (trace, want))
            if got != due:
                report.find(Code.LINEAGE, trace.id, None, None, f"kind, parent and fork reason are {got}, should be {due}")
        found = {t.id for t in trajectory.traces}
        # A rollout that failed for reasons of ours trains nothing, so it need not carry its traces.
        for trace_id in expected.keys() - found if not trajectory.status.infra else ():
            report.find(Code.MISSING_TRACE, trace_id, None, 0, "the session's tree has this trace, the trajectory does not")
        if {reason: n for reason, n in trajectory.masked.items() if n} != dict(built.masked):
            message = f"masked {dict(trajectory.masked)}, should be {dict(built.masked)}"
            report.find(Code.ACCOUNT, None, None, None, f"{trajectory.rollout_id}: {message}")

    # --- adding up ----------------------------------------------------------------------------------------------------

    def finish(self) -> AuditReport:
        """Account for what no trajectory claims; the report is then complete."""
        report = self.report
        for request_id, calls in self._log.items():
            if request_id not in self._accounted:
                # A request's row is not waited for, so a kill may fall between it and the engine. Its id names its session.
                if request_id.removeprefix("polar-").rpartition("-")[0] in self._cut_off:
                    report.lost_in_flight += 1
                    continue
                message = f"the engine drew {len(calls[0].token_ids)} tokens for {request_id}, which the journal never opened"
                report.find(Code.DROPPED_TURN, None, None, None, message)
        claimed = {s.id for r, s in self._sessions.items() if r in self._rollouts}
        for session_id, turns in self._turns.items():
            if session_id in claimed:
                continue
            report.unclaimed_sessions += 1
            if tokens := sum(len(t.sample) for t in turns.values()):
                report.masked_tokens[MaskReason.INFRA] = report.masked_tokens.get(MaskReason.INFRA, 0) + tokens
        for result in self._results:
            if result.rollout_id not in self._rollouts and _counts(result.payload):
                message = f"{result.rollout_id} has a result, but no trajectory"
                report.find(Code.MISSING_TRAJECTORY, None, None, None, message)
        return report

    def rescore(self, trajectories: Iterable[Trajectory], score: Score, served_version: int | None = None) -> None:
        """Score trained tokens that were drawn under the version served now, untempered, and note the largest difference."""
        if served_version is None:
            versions = [t.sample.weights_version[1] for turns in self._turns.values() for t in turns.values()]
            served_version = max(versions, default=0)
        for trajectory in trajectories:
            session = self._sessions.get(trajectory.rollout_id)
            turns = self._turns[session.id] if session else {}
            for trace in trajectory.traces:
                picked = _picked(trace, turns, served_version)
                if picked.any():
                    diff = np.abs(np.asarray(score(trace.token_ids))[picked] - trace.logprobs[picked])
                    self.report.max_logprob_diff = max(self.report.max_logprob_diff or 0.0, float(diff.max()))
                    self.report.rescored_tokens += int(np.count_nonzero(picked))


def _picked(trace: Trace, turns: Mapping[int, Turn], version: int) -> Mask:
    """Which tokens of a trace can be re-scored: trained, under ``version`` from first to last, untempered. bool[N]"""
    picked = np.zeros(len(trace), dtype=np.bool_)
    for span in trace.spans:
        turn = turns.get(span.turn)
        if span.role != "sampled" or turn is None or not turn.sample.sampling.rescorable:
            continue
        if turn.sample.weights_version == (version, version):
            picked[span.start : span.end] = trace.loss_mask[span.start : span.end]
    return picked


def _counts(payload: Mapping[str, object]) -> bool:
    """True when a result says that its rollout is one a trainer may see."""
    status = payload.get("status")
    return isinstance(status, str) and status in {s.value for s in Status if not s.infra}
