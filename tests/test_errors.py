# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""One error tree, drawn in its module's docstring, whose members cross process boundaries."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

from nemo_polar import errors
from nemo_polar.errors import CallError, ContextOverflow, EngineError, PolarError, TaskFileError

CLASSES = [c for c in vars(errors).values() if inspect.isclass(c) and issubclass(c, Exception)]


def test_the_tree_in_the_docstring_is_the_tree_of_the_code() -> None:
    drawn: dict[str, str | None] = {}
    above: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"^    ([│├└─ ]*)([A-Z]\w+)", line)
        if found and (found[1] or found[2] == "PolarError"):
            depth = len(found[1])
            above = [(d, name) for d, name in above if d < depth]
            drawn[found[2]] = above[-1][1] if above else None
            above.append((depth, found[2]))
    coded = {c.__name__: None if c is PolarError else c.__base__.__name__ for c in CLASSES}
    assert drawn == coded


@pytest.mark.parametrize("kind", [c for c in CLASSES if c not in (ContextOverflow,)], ids=lambda c: c.__name__)
def test_an_error_built_from_a_string_survives_pickling(kind: type[PolarError]) -> None:
    before = kind("what was wrong")
    after = pickle.loads(pickle.dumps(before))
    assert type(after) is kind and str(after) == str(before)


def test_a_task_file_error_says_where_before_what() -> None:
    assert str(TaskFileError("wrong", path="t.yaml", field="tasks[0].id", line=3)) == "t.yaml:3: tasks[0].id: wrong"
    assert str(TaskFileError("wrong", path="t.yaml")) == "t.yaml: wrong"
    assert str(TaskFileError("wrong")) == "wrong"


def test_every_call_error_has_a_status_and_a_kind_of_its_own() -> None:
    calls = [c for c in CLASSES if issubclass(c, CallError) and c is not CallError]
    assert all(400 <= c.status < 600 for c in calls)
    assert len({c.kind for c in calls}) == len(calls)


def test_a_context_overflow_carries_exact_figures() -> None:
    error = ContextOverflow(9000, 8192)
    assert (error.prompt_tokens, error.limit, error.code) == (9000, 8192, "context_length_exceeded")
    assert "9000" in str(error) and "8192" in str(error)


def test_only_engine_failures_that_may_pass_are_retryable() -> None:
    engines = {c.__name__: c.retryable for c in CLASSES if issubclass(c, EngineError)}
    assert {name for name, retryable in engines.items() if retryable} == {
        "EngineUnavailable",
        "EngineTimeout",
        "EngineOverloaded",
    }
