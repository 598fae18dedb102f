# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The rules about sub-agents and compactions: each can be broken, and the model knows where it is."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness_matrix.conversation import Conversation
from tests.harness_matrix.rules import broken
from tests.harness_matrix.scenarios import INSTRUCTION, Delegate
from tests.harness_matrix.test_parts import row

Turns = list[tuple[int, int | None, str]]
SUBAGENT: Turns = [(0, None, "main"), *[(k, None, "subagent") for k in (1, 2, 3)], (4, 0, "main")]
COMPACTION: Turns = [(0, None, "main"), (1, 0, "main"), (2, None, "compaction"), (3, None, "main"), (4, None, "compaction")]


def turns(rows: Turns, **taken_for: str) -> list[list[dict[str, Any]]]:
    return [[{"id": n, "parent": up, "is": kind, "kind": taken_for.get(f"t{n}", kind)} for n, up, kind in rows]]


def traces(*rows: tuple[int, int, int | None]) -> list[list[dict[str, Any]]]:
    return [[{"root": root, "leaf": leaf, "parent": parent} for root, leaf, parent in rows]]


STARTED = traces((0, 4, None), (1, 1, 4), (2, 2, 4), (3, 3, 4))
WENT_ON = traces((0, 1, None), (2, 2, 1), (3, 3, 1), (4, 4, 3))
GOOD: dict[str, dict[str, Any]] = {
    "subagent": {"main_traces": [1], "turn_list": turns(SUBAGENT), "trace_list": STARTED},
    "compaction": {"turn_list": turns(COMPACTION), "trace_list": WENT_ON},
}
WRONG: list[tuple[str, dict[str, Any]]] = [
    (
        "subagent",
        {"turn_list": turns([t for t in SUBAGENT if t[0] != 3]), "trace_list": traces((0, 4, None), (1, 1, 4), (2, 2, 4))},
    ),
    ("subagent", {"turn_list": turns(SUBAGENT, t2="auxiliary")}),
    ("subagent", {"turn_list": turns(SUBAGENT, t2="main"), "main_traces": [2]}),
    ("subagent", {"trace_list": traces((0, 4, None), (1, 1, 4), (2, 2, None), (3, 3, 4))}),
    ("subagent", {"trace_list": traces((0, 4, None), (1, 1, 4), (2, 2, 1), (3, 3, 4))}),
    ("subagent", {"forks": {"edited": 1}}),
    ("subagent", {"masked": {"undelivered": 4}}),
    ("compaction", {"turn_list": turns(COMPACTION[:2]), "trace_list": traces((0, 1, None))}),
    ("compaction", {"turn_list": turns(COMPACTION, t2="auxiliary")}),
    ("compaction", {"turn_list": turns(COMPACTION, t3="compaction")}),
    ("compaction", {"trace_list": traces((0, 1, None), (2, 2, 1), (3, 3, None), (4, 4, 3))}),
    ("compaction", {"trace_list": traces((0, 1, None), (2, 2, 1), (3, 3, 2), (4, 4, 3))}),
    ("compaction", {"trace_list": traces((0, 1, None), (2, 2, 1), (3, 3, 1), (4, 4, 1))}),
    ("compaction", {"masked": {"compaction": 9}}),
    ("compaction", {"statuses": ["harness_error"]}),
    ("compaction", {"rewards": [0.0]}),
]


@pytest.mark.parametrize(("scenario", "wrong"), WRONG, ids=str)
def test_each_rule_of_kinds_and_parents_can_be_broken(scenario: str, wrong: dict[str, Any]) -> None:
    good = row(scenario=scenario, masked={"auxiliary": 3}, statuses=["completed"], **GOOD[scenario])
    assert broken(good) == []
    assert broken(good | wrong)


def test_a_sub_agent_is_known_by_what_it_was_told_and_the_one_that_told_it_is_not_one() -> None:
    task = Delegate("alpha")
    told = f"<|im_start|>system\nYou help.<|im_end|>\n<|im_start|>user\nA reminder.\n{task.prompt}<|im_end|>\n"
    begins = "<|im_start|>assistant\n"
    assert Conversation.read(told + begins).part == "alpha"
    telling = f"<|im_start|>user\n{INSTRUCTION}<|im_end|>\n<|im_start|>assistant\n{task.prompt}<|im_end|>\n"
    echo = f"<|im_start|>user\n<tool_response>\n{task.prompt}\n</tool_response><|im_end|>\n"
    assert Conversation.read(telling + echo + begins).part is None
    assert Conversation.read(echo + begins).part is None


def test_a_request_for_a_summary_is_no_result_that_speaks_of_one() -> None:
    begins = "<|im_end|>\n<|im_start|>assistant\n"
    asked = "<|im_start|>user\n<tool_response>\nx\n</tool_response>\nWrite a summary of it all."
    result = "<|im_start|>user\n<tool_response>\nTo summarise: x\n</tool_response>"
    assert Conversation.read(asked + begins).asks_for_a_summary
    assert not Conversation.read(result + begins).asks_for_a_summary
