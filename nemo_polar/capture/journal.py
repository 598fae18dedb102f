# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The journal: sessions, calls, turns and results on disk before anyone is told of them (rule 5).

SQLite in WAL mode, written by one thread with group commit: whatever has queued up while one transaction committed goes into
the next, and only then are its callers woken. A write that the disk refuses fails the callers of that transaction with
``JournalError``; the thread lives on and serves again when the disk does.

Durability ``process`` survives ``kill -9`` of this process at any moment; ``power`` also survives the machine losing power, for
one fsync a transaction. The journal never reads back what it wrote: ``JournalReader`` does.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from nemo_polar.capture.histogram import ROWS, Histogram
from nemo_polar.errors import JournalError
from nemo_polar.trajectory.codec import dumps
from nemo_polar.trajectory.records import (
    SCHEMA,
    SCHEMA_VERSION,
    TURN_STATUS,
    CallRow,
    JournalReader,
    Request,
    ResultRow,
    SessionRow,
    check_schema,
    turn_to_params,
)
from nemo_polar.types import Kind, Turn

__all__ = ["CallRow", "Journal", "JournalReader", "Request", "ResultRow", "SessionRow"]

log = logging.getLogger(__name__)

_MAX_BATCH = 512
"""Writes in one transaction: bounds how long the first of them waits."""
_PROBE_SECONDS = 0.5
"""How often a journal that could not be written tries whether the disk serves again."""
_PROBE_BYTES = 64 * 1024
"""What a probe writes: about one batch, so that health does not flicker on a disk with a few bytes left."""
_CHUNKS = (64, 16, 4, 1)
"""Rows in one INSERT. Few sizes, so that each is compiled once; large ones, as every statement lets go of the interpreter's
lock and, under load, waits to have it back."""
_BUSY = 4
"""Writes in the last transaction from which on the next one waits a little for more: a transaction costs several rows."""
_COMPANY_SECONDS = 0.003
_LAZY_SECONDS = 0.02
"""How long a row nobody waits for may wait for company."""


@dataclass(frozen=True, slots=True)
class _Row:
    """A row to insert."""

    table: str
    params: tuple[Any, ...]
    replace: bool = False
    """A row with the same key gives way."""

    @property
    def verb(self) -> str:
        return f"INSERT {'OR REPLACE ' if self.replace else ''}INTO {self.table}"


@dataclass(frozen=True, slots=True)
class _Update:
    """A change to a row that must be there."""

    sql: str
    params: tuple[Any, ...]
    missing: str
    """What to say when it is not."""


@dataclass(frozen=True, slots=True)
class _Write:
    """One row or change, and who waits for it; a row that nobody waits for has no future."""

    what: _Row | _Update
    future: asyncio.Future[None] | None
    loop: asyncio.AbstractEventLoop


