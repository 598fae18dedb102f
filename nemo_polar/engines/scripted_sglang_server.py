# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The scripted engine as a real HTTP server of SGLang's shape. It is no SGLang: no tokenizer, no weights, no scheduler.

    python -m nemo_polar.engines.scripted_sglang_server --port 0 --log engine.jsonl

It prints its URL as JSON and serves until SIGTERM. It was built from the source of SGLang 0.5.23 (routes, request schema,
events, metadata), not from recordings of a running server, and answers what ``SglangEngine`` asks for: ``/generate`` (streamed,
each event repeating the reply or, with ``--incremental-streaming-output``, holding what is new; whole; as a scorer of prompts),
abort by the beginning of a request id, pause, flush, continue, weights from disk, weights version, models, server and model
info, health. ``text`` is left out of answers, as with SGLang's ``--skip-tokenizer-init``. Where SGLang samples with top-p,
top-k or min-p this refuses: its log-probabilities would be other ones than SGLang's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson
from aiohttp import web

from nemo_polar.engines.base import GenerateRequest
from nemo_polar.engines.script import Fault
from nemo_polar.engines.scripted_core import ScriptedCore, Step
from nemo_polar.engines.scripted_http import (
    Encoder,
    ScriptedHttp,
    core_from,
    json_response,
    open_stream,
    options_parser,
    prompt_ids,
    weights_number,
)
from nemo_polar.engines.serve import LocalServer, run_until_signal
from nemo_polar.types import FinishReason, SamplingParams, TokenIds, as_ids

INPUT_MARGIN = 6
"""A prompt has to be more than this much shorter than the context."""
_SAMPLING = ("temperature", "frequency_penalty", "presence_penalty", "repetition_penalty")
_NEUTRAL = ("stop", "stop_regex", "n", "min_new_tokens", "stream_interval", "ignore_eos", "no_stop_trim", "skip_special_tokens")
_PARAMS = {*_SAMPLING, *_NEUTRAL, "max_new_tokens", "top_p", "top_k", "min_p", "sampling_seed", "stop_token_ids"}
"""SGLang refuses keys that it does not have; of those it has, these mean something here or change nothing."""
_ABSENT = float(np.finfo(np.float32).min)
"""What SGLang writes for a log-probability of minus infinity."""


