# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
import asyncio
import json
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from fastapi.testclient import TestClient
from nemo_gym.server_utils import ServerClient
from resources_servers.polar import app as polar

from nemo_polar.errors import ConfigError

CASES = [json.loads(line) for line in (Path(__file__).parent / "verifier_cases.jsonl").read_text().splitlines()]
BY_NAME = {case["name"]: case for case in CASES}
DATA = Path(__file__).parents[1] / "data"
ABORTS = {"type": "command", "command": "exit 0", "reward": "reward_file"}
"""A verifier that ends well and writes no reward: broken."""


def server(**options: Any) -> polar.PolarResourcesServer:
    block = {"host": "127.0.0.1", "port": 1, "entrypoint": "app.py", "name": "polar", "domain": "coding", "sandbox": "process"}
    config = polar.PolarResourcesServerConfig(**block | options)
    return polar.PolarResourcesServer(config=config, server_client=MagicMock(spec=ServerClient))


@pytest.fixture
def client() -> TestClient:
    return TestClient(server().setup_webserver())


def request(name: str, **changes: Any) -> dict[str, Any]:
    return {**json.loads(json.dumps(BY_NAME[name]["request"])), **changes}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_each_case_of_the_fixture_holds_over_http(client: TestClient, case: dict[str, Any]) -> None:
    answer = client.post("/verify", json=case["request"])
    if case["kind"] == "malformed":
        assert answer.status_code in (400, 422)
        assert case["expected_error"] in answer.text
    else:
        assert answer.status_code == 200, answer.text
        assert answer.json()["reward"] == case["expected_reward"]
        assert sum(answer.json()["reward_components"].values()) == pytest.approx(case["expected_reward"])


@pytest.mark.skipif(polar.VERIFIER_FIXTURE is None, reason="this Gym has no verifier fixtures")
@pytest.mark.parametrize("determinism", ["seeded", "stochastic"])
def test_the_fixture_passes_gyms_own_check(determinism: str) -> None:
    from nemo_gym.verifier_fixture import exercise_verifier_fixture

    assert polar.VERIFIER_FIXTURE is not None
    results = asyncio.run(exercise_verifier_fixture(polar.VERIFIER_FIXTURE, reward_range=(0.0, 1.0), determinism=determinism))
    assert len(results) == sum(case["kind"] != "determinism" or determinism == "seeded" for case in CASES)


def test_what_polars_agent_brings_is_kept_as_it_is(client: TestClient) -> None:
    sent = request("a verdict of Polar's agent is kept")
    tokens = {"prompt_token_ids": [1, 2], "generation_token_ids": [3, 4], "generation_log_probs": [-0.1, -1e-7]}
    sent["response"]["output"][0] |= tokens
    sent["polar"]["traces"] = [{"id": "t/1", "token_ids": [5, 6], "logprobs": [0.0, -0.30000001192092896]}]
    answer = client.post("/verify", json=sent).json()
    assert answer["polar"] == sent["polar"]
    assert answer["reward_components"] == sent["reward_components"]
    assert {key: answer["response"]["output"][0][key] for key in tokens} == tokens
    assert answer["polar_task"] == sent["polar_task"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"reward": None}, "reward"),
        ({"reward": True}, "reward is True"),
        ({"reward_components": {"x": "1"}}, "x is '1'"),
        ({"mask_sample": True}, "marked as a failure"),
        ({"_ng_failure_class": "verifier_error"}, "marked as a failure"),
        ({"polar": {"format": "other"}}, "polar"),
    ],
)
def test_a_verdict_that_is_none_is_refused(client: TestClient, change: dict[str, Any], said: str) -> None:
    answer = client.post("/verify", json=request("a verdict of Polar's agent is kept", **change))
    assert answer.status_code == 422
    assert said in answer.text


def test_a_verifier_that_fails_gives_no_usable_reward(client: TestClient) -> None:
    sent = request("everything is right")
    sent["polar_task"]["verifier"] = ABORTS
    answer = client.post("/verify", json=sent)
    if not polar.KNOWS_MASKS:
        assert answer.status_code == 500
        assert "verifier_error" in answer.text
        return
    assert answer.status_code == 200
    assert answer.json()["mask_sample"] is True
    assert answer.json()["failure_kind"] == "verifier_error"


def test_the_last_message_is_what_a_verifier_without_files_sees() -> None:
    from nemo_polar.gym.verifying import final_message

    message = {"type": "message", "role": "assistant"}
    output = [
        {**message, "content": [{"type": "output_text", "text": "first"}]},
        {"type": "function_call", "name": "f", "arguments": "{}"},
        {**message, "content": [{"type": "output_text", "text": "la"}, {"type": "output_text", "text": "st"}]},
        {"type": "reasoning", "summary": []},
    ]
    assert final_message({"output": output}) == "last"
    assert final_message({"output": []}) is None


@pytest.mark.parametrize("path", ["../out.txt", "/etc/passwd", ""])
def test_a_workspace_cannot_lead_out_of_the_sandbox(client: TestClient, path: str) -> None:
    answer = client.post("/verify", json=request("nothing was done", polar_workspace={path: "x"}))
    assert answer.status_code == 400
    assert "polar_workspace" in answer.text


def test_a_misspelt_setting_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="sandbx"):
        server(sandbx="process")


def test_the_example_rows_are_five_tasks_and_their_rollouts_are_scored(client: TestClient) -> None:
    rows = [json.loads(line) for line in (DATA / "example.jsonl").read_text().splitlines()]
    rollouts = [json.loads(line) for line in (DATA / "example_rollouts.jsonl").read_text().splitlines()]
    assert len(rows) == len(rollouts) == 5
    assert sorted(r["polar_task"]["id"] for r in rows) == sorted(r["polar_task"]["id"] for r in rollouts)
    for rollout in rollouts:
        answer = client.post("/verify", json=rollout)
        assert answer.status_code == 200, answer.text
        assert answer.json()["reward"] == rollout["reward"]
