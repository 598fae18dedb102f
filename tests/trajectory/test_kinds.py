# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Kinds follow from tools, system prompt and position, on the shapes that real harnesses make."""

from __future__ import annotations

from nemo_polar.trajectory.kinds import classify, origins
from nemo_polar.types import FinishReason, ForkReason, Kind, Message, Role, Sample, ToolCall, Turn, as_ids, as_logprobs

SYSTEM, OTHER = b"system", b"other"
TOOLS, FEWER = b"tools", b"fewer"


def turn(
    id: int,
    parent: int | None = None,
    *,
    system: bytes = SYSTEM,
    tools: bytes = TOOLS,
    fork_of: int | None = None,
    calls: int = 0,
    size: int = 0,
) -> Turn:
    """``size``: of its prompt; by default one that grows."""
    reason = None if parent is not None else ForkReason.NEW if fork_of is None else ForkReason.EDITED
    sample, reply = (
        Sample(as_ids([1]), as_logprobs([-1]), FinishReason.STOP),
        Message(Role.ASSISTANT, (ToolCall("c", "f", "{}"),) * calls),
    )
    more = {"fork_reason": reason, "fork_of": fork_of, "tools_key": tools, "system_key": system}
    more["prompt_len"] = size or 10 + id
    return Turn(id, "s", parent, as_ids([1]), sample, reply, f"q{id}", f"c{id}", **more)


def kinds(*turns: Turn) -> str:
    """One letter a turn, in order of id."""
    found = classify(turns)
    return "".join(found[i].value[0] for i in sorted(found))


def test_a_lone_conversation_is_the_main_line_with_or_without_tools() -> None:
    assert kinds(turn(0), turn(1, 0), turn(2, 1)) == "mmm"
    assert kinds(turn(0, tools=b""), turn(1, 0, tools=b"")) == "mm"
    assert kinds() == ""


def test_a_title_asked_for_before_the_task_is_auxiliary() -> None:
    assert kinds(turn(0, system=OTHER, tools=b""), turn(1), turn(2, 1)) == "amm"


def test_a_sub_agent_has_its_own_system_prompt_and_tools() -> None:
    assert (
        kinds(turn(0), turn(1, system=OTHER, tools=FEWER), turn(2, 1, system=OTHER, tools=FEWER), turn(3, 0), turn(4, 3))
        == "mssmm"
    )


def test_a_sub_agent_with_the_same_prompt_and_tools_runs_while_the_main_line_waits() -> None:
    assert kinds(turn(0), turn(1), turn(2, 1), turn(3, 0), turn(4, 3)) == "mssmm"


def test_a_summary_of_our_history_without_tools_is_a_compaction_and_what_follows_it_is_main() -> None:
    assert kinds(turn(0), turn(1, 0), turn(2, tools=b"", fork_of=1), turn(3), turn(4, 3), turn(5, 4)) == "mmcmmm"


def test_an_edited_history_that_goes_on_is_main() -> None:
    assert kinds(turn(0), turn(1, 0), turn(2, fork_of=0), turn(3, 2)) == "mmmm"
    assert kinds(turn(0), turn(1, 0), turn(2, fork_of=1)) == "mmm"
    assert kinds(turn(0), turn(1, fork_of=0), turn(2, 1), turn(3, 0), turn(4, 3)) == "mmmmm"


def test_a_single_look_aside_from_a_line_that_goes_on_is_auxiliary() -> None:
    assert kinds(turn(0), turn(1, fork_of=0), turn(2, 0)) == "mam"


def test_a_changed_tool_list_does_not_end_the_main_line() -> None:
    assert (
        kinds(turn(0), turn(1, 0), turn(2, tools=FEWER, fork_of=1), turn(3, 2, tools=FEWER), turn(4, 3, tools=FEWER)) == "mmmmm"
    )


def test_an_edited_sub_agent_stays_a_sub_agent() -> None:
    def sub(id: int, parent: int | None = None, fork_of: int | None = None) -> Turn:
        return turn(id, parent, system=OTHER, tools=FEWER, fork_of=fork_of)

    turns = [turn(0), sub(1), sub(2, 1), sub(3, fork_of=1), sub(4, 3), turn(5, 0), turn(6, 5)]
    assert kinds(*turns) == "mssssmm"


def test_the_longest_line_with_tools_is_main_and_the_first_of_equals() -> None:
    assert kinds(turn(0, tools=b""), turn(1, 0, tools=b""), turn(2, 1, tools=b""), turn(3)) == "sssm"
    assert kinds(turn(0, system=OTHER), turn(1)) == "ms"


def test_every_turn_gets_a_kind_in_whatever_order_they_come() -> None:
    turns = [turn(0), turn(1, 0), turn(2, tools=b"", fork_of=1)]
    assert classify(turns) == classify(turns[::-1]) == {0: Kind.MAIN, 1: Kind.MAIN, 2: Kind.COMPACTION}


def sub_agent(id: int, parent: int | None = None, *, calls: int = 0) -> Turn:
    return turn(id, parent, system=OTHER, tools=FEWER, calls=calls)


