# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Real CLIs against the real engine (`make smoke`): a rollout through each of the four APIs that `polar audit` passes.

One CPU engine serves them all, and scores again what it drew. Its model is far too small for the task, so how a rollout ends is
not looked at beyond this: nothing of ours failed.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from nemo_polar.cli.demo import MAX_LOGPROB_DIFF
from nemo_polar.engines.local_vllm import LocalVllm, VllmOptions
from nemo_polar.rollout.checks import check
from nemo_polar.rollout.compose import engine_python, home, load_settings
from nemo_polar.rollout.run import Finished, Run
from nemo_polar.trajectory.records import JournalReader
from tests.support.sandboxes import needs_bwrap
from tests.support.scripted_model import installed

POLICY = home() / "models" / "demo"
MAX_TOKENS = 192
"""Of one reply."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A harness, as it is run here, and the API it has to speak then."""

    harness: str
    dialect: str
    options: dict[str, Any] = field(default_factory=dict)


# By itself, Codex's first prompt is 8k tokens: all the positions that this model has.
_SHORT_CODEX = {"system_prompt": "You are a coding agent.", "subagents": False, "features": {"goals": False}}
CELLS = (
    Cell("pi", "openai_chat", {"api": "openai-completions"}),
    Cell("pi", "openai_responses", {"api": "openai-responses"}),
    Cell("pi", "anthropic", {"api": "anthropic-messages"}),
    Cell("pi", "gemini", {"api": "google-generative-ai"}),
    Cell("claude_code", "anthropic", {"bare": True}),
    Cell("codex", "openai_responses", _SHORT_CODEX),
)

pytestmark = [
    pytest.mark.engine,
    pytest.mark.harness,
    pytest.mark.timeout(900),
    needs_bwrap,
    pytest.mark.skipif(not (POLICY / "config.json").exists(), reason="the demo's model is not set up (make setup)"),
    pytest.mark.skipif(not engine_python().exists(), reason="the embedded engine is not set up (make engine)"),
]


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    """The one event loop of all cells, as the engine's process belongs to it."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def engine_url(loop: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("engine") / "engine.log"
    server = LocalVllm(POLICY, python=engine_python(), log_path=log, options=VllmOptions(kv_cache_gib=1))
    try:
        loop.run(server.start())
        yield server.url
    finally:
        loop.run(server.stop())


async def rolled_out(cell: Cell, engine_url: str, out: Path) -> Finished:
    """One rollout of a task that takes two tool calls, with the recording relay between proxy and engine."""
    overrides = ["env=demo", "env.only=[copy-a-word]", "env.budget.turns=3", "group_size=1", "retries=0", f"out={out}"]
    overrides += ["engine=vllm", f"engine.url={engine_url}", "engine.relay=true", "sandbox=local"]
    overrides += ["policy=smollm2", f"policy.model={POLICY}", f"capture.sampling.max_tokens={MAX_TOKENS}"]
    settings = load_settings(None, [*overrides, f"harness={cell.harness}", f"name={cell.harness}"])
    harness = settings.harness.model_copy(update={"options": cell.options})
    return await Run(check(settings.model_copy(update={"harness": harness}))).run()


def audited(run: Path, engine_url: str) -> dict[str, Any]:
    """What ``polar audit`` says of a run, its tokens scored again."""
    argv = [sys.executable, "-m", "nemo_polar.cli", "audit", str(run), "--engine-url", engine_url, "--json"]
    ran = subprocess.run(argv, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    return json.loads(ran.stdout)


def dialects(run: Path) -> set[str]:
    with JournalReader(run / "journal.db") as journal:
        return {call.dialect for session in journal.sessions() for call in journal.calls(session.id)}


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell.harness}-{cell.dialect}")
def test_a_real_harness_on_the_real_engine_is_exact_to_the_token(
    cell: Cell, loop: asyncio.Runner, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if not installed(cell.harness):
        pytest.skip(f"{cell.harness} is not installed (polar harness install {cell.harness})")
    engine_url: str = request.getfixturevalue("engine_url")  # not before it is known that it is needed
    finished = loop.run(rolled_out(cell, engine_url, tmp_path))
    (trajectory,) = finished.trajectories
    assert not trajectory.status.infra, trajectory.error
    run = finished.folder.path
    assert dialects(run) == {cell.dialect}

    audit = audited(run, engine_url)
    figures = ("calls", "turns", "bridged_turns", "sampled_tokens", "trained_tokens", "masked_tokens", "max_logprob_diff")
    print(trajectory.status.value, trajectory.error, finished.report["wall_s"], {name: audit[name] for name in figures})
    assert audit["ok"] and audit["drift_tokens"] == 0 and audit["unclaimed_sessions"] == 0
    assert 1 <= audit["turns"] <= audit["calls"]
    assert audit["sampled_tokens"] == audit["trained_tokens"] + sum(audit["masked_tokens"].values())
    assert 0 < audit["trained_tokens"] == audit["rescored_tokens"]
    assert audit["max_logprob_diff"] <= MAX_LOGPROB_DIFF
