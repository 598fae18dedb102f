# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Which request belongs to which dialect, and where its secret is."""

import pytest

from nemo_polar.registry import resolve
from nemo_polar.wire.base import Route
from nemo_polar.wire.openai_chat.dialect import OpenAIChat
from nemo_polar.wire.recognise import match

CHAT = OpenAIChat()


class FakeDialect(OpenAIChat):
    """Knows one path only."""

    name = "fake"

    def recognise(self, method, path, headers, query):
        return Route("generate") if path == "/v1/messages" else None


def test_the_registry_knows_it():
    assert resolve("dialects", "openai_chat") is OpenAIChat


@pytest.mark.parametrize("prefix", ["", "/v1"])
@pytest.mark.parametrize(
    ("method", "path", "route"),
    [
        ("POST", "/chat/completions", Route("generate")),
        ("GET", "/models", Route("models")),
        ("GET", "/models/polar", Route("model", model="polar")),
        ("GET", "/models/org/name/v1", Route("model", model="org/name/v1")),
        ("GET", "/chat/completions", None),
        ("PUT", "/chat/completions", None),
        ("POST", "/models", None),
        ("DELETE", "/models/polar", None),
        ("GET", "/models/", None),
        ("GET", "/modelsx", None),
        ("POST", "/chat/completions/", None),
        ("POST", "/v1/chat/completions/x", None),
        ("POST", "/completions", None),
        ("GET", "/", None),
        ("GET", "", None),
    ],
)
def test_routes(method, path, route, prefix):
    assert CHAT.recognise(method, prefix + path, {}, {}) == route


def test_a_doubled_v1_is_not_a_route():
    assert CHAT.recognise("POST", "/v1/v1/chat/completions", {}, {}) is None


def test_anthropic_clients_get_their_own_models_listing():
    assert CHAT.recognise("GET", "/v1/models", {"Anthropic-Version": "2023-06-01"}, {}) is None


def test_the_first_dialect_that_knows_the_request_line_is_taken():
    fake = FakeDialect()
    assert match([fake, CHAT], "POST", "/v1/messages", {}, {}) == (fake, Route("generate"))
    assert match([fake, CHAT], "GET", "/v1/models", {}, {}) == (CHAT, Route("models"))
    assert match([fake, CHAT], "GET", "/v1/nothing", {}, {}) is None
    assert match([], "GET", "/v1/models", {}, {}) is None


@pytest.mark.parametrize(
    ("headers", "secret"),
    [
        ({"Authorization": "Bearer s"}, "s"),
        ({"authorization": "bearer  s "}, "s"),
        ({"API-Key": "s"}, "s"),
        ({"X-Api-Key": " s"}, "s"),
        ({"Authorization": "Bearer s", "x-api-key": "t"}, "s"),
        ({"Authorization": "Basic dTpw", "x-api-key": "t"}, "t"),
        ({"Authorization": "Bearer ", "api-key": "t"}, "t"),
        ({"Authorization": "Bearer"}, None),
        ({"Authorization": ""}, None),
        ({"Authorization": "s"}, None),
        ({"Authorization": "Bearer sé\udcff"}, None),
        ({}, None),
    ],
)
def test_secret(headers, secret):
    assert CHAT.secret(headers, {"key": "not here"}) == secret


@pytest.mark.parametrize(
    ("value", "retry"),
    [("0", False), ("1", True), ("12", True), ("", False), ("-1", False), ("x", False), ("²", False), ("9" * 5000, False)],
)
def test_is_retry(value, retry):
    assert CHAT.is_retry({"X-Stainless-Retry-Count": value}) is retry
    assert CHAT.is_retry({}) is False
