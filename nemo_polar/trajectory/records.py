# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What a journal holds: its schema, its rows, and a reader. ``capture/journal.py`` is the one that writes it.

The reader never writes and never blocks the writer: it works while a proxy runs, and on what a killed one left behind (its
write-ahead log included). ``docs/format.md`` specifies the schema for other programs.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from nemo_polar.errors import JournalError
from nemo_polar.trajectory.codec import (
    dumps,
    ids_from_bytes,
    ids_to_bytes,
    loads,
    logprobs_from_bytes,
    logprobs_to_bytes,
    message_from_dict,
    message_to_dict,
    sampling_from_dict,
    sampling_to_dict,
    tool_from_dict,
    tool_to_dict,
)
from nemo_polar.types import FinishReason, ForkReason, Kind, Message, Sample, ToolSpec, Turn

SCHEMA_VERSION = 2

SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE sessions (
    id TEXT PRIMARY KEY, rollout_id TEXT NOT NULL, task_id TEXT NOT NULL, group_id TEXT NOT NULL, attempt INTEGER NOT NULL,
    created_at REAL NOT NULL, model TEXT NOT NULL, codec TEXT NOT NULL, codec_fingerprint BLOB NOT NULL,
    metadata TEXT NOT NULL, closed_at REAL, status TEXT
);
CREATE TABLE calls (
    request_id TEXT NOT NULL, call_id TEXT NOT NULL, session_id TEXT NOT NULL, opened_at REAL NOT NULL,
    dialect TEXT NOT NULL, parent INTEGER, fork_reason TEXT, prompt_len INTEGER NOT NULL, streamed INTEGER NOT NULL,
    dropped TEXT NOT NULL, rewrites INTEGER NOT NULL, kind TEXT NOT NULL, ended_at REAL, status TEXT, error TEXT,
    PRIMARY KEY (call_id, request_id)
);
CREATE INDEX calls_by_session ON calls (session_id);
CREATE TABLE turns (
    session_id TEXT NOT NULL, id INTEGER NOT NULL, parent INTEGER, call_id TEXT NOT NULL, request_id TEXT NOT NULL,
    prompt_delta BLOB NOT NULL, token_ids BLOB NOT NULL, logprobs BLOB NOT NULL, finish_reason TEXT NOT NULL, stop TEXT,
    version_first INTEGER NOT NULL, version_last INTEGER NOT NULL, sampling TEXT NOT NULL,
    started_at REAL NOT NULL, first_token_at REAL NOT NULL, ended_at REAL NOT NULL,
    reply TEXT NOT NULL, fork_reason TEXT, fork_of INTEGER, continues INTEGER NOT NULL, prompt_len INTEGER NOT NULL,
    tools_key BLOB NOT NULL, system_key BLOB NOT NULL, request TEXT,
    PRIMARY KEY (session_id, id)
);
CREATE TABLE deliveries (session_id TEXT NOT NULL, turn INTEGER NOT NULL, PRIMARY KEY (session_id, turn)) WITHOUT ROWID;
CREATE TABLE kinds (
    session_id TEXT NOT NULL, turn INTEGER NOT NULL, kind TEXT NOT NULL, PRIMARY KEY (session_id, turn)
) WITHOUT ROWID;
CREATE TABLE results (
    rollout_id TEXT NOT NULL, attempt INTEGER NOT NULL, group_id TEXT NOT NULL, task_id TEXT NOT NULL, payload TEXT NOT NULL,
    PRIMARY KEY (rollout_id, attempt)
);
"""

TURN_STATUS = "turn"
"""The status of an engine request that became a turn. Every other status names a failure."""
RETRIED_STATUS = "retried"
"""The status of a request that drew nothing, in a call that a later request of it answered."""


@dataclass(frozen=True, slots=True)
class SessionRow:
    """One harness run as the proxy saw it. A rollout that is tried again has one session an attempt."""

    id: str
    rollout_id: str
    task_id: str
    group_id: str
    attempt: int
    created_at: float
    """Unix seconds."""
    model: str
    codec: str
    codec_fingerprint: bytes
    metadata: dict[str, Any]
    closed_at: float | None = None
    """None while the session is open, and for ever if the proxy was killed."""
    status: str | None = None


@dataclass(frozen=True, slots=True)
class CallRow:
    """One engine request, written before the engine is asked. A call that is retried or resumed after a pause has several."""

    call_id: str
    session_id: str
    request_id: str
    """The engine-side log carries it too."""
    opened_at: float
    """Unix seconds."""
    dialect: str
    parent: int | None
    fork_reason: str | None
    prompt_len: int
    """Tokens."""
    streamed: bool
    dropped: tuple[str, ...]
    rewrites: int
    kind: str
    ended_at: float | None = None
    """None: in flight, or lost when the proxy was killed."""
    status: str | None = None
    """``turn``, ``retried`` or the name of a failure."""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """What a turn's request added to the conversation: the messages after its parent's reply, or all of them for a root."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] | None = None
    """Of a root; every turn of its tree has the same."""


