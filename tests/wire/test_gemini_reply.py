# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Gemini answers: both forms say the same, and what a client sends back is what we said."""

from __future__ import annotations

import base64
import json
import re

import orjson
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from nemo_polar.errors import (
    BadRequest,
    CallError,
    ContextOverflow,
    NotFound,
    Overloaded,
    TooLarge,
    Unauthorized,
    Unavailable,
)
from nemo_polar.tokens.canonical import message_digest, reasoning_digest
from nemo_polar.types import FinishReason, Message, Reasoning, Role, Text, TextDelta, TokenLogProb, ToolCall, Usage
from nemo_polar.wire.gemini.signature import Piece, read_signature, sign, whole
from tests.support import gemini
from tests.support.gemini import DIALECT, chunks, joined, model, parse, replies, request, route, streamed, talk, user
from tests.support.openai_chat import deltas, logprob_entries, reply

PLAIN = parse(request())
THOUGHTS = parse(request(generationConfig={"thinkingConfig": {"includeThoughts": True}}))


def answered(answer, call=PLAIN):
    return json.loads(DIALECT.reply(call, answer))


def parts_of(answer, call=PLAIN):
    return answered(answer, call)["candidates"][0]["content"]["parts"]


def test_the_shape_of_a_whole_answer():
    answer = reply(Reasoning("hm"), Text("a"), Text("b"), ToolCall("c1", "f", '{"x": 1}'), ToolCall("c2", "g", "{bad"))
    found = answered(answer, THOUGHTS)
    thought, text, first, second = found["candidates"][0]["content"].pop("parts")
    assert found == {
        "candidates": [{"content": {"role": "model"}, "finishReason": "STOP", "index": 0}],
        "usageMetadata": {
            "promptTokenCount": 11,
            "candidatesTokenCount": 4,
            "thoughtsTokenCount": 3,
            "totalTokenCount": 18,
            "cachedContentTokenCount": 5,
            "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 11}],
        },
        "modelVersion": "polar",
        "responseId": "r1",
    }
    assert thought == {"text": "hm", "thought": True}
    assert read_signature(text.pop("thoughtSignature")) == Piece(0, "hm") and text == {"text": "ab"}
    assert read_signature(first.pop("thoughtSignature")) == Piece(0, "hm")
    assert first == {"functionCall": {"id": "c1", "name": "f", "args": {"x": 1}}}
    assert second == {"functionCall": {"id": "c2", "name": "g", "args": {"__malformed_arguments__": "{bad"}}}


def test_thoughts_are_shown_only_when_asked_for():
    assert [part.keys() for part in parts_of(reply(Reasoning("r"), Text("t")))] == [{"text", "thoughtSignature"}]
    assert [part.get("thought") for part in parts_of(reply(Reasoning("r"), Text("t")), THOUGHTS)] == [True, None]


def test_an_answer_has_a_part_whatever_was_said():
    assert parts_of(reply()) == [{"text": ""}]
    assert parts_of(reply(Text(""), Reasoning(""))) == [{"text": ""}]
    (only,) = parts_of(reply(Reasoning("r")))
    assert only["text"] == "" and read_signature(only["thoughtSignature"]) == Piece(0, "r")


@pytest.mark.parametrize(
    ("finish", "said"), [(FinishReason.STOP, "STOP"), (FinishReason.LENGTH, "MAX_TOKENS"), (FinishReason.ABORT, "MAX_TOKENS")]
)
def test_finish_reasons(finish, said):
    answer = reply(Text("a"), ToolCall("c", "f", "{}"), finish=finish)
    assert answered(answer)["candidates"][0]["finishReason"] == said
    assert joined(chunks(streamed(PLAIN, answer)))["candidates"][0]["finishReason"] == said


