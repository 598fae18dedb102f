# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""How late an event loop is, measured from inside it: a task that asks to be woken every 5 ms notes how much later it was.

SIGUSR1 begins a series, SIGUSR2 ends it and writes it to the file named by ``POLAR_BENCH_LAG`` as a JSON list of milliseconds.
Between two series nothing runs.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import orjson

VARIABLE = "POLAR_BENCH_LAG"
EVERY = 0.005
"""Seconds."""


class LagSampler:
    """Lives in the loop that it is made in."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._late: list[float] = []
        self._task: asyncio.Task[None] | None = None
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, self._begin)
        loop.add_signal_handler(signal.SIGUSR2, self._end)

    def _begin(self) -> None:
        self._late = []
        self._task = self._task or asyncio.create_task(self._run())

    def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
        draft = self._target.with_suffix(".draft")
        draft.write_bytes(orjson.dumps(self._late))
        draft.rename(self._target)

    async def _run(self) -> None:
        while True:
            # Not the loop's own clock, which stands still during one turn of it.
            due = time.monotonic() + EVERY
            await asyncio.sleep(EVERY)
            self._late.append(max(time.monotonic() - due, 0.0) * 1000)


def install() -> None:
    """Begin to listen for the signals, where a benchmark asks for it. Called inside of the loop."""
    if target := os.environ.get(VARIABLE):
        _kept.append(LagSampler(Path(target)))


_kept: list[LagSampler] = []
