# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The demo's tasks: what the generator makes, what is shipped, and that the checks tell done from undone."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import nemo_polar.demo
from nemo_polar.demo.families import FAMILIES, recognise
from nemo_polar.demo.generate import WORDS, tasks
from nemo_polar.rollout.tasks import load_tasks

SHIPPED = Path(nemo_polar.demo.__file__).with_name("tasks.yaml")
ONE_OF_EACH = tasks("train", len(FAMILIES), seed=3)


def reward(checks: list[dict[str, Any]], folder: Path) -> float:
    passed = [c for c in checks if subprocess.run(["sh", "-c", c["command"]], cwd=folder, capture_output=True).returncode == 0]
    return round(sum(c["weight"] for c in passed), 6)


def apply(name: str, arguments: Any, folder: Path) -> str:
    """What Pi's tools do, for the calls that a demonstration makes."""
    path = folder / arguments.get("path", "")
    if name == "write":
        path.write_text(arguments["content"])
    elif name == "read":
        return path.read_text()
    elif name == "bash":
        return subprocess.run(["sh", "-c", arguments["command"]], cwd=folder, capture_output=True, text=True).stdout
    elif name == "edit":
        for edit in arguments["edits"]:
            assert path.read_text().count(edit["oldText"]) == 1
            path.write_text(path.read_text().replace(edit["oldText"], edit["newText"]))
    return ""


def test_the_same_arguments_make_the_same_tasks_and_another_seed_makes_others() -> None:
    assert tasks("train", 40, seed=1) == tasks("train", 40, seed=1)
    assert {t["instruction"] for t in tasks("train", 40, seed=1)}.isdisjoint(
        t["instruction"] for t in tasks("train", 40, seed=2)
    )


def test_the_splits_share_no_word() -> None:
    assert not set(WORDS["train"]) & set(WORDS["held_out"])
    assert all(len(set(words)) == len(words) for words in WORDS.values())


def test_no_word_is_part_of_another_so_that_a_spoilt_command_changes_only_what_it_should() -> None:
    words = [*WORDS["train"], *WORDS["held_out"]]
    assert not [(a, b) for a in words for b in words if a != b and a in b]


def test_no_two_generated_tasks_are_equal_and_too_many_are_refused() -> None:
    made = tasks("train", 300)
    assert len({t["instruction"] for t in made}) == len({t["id"] for t in made}) == 300
    with pytest.raises(ValueError, match="do not make"):
        tasks("held_out", 10_000, families=FAMILIES[:1])


def test_generated_tasks_are_a_task_file(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(json.dumps(t) + "\n" for t in ONE_OF_EACH))
    assert len(load_tasks([path])) == len(FAMILIES)


@pytest.mark.parametrize("task", ONE_OF_EACH, ids=lambda t: t["metadata"]["family"])
def test_the_demonstrated_steps_earn_all_of_the_reward_and_doing_nothing_earns_none(
    task: dict[str, Any], tmp_path: Path
) -> None:
    for name, text in task["files"].items():
        (tmp_path / name).write_text(text)
    checks = task["verifier"]["checks"]
    assert reward(checks, tmp_path) == 0
    known = recognise(task["instruction"])
    assert known is not None and known[0].name == task["metadata"]["family"]
    family, words = known
    results: list[str] = []
    for step in family.steps:
        call = step(words, results)
        results.append(apply(call.name, call.arguments, tmp_path))
    assert reward(checks, tmp_path) == pytest.approx(1.0)


def test_the_shipped_tasks_are_one_of_each_family_in_held_out_words_only() -> None:
    loaded = [entry.task for entry in load_tasks([SHIPPED])]
    assert [t.metadata["family"] for t in loaded] == [f.name for f in FAMILIES]
    for task in loaded:
        known = recognise(task.instruction)
        assert known is not None
        family, words = known
        drawn = [word for field, word in words.items() if field not in family.choices]
        assert set(drawn) <= set(WORDS["held_out"])
        given = {c["name"]: (c["command"], c["weight"]) for c in task.verifier.options["checks"]}
        hidden = dict.fromkeys(family.hidden, "")
        for name, command, weight in family.checks({**hidden, **words}):
            assert weight == given[name][1]
            assert family.hidden or command == given[name][0]
