# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Sessions: who may call, for how long, and the tree of what each has been answered.

A session sees only itself: its secret is 256 random bits, compared in constant time by looking up its digest, and expires.
How long a session has been open or idle is measured on a clock that nobody sets; dates and records are of the wall clock.
Nothing here does I/O.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date
from hashlib import sha256
from typing import Any

from nemo_polar.capture.limits import Limits
from nemo_polar.capture.live import LiveReply
from nemo_polar.capture.rewrites import DateRewrite, today
from nemo_polar.capture.stored import StoredReplies
from nemo_polar.capture.totals import Totals
from nemo_polar.errors import Overloaded, PolarError, Unauthorized
from nemo_polar.settings import SamplingPolicy
from nemo_polar.tokens.tree import ConversationTree
from nemo_polar.types import Turn

_GROUP_DATES = 65_536
"""Groups whose date is remembered, the longest unused forgotten first: many more than can have sessions open."""


@dataclass(frozen=True, slots=True)
class SessionHandle:
    """What whoever opened a session is told. The secret is not kept anywhere else in the clear."""

    id: str
    secret: str
    expires_at: float
    """Unix seconds."""


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A closed session."""

    id: str
    turns: list[Turn]
    calls: int
    """Requests that reached the engine or were answered from the record."""
    ambiguous: int
    infra_error: str | None
    """Set when an engine or journal failure reached the harness."""
    budget_exhausted: str | None
    """``turns`` or ``tokens``."""
    counters: dict[str, int]


@dataclass(slots=True)
class Session:
    """One rollout attempt, as the proxy sees it."""

    id: str
    rollout_id: str
    task_id: str
    group_id: str
    attempt: int
    created_at: float
    """Unix seconds, as is ``expires_at``: for records and people. What counts is ``ends_at``."""
    expires_at: float
    ends_at: float
    """When its secret expires, on the monotonic clock of the store."""
    key: bytes
    """SHA-256 of the secret."""
    max_turns: int | None
    max_tokens: int | None
    sampling: SamplingPolicy | None
    """What is drawn for it; None: what the proxy draws for all."""
    date: DateRewrite
    metadata: dict[str, Any]
    tree: ConversationTree = field(default_factory=ConversationTree)
    live: list[LiveReply] = field(default_factory=list)
    """Replies being drawn, or drawn and still being read."""
    stored: StoredReplies = field(default_factory=StoredReplies)
    counters: Counter[str] = field(default_factory=Counter)
    failures: dict[bytes, str] = field(default_factory=dict)
    """Engine and journal failures by request, dropped again when a retry of the request succeeds."""
    budget_exhausted: str | None = None
    spent: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a budget is used up: the rollout may as well end."""
    last_active: float = 0.0
    """When it was last seen with a call, on the same clock."""
    closed: bool = False
    """Its secret is gone for good; a call that was still arriving is refused."""
    recording: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held from choosing a turn's id until the turn is in the journal and in the tree."""

    @property
    def infra_error(self) -> str | None:
        return next(iter(self.failures.values()), None)

    @property
    def sampled_tokens(self) -> int:
        return self.counters["sampled_tokens"]

    def written_dates(self, now: float) -> tuple[date, ...]:
        """The dates a harness of this session may have written."""
        return (today(self.created_at), today(now))

    @property
    def drawing(self) -> int:
        """Replies being drawn. One that its client has, and that is only being noted as delivered, is not among them."""
        return sum(not live.done for live in self.live)

    def forget_if_over(self, live: LiveReply) -> None:
        """Drop a reply that has ended and that nobody reads any more."""
        if live.done and not live.readers and live in self.live:
            self.live.remove(live)

    def check_open(self) -> None:
        """Refuse a call that was still arriving when the session was closed.

        Raises:
            Unauthorized: it was.
        """
        if self.closed:
            raise wrong_secret()

    def check_budget(self, limits: Limits) -> None:
        """Refuse a call when the session's turns or tokens are used up.

        Raises:
            Overloaded: they are; the code is ``budget_exhausted``.
        """
        if self.max_turns is not None and self.counters["replies"] + self.drawing >= self.max_turns:
            self.budget_exhausted, setting, limit = "turns", "max_turns", self.max_turns
        elif self.max_tokens is not None and self.sampled_tokens >= self.max_tokens:
            self.budget_exhausted, setting, limit = "tokens", "max_tokens", self.max_tokens
        else:
            return
        self.spent.set()
        what = f"This session's budget of {limit} {self.budget_exhausted} is used up ({setting})."
        raise limits.refuse(setting, Overloaded(what, code="budget_exhausted"))

    def record(self) -> SessionRecord:
        return SessionRecord(
            self.id,
            list(self.tree.turns),
            self.counters["calls"],
            self.counters["ambiguous"],
            self.infra_error,
            self.budget_exhausted,
            dict(self.counters),
        )


