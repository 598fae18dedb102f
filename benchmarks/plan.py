# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What is measured: windows of calls that are all alike, and how long each run of them is. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nemo_polar.errors import ConfigError

NEW_BYTES = 2048
"""New text in every call."""
SHORT, LONG = 20, 220
"""Tokens of a reply; the cost of a streamed token is what 200 more of them cost."""
SESSIONS = 32
BRANCHES = 8
"""Conversations in a session, all from its one history, so that 256 of them can be under way."""
TURNS = 8
"""Real turns in which a long history is built."""
MEMORY_CALLS = 640
MEMORY_CONCURRENCY = 8
MEMORY_STEP = 32
"""Calls between two looks at a proxy's memory."""
MEMORY_SKIP = 128
"""Calls before the first look that counts: allocators and caches fill up."""

_GAP_MS = {(1, 1): 1.0, (1, 32): 8.0, (1, 256): 40.0, (128, 1): 1.0, (128, 32): 8.0, (128, 256): 100.0}
"""Between two tokens of a stream, by history and concurrency: what an engine that samples so many at once might take, and slow
enough that the engine and the client here can follow."""


@dataclass(frozen=True, slots=True)
class Window:
    """Calls that are all alike, in one round, through one proxy."""

    history_kb: int
    concurrency: int
    stream: bool
    calls: int
    tokens: int = SHORT
    gap_ms: float = 0.0
    """Between two tokens of the engine; 0: it answers at once."""

    @property
    def limit(self) -> int:
        """Bytes of history past which a conversation is cut back."""
        return self.history_kb * 1024 * 17 // 16

    @property
    def title(self) -> str:
        how = "streamed" if self.stream else "whole"
        paced = ", engine paced" if self.gap_ms and not self.stream else ""
        return f"{self.history_kb} KB, {self.concurrency} at a time, {how}{paced}, {self.tokens} tokens"


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole run. ``histories`` are those of its windows, and of its memory measurement."""

    rounds: int
    windows: tuple[Window, ...]
    histories: tuple[int, ...] = (1, 128)
    """KB."""
    memory_calls: int = MEMORY_CALLS
    """At each history; 0: memory and journal are not measured."""

    def only(self, phrases: str) -> Plan:
        """The windows whose title has each of the ``phrases`` (between commas). ``memory`` stands for that measurement.

        Raises:
            ConfigError: there is none.
        """
        wanted = [phrase.strip().lower() for phrase in phrases.split(",") if phrase.strip()]
        if not wanted:
            return self
        titles = [phrase for phrase in wanted if phrase != "memory"]
        windows = tuple(w for w in self.windows if titles and all(phrase in w.title.lower() for phrase in titles))
        memory = self.memory_calls if "memory" in wanted else 0
        if not windows and not memory:
            raise ConfigError(f"--only {phrases!r} matches none of: memory; {'; '.join(w.title for w in self.windows)}")
        histories = tuple(h for h in self.histories if memory or any(w.history_kb == h for w in windows))
        return replace(self, windows=windows, histories=histories, memory_calls=memory)


def make_plan(*, quick: bool, rounds: int | None = None) -> Plan:
    """The full run, or one of a minute and a half."""
    calls = {
        1: {1: (60, 60), 32: (256, 192), 256: (768, 512)},
        128: {1: (30, 30), 32: (128, 128), 256: (256, 256)},
    }
    windows: list[Window] = []
    for history, by_concurrency in calls.items():
        for concurrency, (whole, streamed) in by_concurrency.items():
            if quick and history == 128 and concurrency == 256:
                continue
            gap = _GAP_MS[history, concurrency]
            windows.append(Window(history, concurrency, False, whole))
            if (history, concurrency) == (1, 32):
                windows.append(Window(history, concurrency, False, streamed, gap_ms=gap))
            windows.append(Window(history, concurrency, True, streamed, gap_ms=gap))
            if history == 1 and concurrency < 256:
                windows.append(Window(history, concurrency, True, max(concurrency, 6), tokens=LONG, gap_ms=gap))
    return Plan(rounds or (2 if quick else 3), tuple(windows))