class ScriptedSglangServer(ScriptedHttp):
    """Routes over a ``ScriptedCore``. ``incremental``: see the module; ``info``: entries for ``/server_info`` to differ in."""

    def __init__(self, core: ScriptedCore, *, incremental: bool = False, info: Mapping[str, Any] | None = None):
        super().__init__(core)
        self._incremental, self._info = incremental, dict(info or {})
        self._paused = self._version_set = False
        self._live: set[str] = set()
        self.app.router.add_route("*", "/generate", self._generate_or_score)
        self.app.router.add_post("/abort_request", self._abort)
        self.app.router.add_post("/pause_generation", self._pause)
        self.app.router.add_post("/continue_generation", self._continue)
        self.app.router.add_route("*", "/flush_cache", self._flush)
        self.app.router.add_post("/update_weight_version", self._new_version)
        self.app.router.add_post("/update_weights_from_disk", self._load)
        self.app.router.add_get("/v1/models", self._models)
        self.app.router.add_get("/model_info", self._model_info)
        self.app.router.add_get("/server_info", self._server_info)
        self.app.router.add_get("/health", self._health)
        self.app.router.add_get("/health_generate", self._health)

    # --- sampling -------------------------------------------------------------------------------------------------

    async def _generate_or_score(self, http: web.Request) -> web.StreamResponse:
        body = await self._object(http)
        rid, params = str(body.get("rid")), body.get("sampling_params") or {}
        given, wanted = len(body.get("input_ids") or ()), int(params.get("max_new_tokens", 128))
        context = self.core.options.max_context
        if rid in self._live:
            return await self._refuse(http, body, f"Duplicate request ID detected: {rid}")
        if given >= context:
            message = f"The input ({given} tokens) is longer than the model's context length ({context} tokens)."
            return await self._refuse(http, body, message)
        if given + wanted > context:
            message = f"Requested token count exceeds the model's maximum context length of {context} tokens."
            return await self._refuse(http, body, message)
        if given >= context - INPUT_MARGIN:
            limit = context - INPUT_MARGIN
            message = f"Input length ({given} tokens) exceeds the maximum allowed length ({limit} tokens)."
            return await self._rejected(http, body, 400, message)
        if wanted == 0:
            return self._score(body)
        self._live.add(rid)
        try:
            return await self._generate(http)
        finally:
            self._live.discard(rid)

    def _request(self, body: dict[str, Any]) -> tuple[GenerateRequest, int]:
        params = body.get("sampling_params") or {}
        if unknown := sorted(params.keys() - _PARAMS):
            raise ValueError(f"unknown field `{unknown[0]}`")
        if not body.get("return_logprob"):
            raise ValueError("the scripted server only answers with log-probabilities: return_logprob is needed")
        if (params.get("top_p", 1), params.get("top_k", -1), params.get("min_p", 0)) != (1, -1, 0):
            raise ValueError("the scripted server does not truncate as SGLang does: top_p=1, top_k=-1, min_p=0 are needed")
        request = GenerateRequest(
            request_id=str(body["rid"]),
            prompt_ids=as_ids(prompt_ids(body["input_ids"], "input_ids")),
            sampling=SamplingParams(**{k: params[k] for k in _SAMPLING if k in params}, seed=params.get("sampling_seed")),
            stop_token_ids=tuple(params.get("stop_token_ids") or ()),
            max_tokens=int(params.get("max_new_tokens", 128)),
        )
        return request, int(body.get("top_logprobs_num") or 0)

    def _encoder(self, request: GenerateRequest) -> Encoder:
        ids: list[int] = []
        triples: list[list[Any]] = []

        def event(step: Step) -> bytes:
            ids.extend(step.token_ids)
            new = _triples(step)
            triples.extend(new)
            raw = {
                "output_ids": step.token_ids if self._incremental else ids,
                "meta_info": self._meta(request, step, new if self._incremental else triples, len(ids)),
            }
            return _event(raw)

        return event

    def _answer(self, request: GenerateRequest, total: Step) -> Any:
        meta = self._meta(request, total, _triples(total), len(total.token_ids))
        if total.top:
            meta["output_top_logprobs"] = [[[x, token, None] for token, x in top] for top in total.top]
        return {"output_ids": total.token_ids, "meta_info": meta}

    def _meta(self, request: GenerateRequest, step: Step, triples: list[list[Any]], drawn: int) -> dict[str, Any]:
        finish = step.finish_reason
        return {
            "id": request.request_id,
            "finish_reason": None if finish is None else _finish(finish, request, step),
            "prompt_tokens": len(request.prompt_ids),
            "weight_version": self._version(step.weights_version),
            "num_retractions": 0,
            "input_token_logprobs": [],
            "output_token_logprobs": triples,
            "output_token_logprobs_length": drawn,
            "reasoning_tokens": 0,
            "completion_tokens": drawn,
            "cached_tokens": 0,
        }

    async def _fault(self, http: web.Request, body: dict[str, Any], fault: Fault) -> web.StreamResponse:
        if fault is Fault.UNAVAILABLE:
            return web.Response(status=500, text="Internal Server Error")
        if fault is Fault.BUSY:
            return await self._rejected(http, body, 503, "The request queue is full.")
        return _http_error(self.status.get(fault, 500), f"scripted fault: {fault.value}")

    async def _refuse(self, http: web.Request, body: dict[str, Any], message: str) -> web.StreamResponse:
        """Before the scheduler: in a stream, which is under way by then, an event with an error."""
        if body.get("stream"):
            return await _stream_of(http, self._failure(400, message))
        return json_response({"error": {"message": message}}, 400)

    async def _rejected(self, http: web.Request, body: dict[str, Any], status: int, message: str) -> web.StreamResponse:
        """By the scheduler: in a stream an abort with a status, of a prompt that was never looked at."""
        if not body.get("stream"):
            return json_response({"error": {"message": message}}, 400) if status == 400 else _http_error(status, message)
        reason = {"type": "abort", "message": message, "status_code": status, "err_type": None}
        meta = {"id": str(body["rid"]), "finish_reason": reason, "weight_version": self._version(self.core.weights_version)}
        meta |= {"prompt_tokens": 1, "completion_tokens": 0, "input_token_logprobs": []}
        meta |= {"output_token_logprobs": [], "output_token_logprobs_length": 0}
        return await _stream_of(http, _event({"output_ids": [], "meta_info": meta}))

    # --- scoring --------------------------------------------------------------------------------------------------

    def _score(self, body: dict[str, Any]) -> web.Response:
        try:
            request, _ = self._request(body)
            if body.get("logprob_start_len") != 0:
                raise ValueError("the scripted server scores from the first token: logprob_start_len=0 is needed")
            logprobs = self.core.score(request.prompt_ids)
        except (KeyError, TypeError, ValueError, OverflowError) as exc:
            return self._error(400, f"generate: {exc!r}")
        total = Step([], [], FinishReason.LENGTH, self.core.weights_version)
        answer = self._answer(request, total)
        answer["meta_info"]["input_token_logprobs"] = self._input_triples(request.prompt_ids, logprobs.tolist())
        return json_response(answer)

    def _input_triples(self, ids: TokenIds, logprobs: list[float]) -> list[list[Any]]:
        """As SGLang has it: none for the first token, and id 0 for the last one of the vocabulary."""
        shown = np.where(ids < self.core.options.vocab - 1, ids, 0).tolist()
        return [[x, token, None] for x, token in zip([None, *logprobs[1:]], shown, strict=True)]

    # --- the rest -------------------------------------------------------------------------------------------------

    async def _abort(self, http: web.Request) -> web.Response:
        body = await self._object(http)
        rid = str(body.get("rid") or "")
        self.aborted_ids.append(rid)
        # An id that is not there is ignored; one that is ends every sample whose id begins with it.
        if body.get("abort_all") or rid in self._live:
            self._end(rid)
        return web.Response()

    def _end(self, prefix: str) -> None:
        for live in [name for name in self._live if name.startswith(prefix)]:
            self.core.abort(live)

    async def _pause(self, http: web.Request) -> web.Response:
        mode = (await self._object(http)).get("mode", "abort")
        if mode != "abort":
            return self._error(400, f"mode: the scripted server pauses by abort only, not by {mode!r}")
        self._paused = True
        self.core.pause()
        return json_response({"message": "Generation paused successfully.", "status": "ok"})

    async def _continue(self, http: web.Request) -> web.Response:
        await self._object(http)
        self._paused = False
        self.core.resume()
        return json_response({"message": "Generation continued successfully.", "status": "ok"})

    async def _flush(self, _: web.Request) -> web.Response:
        if self.core.running:
            return web.Response(status=400, text="Flush cache failed.\n")
        self.core.drop_cache()
        return web.Response(text="Cache flushed.\n")

    async def _load(self, http: web.Request) -> web.Response:
        try:
            self.core.load_weights(weights_number(str((await self._object(http))["model_path"]), "model.safetensors"))
        except (OSError, ValueError, LookupError) as exc:
            return json_response({"success": False, "message": f"{exc!r}", "num_paused_requests": 0}, 400)
        self.core.drop_cache()
        return json_response({"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": 0})

    async def _new_version(self, http: web.Request) -> web.Response:
        if (await self._object(http)).get("abort_all_requests", True):
            self._end("")
        self._version_set = True
        return await self._update_weight_version(http)

    def _version(self, number: int) -> str:
        """A server that was never given one has a name for it."""
        return str(number) if number or self._version_set else "default"

    async def _models(self, _: web.Request) -> web.Response:
        options = self.core.options
        card = {"id": options.model, "object": "model", "owned_by": "sglang", "root": options.model, "parent": None}
        return json_response({"object": "list", "data": [{**card, "max_model_len": options.max_context}]})

    async def _model_info(self, _: web.Request) -> web.Response:
        model = self.core.options.model
        info = {"model_path": model, "served_model_name": model, "is_generation": True, "preferred_sampling_params": None}
        return json_response({**info, "weight_version": self._version(self.core.weights_version)})

    async def _server_info(self, _: web.Request) -> web.Response:
        options = self.core.options
        info = {
            "version": "scripted",
            "served_model_name": options.model,
            "max_req_input_len": options.max_context - INPUT_MARGIN,
            "allow_auto_truncate": False,
            "enable_watermark": False,
            "preferred_sampling_params": None,
            "incremental_streaming_output": self._incremental,
            "stream_interval": 1,
        }
        return json_response({**info, **self._info})

    async def _health(self, _: web.Request) -> web.Response:
        """SGLang draws a token to see, which waits while it is paused; it takes 20 s to say so, this does not."""
        return web.Response(status=503 if self._paused else 200)

    def _error(self, status: int, message: str) -> web.Response:
        """What does not fit the request's schema."""
        return json_response({"error": message}, status)

    def _failure(self, status: int, message: str) -> bytes:
        error = {"message": message, "type": "invalid_request_error", "code": status, "retryable": False}
        return _event({"error": error})


