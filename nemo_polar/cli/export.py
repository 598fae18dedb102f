# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""``polar export``: a run's traces for other programs, and an account of what was left out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from nemo_polar.cli.console import print_json, stderr, stdout
from nemo_polar.cli.read import opened
from nemo_polar.errors import ConfigError
from nemo_polar.trajectory.export import Exported, export_chat_rows, export_tokens
from nemo_polar.trajectory.export import Progress as Report
from nemo_polar.trajectory.export_filters import Filters
from nemo_polar.trajectory.store import read_manifest, read_trajectories
from nemo_polar.types import Kind, Status

_COUNT_BYTES = 1 << 20
_E = TypeVar("_E", bound=StrEnum)


def main(
    path: Path,
    target: Path,
    *,
    shape: str,
    arguments: str | None,
    min_reward: float | None,
    max_reward: float | None,
    kinds: Sequence[str] | None,
    statuses: Sequence[str] | None,
    tasks: Sequence[str] | None,
    best: int | None,
    max_tokens: int | None,
    distinct: bool,
    all_traces: bool,
    as_json: bool,
) -> None:
    """See ``polar export --help``."""
    folder = opened(path)
    filters = Filters(
        min_reward=min_reward,
        max_reward=max_reward,
        statuses=_among(Status, "--status", statuses),
        tasks=set(tasks) if tasks else None,
        best=best,
        kinds=_among(Kind, "--kind", kinds),
        trained_only=not all_traces,
        max_tokens=max_tokens,
        distinct=distinct,
    )
    if shape not in ("tokens", "chat"):
        raise ConfigError(f"--as {shape}: must be tokens or chat")
    if arguments not in (None, "object", "text"):
        raise ConfigError(f"--arguments {arguments}: must be object or text")
    if arguments is not None and shape != "chat":
        raise ConfigError("--arguments: only chat rows have any; add --as chat")
    source = partial(read_trajectories, folder.trajectories)
    manifest = read_manifest(path)
    with _progress(folder.trajectories) as progress:
        if shape == "tokens":
            done = export_tokens(source, target, filters=filters, manifest=manifest, progress=progress)
        else:
            done = export_chat_rows(
                source,
                folder.journal,
                target,
                arguments=arguments,
                filters=filters,
                manifest=manifest,
                progress=progress,
            )
    if as_json:
        print_json({"target": str(target), **asdict(done)})
    else:
        for line in _lines(done, target):
            stdout().print(line, markup=False, highlight=False)


def _among(choices: type[_E], option: str, given: Sequence[str] | None) -> Collection[_E] | None:
    unknown = [value for value in given or () if value not in set(choices)]
    if unknown:
        raise ConfigError(f"{option} {unknown[0]}: must be one of {', '.join(choices)}")
    return {choices(value) for value in given} if given else None


@contextmanager
def _progress(trajectories: Path) -> Iterator[Report | None]:
    """A bar over the rollouts, on a terminal."""
    console = stderr()
    if not console.is_terminal:
        yield None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        shown = bar.add_task("exporting", total=_count(trajectories))
        yield lambda read, rows: bar.update(shown, completed=read, description=f"{rows} rows")


def _count(trajectories: Path) -> int | None:
    """How many trajectories a file has: its lines but for the header."""
    if not trajectories.is_file():
        return None
    with trajectories.open("rb") as file:
        return max(0, sum(piece.count(b"\n") for piece in iter(partial(file.read, _COUNT_BYTES), b"")) - 1)


def _lines(done: Exported, target: Path) -> list[str]:
    lines = [f"{done.rows} rows in {target}: {done.tokens} tokens, {done.trained_tokens} of them trained"]
    for what, counts in (("rollouts", done.rollouts_left_out), ("traces", done.traces_left_out)):
        if counts:
            lines.append(f"left out: {sum(counts.values())} {what} ({_reasons(counts)})")
    if done.replaced_texts:
        lines.append(f"in {done.replaced_texts} texts a lone surrogate, which Parquet cannot hold, became U+FFFD")
    return lines


def _reasons(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in sorted(counts.items()))
