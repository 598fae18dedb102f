# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Drawing one reply: engine calls, the parser, the record.

A reply is one sample, unless it was interrupted (weights were replaced, the engine was lost, a client went away for good): then
it goes on from the ids drawn so far as a new turn that continues the aborted one. Every engine call is one turn, so that the
record and the engine's own log can be compared one to one. Nothing is published as final before it is in the journal.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np

from nemo_polar.cancellation import outlasted, uninterrupted
from nemo_polar.capture.journal import CallRow, Journal, Request
from nemo_polar.capture.live import LiveReply
from nemo_polar.capture.meter import observed
from nemo_polar.capture.sessions import Session
from nemo_polar.capture.share import LoopShare
from nemo_polar.capture.totals import count_turn
from nemo_polar.engines.base import Engine, EngineInfo, GenerateRequest
from nemo_polar.errors import (
    CallError,
    ContextOverflow,
    EngineError,
    EngineOverflow,
    EngineOverloaded,
    EngineProtocol,
    EngineTimeout,
    EngineWeights,
    JournalError,
    Unavailable,
)
from nemo_polar.settings import SamplingPolicy
from nemo_polar.tokens.base import Codec, ReplyParser
from nemo_polar.tokens.canonical import Fingerprints
from nemo_polar.tokens.tree import Placement
from nemo_polar.types import (
    Delta,
    FinishReason,
    ForkReason,
    Kind,
    LogProbs,
    Message,
    ModelCall,
    Reply,
    Sample,
    SamplingParams,
    TokenIds,
    TokenLogProb,
    ToolCallDelta,
    Turn,
    Usage,
    as_ids,
)
from nemo_polar.unique import unique_id

log = logging.getLogger("nemo_polar.capture")
_EMPTY_IDS: TokenIds = np.empty(0, np.int32)
_BACKOFF_SECONDS = 0.25


def effective_sampling(call: ModelCall, policy: SamplingPolicy, *, seed_for: str) -> SamplingParams:
    """What is really drawn: the trainer's distribution unless the policy says otherwise; the harness keeps its stop strings."""
    asked = call.sampling
    limits = [n for n in (asked.max_tokens, policy.max_tokens) if n is not None]
    seed = asked.seed
    if policy.seed is not None:
        seed = int.from_bytes(blake2b(f"{policy.seed}/{seed_for}".encode(), digest_size=4).digest(), "little") >> 1
    common = replace(asked, max_tokens=min(limits) if limits else None, seed=seed)
    if not policy.override:
        return common
    return SamplingParams(
        temperature=policy.temperature,
        top_p=policy.top_p,
        top_k=policy.top_k,
        min_p=policy.min_p,
        max_tokens=common.max_tokens,
        stop=asked.stop,
        seed=seed,
    )


def make_reply(
    codec: Codec, call: ModelCall, turns: Sequence[Turn], message: Message, finish: FinishReason, *, created: int, model: str
) -> Reply:
    """The reply that ``turns`` drew, oldest first, with the exact counts of its ids."""
    ids = np.concatenate([t.sample.token_ids for t in turns])
    logprobs = None
    if call.want_logprobs:
        drawn = np.concatenate([t.sample.logprobs for t in turns])
        logprobs = tuple(TokenLogProb(*codec.token_text(int(i)), float(p)) for i, p in zip(ids, drawn, strict=True))
    return Reply(
        id=turns[-1].call_id,
        created=created,
        model=call.model or model,
        message=message,
        finish_reason=finish,
        usage=Usage(turns[0].prompt_len, len(ids), reasoning_tokens=codec.reasoning_tokens(message, ids)),
        stop=turns[-1].sample.stop,
        logprobs=logprobs,
    )


@dataclass(slots=True)
class Gate:
    """Closed while weights are replaced; knows the version served."""

    weights_version: int
    open: asyncio.Event


