# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A row in, a scored row or a failure out, whatever the harness, the verifier and the engine do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nemo_polar.errors import BadRequest, ConfigError, EngineError, TaskFileError
from nemo_polar.gym.contiguity import check_contiguous
from nemo_polar.gym.read import read_traces
from nemo_polar.gym.service import GymService
from nemo_polar.gym.settings import GymAgentSettings, from_block
from nemo_polar.rollout.audited import audit_folder
from nemo_polar.verifiers.base import Evidence, Verdict
from tests.support.asking import ASK
from tests.support.engines import scripted_server
from tests.support.tiny import HERMES, write_tiny_tokenizer

CHECK = {"name": "there", "command": "test -f done.txt", "weight": 1.0}


def row(index: int = 0, **task: Any) -> dict[str, Any]:
    block = {"id": "t", "instruction": "hello", "verifier": {"type": "command", "checks": [CHECK]}} | task
    asked = {"input": [{"role": "user", "content": block["instruction"]}], "tools": []}
    return {"responses_create_params": asked, "polar_task": block, "_ng_task_index": index, "keep": [1]}


class BrokenVerifier:
    async def verify(self, evidence: Evidence) -> Verdict:
        raise ZeroDivisionError("of its own making")


@asynccontextmanager
async def serving(tmp_path: Path, command: str, overrides: Sequence[str] = ()) -> AsyncIterator[GymService]:
    async with scripted_server(vocab=259, reply_tokens=(4, 12)) as (_, url):
        settings = GymAgentSettings(
            harness="shell",
            harness_options={"command": command},
            sandbox="process",
            tokenizer=str(write_tiny_tokenizer(tmp_path / "tokenizer")),
            out=str(tmp_path),
            retries=0,
            relay=True,
            engine_url=url,
            overrides=("policy.codec.renderer=template", f"policy.codec.chat_template={HERMES}", *overrides),
        )
        service = GymService(settings)
        await service.start()
        try:
            yield service
        finally:
            await service.stop()


def test_a_server_s_block_is_read_over_what_gym_says_and_a_misspelt_key_is_refused() -> None:
    given = {"name": "polar_agent", "model": "policy"}
    settings = from_block(GymAgentSettings, "polar_agent", {"domain": "coding", "harness": "codex", "name": "mine"}, given)
    assert (settings.model, settings.harness, settings.name) == ("policy", "codex", "mine")
    with pytest.raises(ConfigError, match=r"polar_agent: harnes: .*there are .*harness"):
        from_block(GymAgentSettings, "polar_agent", {"harnes": "pi"}, given)


async def test_a_row_comes_back_scored_with_its_tokens_and_the_run_audits(tmp_path: Path) -> None:
    async with serving(tmp_path, f'python3 -c "{ASK}" && touch done.txt') as service:
        assert "route exact" in service.banner and "shell" in service.banner
        made = await service.run(row())
        folder = service.worker.folder.path
    assert made["reward"] == 1.0 and made["keep"] == [1] and made["mask_sample"] is False
    chain = check_contiguous(made["response"]["output"])
    assert len(chain.logprobs) > 0
    (trace,) = read_traces(made)
    assert int(trace.loss_mask.sum()) == len(chain.logprobs)
    report = await audit_folder(folder)
    assert report.ok, report.to_dict()


async def test_a_harness_that_did_nothing_has_the_verifier_s_reward_and_no_tokens(tmp_path: Path) -> None:
    async with serving(tmp_path, "true") as service:
        made = await service.run(row())
    assert made["reward"] == 0.0 and made["polar"]["status"] == "completed"
    assert not any("generation_token_ids" in item for item in made["response"]["output"])


async def test_what_is_not_the_policy_s_is_a_failure_and_never_a_reward(tmp_path: Path) -> None:
    async with serving(tmp_path, "exit 127") as service:
        gone = await service.run(row())
    async with serving(tmp_path, "true") as service:
        unscored = await service.run(row(verifier={"type": "tests.gym.test_service:BrokenVerifier"}))
    for made in (gone, unscored):
        assert "reward" not in made and made["_ng_failure_class"] == made["failure_kind"] and made["mask_sample"] is True
    assert gone["failure_kind"] == "provider_unavailable" and unscored["failure_kind"] == "verifier_error"


async def test_rollouts_of_a_row_are_a_group_of_their_own_ids(tmp_path: Path) -> None:
    async with serving(tmp_path, f'python3 -c "{ASK}"') as service:
        one, two, other = await asyncio.gather(service.run(row()), service.run(row()), service.run(row(1)))
    abouts = [made["polar"] for made in (one, two, other)]
    assert len({a["rollout_id"] for a in abouts}) == 3
    assert [a["group_id"] for a in abouts] == ["t.0", "t.0", "t.1"]
    assert len({a["first_prompt"] for a in abouts}) == 1


async def test_a_row_s_sampling_is_what_is_drawn(tmp_path: Path) -> None:
    asked = row()
    asked["responses_create_params"] |= {"temperature": 0.5, "max_output_tokens": 2}
    async with serving(tmp_path, f'python3 -c "{ASK}"', ["traces.train_unrescorable=true"]) as service:
        made = await service.run(asked)
        asked["responses_create_params"]["temperature"] = 0
        with pytest.raises(BadRequest, match="temperature of 0"):
            await service.run(asked)
    assert made["response"]["temperature"] == 0.5
    assert len(check_contiguous(made["response"]["output"]).logprobs) <= 2


async def test_bad_rows_are_refused_by_field(tmp_path: Path) -> None:
    async with serving(tmp_path, "true") as service:
        with pytest.raises(TaskFileError, match="polar_task"):
            await service.run({"responses_create_params": {"input": "x"}})
        with pytest.raises(ConfigError, match="reward"):
            await service.run(row() | {"reward": 1.0})
        with pytest.raises(TaskFileError, match="verifier"):
            await service.run(row(verifier={"type": "nobody"}))


async def test_responses_runs_the_last_user_message(tmp_path: Path) -> None:
    async with serving(tmp_path, f'python3 -c "{ASK}"') as service:
        response = await service.responses({"input": [{"role": "user", "content": "hello"}]})
    assert response["object"] == "response" and response["output"]


async def test_an_engine_that_is_named_and_gone_stops_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nemo_polar.gym.route.PATIENCE_SECONDS", 0.0)
    settings = GymAgentSettings(engine_url="http://127.0.0.1:9", tokenizer=str(write_tiny_tokenizer(tmp_path / "t")))
    service = GymService(settings)
    with pytest.raises(EngineError, match="engine_url"):
        await service.start()
    await service.stop()
    with pytest.raises(ConfigError, match="not serving"):
        await service.run(row())
