# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The rules, held by a real proxy whatever clients, engine and operator do, in any order.

A state machine of hypothesis drives a proxy over real sockets, in a process that is killed now and then, in front of a scripted
engine that keeps its own log. What the model here knows is what clients were told. A reply that a client has in full must be
in the journal as the engine's log has it, extend what was sampled before, and be trained once; everything sampled must be
accounted for; nothing may hang, leak between sessions, or be drawn a second time for one client.

``make soak`` runs it for an hour (POLAR_SOAK_SECONDS). A failure prints the steps, what came of each, and the seed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, ClassVar

import aiohttp
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from nemo_polar.capture.calls import Calls
from nemo_polar.capture.draw import _Run
from nemo_polar.capture.journal import Journal, JournalReader
from nemo_polar.engines.hash_policy import HashPolicy
from nemo_polar.engines.log import EngineCall, read_engine_log
from nemo_polar.engines.script import Fault, ScriptedReply
from nemo_polar.settings import TracePolicy
from nemo_polar.tokens.canonical import fingerprints
from nemo_polar.trajectory.audit import Auditor, Code
from nemo_polar.trajectory.build import build_traces
from nemo_polar.trajectory.kinds import classify
from nemo_polar.trajectory.store import ENGINE_LOG, JOURNAL
from nemo_polar.types import FinishReason, ForkReason, MaskReason, ModelCall, Status, Trajectory, Turn
from nemo_polar.wire.base import Route
from nemo_polar.wire.openai_chat import OpenAIChat
from tests import test_mutations as mutations
from tests.support import models
from tests.support.proxy import TOOLS
from tests.support.scripted_harness import ARGUMENTS, NASTY
from tests.support.stateful import (
    GRACE_SECONDS,
    PROXY_LOG,
    Answer,
    Engine,
    ForkedProxy,
    Served,
    Spec,
    ThreadProxy,
    World,
    ask,
    be_quick,
    codec,
    until,
    vocabulary,
)

