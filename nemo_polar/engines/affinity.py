# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Which replica a session's calls go to. Plain data: it knows nothing of health or load.

The table is bounded: what was not used for longest is forgotten first, so that sessions that have ended leave by themselves. A
session that is forgotten too early loses its prefix cache and nothing else.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

_R = TypeVar("_R", bound=Hashable)


class Affinity(Generic[_R]):
    """Session id to replica, of the ``limit`` sessions used last."""

    def __init__(self, limit: int):
        self._limit = limit
        self._homes: OrderedDict[str, _R] = OrderedDict()
        self._sessions: Counter[_R] = Counter()

    def __len__(self) -> int:
        return len(self._homes)

    def find(self, session_id: str) -> _R | None:
        """Where the session's last call went."""
        if session_id in self._homes:
            self._homes.move_to_end(session_id)
        return self._homes.get(session_id)

    def put(self, session_id: str, replica: _R) -> None:
        """Its calls go to ``replica`` from now on."""
        self.forget(session_id)
        self._homes[session_id] = replica
        self._sessions[replica] += 1
        if len(self._homes) > self._limit:
            self.forget(next(iter(self._homes)))

    def forget(self, session_id: str) -> None:
        """Its next call is placed afresh."""
        replica = self._homes.pop(session_id, None)
        if replica is not None:
            self._sessions[replica] -= 1

    def sessions(self, replica: _R) -> int:
        """How many sessions are at home there."""
        return self._sessions[replica]
