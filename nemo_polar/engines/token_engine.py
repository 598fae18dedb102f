# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What clients of token-in/token-out HTTP servers share: one sample's life, aborts, and the proof of log-probabilities.

A subclass says what its server's requests and events look like. Nothing is rendered, parsed or retried here.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import Any

from nemo_polar.engines.base import Chunk, ChunkChecker, EngineInfo, GenerateRequest
from nemo_polar.engines.http_client import EngineHttp, answer_error, encode, typed_errors
from nemo_polar.engines.probe import TEMPERATURE, ScalingTest
from nemo_polar.engines.token_stream import TokenStream
from nemo_polar.errors import EngineError, EngineProtocol, EngineUnavailable
from nemo_polar.types import TokenIds, as_ids

_PROBE_PROMPTS = 8
_PROBE_IDS = range(32, 256)
"""Ids that every vocabulary has."""
_FLUSH_TRIES, _FLUSH_SECONDS = 20, 0.1


class TokenEngine(ABC):
    """``model``: the served name; None takes the first that the server lists.

    ``connect_timeout``: seconds to open a connection; ``idle_timeout``: seconds of silence after which a call counts as lost;
    ``probe`` False trusts the server's log-probabilities unproven.
    """

    generate_path: str
    server: str
    """The server's name, for messages."""
    logprobs_remedy: str
    """What to do when its log-probabilities are not those of the sampling distribution."""
    health_seconds = 10.0
    """How long the server's own health check may take."""

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        connect_timeout: float = 10.0,
        idle_timeout: float = 300.0,
        api_key: str | None = None,
        probe: bool = True,
    ):
        self._http = EngineHttp(url, connect_timeout=connect_timeout, idle_timeout=idle_timeout, api_key=api_key)
        self._model = model
        self._probe_wanted = probe
        self._context: int | None = None
        self._aborts: set[asyncio.Task[None]] = set()

    # --- a subclass's part ------------------------------------------------------------------------------------------

    @abstractmethod
    async def _learn(self) -> tuple[str, int]:
        """The model's name and its context in tokens.

        Raises:
            EngineError: the server cannot be used; the message says why.
        """

    @abstractmethod
    def _body(self, request: GenerateRequest) -> dict[str, Any]:
        """The streamed request.

        Raises:
            EngineProtocol: the server cannot report log-probabilities for what is asked.
        """

    @abstractmethod
    def _stream(self, request: GenerateRequest, checker: ChunkChecker) -> TokenStream:
        """A reader for its answer."""

    @abstractmethod
    async def _request_abort(self, server_id: str) -> None:
        """Ask the server to end one sample."""

    @abstractmethod
    async def _first_tokens(self, request_id: str, prompt: TokenIds, temperature: float) -> dict[int, float]:
        """The likeliest first tokens after ``prompt`` and what the engine says of them, the sampled one included."""

    def _server_id(self, request_id: str) -> str:
        """What the server calls a request of ours, before it has said so."""
        return request_id

    # --- life -----------------------------------------------------------------------------------------------------

    async def connect(self) -> EngineInfo:
        """See ``Engine.connect``."""
        await self.health()
        self._model, self._context = await self._learn()
        if self._probe_wanted:
            await self._probe()
        return EngineInfo(self._model, self._context, takes_ids=True, streams=True, scores=True)

    async def health(self) -> None:
        """See ``Engine.health``."""
        try:
            await self._http.call("GET", "/health", timeout=self.health_seconds)
        except EngineError as exc:
            raise EngineUnavailable(f"the engine at {self._http.url} cannot serve: {exc}") from exc

    async def close(self) -> None:
        """Wait a moment for aborts under way, then drop the connections."""
        if self._aborts:
            await asyncio.wait(self._aborts, timeout=2.0)
        await self._http.close()

    async def _read_models(self) -> tuple[str, int]:
        """The model to use and its context, from the OpenAI listing with the field that vLLM and SGLang add to it."""
        answer = await self._http.call("GET", "/v1/models")
        try:
            cards = {str(card["id"]): card for card in answer["data"]}
            limits = [int(card["max_model_len"]) for card in cards.values() if card.get("max_model_len")]
        except (KeyError, TypeError, ValueError) as exc:
            raise EngineProtocol(f"GET /v1/models: not a models listing of {self.server}: {exc!r}") from exc
        model = next(iter(cards), None) if self._model is None else self._model
        if model is None or model not in cards:
            raise EngineProtocol(f"the engine serves {', '.join(cards) or 'no model'}, not {model!r}")
        # An adapter's card carries no limit of its own: its base model's holds.
        own = cards[model].get("max_model_len")
        if not own and not limits:
            raise EngineProtocol(f"GET /v1/models: no max_model_len on any model; is this {self.server}?")
        return model, int(own or max(limits))

    # --- sampling -------------------------------------------------------------------------------------------------

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        """See ``Engine.generate``. Tokens that arrive together come as one chunk; the last waits for the end of the stream."""
        checker = ChunkChecker(request.request_id)
        body, stream = self._body(request), self._stream(request, checker)
        what = f"{request.request_id}: POST {self.generate_path}"
        headers = {"X-Session-ID": request.session_id} if request.session_id else {}
        lost = False
        try:
            with typed_errors(what):
                async with self._http.session.post(
                    self._http.url + self.generate_path,
                    data=encode(body),
                    headers={"Content-Type": "application/json", **headers},
                ) as response:
                    if response.status != 200:
                        stream.over = True
                        raise answer_error(
                            what,
                            response.status,
                            await response.read(),
                            prompt_tokens=len(request.prompt_ids),
                            context=self._context,
                        )
                    async for chunk in stream.chunks(response):
                        yield chunk
        except EngineUnavailable:
            lost = True
            raise
        finally:
            # Leaving the block above in mid-stream has closed the connection, which aborts the sample in the engine. Something
            # in between may hold that connection open, hence the request to abort as well.
            if not (checker.finished or lost or stream.over):
                self._abort(stream.server_id or self._server_id(request.request_id))

    def _abort(self, server_id: str) -> None:
        task = asyncio.ensure_future(self._send_abort(server_id))
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    async def _send_abort(self, server_id: str) -> None:
        # Best effort: an engine that is gone has nothing left to abort.
        with suppress(EngineError):
            await self._request_abort(server_id)

    # --- log-probabilities ------------------------------------------------------------------------------------------

    async def _probe(self) -> None:
        """Raise unless log-probabilities are those of the sampling distribution."""
        test, name = ScalingTest(), uuid.uuid4().hex
        rng = random.Random(0)
        for number in range(_PROBE_PROMPTS):
            prompt = as_ids(rng.choices(_PROBE_IDS, k=8))
            plain = await self._first_tokens(f"polar-probe-{name}-{number}a", prompt, 1.0)
            tempered = await self._first_tokens(f"polar-probe-{name}-{number}b", prompt, TEMPERATURE)
            test.add(plain, tempered)
            if number and test.verdict() != "undecided":
                break
        verdict = test.verdict()
        if verdict != "processed":
            found = {
                "raw": "returns log-probabilities from before temperature and truncation",
                "unnormalised": "returns logits where log-probabilities are asked for",
            }.get(verdict, f"returns log-probabilities that could not be told apart after {_PROBE_PROMPTS} prompts")
            raise EngineProtocol(
                f"the engine at {self._http.url} {found}, and these cannot be trained on; {self.logprobs_remedy}"
            )


async def retry_flush(flush: Callable[[], Awaitable[bool]], url: str) -> None:
    """Call ``flush`` until it says that the prefix cache is gone: engines refuse while samples are still ending.

    Raises:
        EngineError: it was not, many times over two seconds; what ``flush`` raises.
    """
    for _ in range(_FLUSH_TRIES):
        if await flush():
            return
        await asyncio.sleep(_FLUSH_SECONDS)
    raise EngineError(f"the engine at {url} did not drop its prefix cache: it would mix old keys with new weights")
