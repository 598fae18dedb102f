# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The scripted engine as a real HTTP server of vLLM's shape, so that clients, relays and runs are tested over sockets.

    python -m nemo_polar.engines.scripted_server --port 0 --log engine.jsonl

It prints its URL as JSON and serves until SIGTERM. It answers what ``VllmEngine`` asks for, in vLLM 0.32's own format: generate
(streamed or not), abort by the *server's* id only, completions with prompt log-probabilities, pause and resume, models, health.
``POST /scripted/replies`` takes a JSON list of replies for the next requests. It is a test double: no tokenizer, no weights.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import orjson
from aiohttp import web

from nemo_polar.engines.base import GenerateRequest
from nemo_polar.engines.script import Fault, ScriptedOptions, ScriptedReply, load_script
from nemo_polar.engines.scripted_core import ScriptedCore, ScriptedFault, Step
from nemo_polar.engines.serve import LocalServer, run_until_signal
from nemo_polar.errors import ConfigError, EngineOverflow
from nemo_polar.types import SamplingParams, as_ids

SERVER_ID_PREFIX = "generate-tokens-"
_STATUS = {Fault.UNAVAILABLE: 500, Fault.OVERLOADED: 429, Fault.BUSY: 503}
_MAX_BODY = 256 * 1024 * 1024


