# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Only weights that are proven serve; whatever goes wrong has a name, and leaves the engine at weights that were proven, or
paused."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from nemo_polar.errors import (
    ConfigError,
    DamagedWeights,
    HandoverFailed,
    LostWeights,
    StaleCache,
    StaleWeights,
    WrongWeights,
)
from nemo_polar.rl.handover.make import make_handover
from nemo_polar.rl.handover.settings import HandoverSettings
from tests.capture.test_calls import USER
from tests.support.proxy import running
from tests.support.token_engines import SGLANG, VLLM
from tests.support.weights import POLICY, canaries, handing_over, weights

ADAPTER = "adapter_model.safetensors"
WAYS: dict[str, dict[str, Any]] = {
    "vllm_full": {"kind": VLLM},
    "vllm_lora": {"kind": VLLM, "client": {"model": "adapter"}, "adapters": ["adapter"]},
    "sglang": {"kind": SGLANG},
}


def restart(server: Any, number: int = 0) -> None:
    """What a new process knows of its weights and of its version: what it was started with."""
    server.core._loaded = False
    server.core.set_version(number)
    server.core._cached.clear()
    server.core.resume()


async def served_number(rig: Any) -> int:
    """Which weights really serve, by their scores."""
    probe = canaries(0, count=1)[0].token_ids
    (got, *_others) = [await engine.score(probe) for engine in rig.engine.engines.values()]
    return next(n for n in range(20) if np.abs(POLICY.score(probe, n) - got).max() < 1e-4)


@pytest.mark.parametrize("method", WAYS)
async def test_a_proven_hand_over_serves_the_new_weights_under_their_version(tmp_path, method: str):
    file = ADAPTER if method == "vllm_lora" else "model.safetensors"
    async with handing_over(tmp_path, settings={"method": method}, **WAYS[method]) as (handover, rig, _):
        for step, number in enumerate([11, 12, 13], start=1):
            before = {1: 0, 2: 11, 3: 12}[step]
            folder = weights(tmp_path / f"w{step}", number, version=step, file=file)
            report = await handover.hand_over(folder, step, canaries(number, before))
            assert report.canary_diff < 1e-4 and report.told_apart
            (proof,) = report.proofs.values()
            assert (proof.tokens, proof.drawn) == (3 * 39, 3) and proof.share == pytest.approx(1.0, abs=1e-4)
            assert list(report.seconds) == ["check", "before", "pause", "load", "resume", "prove"]
            assert await served_number(rig) == number
            assert rig.proxy.status()["weights_version"] == step == handover.version and not handover.held
        client = await rig.session()
        await client.ask([USER])
        (turn,) = rig.turns(client.session_id)
        assert turn.sample.weights_version == (3, 3)


async def test_the_wrong_file_is_refused_and_the_proven_weights_serve_again(tmp_path):
    async with handing_over(tmp_path) as (handover, rig, _):
        await handover.hand_over(weights(tmp_path / "w1", 1), 1, canaries(1, 0))
        with pytest.raises(WrongWeights, match="other weights than were handed over") as refused:
            await handover.hand_over(weights(tmp_path / "w2", 9), 2, canaries(2, 1))
        assert refused.value.resumed_at == 1 == rig.proxy.status()["weights_version"]
        assert await served_number(rig) == 1 and not handover.held
        assert (await (await rig.session()).ask([USER]))["choices"]
        await handover.hand_over(weights(tmp_path / "w2b", 2), 2, canaries(2, 1))


async def test_a_folder_of_another_version_is_refused_before_anything_is_touched(tmp_path):
    async with handing_over(tmp_path) as (handover, _rig, servers):
        with pytest.raises(WrongWeights, match="holds weights version 4"):
            await handover.hand_over(weights(tmp_path / "w", 5, version=4), 5, canaries(5))
        assert not handover.held and servers[0].core.weights_version == 0


async def test_half_a_file_is_refused_before_anything_is_touched(tmp_path):
    async with handing_over(tmp_path) as (handover, rig, _servers):
        folder = weights(tmp_path / "w", 1)
        file = folder / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-100])
        with pytest.raises(DamagedWeights, match="not whole"):
            await handover.hand_over(folder, 1, canaries(1))
        assert not handover.held and await served_number(rig) == 0


