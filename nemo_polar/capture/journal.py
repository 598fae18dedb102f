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
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nemo_polar.errors import JournalError
from nemo_polar.trajectory.codec import dumps
from nemo_polar.trajectory.records import (
    RETRIED_STATUS,
    SCHEMA,
    SCHEMA_VERSION,
    TURN_STATUS,
    CallRow,
    JournalReader,
    ResultRow,
    SessionRow,
    check_schema,
    turn_to_params,
)
from nemo_polar.types import FinishReason, Kind, Turn

__all__ = ["CallRow", "Journal", "JournalReader", "ResultRow", "SessionRow"]

log = logging.getLogger(__name__)

_MAX_BATCH = 512
"""Writes in one transaction: bounds how long the first of them waits."""
_PROBE_SECONDS = 0.5
"""How often a journal that could not be written tries whether the disk serves again."""
_PROBE_BYTES = 64 * 1024
"""What a probe writes: about one batch, so that health does not flicker on a disk with a few bytes left."""
_INSERT_TURN = f"INSERT INTO turns VALUES ({', '.join('?' * 25)})"


@dataclass(frozen=True, slots=True)
class _Statement:
    sql: str
    params: tuple[Any, ...]
    missing: str | None = None
    """For an update that must find its row: what to say when it does not."""


