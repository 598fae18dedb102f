# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The command line, ``polar``: what each command takes. What it does is in the module of its name, imported when it is called.

Machine output goes to stdout, everything for people that is not the result to stderr.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nemo_polar.cli import engine, gym
from nemo_polar.cli.boundary import EXIT_CODES, guarded
from nemo_polar.logs import Form, Level

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
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the interrupted run in the folder, or begin it.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check settings, plug-ins and task files, and stop.")]
LogFormat = Annotated[Form, typer.Option(envvar="POLAR_LOG_FORMAT", help="How the log on stderr is written.")]
LogLevel = Annotated[Level, typer.Option(envvar="POLAR_LOG_LEVEL", help="The least that is logged.")]
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
    resume: Resume = False,
    rescore: Annotated[bool, typer.Option("--rescore", help="Have the engine score every trace again at the end.")] = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Run tasks x rollouts into a run folder.

    For example: polar rollout --recipe demo group_size=4 harness=pi

    After Ctrl-C or a crash, the same command with --resume goes on: rollouts with a result stay, all others are run again.

    Exits with 1 when rollouts failed for reasons of infrastructure or the audit found something.
    """
    from nemo_polar.cli.rollout import main as run

    run(recipe, overrides or [], overwrite=overwrite, resume=resume, rescore=rescore, dry_run=dry_run, as_json=json)


@app.command("eval")
@guarded
def evaluate(
    overrides: Overrides = None,
    recipe: Recipe = None,
    like: Annotated[
        Path | None, typer.Option("--like", metavar="RUN", help="Take harness, sandbox, sampling and rendering from this run.")
    ] = None,
    compare: Annotated[
        tuple[Path, Path] | None, typer.Option("--compare", metavar="A B", help="Compare two finished runs; run nothing.")
    ] = None,
    allow_different: Annotated[
        bool, typer.Option("--allow-different", help="With --like and --compare: warn about differences, do not refuse.")
    ] = False,
    overwrite: Overwrite = False,
    resume: Resume = False,
    dry_run: DryRun = False,
    no_plot: Annotated[bool, typer.Option("--no-plot", help="Draw no evaluation.png.")] = False,
    json: Json = False,
) -> None:
    """Evaluate a policy: pass@1, pass@k and mean reward, with intervals over tasks.

    Runs group_size rollouts of each task as polar rollout does, and writes evaluation.json (and .png) into the run folder.
    A rollout passes with a reward of at least evaluation.threshold (1). Draws come from capture.sampling.seed (0): the same
    seed gives the same figures on an engine that draws the same. Infrastructure failures are counted, never as a 0.

    As it is, on your tasks:

        polar eval --recipe demo name=base group_size=8

    A checkpoint, the way it was trained:

        polar eval --like runs/train engine.url=URL policy.model=CKPT env.tasks=[test.yaml] name=step100 group_size=8

    Did it get better? Paired by task, with an interval and a p-value:

        polar eval --compare runs/base runs/step100

    Other k or threshold, without running anything again: the same command with --resume evaluation.k=[1,2,4].

    Exits with 1 when rollouts failed for reasons of infrastructure or the audit found something.
    """
    if compare is not None:
        from nemo_polar.cli.evaluate import compare_command

        compare_command(*compare, overrides or [], allow_different=allow_different, as_json=json)
        return
    from nemo_polar.cli.evaluate import main as run

    run(
        recipe,
        overrides or [],
        like=like,
        allow_different=allow_different,
        overwrite=overwrite,
        resume=resume,
        dry_run=dry_run,
        plot=not no_plot,
        as_json=json,
    )


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
    log_format: LogFormat = Form.TEXT,
    log_level: LogLevel = Level.INFO,
    json: Json = False,
) -> None:
    """Run the capture proxy alone, until SIGTERM.

    For example: polar proxy engine.url=URL policy.codec.tokenizer=FOLDER. Ctrl-C ends it as well.
    """
    from nemo_polar.cli.proxy import main as run

    run(
        recipe,
        overrides or [],
        out=out,
        secret_file=secret_file,
        show_secret=show_secret,
        log_format=log_format,
        log_level=log_level,
        as_json=json,
    )


@app.command()
@guarded
def top(
    folder: Annotated[
        Path, typer.Argument(metavar="[FOLDER]", help="Where it runs: the --out of polar proxy, or a run folder.")
    ] = Path("runs/proxy"),
    control: Annotated[str | None, typer.Option(metavar="URL", help="Its control listener, if it has no folder here.")] = None,
    secret_file: Annotated[Path | None, typer.Option(help="File with its control secret.")] = None,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 1.0,
    sessions: Annotated[int, typer.Option(min=0, help="How many of the busiest sessions to show.")] = 20,
    once: Annotated[bool, typer.Option("--once", help="Print one frame as plain text, and end.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one frame as JSON, and end.")] = False,
) -> None:
    """Show a live proxy: rates, latencies, replicas, its busiest sessions.

    Ends with q or Ctrl-C. A polar rollout can be watched when it was started with capture.control_port=PORT.

    Elsewhere: polar top --control URL --secret-file FILE.
    """
    from nemo_polar.cli.top import main as run

    run(folder, control=control, secret_file=secret_file, interval=interval, sessions=sessions, once=once, as_json=json)


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
    target: Annotated[Path, typer.Argument(help="The file to write; its suffix, .jsonl or .parquet, chooses the format.")],
    shape: Annotated[
        str, typer.Option("--as", metavar="tokens|chat", help="Ids, masks and log-probabilities; or conversations.")
    ] = "tokens",
    min_reward: Annotated[float | None, typer.Option(help="Only rollouts with at least this reward.")] = None,
    max_reward: Annotated[float | None, typer.Option(help="Only rollouts with at most this reward.")] = None,
    best: Annotated[
        int | None, typer.Option(min=1, help="Only this many rollouts of each group: those with the highest reward.")
    ] = None,
    task: Annotated[list[str] | None, typer.Option(help="Only rollouts of this task; may be repeated.")] = None,
    status: Annotated[
        list[str] | None,
        typer.Option(help="Only rollouts that ended so; may be repeated. [default: all but infrastructure failures]"),
    ] = None,
    kind: Annotated[list[str] | None, typer.Option(help="Only traces of this kind; may be repeated.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Only traces of at most this many tokens; none is cut.")] = None,
    distinct: Annotated[bool, typer.Option("--distinct", help="Of equal traces (same ids, same mask) only the first.")] = False,
    all_traces: Annotated[bool, typer.Option("--all-traces", help="Also traces in which nothing is trained.")] = False,
    arguments: Annotated[
        str | None,
        typer.Option(
            metavar="object|text", help="In chat rows, how tool arguments are written. [default: object; Parquet: text]"
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Write a run's traces for other programs: one row a trace.

    Tokens are exactly what was sampled, with masks and log-probabilities:

        polar export runs/demo demo.parquet

    Chat rows (messages, tools) are what TRL and apply_chat_template take, for example the best of each group for SFT:

        polar export runs/demo sft.jsonl --as chat --best 1 --distinct

    What was left out, and why, is counted at the end. The file appears whole or not at all.
    """
    from nemo_polar.cli.export import main as run

    run(
        run_dir,
        target,
        shape=shape,
        arguments=arguments,
        min_reward=min_reward,
        max_reward=max_reward,
        kinds=kind,
        statuses=status,
        tasks=task,
        best=best,
        max_tokens=max_tokens,
        distinct=distinct,
        all_traces=all_traces,
        as_json=json,
    )


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


