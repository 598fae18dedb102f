# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The real CPU engine (`make smoke`): hand-overs proven against Hugging Face models, and real faults refused.

Two starts of half a minute each, one restart, and a minute for the trainer's scores. ``-s`` shows the figures.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from nemo_polar.engines.local_vllm import LocalVllm, LoraOptions, VllmOptions
from nemo_polar.engines.replicas import ReplicaSet
from nemo_polar.engines.vllm import VllmEngine
from nemo_polar.errors import LostWeights, StaleCache, StaleWeights, WrongWeights
from nemo_polar.rl.handover.base import Handover, HandoverReport
from nemo_polar.rl.handover.canary import Canary
from nemo_polar.rl.handover.make import make_handover
from nemo_polar.rl.handover.settings import HandoverSettings
from nemo_polar.rl.handover.vllm_full import VllmFull
from nemo_polar.rl.handover.weights_file import seal
from nemo_polar.rollout.compose import engine_python, home
from nemo_polar.settings import CodecSettings
from nemo_polar.tokens.load import load_codec
from nemo_polar.types import as_ids
from tests.support.proxy import Rig, running

BASE, POLICY = home() / "models" / "smollm2-135m", home() / "models" / "demo"
REPOSITORY = Path(__file__).parents[3]
LENGTH = 200
"""Tokens of a canary: more than a block of the engine's prefix cache (128 on CPU)."""
NEAR = 1e-5
"""A step of so many standard deviations of each weight matrix moves no canary token by as much as the bound."""
pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not (POLICY / "config.json").exists(), reason="the demo's model is not set up (make setup)"),
]


class Trainer:
    """What the trainer knows: folders, and scores of the canaries under each."""

    def __init__(self, out: Path):
        text = (REPOSITORY / "LICENSE").read_text()[2000:6000] + (REPOSITORY / "README.md").read_text()[:4000]
        ids = Tokenizer.from_file(str(POLICY / "tokenizer.json")).encode(text).ids
        self.ids = [ids[at : at + LENGTH] for at in (0, 400, 900)]
        assert all(len(x) == LENGTH for x in self.ids)
        self.out = out
        out.mkdir()
        for name, folder in (("base", BASE), ("policy", POLICY)):
            (out / name).mkdir()
            for file in folder.iterdir():
                (out / name / file.name).symlink_to(file)
            seal(out / name)
        plan = {"out": str(out), "base": str(BASE), "policy": str(POLICY), "canaries": self.ids, "near": NEAR}
        (out / "plan.json").write_text(json.dumps(plan))
        subprocess.run(
            ["nice", "-n", "5", str(engine_python()), "-m", "tests.support.hf_trainer", str(out / "plan.json")],
            check=True,
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "HF_HUB_OFFLINE": "1"},
        )
        self.scores = {f.stem: dict(np.load(f)) for f in out.glob("*.npz")}

    def canaries(self, name: str, before: str | None = None) -> list[Canary]:
        new, old = self.scores[name], None if before is None else self.scores[before]["logprobs"]
        return [
            Canary(as_ids(ids), new["logprobs"][at], None if old is None else old[at], new["after"][at])
            for at, ids in enumerate(self.ids)
        ]

    def moved(self, name: str, before: str) -> float:
        return float(np.abs(self.scores[name]["logprobs"] - self.scores[before]["logprobs"]).max())


class Forgetful(VllmEngine):
    """Keeps the prefix cache when told to: vLLM drops it by itself in a pause, unless it is asked not to, and once more is told
    to before it resumes."""

    keeps_cache = False

    async def pause(self) -> None:
        if not self.keeps_cache:
            return await super().pause()
        await self.admin("/pause?mode=abort&clear_cache=false")

    async def _flush(self) -> bool:
        return True if self.keeps_cache else await super()._flush()


class Faulty(VllmFull):
    """Loads in another way when told to."""

    way: str = "proper"

    async def _load(self, name: str, engine: Any, folder: Path, version: int) -> None:
        way, self.way = self.way, "proper"  # what follows is the way back
        if way == "nothing":
            return
        await super()._load(name, engine, folder, version)


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    return Trainer(tmp_path_factory.mktemp("trainer") / "out")


@asynccontextmanager
async def serving(
    folder: Path, model: Path, lora: LoraOptions | None = None
) -> AsyncIterator[tuple[LocalVllm, Forgetful, Rig]]:
    options = VllmOptions(kv_cache_gib=1, max_context=2048, lora=lora)
    async with LocalVllm(model, python=engine_python(), log_path=folder / "engine.log", options=options) as server:
        engine = Forgetful(server.url, model=lora.name if lora is not None else None)
        codec = load_codec(CodecSettings(tokenizer=str(POLICY), renderer="template"))
        async with running(folder, codec=codec, engine=ReplicaSet({"engine": engine})) as rig:
            yield server, engine, rig


