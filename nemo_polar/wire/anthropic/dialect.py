# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Anthropic Messages: what Claude Code speaks, and what Pi, OpenCode and others can.

Requests are read in ``request``, answers written in ``reply`` and ``stream``; this is the class
the proxy holds. Paths come with ``/v1``, without and with two of them, as people differ in what they put into the base URL.
The query (``?beta=true``) and the ``anthropic-beta`` header change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import orjson

from nemo_polar.errors import CallError
from nemo_polar.types import ModelCall, Reply
from nemo_polar.wire import headers as heads
from nemo_polar.wire.anthropic import reply as answers
from nemo_polar.wire.anthropic.request import parse_request
from nemo_polar.wire.anthropic.stream import MessagesStream
from nemo_polar.wire.base import Route, StreamEncoder
from nemo_polar.wire.history import Parsed, Read

_PROBED = ("", "/", "/api/hello", "/v1", "/v1/", "/messages", "/models")


class Anthropic:
    """The ``anthropic`` dialect."""

    name = "anthropic"

    def recognise(self, method: str, path: str, headers: Mapping[str, str], query: Mapping[str, str]) -> Route | None:
        """POST ``[/v1]/messages`` and ``.../count_tokens``; HEAD on what its clients probe.

        GET ``[/v1]/models`` and ``.../<id>`` (the id may hold slashes) only with an ``anthropic-version`` header: other
        providers list their models under the same path.
        """
        for _ in range(2):
            path = path.removeprefix("/v1") if path.startswith("/v1/") else path
        if method == "POST":
            found = {"/messages": Route("generate"), "/messages/count_tokens": Route("count_tokens")}
            return found.get(path)
        if method == "HEAD":
            return Route("probe") if path in _PROBED else None
        if method != "GET" or heads.header(headers, "anthropic-version") is None:
            return None
        if path == "/models":
            return Route("models")
        model = path.removeprefix("/models/")
        return Route("model", model=model) if model and model != path else None

    def secret(self, headers: Mapping[str, str], query: Mapping[str, str]) -> str | None:
        """``Authorization: Bearer``, else ``x-api-key``."""
        return heads.key(headers, "x-api-key")

    def parse(self, body: bytes, route: Route, history: Sequence[Read] = ()) -> Parsed:
        """The call in ``body``; see ``request`` for what is honoured, dropped and refused.

        Raises:
            BadRequest: malformed JSON, a wrong type, an unknown role, a result without its call, an unsupported feature.
        """
        return parse_request(body, self.name, history, counting=route.kind == "count_tokens")

    def reply(self, call: ModelCall, reply: Reply) -> bytes:
        """A ``message``."""
        return answers.whole(call, reply)

    def stream(self, call: ModelCall, reply_id: str, created: int, model: str, prompt_tokens: int) -> StreamEncoder:
        """An encoder of the events from ``message_start`` to ``message_stop``."""
        return MessagesStream(call, reply_id, model, prompt_tokens)

    def count(self, tokens: int) -> bytes:
        """``{"input_tokens"}``."""
        return orjson.dumps({"input_tokens": tokens})

    def error(self, exc: CallError) -> tuple[int, Mapping[str, str], bytes]:
        """Status, extra headers and ``{"type": "error", "error": {type, message}, "request_id"}``."""
        return exc.status, answers.error_headers(exc), orjson.dumps(answers.error(exc))

    def models(self, names: Sequence[str], created: int, context: int) -> bytes:
        """The models listing; ``context`` in tokens."""
        return orjson.dumps(answers.models_page(names, created, context))

    def model(self, name: str, created: int, context: int) -> bytes:
        """One model."""
        return orjson.dumps(answers.model_entry(name, created, context))

    def is_retry(self, headers: Mapping[str, str]) -> bool:
        """Anthropic's own clients count their retries in ``x-stainless-retry-count``."""
        return heads.count(headers, "x-stainless-retry-count") > 0