@dataclass(slots=True)
class Ticket:
    """One accepted call on its way to a reply."""

    call: ModelCall
    call_id: str
    prints: Fingerprints
    placement: Placement
    prompt_ids: TokenIds
    """int32[P]: what the engine is to be given (for a chat-only engine: the recorded prefix)."""
    line: int
    """How many of ``prompt_ids``, from the first on, are the recorded ids of the placement's parent; 0 for a root."""
    sampling: SamplingParams
    max_new: int
    continues: Turn | None = None
    """An aborted turn of the same request to go on from; ``prompt_ids`` then ends with its sampled ids."""
    continued: int = 0
    """How many those are."""
    rewrites: int = 0
    """Declared rewrites applied to the request."""
    open_request: str | None = None
    """The engine request that is noted in the journal, and has come to nothing yet."""


class Drawer:
    """Draws replies for all sessions of one proxy."""

    def __init__(
        self,
        *,
        engine: Engine,
        info: EngineInfo,
        codec: Codec,
        journal: Journal,
        gate: Gate,
        model: str,
        retries: int,
        deadline: float,
        share: LoopShare,
        clock: Callable[[], float],
    ) -> None:
        self._engine = engine
        self._info = info
        self._codec = codec
        self._journal = journal
        self._gate = gate
        self._model = model
        self._retries = retries
        self._deadline = deadline
        self._share = share
        self._clock = clock

    async def draw(self, session: Session, ticket: Ticket, live: LiveReply) -> None:
        """Run one reply to its end; ``live`` always ends, with a reply or an error of the provider's kind."""
        observed().asks()
        try:
            async with asyncio.timeout(self._deadline):
                reply = await _Run(self, session, ticket, live).go()
            session.counters["replies"] += 1
            session.failures.pop(live.request, None)
            live.finish(reply)
        except TimeoutError:
            late = Unavailable(f"The reply took longer than {self._deadline:g} s (capture.call_seconds).")
            await self._failed(session, ticket, live, late, "deadline")
        except asyncio.CancelledError:
            await self._failed(session, ticket, live, Unavailable("The reply was given up: its client had gone."), "cancelled")
        except CallError as exc:
            await self._failed(session, ticket, live, exc, exc.kind)
        except JournalError as exc:
            session.failures[live.request] = f"JournalError: {exc}"
            error = Unavailable(f"The reply cannot be recorded: {exc}", retry_after=1.0)
            await self._failed(session, ticket, live, error, "journal")
        except EngineError as exc:
            session.failures[live.request] = f"{type(exc).__name__}: {exc}"
            error = Unavailable(f"The inference engine failed: {exc}", retry_after=1.0)
            await self._failed(session, ticket, live, error, type(exc).__name__)
        except Exception as exc:  # the last boundary: a reply that does not end would leave its clients waiting for ever
            log.exception("unforeseen failure while drawing a reply")
            session.failures[live.request] = f"{type(exc).__name__}: {exc}"
            await self._failed(
                session, ticket, live, CallError("The proxy failed on this reply; its log says why."), "unforeseen"
            )

    async def _failed(self, session: Session, ticket: Ticket, live: LiveReply, error: CallError, status: str) -> None:
        session.counters[f"failed_{status}"] += 1
        try:
            await self.end_call(ticket, status, str(error))
        except JournalError as exc:
            session.failures.setdefault(live.request, f"JournalError: {exc}")
        if status != "cancelled" and error.status >= 500:
            log.warning("a reply failed (%s): %s", status, error)
        live.fail(error)

    def open_call(self, session: Session, ticket: Ticket, request_id: str, prompt_len: int, parent: Turn | None) -> None:
        """Note an engine request before it is made, so that a crash leaves a trace of it. Does not wait for the disk."""
        fork = ticket.placement.fork_reason if parent is None else None
        row = CallRow(
            call_id=ticket.call_id,
            session_id=session.id,
            request_id=request_id,
            opened_at=self._clock(),
            dialect=ticket.call.dialect,
            parent=parent.id if parent is not None else None,
            fork_reason=fork.value if fork is not None else None,
            prompt_len=prompt_len,
            streamed=ticket.call.stream,
            dropped=ticket.call.dropped,
            rewrites=ticket.rewrites,
            kind=Kind.MAIN.value,
        )
        ticket.open_request = request_id
        self._journal.open_call(row)

    async def end_call(self, ticket: Ticket, status: str, error: str | None) -> None:
        """Note why the engine request of this call that is still open made no turn."""
        if ticket.open_request is not None:
            request_id, ticket.open_request = ticket.open_request, None
            await self._journal.end_call(ticket.call_id, request_id, self._clock(), status, error)


