# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A task as a row of a NeMo Gym dataset, and back. Pure: no disk, no Gym.

A row holds the whole task under ``polar_task`` and depends on no file. Beside it stand the instruction once more, in the place
where Gym and trainers look for a prompt, and the agent that the row is meant for. What other fields a row has is left alone.

A row without ``polar_task``, of somebody else's dataset, is read by these rules:

    instruction    the last user message of responses_create_params.input; its text parts, joined by line breaks
    verifier       the one the caller gives; without one the row is refused
    id             the row's id, task_id or instance_id where that can be one, else a hash of the row
    metadata       the row's other fields, but for those that begin with an underscore
    all else       not read: system messages and tools are the harness's own business
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from nemo_polar.errors import PolarError, TaskFileError
from nemo_polar.rollout.tasks import NO_CHECKS, Check, LoadedTask, Task, is_id

PARAMS = "responses_create_params"
TASK = "polar_task"
AGENT_REF = "agent_ref"
AGENT_TYPE = "responses_api_agents"
AGENT = "polar_agent"
"""The agent's name in the environment's configuration."""

NOWHERE = Path("/nonexistent")
"""The folder of a task that came out of a row: none of its files lies in one."""

_IDS = ("id", "task_id", "instance_id")
_TEXT_PARTS = ("input_text", "output_text", "text")
_SMALLEST, _LARGEST = -(2**63), 2**64 - 1
"""Whole numbers that every JSON reader keeps; others may come back rounded."""


@dataclass(frozen=True, slots=True)
class RowSampling:
    """What a row asks for. None: nothing."""

    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    """Of one reply."""


def task_to_row(task: Task, *, agent: str = AGENT) -> dict[str, Any]:
    """A row that holds all of ``task``.

    Args:
        agent: the name of the agent's instance in Gym's configuration.

    Raises:
        TaskFileError: a file of it lies on disk (see ``inline``), or it holds a value that JSON cannot; names the field.
    """
    _refuse_files_elsewhere(task, field="")
    plain = task.model_dump(exclude_unset=True)
    _refuse_unwritable(plain, ())
    return {
        PARAMS: {"input": [{"role": "user", "content": task.instruction}], "tools": []},
        TASK: plain,
        AGENT_REF: {"type": AGENT_TYPE, "name": agent},
    }


def row_to_task(
    row: Any, *, default_verifier: Mapping[str, Any] | None = None, checks: Mapping[str, Check] = NO_CHECKS
) -> LoadedTask:
    """The task that a row holds; the module says how rows without one are read.

    Args:
        default_verifier: the verifier block for rows that bring none. checks: as for ``load_tasks``.

    Raises:
        TaskFileError: the row is no task; ``field`` says where, ``line`` is None.
    """
    if not isinstance(row, Mapping):
        raise TaskFileError(f"a row is an object, not {_kind(row)}")
    prefix = f"{TASK}."
    if TASK in row:
        task = _validated(row[TASK], prefix)
        said = _last_user_text(row, missing=None)
        if said is not None and said != task.instruction:
            raise TaskFileError(
                f"is not what {TASK}.instruction says, which is what the harness is told; change both or take one away",
                field=f"{PARAMS}.input",
            )
    else:
        prefix = ""
        task = _foreign(row, default_verifier)
    _refuse_files_elsewhere(task, field=prefix)
    for block, check in checks.items():
        try:
            check(task)
        except PolarError as exc:
            raise TaskFileError(str(exc), field=f"{prefix}{block}") from exc
    return LoadedTask(task, NOWHERE)


def row_sampling(row: Mapping[str, Any]) -> RowSampling:
    """How the row wants its replies drawn. Whether that is done is the sampling policy's to say.

    Raises:
        TaskFileError: a value is no such setting; names the field.
    """
    params = _params(row)
    limit = params.get("max_output_tokens")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise TaskFileError(f"must be a whole number over 0 (got {limit!r})", field=f"{PARAMS}.max_output_tokens")
    temperature, top_p = _number(params, "temperature"), _number(params, "top_p")
    if temperature is not None and temperature < 0:
        raise TaskFileError(f"must not be under 0 (got {temperature!r})", field=f"{PARAMS}.temperature")
    if top_p is not None and not 0 < top_p <= 1:
        raise TaskFileError(f"must be over 0 and at most 1 (got {top_p!r})", field=f"{PARAMS}.top_p")
    return RowSampling(temperature, top_p, limit)


def _number(params: Mapping[str, Any], key: str) -> float | None:
    value = params.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TaskFileError(f"must be a finite number (got {value!r})", field=f"{PARAMS}.{key}")
    return float(value)


