# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What the clients of the stateful test know, and what has to be true of it: answers, journal, engine log and traces compared.

Nothing here asks the proxy how it is: what it says of itself is no evidence.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from nemo_polar.capture.journal import JournalReader
from nemo_polar.engines.hash_policy import HashPolicy
from nemo_polar.engines.log import EngineCall, read_engine_log
from nemo_polar.settings import TracePolicy
from nemo_polar.tokens.base import Codec
from nemo_polar.trajectory.audit import Auditor, Code
from nemo_polar.trajectory.build import build_traces
from nemo_polar.trajectory.kinds import classify
from nemo_polar.trajectory.store import ENGINE_LOG, JOURNAL
from nemo_polar.types import FinishReason, ForkReason, MaskReason, ModelCall, Status, Trajectory, Turn
from tests.support.stateful import PROXY_LOG, Answer, vocabulary

TOTALS: Counter[str] = Counter()
"""Over all runs of this process: rules run, calls made, replies acknowledged..."""


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


class Books:
    """All that was sent and received, and the checks over it."""

    codec_name: ClassVar[str]
    codec: Codec
    folder: Path
    sessions: list[Known]

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
        known.given.setdefault(answer.id, sent)
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
            ended = self.decode(want.sample.token_ids[-1:])
            assert ended == "<|endoftext|>", f"{where}: not bridged, though the reply ended in {ended!r}"
            TOTALS["appends to a reply that ended in another way than its template's"] += 1
            return
        parent = turns[first.parent]
        same = parent.id == want.id or (parent.reply.text, arguments(parent)) == (want.reply.text, arguments(want))
        assert same, f"{where}: extends turn {parent.id}, not {want.id}"

    def decode(self, ids: Any) -> str:
        return self.codec.tokenizer.decode(ids.tolist())  # type: ignore[attr-defined]

    # --- when a session, or everything, has ended ---------------------------------------------------------------------

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
