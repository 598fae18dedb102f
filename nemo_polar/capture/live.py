# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A reply while it is being drawn: one sample, any number of readers.

The sample does not depend on who listens. A reader that joins late gets everything from the first delta on; when the last one
has gone, the sample has a grace time to find a new one before it is given up.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

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
        self._waiting: list[asyncio.Future[bool]] = []
        """Readers that wait for news: True, or silence: False."""

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
        waiting, self._waiting = self._waiting, []
        for reader in waiting:
            _tell(reader, True)

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
            if at < len(self.deltas):
                batch = self.deltas[at:] if at else self.deltas[:]
                at += len(batch)
                yield batch
            elif self.done:
                return
            elif not await self._news(silence):
                yield ()

    async def ended(self) -> None:
        """Return once it has finished or failed."""
        while not self.done:
            await self._news(None)

    async def _news(self, silence: float | None) -> bool:
        """Wait for something to happen; False after ``silence`` seconds of nothing. This runs once a token."""
        loop = asyncio.get_running_loop()
        reader: asyncio.Future[bool] = loop.create_future()
        self._waiting.append(reader)
        timer = None if silence is None else loop.call_later(silence, _tell, reader, False)
        try:
            return await reader
        finally:
            if timer is not None:
                timer.cancel()
            if reader in self._waiting:  # silence, or the reader was cancelled
                self._waiting.remove(reader)


def _tell(reader: asyncio.Future[bool], news: bool) -> None:
    if not reader.done():
        reader.set_result(news)
