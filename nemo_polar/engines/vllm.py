# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Client of a vLLM server: ids in over ``/inference/v1/generate``, ids and log-probabilities out, as they are sampled.

Start vLLM (0.32 is what this was written against) with ``--enable-scale-out --logprobs-mode processed_logprobs
--generation-config vllm``, and with ``VLLM_SERVER_DEV_MODE=1`` in its environment where weights are to be updated.
``connect`` proves the second and says so when it isn't the case. vLLM does the sampling; nothing is rendered, parsed or
retried here.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

import numpy as np

from nemo_polar.engines.base import Chunk, ChunkChecker, EngineInfo, GenerateRequest
from nemo_polar.engines.http_client import EngineHttp, answer_error, encode, json_logprobs, typed_errors
from nemo_polar.engines.probe import TEMPERATURE, TOP, ScalingTest
from nemo_polar.engines.vllm_stream import GenerateStream
from nemo_polar.errors import EngineError, EngineProtocol, EngineUnavailable
from nemo_polar.types import LogProbs, SamplingParams, TokenIds, as_ids

GENERATE = "/inference/v1/generate"
ABORT = "/inference/v1/abort_requests"
SERVER_ID_PREFIX = "generate-tokens-"
"""vLLM aborts by the id it made of ours. Given ours, it answers 200 and does nothing."""

_FLAG = "--logprobs-mode processed_logprobs"
_PROBE_PROMPTS = 8
_PROBE_IDS = range(32, 256)
"""Ids that every vocabulary has."""


class VllmEngine:
    """See the module. ``model``: the served name; None takes the first that the server lists.

    ``connect_timeout``: seconds to open a connection; ``idle_timeout``: seconds of silence after which a call counts as lost;
    ``probe`` False trusts the server's log-probabilities unproven.
    """

    name = "vllm"

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

    # --- life -----------------------------------------------------------------------------------------------------

    async def connect(self) -> EngineInfo:
        """See ``Engine.connect``."""
        await self.health()
        await self._read_models()
        if self._probe_wanted:
            await self._probe()
        assert self._model is not None and self._context is not None
        return EngineInfo(self._model, self._context, takes_ids=True, streams=True, scores=True)

    async def health(self) -> None:
        """See ``Engine.health``."""
        try:
            await self._http.call("GET", "/health", timeout=10.0)
        except EngineError as exc:
            raise EngineUnavailable(f"the engine at {self._http.url} cannot serve: {exc}") from exc

    async def close(self) -> None:
        """Wait a moment for aborts under way, then drop the connections."""
        if self._aborts:
            await asyncio.wait(self._aborts, timeout=2.0)
        await self._http.close()

    async def _read_models(self) -> None:
        answer = await self._http.call("GET", "/v1/models")
        try:
            cards = {str(card["id"]): card for card in answer["data"]}
            limits = [int(card["max_model_len"]) for card in cards.values() if card.get("max_model_len")]
        except (KeyError, TypeError, ValueError) as exc:
            raise EngineProtocol(f"GET /v1/models: not a vLLM models listing: {exc!r}") from exc
        if self._model is None:
            self._model = next(iter(cards), None)
        if self._model not in cards:
            raise EngineProtocol(f"the engine serves {', '.join(cards) or 'no model'}, not {self._model!r}")
        # An adapter's card carries no limit of its own: its base model's holds.
        own = cards[self._model].get("max_model_len")
        if not own and not limits:
            raise EngineProtocol("GET /v1/models: no max_model_len on any model; is this vLLM?")
        self._context = int(own or max(limits))

    # --- sampling -------------------------------------------------------------------------------------------------

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        """See ``Engine.generate``. Tokens that arrive together come as one chunk; the last waits for the end of the stream."""
        checker = ChunkChecker(request.request_id)
        stream = GenerateStream(request.request_id, checker)
        headers = {"X-Session-ID": request.session_id} if request.session_id else {}
        lost = False
        try:
            with typed_errors(f"{request.request_id}: POST {GENERATE}"):
                async with self._http.session.post(
                    self._http.url + GENERATE,
                    data=encode(self._body(request)),
                    headers={"Content-Type": "application/json", **headers},
                ) as response:
                    if response.status != 200:
                        stream.refused = True
                        raise answer_error(
                            f"{request.request_id}: POST {GENERATE}",
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
            # Leaving the block above in mid-stream has closed the connection, which aborts the sample in vLLM. Something in
            # between may hold that connection open, hence the request to abort as well.
            if not (checker.finished or lost or stream.refused):
                self._abort(stream.server_id or SERVER_ID_PREFIX + request.request_id)

    def _body(self, request: GenerateRequest) -> dict[str, Any]:
        return {
            "request_id": request.request_id,
            "model": self._model,
            "token_ids": np.ascontiguousarray(request.prompt_ids),
            "sampling_params": _sampling(request.sampling, request.max_tokens, request.stop_token_ids),
            "stream": True,
        }

    def _abort(self, server_id: str) -> None:
        task = asyncio.ensure_future(self._send_abort(server_id))
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    async def _send_abort(self, server_id: str) -> None:
        # Best effort: an engine that is gone has nothing left to abort.
        with suppress(EngineError):
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
                f"the engine at {self._http.url} {found}, and these cannot be trained on; start vLLM with {_FLAG}"
            )

    async def _first_tokens(self, request_id: str, prompt: TokenIds, temperature: float) -> dict[int, float]:
        """The likeliest first tokens after ``prompt`` and what the engine says of them, the sampled one included."""
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

    async def pause(self) -> None:
        """See ``Engine.pause``."""
        await self._admin("/pause?mode=abort")

    async def resume(self, weights_version: int) -> None:
        """See ``Engine.resume``.

        Raises:
            EngineError: the server has no such routes, or could not drop its cache; it stays paused then.
        """
        for _ in range(20):
            answer = await self._admin("/reset_prefix_cache")
            # vLLM answers 200 with success false while blocks are still held by samples that are ending.
            if not isinstance(answer, dict) or answer.get("success", True):
                break
            await asyncio.sleep(0.1)
        else:
            raise EngineError(
                f"the engine at {self._http.url} did not drop its prefix cache: it would mix old keys with new weights"
            )
        await self._admin("/update_weight_version", {"new_version": str(weights_version)})
        await self._admin("/resume")

    async def _admin(self, path: str, body: Any = None) -> Any:
        try:
            return await self._http.call("POST", path, body, timeout=60.0)
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
