# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Rule 6 under attack: whatever a sandbox sends, a session sees only itself, and the control routes are out of its reach.

Each attack is refused in the provider's shape where HTTP allows an answer, and the connection is closed where it is in doubt
where a request ends. After each, another session's conversation goes on as if nothing had been: same line, nothing added.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from nemo_polar.types import FinishReason, ForkReason
from tests.support.proxy import Client, Rig, running
from tests.support.raw_http import CHAT, Answer, Connection, Exchange, chunked, exchange, request
from tests.test_fuzz import bad_error

MARK = "the victim's own words"
"""In every prompt of the victim, and in none of anybody else's."""


@dataclass
class Scene:
    """An attacker with a session of its own, and a victim in the middle of a conversation."""

    rig: Rig
    attacker: Client
    victim: Client
    history: list[dict[str, Any]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.rig.proxy.url

    @property
    def control_url(self) -> str:
        assert self.rig.proxy.control_url is not None
        return self.rig.proxy.control_url

    def body(self, text: str = "go", **fields: Any) -> bytes:
        """A good request of the attacker's."""
        return json.dumps(self.attacker.body([{"role": "user", "content": text}], **fields)).encode()

    @property
    def smuggled(self) -> bytes:
        """A whole request with the victim's secret: the worst that could be hidden in another. If it ran, it would show."""
        return request(
            json.dumps(self.victim.body([{"role": "user", "content": "smuggled"}])).encode(), secret=self.victim.secret
        )

    async def go_on(self) -> None:
        """The victim's next call; it is served, and goes on the victim's line."""
        message = await self.victim.message(self.history)
        self.history += [message, {"role": "user", "content": "more"}]
        turns = self.rig.turns(self.victim.session_id)
        assert [t.parent for t in turns] == [None, *range(len(turns) - 1)]
        assert len(turns) == len(self.history) // 2, "a call was made in the victim's name"

    async def unharmed(self) -> None:
        """Whatever happened, the victim goes on, and the words of neither came to the other."""
        await self.go_on()
        for session in self.rig.proxy.sessions:
            assert all(turn.session_id == session.id for turn in session.tree.turns)
        texts = {}
        for call in self.rig.engine_log():
            texts.setdefault(call.request_id.split("-")[1], []).append(self.rig.codec.tokenizer.decode(call.prompt_ids))  # type: ignore[attr-defined]
        for session_id, prompts in texts.items():
            assert all((MARK in prompt) == (session_id == self.victim.session_id) for prompt in prompts)
        assert await self.calls_in_flight() == 0

    async def calls_in_flight(self) -> int:
        for _ in range(100):
            if self.rig.proxy.status()["calls_in_flight"] == 0:
                break
            await asyncio.sleep(0.01)
        return self.rig.proxy.status()["calls_in_flight"]


@asynccontextmanager
async def scene(folder: Path, **settings: Any) -> AsyncGenerator[Scene, None]:
    async with running(folder, **settings) as rig:
        made = Scene(rig, await rig.session("attacker"), await rig.session("victim"))
        made.history = [{"role": "user", "content": MARK}]
        await made.go_on()
        yield made
        await made.unharmed()


def refused(answer: Answer, *statuses: int) -> None:
    assert answer.status in statuses, (answer.status, answer.body)
    assert bad_error(answer) is None, bad_error(answer)


async def together(url: str, requests: dict[str, bytes], *, quiet: float = 0.3) -> dict[str, Exchange]:
    """Each on a connection of its own, all at once."""
    found = await asyncio.gather(*(exchange(url, data, quiet=quiet) for data in requests.values()))
    return dict(zip(requests, found, strict=True))


# --- secrets ----------------------------------------------------------------------------------------------------------


def wrong_places(secret: str, other: str) -> dict[str, dict[str, Any]]:
    """Good secrets where none belongs, and what looks like one: keywords of ``request``."""
    basic = base64.b64encode(f"user:{secret}".encode()).decode()
    return {
        "none": {},
        "guessed": {"secret": "sk-polar-" + "A" * 43},
        "empty": {"secret": ""},
        "a part of one": {"secret": secret[:-1]},
        "one and a bit": {"secret": secret + "A"},
        "in other letters": {"secret": secret.swapcase()},
        "its prefix": {"secret": "sk-polar-"},
        "a pattern": {"secret": "%"},
        "no ASCII": {"secret": "sk-polar-\xfc\xff"},
        "no ASCII about a good one": {"secret": secret + "\xa0"},
        "very long": {"secret": "sk-polar-" + "A" * 7000},
        "two in one": {"secret": f"{secret}, Bearer {other}"},
        "two headers": {"headers": [("Authorization", f"Bearer {secret}"), ("Authorization", f"Bearer {other}")]},
        "two headers, one good": {"headers": [("Authorization", f"Bearer {secret}"), ("authorization", "Bearer x")]},
        "two headers, the second good": {"headers": [("Authorization", "Basic x"), ("AUTHORIZATION", f"Bearer {secret}")]},
        "no scheme": {"headers": [("Authorization", secret)]},
        "basic": {"headers": [("Authorization", f"Basic {basic}")]},
        "digest": {"headers": [("Authorization", f"Digest {secret}")]},
        "proxy authorization": {"headers": [("Proxy-Authorization", f"Bearer {secret}")]},
        "cookie": {"headers": [("Cookie", f"api-key={secret}; Authorization=Bearer {secret}")]},
        "referer": {"headers": [("Referer", f"http://polar/?key={secret}")]},
        "forwarded": {"headers": [("X-Forwarded-Authorization", f"Bearer {secret}"), ("X-Original-Authorization", secret)]},
        "underscored": {"headers": [("api_key", secret), ("x_api_key", secret)]},
        "query": {"target": f"{CHAT}?key={secret}&api_key={secret}&api-key={secret}&access_token={secret}"},
        "userinfo": {"target": f"http://user:{secret}@polar{CHAT}"},
    }


async def test_a_secret_that_is_none_gets_the_same_bytes_whatever_is_wrong_with_it(tmp_path):
    async with running(tmp_path / "other") as elsewhere, scene(tmp_path / "here") as s:
        foreign = await elsewhere.session("r")
        short, closed = await s.rig.session("short", seconds=0.05), await s.rig.session("closed")
        await closed.ask([{"role": "user", "content": "once"}])
        await s.rig.proxy.close_session(closed.session_id)
        await asyncio.sleep(0.1)
        attempts = wrong_places(s.attacker.secret, s.victim.secret)
        for name, secret in {
            "foreign": foreign.secret,
            "expired": short.secret,
            "closed": closed.secret,
            "control": s.rig.proxy.control_secret,
            "session id": s.victim.session_id,
        }.items():
            attempts[name] = {"secret": secret}
            attempts[name + " as api-key"] = {"headers": [("api-key", secret)]}
        found = await together(s.url, {name: request(s.body(), **what) for name, what in attempts.items()})
        assert {name: f.statuses for name, f in found.items()} == {name: [401] for name in found}
        answers = {name: f.answers[0] for name, f in found.items()}
        for answer in answers.values():
            refused(answer, 401)
        bare = {(a.body, "".join(f"{k}: {v}\n" for k, v in sorted(a.headers.items()) if k != "date")) for a in answers.values()}
        assert len(bare) == 1, "what is wrong with a secret can be told from the answer"
        assert json.loads(answers["none"].body)["error"]["code"] == "invalid_api_key"
        assert s.rig.turns(s.attacker.session_id) == []


async def test_a_secret_of_a_megabyte_is_refused_and_not_kept(tmp_path):
    async with scene(tmp_path) as s:
        found = await exchange(s.url, request(s.body(), secret="A" * 1_000_000))
        assert found.closed
        refused(found.answers[0], 400, 431)
        assert len(found.answers[0].body) < 1000


async def test_the_control_listener_takes_no_secret_but_its_own(tmp_path):
    async with scene(tmp_path) as s:
        secrets = (None, "", s.attacker.secret, s.victim.secret, s.rig.proxy.control_secret[:-1], "\xff", "A" * 5000)
        routes = (("GET", "/sessions"), ("POST", "/sessions"), ("POST", "/pause"), ("GET", "/nope"))
        tried = {
            f"{method} {target} {secret}": request(method=method, target=target, secret=secret)
            for secret in secrets
            for method, target in routes
        }
        answers = set()
        for name, found in (await together(s.control_url, tried)).items():
            assert found.statuses == [401], name
            assert set(found.answers[0].json()) == {"error"}
            answers.add(found.answers[0].body)
        assert len(answers) == 1
        assert s.rig.proxy.gate.open.is_set()


async def test_no_secret_comes_into_the_log_the_journal_or_an_answer(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    async with scene(tmp_path) as s:
        secrets = [s.attacker.secret, s.victim.secret, s.rig.proxy.control_secret]
        seen = b""
        for secret in secrets:
            for url in (s.url, s.control_url):
                for data in (
                    request(b"{", secret=secret),
                    request(s.body(), secret=secret + "\x01"),
                    request(s.body(), secret=secret, headers=[("Bad header", "x")]),
                    request(s.body(), secret=secret, target="/nope"),
                    request(s.body(), secret=secret, method="TRACE"),
                    request(b"", secret=secret, method="OPTIONS", target="*"),
                    request(s.body(), secret=secret, headers=[("Content-Length", "1")]),
                    request(s.body(), secret=secret, target=f"{CHAT} {secret}"),
                ):
                    found = await exchange(url, data, quiet=0.05)
                    seen += found.rest + b"".join(a.head + a.body for a in found.answers)
    written = seen + caplog.text.encode() + b"".join(p.read_bytes() for p in tmp_path.iterdir() if p.is_file())
    assert [secret for secret in secrets if secret.encode() in written] == []
    assert "Traceback" not in caplog.text


# --- control routes ---------------------------------------------------------------------------------------------------

CONTROL = ("/sessions", "/pause", "/resume", "/health", "/metrics")
DETOURS = (
    *("{0}", "{0}/", "/{0}", "/v1{0}", "/v1/..{0}", "/v1/../..{0}", "/v1/chat/completions/../../..{0}", "/./{0}", "/v1/..;{0}"),
    *(
        "/v1/%2e%2e{0}",
        "/v1/%2e%2e%2f{0}",
        "/%2f{0}",
        "/v1%2f..{0}",
        "/v1/chat/completions%2f..%2f..%2f..{0}",
        "/v1/%252e%252e{0}",
    ),
    *("/v1/..%c0%af{0}", "/v1/%c0%ae%c0%ae{0}", "{0}%00", "/v1/chat/completions%00{0}", "{0}?a=/v1/chat/completions", "{0}#x"),
    *("/v1/chat/completions;{0}", "/v1/models/../..{0}", "/\\..{0}", "{0}%20", "{0}.json", "/v1/models%0d%0aGET%20{0}"),
)


@pytest.mark.parametrize("secret", ["attacker", "control"])
async def test_no_path_leads_from_the_data_listener_to_a_control_route(tmp_path, secret):
    async with scene(tmp_path) as s:
        bearer = s.attacker.secret if secret == "attacker" else s.rig.proxy.control_secret
        host = s.control_url.removeprefix("http://")
        paths = [detour.format(path) for path in CONTROL for detour in DETOURS]
        targets = [*paths, *(f"http://{host}{path}" for path in CONTROL), *(f"//{host}{path}" for path in CONTROL)]
        connection = await Connection.open(s.url)
        for target in targets:
            for method in ("GET", "POST", "DELETE") if target.count("/") == 1 else ("POST",):
                heads = [("Host", host)] if connection is None else []
                await connection.send(request(b"{}", method=method, target=target, secret=bearer, headers=heads))
                answer = await connection.answer(5)
                assert answer is not None, (method, target)
                refused(answer, 400, 404)
                if answer.headers.get("connection") == "close":
                    await connection.close()
                    connection = await Connection.open(s.url)
        await connection.close()
        assert len(s.rig.proxy.sessions) == 2
        assert s.rig.proxy.gate.open.is_set()


async def test_headers_do_not_make_a_call_anything_else(tmp_path):
    async with scene(tmp_path) as s:
        host = s.control_url.removeprefix("http://")
        headers = {
            "X-HTTP-Method-Override": "DELETE",
            "X-HTTP-Method": "GET",
            "X-Method-Override": "PUT",
            "X-Original-URL": "/sessions",
            "X-Rewrite-URL": "/pause",
            "X-Forwarded-Host": host,
            "X-Forwarded-For": "127.0.0.1",
            "X-Forwarded-Prefix": "/sessions",
            "Forwarded": f"for=127.0.0.1;host={host}",
            "X-Real-IP": "127.0.0.1",
            "Origin": s.control_url,
            "X-Session-Id": s.victim.session_id,
            "Openai-Organization": s.victim.session_id,
        }
        tried = {k: request(s.body(k), secret=s.attacker.secret, headers=[(k, v)]) for k, v in headers.items()}
        tried["Host"] = request(s.body("Host"), secret=s.attacker.secret).replace(b"Host: polar", b"Host: " + host.encode())
        for name, found in (await together(s.url, tried)).items():
            assert found.statuses == [200], name
            assert found.answers[0].json()["object"] == "chat.completion", name
        assert len(s.rig.turns(s.attacker.session_id)) == len(tried)
        assert len(s.rig.proxy.sessions) == 2 and s.rig.proxy.gate.open.is_set()


async def test_other_methods_are_no_routes(tmp_path):
    async with scene(tmp_path) as s:
        methods = ("TRACE", "OPTIONS", "CONNECT", "PUT", "DELETE", "PATCH", "PROPFIND", "SEARCH", "HEAD")
        tried = {
            f"{method} {target}": request(method=method, target=target, secret=s.attacker.secret)
            for method in methods
            for target in (CHAT, "*", "127.0.0.1:22", "/")
        }
        for name, found in (await together(s.url, tried)).items():
            if name.startswith("HEAD"):  # its answers have no body, so they are not whole
                # 200: the probe of Anthropic's clients, which says nothing and does nothing.
                said = tuple(f"HTTP/1.1 {status}".encode() for status in (200, 400, 404))
                assert found.rest.startswith(said) or found.answers[0].status in (200, 400), name
                continue
            assert len(found.answers) == 1, name
            refused(found.answers[0], 400, 404)
            assert s.attacker.secret.encode() not in found.answers[0].body


@pytest.mark.parametrize("protocol", ["websocket", "h2c", "TLS/1.0", "HTTP/2.0"])
async def test_no_connection_is_upgraded(tmp_path, protocol):
    async with scene(tmp_path) as s:
        headers = [("Connection", "Upgrade, HTTP2-Settings"), ("Upgrade", protocol), ("HTTP2-Settings", "AAMAAABkAAQAAP__")]
        headers += [("Sec-WebSocket-Version", "13"), ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")]
        connection = await Connection.open(s.url)
        for text in ("first", "second"):
            await connection.send(request(s.body(text), secret=s.attacker.secret, headers=headers))
            answer = await connection.answer(5)
            assert answer is not None and answer.status == 200, "it is an ordinary request, and so is the next"
        await connection.close()


# --- where a request ends ---------------------------------------------------------------------------------------------


def framings(good: bytes, hidden: bytes) -> dict[str, tuple[list[str], bytes]]:
    """Headers, and what follows them; each may be read in two ways, in one of which ``hidden`` is a request."""
    size, packed, te = len(good), chunked(good), "Transfer-Encoding: chunked"
    chunk = b"%x\r\n" % size
    return {
        "CL.TE": (["Content-Length: 5", te], b"0\r\n\r\n" + hidden),
        "TE.CL": ([te, f"Content-Length: {size}"], packed + hidden),
        "TE of another kind": (["Transfer-Encoding: xchunked", f"Content-Length: {size}"], good + hidden),
        "TE identity": (["Transfer-Encoding: identity"], good + hidden),
        "TE gzip, chunked": (["Transfer-Encoding: gzip, chunked"], packed + hidden),
        "TE identity, chunked": (["Transfer-Encoding: identity, chunked"], packed + hidden),
        "TE chunked, identity": (["Transfer-Encoding: chunked, identity"], packed + hidden),
        "TE chunked twice": ([te, te], packed + hidden),
        "TE chunked, chunked": (["Transfer-Encoding: chunked, chunked"], packed + hidden),
        "TE with a vertical tab": (["Transfer-Encoding: \x0bchunked", f"Content-Length: {size}"], good + hidden),
        "TE with a space before its colon": (["Transfer-Encoding : chunked", f"Content-Length: {size}"], good + hidden),
        "TE quoted": (['Transfer-Encoding: "chunked"'], packed + hidden),
        "TE folded": (["Transfer-Encoding:\r\n chunked"], packed + hidden),
        "TE behind a bare LF": (["X: y\nTransfer-Encoding: chunked", f"Content-Length: {size}"], good + hidden),
        "TE behind a bare CR": (["X: y\rTransfer-Encoding: chunked", f"Content-Length: {size}"], good + hidden),
        "TE behind a NUL": (["X: y\0Transfer-Encoding: chunked", f"Content-Length: {size}"], good + hidden),
        "two lengths": ([f"Content-Length: {size}", "Content-Length: 5"], good + hidden),
        "one length twice": ([f"Content-Length: {size}", f"Content-Length: {size}"], good + hidden),
        "a list of lengths": ([f"Content-Length: {size}, {size}"], good + hidden),
        "a negative length": (["Content-Length: -1"], good + hidden),
        "a signed length": ([f"Content-Length: +{size}"], good + hidden),
        "a length past 64 bits": (["Content-Length: 18446744073709551617"], b"x" + hidden),
        "a length in hex": ([f"Content-Length: {size:#x}"], good + hidden),
        "a length with an underscore": (["Content-Length: 1_0"], good + hidden),
        "a length with a space in it": (["Content-Length: 1 0"], good + hidden),
        "a length in other digits": (["Content-Length: \xb2"], good + hidden),
        "no length": ([], good + hidden),
        "a folded header": (["X: y\r\n z", f"Content-Length: {size}"], good + hidden),
        "a header without a colon": (["Nothing", f"Content-Length: {size}"], good + hidden),
        "a header without a name": ([": x", f"Content-Length: {size}"], good + hidden),
        "a chunk size past 64 bits": ([te], b"1" + b"0" * 16 + b"\r\n" + good + b"\r\n0\r\n\r\n" + hidden),
        "a negative chunk size": ([te], b"-5\r\n" + good + hidden),
        "a chunk size in C": ([te], b"0x5\r\nhello\r\n0\r\n\r\n" + hidden),
        "a chunk size with a space": ([te], b"5 5\r\nhello\r\n0\r\n\r\n" + hidden),
        "an empty chunk size": ([te], b"\r\nhello\r\n0\r\n\r\n" + hidden),
        "chunks ended by LF": ([te], b"%x\n" % size + good + b"\n0\n\n" + hidden),
        "chunk data ended by LF": ([te], chunk + good + b"\n0\r\n\r\n" + hidden),
        "chunk data ended by nothing": ([te], chunk + good + b"0\r\n\r\n" + hidden),
        "chunk data ended by something else": ([te], chunk + good + b"XX0\r\n\r\n" + hidden),
        "LF in a chunk extension": ([te], b"%x;\nxx\r\n" % size + good + b"\r\n0\r\n\r\n" + hidden),
        "a broken trailer": ([te], chunk + good + b"\r\n0\r\nTransfer-Encoding : chunked\r\n\r\n" + hidden),
    }


FRAMINGS = sorted(framings(b"", b""))


def headed(s: Scene, headers: list[str], *, version: str = "HTTP/1.1") -> bytes:
    lines = [f"POST {CHAT} {version}", "Host: polar", f"Authorization: Bearer {s.attacker.secret}", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1")


def closed_in_doubt(name: str, found: Exchange) -> None:
    assert found.closed, (name, found)
    assert len(found.answers) == 1 and not found.rest, (name, found)
    refused(found.answers[0], 400)


@pytest.mark.parametrize("pieces", ["in one piece", "header first"])
async def test_a_request_whose_end_is_in_doubt_is_refused_and_nothing_after_it_is_read(tmp_path, pieces):
    async with scene(tmp_path) as s:
        body = s.body()

        async def attempt(name: str, headers: list[str], rest: bytes) -> None:
            head = headed(s, headers)
            found = await exchange(s.url, *([head + rest] if pieces == "in one piece" else [head, rest]), quiet=5)
            if (name, pieces) == ("no length", "header first"):
                assert found.statuses[0] == 400, "an empty body, and then something that is no request"
                return
            closed_in_doubt(name, found)

        await asyncio.gather(*(attempt(name, *what) for name, what in framings(body, s.smuggled).items()))


async def test_lines_ended_by_bare_line_feeds_are_no_http(tmp_path):
    async with scene(tmp_path) as s:
        whole = headed(s, [f"Content-Length: {len(s.body())}"]).replace(b"\r\n", b"\n") + s.body()
        closed_in_doubt("bare LF", await exchange(s.url, whole + s.smuggled, quiet=5))


async def test_framing_that_is_odd_but_clear_is_served(tmp_path):
    async with scene(tmp_path) as s:
        for n, (headers, rest) in enumerate(
            (
                (["Transfer-Encoding: Chunked"], lambda body: chunked(body, 1)),
                (["transfer-encoding: chunked"], lambda body: b'%x;a="b";c\r\n%s\r\n000\r\n\r\n' % (len(body), body)),
                (["Transfer-Encoding: chunked"], lambda body: b"%X\r\n%s\r\n0\r\nX-Trailer: y\r\n\r\n" % (len(body), body)),
            )
        ):
            body = s.body(f"odd {n}")
            found = await exchange(s.url, headed(s, headers) + rest(body), quiet=0.2)
            assert found.statuses == [200]
        await exchange(s.url, headed(s, ["Transfer-Encoding: chunked"], version="HTTP/1.0") + chunked(s.body()) + s.smuggled)


async def test_a_trailer_is_no_header(tmp_path):
    async with scene(tmp_path) as s:
        body = s.body("trailer")
        rest = b"%x\r\n%s\r\n0\r\nAuthorization: Bearer %s\r\n\r\n" % (len(body), body, s.victim.secret.encode())
        found = await exchange(s.url, request(secret="wrong", headers=[("Transfer-Encoding", "chunked")], length=False) + rest)
        assert found.statuses == [401]


REFUSALS: dict[str, dict[str, Any]] = {
    "wrong secret": {"secret": "wrong"},
    "no route": {"target": "/nope"},
    "no method": {"method": "PUT"},
    "broken compression": {"headers": [("Content-Encoding", "gzip")]},
    "unknown compression": {"headers": [("Content-Encoding", "zstd")]},
    "unknown expectation": {"headers": [("Expect", "the worst")]},
    "not JSON": {},
}


@pytest.mark.parametrize("pieces", ["in one piece", "header first", "body in two"])
async def test_the_body_of_a_refused_request_is_never_a_request(tmp_path, pieces):
    async with scene(tmp_path) as s:

        async def attempt(name: str) -> None:
            whole = request(s.smuggled, **{"secret": s.attacker.secret, **REFUSALS[name]})
            cut = len(whole) - len(s.smuggled) // (2 if pieces == "body in two" else 1)
            found = await exchange(s.url, *([whole] if pieces == "in one piece" else [whole[:cut], whole[cut:]]))
            assert len(found.answers) == 1, name
            refused(found.answers[0], 400, 401, 404)

        await asyncio.gather(*map(attempt, REFUSALS))


async def test_a_body_that_was_announced_and_not_waited_for_is_never_a_request(tmp_path):
    async with scene(tmp_path, max_body_bytes=1000) as s:
        for secret, length, statuses in (("wrong", 500, (401,)), (s.attacker.secret, 5000, (413,))):
            head = request(secret=secret, headers=[("Expect", "100-continue"), ("Content-Length", str(length))], length=False)
            found = await exchange(s.url, head, s.smuggled * 3, quiet=0.3)
            final = [a for a in found.answers if a.status != 100]
            assert len(final) == 1
            refused(final[0], *statuses)


async def test_requests_behind_one_that_is_refused_are_answered_each_with_its_own_authority(tmp_path):
    async with scene(tmp_path) as s:
        mine = request(s.body("mine"), secret=s.attacker.secret)
        guessed = request(s.body(), secret="wrong")
        found = await exchange(s.url, guessed + mine + request(b"{", secret=s.attacker.secret) + guessed, quiet=0.3)
        assert found.statuses == [401, 200, 400, 401]
        for answer in found.answers:
            if answer.status != 200:
                refused(answer, answer.status)


async def test_what_is_no_http_at_all_is_refused(tmp_path):
    async with scene(tmp_path) as s:
        for junk in (
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"\0" * 100,
        ):
            closed_in_doubt(repr(junk[:9]), await exchange(s.url, junk, quiet=5))
        for line in (
            "GET / HTTP/9.9",
            "GET / HTTP/1.1 x",
            "get / HTTP/1.1",
            f"POST {CHAT}\tHTTP/1.1",
            "GET / FTP/1.1",
        ):
            closed_in_doubt(line, await exchange(s.url, f"{line}\r\nHost: x\r\n\r\n".encode(), quiet=5))


async def test_a_flood_of_headers_or_a_long_target_is_refused(tmp_path):
    async with scene(tmp_path) as s:
        floods: tuple[dict[str, Any], ...] = (
            {"headers": [("X", "y")] * 5000},
            {"headers": [("X" * 100_000, "y")]},
            {"target": "/v1/models/" + "a" * 100_000},
            {"target": "/v1/models/\xff\xfe"},
            {"target": "/v1/models/\x00"},
            {"headers": [("Host", "two")]},
        )
        for what in floods:
            found = await exchange(s.url, request(s.body(), secret=s.attacker.secret, **what), quiet=5)
            assert found.closed
            refused(found.answers[0], 400, 431)


# --- what is reflected ------------------------------------------------------------------------------------------------

EVIL = "a\r\nX-Evil: yes\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"


@pytest.mark.parametrize("stream", [False, True])
async def test_nothing_that_is_sent_becomes_a_header_of_the_answer(tmp_path, stream):
    async with scene(tmp_path) as s:
        talk = [
            {"role": "user", "content": EVIL},
            {
                "role": "assistant",
                "tool_calls": [{"id": EVIL, "type": "function", "function": {"name": EVIL, "arguments": EVIL}}],
            },
            {"role": "tool", "tool_call_id": EVIL, "content": EVIL},
        ]
        fields = {"model": EVIL, "user": EVIL, "metadata": {EVIL: EVIL}, EVIL: EVIL, "stream": stream}
        good = json.dumps({**s.attacker.body(talk), **fields}).encode()
        bad = json.dumps({**s.attacker.body([{"role": EVIL, "content": ""}]), **fields}).encode()
        for body, status in ((good, 200), (bad, 400)):
            (answer,) = (await exchange(s.url, request(body, secret=s.attacker.secret), quiet=0.3)).answers
            assert answer.status == status
            assert "x-evil" not in answer.headers and b"X-Evil" not in answer.head
            assert b"\r\nX-Evil" not in answer.body


@pytest.mark.parametrize(
    "path", ["a%0d%0aX-Evil:%20yes", "a%00b", "%c0%ae%c0%ae", "..%2f..%2fetc%2fpasswd", "%E2%80%AE", "%ff", "a%2fb"]
)
async def test_a_model_name_in_the_path_is_data(tmp_path, path):
    async with scene(tmp_path, any_model=True) as s:
        target = f"/v1/models/{path}"
        (answer,) = (await exchange(s.url, request(method="GET", target=target, secret=s.attacker.secret), quiet=0.2)).answers
        assert answer.json()["object"] == "model" if answer.status == 200 else bad_error(answer) is None
        assert "x-evil" not in answer.headers and b"X-Evil" not in answer.head


# --- another session's conversation -----------------------------------------------------------------------------------


async def test_another_sessions_conversation_sent_word_for_word_is_a_conversation_of_ones_own(tmp_path):
    async with running(tmp_path) as rig:
        alice, mallory = await rig.session("alice"), await rig.session("mallory")
        rig.engine.core.push(rig.call(path="secret.txt"), rig.ids("it is done"))
        opening = [{"role": "user", "content": "go"}]
        called = await alice.message(opening)
        (call,) = called["tool_calls"]
        talk = [*opening, called, {"role": "tool", "tool_call_id": call["id"], "content": "ok"}]
        told = await alice.ask(talk)
        retry = {"X-Stainless-Retry-Count": "1"}
        stolen = [
            await mallory.ask(messages, headers=headers)
            for messages in (opening, talk, [*talk, told["choices"][0]["message"], {"role": "user", "content": "more"}])
            for headers in (None, retry)
        ]
        assert {a["id"] for a in stolen}.isdisjoint({told["id"]})
        assert "it is done" not in [a["choices"][0]["message"]["content"] for a in stolen]
        turns = rig.turns(mallory.session_id)
        assert all(t.session_id == mallory.session_id and (t.parent is not None or t.fork_reason is not None) for t in turns)
        assert turns[0].fork_reason is ForkReason.NEW
        own = {t.request_id for t in turns}
        assert len(own) == len(turns) and all(r.startswith(f"polar-{mallory.session_id}-") for r in own)
        assert len(rig.turns(alice.session_id)) == 2
        follow = [*talk, told["choices"][0]["message"], {"role": "user", "content": "more"}]
        await alice.ask(follow)
        assert [t.parent for t in rig.turns(alice.session_id)] == [None, 0, 1]


@pytest.mark.parametrize("headers", [None, {"X-Stainless-Retry-Count": "1"}])
async def test_another_sessions_reply_under_way_or_left_is_not_joined_or_replayed(tmp_path, headers):
    async with running(tmp_path, token_delay=0.02, grace_seconds=0.3) as rig:
        alice, mallory = await rig.session("alice"), await rig.session("mallory")
        opening = [{"role": "user", "content": "go"}]
        rig.engine.core.push(rig.ids("a long reply of alice's own"))
        async with alice.stream(opening) as response:
            await response.content.readany()
            rig.engine.core.push(rig.ids("mallory's"))
            under_way = await mallory.message(opening, headers=headers)
            (live,) = rig.proxy.sessions.get(alice.session_id).live
            assert live.readers == 1
            response.close()  # alice's client goes away: within the grace time the reply waits for her, and only for her
        rig.engine.core.push(rig.ids("mallory's"))
        left = await mallory.message([*opening], headers={"X-Stainless-Retry-Count": "1"})
        assert "alice" not in under_way["content"] + left["content"]
        await asyncio.sleep(0.5)  # by now it was given up, and what there was of it recorded
        rig.engine.core.push(rig.ids("mallory's"))
        partial = await mallory.message([{"role": "user", "content": "go"}], max_tokens=50, headers=headers)
        assert "alice" not in partial["content"]
        assert not any(t.continues for t in rig.turns(mallory.session_id))
        assert [t.sample.finish_reason for t in rig.turns(alice.session_id)] == [FinishReason.ABORT]
        assert (await alice.message(opening))["content"].startswith("a long reply"[:3])
