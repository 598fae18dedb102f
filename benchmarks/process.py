# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Processes started for a benchmark, and what the kernel says of them: CPU time, memory, bytes written. Linux only."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import orjson

from nemo_polar.child import signalled_with_parent
from nemo_polar.errors import EngineUnavailable

_PAGE = os.sysconf("SC_PAGE_SIZE")
_START_SECONDS = 60.0


class Measured:
    """A process with all that it starts. It leads a session of its own, which is how its children are found."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name, self._process, self._log = name, process, log

    @classmethod
    async def start(
        cls, name: str, argv: Sequence[str | Path], log: Path, *, env: Mapping[str, str] | None = None, talks: bool = True
    ) -> Measured:
        """Start it; stderr goes to ``log``. ``talks``: its stdout is read by ``announced``, else it goes to ``log`` as well."""
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                *map(str, argv),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE if talks else errors,
                stderr=errors,
                env={**os.environ, **(env or {})},
                start_new_session=True,
                preexec_fn=partial(signalled_with_parent, signal.SIGTERM),
            )
        return cls(name, process, log)

    async def announced(self) -> dict[str, str]:
        """The JSON object on the first line it prints.

        Raises:
            EngineUnavailable: it printed none within a minute.
        """
        assert self._process.stdout is not None
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), _START_SECONDS)
            return orjson.loads(line)
        except (TimeoutError, orjson.JSONDecodeError) as exc:
            raise EngineUnavailable(f"{self.name} did not start: {self.last_words()}") from exc

    def last_words(self) -> str:
        """The end of what it wrote to stderr, on one line."""
        text = self._log.read_text(encoding="utf-8", errors="replace").strip()
        return f"{text.splitlines()[-1][-300:] if text else 'it said nothing'} (see {self._log})"

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    def signal(self, number: signal.Signals) -> None:
        """To the process itself, not to its children."""
        self._process.send_signal(number)

    async def stop(self) -> None:
        """End it and all that it started."""
        pids = self._pids()
        if self.alive:
            self._process.terminate()
            try:
                await asyncio.wait_for(self._process.wait(), 15)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        for pid in pids:
            if pid != self._process.pid and _session_of(pid) == self._process.pid:
                os.kill(pid, signal.SIGKILL)

    # --- what the kernel says -----------------------------------------------------------------------------------------

    def cpu_seconds(self) -> float:
        """User and system time of all its processes so far."""
        return sum(map(_cpu_ns, self._pids())) / 1e9

    def rss_kb(self) -> float:
        """Resident memory of all its processes."""
        return sum(map(_rss_pages, self._pids())) * _PAGE / 1024

    def written_bytes(self) -> int:
        """Bytes it has caused to be written to disk so far."""
        return sum(map(_written, self._pids()))

    async def settled_cpu(self, limit: float = 3.0) -> float:
        """``cpu_seconds`` once it has come to rest, so that work left over from the last call is counted."""
        deadline = time.monotonic() + limit
        before = self.cpu_seconds()
        while time.monotonic() < deadline:
            await asyncio.sleep(0.02)
            now = self.cpu_seconds()
            if now - before < 0.001:
                return now
            before = now
        return before

    def _pids(self) -> list[int]:
        leader = self._process.pid
        found = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
        return [pid for pid in found if pid == leader or _session_of(pid) == leader]


def _session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1


def _cpu_ns(pid: int) -> int:
    """The process's CPU clock, to the nanosecond and with threads that have ended; see clock_getcpuclockid(3)."""
    try:
        return time.clock_gettime_ns((~pid << 3) | 2)
    except OSError:
        return 0


def _rss_pages(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1])
    except OSError:
        return 0


def _written(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("write_bytes:")), 0)
