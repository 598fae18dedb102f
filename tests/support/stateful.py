# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What the stateful test stands on: an engine that outlives the proxy, proxies that can be killed, a client on real sockets.

``python -m tests.support.stateful`` is a fork server: for every line of JSON on stdin it forks a child that serves one proxy,
and says on stdout where, and afterwards how it ended.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
from aiohttp import web

from nemo_polar.capture import draw
from nemo_polar.capture.journal import Journal
from nemo_polar.capture.proxy import CaptureProxy
from nemo_polar.engines.base import GenerateRequest
from nemo_polar.engines.script import ScriptedOptions, ScriptedReply
from nemo_polar.engines.scripted_core import ScriptedCore
from nemo_polar.engines.scripted_server import ScriptedServer
from nemo_polar.engines.serve import LocalServer
from nemo_polar.engines.vllm import VllmEngine
from nemo_polar.settings import CaptureSettings, CodecSettings
from nemo_polar.tokens.base import Codec
from nemo_polar.tokens.load import load_codec
from nemo_polar.trajectory.store import ENGINE_LOG, JOURNAL
from nemo_polar.types import FinishReason
from tests.support import models
from tests.support.proxy import joined
from tests.support.tiny import tiny_codec

REPOSITORY = Path(__file__).parents[2]
PROXY_LOG = "proxy.log"
START_SECONDS = 60.0
"""For a fork server to load what it needs: a generous bound, only there so that nothing waits for ever."""
GRACE_SECONDS = 0.15
SETTINGS: dict[str, Any] = {
    "keep_alive_seconds": 0.05,
    "shutdown_seconds": 0.2,
    "grace_seconds": GRACE_SECONDS,
    "call_seconds": 30.0,
    "max_calls_per_session": 64,
}
_T = TypeVar("_T")


@cache
def codec(name: str) -> Codec:
    """``tiny`` or ``qwen3``, loaded once a process."""
    if name == "tiny":
        return tiny_codec()
    return load_codec(CodecSettings(tokenizer=str(models.qwen3()), renderer="qwen3"))


def vocabulary(name: str) -> int:
    return len(codec(name).tokenizer)  # type: ignore[attr-defined]


class World:
    """An event loop in a thread of its own, in which a synchronous test runs coroutines, each with a time limit."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="world", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, _T], seconds: float = 30.0) -> _T:
        """The result of ``work``; ``TimeoutError`` when it takes longer."""
        return asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, seconds), self.loop).result(seconds + 5)

    def spawn(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        async def start() -> asyncio.Task[_T]:
            return asyncio.create_task(work)

        return self.run(start())

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(5)
        self.loop.close()


# --- the engine -------------------------------------------------------------------------------------------------------


class Engine:
    """The scripted engine behind vLLM's API. It lives as long as the test, keeps its own log, and can be restarted."""

    def __init__(self, folder: Path, codec_name: str) -> None:
        options = ScriptedOptions(
            vocab=vocabulary(codec_name),
            max_context=200_000,
            reply_tokens=(2, 12),
            stop_token_ids=codec(codec_name).stop_token_ids,
        )
        self.core = ScriptedCore(self._reply, log=folder / ENGINE_LOG, options=options)
        self.queues: dict[str, deque[ScriptedReply]] = {}
        """Session id to its next replies; a session without any is answered by the hash model."""
        self._port = 0
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def _reply(self, request: GenerateRequest) -> ScriptedReply | None:
        queue = self.queues.get(request.request_id.split("-")[1])
        return queue.popleft() if queue else None

    async def start(self) -> None:
        app = ScriptedServer(self.core).app
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.01)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Cut every connection."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def close(self) -> None:
        self.core.resume()
        await self.stop()
        self.core.close()


# --- the proxy --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spec:
    """What to serve."""

    folder: str
    engine: str
    codec: str


