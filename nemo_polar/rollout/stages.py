# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The pools a rollout passes through: prepare, run, verify, build. Each bounds how many rollouts are in it at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field

from nemo_polar.rollout.deadline import Deadline
from nemo_polar.settings import StageSettings


@dataclass(slots=True)
class Stage:
    """One pool."""

    name: str
    width: int
    active: int = 0
    waiting: int = 0
    _slots: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.width)

    @asynccontextmanager
    async def slot(self, deadline: Deadline | None = None) -> AsyncIterator[None]:
        """A place in the pool, first come first served; ``deadline`` stands still until there is one."""
        self.waiting += 1
        try:
            with deadline.held() if deadline is not None else nullcontext():
                await self._slots.acquire()
        finally:
            self.waiting -= 1
        self.active += 1
        try:
            yield
        finally:
            self.active -= 1
            self._slots.release()


class Stages:
    """The four pools of one run. Nobody holds a slot of one while waiting for a slot of another, so they cannot deadlock."""

    def __init__(self, settings: StageSettings) -> None:
        self.prepare = Stage("prepare", settings.prepare)
        self.run = Stage("run", settings.run)
        self.verify = Stage("verify", settings.verify)
        self.build = Stage("build", settings.build)

    def active(self) -> dict[str, int]:
        """Rollouts in each stage now."""
        return {stage.name: stage.active for stage in (self.prepare, self.run, self.verify, self.build)}
