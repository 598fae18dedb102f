# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""``polar bench sessions``: a thousand harnesses at once on one proxy, and whether what it recorded is what the engine drew.

Three processes: the scripted engine, which writes the independent log; ``polar proxy`` as a user runs it; and this one, the
load. Sessions arrive over a minute; each is a conversation of twenty calls that grows by a tool's answer a call, every other
session streamed. Afterwards every turn in the journal is compared with the engine's log. What it measures is this machine's.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from benchmarks.process import Measured
from benchmarks.texts import TextSource
from nemo_polar.engines.log import read_engine_log
from nemo_polar.settings import TracePolicy
from nemo_polar.trajectory.audit import Auditor
from nemo_polar.trajectory.records import JournalReader
from nemo_polar.trajectory.store import ENGINE_LOG, JOURNAL

_TOOL = {"type": "function", "function": {"name": "bash", "description": "Run a command.", "parameters": {"type": "object"}}}
_VOCAB = 151_936
_END = 151_645
_CONTEXT = 131_072
_LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked of the proxy."""

    sessions: int = 1000
    turns: int = 20
    arrive_seconds: float = 60.0
    new_bytes: int = 1024
    """Text of a tool's answer."""


@dataclass(slots=True)
class Outcome:
    """What came of it."""

    seconds: list[float] = field(default_factory=list)
    """Of each call, from its request to the last byte of its answer."""
    failures: Counter[str] = field(default_factory=Counter)
    rss_mb: list[tuple[float, float, int]] = field(default_factory=list)
    """Seconds since the start, the proxy's resident memory, sessions under way."""


async def run(load: Load, tokenizer: Path, out: Path, tell: Callable[[int, int], None]) -> dict[str, Any]:
    """Do it in ``out``. ``tell`` is told how many calls of how many are answered.

    Raises:
        EngineUnavailable: a process did not start.
    """
    async with AsyncExitStack() as stack:
        engine_argv = (
            *(sys.executable, "-m", "nemo_polar.engines.scripted_server", "--log", out / ENGINE_LOG, "--vocab", _VOCAB),
            *("--stop-token-ids", _END, "--reply-tokens", 16, 48, "--chunk-tokens", 8, "--token-delay", 0.01),
            *("--max-context", _CONTEXT),
        )
        engine = await Measured.start("engine", [str(a) for a in engine_argv], out / "engine.log")
        stack.push_async_callback(engine.stop)
        url = (await engine.announced())["url"]
        overrides = (f"engine.url={url}", f"policy.codec.tokenizer={tokenizer}", "capture.max_sessions=4096")
        argv = (sys.executable, "-m", "nemo_polar.cli", "proxy", "--out", out / "proxy", "--json", *overrides)
        proxy = await Measured.start("proxy", argv, out / "proxy.log")
        stack.push_async_callback(proxy.stop)
        facts = await proxy.announced()
        secret = (await asyncio.to_thread(Path(facts["control_secret_file"]).read_text)).strip()
        connector = aiohttp.TCPConnector(limit=0)
        http = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        outcome, began = Outcome(), time.monotonic()
        cpu, before = proxy.cpu_seconds(), proxy.rss_kb() / 1024
        control = _Control(http, facts["control_url"], secret)
        watching = asyncio.create_task(_watch(proxy, outcome, began, load, tell))
        await asyncio.gather(*(_session(n, load, http, facts["url"], control, outcome, began) for n in range(load.sessions)))
        wall, cpu = time.monotonic() - began, proxy.cpu_seconds() - cpu
        await asyncio.sleep(2 * _LOOK_SECONDS)
        watching.cancel()
        after = proxy.rss_kb() / 1024
    report = await asyncio.to_thread(_audited, out)
    calls = len(outcome.seconds)
    return {
        "sessions": load.sessions,
        "turns": load.turns,
        "calls": calls,
        "errors": sum(outcome.failures.values()),
        "failures": dict(outcome.failures),
        "seconds": round(wall, 1),
        "calls_per_second": round(calls / wall, 1),
        "cpu_ms_per_call": round(1000 * cpu / max(calls, 1), 2),
        "latency_s": {f"p{p}": round(_percentile(outcome.seconds, p / 100), 3) for p in (50, 95, 99)},
        "rss_mb": {"before": round(before), "most": round(max(r for _, r, _ in outcome.rss_mb)), "all_closed": round(after)},
        "curve": outcome.rss_mb,
        **report,
    }


@dataclass(frozen=True, slots=True)
class _Control:
    http: aiohttp.ClientSession
    url: str
    secret: str

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        headers = {"Authorization": f"Bearer {self.secret}"}
        async with self.http.request(method, self.url + path, json=body, headers=headers) as response:
            return await response.json()


