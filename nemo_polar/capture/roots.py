# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""First prompts, rendered once for a whole group: its rollouts send the same one, all at about the same time.

Keyed by fingerprint, and only for conversations whose fingerprint decides every id of them: those without an assistant's turn
(whose white space and arguments a fingerprint sees in one canonical form). Bounded in bytes, the longest unused goes first.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from nemo_polar.types import ModelCall, Role, TokenIds


def cacheable(call: ModelCall) -> bool:
    """True when equal fingerprints mean equal ids."""
    return all(message.role is not Role.ASSISTANT for message in call.messages)


class RootCache:
    """Rendered prompts by fingerprint."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.hits = 0
        self.bytes = 0
        self._prompts: OrderedDict[bytes, TokenIds] = OrderedDict()
        self._making: dict[bytes, asyncio.Future[TokenIds]] = {}

    async def get(self, key: bytes, render: Callable[[], Awaitable[TokenIds]]) -> TokenIds:
        """The prompt under ``key``, made by ``render`` unless it is here or being made. int32[P], read-only.

        An error of ``render`` goes to everyone who waits for it, and is not kept.
        """
        found = self._prompts.get(key)
        if found is not None:
            self._prompts.move_to_end(key)
            self.hits += 1
            return found
        making = self._making.get(key)
        if making is None:
            making = self._making[key] = asyncio.ensure_future(self._make(key, render))
            making.add_done_callback(_seen)
        else:
            self.hits += 1
        return await asyncio.shield(making)  # one waiter that is cancelled must not fail the others

    async def _make(self, key: bytes, render: Callable[[], Awaitable[TokenIds]]) -> TokenIds:
        try:
            prompt = await render()
        finally:
            del self._making[key]
        prompt.flags.writeable = False
        if prompt.nbytes <= self.max_bytes:
            self._prompts[key] = prompt
            self.bytes += prompt.nbytes
        while self.bytes > self.max_bytes:
            _, oldest = self._prompts.popitem(last=False)
            self.bytes -= oldest.nbytes
        return prompt


def _seen(making: asyncio.Future[TokenIds]) -> None:
    """Mark a failure as seen: those who waited for it may all have gone."""
    if not making.cancelled():
        making.exception()
