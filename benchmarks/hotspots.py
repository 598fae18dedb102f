# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Where our proxy's CPU time goes under load, by stage and by function.

It is py-spy that looks, from outside and so without slowing the proxy; ``pip install py-spy`` brings it. A sample counts for
the function that was running (a C extension's time for whoever called it) and for one stage: the innermost module of ours on
the stack, and without one the library.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.process import Measured
from nemo_polar.errors import ConfigError

RATE = 500
"""Samples a second."""
SHOWN = 40
_FRAME = re.compile(r"(?P<function>.+) \((?P<file>[^():]+)(:\d+)?\)$")


class Sampler:
    """Takes stacks of one process, of all its threads that run."""

    def __init__(self, target: Path) -> None:
        beside = Path(sys.executable).with_name("py-spy")
        found = str(beside) if beside.exists() else shutil.which("py-spy")
        if found is None:
            raise ConfigError("--profile needs py-spy: pip install py-spy")
        self._program, self._target = found, target

    @asynccontextmanager
    async def watch(self, process: Measured) -> AsyncIterator[None]:
        """Sample until the block is left; then ``stacks`` has them.

        Raises:
            ConfigError: py-spy may not look into other processes here.
        """
        self._target.unlink(missing_ok=True)
        spy = await asyncio.create_subprocess_exec(
            *(self._program, "record", "--pid", str(process.pid), "--rate", str(RATE), "--duration", "unlimited"),
            *("--format", "raw", "--function", "--nonblocking", "--output", str(self._target)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            yield
        finally:
            if spy.returncode is None:
                spy.send_signal(signal.SIGINT)
            _, errors = await spy.communicate()
        if not self._target.exists():
            raise ConfigError(f"py-spy took no samples: {errors.decode('utf-8', 'replace').strip()[-300:]}")

    def stacks(self) -> list[tuple[list[str], int]]:
        """Each stack, outermost frame first, with how often it was seen."""
        out = []
        for line in self._target.read_text(encoding="utf-8", errors="replace").split("\n"):
            frames, _, count = line.rpartition(" ")
            if count.isdigit():  # a name read while it was being overwritten may hold anything, line ends included
                out.append((frames.split(";"), int(count)))
        return out


def shares(stacks: Sequence[tuple[Sequence[str], int]]) -> tuple[Counter[str], Counter[str]]:
    """Samples by stage, and by function."""
    stages: Counter[str] = Counter()
    functions: Counter[str] = Counter()
    for frames, count in stacks:
        stages[stage(frames)] += count
        functions[frames[-1]] += count
    return stages, functions


def stage(frames: Sequence[str]) -> str:
    """What a stack is counted as."""
    files = [found["file"] for found in map(_FRAME.match, reversed(frames)) if found]
    for file in files:
        if file.startswith("nemo_polar/") and "/cli/" not in file:
            return file
    top = next((file.partition("/")[0] for file in files if "/" in file), None)
    return top or "the interpreter"


def page(title: str, cpu_ms: float, calls: int, stages: Counter[str], functions: Counter[str]) -> str:
    """Both tables, in milliseconds a call."""
    lines = [f"# Where the time goes: {title}", "", f"{calls} calls, {cpu_ms:.2f} ms of CPU each; sampled by py-spy.", ""]
    for name, counts in (("stage", stages), ("function (by itself)", functions)):
        total = max(counts.total(), 1)
        lines += [f"| {name} | ms a call | share |", "| --- | ---: | ---: |"]
        for what, count in counts.most_common(SHOWN):
            lines.append(f"| {what} | {cpu_ms * count / total:.3f} | {count / total:.1%} |")
        lines.append("")
    return "\n".join(lines)
