# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""vLLM's chat routes for the scripted server, so that one server takes token ids *and* stands behind NeMo Gym's model server.

``POST /v1/chat/completions`` (whole answers, with ``logprobs``, ``return_tokens_as_token_ids``, ``return_token_ids``) and
``POST /tokenize`` with messages, in vLLM 0.32's format; models and health are the server's own. Prompts are rendered by the
codec that is given. Replies come from the same core, and so land in the same engine-side log, under the request id that the
body or ``X-Request-Id`` names. Like vLLM it clamps ``max_tokens`` to what fits. It is a test double: no stream, one choice.
"""

from __future__ import annotations

import itertools
from typing import Any

import orjson
from aiohttp import web

from nemo_polar.engines.base import GenerateRequest
from nemo_polar.engines.script import Fault
from nemo_polar.engines.scripted_core import ScriptedFault, Step
from nemo_polar.engines.scripted_http import json_response, whole_sample
from nemo_polar.engines.scripted_messages import message_of, tool_of
from nemo_polar.engines.scripted_server import ScriptedServer
from nemo_polar.errors import EngineOverflow, PolarError
from nemo_polar.tokens.base import Codec
from nemo_polar.types import FinishReason, Message, SamplingParams, TokenIds, ToolSpec, as_ids

_ASKED_FOR = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed")


class ScriptedOpenAIRoutes:
    """Adds its routes to ``server``. ``tokenize_codec``: renders for /tokenize, where a test wants that to differ."""

    def __init__(self, server: ScriptedServer, codec: Codec, *, tokenize_codec: Codec | None = None):
        self.core, self._codec = server.core, codec
        self._tokenize_codec = tokenize_codec or codec
        self._numbers = itertools.count()
        self.bodies: list[dict[str, Any]] = []
        """Every chat request, as it came."""
        server.app.router.add_post("/v1/chat/completions", self._chat)
        server.app.router.add_post("/tokenize", self._tokenize)

    # --- routes -----------------------------------------------------------------------------------------------------

    async def _chat(self, http: web.Request) -> web.Response:
        try:
            body = orjson.loads(await http.read())
            self.bodies.append(body)
            if refused := self._refusal(body):
                return refused
            messages, tools = _conversation(body)
            request = self._request(body, messages, tools, http.headers.get("X-Request-Id"))
        except EngineOverflow as exc:
            return _error(400, str(exc))
        except (KeyError, TypeError, ValueError, PolarError) as exc:
            return _error(400, f"chat: {exc!r}")
        steps = self.core.draw(request, top=int(body.get("top_logprobs") or 0))
        try:
            total = await whole_sample(await anext(steps), steps)
        except ScriptedFault as exc:
            return self._fault(http, exc.fault)
        finally:
            await steps.aclose()
        return json_response(self._answer(body, request, total, tools))

    async def _tokenize(self, http: web.Request) -> web.Response:
        try:
            body = orjson.loads(await http.read())
            if refused := self._unknown_model(body):
                return refused
            ids = self._tokenize_codec.render(*_conversation(body)).tolist()
        except (KeyError, TypeError, ValueError, PolarError) as exc:
            return _error(400, f"tokenize: {exc!r}")
        return json_response(
            {"count": len(ids), "max_model_len": self.core.options.max_context, "tokens": ids, "token_strs": None}
        )

    # --- a request --------------------------------------------------------------------------------------------------

    def _refusal(self, body: dict[str, Any]) -> web.Response | None:
        if body.get("stream") or body.get("n") not in (None, 1):
            return _error(400, "the scripted server gives one whole choice: no stream, n=1")
        return self._unknown_model(body)

    def _unknown_model(self, body: dict[str, Any]) -> web.Response | None:
        model = body.get("model")
        if model in (None, self.core.options.model):
            return None
        return _error(404, f"The model `{model}` does not exist.", "NotFoundError")

    def _request(
        self, body: dict[str, Any], messages: list[Message], tools: list[ToolSpec], header_id: str | None
    ) -> GenerateRequest:
        prompt = self._codec.render(messages, tools)
        room = self.core.options.max_context - len(prompt)
        if room < 1:
            raise EngineOverflow(
                f"This model's maximum context length is {self.core.options.max_context} tokens. However, your prompt contains "
                f"{len(prompt)} input tokens. Please reduce the length of the input prompt."
            )
        asked = body.get("max_completion_tokens") or body.get("max_tokens") or room
        return GenerateRequest(
            request_id=header_id or body.get("request_id") or f"chat-{next(self._numbers)}",
            prompt_ids=as_ids(prompt),
            sampling=SamplingParams(**{name: body[name] for name in _ASKED_FOR if body.get(name) is not None}),
            stop_token_ids=tuple(dict.fromkeys((*self._codec.stop_token_ids, *(body.get("stop_token_ids") or ())))),
            max_tokens=min(int(asked), room),
        )

    # --- an answer --------------------------------------------------------------------------------------------------

    def _answer(self, body: dict[str, Any], request: GenerateRequest, total: Step, tools: list[ToolSpec]) -> dict[str, Any]:
        assert total.finish_reason is not None
        message, called = self._message(body, request.prompt_ids, total, tools)
        prompt, drawn = len(request.prompt_ids), len(total.token_ids)
        finish = "tool_calls" if called and total.finish_reason is FinishReason.STOP else total.finish_reason.value
        ids = bool(body.get("return_token_ids"))
        choice: dict[str, Any] = {
            "index": 0,
            "message": message,
            "logprobs": self._logprobs(body, total) if body.get("logprobs") else None,
            "finish_reason": finish,
            "stop_reason": None,
            "token_ids": total.token_ids if ids else None,
        }
        return {
            "id": f"chatcmpl-{request.request_id}",
            "object": "chat.completion",
            "created": 0,
            "model": self.core.options.model,
            "choices": [choice],
            "usage": {"prompt_tokens": prompt, "completion_tokens": drawn, "total_tokens": prompt + drawn},
            "prompt_logprobs": None,
            "prompt_token_ids": request.prompt_ids.tolist() if ids else None,
        }

    def _message(
        self, body: dict[str, Any], prompt: TokenIds, total: Step, tools: list[ToolSpec]
    ) -> tuple[dict[str, Any], bool]:
        """The assistant message, and whether it calls tools."""
        parser = self._codec.parser(prompt, tools, parse_calls=bool(tools) and body.get("tool_choice") != "none")
        parser.feed(total.token_ids)
        parser.finish(total.finish_reason or FinishReason.STOP)
        parsed = parser.message()
        message: dict[str, Any] = {"role": "assistant", "content": parsed.text or None}
        if parsed.reasoning is not None:
            message["reasoning"] = parsed.reasoning
        message["tool_calls"] = [
            {
                "id": f"chatcmpl-tool-{next(self._numbers)}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in parsed.tool_calls
        ]
        return message, bool(parsed.tool_calls)

    def _logprobs(self, body: dict[str, Any], total: Step) -> dict[str, Any] | None:
        if any(x is None for x in total.logprobs):
            return None  # as vLLM when it computed none

        def entry(token: int, logprob: float | None) -> dict[str, Any]:
            text, raw = self._codec.token_text(token)
            name = f"token_id:{token}" if body.get("return_tokens_as_token_ids") else text
            return {"token": name, "logprob": logprob, "bytes": list(raw)}

        content = []
        for at, (token, logprob) in enumerate(zip(total.token_ids, total.logprobs, strict=True)):
            top = total.top[at] if total.top else []
            content.append({**entry(token, logprob), "top_logprobs": [entry(*pair) for pair in top]})
        return {"content": content}

    def _fault(self, http: web.Request, fault: Fault) -> web.Response:
        if fault in (Fault.OVERLOADED, Fault.BUSY):
            return _error(ScriptedServer.status[fault], "scripted fault: busy", "InternalServerError")
        if fault is Fault.CUT and http.transport is not None:
            http.transport.abort()
        if fault is Fault.HALF_LINE:
            return web.Response(body=b'{"choices": [', content_type="application/json")
        return _error(500, f"scripted fault: {fault.value}", "InternalServerError")


def _conversation(body: dict[str, Any]) -> tuple[list[Message], list[ToolSpec]]:
    return [message_of(raw) for raw in body["messages"]], [tool_of(raw) for raw in body.get("tools") or []]


def _error(status: int, message: str, kind: str = "BadRequestError") -> web.Response:
    return json_response({"error": {"message": message, "type": kind, "param": None, "code": status}}, status)
