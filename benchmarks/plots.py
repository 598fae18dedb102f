# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The rows as one picture, ``proxy.png``. Needs matplotlib, and is skipped without it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from benchmarks.report import Row

_COLOURS = {
    "passthrough": "#9a9a9a",
    "polar": "#3f7d20",
    "rllm-model-gateway": "#c8553d",
    "agentlightning": "#4a6fa5",
}


def draw(rows: Sequence[Row], out: Path) -> None:
    """CPU, latency and memory, one colour a proxy."""
    histories = sorted({row["history_kb"] for row in rows})
    proxies = [name for name in _COLOURS if any(row["proxy"] == name and row["cpu_ms"] for row in rows)]
    figure, axes = plt.subplots(3, 2, figsize=(11, 11), constrained_layout=True)
    for column, history in enumerate(histories[:2]):
        here = [row for row in rows if row["history_kb"] == history]
        whole = [row for row in here if not row["stream"] and not row["engine_gap_ms"]]
        streamed = [row for row in here if row["stream"]]
        _bars(axes[0][column], whole, proxies, "cpu_ms", f"CPU ms a call, {history} KB history")
        _bars(axes[1][column], whole, proxies, "added_p99_ms", f"added latency p99 ms, {history} KB history", log=True)
        _bars(axes[2][column], streamed, proxies, "cpu_ms", f"CPU ms a streamed call of 20 tokens, {history} KB history")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(proxies), frameon=False)
    figure.savefig(out / "proxy.png", dpi=130)
    plt.close(figure)
    _kept(rows, proxies, out)


def _kept(rows: Sequence[Row], proxies: Sequence[str], out: Path) -> None:
    """What is kept of a call, in memory and on disk."""
    figure, (memory, disk) = plt.subplots(1, 2, figsize=(11, 3.6), constrained_layout=True)
    history = max(row["history_kb"] for row in rows)
    for axis, key, title in (
        (memory, "rss_kb_per_call", f"memory kept KB a call, {history} KB history"),
        (disk, "journal_bytes_per_call", f"record on disk bytes a call, {history} KB history"),
    ):
        values = {r["proxy"]: r[key] for r in rows if r["history_kb"] == history and r[key] is not None}
        names = [name for name in proxies if name in values]
        bars = axis.barh(names, [max(values[name], 0.0) for name in names], color=[_COLOURS[name] for name in names])
        axis.bar_label(bars, labels=[f" {_short(values[name])}" for name in names])
        axis.set_title(title, loc="left", fontsize=10)
        axis.set_xscale("symlog")
        axis.invert_yaxis()
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(out / "kept.png", dpi=130)
    plt.close(figure)


def _bars(axis: Axes, rows: Sequence[Row], proxies: Sequence[str], key: str, title: str, *, log: bool = False) -> None:
    """Groups of bars, one group a concurrency."""
    concurrencies = sorted({row["concurrency"] for row in rows})
    width = 0.8 / max(len(proxies), 1)
    for at, name in enumerate(proxies):
        values: dict[int, Any] = {row["concurrency"]: row[key] for row in rows if row["proxy"] == name}
        heights = [values.get(c) or 0.0 for c in concurrencies]
        places = [x + (at - (len(proxies) - 1) / 2) * width for x in range(len(concurrencies))]
        bars = axis.bar(places, heights, width, label=name, color=_COLOURS[name])
        axis.bar_label(bars, labels=[_short(h) if h else "" for h in heights], fontsize=7)
    axis.set_xticks(range(len(concurrencies)), [f"{c} at a time" for c in concurrencies])
    axis.set_title(title, loc="left", fontsize=10)
    if log and any((row[key] or 0) > 0 for row in rows):
        axis.set_yscale("log")
    axis.spines[["top", "right"]].set_visible(False)


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
