# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""``polar rollout``: compose, check, run, show."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from nemo_polar.cli.boundary import Exit, complain, leave, run_async
from nemo_polar.cli.console import RunView, print_json, stderr, stdout, summary, task_table
from nemo_polar.errors import ConfigError
from nemo_polar.logs import Level, to_stderr
from nemo_polar.rollout.checks import Checked, check
from nemo_polar.rollout.compose import load_settings
from nemo_polar.rollout.run import Finished, Run
from nemo_polar.types import Status


def main(
    recipe: str | None,
    overrides: Sequence[str],
    *,
    overwrite: bool,
    resume: bool,
    rescore: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """See ``polar rollout --help``."""
    refuse_both(overwrite, resume)
    checked = check(load_settings(recipe, overrides))
    if dry_run:
        show_plan(checked, as_json=as_json)
        return
    view = RunView(stderr())
    finished = run_async(watched(Run(checked, overwrite=overwrite, resume=resume, rescore=rescore, say=view.say), view))
    show(finished, as_json=as_json)
    if finished.cancelled:
        complain("the same command with --resume goes on from here")
    leave(verdict(finished))


def refuse_both(overwrite: bool, resume: bool) -> None:
    """Raise ``ConfigError`` when a run is to be both resumed and put aside."""
    if overwrite and resume:
        raise ConfigError("--resume goes on with a run, --overwrite puts it aside; give one of them")


def show_plan(checked: Checked, *, as_json: bool) -> None:
    """What would be run."""
    settings = checked.settings
    planned = len(checked.tasks) * settings.group_size
    if as_json:
        tasks = [loaded.task.id for loaded in checked.tasks]
        print_json({"tasks": tasks, "rollouts": planned, "settings": settings.model_dump(mode="json")})
    else:
        stdout().print(f"{len(checked.tasks)} tasks x {settings.group_size} rollouts = {planned}; all settings are good")


async def watched(run: Run, view: RunView) -> Finished:
    """Run it with progress; the first Ctrl-C (or SIGTERM) ends it cleanly, a second one at once."""
    with to_stderr(level=Level.WARNING), interruptible(run.cancel, view.say):
        async with view.watching(run):
            return await run.run()


@contextmanager
def interruptible(cancel: Callable[[], None], say: Callable[[str], None]) -> Iterator[None]:
    """Call ``cancel`` on the first SIGINT or SIGTERM; after it, SIGINT does what it does by default."""
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)

    def interrupted() -> None:
        say("interrupted: cleaning up (once more to give up at once)")
        for number in signals:
            loop.remove_signal_handler(number)
        cancel()

    for number in signals:
        loop.add_signal_handler(number, interrupted)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


def show(finished: Finished, *, as_json: bool) -> None:
    """The report on stdout."""
    if as_json:
        print_json(finished.report)
        return
    out = stdout()
    out.print(task_table(finished.report["tasks"]))
    out.print()
    for line in [*summary(finished.report), str(finished.folder.report)]:
        out.print(line, markup=False, highlight=False)


def verdict(finished: Finished) -> Exit:
    """The exit code of a finished run."""
    if finished.cancelled:
        return Exit.INTERRUPTED
    failed = any(Status(status).infra for status in finished.report["statuses"])
    return Exit.FINDINGS if failed or finished.report.get("findings") else Exit.OK
