# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""``polar eval`` from the command line: the same figures from the same seeds, comparisons that are refused when unfair."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from typer.testing import Result

from nemo_polar.cli.boundary import Exit
from nemo_polar.engines.base import GenerateRequest
from nemo_polar.engines.script import Fault, ScriptedReply
from nemo_polar.trajectory.store import read_manifest
from tests.support.cli import AGENT, overrides
from tests.support.models import tiny
from tests.test_cli import polar

TASK = """\
  - id: t{n}
    instruction: Task {n}.
    files: {{agent.py: {{source: agent.py}}}}
    verifier: {{type: command, command: 'test $(cat out.txt) -ge {least}'}}
"""
ENGINE = "vocab: 1024, reply_tokens: [4, 8], token_delay: 0.002"


def evaluated(folder: Path, name: str, *words: str, script: str = "null", flags: tuple[str, ...] = ("--no-plot",)) -> Result:
    """Evaluate the hash model, whose reply's length decides whether a task is passed: two tasks, two rollouts each."""
    tasks = folder / "tasks.yaml"
    if not tasks.exists():
        answer = 'str(answer["usage"]["completion_tokens"])'
        (folder / "agent.py").write_text(AGENT.replace('write("done")', f"write({answer})"))
        tasks.write_text("tasks:\n" + "".join(TASK.format(n=n, least=least) for n, least in enumerate((4, 7))))
    engine = f"engine.options={{script: {script}, {ENGINE}}}"
    return polar("eval", "--json", *flags, *overrides(tasks, engine, "group_size=2", f"name={name}", *words, turns=2))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of three evaluations: one rollout at a time, four at a time and ``--like`` the first, and with other draws."""
    folder = tmp_path_factory.mktemp("eval")
    like = ("--like", str(folder / "runs" / "one"), "--no-plot")
    for result in (
        evaluated(folder, "one", "stages.run=1", "stages.prepare=1", flags=()),
        evaluated(folder, "four", "stages.run=4", "stages.prepare=4", flags=like),
        evaluated(folder, "other", "capture.sampling.seed=1"),
    ):
        assert result.exit_code == Exit.OK, result.output
    return folder / "runs"


def test_the_same_seed_gives_the_same_figures_however_many_run_at_a_time(runs: Path) -> None:
    one, four, other = ((runs / name / "evaluation.json").read_bytes() for name in ("one", "four", "other"))
    assert one == four != other
    found = json.loads(one)
    assert found["rollouts"] == {"planned": 4, "counted": 4, "excluded": {}, "missing": 0}
    assert [p["k"] for p in found["pass"]] == [1, 2] and [t["task"] for t in found["tasks"]] == ["t0", "t1"]
    assert found["tasks"][0]["pass_rate"] == 1.0, "every reply is long enough for the first task"
    assert all(0.0 <= t["pass_rate"] <= 1.0 for t in found["tasks"])
    seeds = {name: read_manifest(runs / name).sampling.seed for name in ("one", "four", "other")}
    assert seeds == {"one": 0, "four": 0, "other": 1}
    assert read_manifest(runs / "four").settings["evaluation"]["like"] == str(runs / "one")


def test_a_picture_lies_beside_the_figures_where_matplotlib_is(runs: Path) -> None:
    pytest.importorskip("matplotlib")
    assert (runs / "one" / "evaluation.png").read_bytes().startswith(b"\x89PNG")


def test_resuming_a_finished_evaluation_reads_it_anew_and_runs_nothing(runs: Path) -> None:
    sessions = (runs / "other" / "engine.jsonl").read_bytes()
    words = ("capture.sampling.seed=1", "evaluation.k=[1,2]", "evaluation.threshold=2")
    result = evaluated(runs.parent, "other", *words, flags=("--resume", "--no-plot"))
    assert result.exit_code == Exit.OK and "nothing to do" in result.stderr
    found = json.loads(result.stdout)
    assert [(p["k"], p["value"]) for p in found["pass"]] == [(1, 0.0), (2, 0.0)]
    assert sessions == (runs / "other" / "engine.jsonl").read_bytes()


def test_two_evaluations_are_compared_by_task(runs: Path) -> None:
    result = polar("eval", "--compare", str(runs / "one"), str(runs / "four"), "--json")
    assert result.exit_code == Exit.OK, result.output
    found = json.loads(result.stdout)
    assert found["tasks_compared"] == 2 and all(m["difference"] == 0 and m["p"] == 1 for m in found["measures"])
    shown = polar("eval", "--compare", str(runs / "one"), str(runs / "other"))
    assert shown.exit_code == Exit.OK and "pass@2" in shown.stdout and "b - a" in shown.stdout
    there, back = (
        json.loads(polar("eval", "--json", "--compare", str(runs / a), str(runs / b), "evaluation.k=[1]").stdout)["measures"]
        for a, b in (("one", "other"), ("other", "one"))
    )
    assert [m["measure"] for m in there] == ["pass@1", "reward"] and there[0]["difference"] == -back[0]["difference"] != 0


def test_unlike_runs_are_compared_only_when_that_is_asked_for(runs: Path, tmp_path: Path) -> None:
    hot = tmp_path / "hot"
    shutil.copytree(runs / "one", hot)
    (hot / "manifest.json").write_text((hot / "manifest.json").read_text().replace('"temperature": 1.0', '"temperature": 2.0'))
    refused = polar("eval", "--compare", str(runs / "one"), str(hot))
    assert refused.exit_code == Exit.USAGE and "capture.sampling.temperature: 1.0 in " in refused.stderr
    allowed = polar("eval", "--json", "--allow-different", "--compare", str(runs / "one"), str(hot))
    assert allowed.exit_code == Exit.OK and len(json.loads(allowed.stdout)["different"]) == 1


def test_an_evaluation_like_a_run_needs_little_more_than_its_name_and_says_what_is_unlike(runs: Path) -> None:
    tasks = f"env.tasks=[{runs.parent / 'tasks.yaml'}]"
    words = ["--like", str(runs / "one"), f"out={runs}", "name=like", tasks, "engine=scripted", "engine.options.script=null"]
    planned = polar("eval", "--dry-run", "--json", *words)
    assert planned.exit_code == Exit.OK, planned.output
    settings = json.loads(planned.stdout)["settings"]
    assert settings["harness"] == read_manifest(runs / "one").settings["harness"]
    unlike = [*words, "capture.sampling.temperature=2.0"]
    refused = polar("eval", "--dry-run", *unlike)
    assert (
        refused.exit_code == Exit.USAGE and "capture.sampling.temperature: 1.0 when it was trained, 2.0 here" in refused.stderr
    )
    allowed = polar("eval", "--dry-run", "--allow-different", *unlike)
    assert allowed.exit_code == Exit.OK and "warning: not like" in allowed.stderr


def test_failures_of_infrastructure_are_said_and_are_no_zeros(tmp_path: Path) -> None:
    script = "'tests.cli.test_evaluate:failing'"
    result = evaluated(tmp_path, "bad", "retries=0", "capture.engine_retries=0", script=script)
    assert result.exit_code == Exit.FINDINGS, result.output
    found = json.loads(result.stdout)
    assert found["rollouts"] == {"planned": 4, "counted": 2, "excluded": {"engine_failed": 2}, "missing": 0}
    assert found["tasks_counted"] == 1 and found["pass"][0]["value"] == 1.0 and found["tasks"][1]["pass_rate"] is None


def failing(request: GenerateRequest) -> ScriptedReply | None:
    """Every sample of the second task fails in the engine."""
    asked = Tokenizer.from_file(str(Path(tiny()) / "tokenizer.json")).decode(request.prompt_ids.tolist())
    return ScriptedReply(fault=Fault.UNAVAILABLE) if "Task 1." in asked else None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["evaluation.k=[5]"], "pass@5 needs 5 rollouts of each task, group_size is 2"),
        (["evaluation.k=[0]"], "evaluation.k"),
        (["evaluation.confidence=1.5"], "evaluation.confidence"),
    ],
)
def test_wrong_settings_of_an_evaluation_are_named_before_anything_runs(tmp_path: Path, words: list[str], said: str) -> None:
    result = evaluated(tmp_path, "x", *words)
    assert result.exit_code == Exit.USAGE and said in result.stderr and not (tmp_path / "runs").exists()


def test_comparing_runs_nothing_so_it_takes_no_settings_of_a_run(runs: Path) -> None:
    result = polar("eval", "--compare", str(runs / "one"), str(runs / "four"), "group_size=3")
    assert result.exit_code == Exit.USAGE and "only evaluation.KEY=VALUE" in result.stderr
    assert polar("eval", "--compare", str(runs / "one"), str(runs)).exit_code == Exit.USAGE


def test_its_help_teaches() -> None:
    text = " ".join(polar("eval", "--help").stdout.split())
    assert all(word in text for word in ("pass@1", "--like", "--compare", "--resume", "polar eval --recipe demo"))
