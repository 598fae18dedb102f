# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Anthropic's API through the real proxy: one line a conversation, exact counts, its stream, its errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from nemo_polar.engines.script import Fault, ScriptedReply
from nemo_polar.types import ForkReason, Reasoning
from tests.capture.test_calls import assert_equals_engine_log
from tests.support.anthropic_messages import (
    EPHEMERAL,
    SHOWN,
    WEATHER,
    claude_input,
    events,
    heard,
    javascript,
    joined,
    result,
    said,
    text,
)
from tests.support.proxy import Client, running
from tests.support.tiny import thinking_codec

GO: dict[str, Any] = {"role": "user", "content": "go"}
BILLING = text("x-anthropic-billing-header: cc_version=2.1; cch=1;")


def written(reasoning: str | None, spoken: str, *arguments: str, then: str = "") -> str:
    """A reply as the model would write it; each of ``arguments`` is a call of ``weather``."""
    thought = f"<think>{reasoning}</think>" if reasoning is not None else ""
    calls = "".join(f'\n<tool_call>\n{{"name": "weather", "arguments": {a}}}\n</tool_call>' for a in arguments)
    return thought + spoken + calls + then


SCRIPT = [
    written(
        "Two places.\n\nSo two calls.", "Let me see.", '{"place":  "Osl\\u00f3 🙂", "n": 1.0}', '{"n": 1e2, "place": "Rome"}'
    ),
    written(None, "", '{"place": "Oslo", "big": 123456789012345678901234567890}', '{"place": "Oslo"', '{"place": "Oslo"}'),
    written("Hm.", "\nThat one was wrong.\n", "[]"),
    written("It rains.", "\n\nIt rains in both. 🌧"),
    written(None, "Bye."),
]