class ScriptedServer:
    """Routes over a ``ScriptedCore``."""

    def __init__(self, core: ScriptedCore):
        self.core = core
        self.aborted_ids: list[str] = []
        """The ids of all abort requests, as they came."""
        self.app = web.Application(client_max_size=_MAX_BODY)
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
        self.app.router.add_post("/scripted/replies", self._replies)

    # --- sampling -------------------------------------------------------------------------------------------------

    async def _generate(self, http: web.Request) -> web.StreamResponse:
        body = await _object(http)
        try:
            request, top = _request(body)
        except (KeyError, TypeError, ValueError, OverflowError) as exc:
            return _error(400, f"generate: {exc!r}")
        refused = self._check_model(body) or self._check_vocab(request)
        if refused is not None:
            return refused
        steps = self.core.draw(request, top=top)
        try:
            first = await anext(steps)
            if body.get("stream"):
                return await self._stream(http, request, first, steps)
            return await self._whole(request, first, steps)
        except EngineOverflow as exc:
            return _error(400, str(exc))
        except ScriptedFault as exc:
            return _error(_STATUS.get(exc.fault, 500), f"scripted fault: {exc.fault.value}")
        finally:
            await steps.aclose()

    async def _stream(
        self, http: web.Request, request: GenerateRequest, first: Step, steps: AsyncGenerator[Step, None]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(http)
        sent, step = 0, first
        try:
            while True:
                await response.write(_event(request.request_id, step, sent))
                sent += len(step.token_ids)
                step = await anext(steps)
        except StopAsyncIteration:
            await response.write(b"data: [DONE]\n\n")
        except ScriptedFault as exc:
            await self._break(http, response, exc.fault, request)
        await response.write_eof()
        return response

    async def _break(self, http: web.Request, response: web.StreamResponse, fault: Fault, request: GenerateRequest) -> None:
        if fault is Fault.CUT:
            assert http.transport is not None
            http.transport.abort()
            raise web.HTTPInternalServerError  # nobody is left to read it
        if fault is Fault.HALF_LINE:
            event = _event(request.request_id, Step([1], [-1.0], None, self.core.weights_version), 0)
            await response.write(event[: len(event) // 2])
        if fault is Fault.ERROR_EVENT:
            error = {"error": {"message": "Internal server error", "type": "InternalServerError", "param": None, "code": 500}}
            await response.write(b"data: " + orjson.dumps(error) + b"\n\ndata: [DONE]\n\n")

    async def _whole(self, request: GenerateRequest, step: Step, steps: AsyncGenerator[Step, None]) -> web.Response:
        total = Step([], [], None, step.weights_version, [])
        while True:
            total.token_ids.extend(step.token_ids)
            total.logprobs.extend(step.logprobs)
            total.top.extend(step.top)
            finish = step.finish_reason
            try:
                step = await anext(steps)
            except StopAsyncIteration:
                break
        choice = _choice(Step(total.token_ids, total.logprobs, finish, total.weights_version, total.top), 0)
        return _json(
            {"request_id": SERVER_ID_PREFIX + request.request_id, "model": self.core.options.model, "choices": [choice]}
        )

    async def _abort(self, http: web.Request) -> web.Response:
        for server_id in (await _object(http)).get("request_ids", []):
            self.aborted_ids.append(server_id)
            if server_id.startswith(SERVER_ID_PREFIX):  # a bare id is accepted and does nothing, as in vLLM
                self.core.abort(server_id.removeprefix(SERVER_ID_PREFIX))
        return web.Response()

    # --- scoring --------------------------------------------------------------------------------------------------

    async def _completions(self, http: web.Request) -> web.Response:
        body = await _object(http)
        refused = self._check_model(body)
        if refused is not None:
            return refused
        try:
            ids = as_ids(body["prompt"])
            if int(body.get("max_tokens", 16)) < 1 or body.get("prompt_logprobs") is None:
                raise ValueError("the scripted server completes only to score: max_tokens >= 1 and prompt_logprobs are needed")
            logprobs = self.core.score(ids).tolist()
        except EngineOverflow as exc:
            return _error(400, str(exc))
        except (KeyError, TypeError, ValueError, OverflowError) as exc:
            return _error(400, f"completions: {exc}")
        entries: list[Any] = [None]
        entries += [
            {str(token): {"logprob": max(logprob, -9999.0), "rank": 1, "decoded_token": None}}
            for token, logprob in zip(ids[1:].tolist(), logprobs[1:], strict=True)
        ]
        choice = {"index": 0, "text": "", "finish_reason": "length", "prompt_logprobs": entries}
        return _json(
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
        return _json({"object": "list", "data": [card]})

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _pause(self, _: web.Request) -> web.Response:
        self.core.pause()
        return _json({"status": "paused"})

    async def _resume(self, _: web.Request) -> web.Response:
        self.core.resume()
        return _json({"status": "resumed"})

    async def _reset_prefix_cache(self, _: web.Request) -> web.Response:
        return _json({"success": self.core.running == 0})

    async def _update_weight_version(self, http: web.Request) -> web.Response:
        version = str((await _object(http)).get("new_version"))
        if not version.isdecimal():
            return _error(400, f"new_version: the scripted server counts its versions, so not {version!r}")
        self.core.set_version(int(version))
        return _json({"success": True, "new_version": version})

    async def _weight_info(self, _: web.Request) -> web.Response:
        return _json({"weight_version": str(self.core.weights_version)})

    async def _replies(self, http: web.Request) -> web.Response:
        try:
            replies = [ScriptedReply.from_json(raw) for raw in orjson.loads(await http.read())]
        except (orjson.JSONDecodeError, TypeError, ConfigError) as exc:
            return _error(400, str(exc))
        self.core.push(*replies)
        return _json({"queued": len(replies)})

    def _check_model(self, body: dict[str, Any]) -> web.Response | None:
        model = body.get("model")
        if model is None or model == self.core.options.model:
            return None
        return _error(404, f"The model `{model}` does not exist.", "NotFoundError")

    def _check_vocab(self, request: GenerateRequest) -> web.Response | None:
        top = int(request.prompt_ids.max())
        return _error(400, f"Token id {top} is out of vocabulary") if top >= self.core.options.vocab else None


def _request(body: dict[str, Any]) -> tuple[GenerateRequest, int]:
    """The request, and how many likeliest tokens it wants to see at each position."""
    params = body["sampling_params"]
    ids = body["token_ids"]
    if not ids or not all(type(i) is int and i >= 0 for i in ids):
        raise ValueError("token_ids: a non-empty list of non-negative integers is needed")
    if params.get("stop") and not params.get("detokenize", True):
        raise ValueError("stop strings are only supported when detokenize is True")
    if int(params.get("max_tokens", 16)) < 1:
        raise ValueError("max_tokens must be at least 1")
    names = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed")
    sampling = SamplingParams(**{name: params[name] for name in names if name in params})
    request = GenerateRequest(
        request_id=str(body["request_id"]),
        prompt_ids=as_ids(ids),
        sampling=sampling,
        stop_token_ids=tuple(params.get("stop_token_ids") or ()),
        max_tokens=int(params.get("max_tokens", 16)),
    )
    return request, int(params.get("logprobs") or 0)


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


def _event(request_id: str, step: Step, already: int) -> bytes:
    event = {
        "request_id": SERVER_ID_PREFIX + request_id,
        "usage": None,
        "output_mode": "tokens",
        "choices": [_choice(step, already)],
    }
    return b"data: " + orjson.dumps(event) + b"\n\n"


async def _object(http: web.Request) -> dict[str, Any]:
    with contextlib.suppress(orjson.JSONDecodeError):
        raw = orjson.loads(await http.read())
        if isinstance(raw, dict):
            return raw
    raise web.HTTPBadRequest(
        text='{"error":{"message":"the body is not a JSON object","code":400}}', content_type="application/json"
    )


def _json(body: Any, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json")


def _error(status: int, message: str, kind: str = "BadRequestError") -> web.Response:
    return _json({"error": {"message": message, "type": kind, "param": None, "code": status}}, status)


def options_parser(description: str) -> argparse.ArgumentParser:
    """Command line of the scripted servers."""
    defaults = ScriptedOptions()
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--log", help="engine-side log to append to")
    parser.add_argument("--script", help="a .json list of replies, or package.module:function")
    parser.add_argument("--model", default=defaults.model)
    parser.add_argument("--vocab", type=int, default=defaults.vocab)
    parser.add_argument("--seed", type=int, default=defaults.seed)
    parser.add_argument("--max-context", type=int, default=defaults.max_context)
    parser.add_argument("--stop-token-ids", type=int, nargs="*", default=())
    parser.add_argument("--reply-tokens", type=int, nargs=2, metavar=("LOW", "HIGH"), help="length of drawn replies")
    parser.add_argument("--chunk-tokens", type=int, default=defaults.chunk_tokens)
    parser.add_argument("--first-delay", type=float, default=defaults.first_delay, help="seconds")
    parser.add_argument("--token-delay", type=float, default=defaults.token_delay, help="seconds")
    parser.add_argument("--logprobs", choices=("processed", "raw"), default=defaults.logprobs)
    parser.add_argument("--stale-weights", action="store_true", help="report new versions, serve the old weights")
    return parser


def core_from(args: argparse.Namespace) -> ScriptedCore:
    """The core that a parsed command line describes.

    Raises:
        ConfigError: the script cannot be read.
    """
    options = ScriptedOptions(
        model=args.model,
        vocab=args.vocab,
        seed=args.seed,
        max_context=args.max_context,
        stop_token_ids=tuple(args.stop_token_ids),
        reply_tokens=tuple(args.reply_tokens) if args.reply_tokens else None,
        chunk_tokens=args.chunk_tokens,
        first_delay=args.first_delay,
        token_delay=args.token_delay,
        logprobs=args.logprobs,
        stale_weights=args.stale_weights,
    )
    return ScriptedCore(load_script(args.script) if args.script else None, log=args.log, options=options)


def main() -> None:
    args = options_parser("A scripted inference engine with vLLM's HTTP API.").parse_args()
    core = core_from(args)
    run_until_signal(LocalServer(ScriptedServer(core).app, host=args.host, port=args.port), core.close)


if __name__ == "__main__":
    main()