def test_arguments_keep_their_digits_on_the_wire_and_never_break_a_line():
    answer = reply(ToolCall("c", "f", '{\n "n": 123456789012345678901234567890,\r\n "x": 1.0}'))
    for raw in (DIALECT.reply(PLAIN, answer), streamed(PLAIN, answer)):
        assert b'"n": 123456789012345678901234567890' in raw and b'"x": 1.0' in raw
    (called, end) = (chunk["candidates"][0]["content"]["parts"][0] for chunk in chunks(streamed(PLAIN, answer)))
    assert called["functionCall"]["args"] == {"n": 123456789012345678901234567890, "x": 1.0} and end == {"text": ""}


# --- streams ----------------------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(
    replies(),
    st.integers(1, 50),
    st.sampled_from(FinishReason),
    st.none() | logprob_entries,
    st.booleans(),
    st.booleans(),
    st.sampled_from(["sse", "array"]),
)
def test_a_stream_joined_is_the_whole_answer(message, width, finish, logprobs, asked, thoughts, form):
    config = {"responseLogprobs": asked, "thinkingConfig": {"includeThoughts": thoughts}}
    call = parse(request(generationConfig=config), route(stream=True, form=form))
    answer = reply(*message.parts, finish=finish, logprobs=logprobs, usage=Usage(1, 2, 0, 0))
    assert joined(chunks(streamed(call, answer, width), form)) == answered(answer, call)


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60))
def test_no_line_reader_splits_an_event(text):
    chunk = DIALECT.stream(PLAIN, "r", 0, "polar", 1).delta(TextDelta(text)).decode()
    assert len(chunk.splitlines()) == 2 and chunk.endswith("\n\n")
    assert chunks(chunk.encode())[0]["candidates"][0]["content"]["parts"] == [{"text": text}]


def test_a_model_name_cannot_break_the_frame():
    name = '"parts":null\n\ndata: x'
    chunk = DIALECT.stream(PLAIN, "r", 0, name, 1).delta(TextDelta("a"))
    assert chunks(chunk)[0]["modelVersion"] == name
    assert chunks(chunk)[0]["candidates"][0]["content"]["parts"] == [{"text": "a"}]


@pytest.mark.parametrize("form", ["sse", "array"])
def test_keep_alives_are_white_space_and_stand_for_hidden_thoughts(form):
    call = parse(request(), route(stream=True, form=form))
    encoder = DIALECT.stream(call, "r", 0, "polar", 1)
    assert encoder.keep_alive() == b"\n"
    assert [encoder.delta(delta) for delta in deltas(Message(Role.ASSISTANT, (Reasoning("abcdef"),)))] == [b"\n", b"\n"]


@pytest.mark.parametrize("form", ["sse", "array"])
def test_an_error_in_a_stream_is_a_chunk_of_its_own(form):
    call = parse(request(), route(stream=True, form=form))
    encoder = DIALECT.stream(call, "r", 0, "polar", 1)
    stream = encoder.start() + encoder.delta(TextDelta("a")) + encoder.error(Unavailable("The engine is gone."))
    found = chunks(stream, form)
    assert found[1:] == [{"error": {"code": 503, "message": "The engine is gone.", "status": "UNAVAILABLE"}}]
    alone = encoder.__class__(call, "r", "polar")
    assert chunks(alone.start() + alone.error(Unavailable("Gone.")), form)[0]["error"]["message"] == "Gone."


# --- errors, models, counts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        (BadRequest("b"), 400, "INVALID_ARGUMENT"),
        (Unauthorized("u"), 401, "UNAUTHENTICATED"),
        (NotFound("n"), 404, "NOT_FOUND"),
        (TooLarge("t"), 413, "INVALID_ARGUMENT"),
        (Overloaded("o"), 429, "RESOURCE_EXHAUSTED"),
        (Unavailable("u"), 503, "UNAVAILABLE"),
        (CallError("c"), 500, "INTERNAL"),
    ],
)
def test_error_shapes(error, code, status):
    got, headers, body = DIALECT.error(error)
    assert (got, headers) == (code, {})
    assert orjson.loads(body) == {"error": {"code": code, "message": error.message, "status": status}}


