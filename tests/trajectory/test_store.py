# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Trajectory files are whole lines whatever happens to their writers."""

from __future__ import annotations

import random
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from nemo_polar.errors import JournalError
from nemo_polar.settings import TracePolicy
from nemo_polar.trajectory.store import (
    Manifest,
    append_trajectory,
    read_manifest,
    read_trajectories,
    trace_to_dict,
    write_manifest,
)
from nemo_polar.types import Status, Trajectory
from tests.support.runs import FakePolicy, draw_tree, trajectory_of

MANIFEST = Manifest(
    created_at=1.5, model="m", codec="c", codec_fingerprint="00ff", thinking_retention="all", settings={"a": [1]}
)


def trajectory(number: int, status: Status = Status.COMPLETED) -> Trajectory:
    made = trajectory_of(f"r{number}", draw_tree(FakePolicy(random.Random(number)), f"s{number}", 9), TracePolicy(), status)
    return replace(made, metrics={"turns": 9.0}, final_message="done \ud800", error="é")


def same(a: Trajectory, b: Trajectory) -> bool:
    traces = [trace_to_dict(t) for t in a.traces] == [trace_to_dict(t) for t in b.traces]
    return traces and replace(a, traces=()) == replace(b, traces=())


def test_trajectories_come_back_as_they_were_in_the_order_they_were_appended(tmp_path: Path) -> None:
    made = [trajectory(n, status) for n, status in enumerate((Status.COMPLETED, Status.TIMEOUT, Status.ENGINE_FAILED))]
    for one in made:
        append_trajectory(tmp_path / "t.jsonl", one)
    back = list(read_trajectories(tmp_path / "t.jsonl"))
    assert len(back) == 3 and all(map(same, made, back))


def test_a_line_torn_at_any_byte_is_ignored_by_readers_and_cut_by_the_next_writer(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    append_trajectory(path, trajectory(0))
    one = path.read_bytes()
    append_trajectory(path, trajectory(1))
    two = path.read_bytes()
    for size in (0, 5, len(one) - 1, len(one), len(one) + 1, (len(one) + len(two)) // 2, len(two) - 1):
        path.write_bytes(two[:size])
        whole = 1 if size >= len(one) else 0
        if 0 < size < one.index(b"\n"):
            with pytest.raises(JournalError):
                list(read_trajectories(path))
        else:
            assert len(list(read_trajectories(path))) == whole
        append_trajectory(path, trajectory(2))
        assert [t.rollout_id for t in read_trajectories(path)] == ["r0", "r2"][1 - whole :]
    path.write_bytes(one + b"x" * 1_000_000)  # more than the next line covers
    append_trajectory(path, trajectory(2))
    assert [t.rollout_id for t in read_trajectories(path)] == ["r0", "r2"]
    assert path.read_bytes().endswith(b"\n")


def test_concurrent_writers_do_not_mix_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    threads = [threading.Thread(target=append_trajectory, args=(path, trajectory(n))) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(t.rollout_id for t in read_trajectories(path)) == sorted(f"r{n}" for n in range(12))


def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    for n in range(3):
        append_trajectory(path, trajectory(n))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], lines[2][:50] + b"\n", lines[3]]))
    with pytest.raises(JournalError, match=r"t\.jsonl:3"):
        list(read_trajectories(path))


@pytest.mark.parametrize(
    "content", [b"precious, without a line feed", b'{"x": 1}\n', b'{"format":"polar-trajectories","version":9}\n']
)
def test_a_file_of_another_format_or_version_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(content)
    with pytest.raises(JournalError):
        append_trajectory(path, trajectory(0))
    with pytest.raises(JournalError):
        list(read_trajectories(path))
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    "change", [{"reward": float("nan")}, {"metrics": {"x": float("inf")}}, {"components": {"x": float("nan")}}]
)
def test_a_number_json_cannot_hold_is_refused_rather_than_lost(tmp_path: Path, change: dict) -> None:
    with pytest.raises(JournalError, match="cannot be stored"):
        append_trajectory(tmp_path / "t.jsonl", replace(trajectory(0), **change))


def test_a_missing_folder_is_a_journal_error(tmp_path: Path) -> None:
    for attempt in (
        lambda: append_trajectory(tmp_path / "no" / "t.jsonl", trajectory(0)),
        lambda: list(read_trajectories(tmp_path / "no" / "t.jsonl")),
        lambda: write_manifest(tmp_path / "no", MANIFEST),
        lambda: read_manifest(tmp_path / "no"),
    ):
        with pytest.raises(JournalError):
            attempt()


def test_a_manifest_comes_back_as_it_was_and_an_unknown_version_is_refused(tmp_path: Path) -> None:
    write_manifest(tmp_path, MANIFEST)
    assert read_manifest(tmp_path) == MANIFEST
    path = tmp_path / "manifest.json"
    path.write_text(path.read_text().replace('"version": 1', '"version": 2'))
    with pytest.raises(JournalError):
        read_manifest(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["manifest.json"]
