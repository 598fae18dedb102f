# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The Gemini API through the real proxy: one line a conversation, exact counts, both forms of a stream, its errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from nemo_polar.engines.script import Fault, ScriptedReply
from nemo_polar.types import ForkReason
from tests.capture.test_calls import assert_equals_engine_log
from tests.support import gemini
from tests.support.gemini import HELLO, WEATHER, chunks, function_response, joined, user
from tests.support.proxy import Client, running
from tests.support.tiny import thinking_codec

MODEL = "/v1beta/models/polar"


def said(reasoning: str | None, text: str, *arguments: str) -> str:
    """A reply as the model would write it; each of ``arguments`` is a call of ``weather``."""
    thought = f"<think>{reasoning}</think>" if reasoning is not None else ""
    calls = "".join(f'\n<tool_call>\n{{"name": "weather", "arguments": {a}}}\n</tool_call>' for a in arguments)
    return thought + text + calls


async def post(client: Client, verb: str, body: Any, *, query: str = "", key: str | None = None) -> tuple[int, Any, bytes]:
    """Status, headers and body."""
    headers = {"x-goog-api-key": client.secret if key is None else key}
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with client.rig.http.post(client.rig.proxy.url + f"{MODEL}:{verb}{query}", data=data, headers=headers) as response:
        return response.status, response.headers, await response.read()


def body(contents: list[Any], **fields: Any) -> dict[str, Any]:
    return {"contents": contents, "systemInstruction": {"parts": [{"text": "Be brief."}]}, "tools": [WEATHER], **fields}


async def ask(client: Client, form: str, contents: list[Any], **fields: Any) -> list[Any]:
    """The chunks of an answer: one for a whole answer."""
    if form == "whole":
        status, _, raw = await post(client, "generateContent", body(contents, **fields))
        assert status == 200, raw
        return [json.loads(raw)]
    query = "?alt=sse" if form == "sse" else ""
    status, headers, raw = await post(client, "streamGenerateContent", body(contents, **fields), query=query)
    assert status == 200, raw
    assert headers["Content-Type"].startswith("text/event-stream" if form == "sse" else "application/json")
    return chunks(raw, form)


async def count(client: Client, contents: list[Any], **fields: Any) -> int:
    inner = {"model": "models/polar", **body(contents, **fields)}
    status, _, raw = await post(client, "countTokens", {"generateContentRequest": inner})
    assert status == 200, raw
    return json.loads(raw)["totalTokens"]


SCRIPT = [
    said("Two places.\n\nSo two calls.", "Let me see.", '{"place":  "Osl\\u00f3 🙂", "n": 1.0}', '{"n": 1e2, "place": "Rome"}'),
    said(None, "", '{"place": "Oslo", "big": 123456789012345678901234567890}', '{"place": "Oslo"', '{"place": "Oslo"}'),
    said("Hm.", "\nThat one was wrong.\n", "[]"),
    said("It rains.", "\n\nIt rains in both. 🌧"),
    said(None, "Bye."),
]
CLIENTS: list[Callable[[gemini.Contents], gemini.Contents]] = [
    gemini.everything,
    gemini.gemini_cli,
    gemini.without_either,
    gemini.pi,
    lambda contents: gemini.javascript(gemini.other_ids(contents)),
]


@pytest.mark.parametrize("form", ["whole", "sse", "array"])
@pytest.mark.parametrize("client_like", CLIENTS)
async def test_a_conversation_with_tools_is_one_line(tmp_path, form, client_like):
    """Reasoning, parallel calls of one function, malformed arguments, results without ids; a count before each turn."""
    async with running(tmp_path, codec=thinking_codec()) as rig:
        client = await rig.session()
        rig.engine.core.push(*(rig.ids(text) for text in SCRIPT))
        contents: list[Any] = [HELLO]
        for turn in range(len(SCRIPT)):
            counted = await count(client, contents)
            found = await ask(client, form, contents)
            assert found[-1]["usageMetadata"]["promptTokenCount"] == counted
            contents += client_like([chunk["candidates"][0]["content"] for chunk in found])
            calls = [p for chunk in found for p in chunk["candidates"][0]["content"]["parts"] if "functionCall" in p]
            if calls:
                contents.append(user(*(function_response(response={"output": f"rain {turn}.{i}"}) for i in range(len(calls)))))
            else:
                contents.append(user({"text": "thanks"}))
        turns = await rig.delivered(client.session_id)
        assert [turn.parent for turn in turns] == [None, 0, 1, 2, 3]
        assert [turn.reply.reasoning for turn in turns][:1] == ["Two places.\n\nSo two calls."]
        assert [len(turn.reply.tool_calls) for turn in turns] == [2, 3, 1, 0, 0]
        assert_equals_engine_log(rig, turns)


async def test_reasoning_that_was_edited_forks(tmp_path):
    """Else the other tests would pass with reasoning that is never compared."""
    async with running(tmp_path, codec=thinking_codec()) as rig:
        client = await rig.session()
        rig.engine.core.push(rig.ids(said("one", "a")), rig.ids("b"))
        await ask(client, "whole", [HELLO])
        edited = gemini.model({"text": "two", "thought": True}, {"text": "a"})
        await ask(client, "whole", [HELLO, edited, HELLO])
        assert [t.fork_reason for t in rig.turns(client.session_id)] == [ForkReason.NEW, ForkReason.EDITED]