def _params(row: Mapping[str, Any]) -> Mapping[str, Any]:
    params = row.get(PARAMS)
    if params is None:
        return {}
    if not isinstance(params, Mapping):
        raise TaskFileError(f"must be an object, not {_kind(params)}", field=PARAMS)
    return params


def _foreign(row: Mapping[str, Any], default_verifier: Mapping[str, Any] | None) -> Task:
    """A task from a row that does not know Polar."""
    instruction = _last_user_text(row, missing="has no user message, and there is no polar_task to take an instruction from")
    if default_verifier is None:
        raise TaskFileError("is missing, and no default verifier is configured that could score the row", field=TASK)
    rest = {key: value for key, value in row.items() if key not in (PARAMS, AGENT_REF) and not str(key).startswith("_")}
    named = next((value for key in _IDS if isinstance(value := row.get(key), str | int) and is_id(str(value))), None)
    written = json.dumps([row.get(PARAMS), rest], sort_keys=True, default=str).encode(errors="surrogatepass")
    fields = {
        "id": str(named) if named is not None else f"row-{hashlib.sha256(written).hexdigest()[:16]}",
        "instruction": instruction,
        "verifier": dict(default_verifier),
        "metadata": rest,
    }
    return _validated(fields, "")


def _validated(value: Any, prefix: str) -> Task:
    try:
        task = Task.model_validate(value)
    except ValidationError as exc:
        first = exc.errors(include_input=False)[0]
        where = prefix + ".".join(str(key) for key in first["loc"] if key != "[key]")
        message = "no such key" if first["type"] == "extra_forbidden" else first["msg"][:1].lower() + first["msg"][1:]
        raise TaskFileError(message.removeprefix("value error, "), field=where.rstrip(".")) from exc
    for path, file in task.files.items():
        if (wrong := file.mistake()) is not None:
            raise TaskFileError(wrong, field=f"{prefix}files.{path}")
    return task


def _last_user_text(row: Mapping[str, Any], *, missing: str | None) -> str | None:
    """The text of the last user message.

    Raises:
        TaskFileError: the input is malformed or holds what is not text; or there is none and ``missing`` says what to say.
    """
    given = _params(row).get("input")
    field = f"{PARAMS}.input"
    if isinstance(given, str):
        return given
    if given is not None and not isinstance(given, list):
        raise TaskFileError(f"must be text or a list, not {_kind(given)}", field=field)
    for index in range(len(given or []) - 1, -1, -1):
        item = given[index] if given else None
        if isinstance(item, Mapping) and item.get("role") == "user":
            return _text(item.get("content"), f"{field}[{index}].content")
    if missing is not None:
        raise TaskFileError(missing, field=field)
    return None


def _text(content: Any, field: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise TaskFileError(f"must be text or a list of parts, not {_kind(content)}", field=field)
    texts = []
    for index, part in enumerate(content):
        text = part.get("text") if isinstance(part, Mapping) and part.get("type") in _TEXT_PARTS else None
        if not isinstance(text, str):
            what = repr(part.get("type")) if isinstance(part, Mapping) else _kind(part)
            raise TaskFileError(f"only text can be an instruction, not {what}", field=f"{field}[{index}]")
        texts.append(text)
    return "\n".join(texts)


def _refuse_files_elsewhere(task: Task, *, field: str) -> None:
    """Raise where a file of the task is not in it."""
    named = [f"files.{path}" for path, file in task.files.items() if file.source is not None]
    hidden = task.verifier.options.get("files")
    if isinstance(hidden, Mapping):
        named += [f"verifier.files.{path}" for path, file in hidden.items() if isinstance(file, Mapping) and "source" in file]
    if named:
        text = "names a file on disk, and a row holds its files itself; polar gym data writes such rows"
        raise TaskFileError(text, field=f"{field}{named[0]}.source")


def _refuse_unwritable(value: Any, at: Sequence[str | int]) -> None:
    """Raise where JSON would not give back what it was given, e.g. a date from YAML."""
    field = ".".join(map(str, at))
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise TaskFileError("holds half of a surrogate pair, which not every JSON reader takes", field=field) from None
    elif isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise TaskFileError(f"has the key {key!r}, and those of JSON are text", field=field)
            _refuse_unwritable(key, at)
            _refuse_unwritable(inner, (*at, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            _refuse_unwritable(inner, (*at, index))
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise TaskFileError(f"is {value}, which JSON cannot hold", field=field)
    elif isinstance(value, int):  # and booleans
        if not _SMALLEST <= value <= _LARGEST:
            raise TaskFileError("is over 64 bits, which JSON readers round", field=field)
    elif value is not None:
        raise TaskFileError(f"is {_kind(value)}, which JSON cannot hold", field=field)


def _kind(value: Any) -> str:
    names = {type(None): "null", bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list"}
    return names.get(type(value), f"a {type(value).__name__}")
