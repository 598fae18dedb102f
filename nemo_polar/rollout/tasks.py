# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What a task is, and how task files are read.

YAML (a list under ``tasks:``) or JSONL (one task a line). A mistake is found before anything starts and named by field and
line; all mistakes of a file are reported together. Reading a task file runs nothing and follows no path out of its folder.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError

from nemo_polar.errors import PolarError, RegistryError, TaskFileError
from nemo_polar.rollout.compose import describe
from nemo_polar.rollout.marked import Marked, read_jsonl, read_yaml
from nemo_polar.settings import Budget, Settings, WrittenFile

Check = Callable[["Task"], object]
"""Raises one of our errors when a block of a task names a plug-in, or an option of one, that does not exist."""

NO_CHECKS: Mapping[str, Check] = MappingProxyType({})

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")


def is_id(value: str) -> bool:
    """Whether a task may be called so."""
    return _ID.fullmatch(value) is not None


def _identifier(value: str) -> str:
    if not is_id(value):
        raise ValueError("must be 1 to 100 letters, digits, '_' or '-', starting with a letter or a digit")
    return value


def _inside(value: str) -> str:
    path = PurePosixPath(value)
    if not value or "\0" in value or path.is_absolute() or ".." in path.parts or path == PurePosixPath("."):
        raise ValueError("must be a relative path without '..'")
    return value


def _file(value: Any) -> Any:
    return {"text": value} if isinstance(value, str) else value


RelativePath = Annotated[str, AfterValidator(_inside)]


class TaskFile(WrittenFile):
    """A file of the workspace: written out, or lying beside the task file. Just its text is short for the former."""

    source: RelativePath | None = None
    """Relative to the task file's folder."""


class VerifierSpec(Settings):
    """Which verifier scores the task; what else is in the block belongs to that verifier."""

    model_config = {"frozen": True, "extra": "allow"}
    type: str

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.__pydantic_extra__ or {})


class Task(Settings):
    """One problem to solve."""

    id: Annotated[str, AfterValidator(_identifier)]
    """Unique in a run; rollout ids and folders are made of it."""
    instruction: str = Field(min_length=1)
    """What the harness is told."""
    files: dict[RelativePath, Annotated[TaskFile, BeforeValidator(_file)]] = {}
    """The workspace at the start."""
    verifier: VerifierSpec
    budget: Budget = Budget()
    sandbox: dict[str, Any] = {}
    """Options for the sandbox, over those of the run."""
    metadata: dict[str, Any] = {}
    """Carried along; Polar does not read it."""


@dataclass(frozen=True, slots=True)
class LoadedTask:
    """A task and the folder its file lies in."""

    task: Task
    folder: Path

    def workspace(self) -> tuple[dict[str, bytes], tuple[str, ...]]:
        """Relative path to contents, and which of them are executable.

        Raises:
            TaskFileError: a source file has gone since the task file was read.
        """
        files: dict[str, bytes] = {}
        executable = []
        for path, entry in self.task.files.items():
            if entry.executable:
                executable.append(path)
            if entry.source is None:
                files[path] = entry.written()
                continue
            try:
                files[path] = (self.folder / entry.source).read_bytes()
            except OSError as exc:
                raise TaskFileError(f"cannot be read: {exc.strerror}", path=str(self.folder / entry.source)) from exc
        return files, tuple(executable)


def load_tasks(paths: Sequence[str | Path], *, checks: Mapping[str, Check] = NO_CHECKS) -> list[LoadedTask]:
    """Every task of ``paths``, in order.

    Args:
        checks: by block (``verifier``, ``sandbox``), looks at each well-formed task once more: can its plug-in be made?

    Raises:
        TaskFileError: with one line for each mistake of all files; its ``field`` and ``line`` are the first one's.
    """
    loaded: list[LoadedTask] = []
    mistakes: list[TaskFileError] = []
    seen: dict[str, str] = {}
    for path in map(Path, paths):
        try:
            entries = _entries(path)
        except TaskFileError as exc:
            mistakes.append(exc)
            continue
        for prefix, entry in entries:
            found, problems = _one(path, prefix, entry, checks)
            mistakes += problems
            if found is None:
                continue
            line = entry.line("id")
            if (first := seen.get(found.task.id)) is not None:
                field = _dotted((*prefix, "id"))
                text = f"{found.task.id!r} is the id of the task at {first} already"
                mistakes.append(TaskFileError(text, path=str(path), field=field, line=line))
            seen.setdefault(found.task.id, f"{path}:{line}")
            loaded.append(found)
    if len(mistakes) == 1:
        raise mistakes[0]
    if mistakes:
        error = TaskFileError(f"{len(mistakes)} mistakes in task files\n" + "\n".join(f"  {m}" for m in mistakes))
        error.path, error.field, error.line = mistakes[0].path, mistakes[0].field, mistakes[0].line
        raise error
    return loaded


