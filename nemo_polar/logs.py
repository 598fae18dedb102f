# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Logs: one line a record, as JSON or as text, that says which session, rollout and call it is about and holds no secret.

A line is made where the record is, and written by a thread of its own: a reader that has stopped reading, or a slow disk, costs
log lines, never a call. What cannot be written is counted in ``lost``. In normal operation there are warnings, errors and one
line for each session opened and closed.
"""

from __future__ import annotations

import json
import logging
import queue
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

_QUEUED = 4096
"""Lines that may wait to be written."""
_MAX_CHARS = 16_384
"""Of one message or traceback; the middle of a longer one is left out."""
_CLOSE_SECONDS = 2.0
"""For the lines that wait to be written, when a log is closed."""
_MIN_HIDDEN = 6
"""Shorter keys are placeholders, such as ``none``; hiding them would garble everything."""


class Form(StrEnum):
    """How a line is written."""

    JSON = "json"
    TEXT = "text"


class Level(StrEnum):
    """The least that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(slots=True)
class Subject:
    """What the records of a context are about. Filled in as it becomes known."""

    session: str | None = None
    rollout: str | None = None
    call: str | None = None


subject: ContextVar[Subject | None] = ContextVar("polar_log_subject", default=None)
"""Set for each call; the tasks it starts inherit it."""


@contextmanager
def about(session: str | None = None, rollout: str | None = None) -> Iterator[None]:
    """Say what the records of this block are about."""
    token = subject.set(Subject(session, rollout))
    try:
        yield
    finally:
        subject.reset(token)


# --- secrets ----------------------------------------------------------------------------------------------------------

_HIDDEN = "[redacted]"
_PATTERNS = (
    (re.compile(r"(?<![A-Za-z0-9])(sk-(?:polar-)?|polar-control-)[A-Za-z0-9_-]{6,}"), rf"\1{_HIDDEN}"),
    (re.compile(r"(authorization\W{1,4})((?:basic|bearer|token)\s+)?[^\s\"',;)}\]]+", re.I), rf"\1\2{_HIDDEN}"),
    (re.compile(r"\b(bearer\s+)[^\s\"',;)}\]]+", re.I), rf"\1{_HIDDEN}"),
    (re.compile(r"\b((?:[a-z]+[-_])*api[-_]?key\W{1,4}|password\W{1,4}|[?&]key=)[^\s\"',;)}\]&]+", re.I), rf"\1{_HIDDEN}"),
    (re.compile(r"(://)[^/\s@]*:[^/\s@]*@"), rf"\1{_HIDDEN}@"),
)
_hidden: set[str] = set()


def hide(secret: str | None) -> None:
    """Never let this secret into a log, whatever stands around it: for keys whose shape is somebody else's."""
    if secret and len(secret) >= _MIN_HIDDEN:
        _hidden.add(secret)


def redact(text: str) -> str:
    """``text`` without session and control secrets, API keys, passwords, and anything sent as a bearer token."""
    for secret in _hidden:
        text = text.replace(secret, _HIDDEN)
    for pattern, put in _PATTERNS:
        text = pattern.sub(put, text)
    return text


# --- lines ------------------------------------------------------------------------------------------------------------


class Formatter(logging.Formatter):
    """A record as one line: an object, or words for people (then a traceback follows on lines of its own)."""

    def __init__(self, form: Form):
        super().__init__()
        self._form = form

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, str] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": redact(_cut(record.getMessage())),
        }
        found = subject.get()
        if found is not None:
            known = {"session": found.session, "rollout": found.rollout, "call": found.call}
            fields |= {key: value for key, value in known.items() if value is not None}
        if record.exc_info and record.exc_info[0] is not None:
            fields["exception"] = redact(_cut(self.formatException(record.exc_info)))
        return json.dumps(fields, ensure_ascii=False) if self._form is Form.JSON else _words(fields)


def _words(fields: dict[str, str]) -> str:
    ids = " ".join(f"{key}={_one_line(fields[key])}" for key in ("session", "rollout", "call") if key in fields)
    line = f"{fields['ts']} {fields['level']} {fields['logger']}: {_one_line(fields['message'])}{ids and f'  [{ids}]'}"
    return "\n    ".join((line, *map(_one_line, fields.get("exception", "").splitlines())))


def _one_line(text: str) -> str:
    """``text`` that cannot pose as another line, nor steer a terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _cut(text: str) -> str:
    if len(text) <= _MAX_CHARS:
        return text
    half = _MAX_CHARS // 2
    return f"{text[:half]} [... {len(text) - 2 * half} characters ...] {text[-half:]}"


class Lost:
    """How many lines could not be written, in this process."""

    lines = 0


class LineHandler(logging.Handler):
    """Hands lines to a thread that writes them. Nothing it does can raise in, or hold up, the code that logs."""

    def __init__(self, write: Callable[[bytes], object], form: Form):
        super().__init__()
        self.setFormatter(Formatter(form))
        self._write = write
        self._lines: queue.Queue[str | None] = queue.Queue(_QUEUED)
        self._thread = threading.Thread(target=self._run, name="polar-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.put_nowait(self.format(record))
        except Exception:  # noqa: BLE001 - full, or a record that cannot be formatted: logging's own handling of it prints secrets
            Lost.lines += 1

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._write((line + "\n").encode("utf-8", "backslashreplace"))
            except (OSError, ValueError):  # the disk is full, the file is closed: there is nobody to tell
                Lost.lines += 1

    def close(self) -> None:
        """Write what waits, as far as that takes no longer than a moment."""
        with suppress(queue.Full):
            self._lines.put(None, timeout=_CLOSE_SECONDS)
            self._thread.join(_CLOSE_SECONDS)
        super().close()


# --- where they go ----------------------------------------------------------------------------------------------------


@contextmanager
def to_stderr(form: Form = Form.TEXT, level: Level = Level.INFO) -> Iterator[None]:
    """Log to whatever is stderr at the time, in this block."""
    with _logging(LineHandler(_to_stderr, form), level):
        yield


@contextmanager
def to_file(path: Path, level: Level = Level.INFO) -> Iterator[None]:
    """Log to the end of a file as JSON, in this block.

    Raises:
        OSError: it cannot be opened.
    """
    with path.open("ab", buffering=0) as file, _logging(LineHandler(file.write, Form.JSON), level):
        yield


def _to_stderr(line: bytes) -> None:
    sys.stderr.write(line.decode())
    sys.stderr.flush()


@contextmanager
def _logging(handler: LineHandler, level: Level) -> Iterator[None]:
    """Our own records from ``level`` on, and warnings of everybody else."""
    root, ours = logging.getLogger(), logging.getLogger("nemo_polar")
    before, number = ours.level, logging.getLevelNamesMapping()[level.upper()]
    handler.setLevel(number)
    ours.setLevel(min(ours.level or number, number))
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        ours.setLevel(before)
        handler.close()