async def _session(
    number: int, load: Load, http: aiohttp.ClientSession, url: str, control: _Control, outcome: Outcome, began: float
) -> None:
    """One harness: it arrives, holds its conversation, and leaves."""
    await asyncio.sleep(load.arrive_seconds * number / load.sessions)
    body = {"rollout_id": f"r{number}", "task_id": f"t{number // 8}", "group_id": f"g{number // 8}"}
    opened = await control.ask("POST", "/sessions", body)
    texts = TextSource(number)
    first = TextSource(number // 8).take(load.new_bytes)
    messages: list[dict[str, Any]] = [{"role": "system", "content": "You fix code."}, {"role": "user", "content": first}]
    headers = {"Authorization": f"Bearer {opened['secret']}"}
    for turn in range(load.turns):
        started = time.monotonic()
        asked = {"model": "polar", "messages": messages, "tools": [_TOOL], "stream": number % 2 == 1}
        async with http.post(url + "/v1/chat/completions", data=orjson.dumps(asked), headers=headers) as response:
            raw = await response.read()
        outcome.seconds.append(time.monotonic() - started)
        reply = _reply(raw, streamed=number % 2 == 1) if response.status == 200 else None
        if reply is None:
            outcome.failures[f"{response.status} {raw[:120].decode('utf-8', 'replace')}"] += 1
            break
        messages.append(reply)
        calls = reply.get("tool_calls") or []
        new = texts.take(load.new_bytes)
        results = [{"role": "tool", "tool_call_id": call["id"], "content": new} for call in calls]
        messages += results or [{"role": "user", "content": new}]
        await asyncio.sleep(random.Random(number * 1000 + turn).uniform(0.0, 0.5))  # the tool runs
    await control.ask("DELETE", f"/sessions/{opened['id']}")


def _reply(raw: bytes, *, streamed: bool) -> dict[str, Any] | None:
    """The assistant's message as a harness sends it back; None when the answer is not whole."""
    if not streamed:
        message = orjson.loads(raw)["choices"][0]["message"]
        return {k: message[k] for k in ("role", "content", "tool_calls", "reasoning_content") if message.get(k) is not None}
    out: dict[str, Any] = {"role": "assistant", "content": ""}
    done = False
    for line in raw.split(b"\n"):
        if line == b"data: [DONE]":
            done = True
        elif line.startswith(b"data: "):
            for choice in orjson.loads(line[6:]).get("choices", ()):
                delta = choice["delta"]
                out["content"] += delta.get("content") or ""
                if delta.get("reasoning_content"):
                    out["reasoning_content"] = out.get("reasoning_content", "") + delta["reasoning_content"]
                for call in delta.get("tool_calls") or ():
                    out.setdefault("tool_calls", []).append({k: v for k, v in call.items() if k != "index"})
    return out if done else None


async def _watch(proxy: Measured, outcome: Outcome, began: float, load: Load, tell: Callable[[int, int], None]) -> None:
    while True:
        now = time.monotonic() - began
        outcome.rss_mb.append((round(now, 1), round(proxy.rss_kb() / 1024, 1), len(outcome.seconds)))
        tell(len(outcome.seconds), load.sessions * load.turns)
        await asyncio.sleep(_LOOK_SECONDS)


def _audited(out: Path) -> dict[str, Any]:
    """The journal against the engine's own log."""
    auditor = Auditor(read_engine_log(out / ENGINE_LOG), TracePolicy())
    with JournalReader(out / "proxy" / JOURNAL) as journal:
        for session in journal.sessions():
            auditor.add_session(session, journal.turns(session.id), journal.calls(session.id))
    report = auditor.finish()
    return {
        "turns_recorded": report.turns,
        "bridged": report.bridged_turns,
        "forks": dict(report.forks),
        "sampled_tokens": report.sampled_tokens,
        "drift_tokens": report.drift_tokens,
        "findings": [str(f) for f in report.findings[:10]],
    }


def _percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def draw(found: dict[str, Any], target: Path) -> None:
    """Memory of the proxy and calls answered, over time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    seconds, rss, calls = zip(*found["curve"], strict=True)
    figure, axis = plt.subplots(figsize=(8, 4), constrained_layout=True)
    axis.plot(seconds, rss, color="tab:blue")
    axis.set_xlabel("seconds")
    axis.set_ylabel("resident memory of the proxy, MB", color="tab:blue")
    axis.set_ylim(bottom=0)
    other = axis.twinx()
    other.plot(seconds, calls, color="tab:grey")
    other.set_ylabel("calls answered", color="tab:grey")
    other.set_ylim(bottom=0)
    axis.set_title(f"{found['sessions']:,} sessions of {found['turns']} turns", loc="left")
    figure.savefig(target, dpi=130)
    plt.close(figure)
