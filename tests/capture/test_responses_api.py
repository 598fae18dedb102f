# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The Responses API through the real proxy: conversations extend one line, however they are carried; errors are OpenAI's."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from nemo_polar.engines.scripted import Fault, ScriptedReply
from nemo_polar.types import ForkReason
from tests.capture.test_calls import assert_equals_engine_log
from tests.support.openai_responses import CLIENTS, ENCRYPTED, HI, PATCH, events, joined, output, without_reasoning
from tests.support.proxy import Client, Rig, running
from tests.support.tiny import thinking_codec

WRITE = {"type": "function", "name": "write", "description": "Write.", "parameters": {"type": "object"}}
TOOLS = [WRITE, PATCH, {"type": "namespace", "name": "crm", "description": "", "tools": [{**WRITE, "name": "find"}]}]
PATH = "/v1/responses"


class Asker:
    """Speaks the Responses API with one session's secret."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def post(self, **fields: Any) -> tuple[int, Any]:
        status, _, answer = await self.client.post({"model": "polar", "tools": TOOLS, **fields}, path=PATH)
        return status, answer

    async def ask(self, items: Any, *, stream: bool = False, **fields: Any) -> dict[str, Any]:
        """The response to ``items``, whole; fails the test on any other status than 200."""
        if not stream:
            status, answer = await self.post(input=items, **fields)
            assert status == 200, answer
            return answer
        rig = self.client.rig
        body = {"model": "polar", "tools": TOOLS, "input": items, "stream": True, **fields}
        headers = {"Authorization": f"Bearer {self.client.secret}"}
        async with rig.http.post(rig.proxy.url + PATH, json=body, headers=headers) as response:
            assert response.status == 200 and response.headers["Content-Type"].startswith("text/event-stream")
            made, last = joined(await response.read())
        assert made == last["output"]
        return last


def script(rig: Rig) -> list[list[int]]:
    """Replies of every kind: reasoning, text, well-formed and malformed calls, none."""

    def ids(text: str) -> list[int]:
        return rig.ids(text)

    return [
        ids("<think>\nHm, é.\n</think>\n\nI will.\n" + call('{"name": "write", "arguments": {"b":  1.0, "a": "é"}}')),
        ids(call('{"name": "apply_patch", "arguments": {"input": "*** Begin Patch\\n"}}')),
        ids("Two.\n" + call('{"name": "crm__find", "arguments": {}}') + "\n" + call('{"name": "nope", "arguments": {}}')),
        ids(call('{"name": "apply_patch", "arguments": {"patch": 1}}')),
        ids(call('{"name": "write", "arguments": {"path": }}')),
        ids(""),
        ids("All done."),
    ]


def call(block: str) -> str:
    return f"<tool_call>\n{block}\n</tool_call>"


def results(response: dict[str, Any]) -> list[dict[str, Any]]:
    """What a harness answers to a response: a result for each call, or a word when there is none."""
    found = []
    for item in response["output"]:
        if item["type"] == "function_call":
            found.append(output(item["call_id"], f"result of {item['name']}"))
        elif item["type"] == "custom_tool_call":
            said = [{"type": "input_text", "text": "Exit code: 0"}]
            found.append({"type": "custom_tool_call_output", "call_id": item["call_id"], "output": said})
    return found or [{"type": "message", "role": "user", "content": "go on"}]


async def assert_one_line(rig: Rig, client: Client, turns: int) -> None:
    found = await rig.delivered(client.session_id)
    assert [t.parent for t in found] == [None, *range(turns - 1)]
    assert_equals_engine_log(rig, found)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("echo", CLIENTS)
async def test_a_conversation_sent_in_full_is_one_line(tmp_path, echo, stream):
    async with running(tmp_path, codec=thinking_codec()) as rig:
        client = await rig.session()
        asker, replies = Asker(client), script(rig)
        rig.engine.core.push(*replies)
        history: list[Any] = [HI]
        for _ in replies:
            response = await asker.ask(
                history, stream=stream, store=False, include=ENCRYPTED, instructions="Be brief.", max_output_tokens=400
            )
            assert response["status"] == "completed"
            assert any(item["type"] == "reasoning" for item in response["output"]) == (len(history) == 1)
            history = [*history, *echo(response["output"]), *results(response)]
        await assert_one_line(rig, client, len(replies))
        counters = rig.proxy.sessions.get(client.session_id).counters
        assert counters["ambiguous"] == 0 and not [name for name in counters if name.startswith("dropped:unknown")]


async def test_a_conversation_carried_by_response_ids_is_one_line(tmp_path):
    async with running(tmp_path, codec=thinking_codec()) as rig:
        client = await rig.session()
        asker, replies = Asker(client), script(rig)
        rig.engine.core.push(*replies)
        response = await asker.ask("hi", instructions="Be brief.")
        for n in range(1, len(replies)):
            response = await asker.ask(
                results(response), previous_response_id=response["id"], instructions="Be brief.", stream=bool(n % 2)
            )
        await assert_one_line(rig, client, len(replies))


async def test_both_ways_of_carrying_a_conversation_meet(tmp_path):
    async with running(tmp_path, codec=thinking_codec()) as rig:
        client = await rig.session()
        asker, replies = Asker(client), script(rig)[:3]
        rig.engine.core.push(*replies)
        first = await asker.ask([HI])
        second = await asker.ask(results(first), previous_response_id=first["id"])
        await asker.ask([HI, *first["output"], *results(first), *second["output"], *results(second)])
        await assert_one_line(rig, client, 3)


async def test_a_reply_can_be_gone_on_from_twice(tmp_path):
    async with running(tmp_path, codec=thinking_codec()) as rig:
        client = await rig.session()
        asker = Asker(client)
        first = await asker.ask("hi")
        for text in ("a", "b"):
            await asker.ask(text, previous_response_id=first["id"])
        assert [t.parent for t in await rig.delivered(client.session_id)] == [None, 0, 0]


async def test_other_tools_fork(tmp_path):
    async with running(tmp_path, codec=thinking_codec()) as rig:
        client = await rig.session()
        asker = Asker(client)
        rig.engine.core.push(rig.ids("One."), rig.ids("Two."))
        first = await asker.ask([HI])
        await asker.ask([{"type": "additional_tools", "tools": [{**WRITE, "name": "new"}]}, HI, *first["output"], HI])
        turns = await rig.delivered(client.session_id)
        assert [t.fork_reason for t in turns] == [ForkReason.NEW, ForkReason.TOOLS]


async def test_reasoning_that_is_dropped_stays_in_the_context_it_was_sampled_in(tmp_path):
    async with running(tmp_path, codec=thinking_codec()) as rig:
        client = await rig.session()
        asker = Asker(client)
        rig.engine.core.push(rig.ids("<think>\nsecret\n</think>\n\nOne."), rig.ids("Two."))
        first = await asker.ask([HI])
        assert first["output"][0]["content"][0]["text"] == "secret"
        assert first["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
        second = await asker.ask([HI, *without_reasoning(first["output"]), HI])
        spent = first["usage"]["total_tokens"]
        assert second["usage"]["input_tokens"] > spent
        await assert_one_line(rig, client, 2)


async def test_a_stream_is_real_and_silence_is_filled_with_events(tmp_path):
    async with running(tmp_path, keep_alive_seconds=0.05, token_delay=0.01) as rig:
        client = await rig.session()
        rig.engine.core.push(ScriptedReply(rig.ids("word " * 30), first_delay=0.3))
        body = {"model": "polar", "input": "hi", "stream": True}
        headers = {"Authorization": f"Bearer {client.secret}"}
        async with rig.http.post(rig.proxy.url + PATH, json=body, headers=headers) as response:
            pieces = [piece async for piece, _ in response.content.iter_chunks()]
        kinds = [event["type"] for event in events(b"".join(pieces))]
        assert len(pieces) > 20
        assert kinds.count("response.in_progress") >= 3 and kinds.count("response.output_text.delta") > 20


# --- errors -----------------------------------------------------------------------------------------------------------


async def error(asker: Asker, **fields: Any) -> tuple[int, str, str | None, str | None]:
    status, answer = await asker.post(**fields)
    assert set(answer) == {"error"} and set(answer["error"]) == {"message", "type", "param", "code"}
    assert answer["error"]["message"]
    return status, answer["error"]["type"], answer["error"]["param"], answer["error"]["code"]


async def test_errors_have_openais_shape(tmp_path):
    async with running(tmp_path, max_context=300, any_model=False) as rig:
        asker = Asker(await rig.session())
        invalid = "invalid_request_error"
        assert await error(asker, input=[]) == (400, invalid, "input", "invalid_value")
        assert await error(asker, input=[output()]) == (400, invalid, "input[0].call_id", "invalid_value")
        assert await error(asker, input="hi", background=True) == (400, invalid, "background", "unsupported_parameter")
        assert await error(asker, input="x" * 1000) == (400, invalid, "input", "context_length_exceeded")
        assert await error(asker, input="hi", model="other") == (404, "not_found_error", "model", "model_not_found")
        image = {"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,aaaa"}]}
        assert (await error(asker, input=[image], tools=[]))[:3] == (400, invalid, "input")
        previous = await error(asker, input="hi", previous_response_id="resp_none")
        assert previous == (400, invalid, "previous_response_id", "previous_response_not_found")
        asker.client.secret = "wrong"
        assert await error(asker, input="hi") == (401, "authentication_error", None, "invalid_api_key")


async def test_what_was_not_to_be_stored_cannot_be_gone_on_from(tmp_path):
    async with running(tmp_path, codec=thinking_codec()) as rig:
        asker = Asker(await rig.session())
        first = await asker.ask("hi", store=False)
        assert (await error(asker, input="go on", previous_response_id=first["id"]))[3] == "previous_response_not_found"
        other = Asker(await rig.session("other"))
        kept = await asker.ask("hi there")
        assert (await error(other, input="go on", previous_response_id=kept["id"]))[3] == "previous_response_not_found"


async def test_an_engine_that_dies_in_a_stream_ends_it_with_a_failed_response(tmp_path):
    async with running(tmp_path, engine_retries=0, token_delay=0.01) as rig:
        client = await rig.session()
        rig.engine.core.push(*(ScriptedReply(rig.ids("half of it"), fault=Fault.CUT, fault_after=4) for _ in range(10)))
        body = {"model": "polar", "input": "hi", "stream": True}
        headers = {"Authorization": f"Bearer {client.secret}"}
        async with rig.http.post(rig.proxy.url + PATH, json=body, headers=headers) as response:
            *_, last = events(await response.read())
        assert last["type"] == "response.failed"
        assert (last["response"]["status"], last["response"]["error"]["code"]) == ("failed", "server_error")


async def test_a_websocket_is_refused_at_once_and_http_goes_on(tmp_path):
    async with running(tmp_path, codec=thinking_codec()) as rig:
        client = await rig.session()
        headers = {
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
        }
        async with asyncio.timeout(5), rig.http.get(rig.proxy.url + PATH, headers=headers) as response:
            assert response.status == 426
            assert (await response.json())["error"]["type"] == "invalid_request_error"
        assert (await Asker(client).ask("hi"))["status"] in ("completed", "incomplete")