def show(what: str, report: HandoverReport, moved: float) -> None:
    (proof,) = report.proofs.values()
    seconds = " ".join(f"{name} {value:.2f}" for name, value in report.seconds.items())
    print(
        f"\n{what}: moved {moved:.3g}, max diff {proof.max_diff:.2g}, mean {proof.mean_diff:.2g}, "
        f"drawn {proof.drawn_diff:.2g}, share {proof.share}, told apart {proof.told_apart}; s: {seconds}"
    )


async def refused(handover: Handover, error: type[Exception], weights: Path, version: int, canaries: list[Canary]) -> None:
    proven = handover.version
    with pytest.raises(error) as caught:
        await handover.hand_over(weights, version, canaries)
    print(f"\nrefused, {error.__name__}: {caught.value}")
    assert caught.value.resumed_at == proven and not handover.held  # type: ignore[attr-defined]


async def test_full_weights_are_proven_and_every_fault_is_refused_by_name(tmp_path: Path, trainer: Trainer) -> None:
    out = trainer.out
    async with serving(tmp_path, BASE) as (server, engine, rig):
        handover = Faulty(rig.proxy, HandoverSettings())
        (proof,) = (await handover.adopt(out / "base", 0, trainer.canaries("base"))).values()
        print(f"\nadopted: max diff {proof.max_diff:.2g}, drawn {proof.drawn_diff:.2g}")

        report = await handover.hand_over(out / "policy", 1, trainer.canaries("policy", "base"))
        show("base to policy", report, trainer.moved("policy", "base"))
        assert report.told_apart and report.canary_diff < 1e-3

        # A step below the bound: the engine's own movement shows that it was made, or that it was not.
        near = trainer.moved("near", "policy")
        assert 1e-5 < near < 1e-3
        handover.way = "nothing"
        await refused(handover, StaleWeights, out / "near", 2, trainer.canaries("near", "policy"))
        report = await handover.hand_over(out / "near", 2, trainer.canaries("near", "policy"))
        show("policy to near", report, near)
        assert report.told_apart
        (proof,) = report.proofs.values()
        assert proof.share == pytest.approx(1.0, abs=0.2)

        await refused(handover, WrongWeights, out / "base", 3, trainer.canaries("policy", "near"))
        engine.keeps_cache = True
        with pytest.raises(StaleCache) as stale:
            await handover.hand_over(out / "base", 3, trainer.canaries("base", "near"))
        print(f"\nrefused, StaleCache: {stale.value}")
        engine.keeps_cache = False
        if handover.held:
            await handover.restore()
        handover.way = "nothing"
        await refused(handover, StaleWeights, out / "base", 3, trainer.canaries("base", "near"))
        await server.stop()
        await server.start()
        with pytest.raises(LostWeights) as lost:
            await handover.check()
        print(f"\nrefused, LostWeights: {lost.value}; back at {lost.value.resumed_at}")
        assert lost.value.resumed_at == 2
        report = await handover.hand_over(out / "merged", 3, trainer.canaries("merged", "near"))
        show("near to merged", report, trainer.moved("merged", "near"))


async def test_an_adapter_is_replaced_in_place_and_proven(tmp_path: Path, trainer: Trainer) -> None:
    out = trainer.out
    merge = json.loads((out / "merge.json").read_text())
    assert merge["weights_off"] < 1e-6 and trainer.moved("merged", "adapter1") < 1e-3
    async with serving(tmp_path, POLICY, LoraOptions(out / "adapter1")) as (_, _engine, rig):
        handover = make_handover(rig.proxy, HandoverSettings(method="vllm_lora"))
        (proof,) = (await handover.adopt(out / "adapter1", 0, trainer.canaries("adapter1"))).values()
        print(f"\nadopted: max diff {proof.max_diff:.2g}, drawn {proof.drawn_diff:.2g}")
        report = await handover.hand_over(out / "adapter2", 1, trainer.canaries("adapter2", "adapter1"))
        show("adapter1 to adapter2", report, trainer.moved("adapter2", "adapter1"))
        assert report.told_apart
        await refused(handover, WrongWeights, out / "adapter1", 2, trainer.canaries("policy", "adapter2"))
        await refused(handover, StaleWeights, out / "adapter2", 2, trainer.canaries("adapter1", "adapter2"))
        await (await rig.session()).ask([{"role": "user", "content": "hello"}], max_tokens=8)