def _entries(path: Path) -> list[tuple[tuple[str | int, ...], Marked]]:
    """The tasks of one file, unchecked, each with its field prefix."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8 text"
        raise TaskFileError(f"cannot read this task file: {reason}", path=str(path)) from exc
    if path.suffix == ".jsonl":
        entries = [((), entry) for entry in read_jsonl(text, str(path))]
    elif path.suffix in (".yaml", ".yml"):
        root = read_yaml(text, str(path))
        if not isinstance(root.value, dict) or set(root.value) != {"tasks"}:
            raise TaskFileError("must be one mapping whose only key is 'tasks'", path=str(path), line=root.line())
        if not isinstance(root.value["tasks"], list):
            raise TaskFileError("must be a list", path=str(path), field="tasks", line=root.line("tasks"))
        entries = [(("tasks", i), root.child("tasks", i)) for i in range(len(root.value["tasks"]))]
    else:
        raise TaskFileError("a task file ends in .yaml, .yml or .jsonl", path=str(path))
    if not entries:
        raise TaskFileError("holds no task", path=str(path), line=1)
    return list(entries)


def _one(
    path: Path, prefix: tuple[str | int, ...], entry: Marked, checks: Mapping[str, Check]
) -> tuple[LoadedTask | None, list[TaskFileError]]:
    """One task, or what is wrong with it."""

    def mistake(message: str, *keys: str | int) -> TaskFileError:
        return TaskFileError(message, path=str(path), field=_dotted((*prefix, *keys)) or None, line=entry.line(*keys))

    problems = [mistake("is given twice", *keys) for keys in entry.duplicates]
    try:
        task = Task.model_validate(entry.value)
    except ValidationError as exc:
        for error in exc.errors():
            keys = _location(error["loc"])
            problems.append(mistake(describe({**error, "loc": ()}).removeprefix(": "), *keys))
        return None, problems
    for name, file in task.files.items():
        if (wrong := file.mistake()) is not None:
            problems.append(mistake(wrong, "files", name))
        elif file.source is not None:
            source = (path.parent / file.source).resolve()
            if not source.is_relative_to(path.parent.resolve()):
                problems.append(mistake("leads out of the task file's folder", "files", name, "source"))
            elif not source.is_file():
                problems.append(mistake(f"no such file: {path.parent / file.source}", "files", name, "source"))
    for block, check in checks.items():
        try:
            check(task)
        except PolarError as exc:
            keys, message = _option(exc, entry.value.get(block))
            problems.append(mistake(message, block, *keys))
    return LoadedTask(task, path.parent.resolve()), problems


def _option(exc: PolarError, block: Any) -> tuple[tuple[str | int, ...], str]:
    """Where in ``block`` a plug-in's complaint belongs (the path it starts with, or a key it names), and what is left."""
    message = str(exc)
    options = [str(key) for key in block if key != "type"] if isinstance(block, dict) else []
    if isinstance(exc, RegistryError):
        return ("type",), message
    start, _, rest = message.partition(": ")
    path = start.split(".")
    if path[0] in options:
        return tuple(int(part) if part.isdigit() else part for part in path), rest
    named = (key for key in options if re.search(rf"\b{re.escape(key)}\b", message))
    return tuple([key] if (key := next(named, None)) is not None else []), message


def _location(loc: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """Pydantic's location without the mark that it puts after a mapping's key when it is the key that is wrong."""
    return loc[:-1] if loc and loc[-1] == "[key]" else loc


def _dotted(keys: Sequence[str | int]) -> str:
    text = ""
    for key in keys:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else key
    return text
