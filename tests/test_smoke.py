# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The real engine and the real harness, once (`make smoke`): what stand-ins cannot show."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest

from nemo_polar.engines.local_vllm import LocalVllm, VllmOptions
from nemo_polar.engines.vllm import VllmEngine
from nemo_polar.rollout.compose import engine_python, home
from nemo_polar.types import as_ids

BASE, POLICY = home() / "models" / "smollm2-135m", home() / "models" / "demo"
pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not (POLICY / "config.json").exists(), reason="the demo's model is not set up (make setup)"),
]


def polar(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "nemo_polar.cli", *arguments], capture_output=True, text=True)


def test_the_demo_in_small_is_exact_and_its_audit_passes(tmp_path: Path) -> None:
    ran = polar("demo", "--json", "name=smoke", f"out={tmp_path}", "env.only=[copy-a-word,write-two-files]", "group_size=2")
    assert ran.returncode == 0, ran.stderr[-3000:]
    report = json.loads(ran.stdout)
    assert report["rollouts"] == 4 and report["bridged_turns"] >= 1 and report["drift_tokens"] == 0
    assert report["sampled_tokens"] == report["trained_tokens"] + sum(report["masked_tokens"].values()) > 0
    assert report["max_logprob_diff"] <= 1e-3
    audit = polar("audit", str(tmp_path / "smoke"))
    assert audit.returncode == 0, audit.stdout + audit.stderr


async def call(url: str, path: str, body: dict[str, Any]) -> Any:
    async with aiohttp.ClientSession() as http, http.post(url + path, json=body) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.json()


async def test_the_worker_extension_replaces_all_weights_and_brings_the_old_ones_back(tmp_path: Path) -> None:
    """vLLM's own reload answers 200 and serves a mixture; an engine that scores as before after base, policy, base does not."""
    ids = as_ids(np.arange(100, 140))
    scores = []
    async with LocalVllm(
        BASE, python=engine_python(), log_path=tmp_path / "engine.log", options=VllmOptions(kv_cache_gib=1)
    ) as server:
        engine = VllmEngine(server.url)
        await engine.connect()
        for folder in (None, POLICY, BASE):
            if folder is not None:
                done = await call(server.url, "/collective_rpc", {"method": "load_full", "args": [str(folder)]})
                assert done["results"][0]["unused"] == []
                await call(server.url, "/reset_prefix_cache", {})
            scores.append(await engine.score(ids))
        await engine.close()
    first, other, again = scores
    assert np.abs(first - again).max() < 1e-4 < 1e-2 < np.abs(first - other).max()
