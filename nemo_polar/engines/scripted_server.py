# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The scripted engine as a real HTTP server of vLLM's shape, so that clients, relays and runs are tested over sockets.

    python -m nemo_polar.engines.scripted_server --port 0 --log engine.jsonl

It prints its URL as JSON and serves until SIGTERM. It answers what ``VllmEngine`` asks for, in vLLM 0.32's own format: generate
(streamed or not), abort by the *server's* id only, completions with prompt log-probabilities, pause and resume, models, health,
whole weights through our worker extension, adapters in place (weights files as ``weights_number`` reads them).
``POST /scripted/replies`` takes a JSON list of replies for the next requests. It is a test double: no tokenizer, no weights.
"""

from __future__ import annotations

from typing import Any

import orjson
from aiohttp import web

from nemo_polar.engines.base import GenerateRequest
from nemo_polar.engines.scripted_core import ScriptedCore, Step
from nemo_polar.engines.scripted_http import (
    Encoder,
    ScriptedHttp,
    core_from,
    json_response,
    options_parser,
    prompt_ids,
    weights_number,
)
from nemo_polar.engines.serve import LocalServer, run_until_signal
from nemo_polar.errors import EngineOverflow
from nemo_polar.types import SamplingParams, as_ids

SERVER_ID_PREFIX = "generate-tokens-"


class ScriptedServer(ScriptedHttp):
    """Routes over a ``ScriptedCore``."""

    def __init__(self, core: ScriptedCore):
        super().__init__(core)
        self.adapters: set[str] = set()
        """Names that are served beside the model's; all of them serve the same weights."""
        self.app.router.add_post("/inference/v1/generate", self._generate)
        self.app.router.add_post("/inference/v1/abort_requests", self._abort)
        self.app.router.add_post("/v1/completions", self._completions)
        self.app.router.add_get("/v1/models", self._models)
        self.app.router.add_get("/health", self._health)
        self.app.router.add_post("/pause", self._pause)
        self.app.router.add_post("/resume", self._resume)
        self.app.router.add_post("/reset_prefix_cache", self._reset_prefix_cache)
        self.app.router.add_post("/update_weight_version", self._update_weight_version)
        self.app.router.add_get("/weight_info", self._weight_info)
        self.app.router.add_post("/collective_rpc", self._collective_rpc)
        self.app.router.add_post("/v1/load_lora_adapter", self._load_lora_adapter)

    # --- sampling -------------------------------------------------------------------------------------------------

    def _request(self, body: dict[str, Any]) -> tuple[GenerateRequest, int]:
        params = body["sampling_params"]
        if params.get("stop") and not params.get("detokenize", True):
            raise ValueError("stop strings are only supported when detokenize is True")
        if int(params.get("max_tokens", 16)) < 1:
            raise ValueError("max_tokens must be at least 1")
        names = (
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "presence_penalty",
            "frequency_penalty",
            "repetition_penalty",
            "seed",
        )
        sampling = SamplingParams(**{name: params[name] for name in names if name in params})
        request = GenerateRequest(
            request_id=str(body["request_id"]),
            prompt_ids=as_ids(prompt_ids(body["token_ids"], "token_ids")),
            sampling=sampling,
            stop_token_ids=tuple(params.get("stop_token_ids") or ()),
            max_tokens=int(params.get("max_tokens", 16)),
        )
        return request, int(params.get("logprobs") or 0)

    def _refusal(self, body: dict[str, Any], request: GenerateRequest) -> web.Response | None:
        top = int(request.prompt_ids.max())
        unknown = f"Token id {top} is out of vocabulary" if top >= self.core.options.vocab else None
        return self._check_model(body) or (self._error(400, unknown) if unknown else None)

    def _encoder(self, request: GenerateRequest) -> Encoder:
        sent = 0

        def event(step: Step) -> bytes:
            nonlocal sent
            raw = {
                "request_id": SERVER_ID_PREFIX + request.request_id,
                "usage": None,
                "output_mode": "tokens",
                "choices": [_choice(step, sent)],
            }
            sent += len(step.token_ids)
            return b"data: " + orjson.dumps(raw) + b"\n\n"

        return event

    def _answer(self, request: GenerateRequest, total: Step) -> Any:
        return {
            "request_id": SERVER_ID_PREFIX + request.request_id,
            "model": self.core.options.model,
            "choices": [_choice(total, 0)],
        }

    async def _abort(self, http: web.Request) -> web.Response:
        for server_id in (await self._object(http)).get("request_ids", []):
            self.aborted_ids.append(server_id)
            if server_id.startswith(SERVER_ID_PREFIX):  # a bare id is accepted and does nothing, as in vLLM
                self.core.abort(server_id.removeprefix(SERVER_ID_PREFIX))
        return web.Response()

    # --- scoring --------------------------------------------------------------------------------------------------

    async def _completions(self, http: web.Request) -> web.Response:
        body = await self._object(http)
        refused = self._check_model(body)
        if refused is not None:
            return refused
        try:
            ids = as_ids(body["prompt"])
            if int(body.get("max_tokens", 16)) < 1 or body.get("prompt_logprobs") is None:
                raise ValueError("the scripted server completes only to score: max_tokens >= 1 and prompt_logprobs are needed")
            logprobs = self.core.score(ids).tolist()
        except EngineOverflow as exc:
            return self._error(400, str(exc))
        except (KeyError, TypeError, ValueError, OverflowError) as exc:
            return self._error(400, f"completions: {exc}")
        entries: list[Any] = [None]
        entries += [
            {str(token): {"logprob": max(logprob, -9999.0), "rank": 1, "decoded_token": None}}
            for token, logprob in zip(ids[1:].tolist(), logprobs[1:], strict=True)
        ]
        choice = {"index": 0, "text": "", "finish_reason": "length", "prompt_logprobs": entries}
        return json_response(
            {"id": "cmpl-scripted", "object": "text_completion", "model": self.core.options.model, "choices": [choice]}
        )

    # --- the rest -------------------------------------------------------------------------------------------------

    async def _models(self, _: web.Request) -> web.Response:
        options = self.core.options
        card = {
            "id": options.model,
            "object": "model",
            "owned_by": "vllm",
            "parent": None,
            "max_model_len": options.max_context,
        }
        adapters = [{"id": name, "object": "model", "owned_by": "vllm", "parent": options.model} for name in self.adapters]
        return json_response({"object": "list", "data": [card, *adapters]})

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _pause(self, _: web.Request) -> web.Response:
        self.core.pause()
        return json_response({"status": "paused"})

    async def _resume(self, _: web.Request) -> web.Response:
        self.core.resume()
        return json_response({"status": "resumed"})

    async def _reset_prefix_cache(self, _: web.Request) -> web.Response:
        if self.core.running == 0:
            self.core.drop_cache()
        return json_response({"success": self.core.running == 0})

    async def _weight_info(self, _: web.Request) -> web.Response:
        return json_response({"weight_version": str(self.core.weights_version)})

    async def _collective_rpc(self, http: web.Request) -> web.Response:
        body = await self._object(http)
        if body.get("method") != "load_full":
            return self._error(400, f"collective_rpc: the scripted server has no method {body.get('method')!r}")
        try:
            self.core.load_weights(weights_number(body["args"][0], "model.safetensors"))
        except (OSError, ValueError, LookupError) as exc:
            return json_response(_error_body(500, f"{exc!r}", "InternalServerError"), 500)
        return json_response({"results": [{"layers": 1, "unused": [], "seconds": 0.0}]})

    async def _load_lora_adapter(self, http: web.Request) -> web.Response:
        body = await self._object(http)
        name = str(body.get("lora_name"))
        if name == self.core.options.model:
            return self._error(400, f"The lora adapter '{name}' conflicts with a served base model.")
        if name in self.adapters and not body.get("load_inplace"):
            return self._error(400, f"The lora adapter '{name}' has already been loaded.")
        try:
            self.core.load_weights(weights_number(str(body["lora_path"]), "adapter_model.safetensors"))
        except (OSError, ValueError, LookupError) as exc:
            return json_response(_error_body(500, f"{exc!r}", "InternalServerError"), 500)
        self.adapters.add(name)
        return web.Response(text=f"Success: LoRA adapter '{name}' added successfully.")

    def _check_model(self, body: dict[str, Any]) -> web.Response | None:
        model = body.get("model")
        if model is None or model == self.core.options.model or model in self.adapters:
            return None
        return json_response(_error_body(404, f"The model `{model}` does not exist.", "NotFoundError"), 404)

    def _error(self, status: int, message: str) -> web.Response:
        return json_response(_error_body(status, message, "BadRequestError"), status)

    def _failure(self, status: int, message: str) -> bytes:
        return b"data: " + orjson.dumps(_error_body(status, message, "InternalServerError")) + b"\n\n"


