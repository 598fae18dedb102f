# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A task file's mistake is named by field and line, before anything starts."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent

import pytest

from nemo_polar.errors import RegistryError, TaskFileError, VerifierError
from nemo_polar.rollout.tasks import Task, load_tasks

GOOD = """\
tasks:
  - id: add
    instruction: Fix add.
    files:
      add.py: |
        def add(a, b):
            return a - b
      run.sh: {source: run.sh, executable: true}
    verifier:
      type: command
      command: python test.py
    budget: {seconds: 30, turns: 4}
    metadata: {level: 1}
"""


def write(folder: Path, text: str, name: str = "tasks.yaml") -> Path:
    (folder / "run.sh").write_text("echo hi\n")
    path = folder / name
    path.write_text(dedent(text))
    return path


def test_a_good_file_is_read_whole(tmp_path: Path) -> None:
    [loaded] = load_tasks([write(tmp_path, GOOD)])
    assert loaded.task.id == "add"
    assert loaded.task.budget.turns == 4 and loaded.task.budget.tokens is None
    assert loaded.task.verifier.type == "command" and loaded.task.verifier.options == {"command": "python test.py"}
    files, executable = loaded.workspace()
    assert files == {"add.py": b"def add(a, b):\n    return a - b\n", "run.sh": b"echo hi\n"}
    assert executable == ("run.sh",)


def test_jsonl_holds_the_same_tasks(tmp_path: Path) -> None:
    yaml_task = load_tasks([write(tmp_path, GOOD)])[0].task
    line = json.dumps(yaml_task.model_dump(mode="json", exclude_unset=True))
    [loaded] = load_tasks([write(tmp_path, f"\n{line}\n", "tasks.jsonl")])
    assert loaded.task == yaml_task


MISTAKES = {
    "misspelt key": (("instruction:", "instrucion:"), "tasks[0].instruction", 2),
    "unknown key": (("    metadata:", "    meta: 1\n    metadata:"), "tasks[0].meta", 13),
    "bad id": (("id: add", "id: a/b"), "tasks[0].id", 2),
    "dot in an id": (("id: add", "id: a.b"), "tasks[0].id", 2),
    "number as an instruction": (("Fix add.", "7"), "tasks[0].instruction", 3),
    "empty instruction": (("Fix add.", "''"), "tasks[0].instruction", 3),
    "absolute path": (("      run.sh:", "      /etc/run.sh:"), "tasks[0].files./etc/run.sh", 8),
    "path that climbs out": (("      run.sh:", "      a/../../run.sh:"), "tasks[0].files.a/../../run.sh", 8),
    "missing source file": (("source: run.sh", "source: gone.sh"), "tasks[0].files.run.sh.source", 8),
    "source that climbs out": (("source: run.sh", "source: ../run.sh"), "tasks[0].files.run.sh.source", 8),
    "neither text nor source": (("source: run.sh, ", ""), "tasks[0].files.run.sh", 8),
    "unknown key of a file": (("source: run.sh", "source: run.sh, mode: 7"), "tasks[0].files.run.sh.mode", 8),
    "no verifier type": (("      type: command\n", ""), "tasks[0].verifier.type", 9),
    "negative seconds": (("seconds: 30", "seconds: -1"), "tasks[0].budget.seconds", 12),
    "misspelt budget": (("turns: 4", "turn: 4"), "tasks[0].budget.turn", 12),
    "key given twice": (("    metadata:", "    instruction: again\n    metadata:"), "tasks[0].instruction", 13),
}


