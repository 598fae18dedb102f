# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A picture of an evaluation: each task's pass rate with its interval. Needs matplotlib, which is optional."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

MOST_TASKS = 300
"""More rows than this are no picture any more: those with the most extreme rates are left in."""


def draw(evaluation: Mapping[str, Any], title: str, path: Path) -> bool:
    """Write a PNG; False, and nothing written, without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    rows = sorted((r for r in evaluation["tasks"] if r["rollouts"]), key=lambda r: (r["pass_rate"], r["task"]))
    if len(rows) > MOST_TASKS:
        rows = rows[: MOST_TASKS // 2] + rows[-MOST_TASKS // 2 :]
    figure = Figure(figsize=(8, 1.6 + 0.22 * max(len(rows), 4)), layout="constrained")
    axes = figure.add_subplot()
    rates = [r["pass_rate"] for r in rows]
    bars = [[max(0.0, r["pass_rate"] - r["low"]) for r in rows], [max(0.0, r["high"] - r["pass_rate"]) for r in rows]]
    axes.errorbar(rates, range(len(rows)), xerr=bars, fmt="o", markersize=4, capsize=2, color="tab:blue", ecolor="0.6")
    first = next(iter(evaluation["pass"]), None)
    if first is not None and first["value"] is not None:
        axes.axvline(first["value"], color="tab:orange", linewidth=1, label=f"pass@{first['k']}, all tasks")
        axes.axvspan(first["low"], first["high"], color="tab:orange", alpha=0.15, linewidth=0)
        axes.legend(loc="lower right")
    axes.set_yticks(range(len(rows)), [_label(r) for r in rows], fontsize=7)
    axes.set_xlim(-0.02, 1.02)
    axes.set_xlabel(f"rollouts with reward >= {evaluation['threshold']:g}, {evaluation['confidence']:.0%} interval")
    axes.set_title(title, fontsize=10)
    axes.grid(axis="x", alpha=0.3)
    figure.savefig(path, dpi=120, format="png")
    return True


def _label(row: Mapping[str, Any]) -> str:
    name = row["task"] if len(row["task"]) <= 40 else row["task"][:39] + "…"
    return f"{name}  {row['passed']}/{row['rollouts']}"
