# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.harness_matrix [--out DIR] [--harness NAME ...] [--scenario NAME ...] [--family NAME ...]``

Exits with 1 when a cell breaks a rule, or could not be run at all.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

import pytest

from nemo_polar.rollout.compose import home
from tests.harness_matrix import table
from tests.harness_matrix.families import FAMILIES
from tests.harness_matrix.run import Matrix, plan
from tests.harness_matrix.scenarios import SCENARIOS
from tests.harness_matrix.tools import HARNESSES

_FAMILIES = ("qwen3.5", "qwen3", "nemotron3")


def main() -> int:
    """Run the cells asked for; 1 when one of them breaks a rule."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness_matrix", description="Real CLIs against a scripted model.")
    parser.add_argument("--out", type=Path, default=Path("runs/harness-matrix"))
    parser.add_argument("--harness", nargs="+", choices=list(HARNESSES), default=list(HARNESSES))
    parser.add_argument("--scenario", nargs="+", choices=list(SCENARIOS), default=list(SCENARIOS))
    parser.add_argument("--family", nargs="+", choices=list(FAMILIES), default=list(_FAMILIES))
    parser.add_argument("--toolchain", type=Path, default=home() / "toolchain")
    parser.add_argument("--jobs", type=int, default=2, help="cells at a time")
    parser.add_argument("--seconds", type=float, default=120, help="for one harness run")
    parser.add_argument("--resume", action="store_true", help="keep the rows that are there and pass")
    chosen = parser.parse_args()
    for family in chosen.family:  # once, before cells would each fetch them
        try:
            FAMILIES[family].folder()
        except pytest.skip.Exception as exc:
            print(f"{family}: no tokenizer: {exc}", file=sys.stderr)
            return 1
    chosen.out.mkdir(parents=True, exist_ok=True)
    matrix = Matrix(
        chosen.out.resolve(),
        chosen.toolchain.resolve(),
        lambda line: print(line, flush=True),
        jobs=chosen.jobs,
        seconds=chosen.seconds,
        resume=chosen.resume,
    )
    rows = asyncio.run(matrix.run(plan(chosen.harness, chosen.scenario, chosen.family)))
    bad = table.write(chosen.out, rows)
    print(f"{len(rows)} cells, {bad} broken: {chosen.out / 'matrix.md'}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
