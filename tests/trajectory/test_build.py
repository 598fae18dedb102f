# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Rules 1-3 over random trees, and each masking rule on a small one."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_polar.errors import ConfigError, TokenError
from nemo_polar.settings import TracePolicy
from nemo_polar.trajectory.build import BuiltTraces, build_traces
from nemo_polar.types import (
    FinishReason,
    ForkReason,
    Kind,
    MaskReason,
    Message,
    Role,
    Sample,
    SamplingParams,
    Turn,
    as_ids,
    as_logprobs,
)
from tests.support.runs import FakePolicy, draw_tree
from tests.support.tree_strategies import policies, trees


def drawn(tree: tuple[int, int]) -> tuple[FakePolicy, list[Turn]]:
    fake = FakePolicy(random.Random(tree[0]))
    return fake, draw_tree(fake, "s", tree[1])


@given(trees, policies, st.booleans())
@settings(max_examples=150, deadline=None)
def test_every_sampled_token_is_trained_once_or_masked_for_one_reason(tree, policy, infra) -> None:
    _, turns = drawn(tree)
    built = build_traces("r", turns, policy, infra=infra)
    trained: Counter[tuple[int, int]] = Counter()
    for trace in built.traces:
        sampled = np.zeros(len(trace), bool)
        for span in trace.spans:
            if span.role == "sampled":
                sampled[span.start : span.end] = True
                trained.update((span.turn, i) for i in np.flatnonzero(trace.loss_mask[span.start : span.end]).tolist())
        assert not (trace.loss_mask & ~sampled).any()
        assert (trace.weights_version[~sampled] == -1).all() and (trace.logprobs[~sampled] == 0).all()
    assert set(trained.values()) <= {1}
    assert len(trained) == built.trained
    assert built.sampled == sum(len(t.sample) for t in turns) == built.trained + sum(built.masked.values())
    assert built.owners.keys() | built.reasons.keys() == {t.id for t in turns}
    assert not built.owners.keys() & built.reasons.keys()
    if infra:
        assert built.trained == 0 and set(built.masked) <= {MaskReason.INFRA}


@given(trees, policies)
@settings(max_examples=150, deadline=None)
def test_every_sample_stands_in_its_traces_behind_the_prompt_the_engine_was_given(tree, policy) -> None:
    fake, turns = drawn(tree)
    log = {call.request_id: call for call in fake.log}
    for trace in build_traces("r", turns, policy).traces:
        at = 0
        for span in trace.spans:
            assert span.start == at < span.end
            at = span.end
            if span.role == "sampled":
                call = log[turns[span.turn].request_id]
                assert np.array_equal(trace.token_ids[: span.start], call.prompt_ids)
                assert np.array_equal(trace.token_ids[span.start : span.end], call.token_ids)
                assert np.array_equal(trace.logprobs[span.start : span.end], call.logprobs)
        assert at == len(trace)


@given(trees, policies)
@settings(max_examples=100, deadline=None)
def test_a_token_is_truncated_only_when_no_kept_trace_has_it(tree, policy) -> None:
    _, turns = drawn(tree)
    built = build_traces("r", turns, policy)
    kept = {span.turn for trace in built.traces for span in trace.spans if span.role == "sampled"}
    for turn in turns:
        if built.reasons.get(turn.id) is MaskReason.TRUNCATED and len(turn.sample):
            assert turn.id not in kept
    leaves = {t.id for t in turns} - {t.parent for t in turns}
    assert len(built.traces) + len(built.dropped) == len(leaves)
    assert all(policy.max_trace_tokens is None or len(t) <= policy.max_trace_tokens for t in built.traces)


@given(trees)
@settings(max_examples=60, deadline=None)
def test_lineage_names_kept_traces_and_has_no_cycles(tree) -> None:
    _, turns = drawn(tree)
    parents = {t.id: t.parent for t in build_traces("r", turns, TracePolicy(max_trace_tokens=60)).traces}
    for trace in parents:
        seen, at = set(), trace
        while at is not None:
            assert at in parents and at not in seen
            seen.add(at)
            at = parents[at]


@given(trees)
@settings(max_examples=40, deadline=None)
def test_the_order_of_the_turns_given_does_not_matter(tree) -> None:
    _, turns = drawn(tree)
    a, b = (build_traces("r", order, TracePolicy()) for order in (turns, turns[::-1]))
    assert [t.id for t in a.traces] == [t.id for t in b.traces] and a.owners == b.owners and a.masked == b.masked


# --- single rules ---------------------------------------------------------------------------------------------------------


def turn(id: int, parent: int | None = None, *, sampled: int = 2, finish: FinishReason = FinishReason.STOP, **more) -> Turn:
    sample = Sample(
        as_ids(range(sampled)), as_logprobs([-1.0] * sampled), finish, sampling=more.pop("sampling", SamplingParams())
    )
    fork = ForkReason.NEW if parent is None else None
    defaults = {"delivered": True, "fork_reason": more.pop("fork_reason", fork)}
    reply = Message(Role.ASSISTANT, ())
    return Turn(id, "s", parent, as_ids([7] * 3), sample, reply, f"q{id}", f"c{id}", **{**defaults, **more})