@dataclass(frozen=True, slots=True)
class ResultRow:
    """The outcome of one attempt at a rollout."""

    rollout_id: str
    group_id: str
    task_id: str
    attempt: int
    payload: dict[str, Any]


def turn_to_params(turn: Turn, request: Request | None) -> tuple[Any, ...]:
    """A turn as the parameters of its row, in the order of the columns; its kind and delivery have tables of their own."""
    sample = turn.sample
    return (
        turn.session_id,
        turn.id,
        turn.parent,
        turn.call_id,
        turn.request_id,
        ids_to_bytes(turn.prompt_delta),
        ids_to_bytes(sample.token_ids),
        logprobs_to_bytes(sample.logprobs),
        sample.finish_reason.value,
        sample.stop,
        *sample.weights_version,
        dumps(sampling_to_dict(sample.sampling)),
        sample.started_at,
        sample.first_token_at,
        sample.ended_at,
        dumps(message_to_dict(turn.reply)),
        None if turn.fork_reason is None else turn.fork_reason.value,
        turn.fork_of,
        turn.continues,
        turn.prompt_len,
        turn.tools_key,
        turn.system_key,
        None if request is None else dumps(_request_to_dict(request)),
    )


def _request_to_dict(request: Request) -> dict[str, Any]:
    messages = [message_to_dict(message) for message in request.messages]
    return {"messages": messages} | ({} if request.tools is None else {"tools": [tool_to_dict(t) for t in request.tools]})


def _request_from_dict(value: dict[str, Any]) -> Request:
    tools = value.get("tools")
    return Request(
        tuple(message_from_dict(m) for m in value["messages"]),
        None if tools is None else tuple(tool_from_dict(t) for t in tools),
    )


def turn_from_row(row: sqlite3.Row) -> Turn:
    """A turn from its row, joined with its kind and delivery."""
    return Turn(
        id=row["id"],
        session_id=row["session_id"],
        parent=row["parent"],
        prompt_delta=ids_from_bytes(row["prompt_delta"]),
        sample=Sample(
            token_ids=ids_from_bytes(row["token_ids"]),
            logprobs=logprobs_from_bytes(row["logprobs"]),
            finish_reason=FinishReason(row["finish_reason"]),
            stop=row["stop"],
            weights_version=(row["version_first"], row["version_last"]),
            sampling=sampling_from_dict(loads(row["sampling"])),
            started_at=row["started_at"],
            first_token_at=row["first_token_at"],
            ended_at=row["ended_at"],
        ),
        reply=message_from_dict(loads(row["reply"])),
        request_id=row["request_id"],
        call_id=row["call_id"],
        kind=Kind(row["kind"]),
        delivered=bool(row["delivered"]),
        fork_reason=None if row["fork_reason"] is None else ForkReason(row["fork_reason"]),
        fork_of=row["fork_of"],
        continues=bool(row["continues"]),
        prompt_len=row["prompt_len"],
        tools_key=row["tools_key"],
        system_key=row["system_key"],
    )


def check_schema(db: sqlite3.Connection, path: Path) -> None:
    """Make sure that ``db`` is a journal of the version this code knows.

    Raises:
        JournalError: it is something else; the message says what.
    """
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
        raise JournalError(f"{path} is a database, but not a Polar journal")
    found = db.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
    if found is None or found[0] != SCHEMA_VERSION:
        version = "none" if found is None else found[0]
        raise JournalError(
            f"{path} has journal schema {version}, this Polar knows schema {SCHEMA_VERSION}; "
            "read it with the version that wrote it, or journal to another file"
        )