OTHER_TOOLS = [{"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {"type": "object"}}}]
SYSTEMS = (None, "You help.", "You are a helper of the helper.")
SPOKEN = ("I will look.", "done 🙂", "é\n", "  indented", "x < y && y > z", "")
SETTLE_SECONDS = 25.0
"""Over this, something hangs. Nothing here takes a second by itself."""
SLOW_SECONDS = 0.12
PAUSED_STEPS = 3
LOGGERS = ("nemo_polar", "asyncio")
"""Of a proxy in this process. The scripted engine's server has others; one that is killed has all its own."""
TOTALS: Counter[str] = Counter()
"""Over all runs of this process: rules run, calls made, replies acknowledged..."""

pick = st.integers(0, 1000)
streamed = st.booleans()
waited = st.sampled_from([True, True, True, False])
limits = st.sampled_from([{}, {}, {}, {"max_tokens": 5}, {"max_tokens": 60}, {"stop": ["lo"]}])
echoes = st.sampled_from(["verbatim", "respaced", "unreasoned", "trimmed"])
follows = st.sampled_from(["results", "reversed", "with user"])


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


saids = st.builds(
    Said,
    drawn=st.sampled_from([False, False, False, True]),
    thinks=st.booleans(),
    text=st.sampled_from(SPOKEN),
    calls=st.lists(st.sampled_from(ARGUMENTS), max_size=2).map(tuple),
    broken=st.sampled_from([False] * 7 + [True]),
    chunk=st.sampled_from([1, 7, 1000]),
)


@dataclass(eq=False)
class Point:
    """A place in a conversation: a request and the reply to it, which the client can go on from."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    reply: dict[str, Any]
    reply_id: str
    faithful: bool
    """Every reply in ``messages`` is one of ours, as it was: what goes on from here must be bridged."""


@dataclass(eq=False)
class Sent:
    """One call of a client."""

    number: int
    session: Known
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    body: bytes
    call: ModelCall
    request: str
    """Fingerprint of the whole request, in hex."""
    onto: Point | None
    """What it goes on from, if it leaves all before as it was."""
    alone: bool
    """Plain and answered to a client that stays: its reply is nobody else's."""
    task: asyncio.Task[Answer]
    may_fail: str = ""
    """Why an error, or no answer at all, would be right."""
    leaves: bool = False
    settled: bool = False
    answer: Answer = field(default_factory=Answer)


@dataclass(eq=False)
class Known:
    """A session, as its client knows it."""

    number: int
    id: str
    secret: str
    rollout_id: str
    life: str = "open"
    """``open``, ``closed``, ``killed`` or ``stopped``."""
    points: list[Point] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)
    draws: Counter[str] = field(default_factory=Counter)
    """How often a request may have been drawn afresh."""
    given: dict[str, Sent] = field(default_factory=dict)
    """Acknowledged replies by id."""
    failed: set[str] = field(default_factory=set)
    """Requests whose last answer was that the engine had failed."""
    disturbed: bool = False
    """Something was done to it that may fail a call nobody sees the end of."""
    infra: bool = False
    shown: set[int] = field(default_factory=set)
    """Other sessions whose text its own client has sent."""

    def pending(self) -> list[Sent]:
        return [s for s in self.sent if not s.settled]


def step(work: Callable[..., None]) -> Callable[..., None]:
    """Around every rule: tidy up before, and if it fails say what had happened."""

    @wraps(work)
    def run(machine: Polar, *args: Any, **kwargs: Any) -> None:
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


class Polar(RuleBasedStateMachine):
    """One life of an engine, and of one proxy after the other on one journal."""

    codec_name: ClassVar = "tiny"
    deadline: ClassVar = float("inf")
    make_host: ClassVar[Callable[[World], Any]] = ThreadProxy
    world: ClassVar[World]
    seed: ClassVar[object] = None

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(mkdtemp(prefix="polar-stateful-"))
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
        self.openings = 0
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

    async def _peek(self) -> dict[str, Any]:
        async with self.http.get(self.serving.peek) as response:
            return await response.json()

    def peek(self, known: Known) -> dict[str, Any]:
        return self.world.run(self._peek())["sessions"][known.id]

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
        """An open session, the youngest for 0; opened when there is none."""
        opened = [s for s in self.sessions if s.life == "open"]
        return opened[-1 - which % len(opened)] if opened else self.open()

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
        others = [s for s in known.pending() if s.request != request]
        if not can_be_taken_up(self.peek(known), request, retry) or others:
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
                self.world.run(_ended(sent.task), SETTLE_SECONDS)
            except TimeoutError:
                state = self.world.run(self._peek())
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
        got = answer.id or (answer.error or {}).get("message") or answer.broken
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

    # --- what an answer has to be -------------------------------------------------------------------------------------

    def journal(self, known: Known) -> list[Turn]:
        with JournalReader(self.folder / JOURNAL) as reader:
            return reader.turns(known.id)

    def announced(self, sent: Sent) -> None:
        """A harness may run a call as soon as it has it: its turn is on disk by then, though the reply did not all arrive."""
        for call in sent.answer.message.get("tool_calls") or ():
            made = [c.id for t in self.journal(sent.session) for c in t.reply.tool_calls]
            assert call["id"] in made, f"call {sent.number}: tool call {call} was announced and is not in the journal"
            TOTALS["calls announced by replies that did not arrive"] += 1

    def acknowledged(self, sent: Sent) -> None:
        """Rule 5, and what can be said of a reply at once: content, usage, place."""
        answer, known = sent.answer, sent.session
        TOTALS["acknowledged"] += 1
        turns = self.journal(known)
        chain = self.chain(turns, answer.id.removeprefix("chatcmpl-"))
        where = f"call {sent.number}, turns {[t.id for t in chain]} of session {known.number}"
        last, ids = chain[-1], np.concatenate([t.sample.token_ids for t in chain])
        if sent.alone:
            before = known.given.get(answer.id)
            assert before is None or not before.alone, f"{where}: two clients were given one reply"
        known.given[answer.id] = sent
        strangers = [s.number for s in self.sessions if s is not known and answer.id in s.given]
        assert not strangers, f"{where}: sessions {strangers} were given the same reply"

        calls = [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in answer.message.get("tool_calls") or ()]
        assert (answer.message.get("content") or "") == last.reply.text, where
        assert (answer.message.get("reasoning_content") or "") == (last.reply.reasoning or ""), where
        assert calls == [(c.id, c.name, c.arguments) for c in last.reply.tool_calls], where
        asked, prompt = sent.call, prompt_of(turns, chain[0])
        parser = self.codec.parser(prompt, asked.tools, stop=asked.sampling.stop, parse_calls=bool(asked.tools))
        parser.feed(ids)
        parser.finish(last.sample.finish_reason)
        again = parser.message()
        assert (again.text, again.reasoning) == (last.reply.text, last.reply.reasoning), f"{where}: not what was sampled"
        assert [(c.name, c.arguments) for c in again.tool_calls] == [(n, a) for _, n, a in calls], where

        assert answer.usage is not None
        counts = (answer.usage["prompt_tokens"], answer.usage["completion_tokens"])
        assert counts == (len(prompt), len(ids)), f"{where}: usage {counts}"
        limit = json.loads(sent.body).get("max_tokens")
        assert limit is None or len(ids) <= limit, where

        self.placed(sent, turns, chain, where)
        point = Point(sent.messages, sent.tools, answer.message, answer.id, last.sample.stop is None)
        known.points.append(point)

    def chain(self, turns: list[Turn], call_id: str) -> list[Turn]:
        """The turns that make up an acknowledged reply, oldest first."""
        found = [t for t in turns if t.call_id == call_id and t.sample.finish_reason is not FinishReason.ABORT]
        assert len(found) == 1, f"acknowledged reply {call_id} is {len(found)} times in the journal"
        chain = found
        while chain[0].continues:
            assert chain[0].parent is not None
            chain = [turns[chain[0].parent], *chain]
        return chain

    def placed(self, sent: Sent, turns: list[Turn], chain: list[Turn], where: str) -> None:
        """An append extends what was sampled; a root is the whole conversation rendered; the new text is in the prompt."""
        first = chain[0]
        decoded = self.decode(first.prompt_delta)
        content = sent.messages[-1]["content"]
        marker = content.split()[0] if content.startswith("m") else ""
        assert marker in decoded, f"{where}: {marker!r} is not in {decoded!r}"
        if first.parent is None:
            rendered = self.codec.render(sent.call.messages, sent.call.tools)
            assert np.array_equal(first.prompt_delta, rendered), f"{where}: the root is not the conversation rendered"
        TOTALS["bridged" if first.parent is not None else "roots"] += 1
        if sent.onto is None or not sent.onto.faithful:
            return
        TOTALS["exact appends"] += 1
        onto = sent.session.given[sent.onto.reply_id]
        want = self.chain(turns, sent.onto.reply_id.removeprefix("chatcmpl-"))[-1]
        if first.parent is None:
            assert first.fork_reason is ForkReason.BRIDGE, f"{where}: {first.fork_reason} for an append to call {onto.number}"
            TOTALS["appends the codec could not bridge"] += 1
            return
        parent = turns[first.parent]
        same = parent.id == want.id or (parent.reply.text, arguments(parent)) == (want.reply.text, arguments(want))
        assert same, f"{where}: extends turn {parent.id}, not {want.id}"

    def decode(self, ids: Any) -> str:
        return self.codec.tokenizer.decode(ids.tolist())  # type: ignore[attr-defined]

    # --- rules: conversations -----------------------------------------------------------------------------------------

    @initialize()
    @step
    def begin(self) -> None:
        self.start_proxy()
        self.open()

    @rule()
    @step
    def open_session(self) -> None:
        if sum(s.life == "open" for s in self.sessions) < 4:
            self.open()

    @rule(which=pick, form=pick, stream=streamed, said=saids, limit=limits, wait=waited)
    @step
    def first(self, which, form, stream, said, limit, wait) -> None:
        known = self.some(which)
        self.replies(known, said)
        sent = self.send(known, self.opening(known, form), TOOLS, stream=stream, limit=limit)
        if wait:
            self.wait(sent)

    @rule(
        which=pick, at=st.integers(0, 2), how=echoes, follow=follows, nasty=pick, stream=streamed, said=saids, limit=limits,
        wait=waited,
    )  # fmt: skip
    @step
    def append(self, which, at, how, follow, nasty, stream, said, limit, wait) -> None:
        self._append(which, at, how, follow, nasty, stream, said, limit, wait)

    @rule(which=pick, times=st.integers(2, 5), how=echoes, follow=follows, nasty=pick, stream=streamed, said=saids)
    @step
    def converse(self, which, times, how, follow, nasty, stream, said) -> None:
        for turn in range(times):
            self._append(which, 0, how, follow, nasty + turn, stream, said, {}, True)

    @rule(which=pick, at=pick, how=echoes, nasty=pick, stream=streamed, said=saids)
    @step
    def fork_back(self, which, at, how, nasty, stream, said) -> None:
        self._append(which, at, how, "with user", nasty, stream, said, {}, True)

    def _append(self, which, at, how, follow, nasty, stream, said, limit, wait) -> None:
        known = self.some(which)
        point = self.point(known, at)
        if not point.reply:
            return
        self.replies(known, said)
        messages = self.after(known, point, how, follow, nasty)
        sent = self.send(known, messages, point.tools, stream=stream, limit=limit, onto=point)
        if wait:
            self.wait(sent)

    @rule(which=pick, at=pick, copies=st.integers(2, 3), stream=streamed, said=saids, slow=st.booleans(), wait=waited)
    @step
    def parallel(self, which, at, copies, stream, said, slow, wait) -> None:
        known = self.some(which)
        point = self.point(known, at)
        if not point.reply:
            return
        self.replies(known, said, slow, copies)
        messages = self.after(known, point, "verbatim", "results", at)
        calls = [self.send(known, messages, point.tools, stream=stream, onto=point) for _ in range(copies)]
        if wait:
            self.wait(*calls)

    @rule(which=pick, at=pick, where=pick, nasty=pick, drop=st.booleans(), stream=streamed)
    @step
    def edit(self, which, at, where, nasty, drop, stream) -> None:
        """Change an old message, or leave one exchange out."""
        known = self.some(which)
        point = self.point(known, at)
        if not point.reply:
            return
        messages = self.after(known, point, "verbatim", "with user", nasty)
        replies = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
        first = replies[where % len(replies)]
        until = next((i for i in replies if i > first), len(messages) - 1)
        if drop:
            messages = messages[:first] + messages[until:]
        else:
            edited = json.loads(json.dumps(messages))
            edited[first]["content"] = "edited " + self.text(known, nasty)
            messages = edited
        self.replies(known, None)
        self.wait(self.send(known, messages, point.tools, stream=stream))

    @rule(which=pick, at=pick, nasty=pick)
    @step
    def change_tools(self, which, at, nasty) -> None:
        known = self.some(which)
        point = self.point(known, at)
        if not point.reply:
            return
        self.replies(known, None)
        messages = self.after(known, point, "verbatim", "results", nasty)
        self.wait(self.send(known, messages, [*TOOLS, *OTHER_TOOLS]))

    @rule(which=pick, nasty=pick, said=saids, tools=st.sampled_from([[], OTHER_TOOLS]))
    @step
    def subagent(self, which, nasty, said, tools) -> None:
        known = self.some(which)
        self.replies(known, said)
        system = {"role": "system", "content": "You are asked one thing."}
        self.wait(self.send(known, [system, {"role": "user", "content": self.text(known, nasty)}], tools))

    @rule(which=pick, at=pick, nasty=pick, said=saids)
    @step
    def compact(self, which, at, nasty, said) -> None:
        """Ask for a summary over the history, then begin afresh from it."""
        known = self.some(which)
        point = self.point(known, at)
        if not point.reply or self.paused:
            return
        spoken = [m for m in point.messages if m["role"] in ("system", "developer", "user")]
        ask_for = {"role": "user", "content": self.text(known, nasty)}
        plain = {"role": "assistant", "content": point.reply.get("content") or "-"}
        self.replies(known, None)
        self.wait(self.send(known, [*spoken, plain, ask_for], []))
        self.replies(known, said)
        summary = {"role": "user", "content": self.text(known, nasty) + " this is what was done so far"}
        self.wait(self.send(known, [*(m for m in spoken[:1] if m["role"] != "user"), summary], TOOLS))

    # --- rules: connections -------------------------------------------------------------------------------------------

    @rule(
        which=pick, at=st.integers(0, 3), after=st.sampled_from(["sending", "accepted", "head", "bytes", "more"]), said=saids,
        back=st.sampled_from(["no", "at once", "noticed", "late"]), header=st.booleans(), slow=st.booleans(),
    )  # fmt: skip
    @step
    def hang_up(self, which, at, after, said, back, header, slow) -> None:
        """Leave a call at some point, and come back or not."""
        known = self.some(which)
        point = self.point(known, at)
        messages = self.after(known, point, "verbatim", "results", at) if point.reply else self.opening(known, at)
        tools, onto = (point.tools, point) if point.reply else (TOOLS, None)
        self.replies(known, said, slow)
        reads = {"head": 0, "bytes": 1, "more": 3}.get(after)
        if self.paused or reads is None:
            sent = self.send(known, messages, tools, stream=True, onto=onto, leaves=True)
            if after != "sending":
                self.world.run(until(lambda: self._accepted(sent), "the call is accepted"))
            self.world.run(_cancelled(sent.task))
        else:
            sent = self.send(known, messages, tools, stream=True, onto=onto, leave_after=reads)
            self.wait(sent)
        self.collect()
        if back == "no":
            return
        if back != "at once":
            self.world.run(until(lambda: self._noticed(sent), "the proxy notices that the client has gone"))
        if back == "late":
            time.sleep(GRACE_SECONDS * 1.2)
        self.wait(self.again(sent, retry=header))

    async def _accepted(self, sent: Sent) -> bool:
        session = (await self._peek())["sessions"][sent.session.id]
        there = any(thing["request"] == sent.request for thing in (*session["live"], *session["turns"]))
        return there or sent.task.done()

    async def _noticed(self, sent: Sent) -> bool:
        live = (await self._peek())["sessions"][sent.session.id]["live"]
        others = sum(s.request == sent.request for s in sent.session.pending())
        return sum(entry["readers"] for entry in live if entry["request"] == sent.request) <= others

    @rule(which=pick, whose=pick, call=pick, header=st.booleans())
    @step
    def same_words(self, which, whose, call, header) -> None:
        """What another session has sent, byte for byte: it must be drawn for this one, whatever became of it there."""
        known, other = self.some(which), self.sessions[whose % len(self.sessions)]
        if other is known or not other.sent:
            return
        theirs = other.sent[-1 - call % len(other.sent)]
        known.shown |= {other.number, *other.shown}
        self.wait(self.send(known, theirs.messages, theirs.tools, retry=header, body=theirs.body))

    @rule(which=pick, call=pick, header=st.booleans(), times=st.integers(1, 2))
    @step
    def retry(self, which, call, header, times) -> None:
        """Send again what was sent before, whatever came of it."""
        known = self.some(which)
        if not known.sent:
            return
        sent = known.sent[-1 - call % min(len(known.sent), 6)]
        self.wait(*(self.again(sent, retry=header) for _ in range(times)))

    # --- rules: engine and operator -----------------------------------------------------------------------------------

    @rule(
        which=pick, at=st.integers(0, 2), fault=st.sampled_from([f for f in Fault if f is not Fault.HANG] + [Fault.HANG]),
        times=st.sampled_from([1, 1, 2, 4]), after=st.integers(0, 9), said=saids, stream=streamed, back=st.booleans(),
    )  # fmt: skip
    @step
    def fault(self, which, at, fault, times, after, said, stream, back) -> None:
        """The engine goes wrong, perhaps so often that the client must be told."""
        known = self.some(which)
        point = self.point(known, at)
        if not point.reply or self.paused or known.pending():
            return
        self.replies(known, None)
        times = 1 if fault is Fault.HANG else times
        ids = self.ids("this goes wrong at some point")
        self.engine.queues[known.id].extend([ScriptedReply(ids, fault=fault, fault_after=after)] * times)
        messages = self.after(known, point, "verbatim", "results", at)
        sent = self.send(known, messages, point.tools, stream=stream, onto=point)
        sent.may_fail = "fault"
        known.disturbed = True
        self.wait(sent)
        self.replies(known, said)
        if back:
            self.wait(self.again(sent, retry=True))

    @rule()
    @step
    def pause(self) -> None:
        if not self.paused:
            status, answer = self.control("POST", "/pause")
            assert status == 200, answer
            self.paused = 1

    @rule(newer=st.integers(0, 2))
    @step
    def resume(self, newer) -> None:
        if self.paused:
            self.go_on_serving(newer)

    @rule(which=pick, at=pick, calls=st.integers(1, 3), said=saids, newer=st.integers(0, 2), stream=streamed, delay=pick)
    @step
    def update_weights(self, which, at, calls, said, newer, stream, delay) -> None:
        """New weights while calls run."""
        if self.paused:
            return
        begun = self.slow_calls(which, at, calls, said, stream)
        time.sleep(delay / 1000 * SLOW_SECONDS)
        status, answer = self.control("POST", "/pause")
        assert status == 200, answer
        self.paused = 1
        self.go_on_serving(newer)
        self.wait(*begun)

    def slow_calls(self, which, at, calls, said, stream) -> list[Sent]:
        begun = []
        for n in range(calls):
            known = self.some(which + n)
            point = self.point(known, at)
            if point.reply:
                self.replies(known, said, slow=True)
                messages = self.after(known, point, "verbatim", "results", at)
                begun.append(self.send(known, messages, point.tools, stream=stream, onto=point))
        return begun

    @rule(which=pick, at=pick, calls=st.integers(0, 3), said=saids, stream=streamed, delay=pick)
    @step
    def restart_engine(self, which, at, calls, said, stream, delay) -> None:
        begun = self.slow_calls(which, at, calls, said, stream)
        time.sleep(delay / 1000 * SLOW_SECONDS)
        for known in self.sessions:
            known.disturbed = True
            for sent in known.pending():
                sent.may_fail = sent.may_fail or "engine restarted"
        self.world.run(self.engine.stop())
        self.world.run(self.engine.start())
        self.wait(*begun)

    @rule(which=pick, at=pick, calls=st.integers(0, 3), said=saids, stream=streamed, delay=pick, ask=st.booleans())
    @step
    def crash(self, which, at, calls, said, stream, delay, ask) -> None:
        """The proxy is killed with calls under way (or ends in good order), and another takes up its journal."""
        self.slow_calls(which, at, calls, said, stream)
        time.sleep(delay / 1000 * SLOW_SECONDS)
        kill = self.host.killable and not ask
        if not kill:
            self.quiesce_checks()
        for known in self.sessions:
            if known.life == "open":
                known.life = "killed" if kill else "stopped"
            for sent in known.pending():
                sent.may_fail = known.life
        if kill:
            self.host.kill()
        else:
            self.host.stop()
        TOTALS["kills" if kill else "stops"] += 1
        self.paused = self.paused and 1
        self.ended()
        for known in self.sessions:  # what was acknowledged before is there still
            turns = self.journal(known) if known.given else []
            for reply_id in known.given:
                self.chain(turns, reply_id.removeprefix("chatcmpl-"))
        self.start_proxy()
        self.open()

    def ended(self) -> None:
        """All calls of a proxy that is gone have ended, some way."""
        for known in self.sessions:
            for sent in known.pending():
                self.world.run(_ended(sent.task), SETTLE_SECONDS)
        self.collect()

    @rule(which=pick)
    @step
    def close_session(self, which) -> None:
        self.close(self.some(which))

    def close(self, known: Known) -> None:
        self.quiesce_checks(known)
        for sent in known.pending():
            sent.may_fail = "closed"
        known.life = "closed"
        pending = known.pending()
        status, answer = self.control("DELETE", f"/sessions/{known.id}")
        assert status == 200, answer
        self.collect_ended(pending)
        known.infra = answer["infra_error"] is not None
        assert not known.failed or known.infra, f"session {known.number}: an engine failure its client saw is not counted"
        assert not known.infra or known.disturbed, (
            f"session {known.number}: {answer['infra_error']}, and nothing was done to it"
        )

    def collect_ended(self, calls: list[Sent]) -> None:
        for sent in calls:
            self.world.run(_ended(sent.task), SETTLE_SECONDS)
        self.collect()

    def quiesce_checks(self, *which: Known) -> None:
        """No request was drawn more often than clients asked for."""
        for known in which or [s for s in self.sessions if s.life == "open"]:
            drawn = Counter(t["request"] for t in self.peek(known)["turns"] if not t["continues"])
            for request, times in drawn.items():
                numbers = [s.number for s in known.sent if s.request == request]
                assert times <= known.draws[request], (
                    f"session {known.number}: calls {numbers} ask for {known.draws[request]} replies, {times} were drawn"
                )

    # --- rules: those who have no business here -----------------------------------------------------------------------

    @rule(which=pick, kind=st.sampled_from(["dead", "expired", "made up", "another's id", "none", "control"]))
    @step
    def intrude(self, which, kind) -> None:
        known = self.some(which)
        dead = [s.secret for s in self.sessions if s.life != "open"]
        secret = {"dead": dead[which % len(dead)] if dead else "sk-polar-x", "another's id": known.id, "none": ""}.get(kind)
        if kind == "control":
            status, answer = self.control("GET", f"/sessions/{known.id}", secret=known.secret)
            assert (status, set(answer)) == (401, {"error"}), answer
            return
        if kind == "expired":
            body = {"rollout_id": f"x{self.numbers}", "task_id": "t", "group_id": "g", "seconds": 0.001}
            secret = self.control("POST", "/sessions", body)[1]["secret"]
            time.sleep(0.01)
        before = self.world.run(self._peek())
        body = json.dumps({"model": "polar", "messages": self.opening(known, 1)}).encode()
        answer = self.world.run(ask(self.http, self.serving.url, secret or "sk-polar-made-up", body))
        assert (answer.status, (answer.error or {}).get("code")) == (401, "invalid_api_key"), answer
        if not any(s.pending() for s in self.sessions):
            assert self.world.run(self._peek()) == before
        TOTALS["refused intruders"] += 1

    @rule()
    @step
    def wait_for_all(self) -> None:
        self.settle()

    # --- the end ------------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        try:
            if not self.broken and self.served is not None:
                try:
                    self.finish()
                except BaseException as exc:
                    exc.add_note(self.account())
                    raise
        finally:
            self.clean_up()

    def finish(self) -> None:
        if self.paused:
            self.go_on_serving(1)
        self.settle()
        self.world.run(until(self._idle, "nothing is under way any more"))
        for known in self.sessions:
            if known.life == "open":
                self.close(known)
        self.host.stop()
        self.served = None
        self.world.run(self.engine.close())
        self.check_all()
        TOTALS["lives"] += 1

    async def _idle(self) -> bool:
        state = await self._peek()
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

    def check_all(self) -> None:
        """Everything that was recorded, against the engine's own log."""
        text = (self.folder / PROXY_LOG).read_text()
        assert "Traceback" not in text and "unforeseen" not in text and "never retrieved" not in text, text
        log = read_engine_log(self.folder / ENGINE_LOG)
        by_request = {c.request_id: c for c in log}
        assert len(by_request) == len(log), "a request id was used twice"
        auditor = Auditor(log, TracePolicy())
        known_by_id = {s.id: s for s in self.sessions}
        markers = {}
        with JournalReader(self.folder / JOURNAL) as journal:
            for row in journal.sessions():
                turns = journal.turns(row.id)
                for turn_id, kind in classify(turns).items():
                    turns[turn_id].kind = kind
                auditor.add_session(row, turns, journal.calls(row.id))
                known = known_by_id.get(row.id)
                if known is None:
                    assert not turns, "the session of an expired secret has turns"
                    continue
                assert (row.closed_at is None) == (known.life == "killed"), (row, known.life)
                self.check_turns(known, turns, by_request)
                self.check_trained(known, turns, auditor)
                markers[known.number] = {w for t in turns for w in self.decode(t.prompt_delta).split() if is_marker(w)}
        for number, found in markers.items():
            shown = {number, *self.sessions[number].shown}
            strange = {m for m in found if int(m[1 : m.index("x")]) not in shown}
            assert not strange, f"session {number} was shown {strange}"
        report = auditor.finish()
        killed = {s.id for s in self.sessions if s.life == "killed"}
        findings = [f for f in report.findings if not (f.code is Code.DROPPED_TURN and any(k in f.message for k in killed))]
        assert not findings, findings
        TOTALS["requests a kill cut before they were noted"] += len(report.findings)
        assert report.drift_tokens == 0
        assert report.sampled_tokens == report.trained_tokens + sum(report.masked_tokens.values()), report
        TOTALS["turns"] += report.turns
        TOTALS["sampled tokens"] += report.sampled_tokens
        TOTALS["trained tokens"] += report.trained_tokens

    def check_turns(self, known: Known, turns: list[Turn], log: dict[str, EngineCall]) -> None:
        """Rules 1 and 2 for each turn by itself, its weights version included."""
        policy = HashPolicy(vocabulary(self.codec_name))
        for turn in turns:
            where = f"turn {turn.id} of session {known.number}"
            drawn = turn.sample
            TOTALS["continued turns"] += turn.continues
            TOTALS["aborted turns"] += drawn.finish_reason is FinishReason.ABORT
            TOTALS["turns over a weight update"] += drawn.weights_version[0] != drawn.weights_version[1]
            if not len(drawn):
                continue
            call = log[turn.request_id]
            prompt = prompt_of(turns, turn)
            assert np.array_equal(prompt, call.prompt_ids), f"{where}: another prompt"
            assert np.array_equal(drawn.token_ids, call.token_ids[: len(drawn)]), f"{where}: other ids"
            assert np.array_equal(drawn.logprobs, call.logprobs[: len(drawn)]), f"{where}: other log-probabilities"
            if drawn.finish_reason is not FinishReason.ABORT and drawn.stop is None:
                assert len(drawn) == len(call.token_ids), f"{where}: cut short"
            assert call.weights_version is not None
            first, last = drawn.weights_version
            assert first <= call.weights_version <= last, f"{where}: drawn under {call.weights_version}, says {first}, {last}"
            prefix = policy.prefix(prompt, call.weights_version)
            for token, logprob in zip(drawn.token_ids.tolist(), drawn.logprobs.tolist(), strict=True):
                assert abs(policy.distribution(prefix).logprob(token) - logprob) < 1e-4, f"{where}: not of version {first}"
                prefix.push(token)

    def check_trained(self, known: Known, turns: list[Turn], auditor: Auditor) -> None:
        """Rule 3: every token has one fate, and a reply that a client has is not among the lost."""
        built = build_traces(known.rollout_id, turns, TracePolicy(), infra=known.infra)
        assert built.sampled == built.trained + sum(built.masked.values())
        trained = Counter(s.turn for t in built.traces for s in t.spans if s.role == "sampled" and t.loss_mask[s.start])
        assert all(times == 1 for times in trained.values()), f"session {known.number}: {trained}"
        for reply_id in known.given:
            for turn in self.chain(turns, reply_id.removeprefix("chatcmpl-")):
                why = built.reasons.get(turn.id)
                lost = why in (MaskReason.UNDELIVERED, MaskReason.ABANDONED) and known.life != "killed"
                assert not lost, f"session {known.number}: turn {turn.id} reached its client and is masked as {why}"
        status = Status.ENGINE_FAILED if known.infra else Status.COMPLETED
        auditor.add_trajectory(Trajectory(known.rollout_id, "t", "g", status, built.traces, reward=1.0, masked=built.masked))


def can_be_taken_up(seen: dict[str, Any], request: str, retry: bool) -> bool:
    """The decision table's row on identical calls: a reply under way whose client is gone (or any, for a declared retry), a
    finished one that reached nobody, or an interrupted one must be taken up before anything is drawn."""
    live = [entry for entry in seen["live"] if entry["request"] == request]
    if any(not entry["failed"] and (retry or not entry["readers"]) for entry in live):
        return True
    read = {t for entry in seen["live"] if entry["readers"] for t in entry["turns"]}
    earlier = [t for t in seen["turns"] if t["request"] == request and not t["children"]]
    for turn in reversed(earlier):
        if not turn["aborted"] and turn["id"] not in read:
            if retry or not turn["delivered"]:
                return True
            break
    under_way = {t for entry in seen["live"] for t in entry["turns"]}
    return any(t["aborted"] and t["id"] not in under_way for t in earlier)


def prompt_of(turns: list[Turn], turn: Turn) -> Any:
    """What the engine is said to have been given for a turn. int32[P]"""
    pieces, at = [turn.prompt_delta], turn.parent
    while at is not None:
        pieces += [turns[at].sample.token_ids, turns[at].prompt_delta]
        at = turns[at].parent
    return np.concatenate(pieces[::-1])


def arguments(turn: Turn) -> list[tuple[str, str]]:
    return [(c.name, c.arguments) for c in turn.reply.tool_calls]


def is_marker(word: str) -> bool:
    session, _, number = word[1:-1].partition("x")
    return word[0] == word[-1] == "m" and session.isdigit() and number.isdigit()


async def _ended(task: asyncio.Task[Answer]) -> None:
    await asyncio.wait([task])


async def _cancelled(task: asyncio.Task[Answer]) -> None:
    task.cancel()
    await asyncio.wait([task])


# --- the tests --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


@pytest.fixture(scope="module")
def forked() -> Iterator[ForkedProxy]:
    """Proxies in processes that can be killed."""
    host = ForkedProxy()
    yield host
    host.close()


def hold(world: World, host: Callable[[World], Any], codec_name: str, value: object, *, lives: int, steps: int, seconds: float):
    """Run so many lives of so many steps, and no longer than ``seconds``."""
    attributes = {
        "world": world,
        "make_host": staticmethod(host),
        "codec_name": codec_name,
        "deadline": time.monotonic() + seconds,
        "seed": value,
    }
    machine = seed(value)(type("Polar", (Polar,), attributes))
    # Nothing is shrunk: what fails here hangs on timing too, and the story of the failure says more than a shorter one.
    quiet = settings(
        max_examples=lives,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),  # pyright: ignore[reportArgumentType]
    )
    run_state_machine_as_test(machine, settings=quiet)