async def post(
    client: Client, body: Any, path: str = "/v1/messages?beta=true", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body."""
    sent = {"x-api-key": client.secret, "anthropic-version": "2023-06-01", **headers}
    async with client.rig.http.post(client.rig.proxy.url + path, data=json.dumps(body), headers=sent) as response:
        return response.status, dict(response.headers), await response.read()


def body(messages: list[Any], **fields: Any) -> dict[str, Any]:
    whole = {"model": "polar", "max_tokens": 1000, "system": [BILLING, text("Be brief.", cache_control=EPHEMERAL)], **fields}
    return {"tools": [WEATHER], "thinking": SHOWN, "messages": messages, **whole}


async def ask(client: Client, messages: list[Any], *, stream: bool, **fields: Any) -> dict[str, Any]:
    """The answer, put together as Claude Code would if it is streamed."""
    status, headers, raw = await post(client, body(messages, stream=stream, **fields))
    assert status == 200, raw
    if not stream:
        return json.loads(raw)
    assert headers["Content-Type"].startswith("text/event-stream")
    answer = joined(raw)
    for block in answer["content"]:
        if block["type"] == "tool_use":
            block["input"] = claude_input(block["input"])
    return answer


async def count(client: Client, messages: list[Any]) -> int:
    counted = {k: v for k, v in body(messages).items() if k != "max_tokens"}
    status, _, raw = await post(client, counted, "/v1/messages/count_tokens")
    assert status == 200, raw
    return json.loads(raw)["input_tokens"]


# --- clients ----------------------------------------------------------------------------------------------------------


def everything(history: list[Any]) -> list[Any]:
    return history


def claude_code(history: list[Any]) -> list[Any]:
    """A cache mark on the last message, which is blocks then; others of one text are strings."""
    *before, last = json.loads(json.dumps(history))
    for message in before:
        if isinstance(message["content"], list) and [block["type"] for block in message["content"]] == ["text"]:
            message["content"] = message["content"][0]["text"]
    if isinstance(last["content"], str):
        last["content"] = [text(last["content"])]
    last["content"][-1]["cache_control"] = EPHEMERAL
    return [*before, last]


def without_thinking(history: list[Any]) -> list[Any]:
    return [_blocks(m, lambda block: None if block["type"] == "thinking" else block) for m in history]


def signatures_only(history: list[Any]) -> list[Any]:
    return [_blocks(m, lambda block: {**block, "thinking": ""} if block["type"] == "thinking" else block) for m in history]


def in_javascript(history: list[Any]) -> list[Any]:
    return json.loads(json.dumps(javascript(history), sort_keys=True))


def _blocks(message: dict[str, Any], change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> dict[str, Any]:
    if isinstance(message["content"], str):
        return message
    return {**message, "content": [b for b in map(change, message["content"]) if b is not None]}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("client_like", [everything, claude_code, without_thinking, signatures_only, in_javascript])
async def test_a_conversation_with_tools_is_one_line(tmp_path, stream, client_like):
    """Thinking, parallel calls, results in another order, malformed input, system messages in between; counts before each."""
    async with running(tmp_path, codec=thinking_codec()) as rig:
        client = await rig.session()
        rig.engine.core.push(*(rig.ids(reply) for reply in SCRIPT))
        history: list[Any] = [GO]
        for _ in SCRIPT:
            sent = client_like(history)
            counted = await count(client, sent)
            answer = await ask(client, sent, stream=stream)
            assert answer["usage"]["input_tokens"] == counted
            history.append(said(*answer["content"]))
            calls = [block["id"] for block in answer["content"] if block["type"] == "tool_use"]
            results = [result(call, f"of {call}", is_error=i == 1) for i, call in enumerate(calls)]
            history.append(heard(*reversed(results), text("Go on.")))
            history.append({"role": "system", "content": f"{1000 - counted} tokens left"})
        turns = await rig.delivered(client.session_id)
        assert [(t.parent, t.fork_reason) for t in turns] == [
            (None, ForkReason.NEW),
            (0, None),
            (1, None),
            (2, None),
            (3, None),
        ]
        assert [len(t.reply.tool_calls) for t in turns] == [2, 3, 1, 0, 0]
        assert sum(isinstance(p, Reasoning) for t in turns for p in t.reply.parts) == 3
        assert_equals_engine_log(rig, turns)


async def test_results_are_told_to_the_model_in_the_order_of_their_calls(tmp_path):
    async with running(tmp_path) as rig:
        client = await rig.session()
        rig.engine.core.push(rig.ids(written(None, "", "{}", "{}")), rig.ids("Done."))
        first = await ask(client, [GO], stream=True)
        ids = [block["id"] for block in first["content"]]
        results = [result(ids[1], "second"), result(ids[0], "first")]
        await ask(client, [GO, said(*first["content"]), heard(*results)], stream=True)
        delta = rig.turns(client.session_id)[1].prompt_delta
        told = rig.codec.tokenizer.decode(delta.tolist())  # type: ignore[attr-defined]
        assert told.index("first") < told.index("second")


async def test_whole_and_streamed_answers_of_the_same_ids_are_the_same(tmp_path):
    async with running(tmp_path, codec=thinking_codec()) as rig:
        reply = rig.ids(SCRIPT[0])
        rig.engine.core.push(reply, reply)
        whole = await ask(await rig.session("a"), [GO], stream=False)
        streamed = await ask(await rig.session("b"), [GO], stream=True)
        for answer in (whole, streamed):
            answer.pop("id")
            for block in answer["content"]:
                block.pop("id", None)
        assert whole == streamed
        assert [b["type"] for b in whole["content"]] == ["thinking", "text", "tool_use", "tool_use"]


@pytest.mark.parametrize("thinking", [None, SHOWN])
async def test_no_silence_while_the_model_thinks(tmp_path, thinking):
    """Shown or not, something comes with each piece of reasoning; before the first there are pings."""
    async with running(tmp_path, codec=thinking_codec(), keep_alive_seconds=0.05, token_delay=0.01) as rig:
        rig.engine.core.push(ScriptedReply(rig.ids(written("hm " * 20, "so")), first_delay=0.3))
        raw = (await post(await rig.session(), body([GO], stream=True, thinking=thinking)))[2]
        kinds = [event["type"] for event in events(raw)]
        assert kinds[:2] == ["message_start", "ping"] and kinds[2] == "ping"
        assert kinds.count("ping") + kinds.count("content_block_delta") > 20
        assert [b["type"] for b in joined(raw)["content"]] == (["thinking", "text"] if thinking else ["text"])


# --- errors -----------------------------------------------------------------------------------------------------------


def error(raw: bytes) -> tuple[str, str]:
    told = json.loads(raw)
    assert told["type"] == "error" and set(told) == {"type", "error", "request_id"}
    return told["error"]["type"], told["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_that_does_not_fit_is_told_in_the_words_that_clients_know(tmp_path, stream):
    async with running(tmp_path, max_context=400) as rig:
        client = await rig.session()
        long = [{"role": "user", "content": "x" * 500}]
        tokens = await count(client, long)
        status, _, raw = await post(client, body(long, stream=stream))
        assert (status, *error(raw)) == (
            400,
            "invalid_request_error",
            f"prompt is too long: {tokens} tokens > 400 maximum",
        )


async def test_errors_have_the_shape_of_the_api(tmp_path):
    async with running(tmp_path, max_body_bytes=2000, any_model=False) as rig:
        client = await rig.session()
        bad = [{"role": "user", "content": [{"type": "text", "text": 1}]}]
        cases = [
            (await post(client, body([GO]), **{"x-api-key": "other"}), 401, "authentication_error", ""),
            (await post(client, body(bad)), 400, "invalid_request_error", "messages[0].content[0].text"),
            (await post(client, body([GO], model="other")), 404, "not_found_error", "other"),
            (await post(client, body([GO], system="x" * 3000)), 413, "request_too_large", "2000 bytes"),
        ]
        for (status, _, raw), expected, kind, words in cases:
            assert status == expected and error(raw)[0] == kind and words in error(raw)[1]


async def test_a_session_that_is_used_up_is_a_rate_limit(tmp_path):
    async with running(tmp_path) as rig:
        client = await rig.session(max_turns=1)
        await ask(client, [GO], stream=False)
        status, _, raw = await post(client, body([GO]))
        assert (status, error(raw)[0]) == (429, "rate_limit_error")


async def test_an_engine_that_fails_in_mid_stream_ends_it_with_an_error_event(tmp_path):
    async with running(tmp_path) as rig:
        rig.engine.core.push(*(ScriptedReply(rig.ids("some text"), fault=Fault.CUT, fault_after=4) for _ in range(10)))
        status, _, raw = await post(await rig.session(), body([GO], stream=True))
        *before, last = events(raw)
        assert status == 200 and any(event["type"] == "content_block_delta" for event in before)
        assert last["type"] == "error" and last["error"]["type"] in ("overloaded_error", "api_error")
        assert all(event["type"] != "message_stop" for event in before)


# --- the other routes -------------------------------------------------------------------------------------------------


async def test_probes_and_models(tmp_path):
    async with running(tmp_path) as rig:
        client = await rig.session()
        for path in ("/", "/api/hello", "/v1"):
            async with rig.http.head(rig.proxy.url + path) as response:
                assert response.status == 200
        headers = {"x-api-key": client.secret, "anthropic-version": "2023-06-01"}
        async with rig.http.get(rig.proxy.url + "/v1/models", headers=headers) as response:
            listing = await response.json()
        assert [m["id"] for m in listing["data"]] == ["polar"] and listing["has_more"] is False
        async with rig.http.get(rig.proxy.url + "/v1/models", headers={"authorization": f"Bearer {client.secret}"}) as response:
            assert (await response.json())["object"] == "list"


async def test_a_declared_retry_gets_the_reply_that_was_drawn(tmp_path):
    async with running(tmp_path) as rig:
        client = await rig.session()
        first = json.loads((await post(client, body([GO])))[2])
        again = json.loads((await post(client, body([GO]), **{"x-stainless-retry-count": "1", "anthropic-beta": "new"}))[2])
        assert first["id"] == again["id"] and len(rig.turns(client.session_id)) == 1
