# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What every HTTP engine client shares: one aiohttp session, and failures as errors of our tree. Nothing is retried here."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import aiohttp
import orjson

from nemo_polar.errors import (
    EngineError,
    EngineOverflow,
    EngineOverloaded,
    EngineProtocol,
    EngineTimeout,
    EngineUnavailable,
)
from nemo_polar.logs import hide

_TOO_LONG = re.compile(
    r"maximum (model|context) length|longer than the (maximum|model's context)|context length exceeded|max_model_len"
    r"|maximum allowed length",
    re.I,
)
"""How vLLM, SGLang and OpenAI-like servers say that a prompt does not fit."""


class EngineHttp:
    """A lazily opened session to one engine.

    ``connect_timeout``: seconds to open a connection. ``idle_timeout``: seconds without a byte, headers included.
    """

    def __init__(self, url: str, *, connect_timeout: float, idle_timeout: float, api_key: str | None):
        self.url = url.rstrip("/").removesuffix("/v1")
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout, sock_read=idle_timeout)
        hide(api_key)
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._session: aiohttp.ClientSession | None = None

    @property
    def session(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            self._session = aiohttp.ClientSession(
                timeout=self._timeout,
                headers=self._headers,
                connector=aiohttp.TCPConnector(limit=0),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=True,
                read_bufsize=2**18,
            )
        return self._session

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        prompt_tokens: int | None = None,
        context: int | None = None,
        text: bool = False,
    ) -> Any:
        """One request with a JSON answer; an empty one is None. With ``text``, an answer that is no JSON comes as a string.

        Raises:
            EngineError: one of its kinds; for the meaning of ``prompt_tokens`` and ``context`` see ``answer_error``.
        """
        status, data = await self.answer(method, path, body, headers=headers, timeout=timeout)
        if status != 200:
            raise answer_error(f"{method} {path}", status, data, prompt_tokens=prompt_tokens, context=context)
        if not data:
            return None
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError as exc:
            if text:
                return data.decode("utf-8", "replace")
            raise EngineProtocol(f"{method} {path}: the engine's answer is not JSON: {exc}") from exc

    async def answer(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> tuple[int, bytes]:
        """One request; status and body of the answer, whatever they are.

        Raises:
            EngineUnavailable, EngineTimeout: there was none.
        """
        total = aiohttp.ClientTimeout(total=timeout) if timeout is not None else self._timeout
        with typed_errors(f"{method} {self.url}{path}"):
            async with self.session.request(
                method, self.url + path, data=encode(body), headers=_json(headers, body), timeout=total
            ) as response:
                return response.status, await response.read()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None


def encode(body: Any) -> bytes | None:
    """JSON; packed arrays are written as they are, without becoming Python ints first."""
    return None if body is None else orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)


def _json(headers: Mapping[str, str] | None, body: Any) -> dict[str, str]:
    return {**(headers or {}), **({"Content-Type": "application/json"} if body is not None else {})}


@contextmanager
def typed_errors(what: str) -> Iterator[None]:
    """Transport failures as ``EngineUnavailable`` or ``EngineTimeout``."""
    try:
        yield
    except aiohttp.ConnectionTimeoutError as exc:
        raise EngineUnavailable(f"{what}: no connection in time") from exc
    except TimeoutError as exc:
        raise EngineTimeout(f"{what}: the engine sent nothing for too long") from exc
    except aiohttp.InvalidURL as exc:
        raise EngineUnavailable(f"{what}: not a URL an engine can be reached at") from exc
    except (aiohttp.ClientError, OSError) as exc:
        raise EngineUnavailable(f"{what}: {type(exc).__name__}: {exc}") from exc


def answer_error(
    what: str, status: int, data: bytes, *, prompt_tokens: int | None = None, context: int | None = None
) -> EngineError:
    """An answer other than 200 as an error. A 400 means an overflow when the prompt cannot fit, or the message says so."""
    message = error_message(data)
    text = f"{what}: HTTP {status}: {message}"
    if status in (429, 503):
        return EngineOverloaded(text)
    if status >= 500 or status == 408:
        return EngineUnavailable(text)
    too_long = prompt_tokens is not None and context is not None and prompt_tokens >= context
    if status in (400, 413, 422) and (too_long or _TOO_LONG.search(message)):
        return EngineOverflow(text)
    return EngineProtocol(text)


def error_message(data: bytes) -> str:
    """The sentence in an error body of any of the usual shapes, at most 500 characters."""
    try:
        raw = orjson.loads(data)
    except orjson.JSONDecodeError:
        return data[:500].decode("utf-8", "replace").strip() or "(empty answer)"
    if isinstance(raw, dict):
        inner = raw.get("error", raw.get("detail", raw))
        if isinstance(inner, dict):
            inner = inner.get("message", inner)
        return str(inner)[:500]
    return str(raw)[:500]


def json_ids(values: Any) -> list[int]:
    """``values`` from JSON, if they are token ids.

    Raises:
        ValueError: an entry is not a non-negative 32-bit integer.
        TypeError: not a list.
    """
    if values and not (set(map(type, values)) == {int} and min(values) >= 0 and max(values) < 2**31):
        raise ValueError("a token id is not a non-negative 32-bit integer")
    return values


def json_logprobs(values: Any) -> list[float | None]:
    """``values`` from JSON, if they are numbers or null; which of these will do is ``ChunkChecker``'s business.

    Raises:
        ValueError: an entry is neither.
        TypeError: not a list.
    """
    if not set(map(type, values)) <= {float, int, type(None)}:
        raise ValueError("a log-probability is not a number")
    return values
