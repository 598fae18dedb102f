# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A task with the files it names written out, so that it can travel in a row. Reads those files; writes nothing."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_polar.errors import TaskFileError
from nemo_polar.rollout.tasks import LoadedTask, Task


@dataclass(frozen=True, slots=True)
class Inlined:
    """A task that depends on no file, and what was taken into it."""

    task: Task
    files: int = 0
    """How many were read in."""
    binary: int = 0
    """How many of them are no UTF-8 text, and went in as base64."""
    bytes: int = 0
    """Of the files, as they lie on disk."""


def inline(loaded: LoadedTask) -> Inlined:
    """Take in the files of the workspace and those under ``files`` of the verifier's block, whatever its type.

    Raises:
        TaskFileError: one cannot be read or leads out of the task's folder; or another part of the verifier's block names a
            file that lies there, which only that verifier would know how to take in. ``field`` says which.
    """
    plain = loaded.task.model_dump(exclude_unset=True)
    sizes: list[tuple[int, bool]] = []
    for field, entry in _entries(plain):
        data = _read(loaded.folder, entry.pop("source"), f"{field}.source")
        text = _text(data)
        sizes.append((len(data), text is None))
        if text is None:
            entry["base64"] = base64.b64encode(data).decode()
        else:
            entry["text"] = text
    for field, source in _sources(plain["verifier"], "verifier"):
        if (loaded.folder / source).exists():
            raise TaskFileError("names a file, and only files under verifier.files can be taken into a row", field=field)
    task = Task.model_validate(plain) if sizes else loaded.task
    return Inlined(task, len(sizes), sum(binary for _, binary in sizes), sum(size for size, _ in sizes))


def _entries(plain: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every file of a task's plain data that lies on disk: its field, and its block."""
    for prefix, files in (("files", plain.get("files")), ("verifier.files", plain["verifier"].get("files"))):
        for path, entry in files.items() if isinstance(files, dict) else ():
            if isinstance(entry, dict) and isinstance(entry.get("source"), str):
                yield f"{prefix}.{path}", entry


def _sources(value: Any, field: str) -> Iterator[tuple[str, str]]:
    """Every ``source`` in nested data, with its field."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key == "source" and isinstance(inner, str):
                yield f"{field}.source", inner
            else:
                yield from _sources(inner, f"{field}.{key}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _sources(inner, f"{field}[{index}]")


def _read(folder: Path, source: str, field: str) -> bytes:
    path = (folder / source).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise TaskFileError(f"{source} leads out of the task's folder", field=field)
    try:
        return path.read_bytes()
    except OSError as exc:
        raise TaskFileError(f"{source} cannot be read: {exc.strerror}", field=field) from exc


def _text(data: bytes) -> str | None:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None
