# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Which requests are Anthropic's, where their secret is, and the answers that are no messages: errors, models, counts."""

import orjson
import pytest

from nemo_polar.errors import (
    BadRequest,
    CallError,
    ContextOverflow,
    HeaderTooLarge,
    NotFound,
    Overloaded,
    TooLarge,
    TooSlow,
    Unauthorized,
    Unavailable,
)
from nemo_polar.wire.base import Route
from nemo_polar.wire.openai_chat.dialect import OpenAIChat
from nemo_polar.wire.recognise import match
from tests.support.anthropic_messages import DIALECT

VERSION = {"Anthropic-Version": "2023-06-01"}


@pytest.mark.parametrize("prefix", ["", "/v1", "/v1/v1"])
@pytest.mark.parametrize(
    ("method", "path", "route"),
    [
        ("POST", "/messages", Route("generate")),
        ("POST", "/messages/count_tokens", Route("count_tokens")),
        ("GET", "/models", Route("models")),
        ("GET", "/models/polar", Route("model", model="polar")),
        ("GET", "/models/org/name/v1", Route("model", model="org/name/v1")),
        ("HEAD", "/messages", Route("probe")),
        ("HEAD", "", Route("probe")),
        ("HEAD", "/", Route("probe")),
        ("HEAD", "/chat/completions", None),
        ("GET", "/messages", None),
        ("PUT", "/messages", None),
        ("POST", "/messages/", None),
        ("POST", "/messages/batches", None),
        ("POST", "/models", None),
        ("GET", "/models/", None),
        ("GET", "/modelsx", None),
    ],
)
def test_routes(method, path, route, prefix):
    assert DIALECT.recognise(method, prefix + path, VERSION, {"beta": "true"}) == route


def test_claude_codes_probe():
    assert DIALECT.recognise("HEAD", "/api/hello", {}, {}) == Route("probe")
    assert DIALECT.recognise("GET", "/api/hello", {}, {}) is None


@pytest.mark.parametrize("order", [1, -1])
def test_the_models_listing_is_that_of_the_api_the_client_names(order):
    dialects = [DIALECT, OpenAIChat()][::order]
    for headers, name in ((VERSION, "anthropic"), ({}, "openai_chat")):
        for path in ("/v1/models", "/v1/models/polar"):
            found = match(dialects, "GET", path, headers, {})
            assert found is not None and found[0].name == name


@pytest.mark.parametrize(
    ("headers", "secret"),
    [
        ({"X-Api-Key": " s"}, "s"),
        ({"Authorization": "Bearer s"}, "s"),
        ({"Authorization": "Bearer s", "x-api-key": "t"}, "s"),
        ({"api-key": "s"}, None),
        ({}, None),
    ],
)
def test_secret(headers, secret):
    assert DIALECT.secret(headers, {}) == secret


@pytest.mark.parametrize(("value", "retry"), [("0", False), ("1", True), ("x", False)])
def test_is_retry(value, retry):
    assert DIALECT.is_retry({"X-Stainless-Retry-Count": value}) is retry
    assert DIALECT.is_retry({}) is False


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (BadRequest("m"), 400, "invalid_request_error"),
        (Unauthorized("m"), 401, "authentication_error"),
        (NotFound("m"), 404, "not_found_error"),
        (TooSlow("m"), 408, "timeout_error"),
        (TooLarge("m"), 413, "request_too_large"),
        (HeaderTooLarge("m"), 431, "request_too_large"),
        (Overloaded("m"), 429, "rate_limit_error"),
        (Unavailable("m"), 503, "overloaded_error"),
        (CallError("m"), 500, "api_error"),
    ],
)
def test_errors(error, status, kind):
    got, headers, body = DIALECT.error(error)
    assert (got, headers) == (status, {})
    assert orjson.loads(body) == {"type": "error", "error": {"type": kind, "message": "m"}, "request_id": None}


def test_a_context_overflow_has_the_words_that_harnesses_compact_on():
    status, _, body = DIALECT.error(ContextOverflow(130_000, 128_000))
    error = orjson.loads(body)["error"]
    assert (status, error["type"]) == (400, "invalid_request_error")
    assert error["message"] == "prompt is too long: 130000 tokens > 128000 maximum"


@pytest.mark.parametrize(("seconds", "header"), [(0.2, "1"), (3, "3"), (-1, "0")])
def test_retry_after_is_in_whole_seconds(seconds, header):
    assert DIALECT.error(Unavailable("x", retry_after=seconds))[1] == {"Retry-After": header}


def test_a_message_that_utf8_cannot_hold_is_still_told():
    assert orjson.loads(DIALECT.error(NotFound("no \udcff here"))[2])["error"]["message"] == "no ? here"


def test_models():
    listing = orjson.loads(DIALECT.models(["a", "b/c"], 1_700_000_000, 4096))
    assert (listing["has_more"], listing["first_id"], listing["last_id"]) == (False, "a", "b/c")
    assert listing["data"][1] == orjson.loads(DIALECT.model("b/c", 1_700_000_000, 4096))
    assert listing["data"][0]["type"] == "model" and listing["data"][0]["created_at"] == "2023-11-14T22:13:20Z"
    assert orjson.loads(DIALECT.models([], 0, 1))["first_id"] is None


def test_count():
    assert orjson.loads(DIALECT.count(7)) == {"input_tokens": 7}
