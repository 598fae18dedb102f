# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What the fuzz test must know of each dialect: where requests go, whose bodies they are, and what a right answer is.

A reader of answers raises (AssertionError, KeyError, ValueError and the like) where an answer is not a complete and valid one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from nemo_polar.wire.base import Dialect, Route
from tests.support import anthropic_messages, gemini, mutate_words, openai_chat, openai_responses, proxy
from tests.support.mutate_words import Words
from tests.support.raw_http import Answer
from tests.support.recording import recorded

Json = dict[str, Any]


@dataclass(frozen=True)
class Told:
    """What a 2xx tells the client of its turn. Counts are of tokens; None where nothing was said."""

    call_id: str
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


@dataclass(frozen=True)
class Refused:
    """What an error answer says."""

    message: str
    named: bool
    """It names a field, or is of a kind that has none to name."""


@dataclass(frozen=True)
class FuzzDialect:
    """One dialect under mutation."""

    dialect: Dialect
    words: Words
    recordings: Sequence[str]
    """In ``tests/data/requests``."""
    targets: Sequence[tuple[str, int]]
    """What is asked for, and how often; the first is one that is always right and gives a whole answer."""
    headers: Callable[[str], Sequence[tuple[str, str]]]
    """How its clients send a session's secret."""
    whole: Callable[[Any], Told]
    """Reads a whole answer."""
    stream: Callable[[bytes], Told]
    """Reads a streamed one."""
    refused: Callable[[Any, int], Refused]
    """Reads the body of an error, which came with that status."""
    short: Callable[[Json], None]
    """Has a body ask for a whole answer of at most 30 tokens."""
    go_on: Callable[[Json, Any], None]
    """Appends an answer to the conversation in a body, and what a harness says next."""

    @property
    def name(self) -> str:
        return self.dialect.name

    def bodies(self) -> list[bytes]:
        return [body for name in self.recordings for body in recorded(name)]

    def route(self, target: str) -> Route:
        path, _, query = target.partition("?")
        fields = dict(pair.split("=") for pair in query.split("&")) if query else {}
        route = self.dialect.recognise("POST", unquote(path), {}, fields)
        assert route is not None
        return route

    def told(self, answer: Answer, target: str) -> Told | None:
        """What a 2xx tells; None for one that counts tokens."""
        if self.route(target).kind == "count_tokens":
            counts = [answer.json().get(field) for field in ("input_tokens", "totalTokens")]
            assert sum(type(count) is int and count > 0 for count in counts) == 1, "no count"
            return None
        kind = answer.headers["content-type"]
        if kind.startswith("text/event-stream") or answer.body.startswith(b"["):
            return self.stream(answer.body)
        assert kind.startswith("application/json"), kind
        return self.whole(answer.json())


# --- OpenAI -----------------------------------------------------------------------------------------------------------

_NAMED = ("invalid_type", "invalid_value", "missing_required_parameter", "unsupported_parameter", "context_length_exceeded")


def _bearer(secret: str) -> Sequence[tuple[str, str]]:
    return [("Authorization", f"Bearer {secret}")]


def _openai_error(body: Any, status: int) -> Refused:
    error = body["error"]
    assert set(body) == {"error"} and set(error) == {"message", "type", "param", "code"}, "its keys"
    assert isinstance(error["type"], str) and error["type"], "its type"
    assert error["param"] is None or (isinstance(error["param"], str) and error["param"]), "its param"
    return Refused(error["message"], error["code"] not in _NAMED or bool(error["param"]))


def _chat_whole(answer: Any) -> Told:
    assert answer["choices"][0]["message"]["role"] == "assistant" and answer["choices"][0]["finish_reason"]
    usage = answer["usage"]
    return Told(answer["id"].removeprefix("chatcmpl-"), usage["prompt_tokens"], usage["completion_tokens"])


def _chat_stream(body: bytes) -> Told:
    stream = proxy.joined(body)
    assert stream["done"] and not stream.get("error") and stream["finish"] is not None, "it does not end well"
    return Told(stream["id"].removeprefix("chatcmpl-"))