class _Run:
    """The state of one reply under way."""

    def __init__(self, drawer: Drawer, session: Session, ticket: Ticket, live: LiveReply) -> None:
        self.d = drawer
        self.session = session
        self.ticket = ticket
        self.live = live
        self.prompt_ids = ticket.prompt_ids
        self.parser: ReplyParser = self._parser(ticket.prompt_ids)
        self.ids: list[TokenIds] = []
        """All ids of the reply, over all turns."""
        self._already = 0
        """How many of ``ids`` the ticket's prompt holds already."""
        self.held: list[Delta] = []
        """Deltas from the first tool call on: a call is an acknowledgement, so it waits for the journal."""
        self.parent = ticket.continues or ticket.placement.parent
        self.continues = ticket.continues is not None

    def _parser(self, prompt_ids: TokenIds) -> ReplyParser:
        call = self.ticket.call
        return self.d._codec.parser(
            prompt_ids, call.tools, stop=call.sampling.stop, parse_calls=bool(call.tools) and call.tool_choice.mode != "none"
        )

    async def go(self) -> Reply:
        if self.ticket.continues is not None:
            self._replay_partial(self.ticket.continues)
        failures = 0
        while True:
            while not self.d._gate.open.is_set():  # it may have been closed again before this task ran
                await self.d._gate.open.wait()
            if self.ticket.max_new <= self._drawn and self.parent is not None:
                self._hold_or_publish(self.parser.finish(FinishReason.LENGTH))
                self.live.publish(self.held)
                return self._reply(self.parent, FinishReason.LENGTH)
            segment = _Segment(self.d._clock(), self.d._gate.weights_version)
            try:
                finish = await self._segment(segment)
            except asyncio.CancelledError:
                await self._record_partial(segment)
                raise
            except EngineOverflow as exc:
                raise ContextOverflow(len(self.prompt_ids), self.d._info.max_context) from exc
            except EngineError as exc:
                failures += 1
                self.session.counters[f"engine:{type(exc).__name__}"] += 1
                if not isinstance(exc, EngineWeights):
                    await self._record_partial(segment)
                await self.d.end_call(self.ticket, type(exc).__name__, str(exc))
                if failures > self.d._retries or not exc.retryable:
                    raise
                self.session.counters["retries"] += 1
                log.warning("the engine failed, and is asked again: %s: %s", type(exc).__name__, exc)
                await asyncio.sleep(_retry_delay(exc, failures))
                continue
            if finish is FinishReason.ABORT:
                failures += self.d._gate.open.is_set()
                await self._record_partial(segment)
                if failures > self.d._retries:
                    raise EngineProtocol("the engine keeps aborting this sample, and nobody paused it")
                await self.d.end_call(self.ticket, "paused", None)
                continue
            self._hold_or_publish(self.parser.finish(finish))
            turn = await self._record(segment, finish)
            self.live.publish(self.held)
            return self._reply(turn, finish)

    def _replay_partial(self, partial: Turn) -> None:
        """Feed the parser what an earlier, aborted attempt at this reply drew."""
        for turn in self.session.tree.reply_turns(partial):
            self.ids.append(turn.sample.token_ids)
            self._hold_or_publish(self.parser.feed(turn.sample.token_ids))
        self._already = len(self.ids)

    @property
    def _drawn(self) -> int:
        return sum(map(len, self.ids))

    async def _segment(self, segment: _Segment) -> FinishReason:
        """One engine call. Returns how it ended; ids land in ``segment``."""
        ticket = self.ticket
        prompt = np.concatenate([ticket.prompt_ids, *self.ids[self._already :]]) if self.ids else ticket.prompt_ids
        request = GenerateRequest(
            request_id=f"polar-{self.session.id}-{segment.id}",
            prompt_ids=prompt,
            sampling=ticket.sampling,
            stop_token_ids=self.d._codec.stop_token_ids,
            max_tokens=ticket.max_new - self._drawn,
            session_id=self.session.id,
            chat=None if self.d._info.takes_ids else ticket.call,
            required_prefix=len(prompt) if not self.d._info.takes_ids and ticket.placement.parent is not None else 0,
        )
        segment.request_id = request.request_id
        segment.prompt_ids = prompt
        self.d.open_call(self.session, ticket, request.request_id, len(prompt), self.parent)
        async with aclosing(self.d._engine.generate(request)) as chunks:
            async for chunk in chunks:
                await self.d._share.turn()
                if chunk.prompt_ids is not None and not segment.ids:
                    segment.prompt_ids = as_ids(chunk.prompt_ids)
                    if not self.d._info.takes_ids:
                        self.prompt_ids = segment.prompt_ids
                        self.parser = self._parser(segment.prompt_ids)
                segment.take(chunk.token_ids, chunk.logprobs, self.d._clock())
                if segment.count > request.max_tokens:
                    raise EngineProtocol(
                        f"{request.request_id}: the engine went on after the {request.max_tokens} tokens asked for"
                    )
                self._hold_or_publish(self.parser.feed(chunk.token_ids))
                if self.parser.stopped is not None:
                    return FinishReason.STOP
                if chunk.finish_reason is not None:
                    return chunk.finish_reason
        raise EngineProtocol(f"{request.request_id}: the engine's stream ended without a finish reason")

    def _hold_or_publish(self, deltas: list[Delta]) -> None:
        if not self.held and not any(isinstance(d, ToolCallDelta) for d in deltas):
            self.live.publish(deltas)
            return
        for at, delta in enumerate(deltas):
            if self.held or isinstance(delta, ToolCallDelta):
                self.held += deltas[at:]
                return
            self.live.publish([delta])

    # --- recording ----------------------------------------------------------------------------------------------------

    async def _record_partial(self, segment: _Segment) -> None:
        """Record an interrupted engine call; one that drew nothing leaves no turn."""
        if segment.ids:
            await self._record(segment, FinishReason.ABORT)

    async def _record(self, segment: _Segment, finish: FinishReason) -> Turn:
        """Put one engine call into the journal, then into the tree. Once begun it is carried through, whoever is cancelled."""
        if self.session.recording.locked():
            return await uninterrupted(self._record_now(segment, finish))
        return await self._record_now(segment, finish)  # which then waits for nothing but the journal

    async def _record_now(self, segment: _Segment, finish: FinishReason) -> Turn:
        ids, logprobs = segment.packed()
        self.ids.append(ids)
        sample = Sample(
            token_ids=ids,
            logprobs=logprobs,
            finish_reason=finish,
            stop=self.parser.stopped,
            weights_version=(segment.weights_version, self.d._gate.weights_version),
            sampling=self.ticket.sampling,
            started_at=segment.started_at,
            first_token_at=segment.first_token_at,
            ended_at=self.d._clock(),
        )
        session, ticket = self.session, self.ticket
        message = self._message_so_far(finish)
        async with session.recording:
            parent, delta, placement = self._where(segment)
            turn = Turn(
                id=len(session.tree.turns),
                session_id=session.id,
                parent=parent.id if parent is not None else None,
                prompt_delta=delta,
                sample=sample,
                reply=message,
                request_id=segment.request_id,
                call_id=ticket.call_id,
                fork_reason=placement.fork_reason if parent is None else None,
                fork_of=placement.fork_of if parent is None else None,
                continues=self.continues,
                prompt_len=len(segment.prompt_ids),
                tools_key=ticket.prints.tools,
                system_key=ticket.prints.system,
            )
            written = self.d._journal.add_turn(turn, self._request(parent, placement))
            cancelled = await outlasted(written)
            written.result()
            ticket.open_request = None
            session.tree.add(turn, ticket.call, ticket.prints)
        count_turn(session.counters, turn)
        observed().drew(sample)
        self.live.turns.append(turn)
        self.parent, self.continues = turn, finish is FinishReason.ABORT
        if cancelled is not None:
            raise cancelled
        return turn

    def _request(self, parent: Turn | None, placement: Placement) -> Request | None:
        """What this call's request added to the conversation, for the record."""
        if self.continues:
            return None
        return Request(placement.new, self.ticket.call.tools if parent is None else None)

    def _where(self, segment: _Segment) -> tuple[Turn | None, TokenIds, Placement]:
        """Parent and prompt delta of the turn to record, checked against what the engine was really given."""
        placement = self.ticket.placement
        if self.parent is None:
            return None, segment.prompt_ids, placement
        if self.continues:
            return self.parent, _EMPTY_IDS, placement
        if segment.prompt_ids is self.ticket.prompt_ids and self.ticket.line:  # put together from the parent's own ids
            return self.parent, segment.prompt_ids[self.ticket.line :].copy(), placement
        prefix = self.session.tree.ids_through(self.parent)
        if len(segment.prompt_ids) > len(prefix) and np.array_equal(segment.prompt_ids[: len(prefix)], prefix):
            return self.parent, segment.prompt_ids[len(prefix) :].copy(), placement
        self.session.counters["engine_mismatch"] += 1
        return None, segment.prompt_ids, placement.as_root(ForkReason.ENGINE, self.ticket.call)

    def _message_so_far(self, finish: FinishReason) -> Message:
        if finish is not FinishReason.ABORT:
            return self.parser.message()
        # A throw-away parser: the real one goes on with the next turn.
        parser = self._parser(self.prompt_ids)
        for ids in self.ids:
            parser.feed(ids)
        parser.finish(FinishReason.ABORT)
        return parser.message()

    def _reply(self, turn: Turn, finish: FinishReason) -> Reply:
        turns = self.session.tree.reply_turns(turn)
        call, live = self.ticket.call, self.live
        return make_reply(self.d._codec, call, turns, self.parser.message(), finish, created=live.created, model=self.d._model)


class _Segment:
    """What one engine call has drawn so far."""

    def __init__(self, started_at: float, weights_version: int) -> None:
        self.id = unique_id(8)
        self.request_id = ""
        self.prompt_ids: TokenIds = _EMPTY_IDS
        self.started_at = started_at
        self.first_token_at = 0.0
        self.weights_version = weights_version
        self.ids: list[TokenIds] = []
        self.logprobs: list[LogProbs] = []
        self.count = 0
        """Of ``ids``, over all chunks."""

    def take(self, ids: TokenIds, logprobs: LogProbs, now: float) -> None:
        if len(ids):
            self.first_token_at = self.first_token_at or now
            self.count += len(ids)
            self.ids.append(ids)
            self.logprobs.append(logprobs)

    def packed(self) -> tuple[TokenIds, LogProbs]:
        if not self.ids:
            return _EMPTY_IDS, np.empty(0, np.float32)
        return np.concatenate(self.ids), np.concatenate(self.logprobs)


def _retry_delay(exc: EngineError, failures: int) -> float:
    longer = 4 if isinstance(exc, EngineOverloaded | EngineTimeout) else 1
    return _BACKOFF_SECONDS * longer * 2 ** (failures - 1)
