# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The five example rows, twice each, through the real Gym: scored by their tests, exact to the token, nothing lost on the way.

Runs inside an environment that has ``nemo_gym`` (either version); skipped elsewhere. ``real_gym`` says how to choose harness,
engine and route.
"""

from __future__ import annotations

import json
import math
import urllib.request
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import pytest

pytestmark = [pytest.mark.gym, pytest.mark.timeout(3600)]
pytest.importorskip("nemo_gym", reason="runs inside NeMo Gym's own environment")

from nemo_polar.gym.contiguity import check_contiguous  # noqa: E402
from nemo_polar.gym.plugin_root import plugin_root  # noqa: E402
from nemo_polar.gym.read import read_traces  # noqa: E402
from nemo_polar.trajectory.store import JOURNAL  # noqa: E402
from tests.gym.live import real_gym  # noqa: E402
from tests.gym.live.real_gym import ROUTE, SCRIPTED, Gym, polar, read_jsonl  # noqa: E402

ROWS = plugin_root() / "environments" / "polar" / "data" / "example.jsonl"
REPEATS = 2


@pytest.fixture(scope="module")
def gym(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gym]:
    with real_gym.running(tmp_path_factory.mktemp("gym"), f"relay={'false' if ROUTE == 'none' else 'true'}") as gym:
        yield gym


@pytest.fixture(scope="module")
def rollouts(gym: Gym) -> list[dict[str, Any]]:
    """What Gym wrote."""
    words = ("gym", "collect", str(ROWS), "rollouts.jsonl", "--num-repeats", str(REPEATS))
    done = polar(*words, cwd=gym.folder, seconds=real_gym.COLLECT_SECONDS)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return read_jsonl(gym.folder / "rollouts.jsonl")


def test_every_row_comes_back_as_often_as_it_was_asked_for(gym: Gym, rollouts: list[dict[str, Any]]) -> None:
    tasks = [row["polar_task"]["id"] for row in read_jsonl(ROWS)]
    assert sorted(rollout["polar_task"]["id"] for rollout in rollouts) == sorted(tasks * REPEATS)
    assert len({(r["_ng_task_index"], r["_ng_rollout_index"]) for r in rollouts}) == len(tasks) * REPEATS
    assert not read_jsonl(gym.folder / "rollouts_failures.jsonl")


def test_the_reward_is_the_verifiers(rollouts: list[dict[str, Any]]) -> None:
    for rollout in rollouts:
        weights = {check["name"]: check["weight"] for check in rollout["polar_task"]["verifier"]["checks"]}
        assert rollout["reward_components"].keys() == weights.keys()
        assert rollout["reward"] == math.fsum(rollout["reward_components"].values())
        assert not rollout.get("mask_sample")
        if SCRIPTED:
            assert rollout["reward"] == pytest.approx(1.0), rollout["response"]["output"]


def test_the_token_fields_are_one_contiguous_chain(rollouts: list[dict[str, Any]]) -> None:
    """By the rule that NeMo RL applies to a Gym result."""
    for rollout in rollouts:
        chain = check_contiguous(rollout["response"]["output"])
        assert chain.generations
        assert len(chain.logprobs) == sum(end - start for start, end in chain.generations)
        assert all(math.isfinite(x) and x <= 0 for x in chain.logprobs)


def test_the_extra_key_survives_and_accounts_for_every_sampled_token(rollouts: list[dict[str, Any]]) -> None:
    for rollout in rollouts:
        about = rollout["polar"]
        assert (about["format"], about["status"], about["task_id"]) == ("polar-gym", "completed", rollout["polar_task"]["id"])
        trained = sum(int(trace.loss_mask.sum()) for trace in read_traces(rollout))
        assert trained + sum(about["masked"].values()) == about["metrics"]["sampled_tokens"] > 0


def test_the_rollouts_of_a_row_begin_with_the_same_prompt(rollouts: list[dict[str, Any]]) -> None:
    """NeMo RL groups by it."""

    def row(rollout: dict[str, Any]) -> int:
        return rollout["_ng_task_index"]

    for _, group in groupby(sorted(rollouts, key=row), key=row):
        assert len({rollout["polar"]["first_prompt"] for rollout in group}) == 1


def test_the_start_up_line_says_which_route_is_in_force(gym: Gym) -> None:
    line = next(line for line in gym.said.splitlines() if f"polar: {real_gym.HARNESS} in sandbox" in line)
    assert ("route checked" if ROUTE == "none" else "route exact") in line


def test_what_was_collected_passes_the_audit(gym: Gym, rollouts: list[dict[str, Any]]) -> None:
    if ROUTE == "none":
        pytest.skip("no log of the engine's own is taken on the checked route")
    audit = polar("audit", str(gym.run_folder), cwd=gym.folder)
    assert audit.returncode == 0, audit.stdout + audit.stderr


def test_a_single_response_is_answered(gym: Gym) -> None:
    """``/v1/responses`` of the agent server, found by way of Gym's head server."""
    with urllib.request.urlopen("http://127.0.0.1:11000/server_instances") as answer:
        (url,) = [server["url"] for server in json.loads(answer.read()) if server["process_name"] == "polar_agent"]
    body = json.dumps({"input": "Create the file velvet.txt containing exactly willow"}).encode()
    request = urllib.request.Request(f"{url}/v1/responses", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=real_gym.COLLECT_SECONDS) as answer:
        response = json.loads(answer.read())
    assert response["object"] == "response"
    assert check_contiguous(response["output"]).generations


def test_the_run_folder_lies_where_gym_was_started(gym: Gym, rollouts: list[dict[str, Any]]) -> None:
    assert (gym.run_folder / JOURNAL).is_file()
