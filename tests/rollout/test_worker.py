# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A worker's rollouts are recorded like a run's, and none outlives it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nemo_polar.errors import ConfigError
from nemo_polar.rollout.attempt import Identity
from nemo_polar.rollout.audited import audit_folder
from nemo_polar.rollout.compose import load_settings
from nemo_polar.rollout.tasks import LoadedTask, Task
from nemo_polar.rollout.worker import Worker
from nemo_polar.settings import RunSettings, SamplingPolicy
from nemo_polar.trajectory.records import JournalReader
from nemo_polar.trajectory.store import read_trajectories
from nemo_polar.types import Status
from tests.support.asking import ASK
from tests.support.tiny import HERMES, write_tiny_tokenizer


def worker_settings(tmp_path: Path, command: str, **changes: Any) -> RunSettings:
    overrides = [
        *("env=external", "harness=shell", "sandbox=process", "engine=scripted", "retries=0", f"out={tmp_path}", "name=w"),
        *("policy.codec.renderer=template", f"policy.codec.chat_template={HERMES}"),
        f"policy.codec.tokenizer={write_tiny_tokenizer(tmp_path / 'tokenizer')}",
        *("engine.options.script=null", "engine.options.vocab=259", "engine.options.reply_tokens=[4,12]"),
    ]

    def adapt(config: Any, _: Any) -> None:
        config.harness.options.command = command
        for key, value in changes.items():
            config[key] = value

    return load_settings(None, overrides, adapt=adapt)


def a_task(**fields: Any) -> LoadedTask:
    checks = [{"name": "there", "command": "true", "weight": 1.0}]
    block = {"id": "t", "instruction": "hello", "verifier": {"type": "command", "checks": checks}} | fields
    return LoadedTask(Task.model_validate(block), Path())


@asynccontextmanager
async def serving(tmp_path: Path, command: str, **changes: Any) -> AsyncIterator[Worker]:
    async with Worker(worker_settings(tmp_path, command, **changes)) as worker:
        yield worker


async def written(path: Path) -> str:
    """What a harness has written, once it has."""

    def wait() -> str:
        until = time.monotonic() + 20
        while time.monotonic() < until:
            if path.exists() and (text := path.read_text().strip()):
                return text
            time.sleep(0.02)
        raise TimeoutError(path)

    return await asyncio.to_thread(wait)


def running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def test_a_rollout_comes_with_its_turns_and_requests_and_the_folder_audits(tmp_path: Path) -> None:
    async with serving(tmp_path, f'python3 -c "{ASK}"') as worker:
        who = Identity("t.0", "t", "g")
        rolled = await worker.rollout(a_task(), who)
        assert rolled.trajectory.status is Status.COMPLETED, rolled.trajectory.error
        assert rolled.trajectory.reward == 1.0
        assert len(rolled.turns) == 1 and rolled.first_prompt is not None
        assert [m.text for m in rolled.requests[rolled.turns[0].id].messages] == ["hello"]
        folder = worker.folder
    report = await audit_folder(folder.path)
    assert report.ok and report.to_dict()["sampled_tokens"] == len(rolled.turns[0].sample)
    assert [t.rollout_id for t in read_trajectories(folder.trajectories)] == ["t.0"]
    assert json.loads(folder.report.read_bytes())["statuses"] == {"completed": 1}


async def test_a_rollout_may_have_a_sampling_policy_of_its_own(tmp_path: Path) -> None:
    async with serving(tmp_path, f'python3 -c "{ASK}"') as worker:
        sampling = SamplingPolicy(temperature=0.5, max_tokens=3)
        rolled = await worker.rollout(a_task(), Identity("t.0", "t", "g"), sampling=sampling)
        sample = rolled.turns[0].sample
        assert sample.sampling.temperature == 0.5 and len(sample) <= 3
        with JournalReader(worker.folder.journal) as journal:
            (session,) = journal.sessions()
        assert session.metadata["sampling"]["temperature"] == 0.5


async def test_an_id_is_used_once(tmp_path: Path) -> None:
    async with serving(tmp_path, "true") as worker:
        await worker.rollout(a_task(), Identity("t.0", "t", "g"))
        with pytest.raises(ConfigError, match="id of its own"):
            await worker.rollout(a_task(), Identity("t.0", "t", "g"))


async def test_a_cancelled_rollout_is_recorded_and_leaves_no_process(tmp_path: Path) -> None:
    async with serving(tmp_path, f"echo $$ > {tmp_path}/pid; sleep 600") as worker:
        task = asyncio.create_task(worker.rollout(a_task(), Identity("t.0", "t", "g")))
        pid = int(await written(tmp_path / "pid"))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not running(pid)
        assert worker.under_way == 0
        (trajectory,) = read_trajectories(worker.folder.trajectories)
        assert trajectory.status is Status.CANCELLED and trajectory.reward is None


async def test_stopping_cancels_what_is_under_way_and_refuses_more(tmp_path: Path) -> None:
    worker = Worker(worker_settings(tmp_path, f"echo 1 > {tmp_path}/begun; sleep 600"))
    await worker.start()
    task = asyncio.create_task(worker.rollout(a_task(), Identity("t.0", "t", "g")))
    await written(tmp_path / "begun")
    await worker.stop()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(ConfigError, match="not serving"):
        await worker.rollout(a_task(), Identity("t.1", "t", "g"))
    (trajectory,) = read_trajectories(worker.folder.trajectories)
    assert trajectory.status is Status.CANCELLED
    await worker.stop()


async def test_a_worker_that_cannot_start_leaves_nothing_open(tmp_path: Path) -> None:
    settings = worker_settings(tmp_path, "true", engine={"name": "vllm", "url": "http://127.0.0.1:9"})
    worker = Worker(settings)
    with pytest.raises(Exception, match=r"127\.0\.0\.1:9"):
        await worker.start()
    await worker.stop()
    async with Worker(worker_settings(tmp_path, "true")):
        pass
