# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Metrics say what was done, survive the sessions that did it, hold no secret, and don't grow with what a harness sends."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from nemo_polar.capture.histogram import Histogram
from nemo_polar.capture.totals import Totals
from nemo_polar.engines.replicas import ReplicaSet
from nemo_polar.engines.scripted import Fault, ScriptedReply
from nemo_polar.types import FinishReason
from tests.capture.test_calls import USER, cut_off
from tests.support.proxy import running
from tests.support.replicas import QUICK, Flaky

RETRY = {"x-stainless-retry-count": "1"}


class Scrape:
    """One answer of ``GET /metrics``."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        self.samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families.values()
            for sample in family.samples
        }

    def __call__(self, name: str, **labels: str) -> float:
        """The sum over all samples with (at least) these labels."""
        wanted = labels.items()
        return sum(value for (found, has), value in self.samples.items() if found == name and has >= wanted)

    @property
    def series(self) -> set[str]:
        return {f"{name}{sorted(labels)}" for name, labels in self.samples}


async def scrape(rig) -> Scrape:
    headers = {"Authorization": f"Bearer {rig.proxy.control_secret}"}
    async with rig.http.get(rig.proxy.control_url + "/metrics", headers=headers) as response:
        assert response.status == 200
        assert response.headers["Content-Type"].startswith("text/plain; version=")
        return Scrape(await response.text())


async def test_counts_equal_what_was_done_also_after_the_sessions_have_ended(tmp_path):
    async with running(tmp_path) as rig:
        clients = [await rig.session(name) for name in "ab"]
        rig.engine.core.push(rig.ids('<tool_call>\n{"name": "write", nonsense}\n</tool_call>'))
        for client in clients:
            history = [USER]
            for _ in range(3):
                history += [await client.message(history), USER]
            async with client.stream([USER, USER]) as response:
                await response.read()
        assert (await clients[0].post(b"{"))[0] == 400
        assert (await clients[0].post({}, path="/nowhere"))[0] == 404
        assert (await clients[0].post({}, headers={"Authorization": "Bearer x"}))[0] == 401
        now = await scrape(rig)
        turns = [turn for client in clients for turn in rig.turns(client.session_id)]
        assert len(turns) == 8
        generate = {"dialect": "openai_chat", "route": "generate"}
        assert now("polar_requests_total", **generate, stream="false", code="200") == 6
        assert now("polar_requests_total", **generate, stream="true", code="200") == 2
        assert now("polar_requests_total", **generate, code="400") == now("polar_requests_total", **generate, code="401") == 1
        assert now("polar_requests_total", route="none", code="404") == 1 and now("polar_requests_total") == 11
        assert now("polar_request_seconds_count", stream="false") == 6 and now("polar_request_seconds_count") == 8
        for name in ("polar_samples_total", "polar_replies_total", "polar_added_seconds_count"):
            assert now(name) == 8, name
        assert now("polar_engine_first_token_seconds_count") == 8
        assert now("polar_sampled_tokens_total") == sum(len(turn.sample) for turn in turns)
        assert now("polar_prompt_tokens_total") == sum(turn.prompt_len for turn in turns)
        assert now("polar_turns_bridged_total") == sum(turn.parent is not None for turn in turns)
        forks = Counter(turn.fork_reason.value for turn in turns if turn.fork_reason is not None)
        assert {reason: now("polar_turns_forked_total", reason=reason) for reason in forks} == dict(forks)
        assert now("polar_turns_bridged_total") + now("polar_turns_forked_total") == len(turns)
        assert now("polar_malformed_tool_calls_total") == 1
        assert (now("polar_sessions_open"), now("polar_sessions_opened_total"), now("polar_sessions_closed_total")) == (2, 2, 0)
        assert now("polar_calls_in_flight") == now("polar_streams_open") == now("polar_paused") == 0
        assert now("polar_journal_healthy") == 1 and now("polar_journal_commit_seconds_count") > 0
        assert now("polar_journal_batch_rows_sum") >= now("polar_journal_batch_rows_count")
        assert now("process_resident_memory_bytes") > 1e6
        for client in clients:
            await rig.proxy.close_session(client.session_id)
        after = await scrape(rig)
        gone = ("polar_sessions", "polar_journal", "polar_event", "polar_connections", "polar_seen", "process_")
        same = [key for key in now.samples if not key[0].startswith(gone)]
        assert {key: now.samples[key] for key in same} == {key: after.samples.get(key) for key in same}
        assert after("polar_sessions_closed_total", status="closed") == 2 and after("polar_sessions_open") == 0


async def test_retries_failures_joined_and_replayed_calls_are_told_apart(tmp_path):
    async with running(tmp_path, token_delay=0.01, grace_seconds=5, engine_retries=1) as rig:
        client = await rig.session()
        rig.engine.core.push(ScriptedReply(rig.ids("x"), fault=Fault.OVERLOADED), rig.ids("the second try"))
        first = asyncio.create_task(client.ask([USER]))
        await asyncio.sleep(0.1)
        await client.ask([USER], headers=RETRY)
        await first
        other = await rig.session("b")
        rig.engine.core.push(rig.ids("a reply nobody waited for"))
        await cut_off(other)
        await asyncio.sleep(0.5)
        await other.ask([USER])
        rig.engine.core.push(*[ScriptedReply(rig.ids("y"), fault=Fault.NAN_LOGPROB, fault_after=0)] * 2)
        assert (await client.post(client.body([USER, USER])))[0] == 503
        now = await scrape(rig)
        assert (now("polar_joined_total"), now("polar_replayed_total")) == (2, 1)
        assert now("polar_engine_retries_total") == 1
        assert now("polar_engine_failures_total", kind="EngineOverloaded") == 1
        assert now("polar_engine_failures_total", kind="EngineProtocol") == 1
        assert now("polar_failed_replies_total", reason="EngineProtocol") == now("polar_failed_replies_total") == 1
        assert now("polar_samples_total") == now("polar_replies_total") + now("polar_failed_replies_total")
        assert now("polar_requests_total", code="499") == 1 and now("polar_requests_total", code="503") == 1


async def test_an_aborted_sample_and_its_continuation_are_counted_and_the_new_version_shown(tmp_path):
    async with running(tmp_path, token_delay=0.02) as rig:
        client = await rig.session()
        rig.engine.core.push(rig.ids("a" * 50), rig.ids("b" * 5))
        asked = asyncio.create_task(client.ask([USER], stream=False))
        await asyncio.sleep(0.3)
        assert (await scrape(rig))("polar_calls_in_flight") == 1
        await rig.proxy.pause()
        assert (await scrape(rig))("polar_paused") == 1
        await rig.proxy.resume(7)
        await asked
        assert [t.sample.finish_reason for t in rig.turns(client.session_id)] == [FinishReason.ABORT, FinishReason.STOP]
        now = await scrape(rig)
        assert now("polar_samples_aborted_total") == now("polar_samples_continued_total") == 1
        assert now("polar_samples_total") == now("polar_replies_total") == 1
        assert now("polar_weights_version") == 7


async def test_no_secret_is_in_it_and_every_replica_is(tmp_path):
    names = ["http://someone:pass-word-1@a:1", "http://b:2"]
    async with running(tmp_path, engine=ReplicaSet({n: Flaky(vocab=259, reply_tokens=(4, 8)) for n in names}, **QUICK)) as rig:
        client = await rig.session()
        await client.ask([USER])
        rig.proxy.engine._replicas[1].engine.down = True
        await asyncio.sleep(0.2)
        now = await scrape(rig)
        for secret in (client.secret, rig.proxy.control_secret, "pass-word-1"):
            assert secret not in now.text
        assert now("polar_replica_up") == 1 and now("polar_replica_up", replica="http://b:2") == 0
        assert len(now.families["polar_replica_calls_in_flight"].samples) == 2
        assert [r["healthy"] for r in rig.proxy.status()["replicas"]] == [True, False]


async def test_series_do_not_grow_with_what_a_harness_makes_up(tmp_path):
    rand = random.Random(0)

    async def mischief(rig, client) -> None:
        word = f"x{rand.getrandbits(60):x}"
        body = client.body([{**USER, word: 1}], model=word, metadata={word: word}, user=word, **{word: [word], f"y{word}": 2})
        await client.post(body)
        await client.post(json.dumps({word: word}).encode(), path=f"/{word}")
        await client.post(client.body([{"role": word, "content": word}]))
        await client.post(b"{", headers={"Authorization": f"Bearer {word}"})
        async with rig.http.request(word.upper(), f"{rig.proxy.url}/v1/{word}/chat/completions?{word}={word}") as response:
            await response.read()

    async with running(tmp_path) as rig:
        client = await rig.session()
        await mischief(rig, client)
        first = await scrape(rig)
        for n in range(10):
            other = await rig.session(f"r{n}")
            for _ in range(3):
                await mischief(rig, other)
            await rig.proxy.close_session(other.session_id)
        last = await scrape(rig)
        new = last.series - first.series
        assert new == {"polar_sessions_closed_total[('status', 'closed')]"}
        assert last("polar_dropped_features_total", feature="unknown") == 31 * 3


def test_features_that_a_dialect_makes_up_end_in_one_bucket():
    totals = Totals()
    for n in range(500):
        totals.end({f"dropped:made up {n}: because": 2, "calls": 1}, "closed")
    found = totals.sum([])
    assert found["calls"] == 500 and found["dropped:other"] > 800
    assert len(found) < 100 and sum(c for k, c in found.items() if k.startswith("dropped:")) == 1000


async def test_two_proxies_of_a_process_count_for_themselves(tmp_path):
    async with running(tmp_path / "a") as one, running(tmp_path / "b") as two:
        await (await one.session()).ask([USER])
        assert (await scrape(one))("polar_samples_total") == 1
        assert (await scrape(two))("polar_samples_total") == 0


async def test_it_takes_the_control_secret_and_speaks_openmetrics_when_asked(tmp_path):
    async with running(tmp_path) as rig:
        client = await rig.session()
        await client.ask([USER])
        async with rig.http.get(rig.proxy.control_url + "/metrics") as response:
            assert response.status == 401 and "polar_" not in await response.text()
        assert (await client.post(b"", path="/metrics"))[0] == 404
        headers = {"Authorization": f"Bearer {rig.proxy.control_secret}", "Accept": "application/openmetrics-text"}
        async with rig.http.get(rig.proxy.control_url + "/metrics", headers=headers) as response:
            names = {family.name for family in openmetrics(await response.text())}
        assert {"polar_samples", "polar_request_seconds", "polar_event_loop_lag_seconds"} <= names


async def test_the_busiest_sessions_are_listed_first_and_no_more_than_asked_for(tmp_path):
    async with running(tmp_path, token_delay=0.05) as rig:
        clients = [await rig.session(f"r{n}") for n in range(4)]
        rig.engine.core.push(rig.ids("long " * 8))
        asked = asyncio.create_task(clients[2].ask([USER]))
        await asyncio.sleep(0.1)
        headers = {"Authorization": f"Bearer {rig.proxy.control_secret}"}
        async with rig.http.get(rig.proxy.control_url + "/sessions?busiest=2", headers=headers) as response:
            found = await response.json()
        assert [s["rollout_id"] for s in found] == ["r2", "r3"]
        assert (found[0]["in_flight"], found[0]["idle_seconds"]) == (1, 0) and found[1]["idle_seconds"] > 0
        async with rig.http.get(rig.proxy.control_url + "/sessions?busiest=-1", headers=headers) as response:
            assert response.status == 400 and "busiest" in (await response.json())["error"]
        asked.cancel()


async def test_refused_transactions_are_counted(tmp_path, monkeypatch):
    async with running(tmp_path) as rig:
        client = await rig.session()
        monkeypatch.setattr("nemo_polar.capture.journal._together", _disk_full)
        assert (await client.post(client.body([USER])))[0] == 503
        now = await scrape(rig)
        assert now("polar_journal_errors_total") >= 1 and now("polar_journal_healthy") == 0
        assert now("polar_failed_replies_total", reason="journal") == 1


def _disk_full(*_):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("value, bound", [(-1.0, "1.0"), (1.0, "1.0"), (1.5, "2.0"), (3.0, "+Inf")])
def test_a_histogram_counts_each_value_under_its_bound_and_all_above(value, bound):
    histogram = Histogram((1.0, 2.0))
    histogram.observe(value)
    counts = dict(histogram.buckets())
    assert list(counts) == ["1.0", "2.0", "+Inf"]
    assert [b for b, count in counts.items() if count] == list(counts)[list(counts).index(bound) :]
    assert histogram.sum == max(value, 0.0)