def test_an_error_names_the_field_and_says_when_to_come_back():
    error = orjson.loads(DIALECT.error(BadRequest("b", param="a.b", code="x"))[2])["error"]
    violation = {"field": "a.b", "description": "b", "reason": "x"}
    assert error["details"] == [{"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": [violation]}]
    _, headers, body = DIALECT.error(Overloaded("o", retry_after=1.25))
    assert headers == {"Retry-After": "2"}
    retry = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "1.250s"}
    assert orjson.loads(body)["error"]["details"] == [retry]


def test_a_context_overflow_has_the_words_that_clients_know_it_by():
    status, _, body = DIALECT.error(ContextOverflow(130_000, 128_000))
    error = orjson.loads(body)["error"]
    assert (status, error["status"]) == (400, "INVALID_ARGUMENT")
    assert "The input token count (130000) exceeds the maximum number of tokens allowed (128000)." in error["message"]


def test_a_message_that_utf8_cannot_hold_is_still_told():
    assert orjson.loads(DIALECT.error(NotFound("no \udcff here"))[2])["error"]["message"] == "no ? here"


def test_models_and_counts():
    listing = orjson.loads(DIALECT.models(["a", "b/c"], 5, 4096))["models"]
    assert [m["name"] for m in listing] == ["models/a", "models/b/c"]
    assert listing[1] == orjson.loads(DIALECT.model("b/c", 5, 4096)) and listing[1]["inputTokenLimit"] == 4096
    assert orjson.loads(DIALECT.count(7))["totalTokens"] == 7


def test_logprobs_are_given_only_when_asked_for():
    answer = reply(Text("ab"), logprobs=(TokenLogProb("a", b"a", -0.5), TokenLogProb("b", b"b", -1.5)))
    assert "logprobsResult" not in answered(answer)["candidates"][0]
    found = answered(answer, parse(request(generationConfig={"responseLogprobs": True})))["candidates"][0]
    assert found["avgLogprobs"] == -1.0
    assert found["logprobsResult"] == {
        "chosenCandidates": [{"token": "a", "logProbability": -0.5}, {"token": "b", "logProbability": -1.5}]
    }


# --- signatures -------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.integers(0, 10**8), gemini.texts)
def test_a_signature_is_strict_base64_and_survives_clients_that_decode_it(start, text):
    signature = sign(Piece(start, text))
    assert re.fullmatch(r"[A-Za-z0-9+/]+={0,2}", signature) and len(signature) % 4 == 0
    as_bytes = base64.b64decode(signature, validate=True)
    for back in (signature, base64.b64encode(as_bytes).decode(), base64.urlsafe_b64encode(as_bytes).decode()):
        assert read_signature(back) == Piece(start, text)


@pytest.mark.parametrize("signature", ["", "x", gemini.SYNTHETIC, "polar1++", "polar1++AAAA", sign(Piece(0, "abc"))[:-4], "é"])
def test_a_signature_of_somebody_else_or_a_cut_one_is_not_read(signature):
    assert read_signature(signature) is None


@given(st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=6), st.data())
def test_pieces_make_the_whole_or_nothing(texts, data):
    starts = [sum(map(len, texts[:i])) for i in range(len(texts))]
    pieces = [Piece(start, text) for start, text in zip(starts, texts, strict=True)]
    assert whole(data.draw(st.permutations([*pieces, *pieces[:1]]))) == "".join(texts)
    if len(pieces) > 1:
        lost = data.draw(st.integers(0, len(pieces) - 2))
        assert whole(pieces[:lost] + pieces[lost + 1 :]) is None


# --- what comes back --------------------------------------------------------------------------------------------------


def same_line(said: Message, back: Message) -> bool:
    return message_digest(b"", said, {}) == message_digest(b"", back, {})


def sent_back(message, client, *, thoughts=False, streaming=True, width=3):
    """The message that a client's next request has for ``message``; None when it leaves it out."""
    call = THOUGHTS if thoughts else PLAIN
    answer = reply(*message.parts)
    found = chunks(streamed(call, answer, width)) if streaming else [json.loads(DIALECT.reply(call, answer))]
    contents = client([chunk["candidates"][0]["content"] for chunk in found])
    body = json.dumps(talk(gemini.HELLO, *contents, user({"text": "go on"}))).encode()
    messages = parse(body).messages
    assert len(messages) == (3 if contents else 2), "what came in several contents is one message"
    return messages[1] if contents else None


