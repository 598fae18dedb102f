# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The engine-side log: what an engine was given and what it drew, written where the engine is and not where the proxy is.

The audit compares a finished run with this file, so its writers (the scripted engine and the recording relay) share no state
and no parser with the proxy. It is JSON lines: a header, then one line for each sample that has ended, flushed as it is
written. Ids are base64 of little-endian int32, log-probabilities base64 of little-endian float32.

A sample that ended early, for whatever reason (the client went away, the engine was paused, the connection broke), has the
finish reason ``abort`` and the ids drawn until then; a client may have received fewer of them.
"""

from __future__ import annotations

import base64
import binascii
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from nemo_polar.errors import AuditError
from nemo_polar.types import LogProbs, TokenIds

FORMAT = "polar-engine-log"
VERSION = 1


@dataclass(frozen=True, slots=True)
class EngineCall:
    """One sample, as the engine knows it."""

    request_id: str
    """As the client named it; several calls may carry the same one (a retry)."""
    prompt_ids: TokenIds
    """int32[P]"""
    token_ids: TokenIds
    """int32[T]"""
    logprobs: LogProbs
    """float32[T]; NaN where the engine gave none."""
    finish_reason: str
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    started_at: float = 0.0
    """Unix seconds."""
    ended_at: float = 0.0
    weights_version: int | None = None
    """Of the last token, when the engine told."""


class EngineLog:
    """Appends to one file. One writer a file; a line is on its way to the disk (page cache) when ``append`` returns.

    Raises:
        AuditError: the file exists and is not an engine log.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _drop_torn_tail(self.path)
        self._file = self.path.open("ab", buffering=0)
        if self._file.tell() == 0:
            self._file.write(orjson.dumps({"format": FORMAT, "version": VERSION}, option=orjson.OPT_APPEND_NEWLINE))

    def append(self, call: EngineCall) -> None:
        """Write one call."""
        line = {
            "request_id": call.request_id,
            "prompt_ids": _pack(call.prompt_ids, "<i4"),
            "token_ids": _pack(call.token_ids, "<i4"),
            "logprobs": _pack(call.logprobs, "<f4"),
            "finish_reason": call.finish_reason,
            "temperature": call.temperature,
            "top_p": call.top_p,
            "top_k": call.top_k,
            "started_at": call.started_at,
            "ended_at": call.ended_at,
            "weights_version": call.weights_version,
        }
        self._file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))

    def close(self) -> None:
        self._file.close()


def read_engine_log(path: str | os.PathLike[str]) -> list[EngineCall]:
    """All calls of a log, in the order they ended. A last line that was torn by a kill is left out.

    Raises:
        AuditError: no such file, another format or version, or a broken line that is not the last.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as exc:
        raise AuditError(f"{path}: the engine log cannot be read: {exc.strerror}") from exc
    lines = data.split(b"\n")[:-1]  # what follows the last line feed is empty or torn
    if not lines:
        raise AuditError(f"{path}: not an engine log: it has no header line")
    _check_header(lines[0], path)
    return [_call(line, f"{path}:{number}") for number, line in enumerate(lines[1:], start=2)]


def _drop_torn_tail(path: Path) -> None:
    """Cut what a killed writer left after the last line feed, so that the next line starts on its own."""
    if not path.exists():
        return
    with path.open("r+b") as file:
        data = file.read()
        whole = data.rfind(b"\n") + 1
        if whole:
            _check_header(data.partition(b"\n")[0], path)
        file.truncate(whole)


def _check_header(line: bytes, path: str | os.PathLike[str]) -> None:
    try:
        header: Any = orjson.loads(line)
    except orjson.JSONDecodeError:
        header = None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise AuditError(f"{path}: not an engine log: its first line is not a {FORMAT} header")
    if header.get("version") != VERSION:
        raise AuditError(f"{path}: engine log version {header.get('version')}; this release reads version {VERSION}")


def _call(line: bytes, where: str) -> EngineCall:
    try:
        raw = orjson.loads(line)
        call = EngineCall(
            request_id=str(raw["request_id"]),
            prompt_ids=_unpack(raw["prompt_ids"], "<i4"),
            token_ids=_unpack(raw["token_ids"], "<i4"),
            logprobs=_unpack(raw["logprobs"], "<f4"),
            finish_reason=str(raw["finish_reason"]),
            temperature=float(raw["temperature"]),
            top_p=float(raw["top_p"]),
            top_k=int(raw["top_k"]),
            started_at=float(raw["started_at"]),
            ended_at=float(raw["ended_at"]),
            weights_version=None if raw["weights_version"] is None else int(raw["weights_version"]),
        )
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, binascii.Error) as exc:
        raise AuditError(f"{where}: broken line in the engine log: {exc}") from exc
    if len(call.token_ids) != len(call.logprobs):
        raise AuditError(f"{where}: {len(call.token_ids)} ids with {len(call.logprobs)} log-probabilities")
    return call


def _pack(array: TokenIds | LogProbs, dtype: str) -> str:
    return base64.b64encode(np.ascontiguousarray(array, dtype=dtype).tobytes()).decode("ascii")


def _unpack(text: str, dtype: str) -> Any:
    native = np.int32 if dtype == "<i4" else np.float32
    return np.frombuffer(base64.b64decode(text, validate=True), dtype=dtype).astype(native)
