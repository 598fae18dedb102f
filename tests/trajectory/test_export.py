# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Token exports hold exactly what the traces hold, filters account for all they leave out, and a file is whole or not there."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from nemo_polar.errors import ConfigError, JournalError
from nemo_polar.settings import TracePolicy
from nemo_polar.trajectory import export_parquet
from nemo_polar.trajectory.export import Exported, export_tokens
from nemo_polar.trajectory.export_filters import Filters
from nemo_polar.trajectory.store import Manifest
from nemo_polar.types import Kind, Status, Trajectory
from tests.support.runs import FakePolicy, draw_tree, trajectory_of

ALL = Filters(trained_only=False)
MANIFEST = Manifest(created_at=1.5, model="m", codec="c", codec_fingerprint="00ff", thinking_retention="all")


def trajectory(number: int, status: Status = Status.COMPLETED, **changes: Any) -> Trajectory:
    made = trajectory_of(f"r{number}", draw_tree(FakePolicy(random.Random(number)), f"s{number}", 9), TracePolicy(), status)
    return replace(made, **changes)


def exported(made: list[Trajectory], target: Path, **filters: Any) -> tuple[list[dict[str, Any]], Exported]:
    done = export_tokens(lambda: made, target, filters=Filters(**filters), manifest=MANIFEST)
    rows = [json.loads(line) for line in target.read_text().splitlines()[1:]]
    assert done.rows == len(rows)
    return rows, done


def test_a_row_holds_exactly_what_the_trace_holds(tmp_path: Path) -> None:
    made = trajectory(4)
    rows, done = exported([made], tmp_path / "e.jsonl", trained_only=False)
    assert len(rows) == len(made.traces)
    for row, trace in zip(rows, made.traces, strict=True):
        assert row["token_ids"] == trace.token_ids.tolist()
        assert row["loss_mask"] == trace.loss_mask.astype(int).tolist()
        assert np.array_equal(np.float32(row["logprobs"]), trace.logprobs)
        assert row["weights_version"] == trace.weights_version.tolist()
        assert [tuple(s.values()) for s in row["spans"]] == [(s.start, s.end, s.role, s.turn) for s in trace.spans]
        assert (row["trace_id"], row["kind"], row["parent"], row["reward"]) == (trace.id, trace.kind, trace.parent, 1.0)
    assert done.tokens == sum(map(len, made.traces)) and done.trained_tokens == sum(int(t.loss_mask.sum()) for t in made.traces)


# --- Parquet ----------------------------------------------------------------------------------------------------------


def test_parquet_reads_back_equal_in_typed_columns_over_several_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_parquet, "GROUP_TOKENS", 200)
    made = [trajectory(n) for n in range(6)]
    made[1] = replace(made[1], reward=None, components={}, task_id="é")
    target = tmp_path / "e.parquet"
    done = export_tokens(lambda: made, target, filters=ALL, manifest=MANIFEST)
    traces = [(t, trace) for t in made for trace in t.traces]
    file = pq.ParquetFile(target)
    sizes = [sum(map(len, file.read_row_group(n, ["token_ids"])["token_ids"])) for n in range(file.num_row_groups)]
    longest = max(len(trace) for _, trace in traces)
    assert len(sizes) > 2 and all(200 <= size < 200 + longest for size in sizes[:-1]) and done.rows == len(traces)
    table = pyarrow.dataset.dataset(target).to_table()
    for name, kind in {"token_ids": pa.int32(), "weights_version": pa.int32(), "logprobs": pa.float32()}.items():
        assert table.schema.field(name).type.value_type == kind
    assert table.schema.field("loss_mask").type.value_type == pa.bool_()
    arrays = {name: table[name].combine_chunks() for name in ("token_ids", "loss_mask", "logprobs", "weights_version")}
    for n, (row, (rollout, trace)) in enumerate(zip(table.to_pylist(), traces, strict=True)):
        for name, array in arrays.items():
            back = array[n].values.to_numpy(zero_copy_only=False)
            assert back.dtype == getattr(trace, name).dtype and back.tobytes() == getattr(trace, name).tobytes(), name
        assert dict(row["components"]) == rollout.components and row["reward"] == rollout.reward
        assert (row["trace_id"], row["task_id"], row["parent"]) == (trace.id, rollout.task_id, trace.parent)
        assert [tuple(span.values()) for span in row["spans"]] == [(s.start, s.end, s.role, s.turn) for s in trace.spans]


