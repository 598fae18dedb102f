# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A reply while it is being drawn: one sample, any number of readers.

The sample does not depend on who listens. A reader that joins late gets everything from the first delta on; when the last one
has gone, the sample has a grace time to find a new one before it is given up.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress

from nemo_polar.errors import CallError
from nemo_polar.types import Delta, Reply, Turn


class LiveReply:
    """The deltas so far, and how it ended."""

    def __init__(self, reply_id: str, created: int, request: bytes, *, grace: float) -> None:
        self.id = reply_id
        self.created = created
        self.request = request
        """Fingerprint of the request it answers."""
        self.deltas: list[Delta] = []
        self.reply: Reply | None = None
        self.error: CallError | None = None
        self.turns: list[Turn] = []
        """Recorded so far: one, or several where the sample was resumed."""
        self.readers = 0
        self.task: asyncio.Task[None] | None = None
        self._grace = grace
        self._expiry: asyncio.TimerHandle | None = None
        self._news = asyncio.Event()

    @property
    def done(self) -> bool:
        return self.reply is not None or self.error is not None

    # --- the side that draws ------------------------------------------------------------------------------------------

    def publish(self, deltas: Sequence[Delta]) -> None:
        if deltas:
            self.deltas.extend(deltas)
            self._wake()

    def finish(self, reply: Reply) -> None:
        self.reply = reply
        self._wake()

    def fail(self, error: CallError) -> None:
        if not self.done:
            self.error = error
            self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    # --- the side that reads ------------------------------------------------------------------------------------------

    def attach(self) -> None:
        self.readers += 1
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    def detach(self) -> None:
        self.readers -= 1
        if self.readers == 0 and not self.done:
            self._expiry = asyncio.get_running_loop().call_later(self._grace, self.abort)

    def abort(self) -> None:
        """Give the sample up; what was drawn is recorded."""
        if self.task is not None and not self.task.done():
            self.task.cancel()

    async def follow(self, silence: float) -> AsyncGenerator[Sequence[Delta], None]:
        """Batches of deltas, from the first. An empty batch means ``silence`` seconds without news. Ends when the reply has."""
        at = 0
        while True:
            news = self._news
            if at < len(self.deltas):
                batch = self.deltas[at:]
                at = len(self.deltas)
                yield batch
            elif self.done:
                return
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(silence):
                        await news.wait()
                    continue
                yield ()

    async def ended(self) -> None:
        """Return once it has finished or failed."""
        while not self.done:
            await self._news.wait()
