# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Client of a chat-only server that keeps a required prefix: NeMo RL's vLLM HTTP server.

Such a server takes messages and renders them itself. It reports the ids it used and sampled, with log-probabilities, and
given ``required_prefix_token_ids`` it keeps these ids in place of its own rendering of the same history. It does *not* check
that the history's text is unchanged, so the proxy sends a prefix only on a verified append, and compares the reported prompt
with its tree.

The server asserts that temperature and top-p are exactly those of its own config, that top-p is given and top-k is not, and
it attaches ids only to whole answers. Its log-probabilities can't be probed at another temperature for that reason; NeMo RL
starts vLLM with processed ones itself. Weights are the trainer's business: it never serves while they change.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

from nemo_polar.engines.base import Chunk, ChunkChecker, EngineInfo, GenerateRequest
from nemo_polar.engines.chat_body import chat_body
from nemo_polar.engines.http_client import EngineHttp, json_ids, json_logprobs
from nemo_polar.errors import EngineError, EngineProtocol, EngineUnavailable
from nemo_polar.types import (
    FinishReason,
    LogProbs,
    Message,
    ModelCall,
    Role,
    SamplingParams,
    Text,
    TokenIds,
    as_ids,
)

CHAT = "/v1/chat/completions"
_FINISH = {
    "stop": FinishReason.STOP,
    "tool_calls": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "abort": FinishReason.ABORT,
}


class ChatPrefixEngine:
    """``temperature`` and ``top_p`` as in the trainer's config; ``max_context`` in tokens, as the server has no way to tell it.

    ``connect_timeout``: seconds to open a connection; ``idle_timeout``: seconds for a whole answer to come, as nothing is
    streamed.
    """

    name = "chat_prefix"

    def __init__(
        self,
        url: str,
        model: str,
        *,
        max_context: int,
        temperature: float = 1.0,
        top_p: float = 1.0,
        connect_timeout: float = 10.0,
        idle_timeout: float = 1800.0,
        api_key: str | None = None,
    ):
        self._http = EngineHttp(url, connect_timeout=connect_timeout, idle_timeout=idle_timeout, api_key=api_key)
        self._model, self._context = model, max_context
        self._temperature, self._top_p = temperature, top_p

    async def connect(self) -> EngineInfo:
        """Draw one token, to see that ids and log-probabilities come with it."""
        probe = ModelCall(messages=(Message(Role.USER, (Text("Hi"),)),))
        request = GenerateRequest(
            request_id=f"polar-probe-{uuid.uuid4().hex}",
            prompt_ids=as_ids([]),
            sampling=SamplingParams(temperature=self._temperature, top_p=self._top_p),
            stop_token_ids=(),
            max_tokens=1,
            chat=probe,
        )
        async for _ in self.generate(request):
            pass
        return EngineInfo(self._model, self._context, takes_ids=False, streams=False, scores=False)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        """See ``Engine.generate``: one chunk, with the prompt as the server says it saw it.

        Raises:
            EngineProtocol: also when the request asks for sampling that the server would refuse.
        """
        body = self._body(request)
        answer = await self._http.call(
            "POST",
            CHAT,
            body,
            headers={"X-Request-Id": request.request_id, "X-Session-ID": request.session_id or request.request_id},
            prompt_tokens=len(request.prompt_ids),
            context=self._context,
        )
        yield _chunk(request.request_id, answer)

    async def score(self, token_ids: TokenIds) -> LogProbs:
        """Not possible: the server takes no ids."""
        raise EngineError("a chat-only server cannot score token ids; use an engine that takes ids (vllm)")

    async def health(self) -> None:
        """See ``Engine.health``. The server has no health route: any answer at all will do."""
        try:
            await self._http.call("GET", "/health", timeout=10.0)
        except EngineProtocol:
            return
        except EngineError as exc:
            raise EngineUnavailable(f"the engine at {self._http.url} cannot serve: {exc}") from exc

    async def pause(self) -> None:
        """Not possible: the trainer behind the server decides when it sleeps."""
        raise EngineError(
            "a chat-only server cannot be paused with ids kept; end the rollouts before the trainer updates weights"
        )

    async def resume(self, weights_version: int) -> None:
        """Nothing to do: the trainer behind the server has replaced the weights and dropped its caches."""

    async def close(self) -> None:
        await self._http.close()

    def _body(self, request: GenerateRequest) -> dict[str, Any]:
        sampling = request.sampling
        if request.chat is None:
            raise EngineProtocol(f"{request.request_id}: a chat-only server needs the request as messages")
        wanted = replace(sampling, top_k=sampling.top_k or -1, max_tokens=None, stop=())
        if wanted != SamplingParams(temperature=self._temperature, top_p=self._top_p, seed=sampling.seed):
            raise EngineProtocol(
                f"{request.request_id}: this server samples at temperature {self._temperature} and top-p {self._top_p}, and "
                "nothing else; set the same in the sampling policy and let it override the harness"
            )
        body: dict[str, Any] = {
            "model": self._model,
            **chat_body(request.chat),
            "temperature": self._temperature,
            "top_p": self._top_p,
            "n": 1,
            "max_tokens": request.max_tokens,
            "stream": False,
            "logprobs": True,
            "return_tokens_as_token_ids": True,
        }
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        if request.required_prefix > 0:
            body["required_prefix_token_ids"] = request.prompt_ids[: request.required_prefix]
        return body


def _chunk(request_id: str, answer: Any) -> Chunk:
    try:
        (choice,) = answer["choices"]
        message = choice["message"]
        prompt, sampled = json_ids(message["prompt_token_ids"]), json_ids(message["generation_token_ids"])
        logprobs = json_logprobs(message["generation_log_probs"])
        finish = _FINISH[choice["finish_reason"]]
    except (KeyError, TypeError, ValueError) as exc:
        raise EngineProtocol(
            f"{request_id}: the answer lacks token ids or log-probabilities ({exc!r}); the server must be NeMo RL's, "
            "with expose_http_server"
        ) from exc
    token_ids, packed = ChunkChecker(request_id).check(sampled, logprobs, finish)
    return Chunk(token_ids, packed, finish, prompt_ids=as_ids(prompt))
