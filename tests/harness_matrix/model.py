# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The scripted adversarial model: reads the prompt's ids, sees how far the conversation is, and says the next thing.

It keeps of a session only which faults have happened, how often a step was tried and, for a summary, which marks it has ever
seen; where the conversation stands is read from the prompt each time, as a model does. So it answers harnesses that edit, drop
or summarise their history as well as those that only append. Deterministic by its seed and the conversation. It runs where the
scripted engine runs and sees only ids.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nemo_polar.engines.base import GenerateRequest
from nemo_polar.engines.script import Fault as EngineFault
from nemo_polar.engines.script import ScriptedReply
from nemo_polar.types import FinishReason, Kind, TokenIds, as_ids
from tests.harness_matrix.conversation import Conversation
from tests.harness_matrix.scenarios import SUMMARY_MARK, Act, Delegate, Fault, ReadFile, Scenario, Shell, Step, Write
from tests.harness_matrix.tools import Tool, Toolset
from tests.harness_matrix.wire import Switch
from tests.harness_matrix.writer import Call, Writer

_TRIES = 3
"""How often a step is said before the model gives it up."""
_CUT_BYTES = 420
"""Of an answer, headers included, before the connection is cut: the beginning of its text."""
_ENGINE_FAULTS = {Fault.ENGINE_429: EngineFault.OVERLOADED, Fault.ENGINE_500: EngineFault.UNAVAILABLE}
_WIRE_FAULTS = {Fault.WIRE_429: 429, Fault.WIRE_500: 500}


@dataclass(slots=True)
class _Session:
    fired: set[int] = field(default_factory=set)
    tries: Counter[tuple[str | None, int]] = field(default_factory=Counter)
    """By sub-agent's part and step."""
    failing: list[EngineFault] = field(default_factory=list)
    """What the engine's next answers are."""
    marks: list[str] = field(default_factory=list)
    """Those that were seen. A harness that asks for a summary may have cut them from what it asks with."""
    prompt: TokenIds = field(default_factory=lambda: as_ids([]))
    said: list[int] = field(default_factory=list)
    """The last reply in full, for a proxy that goes on in the middle of it."""
    kind: Kind = Kind.MAIN
    """What that reply was."""