def peek(proxy: CaptureProxy) -> dict[str, Any]:
    """What a proxy has under way and what it remembers, as plain data."""
    sessions = {}
    for session in proxy.sessions:
        tree = session.tree
        sessions[session.id] = {
            "live": [
                {
                    "request": live.request.hex(),
                    "readers": live.readers,
                    "failed": live.error is not None,
                    "turns": [t.id for t in live.turns],
                }
                for live in session.live
            ],
            "turns": [
                {
                    "id": turn.id,
                    "request": tree._anchors[turn.id].request.hex(),
                    "children": tree._children[turn.id],
                    "aborted": turn.sample.finish_reason is FinishReason.ABORT,
                    "delivered": turn.delivered,
                    "continues": turn.continues,
                }
                for turn in tree.turns
            ],
        }
    return {"in_flight": proxy.status()["calls_in_flight"], "sessions": sessions}


async def start_proxy(spec: Spec) -> CaptureProxy:
    engine = VllmEngine(spec.engine, probe=False, idle_timeout=1.0)
    journal = Journal(Path(spec.folder) / JOURNAL)
    proxy = CaptureProxy(CaptureSettings(**SETTINGS), codec=codec(spec.codec), engine=engine, journal=journal)
    await proxy.start()
    return proxy


@dataclass(frozen=True)
class Served:
    """Where a proxy is to be found."""

    url: str
    control: str
    secret: str
    peek: str
    pid: int

    @classmethod
    def of(cls, proxy: CaptureProxy, peek_url: str) -> Served:
        assert proxy.control_url is not None
        return cls(proxy.url, proxy.control_url, proxy.control_secret, peek_url, os.getpid())


def peek_server(proxy: CaptureProxy) -> LocalServer:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response(peek(proxy))

    app = web.Application()
    app.router.add_get("/", answer)
    return LocalServer(app)


class ThreadProxy:
    """A proxy in the world's own loop, so that it can be monkeypatched. It cannot be killed, only stopped."""

    killable = False

    def __init__(self, world: World) -> None:
        self._world = world
        self._proxy: CaptureProxy | None = None
        self._peek: LocalServer | None = None

    def start(self, spec: Spec) -> Served:
        async def start() -> Served:
            self._proxy = await start_proxy(spec)
            self._peek = peek_server(self._proxy)
            return Served.of(self._proxy, await self._peek.start())

        return self._world.run(start())

    def stop(self) -> None:
        async def stop() -> None:
            assert self._proxy is not None and self._peek is not None
            await self._peek.stop()
            await self._proxy.stop()

        self._world.run(stop())

    def abandon(self) -> None:
        """End it after a failure, however it is."""
        with suppress(Exception):
            self.stop()


class ForkedProxy:
    """Proxies in processes of their own, one at a time, forked from one that has everything loaded."""

    killable = True

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.support.stateful"],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        self._pid = 0
        self._unread = b""

    def start(self, spec: Spec) -> Served:
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(asdict(spec)).encode() + b"\n")
        served = Served(**self._line(START_SECONDS))
        self._pid = served.pid
        return served

    def stop(self) -> None:
        """Ask it to end; it has to, and without an error."""
        assert self._end(signal.SIGTERM) == 0, "the proxy did not end cleanly"

    def kill(self) -> None:
        assert self._end(signal.SIGKILL) == -signal.SIGKILL, "the proxy had died by itself"

    def abandon(self) -> None:
        """End it after a failure, however it is."""
        if self._pid:
            self._end(signal.SIGKILL)

    def close(self) -> None:
        self.abandon()
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait(10)

    def _end(self, number: signal.Signals) -> int:
        pid, self._pid = self._pid, 0
        if not self._said(0.0):  # else it has ended already, and the id may be somebody else's by now
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        return self._line(30.0)["exited"]

    def _said(self, seconds: float) -> bool:
        assert self._server.stdout is not None
        return bool(self._unread) or bool(select.select([self._server.stdout], [], [], seconds)[0])

    def _line(self, seconds: float) -> Any:
        assert self._server.stdout is not None
        while b"\n" not in self._unread:
            ready = select.select([self._server.stdout], [], [], seconds)[0]
            data = os.read(self._server.stdout.fileno(), 65536) if ready else b""
            assert data, f"the fork server said nothing within {seconds:g} s"
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return json.loads(line)


async def _serve(spec: Spec) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    proxy = await start_proxy(spec)
    async with peek_server(proxy) as server:
        print(json.dumps(asdict(Served.of(proxy, server.url))), flush=True)
        await stop.wait()
    await proxy.stop()


