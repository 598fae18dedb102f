# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""One rollout's time, over all its stages and attempts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Deadline:
    """Seconds that run down while the rollout is worked on, and stand still while it waits for its turn.

    Waiting is not counted because it says something about our pools, not about the rollout: a busy machine must not turn into
    timeouts. It is still bounded, since whoever holds the slot has a deadline as well.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = clock() + seconds

    def left(self) -> float:
        """Seconds; negative once it has passed."""
        return self._end - self._clock()

    @contextmanager
    def held(self) -> Iterator[None]:
        """The clock stands still in this block. Not for two blocks at the same time."""
        start = self._clock()
        try:
            yield
        finally:
            self._end += self._clock() - start
