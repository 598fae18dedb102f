# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Whatever a client or the world does: the provider's error shape, one clear sentence, and a proxy that lives on."""

from __future__ import annotations

import asyncio
import json
import os
import socket

import pytest

from nemo_polar.engines.scripted import Fault, ScriptedReply
from tests.support.proxy import running

USER = {"role": "user", "content": "go"}
GOOD = {"model": "polar", "messages": [USER]}

BAD_BODIES = {
    "not json": (b"{nope", 400, None),
    "empty": (b"", 400, None),
    "a list": (b"[]", 400, None),
    "binary": (b"\xff\xfe\x00", 400, None),
    "no messages": (json.dumps({"model": "m"}).encode(), 400, "messages"),
    "empty messages": (json.dumps({"model": "m", "messages": []}).encode(), 400, "messages"),
    "messages of the wrong type": (json.dumps({"model": "m", "messages": "hi"}).encode(), 400, "messages"),
    "unknown role": (
        json.dumps({"model": "m", "messages": [{"role": "wizard", "content": "x"}]}).encode(),
        400,
        "messages[0].role",
    ),
    "result without its call": (
        json.dumps({"model": "m", "messages": [USER, {"role": "tool", "tool_call_id": "call_x", "content": "y"}]}).encode(),
        400,
        "messages[1].tool_call_id",
    ),
    "temperature of the wrong type": (json.dumps({**GOOD, "temperature": "hot"}).encode(), 400, "temperature"),
    "negative max_tokens": (json.dumps({**GOOD, "max_tokens": -1}).encode(), 400, "max_tokens"),
    "n": (json.dumps({**GOOD, "n": 3}).encode(), 400, "n"),
    "an image": (
        json.dumps(
            {"model": "m", "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]}
        ).encode(),
        400,
        "messages",
    ),
}


@pytest.mark.parametrize("name", BAD_BODIES)
async def test_a_bad_body_gets_one_sentence_that_names_the_field(tmp_path, name):
    body, expected, param = BAD_BODIES[name]
    async with running(tmp_path) as rig:
        client = await rig.session()
        status, _, answer = await client.post(body)
        assert status == expected, answer
        error = answer["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"] and "Traceback" not in error["message"]
        if param is not None:
            assert (error["param"] or "").startswith(param)
        assert rig.turns(client.session_id) == []
        await client.ask([USER])


async def test_an_unknown_secret_is_refused_like_an_expired_one(tmp_path):
    async with running(tmp_path) as rig:
        client = await rig.session()
        client.secret = "sk-polar-guess"
        guessed = await client.post(GOOD)
        late = await rig.session("late", seconds=0.05)
        await asyncio.sleep(0.1)
        expired = await late.post(GOOD)
        assert (guessed[0], expired[0]) == (401, 401)
        assert guessed[2] == expired[2]
        assert guessed[2]["error"]["code"] == "invalid_api_key"


async def test_no_secret_at_all_is_refused(tmp_path):
    async with running(tmp_path) as rig:
        async with rig.http.post(rig.proxy.url + "/v1/chat/completions", json=GOOD) as response:
            assert response.status == 401


async def test_a_closed_session_is_refused(tmp_path):
    async with running(tmp_path) as rig:
        client = await rig.session()
        await rig.proxy.close_session(client.session_id)
        assert (await client.post(GOOD))[0] == 401


@pytest.mark.parametrize("path", ["/v1/chat/nope", "/", "/v1/../control", "/sessions", "/v1/embeddings"])
async def test_a_wrong_path_is_a_provider_shaped_404(tmp_path, path):
    async with running(tmp_path) as rig:
        client = await rig.session()
        status, _, answer = await client.post(GOOD, path=path)
        assert status == 404
        assert answer["error"]["message"]


async def test_an_unknown_model_is_refused_when_models_are_checked(tmp_path):
    async with running(tmp_path, any_model=False) as rig:
        client = await rig.session()
        status, _, answer = await client.post({**GOOD, "model": "gpt-77"})
        assert (status, answer["error"]["code"]) == (404, "model_not_found")
        await client.ask([USER])


async def test_a_prompt_over_the_context_is_a_context_error(tmp_path):
    async with running(tmp_path, max_context=300) as rig:
        client = await rig.session()
        status, _, answer = await client.post({**GOOD, "messages": [{"role": "user", "content": "x" * 500}]})
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
        assert "300" in answer["error"]["message"]


async def test_a_broken_compressed_body_is_a_bad_request(tmp_path):
    async with running(tmp_path) as rig:
        client = await rig.session()
        status, _, _ = await client.post(b"not gzip", headers={"Content-Encoding": "gzip"})
        assert status == 400
        await client.ask([USER])


async def test_an_engine_that_stays_down_is_a_503_and_an_infra_failure(tmp_path):
    async with running(tmp_path, engine_retries=1) as rig:
        client = await rig.session()
        rig.engine.core.push(*[ScriptedReply(fault=Fault.UNAVAILABLE)] * 2)
        status, headers, answer = await client.post(GOOD)
        assert status == 503
        assert "Retry-After" in headers
        assert "engine" in answer["error"]["message"]
        record = await rig.proxy.close_session(client.session_id)
        assert record.infra_error


async def test_an_engine_down_under_a_stream_is_an_error_status_not_an_empty_stream(tmp_path):
    async with running(tmp_path, engine_retries=0) as rig:
        client = await rig.session()
        rig.engine.core.push(ScriptedReply(fault=Fault.UNAVAILABLE))
        async with client.stream([USER]) as response:
            assert response.status == 503


async def test_a_reply_over_its_deadline_is_given_up_and_what_was_drawn_is_kept(tmp_path):
    async with running(tmp_path, call_seconds=0.3) as rig:
        client = await rig.session()
        rig.engine.core.push(ScriptedReply(rig.ids("never ends"), fault=Fault.HANG, fault_after=3))
        status, _, answer = await client.post(GOOD)
        assert status == 503
        assert "0.3 s" in answer["error"]["message"]
        (turn,) = rig.turns(client.session_id)
        assert len(turn.sample) == 3


async def test_a_budget_of_turns_ends_the_session_and_says_so(tmp_path):
    async with running(tmp_path) as rig:
        client = await rig.session(max_turns=2)
        for _ in range(2):
            await client.ask([USER])
        status, _, answer = await client.post(GOOD)
        assert (status, answer["error"]["code"]) == (429, "budget_exhausted")
        assert await asyncio.wait_for(rig.proxy.budget_spent(client.session_id), 1) == "turns"
        assert (await rig.proxy.close_session(client.session_id)).budget_exhausted == "turns"


async def test_a_reply_that_its_client_has_counts_once_and_holds_no_place(tmp_path):
    async with running(tmp_path, max_calls_per_session=1) as rig:
        client = await rig.session(max_turns=3)
        for _ in range(3):  # each on a connection of its own, or the server would wait with it until the last one is settled
            await client.ask([USER], headers={"Connection": "close"})
        assert (await client.post(GOOD))[2]["error"]["code"] == "budget_exhausted"
        assert len(await rig.delivered(client.session_id)) == 3, "though each client hung up before that was noted"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_bug_while_drawing_is_a_500_and_an_infra_failure_and_leaves_nobody_waiting(tmp_path, monkeypatch, stream):
    async with running(tmp_path) as rig:
        client = await rig.session()

        def parser(*_, **__):
            raise ZeroDivisionError("a bug")

        with monkeypatch.context() as patched:
            patched.setattr(type(rig.codec), "parser", parser)
            status, _, answer = await asyncio.wait_for(client.post({**GOOD, "stream": stream}), 5)
        assert (status, answer["error"]["type"]) == (500, "server_error")
        await client.ask([{"role": "user", "content": "again"}])
        assert "a bug" in ((await rig.proxy.close_session(client.session_id)).infra_error or "")


async def test_lone_surrogates_cannot_break_anything(tmp_path):
    async with running(tmp_path) as rig:
        client = await rig.session()
        status, _, _ = await client.post(b'{"model": "m", "messages": [{"role": "user", "content": "\\ud800"}]}')
        assert status in (200, 400)
        await client.ask([USER])


async def test_garbage_on_the_wire_leaves_the_proxy_serving(tmp_path):
    async with running(tmp_path) as rig:
        client = await rig.session()
        host, port = rig.proxy.url.removeprefix("http://").split(":")
        for junk in (b"\x16\x03\x01" + os.urandom(50), b"GET / HTTP/9.9\r\n\r\n", b"POST /v1/chat/completions HTTP/1.1\r\n"):
            with socket.create_connection((host, int(port))) as raw:
                raw.sendall(junk)
        await client.ask([USER])


async def test_a_read_only_journal_is_a_503_and_serving_goes_on_when_it_is_back(tmp_path):
    async with running(tmp_path) as rig:
        client = await rig.session()
        await client.ask([USER])
        journal = rig.proxy.journal
        good = journal._commit

        def refuse(writes):
            from nemo_polar.errors import JournalError

            journal._writable, journal.last_error = False, "disk full"
            return [JournalError("disk full") for _ in writes]

        journal._commit = refuse
        status, _, answer = await client.post(GOOD)
        assert status == 503
        assert "disk full" in answer["error"]["message"]
        journal._commit = good
        await asyncio.sleep(1.2)
        await client.ask([USER])
        turns = rig.turns(client.session_id)
        assert [t.id for t in turns] == [0, 1]


@pytest.mark.parametrize(
    ("path", "shape"),
    [
        ("/v1/chat/completions", {"error"}),
        ("/v1/messages", {"type", "error", "request_id"}),
        ("/v1beta/models/polar:generateContent", {"error"}),
    ],
)
async def test_what_http_itself_refuses_is_in_the_shape_of_the_provider_whose_path_it_names(tmp_path, path, shape):
    async with running(tmp_path) as rig:
        client = await rig.session()
        status, _, answer = await client.post(b"{}", path=path, headers={"Content-Encoding": "zstd"})
        assert (status, set(answer)) == (400, shape)
        assert ("status" in answer["error"]) == path.startswith("/v1beta")
