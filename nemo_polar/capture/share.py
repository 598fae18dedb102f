# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A bound on how long the event loop runs without looking at its timers and sockets.

When hundreds of calls, or the tokens of hundreds of streams, arrive at once, all of their work is ready at once, and one pass
of the loop would do all of it while everybody else waits. Work that can pile up so asks for its turn first: once a pass has
taken its share of time, what is left of it goes to the next pass.
"""

from __future__ import annotations

import asyncio
import time

_PASS_SECONDS = 0.003


class LoopShare:
    """One for an event loop. Asking for a turn costs less than a microsecond when there is no crowd."""

    def __init__(self, seconds: float = _PASS_SECONDS) -> None:
        self._seconds = seconds
        self._began: float | None = None
        """When the first turn of this pass was given; None: none was yet."""

    async def turn(self) -> None:
        """Return at once, or in a later pass when this one's share is used up."""
        # Nothing tells of a new pass but the pass itself.
        while self._began is not None and time.monotonic() - self._began > self._seconds:  # noqa: ASYNC110
            await asyncio.sleep(0)
        if self._began is None:
            # Not the loop's own clock, which stands still within a pass.
            self._began = time.monotonic()
            asyncio.get_running_loop().call_soon(self._next_pass)

    def _next_pass(self) -> None:
        self._began = None