harness = typer.Typer(help="The harnesses: which there are, installing them.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(harness, name="harness")
Names = Annotated[list[str], typer.Argument(metavar="NAME...", help="Harnesses, as polar harness list names them, or all.")]


@harness.callback()
def _harness() -> None:
    pass


@harness.command("list")
@guarded
def harness_list(json: Json = False) -> None:
    """Show every harness: its API, what is pinned, what is installed.

    Those of other packages, found by their entry points, are among them. Exits with 1 when one of them cannot be loaded.
    """
    from nemo_polar.cli.harness import list_command

    list_command(as_json=json)


@harness.command("install")
@guarded
def harness_install(
    names: Names, force: Annotated[bool, typer.Option("--force", help="Again, even if it is up to date.")] = False
) -> None:
    """Install harnesses, each in the version that its adapter pins.

    They go into the toolchain below POLAR_HOME, else below .polar in the checkout or the working folder, each in a folder of
    its own; what is up to date is left alone, and nothing is changed before the new one was seen to start.

    Most need npm, of any version; pip harnesses need a CPython 3.11 to 3.13, of which they get a copy.
    """
    from nemo_polar.cli.harness import install_command

    install_command(names, force=force)


@harness.command("doctor")
@guarded
def harness_doctor(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Which. [default: all installed]")] = None,
    json: Json = False,
) -> None:
    """Start what is installed, and compare it with what is pinned.

    Says how to put right what is wrong. Exits with 1 when anything is.
    """
    from nemo_polar.cli.harness import doctor_command

    doctor_command(names or [], as_json=json)


app.add_typer(engine.app, name="engine")
app.add_typer(gym.app, name="gym")

bench = typer.Typer(help="Measure the package, from a clone.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(bench, name="bench")


@bench.callback()
def _bench() -> None:
    pass


@bench.command("sessions")
@guarded
def bench_sessions(
    out: Annotated[Path, typer.Option(help="Folder for sessions.json and its plot.")] = Path("runs/bench-sessions"),
    sessions: Annotated[int, typer.Option(min=1, help="How many, each with a harness of its own.")] = 1000,
    turns: Annotated[int, typer.Option(min=1, help="Calls of each.")] = 20,
    arrive_seconds: Annotated[float, typer.Option(min=0, help="Over which they arrive.")] = 60.0,
    tokenizer: Annotated[Path | None, typer.Option(help="Folder with a Qwen3 tokenizer.json.")] = None,
    json: Json = False,
) -> None:
    """Put many sessions on one proxy, with a scripted engine, and compare all it recorded with the engine's own log.

    States errors, drift, throughput, latency and memory. Exits with 1 on an error or on drift.
    """
    from nemo_polar.cli.bench import sessions as run

    run(out, count=sessions, turns=turns, arrive_seconds=arrive_seconds, tokenizer=tokenizer, as_json=json)


@bench.command("proxy")
@guarded
def bench_proxy(
    out: Annotated[Path, typer.Option(help="Folder for proxy.json, its table, its plots, and the proxies' own files.")] = Path(
        "runs/bench-proxy"
    ),
    quick: Annotated[bool, typer.Option("--quick", help="A minute and a half: ours and the pass-through.")] = False,
    only: Annotated[str, typer.Option(help="Only some windows, by phrases between commas: '1 KB, 32 at a time, whole'.")] = "",
    proxies: Annotated[
        str, typer.Option(help="Which, by commas: passthrough, polar, rllm-model-gateway, agentlightning.")
    ] = "",
    rounds: Annotated[int | None, typer.Option(min=1, help="Over which medians are taken. [default: 3, quick 2]")] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="Folder with a Qwen3 tokenizer.json.")] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Where our time goes in one window (see --only). Needs py-spy.")
    ] = False,
    json: Json = False,
) -> None:
    """Compare the capture proxy with a bare pass-through and with two peers.

    In one run, against an engine that answers at once. Exits with 1 when a target is missed.
    """
    from nemo_polar.cli.bench import proxy as run

    run(out, quick=quick, only=only, proxies=proxies, rounds=rounds, tokenizer=tokenizer, profile=profile, as_json=json)


def main() -> None:
    """The ``polar`` command."""
    app()
