# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What is read back from a result is what was written, bit for bit; what was changed on the way is refused by row."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_polar.errors import GymError
from nemo_polar.gym.contiguity import TOKEN_FIELDS
from nemo_polar.gym.main_trace import choose, own
from nemo_polar.gym.read import read_traces
from nemo_polar.gym.result import KEY, gym_result
from nemo_polar.gym.trace_json import floats
from nemo_polar.types import FinishReason, Kind, Status, Trace
from tests.gym.made import ROW, drawn, failed, rolled, turn
from tests.support.tree_strategies import policies, trees


def same(a: Trace, b: Trace) -> bool:
    """Equal in every field, arrays in every bit and in their types."""
    for field in fields(Trace):
        x, y = getattr(a, field.name), getattr(b, field.name)
        if isinstance(x, np.ndarray):
            if x.dtype != y.dtype or x.tobytes() != y.tobytes():
                return False
        elif x != y:
            return False
    return True


@given(trees, policies, st.sampled_from(["first_prompt", "most_tokens"]))
@settings(max_examples=200, deadline=None)
def test_all_traces_come_back_as_they_were_owned(tree, policy, choice) -> None:
    made = drawn(tree, policy)
    back = read_traces(json.loads(json.dumps(gym_result(made, ROW, model="m", main=choice))))
    main = choose(made.trajectory.traces, made.turns, choice)
    expected = () if main is None else own(made.trajectory.traces, main)
    assert len(back) == len(expected) and all(map(same, back, expected))


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False)))
def test_log_probabilities_as_decimal_numbers_keep_their_bits(values: list[float]) -> None:
    array = np.array(values, dtype=np.float32)
    assert np.array(json.loads(json.dumps(floats(array))), dtype=np.float32).tobytes() == array.tobytes()


def test_a_failure_has_no_traces() -> None:
    assert read_traces(gym_result(failed(Status.SANDBOX_FAILED), ROW, model="m")) == ()


def made() -> dict[str, Any]:
    """A result with a masked call at the end of the response, and another trace."""
    turns = [turn(0), turn(1, 0, sampled=3), turn(2, 1, kind=Kind.COMPACTION, finish=FinishReason.ABORT), turn(3, 0)]
    return json.loads(json.dumps(gym_result(rolled(turns), ROW, model="m")))


CHANGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no key": lambda r: r.pop(KEY),
    "another format": lambda r: r[KEY].update(format="else"),
    "another version": lambda r: r[KEY].update(version=2),
    "no response": lambda r: r.pop("response"),
    "output is gone": lambda r: r["response"].update(output=None),
    "a call was taken out": lambda r: r["response"]["output"].pop(1),
    "token fields were dropped": lambda r: [i.pop("generation_token_ids", 0) for i in r["response"]["output"]],
    "token fields were all dropped": lambda r: [i.pop(k, 0) for i in r["response"]["output"] for k in TOKEN_FIELDS],
    "a prompt was changed": lambda r: r["response"]["output"][1]["prompt_token_ids"].__setitem__(0, 999),
    "a prompt grew": lambda r: r["response"]["output"][0]["prompt_token_ids"].append(9),
    "a log-probability was lost": lambda r: r["response"]["output"][0]["generation_log_probs"].pop(),
    "the rest was cut": lambda r: r[KEY]["main"]["rest_token_ids"].pop(),
    "a rest log-probability was lost": lambda r: r[KEY]["main"]["rest_logprobs"].pop(),
    "spans of the main trace": lambda r: r[KEY]["main"]["spans"].pop(0),
    "a span's role": lambda r: r[KEY]["main"]["spans"][1].__setitem__(2, "context"),
    "a kind": lambda r: r[KEY]["traces"][0].update(kind="odd"),
    "a fork reason": lambda r: r[KEY]["traces"][0].update(fork_reason="odd"),
    "an id": lambda r: r[KEY]["traces"][0].update(id=7),
    "a missing field": lambda r: r[KEY]["traces"][0].pop("trained"),
    "a token of another trace": lambda r: r[KEY]["traces"][0]["token_ids"].pop(),
    "a mask over given tokens": lambda r: r[KEY]["traces"][0].update(trained=[[0, 3]]),
    "a mask outside": lambda r: r[KEY]["traces"][0].update(trained=[[9, 99]]),
    "versions": lambda r: r[KEY]["traces"][0].update(weights_version=[[0, 1]]),
    "a trace twice": lambda r: r[KEY]["traces"].append(r[KEY]["traces"][0]),
    "tokens trained twice": lambda r: r[KEY]["traces"][0].update(trained=[[3, 5], [8, 10]]),
    "traces are gone": lambda r: r[KEY].pop("traces"),
    "traces of another type": lambda r: r[KEY].update(traces=[3]),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_result_that_was_changed_is_refused_and_its_row_named(change: Callable[[dict[str, Any]], Any]) -> None:
    result = made()
    assert len(read_traces(copy.deepcopy(result))) == 2
    change(result)
    with pytest.raises(GymError, match=r"^row 3\.1 \(rollout (r|None)\): "):
        read_traces(result)
