# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A finished rollout is a scored row or a failure that cannot be taken for one, and any JSON writer takes both."""

from __future__ import annotations

import json
from dataclasses import replace

import orjson
import pytest
from hypothesis import given, settings

from nemo_polar.errors import ConfigError, GymError
from nemo_polar.gym.contiguity import check_contiguous
from nemo_polar.gym.result import FAILURE_CLASS, KEY, NO_PERSIST, OURS, check_row, gym_result
from nemo_polar.rollout.rolled import Rolled
from nemo_polar.settings import TracePolicy
from nemo_polar.types import FinishReason, Kind, Message, Role, Status, Text, ToolSpec
from tests.gym.made import ROW, asked, drawn, failed, rolled, turn
from tests.support.tree_strategies import policies, trees

INFRA = [status for status in Status if status.infra]


@given(trees, policies)
@settings(max_examples=150, deadline=None)
def test_every_trained_token_is_trained_once_over_response_and_other_traces(tree, policy) -> None:
    made = drawn(tree, policy)
    result = gym_result(made, ROW, model="m")
    chain = check_contiguous(result["response"]["output"])
    others = sum(end - start for trace in result[KEY]["traces"] for start, end in trace["trained"])
    assert len(chain.logprobs) + others == sum(int(t.loss_mask.sum()) for t in made.trajectory.traces)
    usage = result["response"]["usage"]
    assert usage["output_tokens"] == len(chain.logprobs) + others + sum(made.trajectory.masked.values())
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


@given(trees)
@settings(max_examples=60, deadline=None)
def test_gyms_json_writers_take_every_result(tree) -> None:
    result = gym_result(drawn(tree), ROW, model="m")
    assert orjson.loads(orjson.dumps(result)) == result  # what writes Gym's files
    assert json.loads(json.dumps(result, allow_nan=False, ensure_ascii=False).encode()) == result  # what FastAPI answers with


def test_a_scored_row_keeps_the_dataset_row_and_says_what_became_of_it() -> None:
    result = gym_result(rolled([turn(0), turn(1, 0)]), ROW, model="m")
    assert {key: result[key] for key in ROW} == ROW
    assert result["reward"] == 0.5 and result["reward_components"] == {"passed": 1.0}
    assert result["mask_sample"] is False and result["failure_kind"] is None and result["failure_reason"] is None
    assert not [key for key in result if key.startswith("_ng_failure")]
    polar = result[KEY]
    assert (polar["format"], polar["version"], polar["attempts"], polar["status"]) == ("polar-gym", 1, 2, "completed")
    assert (polar["rollout_id"], polar["group_id"], polar["task_id"], polar["first_prompt"]) == ("r", "g", "t", "f" * 16)
    response = result["response"]
    assert response["created_at"] == 50.0 and response["parallel_tool_calls"] is False and response["model"] == "m"


def test_the_policys_own_failures_are_scored() -> None:
    made = rolled([turn(0)])
    for status in Status:
        if not status.infra:
            result = gym_result(Rolled(replace(made.trajectory, status=status), made.turns), ROW, model="m")
            assert result["reward"] == 0.5 and result["mask_sample"] is False and result[KEY]["status"] == status.value


