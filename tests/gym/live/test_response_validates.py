# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What we hand to NeMo Gym passes Gym's own classes, with the token fields on the items they were on, and its own averages.

Runs inside an environment that has ``nemo_gym`` (either version); skipped elsewhere.
"""

from __future__ import annotations

import importlib.metadata
import json
import random
from typing import Any

import pytest

from nemo_polar.gym.contiguity import TOKEN_FIELDS, check_contiguous
from nemo_polar.gym.read import read_traces
from nemo_polar.gym.result import FAILURE_CLASS, gym_result
from nemo_polar.types import FinishReason, Image, Message, Reasoning, Role, Status, Text, ToolCall, ToolResult, ToolSpec
from tests.gym.made import ROW, asked, drawn, failed, rolled, turn

pytestmark = pytest.mark.gym
pytest.importorskip("nemo_gym", reason="runs inside NeMo Gym's own environment")

INFRA = [status for status in Status if status.infra]


def given(value: Any) -> Any:
    """``value`` without what is null, which Gym's classes add."""
    if isinstance(value, dict):
        return {key: given(item) for key, item in value.items() if item is not None}
    return [given(item) for item in value] if isinstance(value, list) else value


def through_gym(result: dict[str, Any]) -> dict[str, Any]:
    """A result as it is after an agent's and a resources server's models."""
    from nemo_gym.base_resources_server import BaseVerifyResponse
    from pydantic import ConfigDict

    class Answer(BaseVerifyResponse):
        model_config = ConfigDict(extra="allow", populate_by_name=True)

    once = Answer.model_validate(json.loads(json.dumps(result))).model_dump(mode="json")
    return json.loads(Answer.model_validate(once).model_dump_json())


def check(result: dict[str, Any]) -> None:
    after = through_gym(result)
    ours, theirs = result["response"]["output"], after["response"]["output"]
    assert len(ours) == len(theirs)
    for item, back in zip(ours, theirs, strict=True):
        assert {name for name in TOKEN_FIELDS if name in item} == {name for name in TOKEN_FIELDS if back.get(name) is not None}
        assert {key: given(back.get(key)) for key in item} == given(item)
    assert {key: given(after.get(key)) for key in result if key not in ("response", "responses_create_params")} == {
        key: given(value) for key, value in result.items() if key not in ("response", "responses_create_params")
    }
    assert check_contiguous(given(theirs)).generations == check_contiguous(ours).generations
    assert [t.token_ids.tolist() for t in read_traces({**after, "response": {"output": given(theirs)}})] == [
        t.token_ids.tolist() for t in read_traces(result)
    ]


@pytest.mark.parametrize("seed", range(25))
def test_random_rollouts_come_through_gyms_classes_unchanged(seed: int) -> None:
    check(gym_result(drawn((seed, random.Random(seed).randint(0, 25))), ROW, model="m"))


def test_every_kind_of_item_comes_through_gyms_classes_unchanged() -> None:
    image = Image("data:image/png;base64,AA==", "image/png")
    call = ToolCall("k", "sh", '{"cmd": "ls', malformed=True)
    added = asked(
        Message(Role.TOOL, (ToolResult("k", (Text("out"), image), is_error=True),)),
        Message(Role.SYSTEM, (Text("s"),)),
        Message(Role.DEVELOPER, (Text("d"),)),
        Message(Role.USER, (Text("see"), image)),
        Message(Role.ASSISTANT, (Reasoning("r"), Text("t"), ToolCall("g", "sh", "{}"))),
    )
    turns = [
        turn(0, None, Reasoning("Hm"), Text("I will."), call),
        turn(1, 0, Reasoning("only")),
        turn(2, 1, ToolCall("l", "sh", "{}"), Reasoning("last")),
        turn(3, 2, Text("cut"), finish=FinishReason.LENGTH),
    ]
    tools = (ToolSpec("sh", "Runs.", {"type": "object"}, strict=False), ToolSpec("free", freeform=True))
    check(gym_result(rolled(turns, {0: asked(tools=tools), 1: added}), ROW, model="m"))


@pytest.mark.parametrize("status", INFRA, ids=lambda s: s.value)
def test_a_failure_is_in_no_average_of_rewards(status: Status) -> None:
    from nemo_gym.reward_profile import compute_aggregate_metrics

    scored = [{**gym_result(rolled([turn(0)]), ROW, model="m"), "_ng_task_index": n, "_ng_rollout_index": 0} for n in (0, 1)]
    broken = {**gym_result(failed(status), ROW, model="m"), "_ng_task_index": 1, "_ng_rollout_index": 1}
    metrics = compute_aggregate_metrics([*scored, broken]).agent_metrics
    assert metrics["mean/reward"] == 0.5
    alone = compute_aggregate_metrics([broken]).agent_metrics
    assert not [name for name in alone if "reward" in name.rpartition("/")[2]]


def test_failure_classes_are_in_gyms_vocabulary_or_in_our_own_name_space() -> None:
    if importlib.metadata.version("nemo_gym") < "0.7":
        pytest.skip("this Gym has no vocabulary of failures")
    from nemo_gym.failure_kinds import is_namespaced, is_registered

    for status in INFRA:
        kind = gym_result(failed(status), ROW, model="m")[FAILURE_CLASS]
        assert is_registered(kind) or (is_namespaced(kind) and kind.startswith("polar:"))