@pytest.mark.parametrize(("codec_name", "lives"), [("tiny", 12), ("qwen3", 4)])
def test_the_rules_hold_whatever_happens(world, forked, codec_name, lives):
    if codec_name == "qwen3":
        models.qwen3()  # skips here, visibly, when it cannot be had
    before = TOTALS.copy()
    hold(world, lambda _: forked, codec_name, f"bounded {codec_name}", lives=lives, steps=30, seconds=12)
    done = TOTALS - before
    print(dict(done))
    assert done["acknowledged"] > 20
    assert done["bridged"] > 10


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_the_rules_hold_for_long(world, forked):
    models.qwen3()
    seconds = float(os.environ.get("POLAR_SOAK_SECONDS", "3600"))
    start = value = int(os.environ.get("POLAR_SOAK_SEED", time.time()))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        name = "qwen3" if value % 4 == 0 else "tiny"
        hold(world, lambda _: forked, name, value, lives=10, steps=60, seconds=end - time.monotonic())
        value += 1
        print(f"seeds {start} to {value - 1}: {dict(TOTALS)}", flush=True)


def acknowledge_before_it_is_on_disk(monkeypatch) -> None:
    write = Journal.add_turn

    def add_turn(self, turn, request=None):
        loop = asyncio.get_running_loop()
        loop.call_later(0.05, lambda: write(self, turn, request).add_done_callback(lambda written: written.exception()))
        done = loop.create_future()
        done.set_result(None)
        return done

    monkeypatch.setattr(Journal, "add_turn", add_turn)


