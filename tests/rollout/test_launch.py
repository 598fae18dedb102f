# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""An engine of several replicas, from the settings to the audit: one client for all, a relay and a log for each."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from pydantic import ValidationError

from nemo_polar.engines.log import read_engine_log
from nemo_polar.engines.replicas import ReplicaSet
from nemo_polar.engines.vllm import VllmEngine
from nemo_polar.errors import AuditError, ConfigError
from nemo_polar.rollout.assemble import make_replicas
from nemo_polar.rollout.checks import check
from nemo_polar.rollout.compose import load_settings
from nemo_polar.rollout.folder import RunFolder
from nemo_polar.rollout.launch import launched_engine
from nemo_polar.rollout.run import Run
from nemo_polar.settings import EngineSettings
from nemo_polar.trajectory.audit import audit_run
from nemo_polar.trajectory.store import engine_logs
from tests.support.cli import overrides, write_tasks
from tests.support.engines import scripted_server
from tests.support.rollouts import settings

URLS = ("http://127.0.0.1:1", "http://127.0.0.1:2")


@pytest.mark.parametrize(
    "engine",
    [{"urls": URLS, "url": URLS[0]}, {"urls": URLS, "launch": "local_vllm"}, {"urls": [URLS[0], URLS[0]]}],
    ids=["url too", "launched too", "twice the same"],
)
def test_urls_that_contradict_are_refused(engine: dict) -> None:
    with pytest.raises(ValidationError, match="urls: "):
        EngineSettings(name="vllm", **engine)


def test_replicas_compose_and_become_one_client() -> None:
    words = ["engine=replicas", f"engine.urls=[{','.join(URLS)}]", "env.tasks=[t.yaml]", "policy.codec.tokenizer=x"]
    engine = load_settings(None, words).engine
    assert (engine.name, engine.urls, engine.url) == ("vllm", URLS, None)
    client = make_replicas(engine, ("http://127.0.0.1:3", "http://127.0.0.1:4"), Path("unused"))
    assert isinstance(client, ReplicaSet) and [s.url for s in client.status()] == list(URLS)  # not the relays' addresses
    assert isinstance(make_replicas(EngineSettings(name="vllm", url=URLS[0]), URLS[:1], Path("unused")), VllmEngine)


def test_an_option_that_no_replica_has_is_named() -> None:
    with pytest.raises(ConfigError, match=r"engine.options: .*'speed'"):
        make_replicas(EngineSettings(name="vllm", urls=URLS, options={"speed": 9}), URLS, Path("unused"))


@pytest.mark.parametrize(("engine", "urls"), [({"urls": URLS}, URLS), ({"url": URLS[0]}, URLS[:1]), ({}, ())])
async def test_without_a_relay_the_engine_is_reached_where_it_is(tmp_path: Path, engine: dict, urls: tuple[str, ...]) -> None:
    policy = settings().policy
    async with launched_engine(EngineSettings(name="vllm", **engine), policy, RunFolder(tmp_path), print) as found:
        assert found == urls
    assert engine_logs(tmp_path) == []


async def test_a_run_over_replicas_has_a_log_for_each_and_its_audit_reads_them_all(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        served = [await stack.enter_async_context(scripted_server(vocab=1024, reply_tokens=(4, 8))) for _ in range(2)]
        urls = [url for _, url in served]
        words = overrides(write_tasks(tmp_path), "engine=replicas", f"engine.urls=[{','.join(urls)}]", "engine.options={}")
        words = [w for w in words if w != "engine=scripted" and "script: null" not in w]
        finished = await Run(check(load_settings(None, [*words, "engine.relay=true"]))).run()
    folder = finished.folder.path
    assert finished.report["audited"] and finished.report["findings"] == [] and finished.report["drift_tokens"] == 0
    assert finished.report["statuses"] == {"completed": 4}
    logs = engine_logs(folder)
    assert [path.name for path in logs] == ["engine-0.jsonl", "engine-1.jsonl"]
    sessions = [{c.request_id for c in read_engine_log(path) if not c.request_id.startswith("polar-probe")} for path in logs]
    assert all(sessions) and {p.name for p in finished.folder.logs.glob("relay-*.log")} == {"relay-0.log", "relay-1.log"}
    logs[1].unlink()
    assert audit_run(folder).findings
    logs[0].unlink()
    with pytest.raises(AuditError, match=r"engine\.jsonl"):
        audit_run(folder)
