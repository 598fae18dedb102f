# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The audit is worth something: broken versions of the proxy are run for real, and it must see that they are not exact.

Each mutation is a mistake a proxy can make (and several do); the unmutated proxy passes the same conversation.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from nemo_polar.capture.calls import Calls
from nemo_polar.capture.draw import _Run
from nemo_polar.engines.scripted import Fault, ScriptedReply
from nemo_polar.settings import TracePolicy
from nemo_polar.trajectory.audit import AuditReport, audit_run
from tests.support.proxy import Rig, running
from tests.support.tiny import tiny_codec
from tests.test_exactness import drift, finished_run, write_run_manifest

USER = {"role": "user", "content": "go"}


def result(call: dict, text: str = "ok") -> dict:
    return {"role": "tool", "tool_call_id": call["id"], "content": text}


async def conversation(rig: Rig) -> str:
    """Two samples of one request, each followed up, with oddly spaced arguments; an interrupted sample that is continued."""
    client = await rig.session("r", group_id="g")
    odd = '<tool_call>\n{"name":  "write","arguments":  {"n" : 1e2}}\n</tool_call>'
    other = '<tool_call>\n{"name": "write", "arguments": {"n": 100}}\n</tool_call>'
    rig.engine.core.push(rig.ids(odd), rig.ids(other))
    first = await client.message([USER])
    second = await client.message([USER])
    for said in (first, second):
        rig.engine.core.push(rig.ids("fine"))
        await client.message([USER, said, result(said["tool_calls"][0])])
    rig.engine.core.push(ScriptedReply(rig.ids("a long reply that is lost"), fault=Fault.CUT, fault_after=9), rig.ids("rest"))
    await client.message([{"role": "user", "content": "once more"}])
    return client.session_id


async def audited(folder: Path) -> tuple[AuditReport, int]:
    policy = TracePolicy()
    async with running(folder) as rig:
        traces = await finished_run(rig, await conversation(rig), "r", policy)
    write_run_manifest(folder, tiny_codec(), policy)
    return await asyncio.to_thread(audit_run, folder), drift(traces, folder)


def record_without_looking(monkeypatch) -> None:
    """Take away the check that what the engine was given extends what is recorded: the mutations below assume it missing."""

    def where(self, segment):
        if self.parent is None:
            return None, segment.prompt_ids, self.ticket.placement
        if self.continues:
            return self.parent, segment.prompt_ids[:0], self.ticket.placement
        line = self.session.tree.ids_through(self.parent)
        return self.parent, segment.prompt_ids[len(line) :].copy(), self.ticket.placement

    monkeypatch.setattr(_Run, "_where", where)


def bridge_that_renders_again(monkeypatch) -> None:
    record_without_looking(monkeypatch)

    async def prompt(self, session, call, prints, placement):
        return placement, self.codec.render(call.messages, call.tools), 0

    monkeypatch.setattr(Calls, "_prompt", prompt)


def retry_that_starts_over_but_is_joined(monkeypatch) -> None:
    monkeypatch.setattr(_Run, "_already", property(lambda self: len(self.ids), lambda self, _: None), raising=False)


def sibling_taken_for_another(monkeypatch) -> None:
    record_without_looking(monkeypatch)
    right = _Run._where

    def where(self, segment):
        parent, delta, placement = right(self, segment)
        if parent is not None and not self.continues:
            siblings = [t for t in self.session.tree.turns if t.parent == parent.parent and t is not parent]
            parent = siblings[0] if siblings else parent
        return parent, delta, placement

    monkeypatch.setattr(_Run, "_where", where)


def sample_cut_by_one_token(monkeypatch) -> None:
    take = _Run._record_now

    async def record(self, segment, finish):
        segment.ids[-1], segment.logprobs[-1] = segment.ids[-1][:-1], segment.logprobs[-1][:-1]
        return await take(self, segment, finish)

    monkeypatch.setattr(_Run, "_record_now", record)


MUTATIONS = [
    bridge_that_renders_again,
    retry_that_starts_over_but_is_joined,
    sibling_taken_for_another,
]


async def test_the_real_proxy_passes(tmp_path):
    report, counted = await audited(tmp_path)
    assert report.findings == []
    assert (report.drift_tokens, counted) == (0, 0)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.__name__)
async def test_a_broken_proxy_is_caught(tmp_path, monkeypatch, mutation):
    mutation(monkeypatch)
    report, counted = await audited(tmp_path)
    assert report.drift_tokens > 0
    assert counted > 0
    assert any(f.trace is not None and f.position is not None for f in report.findings)


async def test_a_proxy_that_loses_a_tokens_end_is_caught_though_nothing_drifts(tmp_path, monkeypatch):
    sample_cut_by_one_token(monkeypatch)
    report, _ = await audited(tmp_path)
    assert any(f.turn is not None and f.position is not None for f in report.findings)