def draw_again_for_a_retry(monkeypatch) -> None:
    monkeypatch.setattr(Calls, "_joined", lambda *_, **__: None)


def forget_what_was_delivered(monkeypatch) -> None:
    monkeypatch.setattr(Calls, "_delivered", lambda *_: None)


def stamp_the_version_of_the_end(monkeypatch) -> None:
    take = _Run._record_now

    async def record(self, segment, finish):
        segment.weights_version = self.d._gate.weights_version + 1
        return await take(self, segment, finish)

    monkeypatch.setattr(_Run, "_record_now", record)


QUICK = [mutations.sibling_taken_for_another, acknowledge_before_it_is_on_disk]
"""Caught within a second or two."""
SLOW = [
    mutations.bridge_that_renders_again,
    mutations.retry_that_starts_over_but_is_joined,
    mutations.sample_cut_by_one_token,
    draw_again_for_a_retry,
    forget_what_was_delivered,
    stamp_the_version_of_the_end,
]


@pytest.mark.parametrize(
    "mutation", [*QUICK, *(pytest.param(m, marks=pytest.mark.soak) for m in SLOW)], ids=lambda m: m.__name__
)
def test_a_broken_proxy_is_caught(world, monkeypatch, mutation):
    be_quick(monkeypatch.setattr)
    mutation(monkeypatch)
    with pytest.raises((AssertionError, Flaky)):  # flaky: it failed, and did not when hypothesis tried the same again
        hold(world, ThreadProxy, "tiny", 1, lives=60, steps=40, seconds=60)
