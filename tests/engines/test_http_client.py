# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Refusals of an engine, as errors of our tree."""

from __future__ import annotations

import json

import pytest

from nemo_polar.engines.http_client import answer_error
from nemo_polar.errors import EngineOverflow, EngineOverloaded, EngineProtocol, EngineUnavailable


@pytest.mark.parametrize(
    ("status", "message", "prompt_tokens", "error"),
    [
        (400, "The decoder prompt (length 9) is longer than the maximum model length of 8.", None, EngineOverflow),
        (400, "This model's maximum context length is 8 tokens.", None, EngineOverflow),
        (400, "The input (9 tokens) is longer than the model's context length (8 tokens).", None, EngineOverflow),
        (400, "Requested token count exceeds the model's maximum context length of 8 tokens.", None, EngineOverflow),
        (400, "Input length (7 tokens) exceeds the maximum allowed length (2 tokens).", None, EngineOverflow),
        (400, "no", 8, EngineOverflow),
        (400, "no", 7, EngineProtocol),
        (401, "who are you", 8, EngineProtocol),
        (404, "Not Found", None, EngineProtocol),
        (408, "slow", None, EngineUnavailable),
        (429, "busy", 8, EngineOverloaded),
        (500, "boom", None, EngineUnavailable),
        (502, "gateway", None, EngineUnavailable),
        (503, "busy", None, EngineOverloaded),
    ],
)
def test_a_refusal_is_typed_by_its_status_and_keeps_its_message(status, message, prompt_tokens, error):
    bodies = ({"error": {"message": message}}, {"error": message}, {"detail": message}, {"object": "error", "message": message})
    for body in (*map(json.dumps, bodies), message):
        caught = answer_error("POST /x", status, body.encode(), prompt_tokens=prompt_tokens, context=8)
        assert type(caught) is error and str(caught) == f"POST /x: HTTP {status}: {message}"
