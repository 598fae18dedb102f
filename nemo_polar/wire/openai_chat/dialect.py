# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""OpenAI Chat Completions: what Pi, Qwen Code, OpenCode, mini-swe-agent, OpenHands and most other harnesses speak.

Requests are read in ``request``, answers written in ``reply``; this is the class the proxy holds. Paths
come with or without ``/v1``, as clients differ in what they take for the base URL. No client of this API was seen to make a
probe, so there is no route for one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import orjson

from nemo_polar.errors import CallError, NotFound
from nemo_polar.types import ModelCall, Reply
from nemo_polar.wire import headers as heads
from nemo_polar.wire.base import Route, StreamEncoder
from nemo_polar.wire.history import Parsed, Read
from nemo_polar.wire.openai_chat.reply import ChatStream, completion
from nemo_polar.wire.openai_chat.request import parse_request
from nemo_polar.wire.openai_common import error_body, error_headers, model_entry, models_body

_OTHER_PROVIDERS = ("anthropic-version", "x-goog-api-key")


class OpenAIChat:
    """The ``openai_chat`` dialect."""

    name = "openai_chat"

    def recognise(self, method: str, path: str, headers: Mapping[str, str], query: Mapping[str, str]) -> Route | None:
        """POST ``[/v1]/chat/completions``, GET ``[/v1]/models``, GET ``[/v1]/models/<id>`` (the id may hold slashes)."""
        path = path.removeprefix("/v1") if path.startswith("/v1/") else path
        if method == "POST":
            return Route("generate") if path == "/chat/completions" else None
        # Other providers list their models under the same path; their clients say whose API they mean.
        if method != "GET" or any(heads.header(headers, other) is not None for other in _OTHER_PROVIDERS):
            return None
        if path == "/models":
            return Route("models")
        model = path.removeprefix("/models/")
        return Route("model", model=model) if model and model != path else None

    def secret(self, headers: Mapping[str, str], query: Mapping[str, str]) -> str | None:
        """``Authorization: Bearer``, else ``api-key``, else ``x-api-key``."""
        return heads.key(headers, "api-key", "x-api-key")

    def parse(self, body: bytes, route: Route, history: Sequence[Read] = ()) -> Parsed:
        """The call in ``body``; see ``request`` for what is honoured, dropped and refused.

        Raises:
            BadRequest: malformed JSON, a wrong type, an unknown role, a result without its call, an unsupported feature.
        """
        return parse_request(body, self.name, history)

    def reply(self, call: ModelCall, reply: Reply) -> bytes:
        """A ``chat.completion``."""
        return completion(call, reply)

    def stream(self, call: ModelCall, reply_id: str, created: int, model: str, prompt_tokens: int) -> StreamEncoder:
        """An encoder of ``chat.completion.chunk`` events. Usage is told at the end only."""
        return ChatStream(call, reply_id, created, model)

    def count(self, tokens: int) -> bytes:
        """This API has no route for it."""
        raise NotFound("Counting tokens is not served for this API.")

    def error(self, exc: CallError) -> tuple[int, Mapping[str, str], bytes]:
        """Status, extra headers and ``{"error": {message, type, param, code}}``."""
        return exc.status, error_headers(exc), error_body(exc)

    def models(self, names: Sequence[str], created: int, context: int) -> bytes:
        """The models listing; ``context`` in tokens."""
        return models_body(names, created, context)

    def model(self, name: str, created: int, context: int) -> bytes:
        """One model, as ``GET /v1/models/<id>`` wants it."""
        return orjson.dumps(model_entry(name, created, context))

    def is_retry(self, headers: Mapping[str, str]) -> bool:
        """OpenAI's own clients count their retries in ``x-stainless-retry-count``."""
        return heads.count(headers, "x-stainless-retry-count") > 0