def _chat_short(body: Json) -> None:
    body.update(stream=False, max_tokens=30, logprobs=False)
    body.pop("max_completion_tokens", None)
    body.pop("stream_options", None)


def _chat_go_on(body: Json, answer: Any) -> None:
    message = answer["choices"][0]["message"]
    results = [{"role": "tool", "tool_call_id": c["id"], "content": "ok"} for c in message.get("tool_calls") or ()]
    body["messages"] += [message, *(results or [{"role": "user", "content": "more"}])]


CHAT = FuzzDialect(
    dialect=openai_chat.DIALECT,
    words=mutate_words.CHAT,
    recordings=("pi", "mini_swe_agent", "qwen_code", "opencode", "openhands"),
    targets=(("/v1/chat/completions", 1),),
    headers=_bearer,
    whole=_chat_whole,
    stream=_chat_stream,
    refused=_openai_error,
    short=_chat_short,
    go_on=_chat_go_on,
)


def _response(answer: Any) -> Told:
    assert answer["object"] == "response" and answer["status"] in ("completed", "incomplete"), answer["status"]
    assert answer["error"] is None and answer["output"], "an empty output"
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    return Told(answer["id"].removeprefix("resp_"), usage["input_tokens"], usage["output_tokens"])


def _responses_stream(body: bytes) -> Told:
    items, last = openai_responses.joined(body)
    assert items == last["output"], "the items are not those of the last event"
    return _response(last)


def _responses_short(body: Json) -> None:
    body.update(stream=False, max_output_tokens=30)


def _responses_go_on(body: Json, answer: Any) -> None:
    made = [i for i in answer["output"] if i["type"] in ("function_call", "custom_tool_call")]
    results = [{"type": f"{i['type']}_output", "call_id": i["call_id"], "output": "ok"} for i in made]
    body["input"] += [*answer["output"], *(results or [{"role": "user", "content": "more"}])]


RESPONSES = FuzzDialect(
    dialect=openai_responses.DIALECT,
    words=mutate_words.RESPONSES,
    recordings=("codex", "pi_openai_responses", "opencode_openai_responses"),
    targets=(("/v1/responses", 1),),
    headers=_bearer,
    whole=_response,
    stream=_responses_stream,
    refused=_openai_error,
    short=_responses_short,
    go_on=_responses_go_on,
)

# --- Anthropic --------------------------------------------------------------------------------------------------------

_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
}