def _child(spec: Spec) -> int:
    import uvloop

    with (Path(spec.folder) / PROXY_LOG).open("a") as log:
        os.dup2(log.fileno(), 2)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(spec))
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def main() -> None:
    be_quick(setattr)
    for line in sys.stdin:
        spec = Spec(**json.loads(line))
        codec(spec.codec)  # loaded once, inherited by all
        pid = os.fork()
        if pid == 0:
            code = _child(spec)
            sys.stderr.flush()
            os._exit(code)
        _, status = os.waitpid(pid, 0)
        print(json.dumps({"exited": os.waitstatus_to_exitcode(status)}), flush=True)


def be_quick(set_attribute: Callable[[object, str, object], None]) -> None:
    """Ask a failing engine again after milliseconds: the waits are not what is tested, and there are many."""
    assert hasattr(draw, "_BACKOFF_SECONDS")
    set_attribute(draw, "_BACKOFF_SECONDS", 0.01)


# --- the client -------------------------------------------------------------------------------------------------------


@dataclass
class Answer:
    """What a client has of a reply when its call ends, however that was."""

    status: int | None = None
    """None: no head came."""
    complete: bool = False
    """The whole body, or the terminal event of the stream, has come: the reply is acknowledged."""
    id: str = ""
    message: dict[str, Any] = field(default_factory=dict)
    usage: dict[str, Any] | None = None
    finish: str | None = None
    error: dict[str, Any] | None = None
    broken: str | None = None
    """How the connection was lost."""
    left: bool = False
    """The client hung up by itself."""


async def ask(
    http: aiohttp.ClientSession,
    url: str,
    secret: str,
    body: bytes,
    *,
    retry: bool = False,
    leave_after: int | None = None,
) -> Answer:
    """One call. With ``leave_after``, hang up after so many reads of the answer (0: once its head is there)."""
    answer = Answer()
    headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
    if retry:
        headers["x-stainless-retry-count"] = "1"
    raw, streamed = b"", False
    try:
        async with http.post(url + "/v1/chat/completions", data=body, headers=headers) as response:
            answer.status, streamed = response.status, response.content_type == "text/event-stream"
            reads = 0
            while True:
                if leave_after is not None and reads >= leave_after:
                    answer.left = True
                    response.close()
                    break
                piece = await response.content.readany()
                if not piece:
                    answer.complete = not streamed
                    break
                raw += piece
                reads += 1
    except (aiohttp.ClientError, ConnectionError) as exc:
        answer.broken = repr(exc)
    except asyncio.CancelledError:
        answer.left = True
    _read(answer, raw, streamed=streamed)
    return answer


def _read(answer: Answer, raw: bytes, *, streamed: bool) -> None:
    if not streamed:
        if answer.complete:
            body = json.loads(raw)
            answer.error = body.get("error")
            if answer.status == 200:
                choice = body["choices"][0]
                answer.id, answer.message, answer.usage = body["id"], choice["message"], body["usage"]
                answer.finish = choice["finish_reason"]
        return
    whole = raw[: raw.rfind(b"\n") + 1]  # a line that was cut is no event
    stream = joined(whole)
    answer.error, answer.complete = stream.get("error"), stream["done"]
    answer.id, answer.finish = stream["id"] or "", stream["finish"]
    answer.message = {"role": "assistant", "content": stream["content"]}
    if stream["reasoning"]:
        answer.message["reasoning_content"] = stream["reasoning"]
    if stream["calls"]:
        answer.message["tool_calls"] = [{k: v for k, v in c.items() if k != "index"} for c in stream["calls"]]
    for line in whole.decode().splitlines():
        if line.startswith('data: {"') and json.loads(line[6:]).get("usage"):
            answer.usage = json.loads(line[6:])["usage"]


async def until(condition: Callable[[], Awaitable[bool]], what: str, seconds: float = 15.0) -> None:
    """Wait for ``condition``; fail when it does not come true."""
    try:
        async with asyncio.timeout(seconds):
            while not await condition():  # noqa: ASYNC110 (what is waited for has no event here)
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"not within {seconds:g} s: {what}") from None


if __name__ == "__main__":
    main()