class Model:
    """A ``Script``."""

    def __init__(
        self, writer: Writer, toolset: Toolset, scenario: Scenario, switch: Switch, *, seed: int = 0, engine_tries: int = 2
    ) -> None:
        """``engine_tries``: how often the proxy asks its engine for one reply."""
        self._writer, self._toolset, self._scenario, self._switch = writer, toolset, scenario, switch
        self._seed, self._engine_tries = seed, engine_tries
        self._sessions: dict[str, _Session] = {}
        self.happened: list[str] = []
        """The faults that took place, in their order."""
        self.kinds: dict[str, Kind] = {}
        """By request id, what the model took each call for. It knows what the proxy has to work out."""

    def __call__(self, request: GenerateRequest) -> ScriptedReply:
        session = self._sessions.setdefault(request.session_id, _Session())
        if session.failing:
            return ScriptedReply(token_ids=[], fault=session.failing.pop(0))
        rest = _rest(session, request.prompt_ids)
        if rest is None:
            reply = self._reply(session, Conversation.read(self._writer.tokenizer.decode(request.prompt_ids)))
            session.prompt, session.said = request.prompt_ids, list(reply.token_ids or ())
        else:
            reply = ScriptedReply(token_ids=rest)
        self.kinds[request.request_id] = session.kind
        return reply

    def _reply(self, session: _Session, seen: Conversation) -> ScriptedReply:
        every = [act for step in self._scenario.steps for act in step.acts]
        session.marks += [act.mark for act in every if act.mark not in session.marks and seen.done(act)]
        asked = seen.asks_for_a_summary and SUMMARY_MARK not in seen.last_word
        if asked or not seen.has_tools(self._toolset):
            session.kind = Kind.COMPACTION if session.marks else Kind.AUXILIARY
            return self._speak(seen, self._summary(session, seen) if session.marks else "A short title")
        part = None if self._scenario.compacts else seen.part
        session.kind = Kind.MAIN if part is None else Kind.SUBAGENT
        steps = self._scenario.steps if part is None else Delegate(part).steps
        for number, step in enumerate(steps):
            missing = [act for act in step.acts if not seen.done(act)]
            if missing and session.tries[part, number] < _TRIES:
                return self._step(session, seen, part, number, step, missing)
        if part is not None:
            return self._speak(seen, Delegate(part).report)
        if self._toolset.submit is not None:
            return self._speak(seen, self._scenario.final, [self._shell(seen, self._toolset.submit)])
        return self._speak(seen, self._scenario.final)

    def _summary(self, session: _Session, seen: Conversation) -> str:
        """Of what was seen; wrapped as the harness wants it where compaction is to go well, bare where it is a fault."""
        text, tag = SUMMARY_MARK + "; ".join(session.marks), self._toolset.summary_tag
        wrapped = self._scenario.compacts and tag is not None
        return f"<analysis>\nAll clear.\n</analysis>\n\n<{tag}>\n{text}\n</{tag}>" if wrapped else text

    def _step(
        self, session: _Session, seen: Conversation, part: str | None, number: int, step: Step, missing: list[Act]
    ) -> ScriptedReply:
        fault = None if part is not None or number in session.fired else self._scenario.faults.get(number)
        if part is None:
            session.fired.add(number)
        self.happened += [] if fault is None else [fault.value]
        session.tries[part, number] += fault is None
        acts = missing if self._toolset.parallel else missing[:1]
        calls = [self._call(seen, act) for act in acts]
        if fault is Fault.EMPTY:
            return ScriptedReply(token_ids=self._writer.end())
        if fault is Fault.MALFORMED:
            calls = [Call(calls[0].name, calls[0].arguments, broken=True)]
        whole = self._speak(seen, step.text, calls, thought=step.thought)
        ids = list(whole.token_ids or ())
        if fault is Fault.LENGTH:
            return ScriptedReply(token_ids=ids[: len(ids) * 4 // 5], finish_reason=FinishReason.LENGTH)
        if fault is Fault.ENGINE_CUT:
            return ScriptedReply(token_ids=ids, fault=EngineFault.CUT, fault_after=len(ids) // 2)
        if fault is Fault.CLIENT_CUT:
            self._switch.cut_after = _CUT_BYTES
            return ScriptedReply(token_ids=ids, chunk_tokens=2, token_delay=0.004)
        if fault is not None and fault in _ENGINE_FAULTS:
            session.failing = [_ENGINE_FAULTS[fault]] * (self._engine_tries - 1)
            return ScriptedReply(token_ids=[], fault=_ENGINE_FAULTS[fault])
        if fault is not None and fault in _WIRE_FAULTS:
            self._switch.answer = _WIRE_FAULTS[fault]
        return whole

    def _speak(
        self, seen: Conversation, text: str, calls: list[Call] | None = None, *, thought: str = "Good."
    ) -> ScriptedReply:
        rng = random.Random(f"{self._seed}/{len(seen.turns)}/{seen.last_word}")
        ids = self._writer.reply(rng, thought=thought, text=text, calls=calls or [], thinking=seen.thinking)
        return ScriptedReply(token_ids=ids)

    # --- acts as calls ------------------------------------------------------------------------------------------------

    def _call(self, seen: Conversation, act: Act) -> Call:
        if isinstance(act, Write):
            tool = seen.offered(self._toolset.write)
            if tool is not None:
                return self._made(tool, act.path, act.text)
            return self._shell(seen, f"cat > {act.path} <<'POLAR_EOF'\n{act.text}POLAR_EOF\n")
        if isinstance(act, ReadFile):
            tool = seen.offered(self._toolset.read)
            return self._shell(seen, f"cat {act.path}") if tool is None else self._made(tool, act.path)
        if isinstance(act, Delegate):
            return self._delegated(seen, act)
        assert isinstance(act, Shell)
        return self._shell(seen, act.command)

    def _delegated(self, seen: Conversation, act: Delegate) -> Call:
        """Start the sub-agent; where that does not wait for its report, the next call does."""
        tool, wait = seen.offered(self._toolset.agent), self._toolset.wait
        assert tool is not None
        started = any(role == "assistant" and act.prompt in text for role, text in seen.turns)
        if started and wait is not None:
            all_of_them = [a for step in self._scenario.steps for a in step.acts if isinstance(a, Delegate)]
            at = all_of_them.index(act)
            return self._made(wait, seen.found(self._toolset.agent_id)[at : at + 1])
        return self._made(tool, act.prompt)

    def _shell(self, seen: Conversation, command: str) -> Call:
        tool = seen.offered(self._toolset.shell)
        assert tool is not None
        return self._made(tool, ["bash", "-lc", command] if tool.words else command)

    def _made(self, tool: Tool, *values: Any) -> Call:
        arguments = dict(zip(tool.args, values, strict=True))
        return Call(tool.name, {**arguments, **tool.fixed, **tool.odd, **self._toolset.extra})


def _rest(session: _Session, prompt: TokenIds) -> list[int] | None:
    """What is left of the last reply, when the prompt ends in the middle of it."""
    before = len(session.prompt)
    given = len(prompt) - before
    if not 0 < given < len(session.said) or not np.array_equal(prompt[:before], session.prompt):
        return None
    return session.said[given:] if prompt[before:].tolist() == session.said[:given] else None


_current: Model | None = None


def install(model: Model) -> None:
    """Make ``model`` the one that ``current`` asks. One a process: each cell has its own."""
    global _current
    _current = model


def current(request: GenerateRequest) -> ScriptedReply:
    """``engine.options.script`` of a cell's run."""
    assert _current is not None
    return _current(request)
