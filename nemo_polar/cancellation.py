# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Work that a cancellation must not cut in half: closing what was opened, writing down what happened."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

_T = TypeVar("_T")


async def uninterrupted(work: Awaitable[_T]) -> _T:
    """Finish ``work`` however often this task is cancelled meanwhile; the cancellation goes on after it.

    An error of the work itself goes before the cancellation: that something could not be cleaned up or recorded must be known.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as exc:
            cancelled = exc
    result = task.result()
    if cancelled is not None:
        raise cancelled
    return result