def _anthropic_message(answer: Any) -> Told:
    assert answer["type"] == "message" and answer["role"] == "assistant" and answer["stop_reason"], "not a whole message"
    usage = answer["usage"]
    prompt = sum(usage[f] for f in ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"))
    return Told(answer["id"].removeprefix("msg_"), prompt, usage["output_tokens"])


def _anthropic_stream(body: bytes) -> Told:
    return _anthropic_message(anthropic_messages.joined(body))


def _anthropic_error(body: Any, status: int) -> Refused:
    error = body["error"]
    assert set(body) == {"type", "error", "request_id"} and body["type"] == "error", "its keys"
    assert set(error) == {"type", "message"} and error["type"] == _ANTHROPIC_TYPES.get(status, "invalid_request_error"), (
        "its type"
    )
    message = error["message"]
    return Refused(message + "." if message.startswith("prompt is too long: ") else message, True)


def _anthropic_short(body: Json) -> None:
    body.update(stream=False, max_tokens=30)


def _anthropic_go_on(body: Json, answer: Any) -> None:
    content = answer["content"]
    results = [{"type": "tool_result", "tool_use_id": b["id"], "content": "ok"} for b in content if b["type"] == "tool_use"]
    said = [{"role": "assistant", "content": content}] if content else []  # empty messages are none
    body["messages"] += [*said, {"role": "user", "content": results or [{"type": "text", "text": "more"}]}]


ANTHROPIC = FuzzDialect(
    dialect=anthropic_messages.DIALECT,
    words=mutate_words.ANTHROPIC,
    recordings=("claude_code", "pi_anthropic", "opencode_anthropic"),
    targets=(("/v1/messages", 8), ("/v1/messages?beta=true", 8), ("/v1/messages/count_tokens", 1)),
    headers=lambda secret: [("x-api-key", secret), ("anthropic-version", "2023-06-01")],
    whole=_anthropic_message,
    stream=_anthropic_stream,
    refused=_anthropic_error,
    short=_anthropic_short,
    go_on=_anthropic_go_on,
)

# --- Gemini -----------------------------------------------------------------------------------------------------------

_GEMINI_STATUSES = {
    400: ("INVALID_ARGUMENT",),
    401: ("UNAUTHENTICATED",),
    404: ("NOT_FOUND",),
    408: ("DEADLINE_EXCEEDED",),
    429: ("RESOURCE_EXHAUSTED",),
}


def _gemini_whole(answer: Any) -> Told:
    (candidate,) = answer["candidates"]
    assert candidate["content"]["role"] == "model" and candidate["content"]["parts"], "no parts"
    assert candidate["finishReason"] in ("STOP", "MAX_TOKENS"), "no finish reason"
    usage = answer["usageMetadata"]
    said = usage["candidatesTokenCount"] + usage["thoughtsTokenCount"]
    assert usage["totalTokenCount"] == usage["promptTokenCount"] + said
    return Told(answer["responseId"], usage["promptTokenCount"], said)


def _gemini_stream(body: bytes) -> Told:
    form = "array" if body.startswith(b"[") else "sse"
    return _gemini_whole(gemini.joined(gemini.chunks(body, form)))


def _gemini_error(body: Any, status: int) -> Refused:
    """``details`` are given for a field; there is no knowing from outside which errors have one."""
    error = body["error"]
    assert set(body) == {"error"} and {"code", "message", "status"} <= set(error) <= {"code", "message", "status", "details"}
    assert error["code"] == status and error["status"] in _GEMINI_STATUSES.get(status, ("INVALID_ARGUMENT",)), "its status"
    details = error.get("details", [])
    violations = [v for d in details if d["@type"].endswith("google.rpc.BadRequest") for v in d["fieldViolations"]]
    assert all(isinstance(v["field"], str) and v["field"] and v["description"] for v in violations), "its details"
    return Refused(error["message"], True)


def _gemini_short(body: Json) -> None:
    body["generationConfig"] = {**body.get("generationConfig", {}), "maxOutputTokens": 30}


def _gemini_go_on(body: Json, answer: Any) -> None:
    content = answer["candidates"][0]["content"]
    made = [part["functionCall"] for part in content["parts"] if "functionCall" in part]
    results = [{"functionResponse": {"id": c["id"], "name": c["name"], "response": {"output": "ok"}}} for c in made]
    body["contents"] += [content, {"role": "user", "parts": results or [{"text": "more"}]}]


_MODEL = "/v1beta/models/polar"
GEMINI = FuzzDialect(
    dialect=gemini.DIALECT,
    words=mutate_words.GEMINI,
    recordings=("gemini_cli", "pi_gemini"),
    targets=(
        (f"{_MODEL}:generateContent", 6),
        (f"{_MODEL}:streamGenerateContent?alt=sse", 6),
        (f"{_MODEL}:streamGenerateContent", 3),
        (f"{_MODEL}:countTokens", 1),
        (f"{_MODEL}:embedContent", 1),
        ("/v1/models/a%2Fb%0d%0aX-Evil:%201:generateContent", 1),
    ),
    headers=lambda secret: [("x-goog-api-key", secret)],
    whole=_gemini_whole,
    stream=_gemini_stream,
    refused=_gemini_error,
    short=_gemini_short,
    go_on=_gemini_go_on,
)

DIALECTS = {dialect.name: dialect for dialect in (CHAT, RESPONSES, ANTHROPIC, GEMINI)}