class JournalReader:
    """A journal, read-only. Each method reads one consistent snapshot; open one reader a thread.

    Raises:
        JournalError: (every method) the file is missing, damaged, or of a schema this version does not know.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise JournalError(f"{self.path}: no journal there")
        try:
            self._db = _open_read_only(self.path)
            check_schema(self._db, self.path)
        except sqlite3.Error as exc:
            raise JournalError(f"{self.path} cannot be read: {exc}") from exc

    def __enter__(self) -> JournalReader:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()

    def sessions(self) -> list[SessionRow]:
        """All sessions, oldest first."""
        rows = self._rows("SELECT * FROM sessions ORDER BY rowid")
        return [SessionRow(**{**dict(r), "metadata": loads(r["metadata"])}) for r in rows]

    def turns(self, session_id: str) -> list[Turn]:
        """The turns of a session by id: parents before children."""
        sql = (
            "SELECT t.*, d.turn IS NOT NULL AS delivered, coalesce(k.kind, 'main') AS kind FROM turns t "
            "LEFT JOIN deliveries d ON d.session_id = t.session_id AND d.turn = t.id "
            "LEFT JOIN kinds k ON k.session_id = t.session_id AND k.turn = t.id WHERE t.session_id = ? ORDER BY t.id"
        )
        try:
            return [turn_from_row(r) for r in self._rows(sql, session_id)]
        except ValueError as exc:
            raise JournalError(f"{self.path}: a turn of session {session_id} is damaged: {exc}") from exc

    def requests(self, session_id: str) -> dict[int, Request]:
        """What the request of each turn added to the conversation, by turn id.

        A turn that continues its parent's aborted sample answers the same request and is not here.
        """
        rows = self._rows("SELECT id, request FROM turns WHERE session_id = ? AND request IS NOT NULL ORDER BY id", session_id)
        return {r["id"]: _request_from_dict(loads(r["request"])) for r in rows}

    def calls(self, session_id: str) -> list[CallRow]:
        """The engine requests of a session in the order they were opened, with how each ended.

        Only failures are written into a request's row. That a request became a turn is told by the turn, which carries its id;
        and once a call has its last turn, what else it asked the engine for drew nothing and was retried.
        """
        turns = self._rows("SELECT call_id, request_id, finish_reason, ended_at FROM turns WHERE session_id = ?", session_id)
        became = {(t["call_id"], t["request_id"]): t["ended_at"] for t in turns}
        answered = {t["call_id"]: t["ended_at"] for t in turns if t["finish_reason"] != FinishReason.ABORT.value}
        rows = [dict(r) for r in self._rows("SELECT * FROM calls WHERE session_id = ? ORDER BY rowid", session_id)]
        for row in rows:
            key = (row["call_id"], row["request_id"])
            if key in became:
                row |= {"ended_at": became[key], "status": TURN_STATUS}
            elif row["ended_at"] is None and row["call_id"] in answered:
                row |= {"ended_at": answered[row["call_id"]], "status": RETRIED_STATUS}
        return [CallRow(**{**r, "dropped": tuple(loads(r["dropped"])), "streamed": bool(r["streamed"])}) for r in rows]

    def results(self) -> list[ResultRow]:
        """All results, oldest first."""
        return [
            ResultRow(**{**dict(r), "payload": loads(r["payload"])}) for r in self._rows("SELECT * FROM results ORDER BY rowid")
        ]

    def _rows(self, sql: str, *params: Any) -> list[sqlite3.Row]:
        try:
            return self._db.execute(sql, params).fetchall()
        except sqlite3.Error as exc:
            raise JournalError(f"{self.path} cannot be read: {exc}") from exc


def _open_read_only(path: Path) -> sqlite3.Connection:
    """A read-only connection. In a folder that cannot be written, SQLite has no room for its lock file: a journal that was
    closed is then read without one; one with a write-ahead log is not, as that log would be passed over."""
    uri = path.absolute().as_uri()
    db = sqlite3.connect(f"{uri}?mode=ro", uri=True, timeout=10.0)
    try:
        db.execute("SELECT 1 FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        db.close()
        if path.with_name(path.name + "-wal").exists():
            raise
        db = sqlite3.connect(f"{uri}?mode=ro&immutable=1", uri=True)
    db.row_factory = sqlite3.Row
    return db
