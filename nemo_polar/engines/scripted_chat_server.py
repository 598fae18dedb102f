# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A scripted chat-only server with NeMo RL's contract, to test ``ChatPrefixEngine`` and the proxy's check of reported prompts.

It refuses what NeMo RL's server refuses (its assertions become HTTP 500, an overflow 400), renders with the codec it is
given, puts a required prefix in place of its own rendering of the same history, and returns ids only when they were asked for
properly. Like the real one it does not check that the prefix belongs to the messages.
"""

from __future__ import annotations

from typing import Any

import orjson
from aiohttp import web

from nemo_polar.engines.base import GenerateRequest
from nemo_polar.engines.script import Fault
from nemo_polar.engines.scripted_core import ScriptedCore, ScriptedFault
from nemo_polar.engines.scripted_messages import message_of, tool_of
from nemo_polar.errors import EngineOverflow
from nemo_polar.tokens.base import Codec
from nemo_polar.types import FinishReason, Message, Role, SamplingParams, TokenIds, ToolSpec, as_ids


class ScriptedChatServer:
    """``temperature`` and ``top_p``: the trainer's config, which every request must match."""

    def __init__(self, core: ScriptedCore, codec: Codec, *, temperature: float = 1.0, top_p: float = 1.0):
        self.core, self._codec = core, codec
        self._temperature, self._top_p = temperature, top_p
        self.bodies: list[dict[str, Any]] = []
        """Every request that passed the assertions."""
        self.app = web.Application(client_max_size=256 * 1024 * 1024)
        self.app.router.add_post("/v1/chat/completions", self._chat)

    async def _chat(self, http: web.Request) -> web.Response:
        body = orjson.loads(await http.read())
        refusal = self._refusal(body)
        if refusal is not None:
            return _error(500, f"AssertionError: {refusal}")
        self.bodies.append(body)
        messages, tools = [message_of(raw) for raw in body["messages"]], [tool_of(raw) for raw in body.get("tools", [])]
        prompt = self._prompt(messages, tools, body.get("required_prefix_token_ids"))
        room = self.core.options.max_context - len(prompt)
        request = GenerateRequest(
            request_id=http.headers.get("X-Request-Id", "chat"),
            prompt_ids=prompt,
            sampling=SamplingParams(temperature=body["temperature"], top_p=body["top_p"], seed=body.get("seed")),
            stop_token_ids=tuple(self._codec.stop_token_ids),
            max_tokens=max(min(body.get("max_tokens") or room, room), 1),
        )
        ids: list[int] = []
        logprobs: list[float | None] = []
        finish: FinishReason | None = None
        try:
            async for step in self.core.draw(request):
                ids += step.token_ids
                logprobs += step.logprobs
                finish = step.finish_reason
        except EngineOverflow as exc:
            return _error(400, str(exc))
        except ScriptedFault as exc:
            return self._fault(http, exc.fault)
        assert finish is not None
        return _json(self._answer(body, prompt, ids, logprobs, finish, tools))

    def _refusal(self, body: dict[str, Any]) -> str | None:
        """What the server asserts, in words of our own; None when all holds."""
        if body.get("top_k") not in (None, -1):
            return f"top_k must be unset, not {body['top_k']}"
        if body.get("top_p") is None:
            return "top_p must be given"
        if (body.get("temperature"), body["top_p"]) != (self._temperature, self._top_p):
            return f"sampling is ({body.get('temperature')}, {body['top_p']}), config has ({self._temperature}, {self._top_p})"
        if "top_logprobs" in body and body["top_logprobs"] is None:
            return "top_logprobs must be left out or be a number"
        if body.get("stream"):
            return "token ids come with whole answers only; stream must be off"
        return "n must be 1" if body.get("n", 1) != 1 else None

    def _prompt(self, messages: list[Message], tools: list[ToolSpec], required: list[int] | None) -> TokenIds:
        """Rendered, with ``required`` in place of everything up to the end of the last assistant message."""
        rendered = self._codec.render(messages, tools)
        if not required:
            return rendered
        last = max((at for at, message in enumerate(messages) if message.role is Role.ASSISTANT), default=-1)
        before = len(self._codec.render(messages[:last], tools)) if last > 0 else 0
        stops = set(self._codec.stop_token_ids)
        cut = next((at for at in range(before, len(rendered)) if int(rendered[at]) in stops), before)
        kept = required[:-1] if required[-1] in stops else required
        return as_ids([*kept, *rendered[cut:].tolist()])

    def _answer(
        self,
        body: dict[str, Any],
        prompt: TokenIds,
        ids: list[int],
        logprobs: list[float | None],
        finish: FinishReason,
        tools: list[ToolSpec],
    ) -> dict[str, Any]:
        parser = self._codec.parser(prompt, tools)
        parser.feed(ids)
        parser.finish(finish)
        message: dict[str, Any] = {"role": "assistant", "content": parser.message().text}
        if body.get("logprobs") and body.get("return_tokens_as_token_ids"):
            message |= {
                "prompt_token_ids": prompt.tolist(),
                "generation_token_ids": ids,
                "generation_log_probs": logprobs,
            }
        return {
            "id": "chatcmpl-scripted",
            "object": "chat.completion",
            "model": self.core.options.model,
            "choices": [{"index": 0, "message": message, "finish_reason": finish.value}],
            "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(ids), "total_tokens": len(prompt) + len(ids)},
        }

    def _fault(self, http: web.Request, fault: Fault) -> web.Response:
        if fault in (Fault.OVERLOADED, Fault.BUSY):
            return _error(429 if fault is Fault.OVERLOADED else 503, "scripted fault: busy")
        if fault is Fault.CUT and http.transport is not None:
            http.transport.abort()
        if fault is Fault.HALF_LINE:
            return web.Response(body=b'{"choices": [', content_type="application/json")
        return _error(500, f"scripted fault: {fault.value}")


def _json(body: Any, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json")


def _error(status: int, message: str) -> web.Response:
    return _json({"error": {"message": message, "type": "BadRequestError", "param": None, "code": status}}, status)
