# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Reads one streamed sample: server-sent events in, checked chunks out. What an event holds is each engine's own business.

Whatever is missing, misaligned or cut is an error, never a guess.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from typing import Any, TypeAlias

import aiohttp
import orjson

from nemo_polar.engines.base import Chunk, ChunkChecker
from nemo_polar.engines.http_client import answer_error, json_ids, json_logprobs
from nemo_polar.engines.sse import SseLines
from nemo_polar.errors import EngineError, EngineProtocol
from nemo_polar.types import FinishReason

_TAIL_SECONDS = 1.0
"""How long the end marker may take after the finish reason."""

Sampled: TypeAlias = tuple[list[int], list[float | None], FinishReason | None]
"""New ids, their log-probabilities, and why sampling ended (None: it goes on)."""


class TokenStream(ABC):
    """``over``: the server refused the sample or said that it failed, so there is nothing left to abort. ``server_id``: its
    own name for the sample, once it has told."""

    def __init__(self, request_id: str, checker: ChunkChecker, *, prompt_tokens: int, context: int | None = None):
        self._request_id, self._checker = request_id, checker
        self._prompt_tokens, self._context = prompt_tokens, context
        self._lines = SseLines()
        self._version: int | None = None
        self.server_id: str | None = None
        self.over = False

    @abstractmethod
    def _sampled(self, event: dict[str, Any]) -> Sampled:
        """What is new in ``event``. Sets ``_version`` where the engine reports one.

        Raises:
            EngineError: the engine says that it failed, or what it sent cannot be.
            LookupError, TypeError, ValueError, AttributeError: the event is not of the engine's shape.
        """

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
        try:
            payloads = [payload for payload in self._lines.feed(data) if payload != b"[DONE]"]
        except EngineProtocol as exc:
            return None, exc
        events = self._loaded(payloads)
        ids: list[int] = []
        logprobs: list[float | None] = []
        finish: FinishReason | None = None
        error: EngineError | None = None
        try:
            for event, payload in zip(events, payloads, strict=True):
                more_ids, more_logprobs, more_finish = self._event(event, payload)
                if finish is not None and (more_ids or more_finish):
                    raise EngineProtocol(f"{self._request_id}: the engine sent tokens after its finish reason")
                ids += more_ids
                logprobs += more_logprobs
                finish = more_finish or finish
        except EngineError as exc:
            error = exc
        if not ids and finish is None:
            return None, error
        try:
            json_ids(ids)
            json_logprobs(logprobs)
        except ValueError as exc:
            raise EngineProtocol(
                f"{self._request_id}: an event is not of the expected shape ({exc!r}): {data[:200]!r}"
            ) from exc
        token_ids, packed = self._checker.check(ids, logprobs, finish)
        return Chunk(token_ids, packed, finish, weights_version=self._version), error

    @staticmethod
    def _loaded(payloads: list[bytes]) -> list[Any]:
        """Each payload as JSON, all in one go; the text itself for those from the first that is none, should there be one."""
        try:
            events = orjson.loads(b"[" + b",".join(payloads) + b"]")
            if len(events) == len(payloads):
                return events
        except orjson.JSONDecodeError:
            pass
        return list(payloads)

    def _event(self, event: Any, payload: bytes) -> Sampled:
        if isinstance(event, bytes):
            try:
                event = orjson.loads(payload)
            except orjson.JSONDecodeError as exc:
                raise EngineProtocol(f"{self._request_id}: an event is not JSON ({exc}): {payload[:80]!r}") from exc
        if not isinstance(event, dict):
            raise EngineProtocol(f"{self._request_id}: an event is not an object: {payload[:80]!r}")
        if "error" in event:
            error = event["error"]
            code = error.get("code") if isinstance(error, dict) else None
            raise self._failed(code if isinstance(code, int) else 500, payload)
        try:
            sampled = self._sampled(event)
        except (LookupError, TypeError, ValueError, AttributeError) as exc:
            raise EngineProtocol(
                f"{self._request_id}: an event is not of the expected shape ({exc!r}): {payload[:200]!r}"
            ) from exc
        ids, logprobs, _ = sampled
        if len(ids) != len(logprobs):
            raise EngineProtocol(
                f"{self._request_id}: {len(ids)} ids with {len(logprobs)} log-probabilities; the engine must return them all"
            )
        return sampled

    def _failed(self, status: int, payload: bytes) -> EngineError:
        """A failure that came as an event, typed as the same answer before the stream would be."""
        self.over = True
        what = f"{self._request_id}: in mid-stream"
        return answer_error(what, status, payload, prompt_tokens=self._prompt_tokens, context=self._context)


def version_number(version: Any) -> int | None:
    """A weights version as engines report it (text), if it is one of our numbers."""
    text = str(version)
    return int(text) if text.isdecimal() else None