def build(*turns: Turn, **policy) -> BuiltTraces:
    return build_traces("r", turns, TracePolicy(**policy))


def test_a_shared_prefix_is_trained_by_the_first_trace_and_context_in_the_next() -> None:
    built = build(turn(0), turn(1, 0), turn(2, 0))
    assert dict(built.owners) == {0: "r/1", 1: "r/1", 2: "r/2"}
    assert [t.loss_mask.sum() for t in built.traces] == [4, 2]


def test_main_traces_own_before_older_ones_of_other_kinds() -> None:
    built = build(turn(0), turn(1, 0, kind=Kind.SUBAGENT), turn(2, 0))
    assert built.owners[0] == "r/2" and built.owners[1] == "r/1"


def test_a_trace_that_is_too_long_hands_its_tokens_to_the_next_one() -> None:
    built = build(turn(0), turn(1, 0, sampled=50), turn(2, 0), max_trace_tokens=20)
    assert built.owners[0] == "r/2" and built.reasons == {1: MaskReason.TRUNCATED}
    assert built.dropped == ("r/1",) and built.masked == {MaskReason.TRUNCATED: 50}


def test_an_undelivered_sibling_is_masked_and_a_delivered_but_dropped_one_is_trained() -> None:
    built = build(turn(0), turn(1, 0, delivered=False), turn(2, 0), turn(3, 0), turn(4, 3))
    assert built.reasons == {1: MaskReason.UNDELIVERED}
    assert built.owners[2] == "r/2" and built.owners[4] == "r/4"


def test_an_answered_reply_was_delivered_whatever_its_mark_says() -> None:
    assert not build(turn(0, delivered=False), turn(1, 0)).reasons
    assert build(turn(0, delivered=False), turn(1, 0, delivered=False)).reasons == {1: MaskReason.UNDELIVERED}


def test_an_aborted_sample_is_abandoned_unless_something_continues_or_answers_it() -> None:
    abort = FinishReason.ABORT
    assert build(turn(0, finish=abort)).reasons == {0: MaskReason.ABANDONED}
    assert not build(turn(0, finish=abort, delivered=False), turn(1, 0, continues=True)).reasons
    assert not build(turn(0, finish=abort), turn(1, 0)).reasons


def test_a_continued_reply_shares_the_fate_of_its_end() -> None:
    start = turn(0, finish=FinishReason.ABORT, delivered=False)
    lost = build(start, turn(1, 0, continues=True, delivered=False))
    assert lost.reasons == {0: MaskReason.UNDELIVERED, 1: MaskReason.UNDELIVERED}
    given_up = build(start, turn(1, 0, continues=True, finish=FinishReason.ABORT))
    assert given_up.reasons == {0: MaskReason.ABANDONED, 1: MaskReason.ABANDONED}
    assert not build(start, turn(1, 0, continues=True, delivered=False), turn(2, 0, continues=True)).reasons.keys() & {0, 2}


def test_kinds_that_are_not_trained_are_masked_under_their_name() -> None:
    turns = [turn(i, kind=kind) for i, kind in enumerate((Kind.MAIN, Kind.SUBAGENT, Kind.COMPACTION, Kind.AUXILIARY))]
    expected = {1: MaskReason.SUBAGENT, 2: MaskReason.COMPACTION, 3: MaskReason.AUXILIARY}
    assert build(*turns, train_kinds=(Kind.MAIN,)).reasons == expected
    assert build(*turns).reasons == {3: MaskReason.AUXILIARY}


def test_a_distribution_the_trainer_cannot_rescore_is_masked_unless_asked_for() -> None:
    tempered = turn(0, sampling=SamplingParams(temperature=0.7))
    assert build(tempered, turn(1, 0)).reasons == {0: MaskReason.DISTRIBUTION}
    assert not build(tempered, turn(1, 0), train_unrescorable=True).reasons


def test_a_fork_names_the_trace_it_left_and_why_and_a_branch_only_the_trace() -> None:
    built = build(turn(0), turn(1, 0), turn(2, 0), turn(3, fork_reason=ForkReason.EDITED, fork_of=2))
    lineage = {t.id: (t.parent, t.fork_reason) for t in built.traces}
    assert lineage == {
        "r/1": (None, ForkReason.NEW),
        "r/2": ("r/1", None),
        "r/3": ("r/2", ForkReason.EDITED),
    }


def test_a_sample_across_a_weight_update_counts_as_drawn_under_the_older_weights() -> None:
    old = turn(0)
    [trace] = build(replace(old, sample=replace(old.sample, weights_version=(3, 5)))).traces
    assert trace.weights_version.tolist() == [-1, -1, -1, 3, 3]


@pytest.mark.parametrize("turns", [(turn(1, 0),), (turn(0), turn(0)), (turn(0), turn(1, 2), turn(2, 0))])
def test_turns_that_are_no_tree_are_refused(turns) -> None:
    with pytest.raises(TokenError):
        build(*turns)


def test_a_policy_without_the_main_line_is_refused() -> None:
    with pytest.raises(ConfigError):
        build(turn(0), train_kinds=(Kind.SUBAGENT,))