def _choice(step: Step, already: int) -> dict[str, Any]:
    finish = step.finish_reason
    entries = []
    for at, (token, logprob) in enumerate(zip(step.token_ids, step.logprobs, strict=True)):
        # As in vLLM: the sampled token first, then the likeliest others, and no more in all than were asked for.
        top = step.top[at] if step.top else []
        listed = [(token, logprob), *(pair for pair in top if pair[0] != token)][: max(len(top), 1)]
        entry: dict[str, Any] = {"token_id": token, "logprob": logprob, "rank": None}
        entry["top_logprobs"] = [{"token_id": t, "logprob": x, "rank": None} for t, x in listed]
        entries.append(entry)
    spans = [{"version": str(step.weights_version), "start": 0, "end": already + len(step.token_ids)}]
    # A missing log-probability is left out as vLLM does when it was not asked for: no entries at all.
    missing = any(x is None for x in step.logprobs)
    return {
        "index": 0,
        "finish_reason": None if finish is None else finish.value,
        "stop_reason": None,
        "token_ids": step.token_ids,
        "routed_experts": None,
        "sampling_mask": None,
        "weight_versions": None if finish is None else spans,
        "logprobs": None if missing else {"content": entries},
    }


def _error_body(status: int, message: str, kind: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


def main() -> None:
    args = options_parser("A scripted inference engine with vLLM's HTTP API.").parse_args()
    core = core_from(args)
    run_until_signal(LocalServer(ScriptedServer(core).app, host=args.host, port=args.port), core.close)


if __name__ == "__main__":
    main()