@pytest.mark.parametrize("form", ["sse", "array"])
async def test_both_forms_of_a_stream_say_what_the_whole_answer_says(tmp_path, form):
    async with running(tmp_path, codec=thinking_codec()) as rig:
        text = rig.ids(SCRIPT[0])
        rig.engine.core.push(text, text)
        thoughts = {"generationConfig": {"thinkingConfig": {"includeThoughts": True}}}
        (whole,) = await ask(await rig.session("a"), "whole", [HELLO], **thoughts)
        stream = joined(await ask(await rig.session("b"), form, [HELLO], **thoughts))
        assert len(stream["candidates"][0]["content"]["parts"]) == 4
        for answer in (whole, stream):
            answer.pop("responseId")
            for part in answer["candidates"][0]["content"]["parts"]:
                part.get("functionCall", {}).pop("id", None)
        assert stream == whole


@pytest.mark.parametrize("form", ["sse", "array"])
async def test_silence_is_filled_and_hidden_thoughts_are_not_silence(tmp_path, form):
    async with running(tmp_path, codec=thinking_codec(), keep_alive_seconds=0.05, stream_interval_seconds=0) as rig:
        rig.engine.core.push(ScriptedReply(rig.ids(said("thinking", "late")), first_delay=0.3, token_delay=0.01))
        client = await rig.session()
        status, _, raw = await post(client, "streamGenerateContent", body([HELLO]), query="?alt=sse" if form == "sse" else "")
        assert status == 200 and raw.lstrip(b"[").startswith(b"\n\n\n\n")
        assert b"thinking" not in raw
        assert joined(chunks(raw, form))["candidates"][0]["content"]["parts"][0]["text"] == "late"


async def test_a_failure_in_mid_stream_is_told_as_a_chunk(tmp_path):
    async with running(tmp_path) as rig:
        rig.engine.core.push(*(ScriptedReply(rig.ids("some text"), fault=Fault.CUT, fault_after=4) for _ in range(10)))
        _, _, raw = await post(await rig.session(), "streamGenerateContent", body([HELLO]), query="?alt=sse")
        *text, error = chunks(raw)
        assert text and error["error"]["status"] in ("UNAVAILABLE", "INTERNAL") and error["error"]["code"] >= 500


async def test_errors_have_the_shape_of_this_api(tmp_path):
    async with running(tmp_path, any_model=False, max_context=200) as rig:
        client = await rig.session()

        async def error(verb: str, sent: Any, **kwargs: Any) -> tuple[int, str, str]:
            status, _, raw = await post(client, verb, sent, **kwargs)
            found = json.loads(raw)["error"]
            assert found["code"] == status
            return status, found["status"], found["message"]

        assert (await error("generateContent", body([HELLO]), key="wrong"))[:2] == (401, "UNAUTHENTICATED")
        assert (await error("embedContent", body([HELLO])))[:2] == (404, "NOT_FOUND")
        assert (await error("generateContent", b"{"))[:2] == (400, "INVALID_ARGUMENT")
        status, name, message = await error("streamGenerateContent", body([user({"text": "x" * 500})]), query="?alt=sse")
        assert (status, name) == (400, "INVALID_ARGUMENT") and message.startswith("The input token count (")
        assert "exceeds the maximum number of tokens allowed (200)" in message
        async with rig.http.post(
            rig.proxy.url + "/v1beta/models/other:generateContent",
            json=body([HELLO]),
            headers={"x-goog-api-key": client.secret},
        ) as response:
            assert (response.status, (await response.json())["error"]["status"]) == (404, "NOT_FOUND")


async def test_models_are_listed_in_the_shape_of_whoever_asks(tmp_path):
    async with running(tmp_path) as rig:
        client = await rig.session()

        async def get(path: str, **headers: str) -> Any:
            async with rig.http.get(rig.proxy.url + path, headers=headers) as response:
                assert response.status == 200
                return await response.json()

        google, bearer = {"x-goog-api-key": client.secret}, {"Authorization": f"Bearer {client.secret}"}
        for path in ("/v1/models", "/v1beta/models"):
            assert [m["name"] for m in (await get(path, **google))["models"]] == ["models/polar"]
        assert [m["id"] for m in (await get("/v1/models", **bearer))["data"]] == ["polar"]
        assert (await get(f"/v1beta/models?key={client.secret}"))["models"][0]["inputTokenLimit"] == 8192
        assert (await get("/v1beta/models/polar", **google))["name"] == "models/polar"


async def test_a_model_name_with_a_slash_comes_plain_or_encoded(tmp_path):
    async with running(tmp_path, any_model=True) as rig:
        client = await rig.session()
        rig.engine.core.push(rig.ids("a"), rig.ids("b"))
        for name in ("org/name", "org%2Fname"):
            url = f"{rig.proxy.url}/v1beta/models/{name}:generateContent?key={client.secret}"
            async with rig.http.post(url, json=body([HELLO])) as response:
                assert response.status == 200 and (await response.json())["modelVersion"] == "org/name"


async def test_parallel_conversations_do_not_meet(tmp_path):
    async with running(tmp_path) as rig:
        client = await rig.session()
        rig.engine.core.push(rig.ids("x"), rig.ids("y"))
        await asyncio.gather(ask(client, "sse", [HELLO]), ask(client, "whole", [HELLO]))
        assert [turn.parent for turn in rig.turns(client.session_id)] == [None, None]
