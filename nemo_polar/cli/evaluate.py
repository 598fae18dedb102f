# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""``polar eval``: run a policy on tasks as ``polar rollout`` does, and say how good it is; or compare two runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError
from rich.markup import escape
from rich.table import Table

from nemo_polar.cli.boundary import complain, leave, run_async
from nemo_polar.cli.console import RunView, number, print_json, stderr, stdout, summary
from nemo_polar.cli.read import opened
from nemo_polar.cli.rollout import refuse_both, show_plan, verdict, watched
from nemo_polar.errors import ConfigError
from nemo_polar.evaluation.compare import compare
from nemo_polar.evaluation.evaluate import evaluate
from nemo_polar.evaluation.like import Like
from nemo_polar.evaluation.plot import draw
from nemo_polar.rollout.checks import check
from nemo_polar.rollout.compose import describe, load_settings
from nemo_polar.rollout.differences import comparison_differences, settings_of
from nemo_polar.rollout.folder import write_json
from nemo_polar.rollout.run import Finished, Run
from nemo_polar.settings import EvalSettings, RunSettings
from nemo_polar.trajectory.store import Manifest, read_manifest, read_trajectories

EVALUATION = "evaluation.json"
PLOT = "evaluation.png"
SEED = 0
"""Draws are derived from it unless ``capture.sampling.seed`` says otherwise, so that an evaluation can be repeated."""
MOST_ROWS = 60


def main(
    recipe: str | None,
    overrides: Sequence[str],
    *,
    like: Path | None,
    allow_different: bool,
    overwrite: bool,
    resume: bool,
    dry_run: bool,
    plot: bool,
    as_json: bool,
) -> None:
    """See ``polar eval --help``."""
    refuse_both(overwrite, resume)
    way = None if like is None else Like(like, allow_different=allow_different)
    settings = _seeded(load_settings(recipe, overrides, adapt=None if way is None else way.adapt))
    ks = _ks(settings.evaluation, settings.group_size)
    checked = check(settings)
    if way is not None:
        way.check_rendering(settings.policy.codec)
        for difference in way.differences:
            complain(f"warning: not like {like}: {difference.told('when it was trained', 'here')}")
    if dry_run:
        show_plan(checked, as_json=as_json)
        return
    view = RunView(stderr())
    finished = run_async(watched(Run(checked, overwrite=overwrite, resume=resume, say=view.say), view))
    if finished.cancelled:
        complain(f"interrupted after {finished.report['rollouts']} rollouts; the same command with --resume goes on from here")
        leave(verdict(finished))
    planned = finished.report["rollouts_planned"]
    result = evaluate(finished.trajectories, settings.evaluation, ks=ks, planned=planned)
    write_json(finished.folder.path / EVALUATION, result)
    drawn = plot and draw(result, settings.name, finished.folder.path / PLOT)
    if as_json:
        print_json(result)
    else:
        _show(finished, result)
        out = stdout()
        out.print(str(finished.folder.path / EVALUATION), markup=False, highlight=False)
        if plot:
            told = str(finished.folder.path / PLOT) if drawn else "no picture: pip install nemo_polar[plot]"
            out.print(told, markup=False, highlight=False)
    leave(verdict(finished))


def _seeded(settings: RunSettings) -> RunSettings:
    if settings.capture.sampling.seed is not None:
        return settings
    sampling = settings.capture.sampling.model_copy(update={"seed": SEED})
    return settings.model_copy(update={"capture": settings.capture.model_copy(update={"sampling": sampling})})


def _ks(settings: EvalSettings, group_size: int) -> list[int]:
    """The k to report; all of them at most the rollouts of a task."""
    ks = sorted(set(settings.k or (1, group_size)))
    if ks[-1] > group_size:
        raise ConfigError(f"evaluation.k: pass@{ks[-1]} needs {ks[-1]} rollouts of each task, group_size is {group_size}")
    return ks


