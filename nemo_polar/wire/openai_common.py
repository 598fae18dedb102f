# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What OpenAI's two APIs have in common: the error shape and the models listing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from nemo_polar.errors import CallError

# kind: (type, code where the error names none). Clients decide by status and code; people read the type.
_ERROR_SHAPES: Mapping[str, tuple[str, str | None]] = {
    "invalid_request": ("invalid_request_error", None),
    "context_overflow": ("invalid_request_error", "context_length_exceeded"),
    "authentication": ("authentication_error", "invalid_api_key"),
    "not_found": ("not_found_error", None),
    "too_large": ("invalid_request_error", "request_too_large"),
    "rate_limit": ("rate_limit_error", "rate_limit_exceeded"),
    "unavailable": ("server_error", "service_unavailable"),
    "server_error": ("server_error", None),
}


def error_body(exc: CallError) -> bytes:
    """``{"error": {message, type, param, code}}``; ``code`` is ``model_not_found`` where the missing thing is the model."""
    kind, code = _ERROR_SHAPES.get(exc.kind, _ERROR_SHAPES["server_error" if exc.status >= 500 else "invalid_request"])
    if exc.kind == "not_found" and exc.param == "model":
        code = "model_not_found"
    # A message may quote a URL or a header, and those can hold what UTF-8 cannot.
    message = exc.message.encode("utf-8", "replace").decode()
    return orjson.dumps({"error": {"message": message, "type": kind, "param": exc.param, "code": exc.code or code}})


def error_headers(exc: CallError) -> Mapping[str, str]:
    """``Retry-After`` in whole seconds, rounded up, where the error says when to come back."""
    return {} if exc.retry_after is None else {"Retry-After": str(max(0, math.ceil(exc.retry_after)))}


def model_entry(name: str, created: int, context: int) -> dict[str, Any]:
    """One model. ``max_model_len`` (tokens) is vLLM's addition, which clients of local servers read."""
    return {"id": name, "object": "model", "created": created, "owned_by": "nemo_polar", "max_model_len": context}


def models_body(names: Sequence[str], created: int, context: int) -> bytes:
    """The listing."""
    return orjson.dumps({"object": "list", "data": [model_entry(name, created, context) for name in names]})
