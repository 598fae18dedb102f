# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Every bound answers in the provider's shape, names its setting and is counted; nobody can hold more than it allows."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import resource
import socket
from collections.abc import Callable
from contextlib import asynccontextmanager, suppress
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from nemo_polar.capture import connection as connection_module
from nemo_polar.capture import sessions as sessions_module
from nemo_polar.capture.connection import connections_allowed
from nemo_polar.capture.limits import Limits
from nemo_polar.capture.sessions import SessionStore
from nemo_polar.engines.scripted import Fault, ScriptedReply
from nemo_polar.errors import Overloaded, Unauthorized
from nemo_polar.settings import CaptureSettings
from nemo_polar.trajectory.records import JournalReader
from nemo_polar.trajectory.store import JOURNAL
from nemo_polar.types import FinishReason
from tests.support.proxy import Client, Rig, running
from tests.support.raw_http import CHAT, Connection, exchange, request

USER = {"role": "user", "content": "go"}
GOOD = {"model": "polar", "messages": [USER]}
ROOT = Path(__file__).parents[2]


class Clock:
    """Stands still until it is told otherwise."""

    def __init__(self, now: float = 1_750_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


async def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    """Return once ``condition`` holds; fail the test when it does not within ``seconds``."""
    for _ in range(int(seconds * 100)):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come about")


def assert_names(answer: Any, setting: str, rig: Rig, times: int = 1) -> None:
    """An error of OpenAI's shape that names the setting, which was counted."""
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert f"capture.{setting}" in answer["error"]["message"]
    assert rig.proxy.limits.refused == {setting: times}


# --- what one request may be ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["declared", "chunked", "compressed"])
async def test_a_body_over_the_limit_is_refused_without_reading_it_all(tmp_path, how):
    async with running(tmp_path, max_body_bytes=2000) as rig:
        client = await rig.session()

        async def pieces():
            for _ in range(100):
                yield b"x" * 100

        data = {"declared": b"x" * 10_000, "chunked": pieces(), "compressed": gzip.compress(b" " * 1_000_000)}[how]
        assert how != "compressed" or len(data) < 2000, "what is sent is small"
        headers = {"Authorization": f"Bearer {client.secret}"} | ({"Content-Encoding": "gzip"} if how == "compressed" else {})
        async with rig.http.post(rig.proxy.url + CHAT, data=data, headers=headers) as response:
            assert response.status == 413
            assert_names(await response.json(), "max_body_bytes", rig)


async def test_a_compressed_body_that_comes_with_its_header_is_measured_as_what_it_holds(tmp_path):
    async with running(tmp_path, max_body_bytes=2000) as rig:
        client = await rig.session()
        body = gzip.compress(json.dumps(GOOD).encode() + b" " * 20_000)
        got = await exchange(rig.proxy.url, request(body, secret=client.secret, headers=[("Content-Encoding", "gzip")]))
        assert got.statuses == [413]
        assert_names(got.answers[0].json(), "max_body_bytes", rig)


async def test_message_parts_have_a_bound(tmp_path):
    async with running(tmp_path, max_parts=3) as rig:
        client = await rig.session()
        status, _, answer = await client.post({**GOOD, "messages": [USER] * 4})
        assert (status, answer["error"]["param"]) == (413, "messages")
        assert_names(answer, "max_parts", rig)
        await client.ask([USER] * 3)


def image(size: int = 10) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * size}}


CALL = {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}]}


@pytest.mark.parametrize(
    ("messages", "setting"),
    [
        ([{"role": "user", "content": [image()] * 3}], "max_images"),
        ([{"role": "user", "content": [image()]}] * 3, "max_images"),
        ([USER, CALL, {"role": "tool", "tool_call_id": "c", "content": [image()] * 3}], "max_images"),
        ([{"role": "user", "content": [image(200)]}], "max_image_bytes"),
    ],
)
async def test_images_have_a_bound_on_their_number_and_size(tmp_path, messages, setting):
    async with running(tmp_path, max_images=2, max_image_bytes=100) as rig:
        client = await rig.session()
        status, _, answer = await client.post({**GOOD, "messages": messages})
        assert (status, answer["error"]["param"]) == (413, "messages")
        assert_names(answer, setting, rig)
        few = {**GOOD, "messages": [{"role": "user", "content": [image()] * 2}]}
        assert (await client.post(few))[0] == 400, "within the bounds it is the model that refuses them"
        assert rig.proxy._calls.in_flight == 0