async def test_a_prefix_cache_that_was_not_dropped_is_refused(tmp_path):
    async with handing_over(tmp_path, servers=[{"keeps_cache": True}]) as (handover, _rig, _):
        with pytest.raises(StaleCache, match="was not dropped"):
            await handover.hand_over(weights(tmp_path / "w", 1), 1, canaries(1, 0))
        assert handover.held  # nothing was proven yet that it could go back to


async def test_an_engine_that_answers_200_and_changes_nothing_is_refused(tmp_path):
    async with handing_over(tmp_path, servers=[{"stale_weights": True}]) as (handover, _, servers):
        await handover.adopt(weights(tmp_path / "w0", 0), 0, canaries(0))
        with pytest.raises(StaleWeights) as refused:
            await handover.hand_over(weights(tmp_path / "w1", 1), 1, canaries(1, 0))
        assert refused.value.resumed_at == 0
        assert servers[0].core.weights_version == 0 and not handover.held


async def test_an_engine_restarted_with_old_weights_is_named_at_the_next_look_and_brought_back(tmp_path):
    async with handing_over(tmp_path) as (handover, rig, servers):
        await handover.hand_over(weights(tmp_path / "w1", 1), 1, canaries(1, 0))
        await handover.check()
        restart(servers[0])
        with pytest.raises(LostWeights, match="version 0, and said of version 1") as lost:
            await handover.check()
        assert lost.value.resumed_at == 1 and await served_number(rig) == 1
        restart(servers[0])
        with pytest.raises(LostWeights):
            await handover.hand_over(weights(tmp_path / "w2", 2), 2, canaries(2, 1))
        report = await handover.hand_over(tmp_path / "w2", 2, canaries(2, 1))
        assert report.told_apart and await served_number(rig) == 2


async def test_between_two_looks_a_restarted_engine_draws_nothing_that_is_recorded_as_new(tmp_path):
    async with handing_over(tmp_path, call_seconds=20) as (handover, rig, servers):
        await handover.hand_over(weights(tmp_path / "w1", 1), 1, canaries(1, 0))
        restart(servers[0])
        client = await rig.session()
        status, _, answer = await client.post(client.body([USER]))
        assert status == 503 and "weights version 0" in str(answer)
        assert all(turn.sample.weights_version != (1, 1) for turn in rig.turns(client.session_id))


async def test_a_restart_that_keeps_its_version_is_told_by_the_scores_from_before(tmp_path):
    async with handing_over(tmp_path) as (handover, rig, servers):
        await handover.hand_over(weights(tmp_path / "w1", 1), 1, canaries(1, 0))
        restart(servers[0])
        servers[0].core.weights_version = 1  # somebody labelled it
        with pytest.raises(LostWeights, match="before the update its scores are"):
            await handover.hand_over(weights(tmp_path / "w2", 2), 2, canaries(2, 1))
        assert await served_number(rig) == 1


async def test_a_restart_under_the_load_is_named(tmp_path, monkeypatch):
    async with handing_over(tmp_path) as (handover, rig, servers):
        await handover.hand_over(weights(tmp_path / "w1", 1), 1, canaries(1, 0))
        load = type(handover)._load_all

        async def interrupted(self: Any, *args: Any) -> None:
            monkeypatch.undo()
            await load(self, *args)
            restart(servers[0])

        monkeypatch.setattr(type(handover), "_load_all", interrupted)
        with pytest.raises(LostWeights, match="restarted while it loaded") as lost:
            await handover.hand_over(weights(tmp_path / "w2", 2), 2, canaries(2, 1))
        assert lost.value.resumed_at == 1 and await served_number(rig) == 1


async def test_weights_that_the_engine_cannot_load_are_refused_as_such(tmp_path):
    async with handing_over(tmp_path) as (handover, _rig, _):
        await handover.hand_over(weights(tmp_path / "w1", 1), 1, canaries(1, 0))
        odd = weights(tmp_path / "odd", "nothing")  # type: ignore[arg-type]
        with pytest.raises(HandoverFailed, match="HTTP 500") as refused:
            await handover.hand_over(odd, 2, canaries(2, 1))
        assert refused.value.resumed_at == 1