def test_a_sub_agent_that_outlasts_its_main_line_is_still_a_sub_agent() -> None:
    inner = [sub_agent(1, calls=1), *(sub_agent(i, i - 1, calls=1) for i in range(2, 7))]
    turns = [turn(0, calls=1), *inner, turn(7, 0)]
    assert kinds(*turns) == "mssssssm"
    assert origins(turns) == {1: 0}


def test_a_sub_agent_of_the_same_kind_as_the_main_line_is_told_by_who_waits() -> None:
    turns = [turn(0, calls=1), turn(1, calls=1), turn(2, 1, calls=1), turn(3, 2), turn(4, 0)]
    assert kinds(*turns) == "msssm"


def test_parallel_sub_agents_are_both_the_main_lines() -> None:
    turns = [turn(0, calls=2), sub_agent(1, calls=1), sub_agent(2, calls=1), sub_agent(3, 1), sub_agent(4, 2), turn(5, 0)]
    assert kinds(*turns) == "mssssm"
    assert origins(turns) == {1: 0, 2: 0}


def test_a_sub_agent_of_a_sub_agent_is_its_own() -> None:
    deepest = turn(2, system=b"third", tools=FEWER)
    turns = [turn(0, calls=1), sub_agent(1, calls=1), deepest, sub_agent(3, 1), turn(4, 0)]
    assert kinds(*turns) == "msssm"
    assert origins(turns) == {1: 0, 2: 1}


def test_a_line_that_does_not_block_is_still_the_one_that_starts_its_sub_agents() -> None:
    turns = [turn(0, calls=2), sub_agent(1, calls=1), turn(2, 0, calls=1), sub_agent(3, calls=1), turn(4, 2)]
    assert kinds(*turns) == "msmsm"
    assert origins(turns) == {1: 0, 3: 2}


def test_a_page_summed_up_while_a_tool_runs_is_auxiliary_and_belongs_to_the_line_that_waits() -> None:
    turns = [turn(0, calls=1), turn(1, system=OTHER, tools=b""), turn(2, 0)]
    assert kinds(*turns) == "mam"
    assert origins(turns) == {1: 0}


def test_a_summary_asked_for_in_the_conversation_is_a_compaction_and_what_follows_comes_from_it() -> None:
    turns = [turn(0, calls=1), turn(1, 0, calls=1), turn(2, 1), turn(3, calls=1, size=5), turn(4, 3)]
    assert kinds(*turns) == "mmcmm"
    assert origins(turns) == {3: 2}


def test_a_summary_of_the_history_as_text_is_a_compaction_too() -> None:
    aside = turn(2, system=OTHER, tools=b"")
    turns = [turn(0, calls=1), turn(1, 0, calls=1), aside, turn(3, fork_of=0, calls=1, size=5), turn(4, 3)]
    assert kinds(*turns) == "mmcmm"
    assert origins(turns) == {2: 1, 3: 0}


def test_a_summary_under_changed_tools_is_a_compaction() -> None:
    turns = [turn(0, calls=1), turn(1, 0, calls=1), turn(2, tools=FEWER, fork_of=1), turn(3, size=5, calls=1), turn(4, 3)]
    assert kinds(*turns) == "mmcmm"


def test_every_compaction_comes_from_the_main_line_before_it() -> None:
    first, second = turn(1, tools=b"", fork_of=0), turn(3, tools=b"", fork_of=1)
    turns = [turn(0, calls=1), first, turn(2, size=5, calls=1), second, turn(4, size=5), turn(5, 4)]
    assert kinds(*turns) == "mcmcmm"
    assert origins(turns) == {1: 0, 2: 0, 3: 2, 4: 2}


def test_a_summary_that_was_asked_for_twice_is_twice_a_compaction() -> None:
    turns = [turn(0, calls=1), turn(1, 0, calls=1), turn(2, 1), turn(3, 1), turn(4, fork_of=0, size=5, calls=1), turn(5, 4)]
    assert kinds(*turns) == "mmccmm"


def test_a_main_line_comes_from_the_one_before_it_even_if_it_shares_its_beginning_with_an_older_one() -> None:
    turns = [turn(0, calls=1), turn(1, 0, calls=1), turn(2, fork_of=0, calls=1), turn(3, fork_of=0, calls=1), turn(4, 3)]
    assert kinds(*turns) == "mmmmm"
    assert origins(turns) == {2: 0, 3: 2}


def test_a_reply_that_was_dropped_for_its_content_is_no_summary() -> None:
    retried = turn(2, fork_of=0, calls=1, size=12)
    assert kinds(turn(0, calls=1), turn(1, 0), retried, turn(3, 2)) == "mmmm"


def test_a_conversation_that_only_begins_again_was_not_summed_up() -> None:
    assert kinds(turn(0), turn(1, calls=1), turn(2, 1)) == "mmm"
    assert kinds(turn(0, calls=1), turn(1, 0, calls=1), turn(2), turn(3, 2)) == "mmmm"


def test_a_main_line_that_was_cut_while_a_sub_agent_ran_stays_the_main_line() -> None:
    assert kinds(turn(0, calls=1), turn(1, 0, calls=1), sub_agent(2, calls=1)) == "mms"


def test_where_a_line_came_from_is_always_older() -> None:
    turns = [turn(0, calls=1), turn(1, tools=b"", fork_of=0), turn(2), turn(3, 2)]
    assert origins(turns) == {1: 0, 2: 0}
    assert origins([]) == {}
