# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Gemini's ``generateContent``, ``streamGenerateContent`` and ``countTokens``: what Gemini CLI and Google's own clients speak.

Requests are read in ``request``, answers written in ``reply`` and ``stream``; this is the class the proxy
holds. The URL names the model and what is asked for: ``/v1beta/models/<model>:<method>``. Everything under ``/v1beta`` and
``/v1alpha`` is of this API; of ``/v1``, which others use too, only what cannot be meant for them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from nemo_polar.errors import CallError, NotFound
from nemo_polar.types import ModelCall, Reply
from nemo_polar.wire import headers as heads
from nemo_polar.wire.base import Route, StreamEncoder
from nemo_polar.wire.fields import shown
from nemo_polar.wire.gemini.errors import error_body, error_headers
from nemo_polar.wire.gemini.reply import text_tokens, whole_answer
from nemo_polar.wire.gemini.request import parse_count, parse_request
from nemo_polar.wire.gemini.stream import GeminiStream
from nemo_polar.wire.history import Parsed, Read

_KEY = "x-goog-api-key"
_MODELS = re.compile(r"(?:/(?P<version>v1beta|v1alpha|v1))?/models(?:/(?P<rest>.+))?", re.DOTALL)
_OURS_ALONE = re.compile(r"(?:/upload)?/(?:v1beta|v1alpha)/.*", re.DOTALL)
_METHODS: Mapping[str, Route] = {
    "generateContent": Route("generate", stream=False),
    "streamGenerateContent": Route("generate", stream=True),
    "countTokens": Route("count_tokens"),
}
_SERVED = ("generateContent", "countTokens")


@dataclass(frozen=True, slots=True)
class _Unserved(Route):
    """A method of this API that is not served: reading such a request says so, in the API's own shape."""

    what: str = ""


class Gemini:
    """The ``gemini`` dialect."""

    name = "gemini"

    def recognise(self, method: str, path: str, headers: Mapping[str, str], query: Mapping[str, str]) -> Route | None:
        """POST ``[/<version>]/models/<model>:<method>``, GET ``[/<version>]/models[/<id>]``; ids may hold slashes and colons.
        Under ``/v1`` and without a version, the listing is of this API only for a request with its key header.
        """
        route = self._models_route(method, path, headers, query)
        if route is None and _OURS_ALONE.fullmatch(path):
            return _Unserved("generate", what=f"{method} {path}")
        return route

    def _models_route(self, method: str, path: str, headers: Mapping[str, str], query: Mapping[str, str]) -> Route | None:
        found = _MODELS.fullmatch(path)
        if found is None:
            return None
        rest = found["rest"]
        if method == "POST" and rest:
            model, colon, verb = rest.rpartition(":")
            asked = _METHODS.get(verb)
            if asked is not None and model:
                form = "sse" if "sse" in (query.get("alt"), query.get("$alt")) else "array"
                return Route(asked.kind, model=model, stream=asked.stream, form=form)
            return _Unserved("generate", what=f"{method} {path}") if colon else None
        ours = found["version"] in ("v1beta", "v1alpha") or heads.header(headers, _KEY) is not None
        if method != "GET" or not ours:
            return None
        return Route("model", model=rest) if rest else Route("models")

    def secret(self, headers: Mapping[str, str], query: Mapping[str, str]) -> str | None:
        """``Authorization: Bearer``, else ``x-goog-api-key``, else ``key`` of the query."""
        if any(name.lower() in ("authorization", _KEY) for name in headers):
            return heads.key(headers, _KEY)
        given = [value for name, value in query.items() if name == "key"]  # of a multi-dict only the items are all there
        return given[0] if len(given) == 1 and given[0] and given[0].isascii() else None

    def parse(self, body: bytes, route: Route, history: Sequence[Read] = ()) -> Parsed:
        """The call in ``body``; see ``request`` for what is honoured, dropped and refused.

        Raises:
            BadRequest: malformed JSON, a wrong type, an unknown role, a result without its call, an unsupported feature.
            NotFound: a method that is not served.
        """
        if isinstance(route, _Unserved):
            raise NotFound(f"There is no {shown(route.what)} here. Served are {', '.join(_SERVED)} and streamGenerateContent.")
        model = route.model or ""
        if route.kind == "count_tokens":
            return parse_count(body, self.name, history, model=model)
        return parse_request(body, self.name, history, model=model, stream=bool(route.stream), form=route.form)

    def reply(self, call: ModelCall, reply: Reply) -> bytes:
        """A ``GenerateContentResponse``."""
        return whole_answer(call, reply)

    def stream(self, call: ModelCall, reply_id: str, created: int, model: str, prompt_tokens: int) -> StreamEncoder:
        """An encoder of ``GenerateContentResponse`` chunks. Usage is told at the end only."""
        return GeminiStream(call, reply_id, model)

    def count(self, tokens: int) -> bytes:
        """A ``CountTokensResponse``."""
        return orjson.dumps({"totalTokens": tokens, "promptTokensDetails": text_tokens(tokens)})

    def error(self, exc: CallError) -> tuple[int, Mapping[str, str], bytes]:
        """Status, extra headers and ``{"error": {code, message, status, details}}``."""
        return exc.status, error_headers(exc), error_body(exc)

    def models(self, names: Sequence[str], created: int, context: int) -> bytes:
        """The models listing; ``context`` in tokens."""
        return orjson.dumps({"models": [_model(name, context) for name in names]})

    def model(self, name: str, created: int, context: int) -> bytes:
        """One model."""
        return orjson.dumps(_model(name, context))

    def is_retry(self, headers: Mapping[str, str]) -> bool:
        """Google's clients do not say that they retry."""
        return False


def _model(name: str, context: int) -> dict[str, Any]:
    return {
        "name": f"models/{name}",
        "version": "1",
        "displayName": name,
        "inputTokenLimit": context,
        "outputTokenLimit": context,
        "supportedGenerationMethods": list(_SERVED),
        "thinking": True,
    }