def _show(finished: Finished, result: Mapping[str, Any]) -> None:
    out = stdout()
    table = Table(box=None, header_style="bold", pad_edge=False)
    shown = f"{result['confidence']:.0%}"
    for name in ("task", "n", "passed", "rate", shown, "reward", "turns", "excluded"):
        table.add_column(name, justify="left" if name in ("task", "excluded") else "right")
    for row in result["tasks"][:MOST_ROWS]:
        excluded = ", ".join(f"{count} {status}" for status, count in row["excluded"].items())
        cells = (number(row["pass_rate"]), _interval(row), number(row["reward_mean"]), number(row["turns_mean"]))
        table.add_row(escape(row["task"]), str(row["rollouts"]), str(row["passed"]), *cells, excluded)
    out.print(table)
    if len(result["tasks"]) > MOST_ROWS:
        out.print(f"... and {len(result['tasks']) - MOST_ROWS} more tasks; evaluation.json has all")
    out.print()
    for name, found in [*((f"pass@{p['k']}", p) for p in result["pass"]), ("reward", result["reward"])]:
        fewer = "" if found["tasks"] == result["tasks_counted"] else f" (of the {found['tasks']} tasks with enough rollouts)"
        out.print(f"{name:8} {number(found['value']):>6}  {_interval(found)}{fewer}", markup=False, highlight=False)
    rollouts = result["rollouts"]
    out.print(f"{rollouts['counted']} rollouts of {result['tasks_counted']} tasks; passed: reward >= {result['threshold']:g}")
    if rollouts["excluded"]:
        told = ", ".join(f"{count} {status}" for status, count in rollouts["excluded"].items())
        out.print(f"warning: left out, and never counted as failures: {told}; --resume runs them again", markup=False)
    for line in summary(finished.report):
        out.print(line, markup=False, highlight=False)


def _interval(row: Mapping[str, Any]) -> str:
    return "-" if row["low"] is None else f"[{row['low']:.3f}, {row['high']:.3f}]"


# --- comparing --------------------------------------------------------------------------------------------------------


def compare_command(a: Path, b: Path, overrides: Sequence[str], *, allow_different: bool, as_json: bool) -> None:
    """``polar eval --compare A B``: every figure as B minus A, paired by task."""
    first, second = opened(a), opened(b)
    manifests = read_manifest(a), read_manifest(b)
    different = comparison_differences(*manifests)
    told = [d.told(f"in {a}", f"in {b}") for d in different]
    if told and not allow_different:
        raise ConfigError(f"{a} and {b} cannot be compared: {'; '.join(told[:5])}. To do it anyway, give --allow-different")
    before, after = (settings_of(manifest) for manifest in manifests)
    settings = _eval_settings(before["evaluation"], overrides)
    sizes = [before["group_size"], after["group_size"]]
    ks = _ks(settings.model_copy(update={"k": settings.k or (1, min(sizes))}), min(sizes))
    result = compare(read_trajectories(first.trajectories), read_trajectories(second.trajectories), settings, ks=ks)
    result = {"a": _named(a, manifests[0]), "b": _named(b, manifests[1]), "different": told, **result}
    if as_json:
        print_json(result)
    else:
        _show_comparison(result)


def _named(path: Path, manifest: Manifest) -> dict[str, str]:
    return {"run": str(path), "model": manifest.model}


def _eval_settings(before: Mapping[str, Any], overrides: Sequence[str]) -> EvalSettings:
    """Those of the first run, with the command line's over them."""
    try:
        given = OmegaConf.to_container(OmegaConf.from_dotlist(list(overrides)))
        if not isinstance(given, dict) or set(given) - {"evaluation"}:
            raise ConfigError("with --compare nothing is run: only evaluation.KEY=VALUE can be given")
        return EvalSettings.model_validate({**before, **(given.get("evaluation") or {})})
    except OmegaConfBaseException as exc:
        raise ConfigError(str(exc)) from exc
    except ValidationError as exc:
        raise ConfigError("; ".join(f"evaluation.{describe(error)}" for error in exc.errors())) from exc


def _show_comparison(result: Mapping[str, Any]) -> None:
    out = stdout()
    for side in ("a", "b"):
        line = f"{side}: {result[side]['run']}  {result[side]['model']}, {result['rollouts'][side]} rollouts"
        out.print(line, markup=False, highlight=False)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("measure", "a", "b", "b - a", f"{result['confidence']:.0%}", "p", "tasks", "better", "worse"):
        table.add_column(name, justify="left" if name == "measure" else "right")
    for row in result["measures"]:
        p = "-" if row["p"] is None else f"{row['p']:.4f}"
        counts = (str(row["tasks"]), str(row["better"]), str(row["worse"]))
        table.add_row(row["measure"], number(row["a"]), number(row["b"]), number(row["difference"]), _interval(row), p, *counts)
    out.print(table)
    if result["tasks_left_out"]:
        out.print(f"left out, for want of a result on both sides: {', '.join(result['tasks_left_out'][:20])}", markup=False)
    if excluded := {side: count for side, count in result["excluded"].items() if count}:
        out.print(f"rollouts left out for reasons of infrastructure: {excluded}", markup=False)
    for line in result["different"]:
        out.print(f"warning: {line}", markup=False, highlight=False)
