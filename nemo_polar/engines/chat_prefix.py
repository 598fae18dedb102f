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

from dataclasses import replace
from typing import Any

from nemo_polar.engines.base import EngineInfo, GenerateRequest
from nemo_polar.engines.chat_body import chat_body
from nemo_polar.engines.chat_engine import ChatEngine
from nemo_polar.errors import EngineProtocol
from nemo_polar.types import ModelCall, SamplingParams


class ChatPrefixEngine(ChatEngine):
    """``temperature`` and ``top_p`` as in the trainer's config; ``max_context`` in tokens, as the server has no way to tell it.

    ``connect_timeout``: seconds to open a connection; ``idle_timeout``: seconds for a whole answer to come, as nothing is
    streamed.
    """

    name = "chat_prefix"
    remedy = "the server must be NeMo RL's, with expose_http_server"

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
        super().__init__(
            url,
            model,
            max_context=max_context,
            connect_timeout=connect_timeout,
            idle_timeout=idle_timeout,
            api_key=api_key,
        )
        self._temperature, self._top_p = temperature, top_p

    async def connect(self) -> EngineInfo:
        """Draw one token, to see that ids and log-probabilities come with it."""
        await self.probe(SamplingParams(temperature=self._temperature, top_p=self._top_p))
        return self.info

    def _body(self, request: GenerateRequest, call: ModelCall) -> dict[str, Any]:
        sampling = request.sampling
        wanted = replace(sampling, top_k=sampling.top_k or -1, max_tokens=None, stop=())
        if wanted != SamplingParams(temperature=self._temperature, top_p=self._top_p, seed=sampling.seed):
            raise EngineProtocol(
                f"{request.request_id}: this server samples at temperature {self._temperature} and top-p {self._top_p}, and "
                "nothing else; set the same in the sampling policy and let it override the harness"
            )
        body: dict[str, Any] = {
            "model": self._model,
            **chat_body(call),
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
