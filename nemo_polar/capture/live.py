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
        self.prompt_tokens = 0
        """Of its prompt, once that is known."""
        self.deltas: list[Delta] = []
        self.reply: Reply | None = None
        self.error: CallError | None = None
        self.turns: list[Turn] = []
        """Recorded so far: one, or several where the sample was resumed."""
        self.readers = 0
        self.given_up = False
        """Nobody came back for it in time: it will end with an error once what was drawn is recorded."""
        self.task: asyncio.Task[None] | None = None
        self._grace = grace
        self._expiry: asyncio.TimerHandle | None = None
        self._waiting: list[asyncio.Future[bool]] = []
        """Readers that wait for news of any kind."""
        self._ending: list[asyncio.Future[bool]] = []
        """Those that wait for the end."""

    @property
    def done(self) -> bool:
        return self.reply is not None or self.error is not None

    # --- the side that draws ------------------------------------------------------------------------------------------

    def publish(self, deltas: Sequence[Delta]) -> None:
        if deltas:
            self.deltas.extend(deltas)
            self._wake(self._waiting)

    def finish(self, reply: Reply) -> None:
        self.reply = reply
        self._wake(self._waiting, self._ending)

    def fail(self, error: CallError) -> None:
        if not self.done:
            self.error = error
            self._wake(self._waiting, self._ending)

    @staticmethod
    def _wake(*lists: list[asyncio.Future[bool]]) -> None:
        for waiting in lists:
            for reader in waiting:
                _tell(reader, True)
            waiting.clear()

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
            self.given_up = True
            self.task.cancel()

    async def follow(self, silence: float, interval: float = 0.0) -> AsyncGenerator[Sequence[Delta], None]:
        """Batches of deltas, from the first. An empty batch means ``silence`` seconds without news. Ends when the reply has.

        ``interval``: seconds between two batches at least; what comes sooner goes out together. The first and last do not wait.
        """
        loop = asyncio.get_running_loop()
        at, ready = 0, 0.0
        while True:
            if at < len(self.deltas):
                if not self.done and (rest := ready - loop.time()) > 0:
                    await self._wait(self._ending, rest)
                batch = self.deltas[at:]
                at += len(batch)
                ready = loop.time() + interval
                yield batch
            elif self.done:
                return
            elif not await self._wait(self._waiting, silence):
                yield ()

    async def ended(self) -> None:
        """Return once it has finished or failed."""
        while not self.done:
            await self._wait(self._ending, None)

    async def _wait(self, waiting: list[asyncio.Future[bool]], seconds: float | None) -> bool:
        """Wait to be told; False when nobody did within ``seconds``. It runs once a token, so it makes no task and no event."""
        loop = asyncio.get_running_loop()
        reader: asyncio.Future[bool] = loop.create_future()
        waiting.append(reader)
        timer = None if seconds is None else loop.call_later(seconds, _tell, reader, False)
        try:
            return await reader
        finally:
            if timer is not None:
                timer.cancel()
            if reader in waiting:  # silence, or the reader was cancelled
                waiting.remove(reader)


def _tell(reader: asyncio.Future[bool], news: bool) -> None:
    if not reader.done():
        reader.set_result(news)