@dataclass(frozen=True, slots=True)
class _Write:
    """Statements that belong together, and who waits for them."""

    statements: tuple[_Statement, ...]
    future: asyncio.Future[None]
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
        self._queue: queue.SimpleQueue[_Write | None] = queue.SimpleQueue()
        """None: write what came before, then stop."""
        self._db: sqlite3.Connection | None = None
        self._writable = False
        self._accepting = False
        self._thread: threading.Thread | None = None

    @property
    def healthy(self) -> bool:
        """True when the last transaction was committed and the writer runs."""
        return self._accepting and self._writable and self._thread is not None and self._thread.is_alive()

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
        self._queue.put(None)
        await asyncio.to_thread(thread.join)

    # --- rows ---------------------------------------------------------------------------------------------------------

    async def add_session(self, row: SessionRow) -> None:
        """Record a session. Raises ``JournalError`` when its id is taken."""
        params = (row.id, row.rollout_id, row.task_id, row.group_id, row.attempt, row.created_at, row.model, row.codec)
        rest = (row.codec_fingerprint, dumps(row.metadata), row.closed_at, row.status)
        await self._submit(_Statement(f"INSERT INTO sessions VALUES ({', '.join('?' * 12)})", (*params, *rest)))

    async def close_session(self, session_id: str, at: float, status: str) -> None:
        """Record that a session ended at ``at`` (Unix seconds)."""
        sql = "UPDATE sessions SET closed_at = ?, status = ? WHERE id = ?"
        await self._submit(_Statement(sql, (at, status, session_id), f"no session {session_id}"))

    def open_call(self, row: CallRow) -> asyncio.Future[None]:
        """Queue the record of an engine request. The future need not be awaited: rows are committed in the order they came."""
        params = (row.request_id, row.call_id, row.session_id, row.opened_at, row.dialect, row.parent, row.fork_reason)
        rest = (row.prompt_len, row.streamed, dumps(row.dropped), row.rewrites, row.kind, row.ended_at, row.status, row.error)
        future = self._submit(_Statement(f"INSERT INTO calls VALUES ({', '.join('?' * 15)})", (*params, *rest)))
        future.add_done_callback(_retrieve)
        return future

    async def end_call(self, call_id: str, at: float, status: str, error: str | None) -> None:
        """Record that a call made no turn, and why. Every request of the call that is still open ends with it."""
        if status == TURN_STATUS:
            raise JournalError(f"call {call_id}: status {TURN_STATUS!r} is set by add_turn only")
        sql = "UPDATE calls SET ended_at = ?, status = ?, error = ? WHERE call_id = ? AND ended_at IS NULL"
        params = (at, status, None if error is None else _printable(error), call_id)
        await self._submit(_Statement(sql, params, f"no open call {call_id}"))

    def add_turn(self, turn: Turn) -> asyncio.Future[None]:
        """Record a turn, and with it the end of its engine request. ``JournalError`` when its id is taken.

        A turn that completes its call also ends the requests of that call which drew nothing.
        """
        end = "UPDATE calls SET ended_at = ?, status = ? WHERE call_id = ? AND request_id = ? AND ended_at IS NULL"
        statements = [
            _Statement(_INSERT_TURN, turn_to_params(turn)),
            _Statement(end, (turn.sample.ended_at, TURN_STATUS, turn.call_id, turn.request_id)),
        ]
        if turn.sample.finish_reason is not FinishReason.ABORT:
            rest = "UPDATE calls SET ended_at = ?, status = ? WHERE call_id = ? AND ended_at IS NULL"
            statements.append(_Statement(rest, (turn.sample.ended_at, RETRIED_STATUS, turn.call_id)))
        return self._submit(*statements)

    def mark_delivered(self, session_id: str, turn_id: int) -> asyncio.Future[None]:
        """Record that the harness got the reply. The future need not be awaited."""
        sql = "UPDATE turns SET delivered = 1 WHERE session_id = ? AND id = ?"
        future = self._submit(_Statement(sql, (session_id, turn_id), f"no turn {turn_id} in session {session_id}"))
        future.add_done_callback(_retrieve)
        return future

    async def set_kind(self, session_id: str, turn_id: int, kind: Kind) -> None:
        """Record what a turn was for, once that is known."""
        sql = "UPDATE turns SET kind = ? WHERE session_id = ? AND id = ?"
        await self._submit(_Statement(sql, (kind.value, session_id, turn_id), f"no turn {turn_id} in session {session_id}"))

    async def add_result(self, rollout_id: str, group_id: str, task_id: str, attempt: int, payload: dict[str, Any]) -> None:
        """Record the outcome of an attempt; a second one for the same attempt replaces the first (a resumed run)."""
        sql = "INSERT OR REPLACE INTO results (rollout_id, attempt, group_id, task_id, payload) VALUES (?, ?, ?, ?, ?)"
        await self._submit(_Statement(sql, (rollout_id, attempt, group_id, task_id, dumps(payload))))

    def _submit(self, *statements: _Statement) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        if self._accepting:
            self._queue.put(_Write(statements, future, loop))
        else:
            future.set_exception(JournalError(f"{self.path}: the journal is not running"))
        return future

    # --- the writer thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        running = True
        while running:
            batch, running = self._take()
            if batch:
                _settle(batch, self._commit([w.statements for w in batch]))
            elif running:
                self._probe()
        if self._db is not None:
            try:
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            except sqlite3.Error as exc:
                log.warning("%s: left with a write-ahead log, which the next reader takes over: %s", self.path, exc)
            self._close()

    def _take(self) -> tuple[list[_Write], bool]:
        """What is queued, waiting for the first of it; False when it is time to stop."""
        batch: list[_Write] = []
        try:
            write = self._queue.get(timeout=None if self._writable else _PROBE_SECONDS)
            while write is not None:
                batch.append(write)
                if len(batch) == _MAX_BATCH:
                    return batch, True
                write = self._queue.get_nowait()
        except queue.Empty:
            return batch, True
        return batch, False

    def _commit(self, writes: Sequence[tuple[_Statement, ...]]) -> list[JournalError | None]:
        """One transaction. Returns an error for each write: its own, or the disk's for all of them."""
        try:
            if self._db is None:
                self._db = self._open()
            self._db.execute("BEGIN IMMEDIATE")
            errors = [_apply(self._db, statements) for statements in writes]
            self._db.execute("COMMIT")
        except (sqlite3.Error, OSError, JournalError) as exc:
            if self._writable:
                log.error("%s cannot be written, calls are refused until it can: %s", self.path, exc)
            self._writable = False
            self.last_error = f"{self.path} cannot be written: {exc}"
            self._close()
            return [JournalError(self.last_error) for _ in writes]
        if not self._writable:
            log.warning("%s can be written again", self.path)
        self._writable = True
        return errors

    def _probe(self) -> None:
        """See whether a disk that refused a write has room again, so that health recovers without a call having to fail."""
        fill = _Statement("INSERT OR REPLACE INTO meta VALUES ('probe', zeroblob(?))", (_PROBE_BYTES,))
        if self._commit([(fill,)]) == [None]:
            self._commit([(_Statement("DELETE FROM meta WHERE key = 'probe'", ()),)])

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


def _apply(db: sqlite3.Connection, statements: tuple[_Statement, ...]) -> JournalError | None:
    """Run one write. What is wrong with the row itself is that row's error and leaves the transaction as it was."""
    for statement in statements:
        try:
            cursor = db.execute(statement.sql, statement.params)
        except (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.InterfaceError, ValueError, OverflowError) as exc:
            return JournalError(f"a row was refused: {exc}")
        if statement.missing and cursor.rowcount == 0:
            return JournalError(statement.missing)
    return None


def _settle(batch: Sequence[_Write], errors: Sequence[JournalError | None]) -> None:
    """Wake the callers, each in its own event loop, with one callback a loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[None], JournalError | None]]] = {}
    for write, error in zip(batch, errors, strict=True):
        by_loop.setdefault(write.loop, []).append((write.future, error))
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


def _retrieve(future: asyncio.Future[None]) -> None:
    """Mark a failure as seen, so that a future nobody awaits does not complain when it is collected."""
    if not future.cancelled():
        future.exception()


def _printable(text: str) -> str:
    """``text`` without lone surrogates, which SQLite's text type cannot hold."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
