# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""``matrix.json`` and ``matrix.md``, from rows."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.harness_matrix.rules import RAN, broken

_COLUMNS = (
    *("harness", "version", "dialect", "scenario", "family", "result", "calls", "turns", "main traces", "traces", "forks"),
    *("kinds", "drift tokens", "sampled", "trained", "masked", "unaccounted", "outcome", "answers", "same first prompt"),
    *("wall s", "CPU s"),
)


def write(out: Path, rows: Sequence[Mapping[str, Any]]) -> int:
    """Write both files. Returns the number of rows that break a rule."""
    judged = [{**row, "broken": broken(row)} for row in rows]
    bad = sum(bool(row["broken"]) for row in judged)
    summary = {"created_at": time.time(), "cells": len(judged), "broken": bad, "rows": judged}
    (out / "matrix.json").write_text(json.dumps(summary, indent=1, ensure_ascii=False) + "\n")
    (out / "matrix.md").write_text(_page(judged, bad))
    return bad


def _page(rows: Sequence[Mapping[str, Any]], bad: int) -> str:
    head = f"# Harness matrix\n\n{len(rows)} cells, {bad} break a rule. How to read it: docs/exactness.md.\n\n"
    lines = [_line(_COLUMNS), _line(["---"] * len(_COLUMNS)), *(_line(_cells(row)) for row in rows)]
    faults = [f"- **{name(row)}**: {'; '.join(row['broken'])}" for row in rows if row["broken"]]
    return head + "\n".join(lines) + "\n" + ("\n## Broken rules\n\n" + "\n".join(faults) + "\n" if faults else "")


def name(row: Mapping[str, Any]) -> str:
    """A row in words."""
    return f"{row['harness']} {row['scenario']} {row['family']}"


def _cells(row: Mapping[str, Any]) -> list[str]:
    known = [row["harness"], row.get("version", ""), row.get("dialect", ""), row["scenario"], row["family"]]
    known.append("broken" if row["broken"] else "ok")
    if row["state"] != RAN:
        return [*known, *[""] * 11, row["state"], *[""] * (len(_COLUMNS) - len(known) - 12)]
    per_rollout = sorted(set(row["main_traces"]))
    outcome = ", ".join(sorted(set(row["statuses"]))) + (f" ({_short(row['errors'][0])})" if row["errors"] else "")
    return [
        *known,
        str(row["calls"]),
        str(row["turns"]),
        "-".join(map(str, per_rollout)),
        str(row["traces"]),
        counts(row["forks"]),
        counts(row["kinds"]),
        str(row["drift_tokens"]),
        str(row["sampled"]),
        str(row["trained"]),
        counts(row["masked"]),
        str(row["unaccounted"]),
        outcome,
        counts(row["http"]),
        {True: "yes", False: "no"}[row["same_first_prompt"]] if row["rollouts"] > 1 else "",
        f"{row['wall_s']:.1f}",
        f"{row['cpu_s']:.1f}",
    ]


def counts(numbers: Mapping[str, int]) -> str:
    """``{"a": 1, "b": 2}`` as ``a 1, b 2``."""
    return ", ".join(f"{key} {number}" for key, number in numbers.items()) or "-"


def _short(text: str) -> str:
    return text if len(text) <= 90 else text[:87] + "..."


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
