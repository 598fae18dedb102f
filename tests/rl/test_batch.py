# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Batches: what is kept over random rollout trees, and each rule on small ones."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_polar.errors import TokenError
from nemo_polar.rl.advantages import AdvantageSettings, group_advantages
from nemo_polar.rl.batch import Batch, BatchSettings, build_batch
from nemo_polar.rl.owners import keep_traces
from nemo_polar.settings import TracePolicy
from nemo_polar.trajectory.build import build_traces
from nemo_polar.types import Group, Kind, Span, Status, Trace, Trajectory, as_ids, as_logprobs
from tests.support.runs import FakePolicy, draw_tree

PLAIN = AdvantageSettings(normalize_rewards=False)


def trace(rollout: str, leaf: int, *parts: tuple[int, int, bool], version: int = 0, prompt: int = 7) -> Trace:
    """A trace from (turn, sampled tokens, trained here); before each sample stands one prompt or context token."""
    ids: list[int] = []
    mask: list[bool] = []
    spans: list[Span] = []
    for turn, count, trained in parts:
        spans += [
            Span(len(ids), len(ids) + 1, "context" if ids else "prompt", turn),
            Span(len(ids) + 1, len(ids) + 1 + count, "sampled", turn),
        ]
        ids += [turn * 100 + 50 if ids else prompt, *(turn * 100 + i for i in range(count))]
        mask += [False] + [trained] * count
    sampled = np.zeros(len(ids), bool)
    for span in spans:
        sampled[span.start : span.end] = span.role == "sampled"
    return Trace(
        f"{rollout}/{leaf}",
        as_ids(ids),
        np.array(mask),
        as_logprobs(np.where(sampled, -np.array(ids) / 100 - 0.5, 0)),
        as_ids(np.where(sampled, version, -1)),
        tuple(spans),
        Kind.MAIN,
    )


def rollout(
    name: str, reward: float | None, *traces: Trace, group: str = "g", status: Status = Status.COMPLETED, count: int = 2
) -> Trajectory:
    return Trajectory(name, "task", group, status, traces or (trace(name, 0, (0, count, True)),), reward)


def group(*rollouts: Trajectory, name: str = "g") -> Group:
    return Group(name, "task", rollouts)


def advantages_of(batch: Batch) -> dict[str, float]:
    return {row.rollout_id: row.advantage for row in batch.rows}


@st.composite
def groups(draw: st.DrawFn) -> list[Group]:
    fake = FakePolicy(random.Random(draw(st.integers(0, 2**32))))
    made = []
    for g in range(draw(st.integers(1, 3))):
        rollouts = []
        for r in range(draw(st.integers(1, 4))):
            name = f"g{g}r{r}"
            status = draw(st.sampled_from([Status.COMPLETED, Status.TIMEOUT, Status.ENGINE_FAILED, Status.CANCELLED]))
            built = build_traces(name, draw_tree(fake, name, draw(st.integers(0, 9))), TracePolicy())
            # Masks are not emptied for failed rollouts here: that they are in no row must not hang on it.
            reward = draw(st.none() | st.sampled_from([0.0, 0.5, 1.0]))
            rollouts.append(Trajectory(name, f"t{g}", f"g{g}", status, built.traces, reward, masked=built.masked))
        made.append(Group(f"g{g}", f"t{g}", tuple(rollouts)))
    return made


chosen = st.builds(
    BatchSettings,
    average=st.sampled_from(["token", "rollout"]),
    max_tokens=st.none() | st.integers(1, 60),
    skip_zero_variance=st.booleans(),
)


# --- over random trees ------------------------------------------------------------------------------------------------


