# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Client of an SGLang server: ids in over ``/generate``, ids and log-probabilities out, as they are sampled.

Written against the source of SGLang 0.5.23 and tested against a scripted server of its shape; not run against a real server.

Start SGLang with ``--incremental-streaming-output``, or every event repeats the whole reply so far: both are read, but the cost
of the second grows with the square of the reply. ``SGLANG_RETURN_ORIGINAL_LOGPROB`` must not be set: with it, log-probabilities
are those from before the temperature, which ``connect`` finds out. A server that would change requests behind our back
(``--allow-auto-truncate``, ``--preferred-sampling-params``, ``--enable-watermark``) is refused there too.

SGLang reports the log-probabilities of the distribution *after* temperature and penalties and *before* top-p, top-k and min-p.
A truncated sample is therefore refused, by name, before it is drawn.

Two ways of SGLang's to know: it aborts every sample whose id *begins* with the given one, so request ids must not be prefixes
of each other (the proxy's have one length); and while it is paused its health check fails.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import numpy as np

from nemo_polar.engines.base import ChunkChecker, GenerateRequest
from nemo_polar.engines.http_client import answer_error, json_ids, json_logprobs
from nemo_polar.engines.probe import TOP
from nemo_polar.engines.sglang_stream import SglangStream
from nemo_polar.engines.token_engine import TokenEngine, retry_flush
from nemo_polar.engines.token_stream import version_number
from nemo_polar.errors import EngineError, EngineProtocol
from nemo_polar.logs import hide
from nemo_polar.types import LogProbs, SamplingParams, TokenIds, as_ids

GENERATE = "/generate"
ABORT = "/abort_request"
_REFUSED_FLAGS = ("allow_auto_truncate", "enable_watermark")
"""Options of the server under which it does not sample what it was asked for."""


class SglangEngine(TokenEngine):
    """See the module, and ``TokenEngine`` for the options. ``admin_api_key``: where the server has one, it is what aborts and
    weight updates need."""

    name = "sglang"
    server = "SGLang"
    generate_path = GENERATE
    logprobs_remedy = "start SGLang without SGLANG_RETURN_ORIGINAL_LOGPROB in its environment"
    health_seconds = 30.0
    """Its check draws a token and gives up after 20 s."""

    def __init__(self, url: str, *, admin_api_key: str | None = None, **options: Any):
        super().__init__(url, **options)
        hide(admin_api_key)
        self._admin_headers = {"Authorization": f"Bearer {admin_api_key}"} if admin_api_key else {}

    async def _learn(self) -> tuple[str, int]:
        model, context = await self._read_models()
        info = await self._http.call("GET", "/server_info")
        if not isinstance(info, dict):
            raise EngineProtocol("GET /server_info: not an object; is this SGLang?")
        self._refuse(info)
        # What the key cache holds may be less than the model's context; a prompt of this length is refused.
        room = info.get("max_req_input_len")
        return model, min(context, room) if isinstance(room, int) and room > 0 else context

    def _refuse(self, info: Mapping[str, Any]) -> None:
        found = [f"--{flag.replace('_', '-')}" for flag in _REFUSED_FLAGS if info.get(flag)]
        preferred, sent = info.get("preferred_sampling_params"), _sampling("", SamplingParams(), 1, ())
        if preferred and not (isinstance(preferred, dict) and preferred.keys() <= sent.keys()):
            found.append("--preferred-sampling-params")  # they fill in what a request leaves out
        if found:
            raise EngineProtocol(
                f"the engine at {self._http.url} was started with {', '.join(found)}, and so does not sample what it is asked "
                "for; start SGLang without"
            )

    # --- sampling -------------------------------------------------------------------------------------------------

    def _body(self, request: GenerateRequest) -> dict[str, Any]:
        return {
            "rid": request.request_id,
            "input_ids": np.ascontiguousarray(request.prompt_ids),
            "sampling_params": _sampling(request.request_id, request.sampling, request.max_tokens, request.stop_token_ids),
            "return_logprob": True,
            "stream": True,
        }

    def _stream(self, request: GenerateRequest, checker: ChunkChecker) -> SglangStream:
        return SglangStream(request.request_id, checker, prompt_tokens=len(request.prompt_ids), context=self._context)

    async def _request_abort(self, server_id: str) -> None:
        await self._http.call("POST", ABORT, {"rid": server_id}, headers=self._admin_headers, timeout=5.0)

    # --- log-probabilities ------------------------------------------------------------------------------------------

    async def score(self, token_ids: TokenIds) -> LogProbs:
        """See ``Engine.score``. The prompt alone is computed, past the prefix cache; N must be below the context length."""
        ids = as_ids(token_ids)
        if len(ids) < 2:
            return np.zeros(len(ids), dtype=np.float32)
        name = f"polar-score-{uuid.uuid4().hex}"
        body = {
            "rid": name,
            "input_ids": ids,
            "sampling_params": _sampling(name, SamplingParams(), 0, ()),
            "return_logprob": True,
            "logprob_start_len": 0,
            "stream": False,
        }
        answer = await self._http.call("POST", GENERATE, body, prompt_tokens=len(ids), context=self._context)
        return _input_logprobs(answer, ids)

    async def _first_tokens(self, request_id: str, prompt: TokenIds, temperature: float) -> dict[int, float]:
        body = {
            "rid": request_id,
            "input_ids": prompt,
            "sampling_params": {
                **_sampling(request_id, SamplingParams(temperature=temperature), 1, ()),
                "ignore_eos": True,
            },
            "return_logprob": True,
            "top_logprobs_num": TOP,
            "stream": False,
        }
        answer = await self._http.call("POST", GENERATE, body)
        try:
            meta = answer["meta_info"]
            triples = [*meta["output_top_logprobs"][0], meta["output_token_logprobs"][0]]
            return {int(token): float(logprob) for logprob, token, *_ in triples}
        except (KeyError, IndexError, TypeError, ValueError) as exc:
            raise EngineProtocol(f"{request_id}: the engine returned no log-probabilities: {exc!r}") from exc

    # --- weights --------------------------------------------------------------------------------------------------

    async def pause(self) -> None:
        """See ``Engine.pause``. It returns when no sample runs any more, which SGLang looks at once a second."""
        await self.admin("/pause_generation", {"mode": "abort"})

    async def resume(self, weights_version: int) -> None:
        """See ``Engine.resume``.

        Raises:
            EngineError: the server has no such routes, could not drop its cache, or reports another version than the one it was
                just given; it stays paused then.
        """
        await retry_flush(self._flush, self._http.url)
        await self.admin("/update_weight_version", {"new_version": str(weights_version), "abort_all_requests": False})
        reported = await self.weights_version()
        if reported != weights_version:
            raise EngineError(
                f"the engine at {self._http.url} reports weights version {reported} after it was set to {weights_version}"
            )
        await self.admin("/continue_generation", {})

    async def weights_version(self) -> int | None:
        """See ``TellsWeights``: a server that was just started says "default", which is no number."""
        info = await self._http.call("GET", "/model_info", timeout=10.0)
        return version_number(info.get("weight_version")) if isinstance(info, dict) else None

    async def _flush(self) -> bool:
        status, data = await self._http.answer("POST", "/flush_cache", headers=self._admin_headers, timeout=60.0)
        if status not in (200, 400):  # 400: some samples have not ended yet
            raise _explained(answer_error("POST /flush_cache", status, data))
        return status == 200

    async def admin(self, path: str, body: Any = None, *, timeout: float = 60.0) -> Any:
        """POST to one of the server's own routes for weights; its answer, text where it is no JSON.

        Raises:
            EngineError: it refuses, or has no such route.
        """
        try:
            return await self._http.call("POST", path, body, headers=self._admin_headers, timeout=timeout, text=True)
        except EngineProtocol as exc:
            raise _explained(exc) from exc


def _explained(exc: EngineError) -> EngineError:
    if type(exc) is not EngineProtocol:
        return exc
    return EngineError(f"{exc}; weights are updated through SGLang's own server, with its --admin-api-key where it has one")


def _sampling(
    request_id: str, sampling: SamplingParams, max_new_tokens: int, stop_token_ids: tuple[int, ...]
) -> dict[str, Any]:
    truncation = [
        f"{name}={getattr(sampling, name)}"
        for name, off in (("top_p", (1.0,)), ("top_k", (-1, 0)), ("min_p", (0.0,)))
        if getattr(sampling, name) not in off
    ]
    if truncation:
        raise EngineProtocol(
            f"{request_id}: SGLang reports log-probabilities from before truncation, so what {', '.join(truncation)} draws "
            "cannot be trained on; leave capture.sampling.override on, or ask for top_p=1, top_k=-1 and min_p=0"
        )
    params: dict[str, Any] = {
        "max_new_tokens": max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        "stop_token_ids": list(stop_token_ids),
        "ignore_eos": False,
        "skip_special_tokens": False,
        "no_stop_trim": True,
    }
    if sampling.seed is not None:
        params["sampling_seed"] = sampling.seed
    return params


def _input_logprobs(answer: Any, ids: TokenIds) -> LogProbs:
    try:
        triples = answer["meta_info"]["input_token_logprobs"]
        if len(triples) != len(ids):
            raise ValueError(f"{len(triples)} entries for {len(ids)} tokens")
        found = as_ids(json_ids([triple[1] for triple in triples]))
        # SGLang writes 0 for the last ids of the vocabulary.
        if ((found != ids) & (found != 0)).any():
            raise ValueError("the log-probabilities are of other ids")
        logprobs = json_logprobs([triple[0] for triple in triples[1:]])
    except (KeyError, IndexError, TypeError, ValueError) as exc:
        raise EngineProtocol(f"POST {GENERATE}: no prompt log-probabilities for these ids: {exc!r}") from exc
    _, packed = ChunkChecker("score").check(ids[1:], logprobs)
    return np.concatenate([np.zeros(1, dtype=np.float32), packed])