def test_parquet_names_its_format_and_the_codec_in_its_metadata(tmp_path: Path) -> None:
    export_tokens(lambda: [trajectory(1)], tmp_path / "e.parquet", manifest=MANIFEST)
    metadata = pq.read_schema(tmp_path / "e.parquet").metadata
    assert metadata[b"polar.format"] == b"polar-export" and metadata[b"polar.version"] == b"1"
    assert metadata[b"polar.codec_fingerprint"] == b"00ff" and metadata[b"polar.thinking_retention"] == b"all"


def test_an_export_without_rows_is_a_file_without_rows(tmp_path: Path) -> None:
    for name in ("e.parquet", "e.jsonl"):
        assert export_tokens(lambda: [], tmp_path / name).rows == 0
    assert pq.read_table(tmp_path / "e.parquet").num_rows == 0
    assert (tmp_path / "e.jsonl").read_text().count("\n") == 1


def test_a_lone_surrogate_is_replaced_in_parquet_and_counted(tmp_path: Path) -> None:
    made = trajectory(1, task_id="a\ud800b\U0001f642")
    done = export_tokens(lambda: [made], tmp_path / "e.parquet", filters=ALL)
    assert set(pq.read_table(tmp_path / "e.parquet")["task_id"].to_pylist()) == {"a\ufffdb\U0001f642"}
    assert done.replaced_texts == done.rows > 0


def test_without_pyarrow_parquet_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"nemo_polar\[parquet\]"):
        export_tokens(lambda: [], tmp_path / "e.parquet")


# --- filters ----------------------------------------------------------------------------------------------------------


def test_filters_leave_out_what_they_say_and_infrastructure_failures_always_unless_named(tmp_path: Path) -> None:
    made = [trajectory(n, status) for n, status in enumerate([Status.COMPLETED, Status.TIMEOUT, Status.SANDBOX_FAILED])]
    made[1] = replace(made[1], reward=0.25, task_id="other")

    def rows(**filters: Any) -> list[dict[str, Any]]:
        return exported(made, tmp_path / "e.jsonl", **filters)[0]

    assert {r["rollout_id"] for r in rows()} == {"r0", "r1"}
    assert all(any(r["loss_mask"]) for r in rows())
    assert {r["rollout_id"] for r in rows(min_reward=0.5)} == {"r0"}
    assert {r["rollout_id"] for r in rows(max_reward=0.5)} == {"r1"}
    assert {r["rollout_id"] for r in rows(tasks=["other"])} == {"r1"}
    assert {r["status"] for r in rows(statuses=[Status.TIMEOUT])} == {"timeout"}
    assert {r["rollout_id"] for r in rows(statuses=[Status.SANDBOX_FAILED], trained_only=False)} == {"r2"}
    assert {r["kind"] for r in rows(kinds=[Kind.SUBAGENT])} == {"subagent"}
    longest = max(len(r["token_ids"]) for r in rows())
    assert max(len(r["token_ids"]) for r in rows(max_tokens=longest - 1)) < longest


def test_the_best_of_a_group_are_those_with_the_highest_reward_among_what_the_other_filters_leave(tmp_path: Path) -> None:
    rewards = [0.0, 1.0, None, 1.0, 0.5, 9.0]
    made = [trajectory(n, reward=reward, group_id="g") for n, reward in enumerate(rewards)]
    made[5] = replace(made[5], status=Status.ENGINE_FAILED)
    made += [trajectory(6, reward=-1.0, group_id="h")]
    rows, done = exported(made, tmp_path / "e.jsonl", best=2, trained_only=False)
    assert {r["rollout_id"] for r in rows} == {"r1", "r3", "r6"}
    assert done.rollouts_left_out == {"not_among_the_best": 2, "no_reward": 1, "status": 1}
    rows, _ = exported(made, tmp_path / "e.jsonl", best=1, max_reward=0.9, trained_only=False)
    assert {r["rollout_id"] for r in rows} == {"r4", "r6"}


