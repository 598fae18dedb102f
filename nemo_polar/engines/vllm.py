# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Client of a vLLM server: ids in over ``/inference/v1/generate``, ids and log-probabilities out, as they are sampled.

Start vLLM (0.32 is what this was written against) with ``--enable-scale-out --logprobs-mode processed_logprobs
--generation-config vllm``, and with ``VLLM_SERVER_DEV_MODE=1`` in its environment where weights are to be updated.
``connect`` proves the second and says so when it isn't the case. vLLM does the sampling; nothing is rendered, parsed or
retried here.
"""

from __future__ import annotations

import uuid
from typing import Any

import numpy as np

from nemo_polar.engines.base import ChunkChecker, GenerateRequest
from nemo_polar.engines.http_client import json_logprobs
from nemo_polar.engines.probe import TOP
from nemo_polar.engines.token_engine import TokenEngine, retry_flush
from nemo_polar.engines.token_stream import version_number
from nemo_polar.engines.vllm_stream import GenerateStream
from nemo_polar.errors import EngineError, EngineProtocol
from nemo_polar.types import LogProbs, SamplingParams, TokenIds, as_ids

GENERATE = "/inference/v1/generate"
ABORT = "/inference/v1/abort_requests"
SERVER_ID_PREFIX = "generate-tokens-"
"""vLLM aborts by the id it made of ours. Given ours, it answers 200 and does nothing."""


class VllmEngine(TokenEngine):
    """See the module, and ``TokenEngine`` for the options."""

    name = "vllm"
    server = "vLLM"
    generate_path = GENERATE
    logprobs_remedy = "start vLLM with --logprobs-mode processed_logprobs"

    async def _learn(self) -> tuple[str, int]:
        return await self._read_models()

    # --- sampling -------------------------------------------------------------------------------------------------

    def _body(self, request: GenerateRequest) -> dict[str, Any]:
        return {
            "request_id": request.request_id,
            "model": self._model,
            "token_ids": np.ascontiguousarray(request.prompt_ids),
            "sampling_params": _sampling(request.sampling, request.max_tokens, request.stop_token_ids),
            "stream": True,
        }

    def _stream(self, request: GenerateRequest, checker: ChunkChecker) -> GenerateStream:
        return GenerateStream(request.request_id, checker, prompt_tokens=len(request.prompt_ids), context=self._context)

    def _server_id(self, request_id: str) -> str:
        return SERVER_ID_PREFIX + request_id

    async def _request_abort(self, server_id: str) -> None:
        await self._http.call("POST", ABORT, {"request_ids": [server_id]}, timeout=5.0)

    # --- log-probabilities ------------------------------------------------------------------------------------------

    async def score(self, token_ids: TokenIds) -> LogProbs:
        """See ``Engine.score``. vLLM draws a token after the prompt, so N must be below the context length."""
        ids = as_ids(token_ids)
        if len(ids) < 2:
            return np.zeros(len(ids), dtype=np.float32)
        body = {
            "request_id": f"polar-score-{uuid.uuid4().hex}",
            "model": self._model,
            "prompt": ids,
            "max_tokens": 1,
            "temperature": 1.0,
            "prompt_logprobs": 0,
            "add_special_tokens": False,
        }
        answer = await self._http.call("POST", "/v1/completions", body, prompt_tokens=len(ids), context=self._context)
        return _prompt_logprobs(answer, ids)

    async def _first_tokens(self, request_id: str, prompt: TokenIds, temperature: float) -> dict[int, float]:
        body = {
            "request_id": request_id,
            "model": self._model,
            "token_ids": prompt,
            "sampling_params": {
                **_sampling(SamplingParams(temperature=temperature), 1, ()),
                "logprobs": TOP,
                "ignore_eos": True,
            },
            "stream": False,
        }
        try:
            answer = await self._http.call("POST", GENERATE, body)
        except EngineProtocol as exc:
            raise EngineProtocol(f"{exc} (token-in needs vLLM to be started with --enable-scale-out)") from exc
        try:
            entry = answer["choices"][0]["logprobs"]["content"][0]
            tokens = {int(top["token_id"]): float(top["logprob"]) for top in entry["top_logprobs"]}
            tokens[int(entry["token_id"])] = float(entry["logprob"])
        except (KeyError, IndexError, TypeError, ValueError) as exc:
            raise EngineProtocol(f"{request_id}: the engine returned no log-probabilities: {exc!r}") from exc
        return tokens

    # --- weights --------------------------------------------------------------------------------------------------

    async def weights_version(self) -> int | None:
        """See ``TellsWeights``. vLLM calls the weights it was started with ``default``; outside dev mode it does not say."""
        try:
            answer = await self._http.call("GET", "/weight_info", timeout=10.0)
        except EngineProtocol:
            return None
        return version_number(answer.get("weight_version")) if isinstance(answer, dict) else None

    async def pause(self) -> None:
        """See ``Engine.pause``."""
        await self.admin("/pause?mode=abort")

    async def resume(self, weights_version: int) -> None:
        """See ``Engine.resume``.

        Raises:
            EngineError: the server has no such routes, or could not drop its cache; it stays paused then.
        """
        await retry_flush(self._flush, self._http.url)
        await self.admin("/update_weight_version", {"new_version": str(weights_version)})
        await self.admin("/resume")

    async def _flush(self) -> bool:
        answer = await self.admin("/reset_prefix_cache")
        # vLLM answers 200 with success false while blocks are still held by samples that are ending.
        return not isinstance(answer, dict) or bool(answer.get("success", True))

    async def admin(self, path: str, body: Any = None, *, timeout: float = 60.0) -> Any:
        """POST to one of the server's own routes for weights; its answer, text where it is no JSON.

        Raises:
            EngineError: it refuses, or has no such route.
        """
        try:
            return await self._http.call("POST", path, body, timeout=timeout, text=True)
        except EngineProtocol as exc:
            raise EngineError(f"{exc}; start vLLM with VLLM_SERVER_DEV_MODE=1 in its environment to update weights") from exc


def _sampling(sampling: SamplingParams, max_tokens: int, stop_token_ids: tuple[int, ...]) -> dict[str, Any]:
    params: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        "max_tokens": max_tokens,
        "stop_token_ids": list(stop_token_ids),
        "logprobs": 0,  # the sampled token's own, and no others
        "detokenize": False,
    }
    if sampling.seed is not None:
        params["seed"] = sampling.seed
    return params


def _prompt_logprobs(answer: Any, ids: TokenIds) -> LogProbs:
    try:
        entries = answer["choices"][0]["prompt_logprobs"]
        if len(entries) != len(ids):
            raise ValueError(f"{len(entries)} entries for {len(ids)} tokens")
        found = json_logprobs(
            [entry[str(token)]["logprob"] for entry, token in zip(entries[1:], ids[1:].tolist(), strict=True)]
        )
    except (KeyError, IndexError, TypeError, ValueError) as exc:
        raise EngineProtocol(f"POST /v1/completions: no prompt log-probabilities for these ids: {exc!r}") from exc
    _, logprobs = ChunkChecker("score").check(ids[1:], found)
    return np.concatenate([np.zeros(1, dtype=np.float32), logprobs])