KEEPS_REASONING = [
    gemini.everything,
    gemini.one_content,
    gemini.without_thoughts,
    gemini.gemini_cli,
    gemini.other_ids,
    gemini.javascript,
    lambda contents: gemini.javascript(gemini.gemini_cli(gemini.other_ids(contents))),
]


@settings(max_examples=200, deadline=None)
@pytest.mark.parametrize("client", KEEPS_REASONING, ids=lambda client: client.__name__)
@given(message=replies(), thoughts=st.booleans(), streaming=st.booleans(), width=st.integers(1, 40))
@example(
    message=Message(Role.ASSISTANT, (Text("a"), Reasoning("b"), Text("c"), Reasoning("d"))),
    thoughts=False,
    streaming=True,
    width=3,
)
def test_what_a_client_sends_back_is_what_we_said(client, message, thoughts, streaming, width):
    back = sent_back(message, client, thoughts=thoughts, streaming=streaming, width=width)
    if back is None:
        assert not message.text and not message.reasoning and not message.tool_calls, "only an empty reply is left out"
        return
    assert same_line(message, back)
    assert reasoning_digest(back) == reasoning_digest(message)


@settings(max_examples=100, deadline=None)
@given(replies(), st.booleans(), st.integers(1, 40))
def test_all_is_kept_to_the_character_where_the_client_keeps_it(message, thoughts, width):
    back = sent_back(message, gemini.everything, thoughts=thoughts, width=width)
    assert back is not None and back.text == message.text and (back.reasoning or "") == (message.reasoning or "")
    assert [(call.id, call.name) for call in back.tool_calls] == [(call.id, call.name) for call in message.tool_calls]


@settings(max_examples=150, deadline=None)
@pytest.mark.parametrize("client", [gemini.without_signatures, gemini.without_either])
@given(message=replies(), thoughts=st.booleans())
def test_where_signatures_are_lost_reasoning_comes_back_as_thoughts_or_not_at_all(client, message, thoughts):
    back = sent_back(message, client, thoughts=thoughts)
    if back is not None:
        assert same_line(message, back)
        expected = reasoning_digest(message) if thoughts and client is gemini.without_signatures else None
        assert reasoning_digest(back) == expected


@settings(max_examples=200, deadline=None)
@given(replies(), st.booleans())
def test_what_pi_sends_back_is_what_we_said(message, thoughts):
    # It leaves out texts that are blank, which shows only between other texts.
    assume(all(part.text.strip() for part in message.parts if isinstance(part, Text)))
    back = sent_back(message, gemini.pi, thoughts=thoughts)
    if back is not None:
        assert same_line(message, back)
        assert reasoning_digest(back) in ((reasoning_digest(message),) if thoughts else (reasoning_digest(message), None))


def test_pi_keeps_reasoning_that_comes_first_without_seeing_it():
    back = sent_back(Message(Role.ASSISTANT, (Reasoning("r"), Text("t"), ToolCall("c", "f", "{}"))), gemini.pi)
    assert back is not None and back.reasoning == "r"


def test_a_signature_that_was_lost_on_the_way_makes_reasoning_unknown_not_shorter():
    message = Message(Role.ASSISTANT, (Reasoning("one"), Text("a"), Reasoning("two"), Text("b")))
    back = sent_back(message, gemini.pi)
    assert back is not None and back.reasoning is None and back.text == "ab"


def test_the_longer_of_thoughts_and_signatures_counts():
    signed = {"text": "t", "thoughtSignature": sign(Piece(0, "all of it"))}
    cut = {"text": "all", "thought": True}
    assert parse(talk(gemini.HELLO, model(cut, signed))).messages[1].reasoning == "all of it"
    more = {"text": "all of it, and more", "thought": True}
    assert parse(talk(gemini.HELLO, model(more, signed))).messages[1].reasoning == "all of it, and more"