# --- what may be under way --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["max_calls", "max_calls_per_session"])
async def test_bounds_on_calls_in_flight_answer_429(tmp_path, setting):
    async with running(tmp_path, **{setting: 2}) as rig:
        client = await rig.session()
        rig.engine.core.push(*[ScriptedReply(rig.ids("slow enough"), first_delay=0.3)] * 2)
        under_way = [asyncio.create_task(client.ask([USER])) for _ in range(2)]
        await until(lambda: rig.proxy._calls.in_flight == 2)
        status, headers, answer = await client.post(GOOD)
        assert (status, answer["error"]["type"]) == (429, "rate_limit_error")
        assert "Retry-After" in headers
        assert_names(answer, setting, rig)
        await asyncio.gather(*under_way)
        await client.ask([USER])


async def test_open_streams_have_a_bound_and_whole_replies_do_not_count(tmp_path):
    async with running(tmp_path, max_streams=1, keep_alive_seconds=0.02) as rig:
        client = await rig.session()
        rig.engine.core.push(ScriptedReply(rig.ids("a stream that is open for a while"), first_delay=0.3))
        async with client.stream([USER]) as response:
            assert response.status == 200
            assert rig.proxy.limits.streams == 1
            async with client.stream([USER, USER]) as refused:
                assert (refused.status, "Retry-After" in refused.headers) == (429, True)
                assert_names(await refused.json(), "max_streams", rig)
            assert len(rig.proxy.sessions.get(client.session_id).live) == 1, "nothing was drawn for it"
            await client.ask([USER, USER])
            await response.read()
        await until(lambda: rig.proxy.limits.streams == 0)
        async with client.stream([USER]) as response:
            assert response.status == 200


async def test_budgets_of_a_session_are_counted(tmp_path):
    async with running(tmp_path) as rig:
        client = await rig.session(max_turns=1)
        await client.ask([USER])
        assert (await client.post(GOOD))[2]["error"]["code"] == "budget_exhausted"
        assert rig.proxy.limits.refused == {"max_turns": 1}


# --- connections ------------------------------------------------------------------------------------------------------


async def test_connections_over_the_bound_are_answered_and_closed_at_once(tmp_path):
    async with running(tmp_path, max_connections=2) as rig:
        held = [await Connection.open(rig.proxy.url) for _ in range(2)]
        await until(lambda: rig.proxy.limits.connections == 2)
        refused = await exchange(rig.proxy.url)
        assert (refused.statuses, refused.closed) == ([503], True)
        assert refused.answers[0].headers["retry-after"] == "1"
        assert_names(refused.answers[0].json(), "max_connections", rig)
        await held.pop().close()
        await until(lambda: rig.proxy.limits.connections == 1)
        client = await rig.session()
        await client.ask([USER])
        await held.pop().close()


async def test_each_listener_has_places_of_its_own_and_answers_in_its_own_shape(tmp_path):
    async with running(tmp_path, max_connections=1) as rig:
        data = await Connection.open(rig.proxy.url)
        control = await Connection.open(rig.proxy.control_url or "")
        await until(lambda: rig.proxy.limits.connections == 2)
        refused = await exchange(rig.proxy.control_url or "")
        assert refused.statuses == [503]
        assert "capture.max_connections" in refused.answers[0].json()["error"]
        await data.close()
        await control.close()