@pytest.mark.parametrize(("change", "field", "line"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_names_its_field_and_line(tmp_path: Path, change: tuple[str, str], field: str, line: int) -> None:
    assert change[0] in GOOD
    path = write(tmp_path, GOOD.replace(*change))
    with pytest.raises(TaskFileError) as caught:
        load_tasks([path])
    assert (caught.value.field, caught.value.line, caught.value.path) == (field, line, str(path))
    assert f"{path}:{line}: " in str(caught.value) and field in str(caught.value)


WHOLE_FILE = {
    "not YAML": ("tasks: [\n  - {", 2),
    "no tasks key": ("jobs: []\n", 1),
    "more than tasks": ("tasks: []\nmore: 1\n", 1),
    "tasks not a list": ("\ntasks: 5\n", 2),
    "no task": ("tasks: []\n", 1),
    "empty": ("", 1),
    "a task that is text": ("tasks:\n  - hello\n", 2),
}


@pytest.mark.parametrize(("text", "line"), WHOLE_FILE.values(), ids=WHOLE_FILE)
def test_a_file_of_the_wrong_shape_is_refused_with_its_line(tmp_path: Path, text: str, line: int) -> None:
    with pytest.raises(TaskFileError) as caught:
        load_tasks([write(tmp_path, text)])
    assert caught.value.line == line


def test_all_mistakes_of_all_files_are_listed(tmp_path: Path) -> None:
    first = write(tmp_path, GOOD.replace("id: add", "id: a/b").replace("turns: 4", "turns: x"))
    second = write(tmp_path, '{"id": "b", "instruction": "x", "verifier": {"type": "command"}}\n{"id": 7}\n', "more.jsonl")
    with pytest.raises(TaskFileError) as caught:
        load_tasks([first, second])
    text = str(caught.value)
    assert f"{first}:2: tasks[0].id" in text and f"{first}:12: tasks[0].budget.turns" in text
    assert f"{second}:2: id" in text and f"{second}:2: verifier" in text
    assert len(text.splitlines()) == 1 + int(text.split(" ", 1)[0])


def test_an_id_that_two_tasks_share_is_refused_at_the_second(tmp_path: Path) -> None:
    first = write(tmp_path, GOOD)
    second = write(tmp_path, GOOD, "again.yaml")
    with pytest.raises(TaskFileError, match=rf"again.yaml:2: tasks\[0\].id: 'add'.*{first}:2"):
        load_tasks([first, second])


def test_broken_json_names_its_line(tmp_path: Path) -> None:
    with pytest.raises(TaskFileError) as caught:
        load_tasks([write(tmp_path, '\n{"id": "a",}\n', "t.jsonl")])
    assert caught.value.line == 2


def test_a_source_behind_a_link_that_leads_out_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    (tmp_path / "secret").write_text("s")
    path = write(folder, GOOD.replace("source: run.sh", "source: link"))
    (folder / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(TaskFileError, match="leads out"):
        load_tasks([path])


def test_a_plug_ins_complaint_is_placed_at_the_option_it_names(tmp_path: Path) -> None:
    def unknown_type(task: Task) -> None:
        raise RegistryError(f"verifiers: nothing is called {task.verifier.type!r}")

    def bad_option(task: Task) -> None:
        raise VerifierError("command must be a list")

    path = write(tmp_path, GOOD)
    with pytest.raises(TaskFileError) as caught:
        load_tasks([path], checks={"verifier": unknown_type})
    assert (caught.value.field, caught.value.line) == ("tasks[0].verifier.type", 10)
    with pytest.raises(TaskFileError) as caught:
        load_tasks([path], checks={"verifier": bad_option})
    assert (caught.value.field, caught.value.line) == ("tasks[0].verifier.command", 11)


@pytest.mark.parametrize("name", ["missing.yaml", "tasks.toml"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "tasks.toml").write_text("x")
    with pytest.raises(TaskFileError, match=name):
        load_tasks([tmp_path / name])


def test_a_yaml_that_contains_itself_does_not_hang(tmp_path: Path) -> None:
    with pytest.raises(TaskFileError):
        load_tasks([write(tmp_path, "tasks: &t\n  - *t\n")])


def test_a_file_that_is_no_text_can_be_written_out_in_base64(tmp_path: Path) -> None:
    [loaded] = load_tasks([write(tmp_path, GOOD.replace("source: run.sh", 'base64: "AP\\n 8="'))])
    assert loaded.workspace()[0]["run.sh"] == b"\0\xff"


@pytest.mark.parametrize(
    ("entry", "said"),
    {
        "not base64": ("base64: AP8", "base64"),
        "not ASCII": ("base64: 'é'", "base64"),
        "two of them": ("text: a, base64: AP8=", "one of"),
    }.values(),
)
def test_what_cannot_be_a_file_is_refused_without_its_contents(tmp_path: Path, entry: str, said: str) -> None:
    with pytest.raises(TaskFileError, match=said) as caught:
        load_tasks([write(tmp_path, GOOD.replace("source: run.sh", entry))])
    assert (caught.value.field, caught.value.line) == ("tasks[0].files.run.sh", 8) and "AP8" not in str(caught.value)