def test_of_equal_traces_the_first_stays_and_one_with_another_mask_is_not_equal(tmp_path: Path) -> None:
    one = trajectory(4)
    again = replace(one, rollout_id="again")
    masked = replace(one, traces=tuple(replace(t, loss_mask=np.zeros_like(t.loss_mask)) for t in one.traces))
    whole = sum(bool(t.loss_mask.any()) for t in one.traces)
    rows, done = exported([one, again, masked], tmp_path / "e.jsonl", distinct=True, trained_only=False)
    assert done.rows == len(one.traces) + whole and done.traces_left_out == {"equal_to_another": 2 * len(one.traces) - whole}
    assert "again" not in {r["rollout_id"] for r in rows}


@pytest.mark.parametrize("seed", range(8))
def test_every_rollout_and_trace_is_written_or_counted_under_one_reason(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    statuses, rewards = list(Status)[:6], [None, 0.0, 1.0]
    made = [
        trajectory(n % 7, rng.choice(statuses), reward=rng.choice(rewards), group_id=f"g{n % 3}", rollout_id=f"x{n}")
        for n in range(12)
    ]
    filters: dict[str, Any] = {
        "min_reward": rng.choice([None, 0.5]),
        "best": rng.choice([None, 1]),
        "kinds": rng.choice([None, {Kind.MAIN}]),
        "trained_only": rng.random() < 0.5,
        "max_tokens": rng.choice([None, 60]),
        "distinct": rng.random() < 0.5,
    }
    kept = [t for t in made if not t.status.infra]
    if filters["min_reward"] is not None:
        kept = [t for t in kept if t.reward == 1.0]
    if filters["best"] is not None:
        kept = [t for t in kept if t.reward is not None]
        firsts = {t.group_id: t.rollout_id for t in sorted(kept, key=lambda t: (-(t.reward or 0), t.rollout_id), reverse=True)}
        kept = [t for t in kept if firsts[t.group_id] == t.rollout_id]
    rows, done = exported(made, tmp_path / "e.jsonl", **filters)
    assert done.rollouts_read == len(made) and sum(done.rollouts_left_out.values()) == len(made) - len(kept)
    assert len(rows) + sum(done.traces_left_out.values()) == sum(len(t.traces) for t in kept)
    assert {r["rollout_id"] for r in rows} <= {t.rollout_id for t in kept}


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["e.jsonl", "e.parquet"])
def test_a_failed_export_leaves_the_folder_as_it_was(tmp_path: Path, name: str) -> None:
    def broken() -> Iterator[Trajectory]:
        yield trajectory(0)
        raise JournalError("the source is damaged")

    (tmp_path / name).write_text("precious")
    with pytest.raises(JournalError, match="damaged"):
        export_tokens(broken, tmp_path / name)
    assert [p.name for p in tmp_path.iterdir()] == [name] and (tmp_path / name).read_text() == "precious"
    with pytest.raises(JournalError, match="cannot be written"):
        export_tokens(lambda: [], tmp_path / "no" / name)


def test_a_full_disk_is_a_journal_error_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_parquet, "GROUP_ROWS", 1)

    class Full:
        def __init__(self, file: Any) -> None:
            self.file, self.closed = file, False

        def write(self, data: bytes) -> int:
            raise OSError(28, "No space left on device")

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

    original = export_parquet.ParquetWriter.__init__
    monkeypatch.setattr(
        export_parquet.ParquetWriter, "__init__", lambda self, file, *more: original(self, cast(Any, Full(file)), *more)
    )
    with pytest.raises(JournalError, match="No space left"):
        export_tokens(lambda: [trajectory(0)], tmp_path / "e.parquet", filters=ALL)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["e", "e.json", "e.csv", "e.parquet.gz"])
def test_an_unknown_suffix_is_refused_before_anything_is_read(tmp_path: Path, name: str) -> None:
    def never() -> Iterator[Trajectory]:
        raise AssertionError

    with pytest.raises(ConfigError, match=r"\.jsonl, \.parquet"):
        export_tokens(never, tmp_path / name)


def test_progress_is_told_after_each_rollout(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    made = [trajectory(0), trajectory(1, Status.CANCELLED), trajectory(2)]
    done = export_tokens(lambda: made, tmp_path / "e.jsonl", progress=lambda read, rows: seen.append((read, rows)))
    assert [read for read, _ in seen] == [1, 2, 3] and seen[-1] == (3, done.rows) and seen[0][1] == seen[1][1]
