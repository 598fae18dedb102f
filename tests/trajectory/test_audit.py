# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The audit passes honest runs and finds every forgery, in the trajectories and in the journal, at its place."""

from __future__ import annotations

import random
import shutil
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_polar.engines.log import EngineCall, EngineLog, read_engine_log
from nemo_polar.errors import AuditError
from nemo_polar.settings import TracePolicy
from nemo_polar.trajectory.audit import Auditor, AuditReport, Code, Finding, audit_run
from nemo_polar.trajectory.build import build_traces
from nemo_polar.trajectory.records import JournalReader
from nemo_polar.trajectory.store import ENGINE_LOG, JOURNAL, MANIFEST, TRAJECTORIES, append_trajectory, read_trajectories
from nemo_polar.types import FinishReason, MaskReason, Status, Trace, Trajectory, as_ids, as_logprobs
from tests.support.runs import FakePolicy, call_row, draw_tree, make_run, session_row, trajectory_of


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("honest")
    make_run(run, seed=11, rollouts=3, size=14, plain=True)
    return run


@pytest.fixture
def run(honest: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(honest, tmp_path / "run"))


def rewrite(run: Path, change: Callable[[Trajectory], Trajectory | None]) -> None:
    kept = [change(t) for t in read_trajectories(run / TRAJECTORIES)]
    (run / TRAJECTORIES).unlink()
    for trajectory in kept:
        if trajectory is not None:
            append_trajectory(run / TRAJECTORIES, trajectory)


def change_trace(run: Path, trace_id: str, change: Callable[[Trace], Trace]) -> None:
    def whole(t: Trajectory) -> Trajectory:
        return replace(t, traces=tuple(change(x) if x.id == trace_id else x for x in t.traces))

    rewrite(run, whole)


def sql(run: Path, statement: str, *params: Any) -> None:
    with closing(sqlite3.connect(run / JOURNAL)) as db, db:
        assert db.execute(statement, params).rowcount != 0


def traces(run: Path) -> dict[str, Trace]:
    return {trace.id: trace for t in read_trajectories(run / TRAJECTORIES) for trace in t.traces}


def longest(run: Path) -> Trace:
    return max(traces(run).values(), key=lambda t: (len(t.spans), len(t)))


def codes(report: AuditReport) -> set[Code]:
    return {f.code for f in report.findings}


def at(report: AuditReport, code: Code) -> Finding:
    found = [f for f in report.findings if f.code is code]
    assert found, f"no {code} finding; there are: {[str(f) for f in report.findings]}"
    return found[0]


def flip(array: np.ndarray, index: int) -> np.ndarray:
    out = array.copy()
    out[index] = ~out[index] if out.dtype == bool else out[index] + 1
    return out


# --- honest runs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("limit", [None, 60])
def test_an_honest_run_passes_and_its_account_adds_up(tmp_path: Path, seed: int, limit: int | None) -> None:
    made = make_run(tmp_path, seed=seed, policy=TracePolicy(max_trace_tokens=limit))
    report = audit_run(tmp_path)
    assert report.ok, [str(f) for f in report.findings]
    assert report.drift_tokens == 0
    turns = [t for line in made.values() for t in line]
    assert (report.rollouts, report.calls, report.turns) == (3, len(turns), len(turns))
    assert report.bridged_turns == sum(t.parent is not None for t in turns)
    assert report.sampled_tokens == sum(len(t.sample) for t in turns)
    assert report.sampled_tokens == report.trained_tokens + sum(report.masked_tokens.values())
    assert report.malformed_calls == sum(c.malformed for t in turns for c in t.reply.tool_calls)
    assert sum(report.forks.values()) == sum(t.parent is None for t in turns)
    said = report.to_dict()
    assert said["ok"] is True and said["findings"] == [] and all(type(k) is str for k in said["masked_tokens"])


def test_a_tree_deeper_than_the_interpreters_stack_is_audited(tmp_path: Path) -> None:
    turns = make_run(tmp_path, rollouts=1, size=sys.getrecursionlimit() + 100, branching=1)["r0"]
    assert len(turns) - sum(t.parent is None for t in turns) > sys.getrecursionlimit()
    assert audit_run(tmp_path).ok


