# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The files of a run folder: ``trajectories.jsonl`` and ``manifest.json``.

Trajectories are appended one line each and synced; a line that a kill tore is ignored by readers and cut by the next writer.
Arrays are stored as their exact bytes. ``docs/format.md`` specifies both files.
"""

from __future__ import annotations

import fcntl
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from nemo_polar.errors import JournalError
from nemo_polar.settings import SamplingPolicy, Settings, TracePolicy
from nemo_polar.trajectory.codec import array_from_dict, array_to_dict, dumps, loads
from nemo_polar.types import ForkReason, Kind, MaskReason, Span, Status, Trace, Trajectory
from nemo_polar.whole import write_whole

TRAJECTORIES = "trajectories.jsonl"
MANIFEST = "manifest.json"
JOURNAL = "journal.db"
ENGINE_LOG = "engine.jsonl"
FORMAT = "polar-trajectories"
VERSION = 1


def replica_log(run_dir: Path, number: int) -> Path:
    """The engine-side log of one replica of several, counted from 0."""
    return run_dir / f"engine-{number}.jsonl"


def engine_logs(run_dir: Path) -> list[Path]:
    """The engine-side logs that a run has: one, or one a replica."""
    one = run_dir / ENGINE_LOG
    return [*([one] if one.exists() else []), *sorted(run_dir.glob("engine-*.jsonl"))]


class Manifest(Settings):
    """Under what a run was made: enough to rebuild its masks, and to evaluate a policy the way it was trained."""

    format: Literal["polar-manifest"] = "polar-manifest"
    version: Literal[1] = 1
    created_at: float
    """Unix seconds."""
    model: str
    codec: str
    codec_fingerprint: str
    """Hexadecimal; two runs with the same one render alike."""
    thinking_retention: Literal["all", "template"]
    sampling: SamplingPolicy = SamplingPolicy()
    traces: TracePolicy = TracePolicy()
    versions: dict[str, str] = {}
    """Package or program to its version."""
    tasks: dict[str, str] = {}
    """Task id to a hash of the task and of every file it names, in the order of the run; empty for a proxy."""
    settings: dict[str, Any] = {}
    """The composed configuration, as given."""


def write_manifest(run_dir: Path, manifest: Manifest) -> None:
    """Write ``manifest.json``, whole or not at all.

    Raises:
        JournalError: the folder cannot be written.
    """
    target = Path(run_dir) / MANIFEST
    try:
        write_whole(target, manifest.model_dump_json(indent=2).encode() + b"\n")
    except OSError as exc:
        raise JournalError(f"{target} cannot be written: {exc}") from exc


def read_manifest(run_dir: Path) -> Manifest:
    """The manifest of a run.

    Raises:
        JournalError: missing, or not a manifest of a version this code knows.
    """
    path = Path(run_dir) / MANIFEST
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except OSError as exc:
        raise JournalError(f"{path} cannot be read: {exc}") from exc
    except ValidationError as exc:
        raise JournalError(f"{path} is no manifest of version 1: {exc}") from exc


# --- trajectories -----------------------------------------------------------------------------------------------------


def append_trajectory(path: Path, trajectory: Trajectory) -> None:
    """Add one line to a trajectory file and sync it. Blocks on the disk; several processes may append to one file.

    Raises:
        JournalError: the disk refused it (the file is then as it was), the file is something else, or a number is not finite.
    """
    line = dumps(trajectory_to_dict(trajectory)).encode() + b"\n"
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            size = _whole_size(fd)
            if size == 0:
                header = dumps({"format": FORMAT, "version": VERSION}).encode() + b"\n"
                if not header.startswith(os.pread(fd, len(header), 0)):
                    raise JournalError(f"{path} is not a trajectory file")
                line = header + line
            else:
                _check_header(os.pread(fd, 256, 0).partition(b"\n")[0], path)
            os.ftruncate(fd, size)
            try:
                _write_all(fd, line, size)
                os.fsync(fd)
            except OSError:
                os.ftruncate(fd, size)
                raise
        finally:
            os.close(fd)
    except OSError as exc:
        raise JournalError(f"{path} cannot be written: {exc}") from exc


def keep_trajectories(path: Path, keep: Callable[[Trajectory], bool]) -> int:
    """Rewrite a trajectory file without the lines that ``keep`` says no to, whole or not at all; a torn last line goes too.

    Lines that stay are copied byte for byte. Returns how many went. Nobody may append meanwhile.

    Raises:
        JournalError: the file cannot be read or written.
    """
    target = Path(path)
    draft = target.with_suffix(f".{os.getpid()}.tmp")
    kept = [keep(trajectory) for trajectory in read_trajectories(target)]
    if all(kept):
        return 0
    try:
        with target.open("rb") as old, draft.open("wb") as new:
            new.write(old.readline())
            new.writelines(line for line, stays in zip(old, kept, strict=False) if stays)
            new.flush()
            os.fsync(new.fileno())
        draft.replace(target)
        _sync_folder(target.parent)
    except OSError as exc:
        draft.unlink(missing_ok=True)
        raise JournalError(f"{target} cannot be written: {exc}") from exc
    return len(kept) - sum(kept)


def _sync_folder(folder: Path) -> None:
    """Make a rename in ``folder`` last."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read_trajectories(path: Path) -> Iterator[Trajectory]:
    """The trajectories of a file in the order they were written, one at a time. A torn last line is left out.

    Raises:
        JournalError: the file is missing, of another format or version, or a whole line is damaged; the line is named.
    """
    try:
        with Path(path).open("rb") as file:
            header = file.readline()
            if not header.endswith(b"\n"):
                if header:
                    raise JournalError(f"{path}: no header line; not a trajectory file")
                return
            _check_header(header, path)
            for number, line in enumerate(file, start=2):
                if not line.endswith(b"\n"):
                    return
                try:
                    yield trajectory_from_dict(loads(line))
                except JournalError as exc:
                    raise JournalError(f"{path}:{number}: {exc}") from exc
    except OSError as exc:
        raise JournalError(f"{path} cannot be read: {exc}") from exc


