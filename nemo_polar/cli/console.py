# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What a person sees of a run: progress while it goes on, a table at its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import orjson
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from nemo_polar.rollout.run import Run

REFRESH_SECONDS = 0.25
LOG_SECONDS = 15.0
"""Between two lines of progress where there is no terminal."""


def stderr() -> Console:
    """For what is not the result."""
    return Console(stderr=True, soft_wrap=True)


def stdout() -> Console:
    """For the result."""
    return Console(soft_wrap=True)


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    print(orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS).decode())


class RunView:
    """Shows a run on stderr: a bar with live counts on a terminal, a line now and then elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._line = "starting"
        self._said_at = 0.0
        self._shown = ""

    def say(self, line: str) -> None:
        """What is being done before or after the rollouts."""
        self._line = line
        title = line.partition(":")[0]
        if not self._console.is_terminal and (title != self._shown or time.monotonic() - self._said_at > LOG_SECONDS):
            self._shown, self._said_at = title, time.monotonic()
            self._console.print(line, markup=False, highlight=False)

    @asynccontextmanager
    async def watching(self, run: Run) -> AsyncIterator[None]:
        """Keep showing ``run`` in this block."""
        task = asyncio.create_task(self._on_terminal(run) if self._console.is_terminal else self._in_a_log(run))
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _on_terminal(self, run: Run) -> None:
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self._console, transient=True) as bar:
            shown = bar.add_task(self._line, total=None)
            while True:
                bar.update(shown, **self._state(run))
                await asyncio.sleep(REFRESH_SECONDS)

    async def _in_a_log(self, run: Run) -> None:
        while True:
            await asyncio.sleep(LOG_SECONDS)
            state = self._state(run)
            if state["total"] is not None and state["completed"] < state["total"]:
                self._console.print(f"{state['completed']}/{state['total']}  {state['description']}", highlight=False)

    def _state(self, run: Run) -> dict[str, Any]:
        if run.pipeline is None:
            return {"description": escape(self._line), "total": None}
        progress = run.pipeline.progress
        if progress.done == progress.total:
            return {"description": escape(self._line), "completed": progress.done, "total": progress.total}
        active = " ".join(f"{name} {count}" for name, count in run.pipeline.active().items() if count)
        ended = " ".join(f"{status.value} {count}" for status, count in sorted(progress.statuses.items()))
        description = " | ".join(part for part in (active, ended) if part)
        return {"description": escape(description), "completed": progress.done, "total": progress.total}


def task_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """One line a task."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("task", "n", "statuses", "reward", "min", "max", "turns", "tokens"):
        table.add_column(name, justify="left" if name in ("task", "statuses") else "right")
    for row in rows:
        statuses = ", ".join(f"{count} {status}" for status, count in row["statuses"].items())
        rewards = [number(row[key]) for key in ("reward_mean", "reward_min", "reward_max")]
        table.add_row(
            escape(row["task"]), str(row["rollouts"]), statuses, *rewards, str(row["turns"]), str(row["sampled_tokens"])
        )
    return table


def number(value: float | None) -> str:
    """A reward for people; a dash where there is none."""
    return "-" if value is None else f"{value:.3f}".rstrip("0").rstrip(".")


def summary(report: Mapping[str, Any]) -> list[str]:
    """A report in a few lines."""
    reward = number(report["reward_mean"])
    lines = [f"{report['rollouts']} of {report['rollouts_planned']} rollouts in {report['wall_s']:.0f} s, mean reward {reward}"]
    if report["audited"]:
        masked = ", ".join(f"{count} {reason}" for reason, count in report["masked_tokens"].items()) or "none"
        lines.append(
            f"{report['turns']} turns ({report['bridged_turns']} bridged), {report['traces']} traces, "
            f"{report['sampled_tokens']} tokens sampled, {report['trained_tokens']} trained, masked: {masked}"
        )
        diff = report["max_logprob_diff"]
        scored = "not re-scored" if diff is None else f"largest log-probability difference {diff:.2g}"
        lines.append(f"audit: drift {report['drift_tokens']} tokens, {len(report['findings'])} findings, {scored}")
    else:
        lines.append("not audited: the engine wrote no log of its own (engine.relay=true makes one)")
    for status, entry in report["errors"].items():
        lines.append(f"{entry['count']} {status}, the first: {entry['first']}")
    for group in report["group_prompt_mismatches"]:
        lines.append(
            f"warning: the rollouts of group {group} did not start from the same prompt; a trainer would not group them"
        )
        parted = next((d for d in report.get("group_prompt_differences", ()) if d["group_id"] == group), None)
        if parted is not None:
            one, other = parted["rollouts"]
            lines.append(f"  they part at {parted['where']}: {parted['before']!r} in {one}, {parted['now']!r} in {other}")
    if report["rollouts_without_calls"]:
        lines.append(f"warning: {report['rollouts_without_calls']} rollouts made no call to the model")
    return lines