def test_usage_counts_every_call_once_and_every_sampled_token() -> None:
    turns = [
        turn(0, prompt_len=3, finish=FinishReason.ABORT),
        turn(1, 0, continues=True, prompt_len=5),
        turn(2, 1, prompt_len=10),
        turn(3, prompt=(5,), prompt_len=1, kind=Kind.SUBAGENT),
    ]
    usage = gym_result(rolled(turns), ROW, model="m")["response"]["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (14, 8, 22)


def test_a_response_is_incomplete_when_its_last_reply_was_cut() -> None:
    for finish in FinishReason:
        response = gym_result(rolled([turn(0), turn(1, 0, finish=finish)]), ROW, model="m")["response"]
        cut = finish is not FinishReason.STOP
        assert response["status"] == ("incomplete" if cut else "completed")
        assert response["incomplete_details"] == ({"reason": "max_output_tokens"} if cut else None)


def test_the_tools_are_those_the_harness_offered() -> None:
    tool = ToolSpec("sh", "Runs.", {"type": "object"}, strict=True)
    made = rolled([turn(0)], {0: asked(Message(Role.USER, (Text("x"),)), tools=(tool,))})
    assert gym_result(made, ROW, model="m")["response"]["tools"] == [
        {"type": "function", "name": "sh", "description": "Runs.", "parameters": {"type": "object"}, "strict": True}
    ]


def test_main_says_whether_the_first_trained_call_has_the_groups_first_prompt() -> None:
    assert gym_result(rolled([turn(0), turn(1, 0)]), ROW, model="m")[KEY]["main"]["first_prompt"] is True
    later = rolled([turn(0), turn(1, prompt=(5,), sampled=9)])
    assert gym_result(later, ROW, model="m", main="most_tokens")[KEY]["main"]["first_prompt"] is False
    first_masked = rolled([turn(0, sampled=0), turn(1, 0)])
    assert gym_result(first_masked, ROW, model="m")[KEY]["main"]["first_prompt"] is False


@pytest.mark.parametrize(
    ("made", "items", "note"),
    [
        (rolled([]), 0, "the harness made no call on its main line"),
        (rolled([turn(0, finish=FinishReason.ABORT)]), 1, "no sample on this trace is trained"),
        (rolled([turn(0, sampled=90), turn(1, 0)], policy=TracePolicy(max_trace_tokens=50)), 2, "no trace was kept"),
    ],
    ids=["no call", "all masked", "all dropped"],
)
def test_a_rollout_without_anything_to_train_is_still_a_response_and_says_why(made: Rolled, items: int, note: str) -> None:
    result = gym_result(made, ROW, model="m")
    assert len(result["response"]["output"]) == items and result[KEY]["main"]["note"] == note
    assert not check_contiguous(result["response"]["output"]).generations
    assert result["reward"] == 0.5 and result["mask_sample"] is False


def test_calls_whose_messages_are_not_known_are_counted() -> None:
    made = rolled([turn(0), turn(1, 0), turn(2, 1)], {2: asked()})
    assert gym_result(made, ROW, model="m")[KEY]["main"]["calls_without_messages"] == 1


# --- failures -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", INFRA, ids=lambda s: s.value)
def test_a_failure_of_infrastructure_has_a_class_and_nothing_that_could_be_averaged(status: Status) -> None:
    result = gym_result(failed(status), ROW, model="m")
    assert result[FAILURE_CLASS] == result["failure_kind"] is not None
    assert "reward" not in result and "reward_components" not in result and "response" not in result
    assert result["_ng_failure_terminal"] is False and result["_ng_failure_message"] == "it is gone"
    assert result["mask_sample"] is True and result["failure_reason"] == "it is gone"
    assert (NO_PERSIST in result) == (status is Status.CANCELLED)
    assert {key: result[key] for key in ROW} == ROW
    assert result[KEY]["masked"] == {"infra": 2} and result[KEY]["attempts"] == 3 and result[KEY]["traces"] == []
    orjson.dumps(result)


def test_failure_classes_are_gyms_own_where_it_has_one() -> None:
    classes = {status.value: gym_result(failed(status), ROW, model="m")[FAILURE_CLASS] for status in INFRA}
    assert classes == {
        "engine_failed": "polar:engine_failed",
        "sandbox_failed": "provider_unavailable",
        "verifier_failed": "verifier_error",
        "capture_failed": "polar:capture_failed",
        "cancelled": "cancelled",
    }


def test_a_rollout_that_no_verifier_scored_is_a_failure() -> None:
    made = rolled([turn(0)])
    result = gym_result(Rolled(replace(made.trajectory, reward=None), made.turns), ROW, model="m")
    assert result[FAILURE_CLASS] == "verifier_error" and "reward" not in result


def test_a_row_that_was_a_result_before_cannot_pass_for_one_again() -> None:
    stale = {**ROW, FAILURE_CLASS: "x", NO_PERSIST: True, "reward": 9.0, "response": {}, KEY: {}}
    scored, broken = gym_result(rolled([turn(0)]), stale, model="m"), gym_result(failed(Status.ENGINE_FAILED), stale, model="m")
    assert FAILURE_CLASS not in scored and NO_PERSIST not in scored and scored["reward"] == 0.5
    assert "reward" not in broken and "response" not in broken and NO_PERSIST not in broken


def test_a_row_with_a_key_of_ours_is_refused_before_the_rollout_and_others_are_not() -> None:
    check_row(ROW)
    for key in OURS:
        with pytest.raises(ConfigError, match=key):
            check_row({**ROW, key: 1})


@pytest.mark.parametrize("field", ["reward", "components", "metrics"])
def test_a_number_that_is_not_finite_is_refused_with_the_rollouts_name(field: str) -> None:
    made = rolled([turn(0)])
    value = float("nan") if field == "reward" else {"x": float("inf")}
    with pytest.raises(GymError, match=r"^r: "):
        gym_result(Rolled(replace(made.trajectory, **{field: value}), made.turns), ROW, model="m")


def test_traces_without_their_turns_are_refused() -> None:
    made = rolled([turn(0), turn(1, 0)])
    with pytest.raises(GymError, match="did not come"):
        gym_result(Rolled(made.trajectory, made.turns[:1]), ROW, model="m")