def test_where_a_process_may_open_few_files_fewer_connections_are_taken(monkeypatch):
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(connection_module.resource, "getrlimit", lambda _: (256, 1024))
    monkeypatch.setattr(connection_module.resource, "setrlimit", lambda _, to: asked.append(to))
    assert connections_allowed(10_000) == (1024 - 256) // 2
    assert connections_allowed(100) == 100
    assert asked == [(1024, 1024), (456, 1024)], "the soft limit is raised as far as it is needed, or as it may be"
    monkeypatch.setattr(connection_module.resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    assert connections_allowed(10_000) == 10_000


async def test_a_connection_that_asks_nothing_is_closed(tmp_path):
    async with running(tmp_path, connection_idle_seconds=0.1) as rig:
        silent = await exchange(rig.proxy.url, quiet=2)
        assert (silent.answers, silent.rest, silent.closed) == ([], b"", True)
        after_one = await exchange(rig.proxy.url, request(secret="wrong"), quiet=2)
        assert (after_one.statuses, after_one.closed) == ([401], True)
        await until(lambda: rig.proxy.limits.connections == 0)


# --- slow and large senders -------------------------------------------------------------------------------------------


async def trickle(connection: Connection, piece: bytes, times: int = 100) -> None:
    with suppress(ConnectionError):
        for _ in range(times):
            await connection.send(piece)
            await asyncio.sleep(0.03)


@asynccontextmanager
async def trickling(url: str, start: bytes, piece: bytes):
    """A connection that begins with ``start``, and then sends ``piece`` again and again."""
    connection = await Connection.open(url)
    await connection.send(start)
    sender = asyncio.create_task(trickle(connection, piece))
    try:
        yield connection
    finally:
        sender.cancel()
        await asyncio.gather(sender, return_exceptions=True)
        await connection.close()


async def test_a_header_that_never_ends_is_given_up(tmp_path):
    async with running(tmp_path, header_seconds=0.2) as rig:
        async with trickling(rig.proxy.url, b"POST /v1/chat/completions HTTP/1.1\r\nHost: polar\r\n", b"X-A: b\r\n") as slow:
            answer = await slow.answer(3)
            assert answer is not None and answer.status == 408
            assert_names(answer.json(), "header_seconds", rig)
            assert await slow.answer(3) is None, "it is closed"
        await until(lambda: rig.proxy.limits.connections == 0)


async def test_a_header_that_comes_in_time_is_served_and_leaves_no_timer(tmp_path):
    async with running(tmp_path, header_seconds=0.2) as rig:
        client = await rig.session()
        whole = request(json.dumps(GOOD).encode(), secret=client.secret)
        connection = await Connection.open(rig.proxy.url)
        for _ in range(2):
            await connection.send(whole[:50])
            await asyncio.sleep(0.05)
            await connection.send(whole[50:])
            answer = await connection.answer(3)
            assert answer is not None and answer.status == 200
        await asyncio.sleep(0.25)
        assert rig.proxy.limits.connections == 1, "still open"
        assert not rig.proxy.limits.refused
        await connection.close()


@pytest.mark.parametrize(
    "header",
    [
        b"POST " + CHAT.encode() + b"?" + b"x" * 5000 + b" HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nX-Long: " + b"x" * 5000 + b"\r\n\r\n",
        b"POST / HTTP/1.1\r\nX-Long: " + b"x" * 5000,
        b"POST / HTTP/1.1\r\n" + b"X-Short: x\r\n" * 110,
    ],
    ids=["request line", "one header", "one that does not end", "many short ones that do not end"],
)
async def test_a_header_over_the_limit_is_refused(tmp_path, header):
    async with running(tmp_path, max_header_bytes=1024) as rig:
        refused = await exchange(rig.proxy.url, header, quiet=2)
        assert (refused.statuses, refused.closed) == ([431], True)
        assert_names(refused.answers[0].json(), "max_header_bytes", rig)


async def test_a_body_that_trickles_is_given_up(tmp_path):
    async with running(tmp_path, read_seconds=0.2) as rig:
        client = await rig.session()
        header = request(secret=client.secret, headers=[("Content-Length", "100000")], length=False)
        async with trickling(rig.proxy.url, header, b" ") as slow:
            answer = await slow.answer(3)
            assert answer is not None and answer.status == 408
            assert_names(answer.json(), "read_seconds", rig)
            assert await slow.answer(3) is None, "it is closed, and what it sends is no next request"
        await until(lambda: rig.proxy.limits.connections == 0)


# --- slow readers -----------------------------------------------------------------------------------------------------


def small_buffers(rig: Rig) -> None:
    """What the kernel takes from the proxy, on connections from now on, without anybody reading it."""
    for site in rig.proxy._runners[0].sites:
        for listening in site._server.sockets:  # type: ignore[union-attr]
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)


@asynccontextmanager
async def deaf(client: Client, body: dict[str, Any], **headers: str):
    """A client that sends a request, and then reads nothing."""
    host, port = client.rig.proxy.url.removeprefix("http://").split(":")
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.setblocking(False)
        await asyncio.get_running_loop().sock_connect(raw, (host, int(port)))
        data = request(json.dumps(client.body(**body)).encode(), secret=client.secret, headers=list(headers.items()))
        await asyncio.get_running_loop().sock_sendall(raw, data)
        yield raw


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_takes_nothing_is_cut_off_and_a_retry_gets_the_reply(tmp_path, stream):
    async with running(tmp_path, write_seconds=0.2, grace_seconds=5, max_context=8000, chunk_tokens=4) as rig:
        small_buffers(rig)
        client = await rig.session()
        text = "word " * 500
        rig.engine.core.push(rig.ids(text))
        body = {"messages": [USER], "stream": stream, "logprobs": not stream}
        async with deaf(client, body):
            await until(lambda: rig.proxy.limits.refused["write_seconds"] == 1)
            await until(lambda: rig.proxy.limits.connections == 0)
        session = rig.proxy.sessions.get(client.session_id)
        await until(lambda: not session.live)
        (turn,) = rig.turns(client.session_id)
        assert (turn.sample.finish_reason, turn.delivered) == (FinishReason.STOP, False)
        assert (await client.message([USER]))["content"] == text
        assert len(await rig.delivered(client.session_id)) == 1
        assert rig.proxy.limits.streams == 0


