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
    cancelled = await outlasted(task)
    result = task.result()
    if cancelled is not None:
        raise cancelled
    return result


async def outlasted(future: asyncio.Future[_T]) -> asyncio.CancelledError | None:
    """Return once ``future`` is done, however often this task is cancelled meanwhile.

    Returns:
        The cancellation that came meanwhile, for the caller to raise when what depends on the outcome is done.
    """
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError as exc:
            if not future.cancelled():
                cancelled = exc
        except Exception:  # noqa: BLE001 - the future's own, which the caller takes from it
            break
    return cancelled