@given(groups(), chosen)
@settings(max_examples=120, deadline=None)
def test_every_token_that_was_to_be_trained_is_trained_once_or_counted(made, policy) -> None:
    batch = build_batch(made, policy)
    wanted = {
        (t.rollout_id, span.turn, i)
        for g in made
        for t in g.trajectories
        for tr in t.traces
        for span in tr.spans
        for i in np.flatnonzero(tr.loss_mask[span.start : span.end]).tolist()
    }
    spans = {tr.id: tr.spans for g in made for t in g.trajectories for tr in t.traces}
    trained: Counter[tuple[str, int, int]] = Counter()
    for row in batch.rows:
        for span in spans[row.trace_id]:
            at = np.flatnonzero(row.loss_mask[span.start : span.end]).tolist()
            assert not at or span.role == "sampled"
            trained.update((row.rollout_id, span.turn, i) for i in at)
    assert set(trained.values()) <= {1}
    assert trained.keys() <= wanted
    assert len(wanted) == len(trained) + sum(batch.stats.dropped_tokens.values())
    assert batch.stats.trained_tokens == len(trained)


@given(groups(), chosen)
@settings(max_examples=120, deadline=None)
def test_weights_sum_to_one_and_are_shared_as_told(made, policy) -> None:
    batch = build_batch(made, policy)
    of_rollout: Counter[str] = Counter()
    for row in batch.rows:
        assert row.weight.dtype == np.float32 and row.weight.shape == row.loss_mask.shape == row.token_ids.shape
        assert (row.weight[row.loss_mask] > 0).all() and not row.weight[~row.loss_mask].any()
        of_rollout[row.rollout_id] += float(row.weight.sum(dtype=np.float64))
    if not batch.rows:
        return
    assert sum(of_rollout.values()) == pytest.approx(1, abs=1e-5)
    if policy.average == "token":
        assert len({float(w) for row in batch.rows for w in row.weight[row.loss_mask]}) == 1
    else:
        assert list(of_rollout.values()) == pytest.approx([1 / len(of_rollout)] * len(of_rollout), abs=1e-5)


@given(groups(), chosen)
@settings(max_examples=120, deadline=None)
def test_a_rollout_has_one_advantage_and_one_without_a_reward_has_no_part_in_any(made, policy) -> None:
    batch = build_batch(made, policy)
    rows = {(row.rollout_id, row.advantage) for row in batch.rows}
    assert len(rows) == len({rollout_id for rollout_id, _ in rows})
    by_id = dict(rows)
    for g in made:
        counted = [t for t in g.trajectories if t.reward is not None and not t.status.infra]
        alone = group_advantages([t.reward for t in counted], policy.advantages)
        expected = dict(zip([t.rollout_id for t in counted], alone.values.tolist(), strict=True))
        for t in g.trajectories:
            if t.rollout_id in by_id:
                assert by_id[t.rollout_id] == expected[t.rollout_id]


@given(groups(), chosen)
@settings(max_examples=80, deadline=None)
def test_a_trace_is_a_row_as_it_is_or_not_at_all(made, policy) -> None:
    batch = build_batch(made, policy)
    traces = {tr.id: tr for g in made for t in g.trajectories for tr in t.traces}
    for row in batch.rows:
        whole = traces[row.trace_id]
        assert np.array_equal(row.token_ids, whole.token_ids) and np.array_equal(row.logprobs, whole.logprobs)
        assert np.array_equal(row.weights_version, whole.weights_version) and row.kind is whole.kind
        assert policy.max_tokens is None or len(row) <= policy.max_tokens
    assert len(batch.rows) + sum(batch.stats.dropped_traces.values()) == len(traces)
    metrics = batch.stats.metrics()
    assert all(np.isfinite(v) for v in metrics.values()) and metrics["rows"] == len(batch.rows)


# --- each rule --------------------------------------------------------------------------------------------------------


def test_a_failed_rollout_is_in_neither_baseline_nor_loss() -> None:
    failed = rollout("r2", None, status=Status.ENGINE_FAILED)
    # A reward beside a failure of ours must not count either (rule 4).
    lied = rollout("r3", 1.0, status=Status.SANDBOX_FAILED)
    cancelled = rollout("r4", None, status=Status.CANCELLED)
    batch = build_batch(
        [group(rollout("r0", 1.0), rollout("r1", 0.0), failed, lied, cancelled)], BatchSettings(advantages=PLAIN)
    )
    assert advantages_of(batch) == {"r0": 1.0, "r1": -1.0}
    (report,) = batch.stats.groups
    assert report.rewards == (1.0, 0.0) and set(report.left_out) == {"r2", "r3", "r4"}
    assert batch.stats.dropped_tokens == {"infra": 6} and batch.stats.dropped_traces == {"infra": 3}


