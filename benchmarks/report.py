# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""From measurements to rows, and from rows to the verdict on each target. Pure; ``README.md`` says what each key means."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks.plan import LONG, SHORT, Window
from benchmarks.run import Measurements, Memory, Result

Row = dict[str, Any]
KEYS = (
    *("proxy", "history_kb", "concurrency", "stream", "cpu_ms", "ratio_passthrough", "added_p50_ms", "added_p99_ms"),
    *("lag_p99_ms", "us_per_streamed_token", "rss_kb_per_call", "journal_bytes_per_call"),
    *("engine_gap_ms", "reply_tokens", "rounds", "calls", "cpu_spread", "p50_ms", "p99_ms", "written_bytes_per_call", "why"),
)


# --- rows -------------------------------------------------------------------------------------------------------------


def rows_of(found: Measurements) -> list[Row]:
    """One row for each proxy and kind of window, in the plan's order. What was not measured is None; ``why`` has the reason.

    Latency and CPU are of the windows of that row, the rest of the proxy at that history.
    """
    rows: list[Row] = []
    for window in found.plan.windows:
        if window.tokens != SHORT:
            continue  # only there for the cost of a token
        for proxy in found.proxies:
            row = _row(found, proxy, window)
            if row is not None:
                rows.append(row)
    return rows


def _row(found: Measurements, proxy: str, window: Window) -> Row | None:
    results = _results(found, proxy, window)
    why = found.unavailable.get(proxy) or (found.no_stream.get(proxy) if window.stream else None)
    if not results and why is None:
        return None  # a window that is not for this proxy
    row: Row = dict.fromkeys(KEYS)
    row |= {"proxy": proxy, "history_kb": window.history_kb, "concurrency": window.concurrency, "stream": window.stream}
    row |= {"engine_gap_ms": window.gap_ms, "reply_tokens": window.tokens, "rounds": len(results), "why": why}
    row["calls"] = sum(len(result.seconds) for result in results)
    if results:
        row |= _latency(results, _results(found, "direct", window))
        row |= _cpu(results, _results(found, "passthrough", window))
        row["us_per_streamed_token"] = _token_cost(found, proxy, window)
    memory = _memory(found, proxy, window.history_kb)
    if memory is not None:
        row["rss_kb_per_call"] = memory.rss_kb_per_call
        row["journal_bytes_per_call"] = memory.record_bytes_per_call
        row["written_bytes_per_call"] = memory.written_bytes_per_call
    return row


def _results(found: Measurements, proxy: str, window: Window) -> list[Result]:
    return [result for result in found.results if result.proxy == proxy and result.window == window]


def _memory(found: Measurements, proxy: str, history_kb: int) -> Memory | None:
    return next((m for m in found.memory if m.proxy == proxy and m.history_kb == history_kb), None)


def _latency(results: Sequence[Result], direct: Sequence[Result]) -> Row:
    """Percentiles over the calls of all rounds."""
    seconds = np.concatenate([result.seconds for result in results]) * 1000
    p50, p99 = np.percentile(seconds, (50, 99))
    lag = np.concatenate([result.lag_ms for result in results])
    row: Row = {"p50_ms": float(p50), "p99_ms": float(p99)}
    row["lag_p99_ms"] = float(np.percentile(lag, 99)) if len(lag) else None
    if direct and results[0].proxy != "direct":
        base50, base99 = np.percentile(np.concatenate([result.seconds for result in direct]) * 1000, (50, 99))
        row |= {"added_p50_ms": float(p50 - base50), "added_p99_ms": float(p99 - base99)}
    return row


def _cpu(results: Sequence[Result], passthrough: Sequence[Result]) -> Row:
    """Medians over rounds; the ratio is of two figures of one round."""
    cpu = {result.round: result.cpu_ms for result in results if result.cpu_ms is not None}
    if not cpu:
        return {}
    base = {result.round: result.cpu_ms for result in passthrough if result.cpu_ms}
    ratios = [cpu[round] / base[round] for round in cpu if round in base]
    median = float(np.median(list(cpu.values())))
    return {
        "cpu_ms": median,
        "cpu_spread": (max(cpu.values()) - min(cpu.values())) / median,
        "ratio_passthrough": float(np.median(ratios)) if ratios else None,
    }


