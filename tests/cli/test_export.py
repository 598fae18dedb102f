# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""``polar export``: what it writes, what it says of the rest, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from nemo_polar.cli import app
from nemo_polar.cli.boundary import Exit
from tests.support.cli import overrides, write_tasks


def polar(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two rollouts of each of two tasks, of which ``writes`` gets reward 1 and ``fails`` 0."""
    folder = tmp_path_factory.mktemp("export")
    assert polar("rollout", *overrides(write_tasks(folder))).exit_code == Exit.OK
    return folder / "runs" / "small"


def test_it_says_what_was_written_and_what_was_left_out_and_why(run: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    result = polar("export", run, target, "--min-reward", 1, "--best", 1)
    assert result.exit_code == Exit.OK, result.output
    first, second = result.stdout.splitlines()
    assert first.startswith(f"1 rows in {target}: ") and "trained" in first
    assert second == "left out: 3 rollouts (1 not among the best, 2 reward too low)"
    assert len(target.read_text().splitlines()) == 2
    again = polar("export", run, target, "--max-tokens", 1, "--json")
    report = json.loads(again.stdout)
    assert report["rows"] == 0 and report["rollouts_read"] == 4 and report["traces_left_out"] == {"too_long": 4}


def test_the_suffix_chooses_the_format_and_as_the_rows(run: Path, tmp_path: Path) -> None:
    assert polar("export", run, tmp_path / "t.parquet", "--task", "writes").exit_code == Exit.OK
    tokens = pq.read_table(tmp_path / "t.parquet")
    assert tokens.num_rows == 2 and set(tokens["task_id"].to_pylist()) == {"writes"}
    manifest = json.loads((run / "manifest.json").read_text())
    assert tokens.schema.metadata[b"polar.codec_fingerprint"].decode() == manifest["codec_fingerprint"]
    assert polar("export", run, tmp_path / "c.jsonl", "--as", "chat").exit_code == Exit.OK
    rows = [json.loads(line) for line in (tmp_path / "c.jsonl").read_text().splitlines()]
    assert len(rows) == 4 and all([m["role"] for m in row["messages"]] == ["user", "assistant"] * 3 for row in rows)
    assert {row["messages"][0]["content"] for row in rows} == {"Write out.txt.", "Write something else."}
    assert all(row["trained"] == [False, True] * 3 and row["tools"] is None for row in rows)
    assert polar("export", run, tmp_path / "c.parquet", "--as", "chat").exit_code == Exit.OK
    assert pq.read_table(tmp_path / "c.parquet")["trained"].to_pylist() == [row["trained"] for row in rows]


REFUSED = {
    "suffix": (["x.csv"], ".jsonl, .parquet"),
    "kind": (["x.jsonl", "--kind", "nope"], "--kind nope: must be one of main"),
    "status": (["x.jsonl", "--status", "nope"], "--status nope: must be one of completed"),
    "shape": (["x.jsonl", "--as", "nope"], "--as nope"),
    "arguments": (["x.jsonl", "--as", "chat", "--arguments", "nope"], "--arguments nope"),
    "arguments of tokens": (["x.jsonl", "--arguments", "text"], "--as chat"),
    "objects in Parquet": (["x.parquet", "--as", "chat", "--arguments", "object"], "Parquet"),
}


@pytest.mark.parametrize(("words", "said"), REFUSED.values(), ids=REFUSED)
def test_what_makes_no_sense_exits_2_in_one_line(run: Path, tmp_path: Path, words: list[str], said: str) -> None:
    result = polar("export", run, tmp_path / words[0], *words[1:])
    assert result.exit_code == Exit.USAGE and said in result.stderr and len(result.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
