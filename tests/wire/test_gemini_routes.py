# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Which requests are of the Gemini dialect, what they ask for, and where their secret is."""

from __future__ import annotations

import pytest

from nemo_polar.errors import NotFound
from nemo_polar.registry import resolve
from nemo_polar.wire.base import Route
from nemo_polar.wire.gemini.dialect import Gemini
from nemo_polar.wire.openai_chat.dialect import OpenAIChat
from nemo_polar.wire.recognise import match
from tests.support.gemini import (
    DIALECT,
)

GOOGLE = {"X-Goog-Api-Key": "s"}


def test_the_registry_knows_it():
    assert resolve("dialects", "gemini") is Gemini


@pytest.mark.parametrize("version", ["/v1beta", "/v1alpha", "/v1", ""])
@pytest.mark.parametrize(
    ("method", "path", "query", "expected"),
    [
        ("POST", "/models/polar:generateContent", {}, Route("generate", "polar", False, "array")),
        ("POST", "/models/polar:streamGenerateContent", {"alt": "sse"}, Route("generate", "polar", True, "sse")),
        ("POST", "/models/polar:streamGenerateContent", {"$alt": "sse"}, Route("generate", "polar", True, "sse")),
        ("POST", "/models/polar:streamGenerateContent", {}, Route("generate", "polar", True, "array")),
        ("POST", "/models/polar:streamGenerateContent", {"alt": "json"}, Route("generate", "polar", True, "array")),
        ("POST", "/models/polar:countTokens", {}, Route("count_tokens", "polar", None, "array")),
        ("POST", "/models/org/name:8b:generateContent", {}, Route("generate", "org/name:8b", False, "array")),
        ("GET", "/models", {}, Route("models")),
        ("GET", "/models/polar", {}, Route("model", "polar")),
        ("GET", "/models/org/name", {}, Route("model", "org/name")),
    ],
)
def test_routes(version, method, path, query, expected):
    assert DIALECT.recognise(method, version + path, GOOGLE, query) == expected


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1beta/models/polar:embedContent"),
        ("POST", "/v1/models/polar:batchEmbedContents"),
        ("POST", "/v1beta/models/:generateContent"),
        ("POST", "/v1beta/cachedContents"),
        ("GET", "/v1beta/files"),
        ("POST", "/upload/v1beta/files"),
        ("DELETE", "/v1beta/models/polar"),
    ],
)
def test_what_is_not_served_is_said_in_the_shape_of_this_api(method, path):
    asked = DIALECT.recognise(method, path, {}, {})
    assert asked is not None
    with pytest.raises(NotFound, match="generateContent, countTokens"):
        DIALECT.parse(b"", asked)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/chat/completions"),
        ("GET", "/v1/models"),
        ("GET", "/models/polar"),
        ("POST", "/v1/models/polar"),
        ("POST", "/v1/models"),
        ("GET", "/v1betamodels"),
        ("GET", "/"),
        ("GET", ""),
    ],
)
def test_what_is_not_of_this_api_is_left_to_others(method, path):
    assert DIALECT.recognise(method, path, {}, {}) is None


@pytest.mark.parametrize("order", [1, -1])
def test_the_models_listing_under_a_shared_path_goes_by_the_key_header(order):
    chat = OpenAIChat()
    dialects = [chat, DIALECT][::order]
    assert match(dialects, "GET", "/v1/models", GOOGLE, {}) == (DIALECT, Route("models"))
    assert match(dialects, "GET", "/v1/models", {"Authorization": "Bearer s"}, {}) == (chat, Route("models"))
    assert match(dialects, "GET", "/v1beta/models", {}, {"key": "s"}) == (DIALECT, Route("models"))


@pytest.mark.parametrize(
    ("headers", "query", "secret"),
    [
        (GOOGLE, {}, "s"),
        (GOOGLE, {"key": "t"}, "s"),
        ({"authorization": "Bearer s"}, {}, "s"),
        ({}, {"key": "s"}, "s"),
        ({"x-goog-api-key": ""}, {"key": "s"}, None),
        ({}, {"key": "é"}, None),
        ({}, {"key": ""}, None),
        ({}, {}, None),
        ({"x-api-key": "s"}, {}, None),
    ],
)
def test_secret(headers, query, secret):
    assert DIALECT.secret(headers, query) == secret
