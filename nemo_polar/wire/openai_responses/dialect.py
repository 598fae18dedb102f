# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""OpenAI Responses: what Codex speaks, and Pi and OpenCode where they are told to.

Requests are read in ``request`` and the modules it names, answers written in ``reply`` and
``stream``; this is the class the proxy holds. Paths come with or without ``/v1``. The models listing is
that of Chat Completions, whose dialect answers it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import orjson

from nemo_polar.errors import CallError, NotFound
from nemo_polar.types import ModelCall, Reply
from nemo_polar.wire import headers as heads
from nemo_polar.wire.base import Route, StreamEncoder
from nemo_polar.wire.history import Parsed, Read
from nemo_polar.wire.openai_common import error_body, error_headers, model_entry, models_body
from nemo_polar.wire.openai_responses.reply import response
from nemo_polar.wire.openai_responses.request import parse_request
from nemo_polar.wire.openai_responses.stream import ResponsesStream


class OpenAIResponses:
    """The ``openai_responses`` dialect."""

    name = "openai_responses"

    def recognise(self, method: str, path: str, headers: Mapping[str, str], query: Mapping[str, str]) -> Route | None:
        """POST ``[/v1]/responses``, and the websocket that Codex's built-in provider asks for on the same path."""
        path = path.removeprefix("/v1") if path.startswith("/v1/") else path
        if path != "/responses":
            return None
        if method == "POST":
            return Route("generate")
        upgrade = (heads.header(headers, "upgrade") or "").strip().lower()
        return Route("websocket") if method == "GET" and upgrade == "websocket" else None

    def secret(self, headers: Mapping[str, str], query: Mapping[str, str]) -> str | None:
        """``Authorization: Bearer``, else ``api-key``, else ``x-api-key``."""
        return heads.key(headers, "api-key", "x-api-key")

    def parse(self, body: bytes, route: Route, history: Sequence[Read] = ()) -> Parsed:
        """The call in ``body``; see ``request`` for what is honoured, dropped and refused.

        Raises:
            BadRequest: malformed JSON, a wrong type, an unknown item, a result without its call, an unsupported feature.
        """
        return parse_request(body, self.name, history)

    def reply(self, call: ModelCall, reply: Reply) -> bytes:
        """A ``response`` object."""
        return response(call, reply)

    def stream(self, call: ModelCall, reply_id: str, created: int, model: str, prompt_tokens: int) -> StreamEncoder:
        """An encoder of ``response.*`` events. Usage is told at the end only."""
        return ResponsesStream(call, reply_id, created, model)

    def count(self, tokens: int) -> bytes:
        """This API has a route for it that no harness was seen to use."""
        raise NotFound("Counting tokens is not served for this API.")

    def error(self, exc: CallError) -> tuple[int, Mapping[str, str], bytes]:
        """Status, extra headers and ``{"error": {message, type, param, code}}``."""
        body = error_body(exc)
        if exc.param is not None and exc.param.partition("[")[0] == "messages":
            # Whoever raised it counts messages, and an item is not always one.
            told = orjson.loads(body)
            told["error"]["param"] = "input"
            body = orjson.dumps(told)
        return exc.status, error_headers(exc), body

    def models(self, names: Sequence[str], created: int, context: int) -> bytes:
        """The models listing; ``context`` in tokens."""
        return models_body(names, created, context)

    def model(self, name: str, created: int, context: int) -> bytes:
        """One model, as ``GET /v1/models/<id>`` wants it."""
        return orjson.dumps(model_entry(name, created, context))

    def is_retry(self, headers: Mapping[str, str]) -> bool:
        """OpenAI's own clients count their retries in ``x-stainless-retry-count``."""
        return heads.count(headers, "x-stainless-retry-count") > 0