def _token_cost(found: Measurements, proxy: str, window: Window) -> float | None:
    """Microseconds of CPU for one streamed token more; median over rounds."""
    if not window.stream:
        return None
    short = {r.round: r.cpu_ms for r in _results(found, proxy, window) if r.cpu_ms is not None}
    long = {
        r.round: r.cpu_ms
        for r in found.results
        if r.proxy == proxy
        and r.cpu_ms is not None
        and (r.window.history_kb, r.window.concurrency, r.window.stream, r.window.tokens)
        == (window.history_kb, window.concurrency, True, LONG)
    }
    costs = [(long[round] - short[round]) * 1000 / (LONG - SHORT) for round in long if round in short]
    return float(np.median(costs)) if costs else None


# --- targets ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Target:
    """A bound that one of our figures must stay below."""

    what: str
    unit: str
    below: float
    value: Callable[[Sequence[Row]], float | None]


def _ours(key: str, **where: Any) -> Callable[[Sequence[Row]], float | None]:
    """The highest of our figures among the rows that match; the engine answers whole replies at once."""

    def value(rows: Sequence[Row]) -> float | None:
        values = [
            row[key]
            for row in rows
            if row["proxy"] == "polar"
            and row[key] is not None
            and (row["stream"] or not row["engine_gap_ms"])
            and all(row[name] == wanted for name, wanted in where.items())
        ]
        return max(values, default=None)

    return value


def _journal_ratio(rows: Sequence[Row]) -> float | None:
    """Journal bytes of a call at the longest history over those at the shortest; the new text is the same."""
    kept = {row["history_kb"]: row["journal_bytes_per_call"] for row in rows if row["proxy"] == "polar"}
    if len(kept) < 2 or None in kept.values():
        return None
    return kept[max(kept)] / kept[min(kept)]


TARGETS = (
    Target("CPU a call, 1 KB, 32 at a time", "ms", 1.5, _ours("cpu_ms", history_kb=1, concurrency=32, stream=False)),
    Target("CPU a call, 128 KB, 32 at a time", "ms", 5.0, _ours("cpu_ms", history_kb=128, concurrency=32, stream=False)),
    Target(
        *("CPU over pass-through, 1 KB, 32 at a time", "x", 4.0),
        _ours("ratio_passthrough", history_kb=1, concurrency=32, stream=False),
    ),
    Target(
        *("CPU over pass-through, 128 KB, 32 at a time", "x", 2.5),
        _ours("ratio_passthrough", history_kb=128, concurrency=32, stream=False),
    ),
    Target("CPU a streamed token, 32 at a time", "us", 60.0, _ours("us_per_streamed_token", concurrency=32)),
    Target("event-loop lag p99, 256 at a time, streamed", "ms", 20.0, _ours("lag_p99_ms", concurrency=256, stream=True)),
    Target("event-loop lag p99, 256 at a time, whole", "ms", 20.0, _ours("lag_p99_ms", concurrency=256, stream=False)),
    Target("memory kept a call, 128 KB", "KB", 40.0, _ours("rss_kb_per_call", history_kb=128)),
    Target("journal bytes a call, 128 KB over 1 KB", "x", 1.25, _journal_ratio),
)


