# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The command line, ``polar``: what each command takes. What it does is in the module of its name, imported when it is called.

Machine output goes to stdout, everything for people that is not the result to stderr.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nemo_polar.cli.boundary import EXIT_CODES, guarded

app = typer.Typer(
    name="polar",
    help=f"Reinforcement learning of language agents through the harness they ship in, exact to the token.\n\n{EXIT_CODES}",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Overrides = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Overrides, as Hydra writes them.")]
Recipe = Annotated[str | None, typer.Option("--recipe", "-r", help="A recipe's name, or the path of its YAML file.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
RunDir = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, e.g. runs/demo.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Rename a run folder of that name out of the way.")]


@app.callback()
def _root() -> None:
    pass


@app.command()
@guarded
def rollout(
    overrides: Overrides = None,
    recipe: Recipe = None,
    overwrite: Overwrite = False,
    rescore: Annotated[bool, typer.Option("--rescore", help="Have the engine score every trace again at the end.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check settings, plug-ins and task files, and stop.")] = False,
    json: Json = False,
) -> None:
    """Run tasks x rollouts into a run folder.

    For example: polar rollout --recipe demo group_size=4 harness=pi

    Exits with 1 when rollouts failed for reasons of infrastructure or the audit found something.
    """
    from nemo_polar.cli.rollout import main as run

    run(recipe, overrides or [], overwrite=overwrite, rescore=rescore, dry_run=dry_run, as_json=json)


@app.command()
@guarded
def proxy(
    overrides: Overrides = None,
    recipe: Recipe = None,
    out: Annotated[Path, typer.Option(help="Folder for the journal and the engine's log.")] = Path("runs/proxy"),
    secret_file: Annotated[
        Path | None, typer.Option(help="Where to write the control secret. [default: OUT/control.secret]")
    ] = None,
    show_secret: Annotated[bool, typer.Option("--show-secret", help="Print the control secret, and write no file.")] = False,
    json: Json = False,
) -> None:
    """Run the capture proxy alone, until SIGTERM.

    For example: polar proxy engine.url=URL policy.codec.tokenizer=FOLDER. Ctrl-C ends it as well.
    """
    from nemo_polar.cli.proxy import main as run

    run(recipe, overrides or [], out=out, secret_file=secret_file, show_secret=show_secret, as_json=json)


@app.command()
@guarded
def inspect(
    run_dir: RunDir,
    rollout_id: Annotated[str | None, typer.Argument(metavar="[ROLLOUT]", help="Its id; without one, all are listed.")] = None,
    attempt: Annotated[int | None, typer.Option(help="Which attempt; the last one by default.")] = None,
    excerpt: Annotated[int, typer.Option(help="Characters of a reply to show.")] = 100,
    json: Json = False,
) -> None:
    """Show a run's rollouts, or one of them as a tree.

    The tree has its turns, forks, masks and reward.
    """
    from nemo_polar.cli.read import inspect_run

    inspect_run(run_dir, rollout_id, attempt=attempt, excerpt=excerpt, as_json=json)


@app.command()
@guarded
def audit(
    run_dir: RunDir,
    engine_url: Annotated[
        str | None, typer.Option(help="An engine that serves the same weights, to score every trace again.")
    ] = None,
    json: Json = False,
) -> None:
    """Prove a run against the engine's own log.

    Exits with 1 when anything is found.
    """
    from nemo_polar.cli.read import audit_command

    audit_command(run_dir, engine_url, as_json=json)


@app.command()
@guarded
def export(
    run_dir: RunDir,
    target: Annotated[Path, typer.Argument(help="The JSON lines file to write.")],
    min_reward: Annotated[float | None, typer.Option(help="Only rollouts with at least this reward.")] = None,
    kind: Annotated[list[str] | None, typer.Option(help="Only traces of this kind; may be repeated.")] = None,
    all_traces: Annotated[bool, typer.Option("--all-traces", help="Also traces in which nothing is trained.")] = False,
    json: Json = False,
) -> None:
    """Write a run's traces as JSON lines.

    With plain lists, for other programs.
    """
    from nemo_polar.cli.read import export_command

    export_command(run_dir, target, min_reward=min_reward, kinds=kind, all_traces=all_traces, as_json=json)


@app.command()
@guarded
def doctor(json: Json = False) -> None:
    """Check what this machine has and lacks.

    Says how to get what is missing. Exits with 1 when anything is.
    """
    from nemo_polar.cli.doctor import main as run

    run(as_json=json)


@app.command()
@guarded
def demo(overrides: Overrides = None, json: Json = False) -> None:
    """Do the whole thing once, on this machine.

    Pi, a small model on the CPU, audited and re-scored trajectories in runs/demo.

    An earlier run of that name is renamed, never deleted.
    Exits with 1 when tokens drifted, the audit found something, or a log-probability is off by more than 0.001.
    """
    from nemo_polar.cli.demo import main as run

    run(overrides or [], as_json=json)


def main() -> None:
    """The ``polar`` command."""
    app()