def _http_error(status: int, message: str) -> web.Response:
    return json_response({"object": "error", "message": message, "type": str(status), "param": None, "code": status}, status)


def _finish(finish: FinishReason, request: GenerateRequest, step: Step) -> dict[str, Any]:
    if finish is FinishReason.LENGTH:
        return {"type": "length", "length": request.max_tokens}
    if finish is FinishReason.ABORT:
        return {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
    return {"type": "stop", "matched": step.token_ids[-1] if step.token_ids else None}


def _triples(step: Step) -> list[list[Any]]:
    """NaN becomes null in JSON, as it does in SGLang."""
    return [
        [_ABSENT if logprob == -9999.0 else logprob, token, None]
        for token, logprob in zip(step.token_ids, step.logprobs, strict=True)
    ]


def _event(raw: Any) -> bytes:
    return b"data: " + orjson.dumps(raw) + b"\n\n"


async def _stream_of(http: web.Request, event: bytes) -> web.StreamResponse:
    response = await open_stream(http)
    await response.write(event + b"data: [DONE]\n\n")
    await response.write_eof()
    return response


def main() -> None:
    parser = options_parser("A scripted inference engine with SGLang's HTTP API.")
    parser.add_argument("--incremental-streaming-output", action="store_true", help="events hold what is new, not all so far")
    args = parser.parse_args()
    core = core_from(args)
    server = ScriptedSglangServer(core, incremental=args.incremental_streaming_output)
    run_until_signal(LocalServer(server.app, host=args.host, port=args.port), core.close)


if __name__ == "__main__":
    main()
