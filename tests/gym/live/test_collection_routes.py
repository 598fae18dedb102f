# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Gym's own collector writes scored rows to its rollouts, failures to its failures file, and cancelled ones nowhere.

The collector is Gym's; only the servers it would ask are left out. Runs inside an environment that has ``nemo_gym``; skipped
elsewhere.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nemo_polar.gym.read import read_traces
from nemo_polar.gym.result import gym_result
from nemo_polar.types import Status
from tests.gym.made import ROW, failed, rolled, turn

pytestmark = pytest.mark.gym
collection = pytest.importorskip("nemo_gym.rollout_collection", reason="runs inside NeMo Gym's own environment")

RESULTS = [
    gym_result(rolled([turn(0), turn(1, 0), turn(2, 0)]), {}, model="m"),
    *(gym_result(failed(status), {}, model="m") for status in Status if status.infra),
]
CANCELLED = 1 + [status for status in Status if status.infra].index(Status.CANCELLED)


class ScriptedCollection(collection.RolloutCollectionHelper):
    """Gym's collector, asked by way of a script."""

    def run_examples(self, examples: list[dict[str, Any]], *_: Any, **__: Any) -> Iterator[Any]:
        return iter([self._answer(row) for row in examples])

    _run_examples_with_metadata = run_examples  # its name in 0.7.0

    async def _answer(self, row: dict[str, Any]) -> Any:
        result = json.loads(json.dumps(RESULTS[row["number"]]))
        if hasattr(collection, "_CompletedRollout"):
            return collection._CompletedRollout(row, result, 1.0)
        return row, result


def rows(path: Path) -> dict[int, dict[str, Any]]:
    return {row["_ng_task_index"]: row for row in map(json.loads, path.read_text().splitlines())}


def test_each_result_ends_up_where_its_status_belongs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # Gym leaves folders where it runs
    monkeypatch.setenv("NEMO_GYM_CONFIG_DICT", "{dry_run: true}")  # or Gym reads pytest's command line for its own
    plain = {key: value for key, value in ROW.items() if not key.startswith("_ng_")}
    lines = [json.dumps({**plain, "number": number}) for number in range(len(RESULTS))]
    (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n")
    config = collection.RolloutCollectionConfig(
        input_jsonl_fpath=str(tmp_path / "in.jsonl"),
        output_jsonl_fpath=str(tmp_path / "out.jsonl"),
        disable_aggregation=True,
        upload_rollouts_to_wandb=False,
    )
    asyncio.run(ScriptedCollection().run_from_config(config))
    scored, broken = rows(tmp_path / "out.jsonl"), rows(tmp_path / "out_failures.jsonl")
    assert scored.keys() == {0} and scored[0]["reward"] == 0.5
    assert len(read_traces(scored[0])) == 2
    assert broken.keys() == set(range(1, len(RESULTS))) - {CANCELLED}
    assert not any("reward" in row for row in broken.values())
