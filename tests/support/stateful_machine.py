# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The stateful test's machine without its rules: the operator's and the clients' side of one life."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, ClassVar

import aiohttp
from hypothesis.stateful import RuleBasedStateMachine

from nemo_polar.engines.script import ScriptedReply
from nemo_polar.tokens.canonical import fingerprints
from nemo_polar.wire.base import Route
from nemo_polar.wire.openai_chat.dialect import OpenAIChat
from tests.support.proxy import TOOLS
from tests.support.scripted_harness import NASTY
from tests.support.stateful import PROXY_LOG, Answer, Engine, Served, Spec, ThreadProxy, World, ask, codec, until
from tests.support.stateful_model import TOTALS, Books, Known, Point, Sent, can_be_taken_up

OTHER_TOOLS = [{"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {"type": "object"}}}]
SYSTEMS = (None, "You help.", "You are a helper of the helper.")
SPOKEN = ("I will look.", "done 🙂", "é\n", "  indented", "x < y && y > z", "")
SETTLE_SECONDS = 25.0
"""Over this, something hangs. Nothing here takes a second by itself."""
SLOW_SECONDS = 0.12
PAUSED_STEPS = 3
LOGGERS = ("nemo_polar", "asyncio")
"""Of a proxy in this process. The scripted engine's server has others; one that is killed has all its own."""


@dataclass(frozen=True)
class Said:
    """What the engine says next."""

    drawn: bool
    """From the hash model: most likely rubbish."""
    thinks: bool
    text: str
    calls: tuple[str, ...]
    broken: bool
    chunk: int


def step(work: Callable[..., None]) -> Callable[..., None]:
    """Around every rule: tidy up before, and if it fails say what had happened."""

    @wraps(work)
    def run(machine: Machine, *args: Any, **kwargs: Any) -> None:
        if time.monotonic() > machine.deadline or machine.broken:
            return
        TOTALS["rules"] += 1
        TOTALS[f"rule {work.__name__}"] += 1
        machine.story.append(f"{work.__name__} {kwargs}")
        try:
            machine.collect()
            if machine.paused and work.__name__ != "resume":
                machine.paused += 1
                if machine.paused > PAUSED_STEPS:
                    machine.go_on_serving(0)
            work(machine, *args, **kwargs)
            machine.collect()
        except BaseException as exc:
            machine.broken = True
            exc.add_note(machine.account())
            raise

    return run


class Machine(Books, RuleBasedStateMachine):
    """One life of an engine, and of one proxy after the other on one journal."""

    codec_name: ClassVar = "tiny"
    deadline: ClassVar = float("inf")
    make_host: ClassVar[Callable[[World], Any]] = ThreadProxy
    world: ClassVar[World]
    root: ClassVar[Path]
    """Holds a folder for each life; those of lives that failed stay."""
    seed: ClassVar[object] = None

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(mkdtemp(prefix="life-", dir=self.root))
        self.codec = codec(self.codec_name)
        self.engine = Engine(self.folder, self.codec_name)
        self.host = type(self).make_host(self.world)
        self.sessions: list[Known] = []
        self.story: list[str] = []
        self.broken = False
        self.served: Served | None = None
        self.version = 0
        self.paused = 0
        """Steps since the weights were taken away; 0 when they are there."""
        self.numbers = 0
        self.log = logging.FileHandler(self.folder / PROXY_LOG)
        self.log.setLevel(logging.WARNING)
        for name in LOGGERS:
            logging.getLogger(name).addHandler(self.log)
        self.http = self.world.run(self._client())
        self.world.run(self.engine.start())

    async def _client(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

    def account(self) -> str:
        story = "\n  ".join(self.story)
        log = (self.folder / PROXY_LOG).read_text()[-2000:]
        return f"seed {self.seed!r}, codec {self.codec_name}, {self.folder}:\n  {story}\n{log}"

    def tell(self, what: str) -> None:
        self.story.append(f"    {what}")

    # --- the operator's side ------------------------------------------------------------------------------------------

    def control(self, method: str, path: str, body: Any = None, *, secret: str | None = None) -> tuple[int, Any]:
        async def call() -> tuple[int, Any]:
            served = self.serving
            headers = {"Authorization": f"Bearer {secret or served.secret}"}
            async with self.http.request(method, served.control + path, json=body, headers=headers) as response:
                return response.status, await response.json()

        return self.world.run(call())

    @property
    def serving(self) -> Served:
        assert self.served is not None
        return self.served

    async def peek_all(self) -> dict[str, Any]:
        async with self.http.get(self.serving.peek) as response:
            return await response.json()

    def peek(self, known: Known) -> dict[str, Any]:
        return self.world.run(self.peek_all())["sessions"][known.id]

    def start_proxy(self) -> None:
        self.served = self.host.start(Spec(str(self.folder), self.engine.url, self.codec_name))
        if self.version or self.paused:
            self.go_on_serving(0)

    def go_on_serving(self, newer: int) -> None:
        self.version += newer
        status, answer = self.control("POST", "/resume", {"weights_version": self.version})
        assert status == 200, answer
        self.paused = 0

    def open(self) -> Known:
        number = len(self.sessions)
        body = {"rollout_id": f"r{number}", "task_id": "t", "group_id": "g"}
        status, answer = self.control("POST", "/sessions", body)
        assert status == 200, answer
        known = Known(number, answer["id"], answer["secret"], f"r{number}")
        self.sessions.append(known)
        TOTALS["sessions"] += 1
        return known

    def some(self, which: int) -> Known:
        """An open session, the youngest for 0; now and then a new one."""
        opened = [s for s in self.sessions if s.life == "open"]
        if not opened or (which % 8 == 7 and len(opened) < 4):
            return self.open()
        return opened[-1 - which % len(opened)]

    # --- a client's side ----------------------------------------------------------------------------------------------

    def text(self, known: Known, nasty: int) -> str:
        self.numbers += 1
        return f"m{known.number}x{self.numbers}m " + NASTY[nasty % len(NASTY)]

    def opening(self, known: Known, form: int) -> list[dict[str, Any]]:
        """A first prompt: every third is one that the whole group sends."""
        system, role = SYSTEMS[form % len(SYSTEMS)], ("system", "developer")[form % 2]
        said = "the task" if form % 3 == 0 else self.text(known, form)
        return [*([{"role": role, "content": system}] if system else []), {"role": "user", "content": said}]

    def echo(self, reply: dict[str, Any], how: str) -> dict[str, Any]:
        """A reply as a harness may send it back without meaning anything by it."""
        message = json.loads(json.dumps(reply))
        message.pop("refusal", None)
        if how == "unreasoned":
            message.pop("reasoning_content", None)
        if how == "trimmed" and message.get("content"):
            message["content"] = message["content"].strip()
        for call in message.get("tool_calls") or () if how == "respaced" else ():
            try:
                value = json.loads(call["function"]["arguments"])
            except ValueError:
                continue
            call["function"]["arguments"] = json.dumps(value, separators=(" ,", ": "))
        return message

    def after(self, known: Known, point: Point, how: str, follow: str, nasty: int) -> list[dict[str, Any]]:
        """The conversation at ``point``, the reply there, and what the harness has to say to it."""
        message = self.echo(point.reply, how)
        new: list[dict[str, Any]] = [
            {"role": "tool", "tool_call_id": c["id"], "content": self.text(known, nasty + i)}
            for i, c in enumerate(message.get("tool_calls") or ())
        ]
        if follow == "reversed":
            new.reverse()
        if follow == "with user" or not new:
            new.append({"role": "user", "content": self.text(known, nasty)})
        return [*point.messages, message, *new]

    def point(self, known: Known, which: int) -> Point:
        """Where a conversation of the session stands, the latest for 0. Held at once when there is none."""
        if not known.points and not self.paused:
            self.wait(self.send(known, self.opening(known, which), TOOLS))
        return known.points[-1 - which % len(known.points)] if known.points else Point([], TOOLS, {}, "", False)

    def replies(self, known: Known, said: Said | None, slow: bool = False, copies: int = 1) -> None:
        """Tell the engine what to say to this session next."""
        if known.id not in self.engine.queues or not known.pending():
            self.engine.queues[known.id] = deque()
        if said is None or said.drawn:
            return
        text = "<think>\nhm\n</think>\n\n" if said.thinks and self.codec_name == "qwen3" else ""
        text += said.text
        for arguments in said.calls:
            text += f'\n<tool_call>\n{{"name": "write", "arguments": {arguments}}}\n</tool_call>'
        text += "\n<tool_call>\n{broken" if said.broken else ""
        ids = self.ids(text + ("." * 30 if slow else ""))
        reply = ScriptedReply(ids, chunk_tokens=said.chunk)
        if slow:
            reply = ScriptedReply(ids, chunk_tokens=1, token_delay=SLOW_SECONDS / len(ids))
        self.engine.queues[known.id].extend([reply] * copies)

    def ids(self, text: str) -> list[int]:
        tokenizer = self.codec.tokenizer  # type: ignore[attr-defined]
        return [*tokenizer.encode(text), tokenizer.token_id("<|im_end|>")]

    def send(
        self,
        known: Known,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]],
        *,
        stream: bool = False,
        limit: dict[str, Any] | None = None,
        onto: Point | None = None,
        retry: bool = False,
        leave_after: int | None = None,
        leaves: bool = False,
        body: bytes | None = None,
    ) -> Sent:
        """Begin a call, and note what may come of it."""
        options = {"stream_options": {"include_usage": True}} if stream else {}
        raw = {"model": "polar", "messages": messages, "stream": stream, **options, **(limit or {})}
        if tools:
            raw["tools"] = tools
        body = body or json.dumps(raw).encode()
        call = OpenAIChat().parse(body, Route("generate")).call
        request = fingerprints(call, self.codec.fingerprint).request.hex()
        # What is there to be taken up may be gone when the call arrives: followed up, or taken by one just like it.
        rivals = [s for s in known.pending() if s.request != request or not retry]
        if rivals or not can_be_taken_up(self.peek(known), request, retry):
            known.draws[request] += 1
        self.numbers += 1
        work = ask(self.http, self.serving.url, known.secret, body, retry=retry, leave_after=leave_after)
        alone = not (retry or leaves or leave_after is not None)
        task = self.world.spawn(work)
        leaves = leaves or leave_after is not None
        sent = Sent(self.numbers, known, messages, tools, body, call, request, onto, alone, task, leaves=leaves)
        known.sent.append(sent)
        TOTALS["calls"] += 1
        return sent

    def again(self, sent: Sent, *, retry: bool, leave_after: int | None = None) -> Sent:
        """The same call, byte for byte."""
        return self.send(
            sent.session, sent.messages, sent.tools, onto=sent.onto, retry=retry, leave_after=leave_after, body=sent.body
        )

    def wait(self, *calls: Sent) -> None:
        """Wait for calls to end, unless the weights are away."""
        if self.paused:
            return
        for sent in calls:
            try:
                self.world.run(ended(sent.task), SETTLE_SECONDS)
            except TimeoutError:
                state = self.world.run(self.peek_all())
                raise AssertionError(f"call {sent.number} hangs: no end within {SETTLE_SECONDS:g} s; {state}") from None
        self.collect()

    def settle(self) -> None:
        self.wait(*(s for known in self.sessions for s in known.pending()))

    def collect(self) -> None:
        """Look at what the calls that have ended since were told."""
        for known in self.sessions:
            for sent in known.pending():
                if sent.task.done():
                    sent.settled = True
                    sent.answer = sent.task.result()
                    self.look_at(sent)

    def look_at(self, sent: Sent) -> None:
        answer, known = sent.answer, sent.session
        got = (answer.error or {}).get("message") or answer.broken or answer.id
        self.tell(f"call {sent.number} of session {known.number}: {answer.status} {got} left={answer.left}")
        assert not answer.left or sent.leaves, f"call {sent.number}: nobody hung up"
        if answer.complete and answer.status == 200 and answer.error is None:
            known.failed.discard(sent.request)
            self.acknowledged(sent)
            return
        self.announced(sent)
        if answer.left:
            return
        if answer.status is not None and answer.error is not None:
            status = answer.status if answer.status != 200 else 503
            gone = status == 401 and known.life != "open"
            assert gone or (status == 503 and sent.may_fail), f"call {sent.number}: {answer.status} {answer.error}"
            assert set(answer.error) == {"message", "type", "param", "code"}, answer.error
            if "engine" in answer.error["message"]:
                known.failed.add(sent.request)
            TOTALS["errors"] += 1
            return
        assert sent.may_fail in ("killed", "stopped"), f"call {sent.number} was cut: {answer}"

    async def accepted(self, sent: Sent) -> bool:
        session = (await self.peek_all())["sessions"][sent.session.id]
        there = any(thing["request"] == sent.request for thing in (*session["live"], *session["turns"]))
        return there or sent.task.done()

    async def noticed(self, sent: Sent) -> bool:
        live = (await self.peek_all())["sessions"][sent.session.id]["live"]
        others = sum(s.request == sent.request for s in sent.session.pending())
        return sum(entry["readers"] for entry in live if entry["request"] == sent.request) <= others

    def see_all_end(self) -> None:
        """All calls of a proxy that is gone have ended, some way."""
        for known in self.sessions:
            for sent in known.pending():
                self.world.run(ended(sent.task), SETTLE_SECONDS)
        self.collect()

    def close(self, known: Known) -> None:
        self.drawn_as_asked(known)
        for sent in known.pending():
            sent.may_fail = "closed"
        known.life = "closed"
        pending = known.pending()
        status, answer = self.control("DELETE", f"/sessions/{known.id}")
        assert status == 200, answer
        self.see_the_end_of(pending)
        known.infra = answer["infra_error"] is not None
        assert not known.failed or known.infra, f"session {known.number}: an engine failure its client saw is not counted"
        assert not known.infra or known.disturbed, (
            f"session {known.number}: {answer['infra_error']}, and nothing was done to it"
        )

    def see_the_end_of(self, calls: list[Sent]) -> None:
        for sent in calls:
            self.world.run(ended(sent.task), SETTLE_SECONDS)
        self.collect()

    def drawn_as_asked(self, *which: Known) -> None:
        """No request was drawn more often than clients asked for."""
        for known in which or [s for s in self.sessions if s.life == "open"]:
            turns = self.peek(known)["turns"]
            for request, times in Counter(t["request"] for t in turns if not t["continues"]).items():
                numbers = [s.number for s in known.sent if s.request == request]
                assert times <= known.draws[request], (
                    f"session {known.number}: calls {numbers} ask for {known.draws[request]} replies, {times} were drawn: "
                    f"{[t for t in turns if t['request'] == request]}"
                )

    # --- the end ------------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        try:
            if not self.broken and self.served is not None:
                try:
                    self.finish()
                except BaseException as exc:
                    self.broken = True
                    exc.add_note(self.account())
                    raise
        finally:
            self.clean_up()

    def finish(self) -> None:
        if self.paused:
            self.go_on_serving(1)
        self.settle()
        self.world.run(until(self.idle, "nothing is under way any more"))
        for known in self.sessions:
            if known.life == "open":
                self.close(known)
        self.host.stop()
        self.served = None
        self.world.run(self.engine.close())
        self.check_all()
        TOTALS["lives"] += 1

    async def idle(self) -> bool:
        state = await self.peek_all()
        return not state["in_flight"] and not any(s["live"] for s in state["sessions"].values())

    def clean_up(self) -> None:
        for name in LOGGERS:
            logging.getLogger(name).removeHandler(self.log)
        self.log.close()
        if self.served is not None:
            self.host.abandon()
            self.served = None
        self.world.run(self.http.close())
        self.world.run(self.engine.close())
        if not self.broken:
            shutil.rmtree(self.folder)


async def ended(task: asyncio.Task[Answer]) -> None:
    await asyncio.wait([task])


async def cancelled(task: asyncio.Task[Answer]) -> None:
    task.cancel()
    await asyncio.wait([task])
