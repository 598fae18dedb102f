# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The trace in the response owns what is trained on it, and it is the one that the rule names."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_polar.gym.main_trace import choose, own, trained_turns
from nemo_polar.rollout.rolled import Rolled
from nemo_polar.rollout.roller import first_root
from nemo_polar.settings import TracePolicy
from nemo_polar.types import FinishReason, ForkReason, Kind, Trace
from tests.gym.made import drawn, rolled, turn
from tests.support.tree_strategies import policies, trees

choices = st.sampled_from(["first_prompt", "most_tokens"])


def tokens(traces: tuple[Trace, ...]) -> Counter[tuple[int, int]]:
    """How often each (turn, index) is trained."""
    return Counter(
        (span.turn, int(i))
        for trace in traces
        for span in trace.spans
        if span.role == "sampled"
        for i in np.flatnonzero(trace.loss_mask[span.start : span.end])
    )


@given(trees, policies, choices)
@settings(max_examples=200, deadline=None)
def test_the_same_tokens_are_trained_after_ownership_moved_each_once(tree, policy, choice) -> None:
    made = drawn(tree, policy)
    before = made.trajectory.traces
    main = choose(before, made.turns, choice)
    if main is None:
        assert not before
        return
    after = own(before, main)
    assert tokens(after) == tokens(before) and set(tokens(after).values()) <= {1}
    assert sum(int(t.loss_mask.sum()) for t in after) == tokens(before).total()
    assert after[0].id == main.id and [t.id for t in after[1:]] == [t.id for t in before if t.id != main.id]


@given(trees, policies)
@settings(max_examples=100, deadline=None)
def test_the_chosen_trace_trains_all_that_is_trained_on_it_and_nothing_else_of_any_trace_changes(tree, policy) -> None:
    made = drawn(tree, policy)
    before = {t.id: t for t in made.trajectory.traces}
    main = choose(made.trajectory.traces, made.turns)
    if main is None:
        return
    after = own(made.trajectory.traces, main)
    trained = trained_turns(made.trajectory.traces)
    for span in after[0].spans:
        if span.role == "sampled":
            assert (after[0].loss_mask[span.start : span.end] == (span.turn in trained)).all()
    for trace in after:
        old = before[trace.id]
        assert trace.token_ids is old.token_ids and trace.logprobs is old.logprobs and trace.spans == old.spans
        assert (trace.parent, trace.fork_reason, trace.kind) == (old.parent, old.fork_reason, old.kind)


@given(trees)
@settings(max_examples=100, deadline=None)
def test_by_default_no_trace_from_the_first_prompt_has_more_to_train_than_the_chosen_one(tree) -> None:
    made = drawn(tree, TracePolicy())
    root = first_root(made.turns)
    main = choose(made.trajectory.traces, made.turns)
    if main is None or root is None:
        return
    trained = trained_turns(made.trajectory.traces)

    def size(trace: Trace) -> int:
        return sum(s.end - s.start for s in trace.spans if s.role == "sampled" and s.turn in trained)

    assert main.token_ids[: len(root.prompt_delta)].tolist() == root.prompt_delta.tolist()
    assert size(main) == max(size(t) for t in made.trajectory.traces if t.spans[0].turn == root.id)


# --- the rule, case by case -----------------------------------------------------------------------------------------------


def chosen(made: Rolled, choice="first_prompt") -> str | None:
    main = choose(made.trajectory.traces, made.turns, choice)
    return None if main is None else main.id


def test_a_longer_branch_takes_what_an_older_one_owned() -> None:
    made = rolled([turn(0), turn(1, 0), turn(2, 0), turn(3, 2)])
    assert chosen(made) == "r/3"
    main, other = own(made.trajectory.traces, made.trajectory.traces[1])
    assert main.id == "r/3" and main.loss_mask.sum() == 6
    assert other.id == "r/1" and other.loss_mask.tolist() == [False] * 5 + [False] * 3 + [True] * 2


def test_of_equal_traces_the_latest_is_taken() -> None:
    assert chosen(rolled([turn(0), turn(1, 0), turn(2, 0)])) == "r/2"


def test_what_goes_on_after_a_compaction_is_taken_only_when_asked_for() -> None:
    after = turn(2, prompt=(5,), sampled=9, fork_reason=ForkReason.EDITED, fork_of=1)
    made = rolled([turn(0), turn(1, 0, kind=Kind.COMPACTION), after])
    assert chosen(made) == "r/1" and chosen(made, "most_tokens") == "r/2"


def test_a_sub_agent_is_never_taken_before_a_main_line() -> None:
    made = rolled([turn(0), turn(1, prompt=(5,), sampled=90, kind=Kind.SUBAGENT), turn(2, 1, kind=Kind.SUBAGENT)])
    assert chosen(made) == chosen(made, "most_tokens") == "r/0"


def test_a_first_call_that_was_asked_again_under_a_new_root_still_counts_as_the_first_prompt() -> None:
    lost = turn(0, finish=FinishReason.ABORT, delivered=False)
    assert chosen(rolled([lost, turn(1), turn(2, 1), turn(3, prompt=(5,), sampled=50)])) == "r/2"


def test_a_main_line_that_was_dropped_for_its_length_leaves_the_next_main_line() -> None:
    turns = [turn(0, sampled=90), turn(1, prompt=(5,), sampled=4), turn(2, prompt=(6,), sampled=9, kind=Kind.SUBAGENT)]
    assert chosen(rolled(turns, policy=TracePolicy(max_trace_tokens=50))) == "r/1"
    assert chosen(rolled(turns, policy=TracePolicy(max_trace_tokens=3))) is None


@pytest.mark.parametrize("turns", [[], [turn(0, kind=Kind.AUXILIARY)]])
def test_a_rollout_without_a_main_line_has_no_first_root(turns) -> None:
    assert first_root(turns) is None
