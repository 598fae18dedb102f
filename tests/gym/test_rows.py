# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A task goes into a Gym row and comes back equal; what cannot be a task is refused with the field that is wrong."""

from __future__ import annotations

import datetime
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_polar.errors import TaskFileError, VerifierError
from nemo_polar.gym.inline import inline
from nemo_polar.gym.rows import NOWHERE, RowSampling, row_sampling, row_to_task, task_to_row
from nemo_polar.rollout.tasks import LoadedTask, Task, load_tasks
from nemo_polar.verifiers.command import CommandVerifier

texts = st.text(st.characters(codec="utf-8"), max_size=30)
names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,8}", fullmatch=True)
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
blocks = st.dictionaries(texts.filter(lambda key: key not in ("type", "source", "files")), plain, max_size=3)


@st.composite
def files(draw: st.DrawFn) -> dict[str, Any]:
    contents = st.one_of(
        texts,
        st.builds(lambda text, run: {"text": text, "executable": run}, texts, st.booleans()),
        st.builds(lambda data: {"base64": data}, st.sampled_from(["", "AP8=", "AAEC AwQ="])),
    )
    return draw(st.dictionaries(names, contents, max_size=3))


@st.composite
def tasks(draw: st.DrawFn) -> Task:
    fields: dict[str, Any] = {
        "id": draw(names),
        "instruction": draw(texts.filter(bool)),
        "verifier": {"type": draw(names), **draw(blocks)},
    }
    optional = {
        "files": files(),
        "budget": st.fixed_dictionaries({}, optional={"seconds": st.floats(0.5, 900), "turns": st.integers(1, 99)}),
        "sandbox": blocks,
        "metadata": st.dictionaries(texts, plain, max_size=3),
    }
    return Task.model_validate(fields | draw(st.fixed_dictionaries({}, optional=optional)))


@given(tasks())
def test_a_task_comes_back_from_its_row_as_it_was(task: Task) -> None:
    row = json.loads(json.dumps(task_to_row(task)))
    back = row_to_task(row)
    assert back.task == task and back.folder == NOWHERE
    assert task_to_row(back.task) == row
    assert row["responses_create_params"] == {"input": [{"role": "user", "content": task.instruction}], "tools": []}
    assert row["agent_ref"] == {"type": "responses_api_agents", "name": "polar_agent"}


@given(st.recursive(plain, lambda inner: st.dictionaries(texts, inner, max_size=3)))
def test_whatever_a_row_holds_the_answer_is_a_task_or_a_named_mistake(value: Any) -> None:
    params = "responses_create_params"
    for row in (value, {"polar_task": value}, {params: value}, {params: {"input": value}}):
        with suppress(TaskFileError):
            assert row_to_task(row, default_verifier={"type": "command"}).task.instruction


def write_task(folder: Path, **more: Any) -> LoadedTask:
    files = {"a.py": {"source": "a.py"}, "logo.png": {"source": "logo.png", "executable": True}, "b.txt": "b"}
    hidden = {"test.py": {"source": "test.py", "executable": True}, "key.bin": {"source": "logo.png"}, "c.txt": "c"}
    verifier = {"type": "command", "command": "./test.py", "files": hidden}
    task = {"id": "t", "instruction": "Do it.", "files": files, "verifier": verifier, **more}
    (folder / "a.py").write_bytes("é = 1\r\n\0".encode())
    (folder / "test.py").write_text("#!/bin/true\n")
    (folder / "logo.png").write_bytes(b"\x89PNG\xff")
    (folder / "tasks.jsonl").write_text(json.dumps(task))
    return load_tasks([folder / "tasks.jsonl"])[0]


def test_a_rows_files_are_those_of_the_task_byte_for_byte(tmp_path: Path) -> None:
    loaded = write_task(tmp_path)
    found = inline(loaded)
    sizes = [(tmp_path / name).stat().st_size for name in ("a.py", "logo.png", "test.py", "logo.png")]
    assert (found.files, found.binary, found.bytes) == (4, 2, sum(sizes))
    back = row_to_task(json.loads(json.dumps(task_to_row(found.task))))
    assert back.workspace() == loaded.workspace()
    hidden = CommandVerifier(**back.task.verifier.options).options.files
    assert hidden["test.py"].text == "#!/bin/true\n" and hidden["test.py"].executable
    assert hidden["key.bin"].base64 == "iVBOR/8=" and hidden["c.txt"].text == "c"


