# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What clients of chat-only servers share: messages in, a whole answer out, with the ids that the server says it used.

Such a server renders the messages itself, and takes no ids. What it reports as its prompt goes up with the sample, and the
proxy compares that with its tree: a difference forks there, and is counted. Nothing is streamed, and nothing is rendered,
parsed or compared here. Weights are the business of whoever runs the server.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from typing import Any

from nemo_polar.engines.base import Chunk, ChunkChecker, EngineInfo, GenerateRequest
from nemo_polar.engines.http_client import EngineHttp, json_ids, json_logprobs
from nemo_polar.errors import EngineError, EngineProtocol, EngineUnavailable
from nemo_polar.types import FinishReason, LogProbs, Message, ModelCall, Role, SamplingParams, Text, TokenIds, as_ids

CHAT = "/v1/chat/completions"
PROBE_ID = "polar-probe"
"""How the ids of requests begin that are made to learn something about the server."""
_FINISH = {
    "stop": FinishReason.STOP,
    "tool_calls": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "abort": FinishReason.ABORT,
}


class ChatEngine(ABC):
    """A subclass says what goes into a request and where in the answer the ids are."""

    remedy: str
    """What to do about an answer without ids or log-probabilities."""

    def __init__(
        self, url: str, model: str, *, max_context: int, connect_timeout: float, idle_timeout: float, api_key: str | None
    ):
        self._http = EngineHttp(url, connect_timeout=connect_timeout, idle_timeout=idle_timeout, api_key=api_key)
        self._model = model
        self._context = max_context

    # --- a subclass's part ------------------------------------------------------------------------------------------

    @abstractmethod
    def _body(self, request: GenerateRequest, call: ModelCall) -> dict[str, Any]:
        """The request.

        Raises:
            EngineProtocol: the server would not draw what is asked for.
        """

    def _prompt_ids(self, answer: dict[str, Any], message: dict[str, Any]) -> Any:
        """The ids of the prompt, as the answer has them."""
        return message["prompt_token_ids"]

    async def _answer(self, request: GenerateRequest, body: dict[str, Any]) -> Any:
        """The server's answer to ``body``, parsed."""
        return await self._http.call(
            "POST",
            CHAT,
            body,
            headers={"X-Request-Id": request.request_id, "X-Session-ID": request.session_id or request.request_id},
            prompt_tokens=len(request.prompt_ids),
            context=self._context,
        )

    # --- life -------------------------------------------------------------------------------------------------------

    @property
    def info(self) -> EngineInfo:
        """What is known of the server."""
        return EngineInfo(self._model, self._context, takes_ids=False, streams=False, scores=False)

    async def probe(self, sampling: SamplingParams, *, max_tokens: int = 1, words: str = "Hi") -> Chunk:
        """Draw a few tokens, to see that ids and log-probabilities come with them.

        Raises:
            EngineError: they don't, or there was no answer.
        """
        request = GenerateRequest(
            request_id=f"{PROBE_ID}-{uuid.uuid4().hex}",
            prompt_ids=as_ids([]),
            sampling=sampling,
            stop_token_ids=(),
            max_tokens=max_tokens,
            chat=ModelCall(messages=(Message(Role.USER, (Text(words),)),)),
        )
        return [chunk async for chunk in self.generate(request)][-1]

    async def health(self) -> None:
        """See ``Engine.health``. These servers have no health route: any answer at all will do."""
        try:
            await self._http.call("GET", "/health", timeout=10.0)
        except EngineProtocol:
            return
        except EngineError as exc:
            raise EngineUnavailable(f"the engine at {self._http.url} cannot serve: {exc}") from exc

    async def close(self) -> None:
        await self._http.close()

    # --- sampling ---------------------------------------------------------------------------------------------------

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        """See ``Engine.generate``: one chunk, with the prompt as the server says it saw it.

        Raises:
            EngineProtocol: also when the request asks for what the server would not draw.
        """
        if request.chat is None:
            raise EngineProtocol(f"{request.request_id}: a chat-only server needs the request as messages")
        answer = await self._answer(request, self._body(request, request.chat))
        yield self._chunk(request.request_id, answer)

    async def score(self, token_ids: TokenIds) -> LogProbs:
        """Not possible: the server takes no ids."""
        raise EngineError("a chat-only server cannot score token ids; use an engine that takes ids (vllm)")

    async def pause(self) -> None:
        """Not possible: whoever runs the server decides when it sleeps."""
        raise EngineError(
            "a chat-only server cannot be paused with ids kept; end the rollouts before the trainer updates weights"
        )

    async def resume(self, weights_version: int) -> None:
        """Nothing to do: the weights were replaced, and caches dropped, by whoever runs the server."""
        return

    def _chunk(self, request_id: str, answer: Any) -> Chunk:
        try:
            (choice,) = answer["choices"]
            message = choice["message"]
            prompt, sampled = json_ids(self._prompt_ids(answer, message)), json_ids(message["generation_token_ids"])
            logprobs = json_logprobs(message["generation_log_probs"])
            finish = _FINISH[choice["finish_reason"]]
        except (KeyError, TypeError, ValueError) as exc:
            raise EngineProtocol(
                f"{request_id}: the answer lacks token ids or log-probabilities ({exc!r}); {self.remedy}"
            ) from exc
        token_ids, packed = ChunkChecker(request_id).check(sampled, logprobs, finish)
        return Chunk(token_ids, packed, finish, prompt_ids=as_ids(prompt))