def test_a_timeout_that_was_scored_counts() -> None:
    batch = build_batch([group(rollout("r0", 1.0), rollout("r1", 0.0, status=Status.TIMEOUT))], BatchSettings(advantages=PLAIN))
    assert advantages_of(batch) == {"r0": 1.0, "r1": -1.0}


def test_a_group_without_rewards_is_skipped_by_name() -> None:
    batch = build_batch([group(rollout("r0", None, status=Status.VERIFIER_FAILED))], BatchSettings())
    assert batch.rows == () and batch.stats.skipped == {"no_reward": 1}
    assert not batch.stats.groups[0].zero_variance
    assert "reward_mean" not in batch.stats.metrics()


def test_an_advantage_is_of_the_rollout_however_many_traces_it_has() -> None:
    split = rollout("r0", 1.0, trace("r0", 0, (0, 2, True)), trace("r0", 1, (1, 3, True)), trace("r0", 2, (2, 1, True)))
    batch = build_batch([group(split, rollout("r1", 0.0), rollout("r2", 0.0))], BatchSettings(advantages=PLAIN))
    assert [row.advantage for row in batch.rows] == [1.0, 1.0, 1.0, -0.5, -0.5]
    assert batch.stats.rollouts == 3 and batch.stats.rewards == (1.0, 0.0, 0.0)


def test_token_and_rollout_averages_by_hand() -> None:
    """Two rollouts with 2 + 4 and 2 trained tokens: a token weighs 1/8, or 1/12 in the first and 1/4 in the second."""
    made = [
        group(rollout("r0", 1.0, trace("r0", 0, (0, 2, True)), trace("r0", 1, (1, 4, True))), rollout("r1", 0.0)),
    ]
    for average, expected in (("token", [1 / 8, 1 / 8, 1 / 8]), ("rollout", [1 / 12, 1 / 12, 1 / 4])):
        rows = build_batch(made, BatchSettings(average=average)).rows
        assert [float(row.weight[row.loss_mask][0]) for row in rows] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("rewards", [(0.5, 0.5), (0.5,)])
def test_a_group_that_teaches_nothing_is_reported_and_skipped_by_choice(rewards) -> None:
    dull = group(*(rollout(f"r{n}", r) for n, r in enumerate(rewards)))
    other = group(rollout("s0", 1.0, group="h"), rollout("s1", 0.0, group="h"), name="h")
    kept = build_batch([dull, other], BatchSettings())
    assert [g.zero_variance for g in kept.stats.groups] == [True, False]
    assert kept.stats.skipped == {} and len(kept.rows) == len(rewards) + 2
    assert {a for r, a in advantages_of(kept).items() if r.startswith("r")} == {0.0}
    skipped = build_batch([dull, other], BatchSettings(skip_zero_variance=True))
    assert skipped.stats.skipped == {"zero_variance": 1}
    assert advantages_of(skipped).keys() == {"s0", "s1"}
    assert skipped.stats.dropped_tokens == {"zero_variance": 2 * len(rewards)}
    # A curve must not lose the groups that are solved.
    assert skipped.stats.rewards == kept.stats.rewards
    assert sum(float(row.weight.sum()) for row in skipped.rows) == pytest.approx(1)


def test_a_long_trace_is_dropped_whole_and_its_rollout_stays_in_the_baseline() -> None:
    long = rollout("r0", 1.0, trace("r0", 0, (0, 9, True)))
    batch = build_batch([group(long, rollout("r1", 0.0))], BatchSettings(max_tokens=5, advantages=PLAIN))
    assert advantages_of(batch) == {"r1": -1.0}
    assert batch.stats.dropped_traces == {"too_long": 1} and batch.stats.dropped_tokens == {"too_long": 9}
    assert float(batch.rows[0].weight.sum()) == pytest.approx(1)