def test_a_task_without_files_on_disk_is_taken_as_it_is(tmp_path: Path) -> None:
    task = Task.model_validate({"id": "t", "instruction": "x", "files": {"a": "a"}, "verifier": {"type": "command"}})
    assert inline(LoadedTask(task, tmp_path)).task is task


def test_what_a_row_cannot_carry_is_refused_before_it_is_written(tmp_path: Path) -> None:
    loaded = write_task(tmp_path)
    with pytest.raises(TaskFileError, match="polar gym data") as caught:
        task_to_row(loaded.task)
    assert caught.value.field == "files.a.py.source"
    (tmp_path / "a.py").unlink()
    with pytest.raises(TaskFileError, match="cannot be read") as caught:
        inline(loaded)
    assert caught.value.field == "files.a.py.source"


def test_a_hidden_file_behind_a_link_that_leads_out_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    loaded = write_task(folder)
    (tmp_path / "secret").write_text("s")
    (folder / "test.py").unlink()
    (folder / "test.py").symlink_to(tmp_path / "secret")
    with pytest.raises(TaskFileError, match="leads out") as caught:
        inline(loaded)
    assert caught.value.field == "verifier.files.test.py.source"


def test_a_file_that_only_its_verifier_knows_how_to_use_is_refused_not_lost(tmp_path: Path) -> None:
    loaded = write_task(tmp_path, verifier={"type": "other", "suites": [{"source": "test.py"}]})
    with pytest.raises(TaskFileError, match="only files under") as caught:
        inline(loaded)
    assert caught.value.field == "verifier.suites[0].source"
    elsewhere = write_task(tmp_path, verifier={"type": "other", "source": "a name, not a file"}, files={})
    assert inline(elsewhere).task.verifier.options == {"source": "a name, not a file"}


UNWRITABLE = {
    "a date": ({"day": datetime.date(2026, 1, 1)}, "metadata.day"),
    "not a number": ({"x": [float("nan")]}, "metadata.x.0"),
    "a number of over 64 bits": ({"x": 2**64}, "metadata.x"),
    "a key that is a number": ({"x": {1: 2}}, "metadata.x"),
    "half of a surrogate pair": ({"x": "\ud800"}, "metadata.x"),
}


@pytest.mark.parametrize(("metadata", "field"), UNWRITABLE.values(), ids=UNWRITABLE)
def test_a_value_that_json_would_change_is_refused_by_name(metadata: dict[str, Any], field: str) -> None:
    task = Task.model_validate({"id": "t", "instruction": "x", "verifier": {"type": "command"}, "metadata": metadata})
    with pytest.raises(TaskFileError) as caught:
        task_to_row(task)
    assert caught.value.field == field


GOOD: dict[str, Any] = {"id": "t", "instruction": "Do it.", "verifier": {"type": "command", "command": "true"}}
MISTAKES = {
    "no row": (7, None),
    "no task": ({"polar_task": None}, "polar_task"),
    "misspelt key": ({"polar_task": GOOD | {"file": {}}}, "polar_task.file"),
    "missing key": ({"polar_task": {"id": "t", "instruction": "x"}}, "polar_task.verifier"),
    "bad id": ({"polar_task": GOOD | {"id": "a/b"}}, "polar_task.id"),
    "path that climbs out": ({"polar_task": GOOD | {"files": {"../a": "x"}}}, "polar_task.files.../a"),
    "not base64": ({"polar_task": GOOD | {"files": {"a": {"base64": "AP8"}}}}, "polar_task.files.a"),
    "file on disk": ({"polar_task": GOOD | {"files": {"a": {"source": "a"}}}}, "polar_task.files.a.source"),
    "hidden file on disk": (
        {"polar_task": GOOD | {"verifier": {"type": "command", "files": {"a": {"source": "a"}}}}},
        "polar_task.verifier.files.a.source",
    ),
    "another instruction": (
        {"polar_task": GOOD, "responses_create_params": {"input": "Do something else."}},
        "responses_create_params.input",
    ),
    "params are a list": ({"responses_create_params": []}, "responses_create_params"),
    "input is a number": ({"responses_create_params": {"input": 5}}, "responses_create_params.input"),
    "no user message": (
        {"responses_create_params": {"input": [{"role": "system", "content": "x"}]}},
        "responses_create_params.input",
    ),
    "empty instruction": ({"responses_create_params": {"input": ""}}, "instruction"),
    "an image": (
        {"responses_create_params": {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}},
        "responses_create_params.input[0].content[0]",
    ),
}