async def test_a_sample_whose_reader_is_cut_off_goes_on_and_is_joined(tmp_path):
    async with running(tmp_path, write_seconds=0.1, grace_seconds=5, max_context=8000) as rig:
        small_buffers(rig)
        client = await rig.session()
        text = "word " * 250
        rig.engine.core.push(ScriptedReply(rig.ids(text), fault=Fault.HANG, fault_after=1200))
        async with deaf(client, {"messages": [USER], "stream": True}):
            await until(lambda: rig.proxy.limits.refused["write_seconds"] == 1)
        assert rig.proxy._calls.in_flight == 1, "the sample is still being drawn"
        async with client.stream([USER]) as response:
            assert await response.content.readline()
            (live,) = rig.proxy.sessions.get(client.session_id).live
            assert live.readers == 1, "one sample, whose one reader is the new one"


async def test_the_last_bytes_of_a_closed_connection_do_not_hold_it_for_ever(tmp_path):
    async with running(tmp_path, write_seconds=0.2, max_context=8000) as rig:
        small_buffers(rig)
        client = await rig.session()
        rig.engine.core.push(rig.ids("x" * 300))
        async with deaf(client, {"messages": [USER], "logprobs": True}, Connection="close"):
            await until(lambda: rig.proxy._calls.in_flight == 0 and bool(rig.turns(client.session_id)))
            await until(lambda: rig.proxy.limits.refused["write_seconds"] == 1)
            await until(lambda: rig.proxy.limits.connections == 0)


# --- sessions ---------------------------------------------------------------------------------------------------------


async def test_a_proxy_that_stops_leaves_no_connection_behind(tmp_path):
    async with running(tmp_path, max_context=8000) as rig:
        small_buffers(rig)
        client = await rig.session()
        rig.engine.core.push(rig.ids("x" * 300))
        async with deaf(client, {"messages": [USER], "logprobs": True}):
            await until(lambda: bool(rig.turns(client.session_id)))
            await rig.proxy.stop()
            await until(lambda: rig.proxy.limits.connections == 0, 1)


def statuses(rig: Rig) -> list[str | None]:
    with JournalReader(rig.folder / JOURNAL) as reader:
        return [row.status for row in reader.sessions()]


async def test_sessions_have_a_bound_that_expired_ones_do_not_count_against(tmp_path):
    monotonic = Clock()
    async with running(tmp_path, max_sessions=1, monotonic=monotonic) as rig:
        await rig.session("a", seconds=10)
        with pytest.raises(Overloaded, match=r"1 sessions are open already.*capture\.max_sessions"):
            await rig.session("b")
        assert rig.proxy.limits.refused == {"max_sessions": 1}
        monotonic.now += 10
        await rig.session("b")
        assert statuses(rig) == ["expired", None]


@pytest.mark.parametrize(("seconds", "status"), [(1000, "idle"), (50, "expired")])
async def test_a_session_that_is_over_is_closed_recorded_and_forgotten(tmp_path, seconds, status):
    monotonic = Clock()
    async with running(tmp_path, idle_seconds=60, monotonic=monotonic) as rig:
        client = await rig.session(seconds=seconds)
        await client.ask([USER])
        await rig.delivered(client.session_id)
        assert rig.proxy.seen.bytes
        monotonic.now += 49
        await rig.proxy.sweep()
        await client.ask([USER])
        await until(lambda: not rig.proxy.sessions.get(client.session_id).live)
        monotonic.now += seconds - 49 if status == "expired" else 60
        await rig.proxy.sweep()
        assert (len(rig.proxy.sessions), rig.proxy.seen.bytes) == (0, 0)
        assert statuses(rig) == [status]
        assert (await client.post(GOOD))[0] == 401
        assert rig.proxy.limits.refused == {"idle_seconds" if status == "idle" else "session_seconds": 1}
        assert len(rig.turns(client.session_id)) == 2, "what it was answered stays on disk"


async def test_a_session_with_a_call_under_way_is_not_over_until_the_call_is(tmp_path):
    monotonic = Clock()
    async with running(tmp_path, idle_seconds=60, monotonic=monotonic) as rig:
        client = await rig.session(seconds=1000)
        rig.engine.core.push(ScriptedReply(rig.ids("slow"), first_delay=0.3))
        call = asyncio.create_task(client.ask([USER]))
        await until(lambda: rig.proxy._calls.in_flight == 1)
        monotonic.now += 999
        await rig.proxy.sweep()
        await call
        await until(lambda: not rig.proxy.sessions.get(client.session_id).live)
        await rig.proxy.sweep()
        assert len(rig.proxy.sessions) == 1, "the call was activity"
        monotonic.now += 1
        await rig.proxy.sweep()
        assert statuses(rig) == ["expired"]