async def test_where_nothing_can_be_restored_calls_wait_until_a_hand_over_succeeds(tmp_path):
    async with handing_over(tmp_path, settings={"restore": False}) as (handover, rig, _):
        await handover.hand_over(weights(tmp_path / "w1", 1), 1, canaries(1, 0))
        with pytest.raises(WrongWeights) as refused:
            await handover.hand_over(weights(tmp_path / "w2", 9), 2, canaries(2, 1))
        assert refused.value.resumed_at is None and handover.held
        client = await rig.session()
        asked = asyncio.create_task(client.ask([USER]))
        await asyncio.sleep(0.2)
        assert not asked.done()
        with pytest.raises(HandoverFailed, match="paused"):
            await handover.adopt(tmp_path / "w1", 1, canaries(1))
        report = await handover.hand_over(weights(tmp_path / "w2b", 2), 2, canaries(2, 1))
        assert not report.told_apart  # the paused engine could not be asked about its old weights
        await asked
        assert rig.turns(client.session_id)[0].sample.weights_version == (2, 2)


async def test_restore_brings_back_the_last_proven_weights_when_asked(tmp_path):
    async with handing_over(tmp_path, settings={"restore": False}) as (handover, rig, _):
        with pytest.raises(HandoverFailed, match="no weights were proven"):
            await handover.restore()
        await handover.hand_over(weights(tmp_path / "w1", 1), 1, canaries(1))
        with pytest.raises(WrongWeights):
            await handover.hand_over(weights(tmp_path / "w2", 9), 2, canaries(2))
        await handover.restore()
        assert not handover.held and await served_number(rig) == 1


async def test_one_replica_that_stays_behind_refuses_the_update_for_all(tmp_path):
    async with handing_over(tmp_path, servers=[{}, {}]) as (handover, rig, servers):
        await handover.hand_over(weights(tmp_path / "w1", 1), 1, canaries(1, 0))
        behind = servers[1].core
        behind.options = type(behind.options)(**{**_fields(behind.options), "stale_weights": True})
        with pytest.raises(StaleWeights, match=r"^b: "):
            await handover.hand_over(weights(tmp_path / "w2", 2), 2, canaries(2, 1))
        assert rig.proxy.status()["weights_version"] == 1 and not handover.held
        assert {r.weights_version for r in rig.engine.status()} == {1}


async def test_a_client_that_asks_for_the_base_model_is_refused_as_stale(tmp_path):
    """The adapter is replaced beside it, and what the client asks for does not move."""
    lora, stale = {"method": "vllm_lora"}, [{"stale_weights": True}]
    async with handing_over(tmp_path, settings=lora, servers=stale) as (handover, _, servers):
        with pytest.raises(StaleWeights):
            await handover.hand_over(weights(tmp_path / "w1", 1, file=ADAPTER), 1, canaries(1, 0))
        assert servers[0].adapters == {"adapter"}


async def test_adopting_proves_what_is_served_without_touching_it(tmp_path):
    async with handing_over(tmp_path) as (handover, _rig, _):
        with pytest.raises(WrongWeights):
            await handover.adopt(weights(tmp_path / "w", 3), 0, canaries(3))
        with pytest.raises(WrongWeights, match="recorded under weights version 0"):
            await handover.adopt(tmp_path / "w", 3, canaries(3))
        assert handover.version is None and not handover.held
        (proof,) = (await handover.adopt(weights(tmp_path / "w0", 0), 0, canaries(0))).values()
        assert proof.max_diff < 1e-4 and handover.version == 0


async def test_a_single_engine_outside_a_replica_set_is_refused_by_the_settings_name(tmp_path):
    async with running(tmp_path) as rig:
        with pytest.raises(ConfigError, match="ReplicaSet"):
            make_handover(rig.proxy, HandoverSettings())
    with pytest.raises(ValueError, match="outbox"):
        HandoverSettings(method="files")


def _fields(options: Any) -> dict[str, Any]:
    return {name: getattr(options, name) for name in options.__dataclass_fields__}