def test_what_a_dropped_trace_shares_is_trained_by_the_first_kept_one_that_has_it() -> None:
    long = trace("r0", 2, (0, 2, True), (1, 9, True))
    short = trace("r0", 3, (0, 2, False), (3, 1, True))
    shorter = trace("r0", 4, (0, 2, False), (4, 1, True))
    made = [group(rollout("r0", 1.0, long, short, shorter), rollout("r1", 0.0))]
    batch = build_batch(made, BatchSettings(max_tokens=8))
    by_id = {row.trace_id: row for row in batch.rows}
    assert by_id["r0/3"].loss_mask.tolist() == [False, True, True, False, True]
    assert by_id["r0/4"].loss_mask.tolist() == [False, False, False, False, True]
    assert batch.stats.dropped_tokens == {"too_long": 9}
    assert short.loss_mask.tolist() == [False, False, False, False, True], "the trajectory itself is not changed"


def test_a_group_that_did_not_begin_with_one_prompt_is_reported_with_the_hashes() -> None:
    same = group(rollout("r0", 1.0), rollout("r1", 0.0))
    differing = group(
        rollout("s0", 1.0, trace("s0", 0, (0, 2, True)), group="h"),
        rollout("s1", 0.0, trace("s1", 0, (0, 2, True), prompt=8), group="h"),
        name="h",
    )
    stats = build_batch([same, differing], BatchSettings()).stats
    assert [g.group_id for g in stats.mixed_prompts] == ["h"]
    assert sorted(stats.mixed_prompts[0].first_prompts.values()) == [("s0",), ("s1",)]
    (shared,) = stats.groups[0].first_prompts
    assert shared in stats.groups[1].first_prompts and len(shared) == 16


def test_a_first_prompt_is_that_of_the_oldest_main_root() -> None:
    aside = replace(trace("r0", 0, (0, 1, True), prompt=9), kind=Kind.AUXILIARY)
    later = trace("r0", 5, (5, 1, True), prompt=3)
    first = trace("r0", 2, (2, 1, True))
    made = [group(rollout("r0", 1.0, aside, later, first), rollout("r1", 0.0))]
    assert not build_batch(made, BatchSettings()).stats.mixed_prompts


def test_staleness_is_over_trained_tokens() -> None:
    old = rollout("r0", 1.0, trace("r0", 0, (0, 3, True), version=4))
    new = rollout("r1", 0.0, trace("r1", 0, (0, 1, True), version=6), trace("r1", 1, (1, 5, False), version=0))
    staleness = build_batch([group(old, new)], BatchSettings(), current_version=6).stats.staleness
    assert staleness is not None
    assert (staleness.lowest, staleness.mean, staleness.highest) == (0, 1.5, 2)
    assert build_batch([group(old, new)], BatchSettings()).stats.staleness is None
    with pytest.raises(ValueError, match="version 6, but 5"):
        build_batch([group(old, new)], BatchSettings(), current_version=5)


def test_a_rollout_is_counted_once() -> None:
    with pytest.raises(ValueError, match="r0 is in the batch twice"):
        build_batch([group(rollout("r0", 1.0), rollout("r0", 0.0))], BatchSettings())
    with pytest.raises(ValueError, match="given in another"):
        build_batch([group(rollout("r0", 1.0, group="h"))], BatchSettings())


def test_a_token_trained_by_two_traces_or_never_sampled_is_refused() -> None:
    twice = rollout("r0", 1.0, trace("r0", 2, (0, 2, True)), trace("r0", 3, (0, 2, True), (3, 1, True)))
    with pytest.raises(TokenError, match="turn 0 are trained by another"):
        keep_traces(twice, None)
    one = trace("r0", 0, (0, 2, True))
    with pytest.raises(TokenError, match="1 trained tokens were not sampled"):
        keep_traces(rollout("r0", 1.0, replace(one, loss_mask=np.array([True, True, True]))), None)
    with pytest.raises(TokenError, match="differ in length"):
        keep_traces(rollout("r0", 1.0, replace(one, logprobs=one.logprobs[:2])), None)


def test_nothing_makes_an_empty_batch() -> None:
    batch = build_batch([], BatchSettings(), current_version=3)
    assert batch.rows == () and batch.stats.trained_tokens == 0 and batch.stats.staleness is None
