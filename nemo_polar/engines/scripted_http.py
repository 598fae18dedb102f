# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What the scripted servers share: a ``ScriptedCore`` behind HTTP, streamed or not, and how its faults look on a socket.

A subclass gives them the shape of one real server. ``POST /scripted/replies`` takes a JSON list of replies for the next
requests.
"""

from __future__ import annotations

import argparse
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import orjson
from aiohttp import web

from nemo_polar.engines.base import GenerateRequest
from nemo_polar.engines.script import Fault, ScriptedOptions, ScriptedReply, load_script
from nemo_polar.engines.scripted_core import ScriptedCore, ScriptedFault, Step
from nemo_polar.errors import ConfigError, EngineOverflow

_MAX_BODY = 256 * 1024 * 1024

Encoder: TypeAlias = Callable[[Step], bytes]
"""Makes one stream's steps into events; it remembers what it has sent."""


class ScriptedHttp(ABC):
    """Routes over a ``ScriptedCore``."""

    status: ClassVar = {Fault.UNAVAILABLE: 500, Fault.OVERLOADED: 429, Fault.BUSY: 503}

    def __init__(self, core: ScriptedCore):
        self.core = core
        self.aborted_ids: list[str] = []
        """The ids of all abort requests, as they came."""
        self.app = web.Application(client_max_size=_MAX_BODY)
        self.app.router.add_post("/scripted/replies", self._replies)

    # --- a subclass's part ------------------------------------------------------------------------------------------

    @abstractmethod
    def _request(self, body: dict[str, Any]) -> tuple[GenerateRequest, int]:
        """The request, and how many likeliest tokens it wants to see at each position.

        Raises:
            KeyError, TypeError, ValueError, OverflowError: the body is wrong.
        """

    @abstractmethod
    def _encoder(self, request: GenerateRequest) -> Encoder: ...

    @abstractmethod
    def _answer(self, request: GenerateRequest, total: Step) -> Any:
        """The JSON of a whole sample."""

    @abstractmethod
    def _error(self, status: int, message: str) -> web.Response:
        """A refusal."""

    @abstractmethod
    def _failure(self, status: int, message: str) -> bytes:
        """An event that says the same in a stream."""

    def _refusal(self, body: dict[str, Any], request: GenerateRequest) -> web.Response | None:
        """The server's other reasons to refuse; None when there is none."""
        return None

    async def _fault(self, http: web.Request, body: dict[str, Any], fault: Fault) -> web.StreamResponse:
        """A fault before the first token."""
        return self._error(self.status.get(fault, 500), f"scripted fault: {fault.value}")

    # --- sampling -------------------------------------------------------------------------------------------------

    async def _generate(self, http: web.Request) -> web.StreamResponse:
        body = await self._object(http)
        try:
            request, top = self._request(body)
        except (KeyError, TypeError, ValueError, OverflowError) as exc:
            return self._error(400, f"generate: {exc!r}")
        refused = self._refusal(body, request)
        if refused is not None:
            return refused
        steps = self.core.draw(request, top=top)
        try:
            first = await anext(steps)
            if body.get("stream"):
                return await self._stream(http, request, first, steps)
            return json_response(self._answer(request, await whole_sample(first, steps)))
        except EngineOverflow as exc:
            return self._error(400, str(exc))
        except ScriptedFault as exc:
            return await self._fault(http, body, exc.fault)
        finally:
            await steps.aclose()

    async def _stream(
        self, http: web.Request, request: GenerateRequest, first: Step, steps: AsyncGenerator[Step, None]
    ) -> web.StreamResponse:
        response, event, step = await open_stream(http), self._encoder(request), first
        try:
            while True:
                await response.write(event(step))
                step = await anext(steps)
        except StopAsyncIteration:
            await response.write(b"data: [DONE]\n\n")
        except ScriptedFault as exc:
            await self._break(http, response, exc.fault, event)
        await response.write_eof()
        return response

    async def _break(self, http: web.Request, response: web.StreamResponse, fault: Fault, event: Encoder) -> None:
        if fault is Fault.CUT:
            assert http.transport is not None
            http.transport.abort()
            raise web.HTTPInternalServerError  # nobody is left to read it
        if fault is Fault.HALF_LINE:
            line = event(Step([1], [-1.0], None, self.core.weights_version))
            await response.write(line[: len(line) // 2])
        if fault is Fault.ERROR_EVENT:
            await response.write(self._failure(500, "Internal server error") + b"data: [DONE]\n\n")

    # --- the rest -------------------------------------------------------------------------------------------------

    async def _replies(self, http: web.Request) -> web.Response:
        try:
            replies = [ScriptedReply.from_json(raw) for raw in orjson.loads(await http.read())]
        except (orjson.JSONDecodeError, TypeError, ConfigError) as exc:
            return self._error(400, str(exc))
        self.core.push(*replies)
        return json_response({"queued": len(replies)})

    async def _update_weight_version(self, http: web.Request) -> web.Response:
        """The route that vLLM and SGLang have in common."""
        version = str((await self._object(http)).get("new_version"))
        if not version.isdecimal():
            return self._error(400, f"new_version: the scripted server counts its versions, so not {version!r}")
        self.core.set_version(int(version))
        return json_response({"success": True, "new_version": version})

    async def _object(self, http: web.Request) -> dict[str, Any]:
        """The body, which has to be a JSON object."""
        with contextlib.suppress(orjson.JSONDecodeError):
            raw = orjson.loads(await http.read())
            if isinstance(raw, dict):
                return raw
        refusal = self._error(400, "the body is not a JSON object")
        raise web.HTTPBadRequest(text=refusal.text, content_type="application/json")


async def open_stream(http: web.Request) -> web.StreamResponse:
    """An event stream with its headers sent."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(http)
    return response


async def whole_sample(step: Step, steps: AsyncGenerator[Step, None]) -> Step:
    """A whole sample as one step."""
    total = Step([], [], None, step.weights_version, [])
    while True:
        total.token_ids.extend(step.token_ids)
        total.logprobs.extend(step.logprobs)
        total.top.extend(step.top)
        finish = step.finish_reason
        try:
            step = await anext(steps)
        except StopAsyncIteration:
            return Step(total.token_ids, total.logprobs, finish, total.weights_version, total.top)


def prompt_ids(values: Any, name: str) -> list[int]:
    """``values``, if they are ids of a prompt.

    Raises:
        ValueError: they are not.
    """
    if not values or not all(type(i) is int and i >= 0 for i in values):
        raise ValueError(f"{name}: a non-empty list of non-negative integers is needed")
    return values


def weights_number(folder: str, file: str) -> int:
    """Which weights a file stands for: the scripted servers have none, so a safetensors file names them in its metadata.

    Raises:
        OSError, ValueError, LookupError: it cannot be read, or names none.
    """
    data = (Path(folder) / file).read_bytes()
    header = orjson.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return int(header["__metadata__"]["scripted_weights"])


def json_response(body: Any, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json")


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