def trajectory_to_dict(trajectory: Trajectory) -> dict[str, Any]:
    """A trajectory as plain JSON data.

    Raises:
        JournalError: the reward, a component or a metric is not finite: JSON has no such numbers.
    """
    t = trajectory
    for name, value in {"reward": t.reward, **t.components, **t.metrics}.items():
        if value is not None and not math.isfinite(value):
            raise JournalError(f"{t.rollout_id}: {name} is {value}, which cannot be stored")
    return {
        "rollout_id": t.rollout_id,
        "task_id": t.task_id,
        "group_id": t.group_id,
        "status": t.status.value,
        "reward": t.reward,
        "components": dict(t.components),
        "masked": {reason.value: count for reason, count in t.masked.items()},
        "metrics": dict(t.metrics),
        "error": t.error,
        "final_message": t.final_message,
        "traces": [trace_to_dict(trace) for trace in t.traces],
    }


def trajectory_from_dict(value: Mapping[str, Any]) -> Trajectory:
    """The inverse of ``trajectory_to_dict``.

    Raises:
        JournalError: not a trajectory.
    """
    try:
        return Trajectory(
            rollout_id=value["rollout_id"],
            task_id=value["task_id"],
            group_id=value["group_id"],
            status=Status(value["status"]),
            traces=tuple(trace_from_dict(t) for t in value["traces"]),
            reward=value["reward"],
            components=value["components"],
            masked={MaskReason(reason): count for reason, count in value["masked"].items()},
            metrics=value["metrics"],
            error=value["error"],
            final_message=value["final_message"],
        )
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise JournalError(f"not a stored trajectory: {exc!r}") from exc


def trace_to_dict(trace: Trace) -> dict[str, Any]:
    """A trace as plain JSON data; arrays as their bytes."""
    return {
        "id": trace.id,
        "kind": trace.kind.value,
        "parent": trace.parent,
        "fork_reason": None if trace.fork_reason is None else trace.fork_reason.value,
        "spans": [[s.start, s.end, s.role, s.turn] for s in trace.spans],
        "token_ids": array_to_dict(trace.token_ids),
        "loss_mask": array_to_dict(trace.loss_mask),
        "logprobs": array_to_dict(trace.logprobs),
        "weights_version": array_to_dict(trace.weights_version),
    }


def trace_from_dict(value: Mapping[str, Any]) -> Trace:
    """The inverse of ``trace_to_dict``; raises ``JournalError`` when its arrays differ in length."""
    trace = Trace(
        id=value["id"],
        token_ids=array_from_dict(value["token_ids"], "<i4"),
        loss_mask=array_from_dict(value["loss_mask"], "|b1"),
        logprobs=array_from_dict(value["logprobs"], "<f4"),
        weights_version=array_from_dict(value["weights_version"], "<i4"),
        spans=tuple(Span(start, end, role, turn) for start, end, role, turn in value["spans"]),
        kind=Kind(value["kind"]),
        parent=value["parent"],
        fork_reason=None if value["fork_reason"] is None else ForkReason(value["fork_reason"]),
    )
    shapes = {a.shape for a in (trace.token_ids, trace.loss_mask, trace.logprobs, trace.weights_version)}
    if shapes != {(len(trace),)}:
        raise JournalError(f"trace {trace.id}: its arrays differ in shape: {sorted(shapes)}")
    return trace


def _check_header(line: bytes, path: Path) -> None:
    try:
        header = loads(line)
    except JournalError:
        header = None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise JournalError(f"{path} is not a trajectory file: its first line is no {FORMAT} header")
    if header.get("version") != VERSION:
        raise JournalError(f"{path}: trajectory format version {header.get('version')}; this Polar reads version {VERSION}")


def _whole_size(fd: int) -> int:
    """Size of the file up to its last line feed: what comes after was torn by a kill."""
    end = os.fstat(fd).st_size
    while end:
        start = max(0, end - 65_536)
        at = os.pread(fd, end - start, start).rfind(b"\n")
        if at >= 0:
            return start + at + 1
        end = start
    return 0


def _write_all(fd: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, at)
        view, at = view[written:], at + written
