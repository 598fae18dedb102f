# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Token fields that are one chain pass; anything a trainer would trip over is refused, with the item named."""

from __future__ import annotations

from typing import Any

import pytest

from nemo_polar.errors import GymError
from nemo_polar.gym.contiguity import check_contiguous


def item(prompt: Any, drawn: Any, logprobs: Any) -> dict[str, Any]:
    return {"type": "message", "prompt_token_ids": prompt, "generation_token_ids": drawn, "generation_log_probs": logprobs}


FIRST = item([1, 2], [3], [-0.5])


def test_a_chain_is_put_together_from_the_items_that_have_tokens() -> None:
    chain = check_contiguous([{"type": "reasoning"}, FIRST, {"type": "message"}, item([1, 2, 3, 4], [5, 6], [0.0, -1])])
    assert chain.token_ids.tolist() == [1, 2, 3, 4, 5, 6]
    assert chain.generations == ((2, 3), (4, 6)) and chain.logprobs.tolist() == [-0.5, 0.0, -1.0]


def test_a_prompt_may_add_nothing_to_what_came_before() -> None:
    assert check_contiguous([FIRST, item([1, 2, 3], [4], [-1.0])]).generations == ((2, 3), (3, 4))


def test_without_token_fields_there_is_an_empty_chain() -> None:
    chain = check_contiguous([{"type": "message"}, item([9], [], [])])
    assert not len(chain.token_ids) and not chain.generations


@pytest.mark.parametrize(
    ("second", "what"),
    [
        (item([1, 2, 9, 4], [5], [-1.0]), "at index 2"),
        (item([1, 2], [5], [-1.0]), "at index 2"),
        (item([2, 1, 3], [5], [-1.0]), "at index 0"),
        (item([1, 2, 3], [5], [-1.0, -1.0]), "2 log-probabilities"),
        (item([1, 2, 3], [5], [float("nan")]), "not finite"),
        (item([1, 2, 3], [5], [-1e300]), "not finite"),
        (item([1, 2, 3], [5], [None]), "no list of numbers"),
        (item([1, 2, 3.5], [5], [-1.0]), "no list of integers"),
        (item([1, 2, 3], ["5"], [-1.0]), "no list of integers"),
        (item([1, 2, [3]], [5], [-1.0]), "no list of integers"),
        (item(None, [5], [-1.0]), "no list of integers"),
        (item([1, 2, 3], [2**40], [-1.0]), "32 bits"),
        ({"routed_experts": None}, "but not prompt_token_ids"),
        ({"prompt_token_ids": [1], "generation_token_ids": [1]}, "but not generation_log_probs"),
    ],
)
def test_what_is_no_chain_is_refused_by_item(second: dict[str, Any], what: str) -> None:
    with pytest.raises(GymError, match=r"output\[2\]") as refused:
        check_contiguous([FIRST, {"type": "message"}, second])
    assert what in str(refused.value)