def wrong_secret() -> Unauthorized:
    """The one answer to every secret that opens nothing."""
    return Unauthorized("Incorrect API key provided. Use the key of an open Polar session.", code="invalid_api_key")


def _digest(secret: str) -> bytes:
    return sha256(secret.encode("utf-8", "surrogatepass")).digest()


class SessionStore:
    """All open sessions, by id and by secret."""

    def __init__(
        self,
        limit: int,
        limits: Limits,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.totals = Totals()
        self._limit = limit
        self._limits = limits
        self._clock = clock
        self._monotonic = monotonic
        self._by_id: dict[str, Session] = {}
        self._by_key: dict[bytes, Session] = {}
        self._group_dates: OrderedDict[str, date] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._by_id.values()))

    def open(
        self,
        *,
        rollout_id: str,
        task_id: str,
        group_id: str,
        attempt: int,
        seconds: float,
        max_turns: int | None,
        max_tokens: int | None,
        sampling: SamplingPolicy | None,
        metadata: dict[str, Any],
    ) -> tuple[Session, SessionHandle]:
        """A new session and its handle.

        Raises:
            Overloaded: the bound on sessions is reached.
        """
        if self.full:
            what = f"{self._limit} sessions are open already; close some or raise capture.max_sessions."
            raise self._limits.refuse("max_sessions", Overloaded(what, retry_after=1.0))
        now, monotonic = self._clock(), self._monotonic()
        secret = "sk-polar-" + secrets.token_urlsafe(32)
        session = Session(
            id=secrets.token_hex(12),
            rollout_id=rollout_id,
            task_id=task_id,
            group_id=group_id,
            attempt=attempt,
            created_at=now,
            expires_at=now + seconds,
            ends_at=monotonic + seconds,
            key=_digest(secret),
            max_turns=max_turns,
            max_tokens=max_tokens,
            sampling=sampling,
            date=DateRewrite(self.pin_date(group_id, today(now))),
            metadata=metadata,
            last_active=monotonic,
        )
        self._by_id[session.id] = session
        self._by_key[session.key] = session
        self.totals.opened += 1
        return session, SessionHandle(session.id, secret, session.expires_at)

    def authenticate(self, secret: str | None) -> Session:
        """The session whose secret this is.

        Raises:
            Unauthorized: none has it, or it has expired; the two cannot be told apart.
        """
        session = self._by_key.get(_digest(secret)) if secret else None
        now = self._monotonic()
        if session is None or session.ends_at <= now:
            raise wrong_secret()
        session.last_active = now
        return session

    @property
    def full(self) -> bool:
        return len(self._by_id) >= self._limit

    def pin_date(self, group_id: str, day: date) -> date:
        """Pin the date that a group's prompts show, unless it has one already: for a run that is taken up again later.

        Returns:
            The group's date.
        """
        pinned = self._group_dates.setdefault(group_id, day)
        self._group_dates.move_to_end(group_id)
        if len(self._group_dates) > _GROUP_DATES:
            self._group_dates.popitem(last=False)
        return pinned

    def over(self, idle_seconds: float | None) -> list[tuple[Session, str]]:
        """Sessions without a call under way that have expired, or had none for ``idle_seconds``; and which: ``expired`` or
        ``idle``."""
        now = self._monotonic()
        found: list[tuple[Session, str]] = []
        for session in self._by_id.values():
            if session.closed:
                continue  # whoever closes it waits for its calls
            if session.live:
                session.last_active = now
            elif session.ends_at <= now:
                found.append((session, "expired"))
            elif idle_seconds is not None and now - session.last_active >= idle_seconds:
                found.append((session, "idle"))
        return found

    def get(self, session_id: str) -> Session:
        """An open session.

        Raises:
            PolarError: there is none of that id.
        """
        try:
            return self._by_id[session_id]
        except KeyError:
            raise PolarError(f"no open session {session_id!r}") from None

    def revoke(self, session_id: str) -> Session:
        """Take a session's secret away; calls under way go on."""
        session = self.get(session_id)
        session.closed = True
        self._by_key.pop(session.key, None)
        return session

    def idle_seconds(self, session: Session) -> float:
        """How long it has been without a call under way."""
        return 0.0 if session.live else max(0.0, self._monotonic() - session.last_active)

    def remove(self, session_id: str, status: str) -> None:
        """Forget a session that ended in the way ``status``."""
        session = self._by_id.pop(session_id, None)
        if session is not None:
            self.totals.end(session.counters, status)
            session.closed = True
            self._by_key.pop(session.key, None)