class Journal:
    """The one writer of a journal file. Its methods are called from event loops; all of them raise ``JournalError``.

    Each coroutine returns, and each future is done, once its row is committed. Cancelling one does not undo the write.
    """

    def __init__(self, path: Path, *, durability: Literal["process", "power"] = "process") -> None:
        self.path = Path(path)
        self.durability = durability
        self.last_error: str | None = None
        """What the disk said last time it refused a write; kept after it has recovered."""
        self.errors = 0
        """Transactions that it refused."""
        self.batch_rows, self.commit_seconds = Histogram(ROWS), Histogram()
        """Of transactions; only the writer's thread observes."""
        self._queue: queue.SimpleQueue[_Write | None] = queue.SimpleQueue()
        """None: write what came before, then stop."""
        self._lazy: list[_Write] = []
        self._lock = threading.Lock()
        self._db: sqlite3.Connection | None = None
        self._writable = False
        self._accepting = False
        self._thread: threading.Thread | None = None

    @property
    def healthy(self) -> bool:
        """True when the last transaction was committed and the writer runs."""
        return self._accepting and self._writable and self._thread is not None and self._thread.is_alive()

    @property
    def queued(self) -> int:
        """Rows that wait to be written."""
        return self._queue.qsize() + len(self._lazy)

    def start(self) -> None:
        """Create or open the file, taking over what a killed process left in its write-ahead log, and start the writer.

        Raises:
            JournalError: the file cannot be written, is no journal, or has a schema this version does not know.
        """
        if self._thread is not None:
            raise JournalError(f"{self.path}: the journal has been started already")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._db = self._open()
        except (sqlite3.Error, OSError) as exc:
            raise JournalError(f"{self.path} cannot be opened for writing: {exc}") from exc
        self._writable = self._accepting = True
        self._thread = threading.Thread(target=self._run, name="polar-journal", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Commit what is queued, fold the write-ahead log into the file and close it. Safe to call twice."""
        thread, self._accepting = self._thread, False
        if thread is None:
            return
        self._put()
        self._queue.put(None)
        await asyncio.to_thread(thread.join)

    # --- rows ---------------------------------------------------------------------------------------------------------

    async def add_session(self, row: SessionRow) -> None:
        """Record a session. Raises ``JournalError`` when its id is taken."""
        params = (row.id, row.rollout_id, row.task_id, row.group_id, row.attempt, row.created_at, row.model, row.codec)
        rest = (row.codec_fingerprint, dumps(row.metadata), row.closed_at, row.status)
        await self._submit(_Row("sessions", (*params, *rest)))

    async def close_session(self, session_id: str, at: float, status: str) -> None:
        """Record that a session ended at ``at`` (Unix seconds)."""
        sql = "UPDATE sessions SET closed_at = ?, status = ? WHERE id = ?"
        await self._submit(_Update(sql, (at, status, session_id), f"no session {session_id}"))

    def open_call(self, row: CallRow) -> None:
        """Queue the record of an engine request. Nobody waits for it: rows are committed in the order they came."""
        params = (row.request_id, row.call_id, row.session_id, row.opened_at, row.dialect, row.parent, row.fork_reason)
        rest = (row.prompt_len, row.streamed, dumps(row.dropped), row.rewrites, row.kind, row.ended_at, row.status, row.error)
        self._queue_up(_Row("calls", (*params, *rest)))

    async def end_call(self, call_id: str, request_id: str, at: float, status: str, error: str | None) -> None:
        """Record that an engine request made no turn, and why."""
        if status == TURN_STATUS:
            raise JournalError(f"call {call_id}: status {TURN_STATUS!r} is that of a request with a turn")
        sql = "UPDATE calls SET ended_at = ?, status = ?, error = ? WHERE call_id = ? AND request_id = ? AND ended_at IS NULL"
        params = (at, status, None if error is None else _printable(error), call_id, request_id)
        await self._submit(_Update(sql, params, f"no open request {request_id} of call {call_id}"))

    def add_turn(self, turn: Turn, request: Request | None = None) -> asyncio.Future[None]:
        """Record a turn, and with it the end of its engine request. ``JournalError`` when its id is taken.

        ``request``: what the harness's request added to the conversation; None for a turn that continues an aborted sample.
        The turn's kind and delivery are recorded by ``set_kind`` and ``mark_delivered``.
        """
        return self._submit(_Row("turns", turn_to_params(turn, request)))

    def mark_delivered(self, session_id: str, turn_id: int) -> None:
        """Queue the record that the harness has the reply. Nobody waits for it; it is on disk a moment later."""
        self._queue_up(_Row("deliveries", (session_id, turn_id), replace=True), lazy=True)

    async def set_kind(self, session_id: str, turn_id: int, kind: Kind) -> None:
        """Record what a turn was for, once that is known. Until then it counts as main."""
        await self._submit(_Row("kinds", (session_id, turn_id, kind.value), replace=True))

    async def add_result(self, rollout_id: str, group_id: str, task_id: str, attempt: int, payload: dict[str, Any]) -> None:
        """Record the outcome of an attempt; a second one for the same attempt replaces the first (a resumed run)."""
        await self._submit(_Row("results", (rollout_id, attempt, group_id, task_id, dumps(payload)), replace=True))

    def _submit(self, what: _Row | _Update) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        if self._accepting:
            self._put(_Write(what, future, loop))
        else:
            future.set_exception(JournalError(f"{self.path}: the journal is not running"))
        return future

    def _queue_up(self, row: _Row, *, lazy: bool = False) -> None:
        """Queue a row that nobody waits for. A lazy one goes with the next that somebody does wait for, or soon."""
        if not self._accepting:
            log.warning("%s: the journal is not running; a row of %s is lost", self.path, row.table)
            return
        write = _Write(row, None, asyncio.get_running_loop())
        if not lazy:
            self._put(write)
            return
        with self._lock:
            self._lazy.append(write)
            first = len(self._lazy) == 1
        if first:
            write.loop.call_later(_LAZY_SECONDS, self._put)

    def _put(self, *writes: _Write) -> None:
        """Hand everything that waits to the writer, in the order it came."""
        with self._lock:
            if not self._lazy:
                ready = writes
            else:
                ready = (*self._lazy, *writes)
                self._lazy.clear()
            for write in ready:
                self._queue.put(write)

    # --- the writer thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        running = True
        batch: list[_Write] = []
        while running:
            batch, running = self._take(len(batch) >= _BUSY)
            if batch:
                began = time.perf_counter()
                errors = self._commit([w.what for w in batch])
                self.commit_seconds.observe(time.perf_counter() - began)
                self.batch_rows.observe(len(batch))
                _settle(batch, errors)
            elif running:
                self._probe()
        if self._db is not None:
            try:
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            except sqlite3.Error as exc:
                log.warning("%s: left with a write-ahead log, which the next reader takes over: %s", self.path, exc)
            self._close()

    def _take(self, busy: bool) -> tuple[list[_Write], bool]:
        """What is queued, waiting for the first of it; False when it is time to stop. While ``busy``, for company too."""
        batch: list[_Write] = []
        try:
            write = self._queue.get(timeout=None if self._writable else _PROBE_SECONDS)
            if busy and write is not None:
                time.sleep(_COMPANY_SECONDS)
            while write is not None:
                batch.append(write)
                if len(batch) == _MAX_BATCH:
                    return batch, True
                write = self._queue.get_nowait()
        except queue.Empty:
            return batch, True
        return batch, False

    def _commit(self, writes: Sequence[_Row | _Update]) -> list[JournalError | None]:
        """One transaction. Returns an error for each write: its own, or the disk's for all of them."""
        try:
            if self._db is None:
                self._db = self._open()
            errors = _together(self._db, writes) or _one_by_one(self._db, writes)
        except (sqlite3.Error, OSError, JournalError) as exc:
            if self._writable:
                log.error("%s cannot be written, calls are refused until it can: %s", self.path, exc)
            self._writable = False
            self.errors += 1
            self.last_error = f"{self.path} cannot be written: {exc}"
            self._close()
            return [JournalError(self.last_error) for _ in writes]
        if not self._writable:
            log.warning("%s can be written again", self.path)
        self._writable = True
        return errors

    def _probe(self) -> None:
        """See whether a disk that refused a write has room again, so that health recovers without a call having to fail."""
        if self._commit([_Row("meta", ("probe", bytes(_PROBE_BYTES)), replace=True)]) == [None]:
            self._commit([_Update("DELETE FROM meta WHERE key = 'probe'", (), "the probe is gone")])

    def _open(self) -> sqlite3.Connection:
        # The connection passes from the thread that starts the journal to the writer, and is used by one at a time.
        db = sqlite3.connect(self.path, isolation_level=None, timeout=10.0, check_same_thread=False)
        try:
            new = not db.execute("SELECT 1 FROM sqlite_master").fetchone()
            if not new:
                check_schema(db, self.path)  # before anything is written: the file may be somebody else's
            db.execute("PRAGMA journal_mode = WAL")
            db.execute(f"PRAGMA synchronous = {'FULL' if self.durability == 'power' else 'NORMAL'}")
            db.execute(f"PRAGMA journal_size_limit = {64 * 1024 * 1024}")
            db.execute("BEGIN IMMEDIATE")
            if new:
                for statement in SCHEMA.split(";"):
                    db.execute(statement)
                db.execute("INSERT INTO meta VALUES ('schema', ?)", (SCHEMA_VERSION,))
            # Written on every opening, so that a file that can only be read is refused here and not by the first call.
            db.execute("INSERT OR REPLACE INTO meta VALUES ('durability', ?)", (self.durability,))
            db.execute("COMMIT")
        except BaseException:
            db.close()
            raise
        return db

    def _close(self) -> None:
        """Drop the connection, and with it a transaction under way; the next one opens afresh."""
        db, self._db = self._db, None
        if db is not None:
            with suppress(sqlite3.Error):
                db.rollback()
            with suppress(sqlite3.Error):
                db.close()


_ROW_ERRORS = (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.InterfaceError, ValueError, OverflowError)
"""What SQLite raises when a row itself is wrong."""


def _together(db: sqlite3.Connection, writes: Sequence[_Row | _Update]) -> list[JournalError | None] | None:
    """Commit all writes with as few statements as possible: the rows of each table, then the changes, which may be of those
    rows. None, and nothing written, when one of them is wrong."""
    rows: dict[str, list[tuple[Any, ...]]] = {}
    for write in writes:
        if isinstance(write, _Row):
            rows.setdefault(write.verb, []).append(write.params)
    try:
        db.execute("BEGIN IMMEDIATE")
        for verb, params in rows.items():
            _insert(db, verb, params)
        for write in writes:
            if isinstance(write, _Update) and db.execute(write.sql, write.params).rowcount == 0:
                raise ValueError(write.missing)
        db.execute("COMMIT")
    except _ROW_ERRORS:
        db.rollback()
        return None
    done: list[JournalError | None] = [None] * len(writes)
    return done


def _insert(db: sqlite3.Connection, verb: str, rows: Sequence[tuple[Any, ...]]) -> None:
    width = len(rows[0])
    at = 0
    for size in _CHUNKS:
        while len(rows) - at >= size:
            db.execute(_insert_sql(verb, width, size), [p for row in rows[at : at + size] for p in row])
            at += size


@lru_cache
def _insert_sql(verb: str, width: int, rows: int) -> str:
    row = f"({', '.join('?' * width)})"
    return f"{verb} VALUES {', '.join([row] * rows)}"


def _one_by_one(db: sqlite3.Connection, writes: Sequence[_Row | _Update]) -> list[JournalError | None]:
    """Commit all writes in their order, those apart that are wrong: each gets its own error."""
    db.execute("BEGIN IMMEDIATE")
    errors = [_apply(db, write) for write in writes]
    db.execute("COMMIT")
    return errors


def _apply(db: sqlite3.Connection, write: _Row | _Update) -> JournalError | None:
    try:
        if isinstance(write, _Row):
            _insert(db, write.verb, [write.params])
        elif db.execute(write.sql, write.params).rowcount == 0:
            return JournalError(write.missing)
    except _ROW_ERRORS as exc:
        return JournalError(f"a row was refused: {exc}")
    return None


def _settle(batch: Sequence[_Write], errors: Sequence[JournalError | None]) -> None:
    """Wake the callers, each in its own event loop, with one callback a loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[None], JournalError | None]]] = {}
    for write, error in zip(batch, errors, strict=True):
        if write.future is not None:
            by_loop.setdefault(write.loop, []).append((write.future, error))
        elif error is not None and isinstance(write.what, _Row):
            log.warning("a row of %s that nobody waits for is lost: %s", write.what.table, error)
    for loop, outcomes in by_loop.items():
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(_resolve, outcomes)


def _resolve(outcomes: Sequence[tuple[asyncio.Future[None], JournalError | None]]) -> None:
    for future, error in outcomes:
        if future.done():
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)


def _printable(text: str) -> str:
    """``text`` without lone surrogates, which SQLite's text type cannot hold."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