async def test_idle_sessions_are_looked_for_without_anybody_asking(tmp_path):
    async with running(tmp_path, idle_seconds=0.1, read_seconds=0.1) as rig:
        await rig.session()
        await until(lambda: statuses(rig) == ["idle"])


async def test_a_call_that_is_still_arriving_when_its_session_is_closed_is_refused(tmp_path):
    async with running(tmp_path) as rig:
        client = await rig.session()
        whole = request(json.dumps(GOOD).encode(), secret=client.secret)
        connection = await Connection.open(rig.proxy.url)
        await connection.send(whole[:-5])
        await asyncio.sleep(0.05)
        await rig.proxy.close_session(client.session_id)
        await connection.send(whole[-5:])
        answer = await connection.answer(3)
        assert answer is not None and answer.status == 401
        assert rig.proxy.seen.bytes == 0, "nothing of it is kept for a session that nobody will close again"
        assert rig.engine_log() == []
        await connection.close()


async def test_a_clock_that_jumps_neither_ends_a_session_nor_gives_it_more_time(tmp_path):
    wall, monotonic = Clock(), Clock(1000.0)
    async with running(tmp_path, idle_seconds=600, clock=wall, monotonic=monotonic) as rig:
        client = await rig.session(seconds=100)
        for jump in (86_400, -3 * 86_400, 7 * 3600):
            wall.now += jump
            await rig.proxy.sweep()
            await client.ask([USER])
        assert len(await rig.delivered(client.session_id)) == 3
        wall.now -= 86_400
        monotonic.now += 100
        assert (await client.post(GOOD))[0] == 401
        await rig.proxy.sweep()
        assert statuses(rig) == ["expired"]


def opened(store: SessionStore, group: str = "g", **kwargs: Any):
    given = {"rollout_id": "r", "task_id": "t", "group_id": group, "attempt": 0, "seconds": 10.0, "max_turns": None}
    return store.open(**given, max_tokens=None, sampling=None, metadata={}, **kwargs)


def test_the_dates_of_groups_are_bounded_and_the_longest_unused_goes_first(monkeypatch):
    monkeypatch.setattr(sessions_module, "_GROUP_DATES", 2)
    wall = Clock()
    store = SessionStore(100, Limits(CaptureSettings()), wall, Clock())
    first = opened(store, "a")[0].date.pinned
    opened(store, "b")
    wall.now += 86_400
    assert opened(store, "a")[0].date.pinned == first
    opened(store, "c")
    assert opened(store, "a")[0].date.pinned == first, "b has made room for c"
    assert opened(store, "b")[0].date.pinned != first
    assert len(store._group_dates) == 2


def test_a_pinned_date_holds_for_the_group_and_does_not_replace_one_that_is_in_use():
    store = SessionStore(100, Limits(CaptureSettings()), Clock(), Clock())
    earlier = date(2024, 2, 29)
    assert store.pin_date("resumed", earlier) == earlier
    assert opened(store, "resumed")[0].date.pinned == earlier
    used = opened(store, "new")[0].date.pinned
    assert store.pin_date("new", earlier) == used != earlier


def test_a_revoked_session_is_left_to_whoever_closes_it():
    monotonic = Clock()
    store = SessionStore(100, Limits(CaptureSettings()), Clock(), monotonic)
    session, handle = opened(store)
    store.revoke(session.id)
    monotonic.now += 100
    assert store.over(None) == []
    with pytest.raises(Unauthorized):
        store.authenticate(handle.secret)


# --- the settings -----------------------------------------------------------------------------------------------------


def test_a_session_cannot_be_idle_while_its_call_may_still_arrive():
    with pytest.raises(ValidationError, match="idle_seconds"):
        CaptureSettings(idle_seconds=5, read_seconds=60)


def test_the_documented_table_has_every_bound_with_its_default():
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", (ROOT / "docs" / "limits.md").read_text(), re.M)
    documented = {name: default.strip() for name, default in rows}
    fields = CaptureSettings.model_fields
    assert {name for name in fields if name.startswith("max_")} <= set(documented) <= set(fields)
    assert len(documented) == len(rows)
    for name, text in documented.items():
        default = fields[name].default
        assert text.replace(",", "") == str(default).lower(), name
