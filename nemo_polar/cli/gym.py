# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""``polar gym``: what each of its commands takes. What they do is in ``gym_run`` and ``gym_data``, imported when called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nemo_polar.cli.boundary import guarded

app = typer.Typer(
    help="NeMo Gym: Polar as an environment of it, and its datasets.", no_args_is_help=True, rich_markup_mode=None
)

Where = Annotated[
    str | None,
    typer.Option("--gym", "--python", metavar="PATH", help="The environment with NeMo Gym. [default: this one]"),
]
Print = Annotated[bool, typer.Option("--print", help="Print Gym's own command, and do not run it.")]
Words = Annotated[list[str] | None, typer.Argument(metavar="[+KEY=VALUE]...", help="Overrides for Gym, as Hydra writes them.")]
ModelType = Annotated[str, typer.Option(metavar="NAME", help="Gym's model server.")]
ModelName = Annotated[str | None, typer.Option("--model", metavar="NAME", help="The model, as its engine serves it.")]
ModelUrl = Annotated[str | None, typer.Option(metavar="URL", help="The engine, with /v1. [default: Gym's policy_base_url]")]
ModelKey = Annotated[
    str,
    typer.Option(metavar="KEY", envvar="POLAR_GYM_MODEL_KEY", show_default=False, help="The engine's key, if it wants one."),
]


@app.callback()
def _gym() -> None:
    pass


@app.command()
@guarded
def env(gym: Where = None, model_type: ModelType = "vllm_model") -> None:
    """Print what makes Gym's own commands work with Polar.

    For example: eval "$(polar gym env)", then gym list environments, and gym env start ... $POLAR_GYM_FLAGS.
    """
    from nemo_polar.cli.gym_run import env_command

    env_command(gym, model_type)


@app.command()
@guarded
def link(
    gym: Where = None, remove: Annotated[bool, typer.Option("--remove", help="Take the links away again.")] = False
) -> None:
    """Put Polar among Gym's own environments, by links in its installation.

    Gym 0.4.0 lists only what lies there. A newer one needs no links.
    """
    from nemo_polar.cli.gym_run import link_command

    link_command(gym, remove=remove)


@app.command("list")
@guarded
def list_environments(words: Words = None, gym: Where = None, print_only: Print = False) -> None:
    """List Gym's environments, Polar among them: gym list environments."""
    from nemo_polar.cli.gym_run import list_command

    list_command(gym, words or [], print_only=print_only)


@app.command()
@guarded
def validate(
    words: Words = None,
    gym: Where = None,
    model_type: ModelType = "vllm_model",
    model: ModelName = None,
    model_url: ModelUrl = None,
    model_api_key: ModelKey = "none",
    print_only: Print = False,
) -> None:
    """Check Polar's configuration without starting anything: gym env validate."""
    from nemo_polar.cli.gym_run import validate_command

    validate_command(gym, model_type, model, model_url, model_api_key, words or [], print_only=print_only)


@app.command()
@guarded
def start(
    words: Words = None,
    model_url: ModelUrl = None,
    model: ModelName = None,
    engine_url: Annotated[
        str | None,
        typer.Option(
            metavar="auto|URL|none", help="A vLLM that takes token ids; auto: the one behind Gym; none: only Gym's server."
        ),
    ] = None,
    harness: Annotated[str | None, typer.Option(metavar="NAME", help="Which, as polar harness list names them.")] = None,
    tokenizer: Annotated[Path | None, typer.Option(metavar="FOLDER", help="The policy's tokenizer and chat template.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", "-s", metavar="KEY=VALUE", help="A setting of the agent; may be repeated.")
    ] = None,
    polar: Annotated[
        list[str] | None,
        typer.Option("--polar", "-p", metavar="KEY=VALUE", help="A setting of the Polar run, as polar rollout takes them."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Where the agent puts its run folder.")] = Path("runs"),
    model_type: ModelType = "vllm_model",
    model_api_key: ModelKey = "none",
    gym: Where = None,
    print_only: Print = False,
) -> None:
    """Start Gym's servers with Polar's environment, until Ctrl-C: gym env start.

        polar gym start --model-url http://127.0.0.1:8000/v1 --model NAME --tokenizer FOLDER --harness pi

    Ctrl-C or SIGTERM ends them all. What Gym leaves behind is ended as well.
    """
    from nemo_polar.cli.gym_run import start_command

    start_command(
        gym,
        words or [],
        model_type=model_type,
        model=model,
        model_url=model_url,
        model_api_key=model_api_key,
        engine_url=engine_url,
        harness=harness,
        tokenizer=tokenizer,
        settings=settings or [],
        overrides=polar or [],
        out=out,
        print_only=print_only,
    )


@app.command()
@guarded
def collect(
    source: Annotated[Path, typer.Argument(metavar="INPUT", help="A dataset for Gym, as polar gym data writes them.")],
    target: Annotated[Path, typer.Argument(metavar="OUTPUT", help="The JSONL file for the rollouts.")],
    words: Words = None,
    repeats: Annotated[int | None, typer.Option("--num-repeats", min=1, help="Rollouts of each row.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="The first so many rows.")] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Rows under way at a time, as Gym sends them.")] = None,
    agent: Annotated[str, typer.Option(metavar="NAME", help="The agent's name in Gym's configuration.")] = "polar_agent",
    gym: Where = None,
    print_only: Print = False,
) -> None:
    """Collect rollouts from the servers that run: gym eval run --no-serve.

    For example: polar gym collect tasks.jsonl rollouts.jsonl --num-repeats 8
    """
    from nemo_polar.cli.gym_run import collect_command

    options = {"agent": agent, "limit": limit, "num-repeats": repeats, "concurrency": concurrency}
    collect_command(gym, source, target, options, words or [], print_only=print_only)


@app.command()
@guarded
def test(words: Words = None, gym: Where = None, print_only: Print = False) -> None:
    """Run Gym's own tests of Polar's servers, and its validation of their data: gym env test.

    Exits with 1 when one of them fails.
    """
    from nemo_polar.cli.gym_run import test_command

    test_command(gym, words or [], print_only=print_only)


@app.command()
@guarded
def data(
    sources: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Task files; with --back, Gym datasets.")],
    target: Annotated[Path, typer.Option("--output", "-o", metavar="FILE.jsonl", help="The file to write.")],
    back: Annotated[bool, typer.Option("--back", help="From a Gym dataset (or collected rollouts) to a task file.")] = False,
    agent: Annotated[str, typer.Option(metavar="NAME", help="The agent's name in Gym's configuration.")] = "polar_agent",
    verifier: Annotated[
        str | None, typer.Option(metavar="YAML", help="With --back: the verifier block for rows that are no Polar tasks.")
    ] = None,
) -> None:
    """Turn task files into a dataset for Gym, or back.

        polar gym data tasks.yaml -o rows.jsonl

        polar gym data --back rows.jsonl -o tasks.jsonl

    A row holds the whole task; files that it names are written into it. The file appears whole or not at all.
    """
    from nemo_polar.cli.gym_data import back_command, data_command

    if back:
        back_command(sources, target, verifier)
    else:
        data_command(sources, target, agent)