@pytest.mark.parametrize(("row", "field"), MISTAKES.values(), ids=MISTAKES)
def test_a_row_that_is_no_task_is_refused_with_its_field(row: Any, field: str | None) -> None:
    with pytest.raises(TaskFileError) as caught:
        row_to_task(row, default_verifier={"type": "command", "command": "true"})
    assert caught.value.field == field


def test_a_plug_ins_complaint_names_its_block() -> None:
    def refuse(task: Task) -> None:
        raise VerifierError("command: must be a list")

    with pytest.raises(TaskFileError, match=r"polar_task\.verifier: command: must be a list"):
        row_to_task(task_to_row(Task.model_validate(GOOD)), checks={"verifier": refuse})


FOREIGN: dict[str, Any] = {
    "responses_create_params": {
        "input": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "No, not this."},
            {"role": "assistant", "content": "What then?"},
            {"role": "user", "content": [{"type": "input_text", "text": "Two"}, {"type": "input_text", "text": "lines."}]},
        ],
        "tools": [{"type": "function", "name": "f"}],
    },
    "verifier_metadata": {"answer": 4},
    "agent_ref": {"type": "responses_api_agents", "name": "simple_agent"},
    "_ng_task_index": 3,
}


def test_somebody_elses_row_is_read_by_the_rules_of_the_module() -> None:
    verifier = {"type": "command", "command": "true"}
    task = row_to_task(FOREIGN, default_verifier=verifier).task
    assert task.instruction == "Two\nlines." and task.metadata == {"verifier_metadata": {"answer": 4}}
    assert task.verifier.type == "command" and task.verifier.options == {"command": "true"}
    again = row_to_task(FOREIGN | {"_ng_task_index": 9}, default_verifier=verifier).task
    assert again.id == task.id, "the rollouts of one row belong to one task, whatever Gym numbers them"
    other = row_to_task(FOREIGN | {"verifier_metadata": {"answer": 5}}, default_verifier=verifier).task
    assert other.id != task.id
    assert row_to_task(FOREIGN | {"id": "a/b", "task_id": 12}, default_verifier=verifier).task.id == "12"


def test_somebody_elses_row_without_a_verifier_is_refused() -> None:
    with pytest.raises(TaskFileError, match="no default verifier") as caught:
        row_to_task(FOREIGN)
    assert caught.value.field == "polar_task"


def test_a_row_says_how_it_wants_to_be_sampled() -> None:
    assert row_sampling({}) == row_sampling({"responses_create_params": {"input": "x"}}) == RowSampling()
    asked = {"responses_create_params": {"temperature": 0, "top_p": 0.9, "max_output_tokens": 64}}
    assert row_sampling(asked) == RowSampling(0.0, 0.9, 64)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("temperature", "1"),
        ("temperature", True),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("top_p", 0),
        ("top_p", 1.1),
        ("max_output_tokens", 0),
        ("max_output_tokens", 1.5),
        ("max_output_tokens", True),
    ],
)
def test_a_sampling_that_is_none_is_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(TaskFileError) as caught:
        row_sampling({"responses_create_params": {key: value}})
    assert caught.value.field == f"responses_create_params.{key}"
