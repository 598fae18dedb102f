# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Google's error shape: ``{"error": {code, message, status, details}}``, with the canonical status names of its APIs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import orjson

from nemo_polar.errors import CallError, ContextOverflow

_TYPES = "type.googleapis.com/google.rpc."
_STATUS: Mapping[str, str] = {
    "invalid_request": "INVALID_ARGUMENT",
    "context_overflow": "INVALID_ARGUMENT",
    "authentication": "UNAUTHENTICATED",
    "not_found": "NOT_FOUND",
    "too_slow": "DEADLINE_EXCEEDED",
    "too_large": "INVALID_ARGUMENT",
    "header_too_large": "INVALID_ARGUMENT",
    "rate_limit": "RESOURCE_EXHAUSTED",
    "unavailable": "UNAVAILABLE",
}


def error_body(exc: CallError) -> bytes:
    """The error. Details name the offending field, and say when to come back."""
    status = _STATUS.get(exc.kind, "INTERNAL" if exc.status >= 500 else "INVALID_ARGUMENT")
    error: dict[str, Any] = {"code": exc.status, "message": _message(exc), "status": status}
    details = _details(exc, error["message"])
    if details:
        error["details"] = details
    return orjson.dumps({"error": error})


def error_headers(exc: CallError) -> Mapping[str, str]:
    """``Retry-After`` in whole seconds, rounded up, where the error says when to come back."""
    return {} if exc.retry_after is None else {"Retry-After": str(max(0, math.ceil(exc.retry_after)))}


def _message(exc: CallError) -> str:
    if isinstance(exc, ContextOverflow):  # clients know this one by its words
        return (
            f"The input token count ({exc.prompt_tokens}) exceeds the maximum number of tokens allowed ({exc.limit}). "
            "Shorten the contents."
        )
    # A message may quote a URL or a header, and those can hold what UTF-8 cannot.
    return exc.message.encode("utf-8", "replace").decode()


def _details(exc: CallError, message: str) -> list[dict[str, Any]]:
    details: list[dict[str, Any]] = []
    if exc.param is not None and exc.status == 400 and not isinstance(exc, ContextOverflow):
        field = exc.param.encode("utf-8", "replace").decode()
        violation = {"field": field, "description": message, **({"reason": exc.code} if exc.code else {})}
        details.append({"@type": f"{_TYPES}BadRequest", "fieldViolations": [violation]})
    if exc.retry_after is not None:
        details.append({"@type": f"{_TYPES}RetryInfo", "retryDelay": f"{max(0.0, exc.retry_after):.3f}s"})
    return details
