# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Rows, ratios and verdicts are worked out from measurements as README.md says. No timing here: the figures are made up."""

from __future__ import annotations

import pytest

from benchmarks.hotspots import shares, stage
from benchmarks.plan import LONG, MEMORY_CALLS, MEMORY_SKIP, Plan, Window, make_plan
from benchmarks.report import KEYS, document, markdown, peer_ratios, rows_of, verdicts
from benchmarks.run import Measurements, Memory, Result
from nemo_polar.errors import ConfigError

WHOLE = Window(1, 32, False, 4)
STREAMED = Window(1, 32, True, 4, gap_ms=8.0)
LONG_STREAM = Window(1, 32, True, 4, tokens=LONG, gap_ms=8.0)
PEER = "rllm-model-gateway"


def measured() -> Measurements:
    """Two rounds in which our CPU is 3 and 4 times the pass-through's, and a token costs 50 us."""
    plan = Plan(2, (WHOLE, STREAMED, LONG_STREAM), histories=(1, 128))
    found = Measurements(plan, ["direct", "passthrough", "polar", PEER, "agentlightning"])
    for round, passing in enumerate((0.4, 0.2)):
        ours = passing * (3 + round)
        for name, cpu, ms in (("direct", None, 2.0), ("passthrough", passing, 3.0), ("polar", ours, 10.0), (PEER, 6.0, 50.0)):
            found.results.append(Result(name, WHOLE, round, cpu, [ms / 1000] * 4, [1.0] * 99 + [30.0] * 2))
        found.results.append(Result("polar", STREAMED, round, 2.0, [0.2] * 4, []))
        found.results.append(Result("polar", LONG_STREAM, round, 12.0, [2.0] * 4, []))
    for history, kept in ((1, 4000.0), (128, 4400.0)):
        found.memory.append(Memory("polar", history, 512, 5.0, kept, 9000.0))
    found.unavailable["agentlightning"] = "no Python takes it"
    return found


def one(rows, proxy, stream=False):
    (row,) = (row for row in rows if row["proxy"] == proxy and row["stream"] is stream)
    return row


def test_every_row_has_every_key_and_what_is_missing_says_why():
    rows = rows_of(measured())
    assert all(tuple(row) == KEYS for row in rows)
    missing = one(rows, "agentlightning")
    assert missing["cpu_ms"] is None and missing["why"] == "no Python takes it"
    assert not any(row["reply_tokens"] == LONG for row in rows)


def test_the_pass_through_is_once_itself_and_ratios_are_of_one_round():
    rows = rows_of(measured())
    assert one(rows, "passthrough")["ratio_passthrough"] == 1.0
    # Of medians it would be 1.0 / 0.3; of pairs it is the median of 3 and 4.
    assert one(rows, "polar")["ratio_passthrough"] == pytest.approx(3.5)
    assert one(rows, "direct")["cpu_ms"] is None and one(rows, "direct")["added_p50_ms"] is None


def test_latency_is_told_over_the_engine_by_itself_and_lag_where_it_was_measured():
    rows = rows_of(measured())
    assert one(rows, "polar")["added_p50_ms"] == pytest.approx(8.0)
    assert one(rows, "polar")["lag_p99_ms"] == pytest.approx(30.0)
    assert one(rows, "polar", stream=True)["lag_p99_ms"] is None


def test_a_streamed_token_costs_what_a_longer_reply_costs_more():
    rows = rows_of(measured())
    assert one(rows, "polar", stream=True)["us_per_streamed_token"] == pytest.approx(50.0)
    assert one(rows, "polar")["us_per_streamed_token"] is None


def test_a_target_is_met_missed_or_not_measured_and_never_met_unseen():
    verdict = {v["target"]: v for v in verdicts(rows_of(measured()))}
    assert verdict["CPU a call, 1 KB, 32 at a time"]["met"] is True
    assert verdict["CPU a streamed token, 32 at a time"]["met"] is True
    assert verdict["CPU a call, 128 KB, 32 at a time"]["met"] is None
    slow = measured()
    slow.results.append(Result("polar", Window(1, 256, False, 4), 0, 1.0, [0.1], [25.0]))
    slow.plan = Plan(2, (*slow.plan.windows, Window(1, 256, False, 4)))
    verdict = {v["target"]: v for v in verdicts(rows_of(slow))}
    assert verdict["event-loop lag p99, 256 at a time, whole"]["met"] is False


def test_a_whole_reply_of_a_paced_engine_is_no_reason_to_miss_the_target_of_an_instant_one():
    found = measured()
    paced = Window(1, 32, False, 4, gap_ms=8.0)
    found.plan = Plan(2, (*found.plan.windows, paced))
    found.results.append(Result("polar", paced, 0, 99.0, [0.2], []))
    verdict = {v["target"]: v for v in verdicts(rows_of(found))}
    assert verdict["CPU a call, 1 KB, 32 at a time"]["measured"] < 1.5


def test_peers_are_told_by_ratio_and_the_page_has_it_all():
    doc = document(measured(), {"cpu": "a model"})
    assert [(p["peer"], round(p["ratio"], 4)) for p in peer_ratios(doc["rows"])] == [(PEER, round(1.0 / 6.0, 4))]
    page = markdown(doc)
    assert "no Python takes it" in page and "a model" in page and PEER in page


def test_memory_is_counted_over_at_least_500_calls():
    assert MEMORY_CALLS - MEMORY_SKIP >= 500


def test_a_plan_can_be_narrowed_by_phrases_and_never_to_nothing():
    plan = make_plan(quick=False)
    assert {(w.history_kb, w.concurrency) for w in plan.only("1 KB, 32 at a time").windows} == {(1, 32)}
    assert plan.only("1 KB").histories == (1,) and plan.only("1 KB").memory_calls == 0
    assert plan.only("memory").memory_calls and not plan.only("memory").windows
    with pytest.raises(ConfigError, match="matches none"):
        plan.only("2 KB")


def test_time_counts_for_our_innermost_module_and_else_for_the_library():
    ours = ["run (asyncio/runners.py)", "draw (nemo_polar/capture/draw.py:12)", "loads (orjson/__init__.py)"]
    library = ["run (asyncio/runners.py)", "handle (aiohttp/web.py:3)"]
    assert stage(ours) == "nemo_polar/capture/draw.py"
    assert stage(library) == "aiohttp"
    stages, functions = shares([(ours, 3), (library, 1)])
    assert stages == {"nemo_polar/capture/draw.py": 3, "aiohttp": 1} and functions[ours[-1]] == 3
