# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Reads one streamed answer of vLLM's ``/inference/v1/generate``: bytes in, checked chunks out.

One event carries ids, a log-probability for each with the id again, and at the end a finish reason; then comes ``[DONE]``.
Whatever is missing, misaligned or cut is an error, never a guess.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import aiohttp
import orjson

from nemo_polar.engines.base import Chunk, ChunkChecker
from nemo_polar.engines.http_client import answer_error, json_ids, json_logprobs
from nemo_polar.engines.sse import SseLines
from nemo_polar.errors import EngineError, EngineProtocol
from nemo_polar.types import FinishReason

_TAIL_SECONDS = 1.0
"""How long the end marker may take after the finish reason."""


class GenerateStream:
    """``server_id`` is the id vLLM made of ours, known from the first event on. ``refused``: the answer was not a stream."""

    def __init__(self, request_id: str, checker: ChunkChecker):
        self._request_id, self._checker = request_id, checker
        self._lines = SseLines()
        self._version: int | None = None
        self.server_id: str | None = None
        self.refused = False

    async def chunks(self, response: aiohttp.ClientResponse) -> AsyncGenerator[Chunk, None]:
        """Tokens that arrive together come as one chunk. The last chunk waits for the end of the stream, so that ids sent after
        the finish reason are an error and not lost.

        Raises:
            EngineError: see the module; transport failures come as aiohttp raises them.
        """
        last: Chunk | None = None
        while True:
            try:
                reading = response.content.readany()
                data = await (reading if last is None else asyncio.wait_for(reading, _TAIL_SECONDS))
            except (aiohttp.ClientError, OSError):
                if last is None:
                    raise
                break  # the sample is whole; only the end marker is missing
            if not data:
                break
            chunk, error = self._read(data)
            if chunk is not None and chunk.finish_reason is not None:
                last = chunk
            elif chunk is not None:
                yield chunk
            if error is not None:
                raise error
        if last is None:
            pending = self._lines.pending
            raise EngineProtocol(
                f"{self._request_id}: the stream ended after {self._checker.seen} tokens without a finish reason"
                + (f", within the line {pending[:60]!r}" if pending else "")
            )
        yield last

    def _read(self, data: bytes) -> tuple[Chunk | None, EngineError | None]:
        """All whole events in ``data`` as one chunk, and what was wrong after them."""
        ids: list[int] = []
        logprobs: list[float | None] = []
        finish: FinishReason | None = None
        error: EngineError | None = None
        try:
            for payload in self._lines.feed(data):
                if payload == b"[DONE]":
                    continue
                more_ids, more_logprobs, more_finish = self._event(payload)
                if finish is not None and (more_ids or more_finish):
                    raise EngineProtocol(f"{self._request_id}: the engine sent tokens after its finish reason")
                ids += more_ids
                logprobs += more_logprobs
                finish = more_finish or finish
        except EngineError as exc:
            error = exc
        if not ids and finish is None:
            return None, error
        token_ids, packed = self._checker.check(ids, logprobs, finish)
        return Chunk(token_ids, packed, finish, weights_version=self._version), error

    def _event(self, payload: bytes) -> tuple[list[int], list[float | None], FinishReason | None]:
        try:
            event = orjson.loads(payload)
        except orjson.JSONDecodeError as exc:
            raise EngineProtocol(f"{self._request_id}: an event is not JSON ({exc}): {payload[:80]!r}") from exc
        if not isinstance(event, dict):
            raise EngineProtocol(f"{self._request_id}: an event is not an object: {payload[:80]!r}")
        if "error" in event:
            error = event["error"]
            code = error.get("code") if isinstance(error, dict) else None
            raise answer_error(f"{self._request_id}: in mid-stream", code if isinstance(code, int) else 500, payload)
        if self.server_id is None and isinstance(event.get("request_id"), str):
            self.server_id = event["request_id"]
        try:
            if not event["choices"]:
                return [], [], None  # usage only
            (choice,) = event["choices"]
            ids, logprobs = _tokens(choice)
            finish = None if choice["finish_reason"] is None else FinishReason(choice["finish_reason"])
            self._version = _last_version(choice.get("weight_versions"))
        except (KeyError, TypeError, ValueError, AttributeError) as exc:
            raise EngineProtocol(
                f"{self._request_id}: an event is not of the expected shape ({exc!r}): {payload[:200]!r}"
            ) from exc
        if len(ids) != len(logprobs):
            raise EngineProtocol(
                f"{self._request_id}: {len(ids)} ids with {len(logprobs)} log-probabilities; start vLLM so that it returns them"
            )
        return ids, logprobs, finish


def _tokens(choice: dict[str, Any]) -> tuple[list[int], list[float | None]]:
    ids = json_ids(choice["token_ids"] or [])
    logprobs = choice["logprobs"]
    entries = (logprobs["content"] or []) if logprobs else []
    if entries and [entry["token_id"] for entry in entries] != ids:
        raise ValueError("the log-probabilities are of other ids than those sampled")
    return ids, json_logprobs([entry["logprob"] for entry in entries])


def _last_version(spans: Any) -> int | None:
    """The version of the last token, where the engine gives it and it is one of our numbers."""
    if not spans:
        return None
    version = str(spans[-1]["version"])
    return int(version) if version.isdecimal() else None