# --- forged trajectories --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["first", "middle", "last"])
def test_a_flipped_sampled_token_is_found_and_counted_as_drift(run: Path, which: str) -> None:
    trace = longest(run)
    positions = np.flatnonzero(trace.loss_mask)
    position = int(positions[{"first": 0, "middle": len(positions) // 2, "last": -1}[which]])
    change_trace(run, trace.id, lambda t: replace(t, token_ids=flip(t.token_ids, position)))
    report = audit_run(run)
    for code in (Code.TRACE_SAMPLE, Code.TRACE_CONTENT):
        assert (at(report, code).trace, at(report, code).position) == (trace.id, position)
    assert report.drift_tokens == np.count_nonzero(trace.loss_mask[position:])


def test_a_flipped_prompt_token_makes_every_trained_token_after_it_drift(run: Path) -> None:
    trace = longest(run)
    span = next(s for s in trace.spans if s.role == "context")
    change_trace(run, trace.id, lambda t: replace(t, token_ids=flip(t.token_ids, span.start)))
    report = audit_run(run)
    assert (at(report, Code.TRACE_CONTEXT).trace, at(report, Code.TRACE_CONTEXT).position) == (trace.id, span.start)
    assert report.drift_tokens == np.count_nonzero(trace.loss_mask[span.start :]) > 0
    assert [f.code for f in report.findings].count(Code.TRACE_CONTEXT) == 1


@pytest.mark.parametrize("role", ["prompt", "sampled"])
def test_a_flipped_mask_bit_is_found(run: Path, role: str) -> None:
    trace = longest(run)
    position = next(s.start for s in trace.spans if s.role == role)
    change_trace(run, trace.id, lambda t: replace(t, loss_mask=flip(t.loss_mask, position)))
    report = audit_run(run)
    assert (at(report, Code.MASK).trace, at(report, Code.MASK).position) == (trace.id, position)
    if role == "prompt":
        assert at(report, Code.TRACE_SPANS).position == position and report.drift_tokens == 1
    else:
        assert Code.ACCOUNT in codes(report) or Code.TRAINED_TWICE in codes(report)


def test_a_log_probability_that_differs_in_its_last_bit_is_found(run: Path) -> None:
    trace = longest(run)
    position = int(np.flatnonzero(trace.loss_mask)[-1])
    changed = trace.logprobs.copy()
    changed[position] = np.nextafter(changed[position], np.float32(0))
    change_trace(run, trace.id, lambda t: replace(t, logprobs=changed))
    report = audit_run(run)
    assert (at(report, Code.TRACE_LOGPROB).trace, at(report, Code.TRACE_LOGPROB).position) == (trace.id, position)
    assert report.drift_tokens == 0


def test_a_changed_weights_version_is_found(run: Path) -> None:
    trace = longest(run)
    position = int(np.flatnonzero(trace.loss_mask)[0])
    change_trace(run, trace.id, lambda t: replace(t, weights_version=flip(t.weights_version, position)))
    assert at(audit_run(run), Code.TRACE_CONTENT).position == position


def test_a_turn_cut_out_of_a_trace_is_found(run: Path) -> None:
    trace = longest(run)
    gone = trace.spans[2].turn
    keep = np.ones(len(trace), bool)
    for span in trace.spans:
        if span.turn == gone:
            keep[span.start : span.end] = False
    spans, end = [], 0
    for span in trace.spans:
        if span.turn != gone:
            spans.append(replace(span, start=end, end=end + span.end - span.start))
            end = spans[-1].end
    arrays = {n: getattr(trace, n)[keep] for n in ("token_ids", "loss_mask", "logprobs", "weights_version")}
    change_trace(run, trace.id, lambda t: replace(t, **arrays, spans=tuple(spans)))
    report = audit_run(run)
    assert at(report, Code.TRACE_CONTEXT).trace == trace.id and at(report, Code.TRACE_CONTEXT).position is not None
    assert report.drift_tokens > 0 or not trace.loss_mask[trace.spans[4].start :].any()


def test_two_turns_swapped_in_a_trace_are_found(run: Path) -> None:
    trace = longest(run)
    a, b = [s for s in trace.spans if s.role == "sampled"][:2]
    spans = [replace(s, turn={a.turn: b.turn, b.turn: a.turn}.get(s.turn, s.turn)) for s in trace.spans]
    change_trace(run, trace.id, lambda t: replace(t, spans=tuple(spans)))
    report = audit_run(run)
    assert at(report, Code.TRACE_CONTEXT).trace == trace.id and at(report, Code.TRACE_CONTENT).position == trace.spans[0].start


def test_a_trace_that_is_there_twice_is_found(run: Path) -> None:
    trace = longest(run)
    assert trace.loss_mask.any()
    rewrite(run, lambda t: replace(t, traces=(*t.traces, trace)) if t.rollout_id == trace.id[:2] else t)
    report = audit_run(run)
    assert at(report, Code.DUPLICATE_TRACE).trace == trace.id
    twice = at(report, Code.TRAINED_TWICE)
    assert twice.trace == trace.id and twice.position == np.flatnonzero(trace.loss_mask)[0]


def test_a_trajectory_that_is_there_twice_is_found(run: Path) -> None:
    append_trajectory(run / TRAJECTORIES, next(iter(read_trajectories(run / TRAJECTORIES))))
    report = audit_run(run)
    assert {Code.DUPLICATE_TRACE, Code.TRAINED_TWICE} <= codes(report)
    assert report.rollouts == 3


def test_a_missing_trace_and_a_missing_trajectory_are_found(run: Path) -> None:
    trace = longest(run)
    rewrite(run, lambda t: replace(t, traces=tuple(x for x in t.traces if x.id != trace.id)))
    assert at(audit_run(run), Code.MISSING_TRACE).trace == trace.id
    rewrite(run, lambda t: None if t.rollout_id == trace.id.split("/")[0] else t)
    assert codes(audit_run(run)) == {Code.MISSING_TRAJECTORY}


def test_a_trace_that_the_policy_drops_is_found(run: Path) -> None:
    manifest = run / MANIFEST
    manifest.write_text(manifest.read_text().replace('"max_trace_tokens": null', '"max_trace_tokens": 20'))
    assert {Code.EXTRA_TRACE, Code.ACCOUNT} <= codes(audit_run(run))


def test_wrong_counts_and_wrong_lineage_are_found(run: Path) -> None:
    trace = longest(run)
    rewrite(run, lambda t: replace(t, masked={MaskReason.ABANDONED: 3}))
    assert codes(audit_run(run)) == {Code.ACCOUNT}
    rewrite(run, lambda t: replace(t, masked={}))
    change_trace(run, trace.id, lambda t: replace(t, parent="r0/99"))
    assert at(audit_run(run), Code.LINEAGE).trace == trace.id


@given(st.integers(0, 2**32), st.integers(1, 14), st.data())
@settings(max_examples=80, deadline=None)
def test_any_single_changed_element_of_any_trace_is_found_where_it_is(seed: int, size: int, data: st.DataObject) -> None:
    fake = FakePolicy(random.Random(seed))
    turns = draw_tree(fake, "s", size)
    honest = trajectory_of("r", turns, TracePolicy())
    which = data.draw(st.integers(0, len(honest.traces) - 1))
    name = data.draw(st.sampled_from(["token_ids", "loss_mask", "logprobs", "weights_version"]))
    trace = honest.traces[which]
    position = data.draw(st.integers(0, len(trace) - 1))
    forged = replace(trace, **{name: flip(getattr(trace, name), position)})

    def audited(trajectory: Trajectory) -> AuditReport:
        auditor = Auditor(fake.log, TracePolicy())
        auditor.add_session(session_row("s", "r"), turns, [call_row(t) for t in turns])
        auditor.add_trajectory(trajectory)
        return auditor.finish()

    assert audited(honest).ok
    swapped = tuple(forged if t is trace else t for t in honest.traces)
    assert (trace.id, position) in {(f.trace, f.position) for f in audited(replace(honest, traces=swapped)).findings}


# --- forged journals ------------------------------------------------------------------------------------------------------


def victim(run: Path) -> tuple[Trace, int, int, int]:
    """A trace, a turn in its middle that continues a line, where that turn's delta and its sample start."""
    trace = longest(run)
    delta, sampled = trace.spans[2], trace.spans[3]
    assert (delta.role, sampled.role, delta.turn) == ("context", "sampled", sampled.turn)
    return trace, sampled.turn, delta.start, sampled.start


@pytest.mark.parametrize(
    ("column", "code", "from_sample"),
    [("token_ids", Code.SAMPLE, True), ("logprobs", Code.LOGPROB, True), ("prompt_delta", Code.PROMPT, False)],
)
def test_a_flipped_bit_in_the_journal_is_found(run: Path, column: str, code: Code, from_sample: bool) -> None:
    trace, turn, delta_at, sample_at = victim(run)
    session = f"s{trace.id[1]}"
    with closing(sqlite3.connect(run / JOURNAL)) as db:
        [blob] = db.execute(f"SELECT {column} FROM turns WHERE session_id = ? AND id = ?", (session, turn)).fetchone()
    data = bytearray(blob)
    data[0] ^= 1
    sql(run, f"UPDATE turns SET {column} = ? WHERE session_id = ? AND id = ?", bytes(data), session, turn)
    report = audit_run(run)
    found = at(report, code)
    assert (found.turn, found.position) == (turn, sample_at if from_sample else delta_at)
    assert found.trace is not None and found.trace.startswith(trace.id[:2])
    assert at(report, Code.TRACE_CONTENT).position == found.position


def test_a_turn_dropped_from_the_journal_is_found(run: Path) -> None:
    trace = longest(run)
    leaf = trace.spans[-1]
    sql(run, "DELETE FROM turns WHERE session_id = ? AND id = ?", f"s{trace.id[1]}", leaf.turn)
    report = audit_run(run)
    named = [f for f in report.findings if f.code is Code.DROPPED_TURN and f.trace == trace.id]
    assert named and named[0].position == leaf.start and named[0].turn == leaf.turn
    assert report.drift_tokens >= np.count_nonzero(trace.loss_mask[leaf.start : leaf.end])


def test_a_turn_dropped_with_its_call_and_its_trajectory_is_still_found(run: Path) -> None:
    sql(run, "DELETE FROM turns WHERE session_id = 's1'")
    sql(run, "DELETE FROM calls WHERE session_id = 's1'")
    sql(run, "DELETE FROM sessions WHERE id = 's1'")
    sql(run, "DELETE FROM results WHERE rollout_id = 'r1'")
    rewrite(run, lambda t: None if t.rollout_id == "r1" else t)
    report = audit_run(run)
    assert codes(report) == {Code.DROPPED_TURN} and len(report.findings) == 14


def test_a_parent_dropped_from_the_journal_is_a_finding_and_not_a_crash(run: Path) -> None:
    trace, turn, _, _ = victim(run)
    sql(run, "DELETE FROM turns WHERE session_id = ? AND id = ?", f"s{trace.id[1]}", turn)
    assert {Code.TREE, Code.DROPPED_TURN} <= codes(audit_run(run))


def test_two_turns_swapped_in_the_journal_are_found(run: Path) -> None:
    trace, turn, _, _ = victim(run)
    session, other = f"s{trace.id[1]}", trace.spans[5].turn
    with closing(sqlite3.connect(run / JOURNAL)) as db, db:
        get = "SELECT token_ids, logprobs FROM turns WHERE session_id = ? AND id = ?"
        put = "UPDATE turns SET token_ids = ?, logprobs = ? WHERE session_id = ? AND id = ?"
        mine, theirs = (db.execute(get, (session, t)).fetchone() for t in (turn, other))
        db.execute(put, (*theirs, session, turn))
        db.execute(put, (*mine, session, other))
    report = audit_run(run)
    assert at(report, Code.SAMPLE).position is not None and at(report, Code.SAMPLE).trace is not None
    assert {f.turn for f in report.findings if f.code is Code.SAMPLE} == {turn, other}


def test_a_turn_the_engine_never_drew_is_found(run: Path) -> None:
    trace, turn, _, sample_at = victim(run)
    sql(run, "UPDATE turns SET request_id = 'made-up' WHERE session_id = ? AND id = ?", f"s{trace.id[1]}", turn)
    report = audit_run(run)
    assert (at(report, Code.UNLOGGED_TURN).turn, at(report, Code.UNLOGGED_TURN).position) == (turn, sample_at)
    assert Code.DROPPED_TURN in codes(report) and report.drift_tokens > 0


def test_a_distribution_that_is_not_the_recorded_one_is_found(run: Path) -> None:
    sql(run, """UPDATE turns SET sampling = replace(sampling, '"temperature":1.0', '"temperature":0.5') WHERE id = 3""")
    assert Code.SAMPLING in codes(audit_run(run))


# --- mutants: records and trajectories agree, and both are wrong ----------------------------------------------------------


def forge(run: Path, rollout: int, change: Callable[[list], list]) -> AuditReport:
    """Let the proxy itself have been wrong: its journal and its trajectories agree, only the engine knows better."""
    session, rollout_id = f"s{rollout}", f"r{rollout}"
    with JournalReader(run / JOURNAL) as journal:
        turns = change(journal.turns(session))
    for turn in turns:
        values = (turn.prompt_delta.tobytes(), turn.sample.token_ids.tobytes(), turn.sample.logprobs.tobytes())
        statement = "UPDATE turns SET prompt_delta = ?, token_ids = ?, logprobs = ?, request_id = ?, prompt_len = ? "
        where = "WHERE session_id = ? AND id = ?"
        sql(run, statement + where, *values, turn.request_id, turn.prompt_len, session, turn.id)
    rewrite(run, lambda t: trajectory_of(rollout_id, turns, TracePolicy()) if t.rollout_id == rollout_id else t)
    return audit_run(run)


def test_a_bridge_that_renders_the_history_anew_is_drift(run: Path) -> None:
    trace, turn, _, _ = victim(run)

    def retokenised(turns: list) -> list:
        delta = np.concatenate([[5], turns[turn].prompt_delta]).astype(np.int32)
        below = {turn}
        for t in turns:
            if t.parent in below:
                below.add(t.id)
        longer = [replace(t, prompt_len=t.prompt_len + 1) if t.id in below else t for t in turns]
        longer[turn] = replace(longer[turn], prompt_delta=delta)
        return longer

    report = forge(run, int(trace.id[1]), retokenised)
    assert report.drift_tokens >= np.count_nonzero(trace.loss_mask[trace.spans[3].start :]) > 0
    assert {Code.PROMPT, Code.TRACE_CONTEXT} <= codes(report)


def test_swapped_siblings_are_drift(run: Path) -> None:
    trace, turn, _, _ = victim(run)
    other = trace.spans[5].turn

    def swapped(turns: list) -> list:
        a, b = turns[turn], turns[other]
        turns[turn], turns[other] = replace(a, sample=b.sample), replace(b, sample=a.sample)
        return turns

    assert forge(run, int(trace.id[1]), swapped).drift_tokens > 0


def test_a_retry_that_joined_the_wrong_sample_is_drift(run: Path) -> None:
    trace, turn, _, _ = victim(run)

    def joined(turns: list) -> list:
        turns[turn] = replace(turns[turn], request_id=turns[trace.spans[5].turn].request_id)
        return turns

    report = forge(run, int(trace.id[1]), joined)
    assert report.drift_tokens > 0 and Code.DROPPED_TURN in codes(report)


# --- failures that are not drift ------------------------------------------------------------------------------------------


def log_more(run: Path, *request_ids: str) -> None:
    log = EngineLog(run / ENGINE_LOG)
    for request_id in request_ids:
        log.append(EngineCall(request_id, as_ids([1, 2]), as_ids([3]), as_logprobs([-1.0]), "abort"))
    log.close()


def test_samples_lost_in_flight_and_failed_calls_are_counted_and_pass(run: Path) -> None:
    log_more(run, "q-open", "q-failed", "polar-probe-x", "polar-score-y", "s0-q0")
    insert = "INSERT INTO calls (request_id, call_id, session_id, opened_at, dialect, prompt_len, streamed, dropped, rewrites, "
    insert += "kind, ended_at, status) VALUES (?, ?, 's0', 1, 'd', 2, 1, '[]', 0, 'main', ?, ?)"
    sql(run, insert, "q-open", "x1", None, None)
    sql(run, insert, "q-failed", "x2", 5.0, "EngineTimeout")
    assert [f.code for f in audit_run(run).findings] == [Code.DROPPED_TURN], "a closed session has nothing in flight"
    sql(run, "UPDATE sessions SET closed_at = NULL, status = NULL WHERE id = 's0'")
    report = audit_run(run)
    assert report.ok, [str(f) for f in report.findings]
    assert (report.lost_in_flight, report.failed_calls, report.calls) == (1, 2, 44)


def test_a_sample_that_a_killed_proxy_had_no_time_to_open_was_lost_in_flight(run: Path) -> None:
    log_more(run, "polar-s0-0123456789abcdef")
    assert [f.code for f in audit_run(run).findings] == [Code.DROPPED_TURN], "its session was closed, so nothing was in flight"
    sql(run, "UPDATE sessions SET closed_at = NULL, status = NULL WHERE id = 's0'")
    report = audit_run(run)
    assert report.ok and report.lost_in_flight == 1


def test_a_sample_that_the_journal_never_opened_is_not_forgiven(run: Path) -> None:
    log_more(run, "q-unknown")
    report = audit_run(run)
    assert [f.code for f in report.findings] == [Code.DROPPED_TURN] and "q-unknown" in report.findings[0].message


@pytest.mark.parametrize(("finish", "stop", "passes"), [("abort", None, True), ("stop", "END", True), ("stop", None, False)])
def test_only_a_sample_that_was_cut_may_be_shorter_than_the_engines(
    run: Path, finish: str, stop: str | None, passes: bool
) -> None:
    """The engine goes on for a few tokens after we have stopped listening; it must not after it said that it had finished."""
    turn = longest(run).spans[-1].turn
    rollout = int(longest(run).id[1])
    calls = read_engine_log(run / ENGINE_LOG)
    (run / ENGINE_LOG).unlink()
    log = EngineLog(run / ENGINE_LOG)
    for call in calls:
        if call.request_id == f"s{rollout}-q{turn}":
            ids, lps = np.append(call.token_ids, 4), np.append(call.logprobs, -1)
            call = replace(call, token_ids=as_ids(ids), logprobs=as_logprobs(lps))
        log.append(call)
    log.close()
    sql(run, "UPDATE turns SET finish_reason = ?, stop = ? WHERE session_id = ? AND id = ?", finish, stop, f"s{rollout}", turn)
    with JournalReader(run / JOURNAL) as journal:
        turns = journal.turns(f"s{rollout}")
    made = trajectory_of(f"r{rollout}", turns, TracePolicy())
    rewrite(run, lambda t: made if t.rollout_id == made.rollout_id else t)
    report = audit_run(run)
    assert report.ok is passes, [str(f) for f in report.findings]
    assert (finish == FinishReason.ABORT.value) is (MaskReason.ABANDONED in report.masked_tokens)


def test_a_superseded_attempt_is_accounted_for_as_infra(run: Path) -> None:
    sql(run, "UPDATE sessions SET rollout_id = 'r0', attempt = 1 WHERE id = 's1'")
    sql(run, "UPDATE results SET rollout_id = 'r0', attempt = 1 WHERE rollout_id = 'r1'")
    with JournalReader(run / JOURNAL) as journal:
        first, second = journal.turns("s0"), journal.turns("s1")
    made = trajectory_of("r0", second, TracePolicy())
    rewrite(run, lambda t: made if t.rollout_id == "r0" else None if t.rollout_id == "r1" else t)
    report = audit_run(run)
    assert report.ok, [str(f) for f in report.findings]
    assert report.unclaimed_sessions == 1
    assert report.masked_tokens == {MaskReason.INFRA: sum(len(t.sample) for t in first)}
    assert report.sampled_tokens == report.trained_tokens + sum(report.masked_tokens.values())


def test_an_infra_failure_may_leave_out_its_traces_but_not_its_tokens(run: Path) -> None:
    with JournalReader(run / JOURNAL) as journal:
        turns = journal.turns("s0")
    built = build_traces("r0", turns, TracePolicy(), infra=True)
    failed = trajectory_of("r0", turns, TracePolicy(), Status.ENGINE_FAILED)
    assert failed.masked == built.masked and failed.reward is None
    rewrite(run, lambda t: replace(failed, traces=()) if t.rollout_id == "r0" else t)
    assert audit_run(run).ok
    rewrite(run, lambda t: replace(t, masked={}) if t.rollout_id == "r0" else t)
    assert Code.ACCOUNT in codes(audit_run(run))


# --- re-scoring -----------------------------------------------------------------------------------------------------------


def test_trained_tokens_of_the_served_version_are_rescored_and_only_those(run: Path) -> None:
    stored = traces(run)
    by_ids = {t.token_ids.tobytes(): t for t in stored.values()}
    assert audit_run(run).max_logprob_diff is None

    def score(ids: np.ndarray) -> np.ndarray:
        out = by_ids[ids.tobytes()].logprobs.copy()
        out[by_ids[ids.tobytes()].loss_mask] += 0.125
        return out

    report = audit_run(run, score=score)
    assert report.max_logprob_diff == pytest.approx(0.125, abs=1e-5)
    assert report.rescored_tokens == report.trained_tokens
    assert audit_run(run, score=score, served_version=9).rescored_tokens == 0


@pytest.mark.parametrize("name", [ENGINE_LOG, JOURNAL, MANIFEST, TRAJECTORIES])
def test_a_missing_file_is_an_audit_error(run: Path, name: str) -> None:
    (run / name).unlink()
    with pytest.raises(AuditError):
        audit_run(run)