def verdicts(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Each target with what was measured; ``met`` is None where that was not in this run."""
    out = []
    for target in TARGETS:
        value = target.value(rows)
        met = None if value is None else value < target.below
        out.append({"target": target.what, "unit": target.unit, "below": target.below, "measured": value, "met": met})
    return out


def peer_ratios(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Our CPU a call over each other proxy's, at equal windows."""
    ours = {_cell(row): row["cpu_ms"] for row in rows if row["proxy"] == "polar" and row["cpu_ms"]}
    return [
        {
            **dict(zip(("history_kb", "concurrency", "stream"), _cell(row)[:3], strict=True)),
            "peer": row["proxy"],
            "ratio": ratio,
        }
        for row in rows
        if row["proxy"] not in ("polar", "direct", "passthrough") and row["cpu_ms"] and _cell(row) in ours
        for ratio in [ours[_cell(row)] / row["cpu_ms"]]
    ]


def _cell(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["history_kb"], row["concurrency"], row["stream"], row["engine_gap_ms"]


# --- the document -----------------------------------------------------------------------------------------------------


def document(found: Measurements, machine: Mapping[str, Any]) -> dict[str, Any]:
    """All of a run, for ``proxy.json``."""
    rows = rows_of(found)
    return {
        "machine": dict(machine),
        "rounds": found.plan.rounds,
        "rows": rows,
        "targets": verdicts(rows),
        "peers": peer_ratios(rows),
        "unavailable": found.unavailable,
        "no_stream": found.no_stream,
        "by_round": [
            {
                "proxy": result.proxy,
                "round": result.round,
                **asdict(result.window),
                "cpu_ms": result.cpu_ms,
                "p50_ms": float(np.median(result.seconds)) * 1000,
            }
            for result in found.results
        ],
        "memory": [asdict(memory) for memory in found.memory],
    }


_COLUMNS = (
    ("proxy", "proxy"),
    ("history_kb", "KB"),
    ("concurrency", "calls"),
    ("stream", "streamed"),
    ("cpu_ms", "CPU ms"),
    ("ratio_passthrough", "x pass"),
    ("added_p50_ms", "+p50 ms"),
    ("added_p99_ms", "+p99 ms"),
    ("lag_p99_ms", "lag ms"),
    ("us_per_streamed_token", "us/token"),
    ("rss_kb_per_call", "RSS KB"),
    ("journal_bytes_per_call", "journal B"),
    ("cpu_spread", "spread"),
)


def table(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Header and cells, for people."""
    cells = []
    for row in rows:
        line = [shown(row[key]) for key, _ in _COLUMNS]
        if row["engine_gap_ms"] and not row["stream"]:
            line[3] = "no; engine paced"
        cells.append(line)
    return [title for _, title in _COLUMNS], cells


def shown(value: Any) -> str:
    """A figure with three digits that count."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
    return str(value)


def markdown(doc: Mapping[str, Any]) -> str:
    """The run as a page."""
    lines = [
        "# The capture proxy, measured",
        "",
        "Written by `polar bench proxy`; `benchmarks/README.md` says how to read it.",
        "",
    ]
    lines += [f"- {key}: {value}" for key, value in doc["machine"].items()]
    lines += ["", "## Targets", "", *_markdown_table(*target_table(doc["targets"]))]
    lines += ["", "## All figures", "", *_markdown_table(*table(doc["rows"]))]
    reasons = {**doc["no_stream"], **doc["unavailable"]}
    if reasons:
        lines += ["", "Not measured:", ""] + [f"- {name}: {reason}" for name, reason in reasons.items()]
    if doc["peers"]:
        header = ["peer", "history KB", "at a time", "streamed", "our CPU over its"]
        cells = [
            [p["peer"], str(p["history_kb"]), str(p["concurrency"]), shown(p["stream"]), f"{p['ratio']:.2f}"]
            for p in doc["peers"]
        ]
        lines += ["", "## Our CPU over each peer's", "", *_markdown_table(header, cells)]
    return "\n".join(lines) + "\n"


def target_table(targets: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Header and cells."""
    said = {True: "met", False: "MISSED", None: "not measured"}
    cells = [
        [t["target"], f"< {t['below']:g} {t['unit']}", f"{shown(t['measured'])} {t['unit']}", said[t["met"]]] for t in targets
    ]
    return ["target", "bound", "measured", ""], cells


def _markdown_table(header: Sequence[str], cells: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header), *cells)]
