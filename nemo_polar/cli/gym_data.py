# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""``polar gym data``: task files into rows for NeMo Gym, and back."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import yaml
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

from nemo_polar.cli.console import stderr, stdout
from nemo_polar.errors import ConfigError, TaskFileError
from nemo_polar.gym.inline import inline
from nemo_polar.gym.rows import TASK, row_to_task, task_to_row
from nemo_polar.rollout.checks import make_verifier
from nemo_polar.rollout.tasks import load_tasks

_SHOWN_MISTAKES = 20
_LINE_BREAKS = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}
"""Which JSON lets stand, and which some readers of lines take for the end of one."""


def data_command(sources: Sequence[Path], target: Path, agent: str) -> None:
    """See ``polar gym data --help``."""
    _check_target(sources, target)
    tasks = load_tasks(sources, checks={"verifier": make_verifier})
    files = binary = size = 0
    with _whole(target) as out, _progress("writing rows", len(tasks)) as bar:
        for number, loaded in enumerate(tasks, 1):
            try:
                found = inline(loaded)
                row = task_to_row(found.task, agent=agent)
            except TaskFileError as exc:
                raise TaskFileError(f"task {loaded.task.id}: {exc}") from exc
            out.write(_line(row))
            files, binary, size = files + found.files, binary + found.binary, size + found.bytes
            bar(number)
    taken = f", with {files} files taken in ({size:,} bytes, {binary} of them not text)" if files else ""
    stdout().print(f"{len(tasks)} rows in {target}{taken}", markup=False, highlight=False)


def back_command(sources: Sequence[Path], target: Path, verifier: str | None) -> None:
    """See ``polar gym data --help``."""
    _check_target(sources, target)
    default = _verifier(verifier)
    seen: dict[str, tuple[str, str]] = {}
    mistakes: list[TaskFileError] = []
    repeated = foreign = 0
    total = sum(path.stat().st_size for path in sources)
    with _whole(target) as out, _progress("reading rows", total) as bar:
        for where, line, done in _lines(sources):
            try:
                row = json.loads(line)
                task = row_to_task(row, default_verifier=default).task
                written = _line(task.model_dump(exclude_unset=True))
            except (TaskFileError, ValueError, RecursionError) as exc:
                mistakes.append(TaskFileError(str(exc), path=where))
                continue
            if task.id in seen:
                first, before = seen[task.id]
                if before != written:
                    mistakes.append(TaskFileError(f"{task.id!r} is the id of another task at {first}", path=where))
                repeated += 1
                continue
            seen[task.id] = (where, written)
            foreign += TASK not in row
            out.write(written)
            bar(done)
        _raise(mistakes)
        if not seen:
            raise TaskFileError("no row there")
    notes = [f"{repeated} rows were of a task that had been there already"] if repeated else []
    notes += [f"{foreign} were no Polar tasks and got the verifier given"] if foreign else []
    stdout().print(f"{len(seen)} tasks in {target}{''.join(f'; {note}' for note in notes)}", markup=False, highlight=False)


def _lines(sources: Sequence[Path]) -> Iterator[tuple[str, str, int]]:
    """Where a line is, the line, and how many bytes were read up to it. Empty lines are left out."""
    done = 0
    for path in sources:
        with path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                done += len(raw)
                if raw.strip():
                    try:
                        yield f"{path}:{number}", raw.decode("utf-8"), done
                    except UnicodeDecodeError as exc:
                        raise TaskFileError("is not UTF-8 text", path=str(path), line=number) from exc


def _raise(mistakes: Sequence[TaskFileError]) -> None:
    """Raise what was found wrong, the first of it in full."""
    if len(mistakes) == 1:
        raise mistakes[0]
    if mistakes:
        more = len(mistakes) - _SHOWN_MISTAKES
        shown = [f"  {mistake}" for mistake in mistakes[:_SHOWN_MISTAKES]] + ([f"  and {more} more"] if more > 0 else [])
        raise TaskFileError(f"{len(mistakes)} mistakes in rows\n" + "\n".join(shown))


def _verifier(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as exc:
        raise ConfigError(f"--verifier: not valid YAML: {exc}") from exc
    if not isinstance(value, dict) or "type" not in value:
        raise ConfigError("--verifier: must be a mapping with a 'type', e.g. '{type: command, command: pytest -q}'")
    return value


def _check_target(sources: Sequence[Path], target: Path) -> None:
    if target.suffix != ".jsonl":
        raise ConfigError(f"--output {target}: must end in .jsonl")
    for source in sources:
        if not source.is_file():
            raise ConfigError(f"{source}: no such file")
        if target.exists() and target.samefile(source):
            raise ConfigError(f"--output {target}: is what is read")


def _line(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False).translate(_LINE_BREAKS) + "\n"


@contextmanager
def _whole(target: Path) -> Iterator[TextIO]:
    """A file that takes ``target``'s name when the block ends well."""
    draft = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    try:
        with draft.open("w", encoding="utf-8") as file:
            yield file
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def _progress(what: str, total: int) -> Iterator[Any]:
    """A bar, on a terminal; takes how much is done."""
    console = stderr()
    if not console.is_terminal:
        yield lambda done: None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(24), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        shown = bar.add_task(what, total=total)
        yield lambda done: bar.update(shown, completed=done)
