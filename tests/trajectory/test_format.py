# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""``docs/format.md`` names every column and field that is written, and the versions they are written under."""

from __future__ import annotations

import random
import re
import sqlite3
from pathlib import Path

import pytest

from nemo_polar.engines import log
from nemo_polar.settings import TracePolicy
from nemo_polar.trajectory import export_chat, export_rows, store
from nemo_polar.trajectory.records import SCHEMA, SCHEMA_VERSION
from tests.support.runs import FakePolicy, draw_tree, trajectory_of

DOC = (Path(__file__).parents[2] / "docs" / "format.md").read_text()


def section(title: str) -> str:
    return DOC.split(f"\n## {title}\n")[1].split("\n## ")[0]


@pytest.mark.parametrize("table", ["sessions", "calls", "turns", "results"])
def test_every_column_of_the_journal_is_specified(table: str) -> None:
    with sqlite3.connect(":memory:") as db:
        db.executescript(SCHEMA)
        columns = {row[1] for row in db.execute(f"PRAGMA table_info({table})")}
    [part] = re.findall(
        rf"^`{table}\b.*?(?=\n\n`|\n\nA row never|\n\nA message)", section("journal.db"), re.MULTILINE | re.DOTALL
    )
    assert columns and columns <= set(re.findall(r"\w+", part))


def test_every_field_of_the_json_files_is_specified() -> None:
    turns = draw_tree(FakePolicy(random.Random(1)), "s", 5)
    trajectory = trajectory_of("r", turns, TracePolicy())
    rows = {
        "manifest.json": store.Manifest.model_fields.keys(),
        "trajectories.jsonl": store.trajectory_to_dict(trajectory).keys() | store.trace_to_dict(trajectory.traces[0]).keys(),
        "engine.jsonl": set(log.EngineCall.__dataclass_fields__),
        "Exports": export_rows.token_row(trajectory, trajectory.traces[0]).keys() | {"messages", "tools", "trained"},
    }
    for title, fields in rows.items():
        assert fields <= set(re.findall(r"`(\w+)`", section(title))), title


def test_the_formats_and_versions_are_the_ones_written() -> None:
    for module in (store, log, export_rows, export_chat):
        assert re.search(rf"`{module.FORMAT}` \| {module.VERSION} \|", DOC)
    assert f"`meta.schema` | {SCHEMA_VERSION} |" in DOC and "`polar-manifest` | 1 |" in DOC
