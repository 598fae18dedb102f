# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The life of one call: authenticate, parse, place in the tree, admit, sample, record, reply.

``Calls.handle`` is that life on one screen. Every way out of it is an answer in the provider's shape; nothing a client sends
can end the process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TypeVar

import numpy as np
from aiohttp import web

from nemo_polar.capture.draw import Drawer, Ticket, effective_sampling, make_reply
from nemo_polar.capture.journal import Journal
from nemo_polar.capture.limits import Limits, busy
from nemo_polar.capture.live import LiveReply
from nemo_polar.capture.meter import observed
from nemo_polar.capture.roots import RootCache, cacheable
from nemo_polar.capture.seen import SeenRequests
from nemo_polar.capture.sessions import Session, SessionStore
from nemo_polar.capture.share import LoopShare
from nemo_polar.engines.base import EngineInfo
from nemo_polar.errors import (
    BadRequest,
    CallError,
    ContextOverflow,
    JournalError,
    NotFound,
    TokenError,
    TooLarge,
    TooSlow,
    Unavailable,
    UpgradeRefused,
)
from nemo_polar.settings import CaptureSettings
from nemo_polar.tokens.base import Codec
from nemo_polar.tokens.canonical import Fingerprints, Printed, fingerprints
from nemo_polar.tokens.tree import Placement
from nemo_polar.types import (
    Delta,
    FinishReason,
    ForkReason,
    Message,
    ModelCall,
    Reasoning,
    ReasoningDelta,
    Role,
    Text,
    TextDelta,
    TokenIds,
    ToolCall,
    ToolCallDelta,
    ToolResult,
    Turn,
)
from nemo_polar.unique import unique_id
from nemo_polar.wire.base import Dialect, Route, StreamEncoder
from nemo_polar.wire.fields import shown
from nemo_polar.wire.history import Parsed, Read
from nemo_polar.wire.recognise import match

log = logging.getLogger("nemo_polar.capture")
_T = TypeVar("_T")
_BIG_BODY_BYTES = 1024 * 1024
"""Bodies over this are parsed off the event loop: a hostile one can take seconds."""
_NO_STREAM = nullcontext()
_MAX_SENTENCE = 300
_MAX_COUNTERS = 256
"""Of one session: names of unknown fields are the client's to choose."""


@dataclass(slots=True)
class Calls:
    """Answers the harness side of one proxy."""

    settings: CaptureSettings
    limits: Limits
    dialects: Sequence[Dialect]
    fallback: Dialect
    """In whose shape an answer is to what is of no dialect."""
    sessions: SessionStore
    codec: Codec
    info: EngineInfo
    journal: Journal
    drawer: Drawer
    seen: SeenRequests
    roots: RootCache
    threads: Executor
    share: LoopShare
    clock: Callable[[], float]
    started_at: int
    retention: str
    in_flight: int = 0

    # --- the life of one call -----------------------------------------------------------------------------------------

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """One HTTP request, from its first byte to its last."""
        found = match(self.dialects, request.method, request.path, request.headers, request.query)
        dialect, route = found if found is not None else (self.fallback, None)
        seen = observed()
        try:
            if route is None:
                raise NotFound(f"There is no {request.method} {shown(request.path)} here.")
            seen.dialect, seen.route = dialect.name, route.kind
            if route.kind == "probe":
                return web.Response()
            if route.kind == "websocket":
                raise UpgradeRefused("Websockets are not served here; send the same request over HTTP.")
            session = self.sessions.authenticate(dialect.secret(request.headers, request.query))
            seen.session, seen.rollout = session.id, session.rollout_id
            if route.kind in ("models", "model"):
                return self._models(dialect, route)
            body = await self._body(request)
            seen.read_at = perf_counter()
            await self.share.turn()
            parsed = await self._parsed(session, body, dialect, route)
            session.check_open()  # it may have been closed while the body arrived
            parsed = session.stored.resumed(parsed)
            call, rewrites = self._rewritten(session, parsed.call)
            seen.stream = call.stream
            self._check_model(call)
            if route.kind == "count_tokens":
                return await self._counted(session, dialect, call)
            prints = self._fingerprinted(session, parsed.read, call, len(body))
            with self.limits.stream() if call.stream else _NO_STREAM:
                live = await self._accept(session, call, prints, rewrites, retry=dialect.is_retry(request.headers))
                session.stored.keep(parsed, live)
                try:
                    if call.stream:
                        return await self._stream(request, dialect, session, call, live)
                    return await self._whole(request, dialect, session, call, live)
                finally:
                    live.detach()
                    session.forget_if_over(live)
        except CallError as exc:
            answer = _answer(dialect, exc)
            if request.content.exception() is not None or not request.content.is_eof():
                answer.force_close()  # what is left of the body must not be taken for the next request
            return answer
        except JournalError as exc:
            return _answer(dialect, Unavailable(f"The call cannot be recorded: {exc}", retry_after=1.0))
        except TokenError as exc:
            return _answer(dialect, BadRequest(_sentence(exc), param="messages"))
        except ConnectionError:
            return web.Response(status=499)  # the client has gone: nobody reads this
        except Exception:  # the last boundary: whatever was not foreseen becomes the provider's 500
            log.exception("unforeseen failure while answering %s %s", request.method, request.path)
            error = CallError("The proxy failed on this request; its log says why.")
            return _answer(dialect, error)

    def refuse(self, status: int, sentence: str, beginning: bytes) -> web.Response:
        """The answer to what is not a request, as HTTP has it: in the shape of the provider whose path ``beginning`` names."""
        error = CallError(sentence) if status >= 500 else NotFound(sentence) if status == 404 else BadRequest(sentence)
        words = beginning.partition(b"\r\n")[0].decode("ascii", "replace").split(" ")
        path = words[1].partition("?")[0] if len(words) > 1 else ""
        found = match(self.dialects, words[0], path, {}, {})
        return _answer(self.fallback if found is None else found[0], error)

    async def _parsed(self, session: Session, body: bytes, dialect: Dialect, route: Route) -> Parsed:
        history = self.seen.reads(session.id, dialect.name)
        if len(body) <= _BIG_BODY_BYTES:
            return dialect.parse(body, route, history)
        return await asyncio.get_running_loop().run_in_executor(self.threads, dialect.parse, body, route, history)

    def _fingerprinted(self, session: Session, read: Read | None, call: ModelCall, size: int) -> Fingerprints:
        """Fingerprints of the call, reusing those of the request it goes on; ``size`` is that of its body, in bytes."""
        if read is None:
            return fingerprints(call, self.codec.fingerprint)
        prints = fingerprints(call, self.codec.fingerprint, self.seen.nearest(session.id, read))
        self.seen.keep(session.id, read, Printed(call, prints), size)
        return prints

    async def _body(self, request: web.BaseRequest) -> bytes:
        """The request's body, bounded in bytes and in time."""
        limit = self.settings.max_body_bytes
        if (request.content_length or 0) > limit:
            raise self._too_large()
        body = bytearray()
        try:
            if request.content.is_eof():  # it came with its header, as small ones do
                whole = await request.content.read()
                if len(whole) > limit:  # a small one that was compressed
                    raise self._too_large()
                return whole
            async with asyncio.timeout(self.settings.read_seconds):
                async for piece in request.content.iter_any():
                    body += piece
                    if len(body) > limit:
                        raise self._too_large()
        except TimeoutError:
            seconds = self.settings.read_seconds
            error = TooSlow(f"The request's body did not arrive within {seconds:g} s (capture.read_seconds).")
            raise self.limits.refuse("read_seconds", error) from None
        except (web.RequestPayloadError, web.PayloadAccessError) as exc:
            raise BadRequest("The request body is not what its Content-Encoding or Transfer-Encoding says.") from exc
        return bytes(body)

    def _too_large(self) -> TooLarge:
        limit = self.settings.max_body_bytes
        error = TooLarge(f"The request body is over the limit of {limit} bytes (capture.max_body_bytes).")
        return self.limits.refuse("max_body_bytes", error)

    def _rewritten(self, session: Session, call: ModelCall) -> tuple[ModelCall, int]:
        """The call with the declared rewrites applied, and how many there were."""
        parts = sum(len(m.parts) for m in call.messages)
        if parts > self.settings.max_parts:
            what = f"The request has {parts} message parts; the limit is {self.settings.max_parts} (capture.max_parts)."
            raise self.limits.refuse("max_parts", TooLarge(what, param="messages"))
        call, count = session.date.apply(call, session.written_dates(self.clock()))
        session.counters["rewrites"] += count
        for what in call.dropped:
            name = f"dropped:{what}"
            known = name in session.counters or len(session.counters) < _MAX_COUNTERS
            session.counters[name if known else "dropped:(and more)"] += 1
        return call, count

    def _check_model(self, call: ModelCall) -> None:
        if not self.settings.any_model and call.model not in (self.settings.model, self.info.model):
            raise NotFound(f"The model {call.model!r} does not exist.", param="model", code="model_not_found")

    # --- from a request to a reply under way --------------------------------------------------------------------------

    async def _accept(
        self, session: Session, call: ModelCall, prints: Fingerprints, rewrites: int, *, retry: bool
    ) -> LiveReply:
        """A reply to follow: one under way, a recorded one, or a new sample. Already attached."""
        for ending in [live for live in session.live if live.given_up and live.request == prints.request]:
            if ending.task is not None:
                await asyncio.wait({ending.task})  # then what it drew is recorded, and this call goes on from there
        live = self._joined(session, prints, retry=retry) or self._replayed(session, call, prints, retry=retry)
        if live is not None:
            session.counters["joined"] += 1
            live.attach()
            return live
        session.check_budget(self.limits)
        if not self.journal.healthy:
            raise JournalError(self.journal.last_error or "the journal is not running")
        if self.in_flight >= self.settings.max_calls:
            raise self.limits.refuse("max_calls", busy("max_calls", f"{self.in_flight} calls are in flight"))
        if (drawing := session.drawing) >= self.settings.max_calls_per_session:
            what = f"{drawing} calls of this session are in flight"
            raise self.limits.refuse("max_calls_per_session", busy("max_calls_per_session", what))
        live = LiveReply(unique_id(), int(self.clock()), prints.request, grace=self.settings.grace_seconds)
        live.attach()
        observed().call = live.id
        session.live.append(live)
        self.in_flight += 1
        try:
            ticket = await self._ticket(session, call, prints, live.id, rewrites)
            live.prompt_tokens = len(ticket.prompt_ids) - ticket.continued
            session.check_open()  # rendering may have taken its time
        except BaseException:
            self.in_flight -= 1
            session.live.remove(live)
            raise
        session.counters["calls"] += 1
        live.task = asyncio.create_task(self.drawer.draw(session, ticket, live), name=f"draw {session.id}/{ticket.call_id}")
        live.task.add_done_callback(lambda _: self._ended(session, live))
        return live

    def _ended(self, session: Session, live: LiveReply) -> None:
        """Settle what a sample held. Called by its task, so also when that was cancelled before it ran."""
        self.in_flight -= 1
        live.fail(Unavailable("The reply was given up before it was begun."))  # unless it has ended by itself
        session.forget_if_over(live)

    def _joined(self, session: Session, prints: Fingerprints, *, retry: bool) -> LiveReply | None:
        """An identical call under way whose client is gone, or that this one says it repeats."""
        for live in reversed(session.live):
            if live.request == prints.request and live.error is None and (retry or not live.readers):
                return live
        return None

    def _replayed(self, session: Session, call: ModelCall, prints: Fingerprints, *, retry: bool) -> LiveReply | None:
        """A finished reply to an identical call that never reached its client."""
        tree = session.tree
        for turn in reversed(tree.earlier(prints)):
            if turn.sample.finish_reason is FinishReason.ABORT or tree.has_child(turn) or self._is_live(session, turn):
                continue
            if turn.delivered and not retry:
                return None
            session.counters["replayed"] += 1
            live = LiveReply(turn.call_id, int(self.clock()), prints.request, grace=0.0)
            live.turns = [turn]
            live.publish(_deltas(turn))
            turns, model = tree.reply_turns(turn), self.settings.model
            finish = turn.sample.finish_reason
            reply = make_reply(self.codec, call, turns, turn.reply, finish, created=live.created, model=model)
            live.prompt_tokens = reply.usage.prompt_tokens
            live.finish(reply)
            return live
        return None

    def _is_live(self, session: Session, turn: Turn) -> bool:
        return any(turn in live.turns and live.readers for live in session.live)

    def _partial(self, session: Session, prints: Fingerprints) -> Turn | None:
        """An aborted sample for an identical request that nothing has continued yet."""
        for turn in reversed(session.tree.earlier(prints)):
            open_end = turn.sample.finish_reason is FinishReason.ABORT and not session.tree.has_child(turn)
            if open_end and not any(turn in live.turns for live in session.live):
                return turn
        return None

    async def _ticket(self, session: Session, call: ModelCall, prints: Fingerprints, call_id: str, rewrites: int) -> Ticket:
        """Where the call goes, its ids, and how much may be drawn."""
        tree = session.tree
        placement = tree.place(call, prints)
        self.limits.check_images(placement.new)
        partial = self._partial(session, prints)
        if partial is not None:
            prompt_ids, line = tree.ids_through(partial), 0
            continued = sum(len(t.sample) for t in tree.reply_turns(partial))
        else:
            placement, prompt_ids, line = await self._prompt(session, call, prints, placement)
            continued = 0
        session.counters["ambiguous"] += placement.ambiguous
        sampling = effective_sampling(
            call, session.sampling or self.settings.sampling, seed_for=f"{session.rollout_id}/{session.counters['calls']}"
        )
        limit = self.info.max_context
        room = limit - (len(prompt_ids) - continued)
        if room <= 0:
            raise ContextOverflow(len(prompt_ids), limit)
        max_new = room if sampling.max_tokens is None else min(room, sampling.max_tokens)
        return Ticket(
            call=call,
            call_id=call_id,
            prints=prints,
            placement=placement,
            prompt_ids=prompt_ids,
            line=line,
            sampling=replace(sampling, max_tokens=max_new),
            max_new=max_new,
            continues=partial,
            continued=continued,
            rewrites=rewrites,
        )

    async def _prompt(
        self, session: Session, call: ModelCall, prints: Fingerprints, placement: Placement
    ) -> tuple[Placement, TokenIds, int]:
        """The prompt as ids: a recorded line extended, or the whole conversation rendered as a root; and the line's length."""
        parent = placement.parent
        if parent is not None:
            line = session.tree.ids_through(parent)
            if not self.info.takes_ids:
                return placement, line, len(line)
            prompt, sampled = line[: parent.prompt_len], line[parent.prompt_len :]
            delta = await self._maybe_threaded(
                placement.new, lambda: self.codec.bridge(prompt, sampled, placement.new, call.tools)
            )
            if delta is not None and len(delta):
                return placement, np.concatenate([line, delta]), len(line)
            placement = placement.as_root(self._why_not(placement), call)

        async def render() -> TokenIds:
            return await self._maybe_threaded(call.messages, lambda: self.codec.render(call.messages, call.tools))

        rendered = await (self.roots.get(prints.prefix[-1], render) if cacheable(call) else render())
        return placement, rendered, 0

    def _why_not(self, placement: Placement) -> ForkReason:
        if any(m.role is Role.ASSISTANT for m in placement.new):
            return ForkReason.EDITED
        return ForkReason.RETENTION if self.retention == "template" else ForkReason.BRIDGE

    async def _maybe_threaded(self, messages: Sequence[Message], work: Callable[[], _T]) -> _T:
        """Run ``work`` off the event loop when there is much to encode."""
        if sum(map(_characters, messages)) <= self.settings.thread_bytes:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self.threads, work)

    # --- from a reply to bytes ----------------------------------------------------------------------------------------

    async def _whole(
        self, request: web.BaseRequest, dialect: Dialect, session: Session, call: ModelCall, live: LiveReply
    ) -> web.StreamResponse:
        await live.ended()
        if live.reply is None:
            raise live.error or CallError("The reply ended in no known way.")
        response = web.Response(body=dialect.reply(call, live.reply), content_type="application/json")
        await response.prepare(request)
        await response.write_eof()
        self._delivered(session, live)
        return response

    async def _counted(self, session: Session, dialect: Dialect, call: ModelCall) -> web.Response:
        """How many tokens the call's prompt has: on its recorded line where it goes on one, so exactly what usage would say."""
        if self.info.takes_ids:
            prints = fingerprints(call, self.codec.fingerprint)
            _, prompt_ids, _ = await self._prompt(session, call, prints, session.tree.place(call, prints))
            count = len(prompt_ids)
        else:  # what a chat-only server would make of it is only known once it has
            count = await self._maybe_threaded(call.messages, lambda: self.codec.count(call.messages, call.tools))
        return web.Response(body=dialect.count(count), content_type="application/json")

    async def _stream(
        self, request: web.BaseRequest, dialect: Dialect, session: Session, call: ModelCall, live: LiveReply
    ) -> web.StreamResponse:
        encoder = dialect.stream(call, live.id, live.created, call.model or self.settings.model, live.prompt_tokens)
        response: web.StreamResponse | None = None
        async for batch in live.follow(self.settings.keep_alive_seconds, self.settings.stream_interval_seconds):
            await self.share.turn()
            out = b"".join(map(encoder.delta, batch)) if batch else encoder.keep_alive()
            response = await _send(request, response, encoder, out)
        if live.reply is None:
            error = live.error or CallError("The reply ended in no known way.")
            if response is None:
                raise error  # nothing was sent yet: a plain error answer is clearer than a failed stream
            await response.write(encoder.error(error))
            await response.write_eof()
            return response
        response = await _send(request, response, encoder, encoder.finish(live.reply))
        await response.write_eof()
        self._delivered(session, live)
        return response

    def _delivered(self, session: Session, live: LiveReply) -> None:
        """Note that the client has the whole reply. Nobody waits for the disk here: the client may have hung up."""
        for turn in live.turns:
            if not turn.delivered:
                turn.delivered = True
                self.journal.mark_delivered(session.id, turn.id)

    def _models(self, dialect: Dialect, route: Route) -> web.Response:
        name = self.settings.model
        if route.kind == "model" and not self.settings.any_model and route.model != name:
            raise NotFound(f"The model {route.model!r} does not exist.", code="model_not_found")
        if route.kind == "model":
            body = dialect.model(route.model or name, self.started_at, self.info.max_context)
        else:
            body = dialect.models([name], self.started_at, self.info.max_context)
        return web.Response(body=body, content_type="application/json")


_AS_IT_COMES = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


async def _send(
    request: web.BaseRequest, response: web.StreamResponse | None, encoder: StreamEncoder, out: bytes
) -> web.StreamResponse:
    """Write to the event stream, which begins with the first bytes there are to send."""
    if response is None:
        response = web.StreamResponse(headers={"Content-Type": encoder.content_type, **_AS_IT_COMES})
        await response.prepare(request)
        out = encoder.start() + out
    await response.write(out)
    return response


def _characters(message: Message) -> int:
    """About how much text there is to encode in a message."""
    size = 0
    for part in message.parts:
        if isinstance(part, Text | Reasoning):
            size += len(part.text)
        elif isinstance(part, ToolCall):
            size += len(part.arguments)
        elif isinstance(part, ToolResult):
            size += sum(len(item.text) for item in part.content if isinstance(item, Text))
    return size


def _sentence(exc: TokenError) -> str:
    """Its first line, cut: a chat template may say anything at any length."""
    return str(exc).partition("\n")[0][:_MAX_SENTENCE].rstrip(" .") + "."


def _answer(dialect: Dialect, exc: CallError) -> web.Response:
    status, headers, body = dialect.error(exc)
    return web.Response(status=status, headers=dict(headers), body=body, content_type="application/json")


def _deltas(turn: Turn) -> list[Delta]:
    """A recorded reply as deltas."""
    out: list[Delta] = []
    calls = 0
    for part in turn.reply.parts:
        if isinstance(part, Text):
            out.append(TextDelta(part.text))
        elif isinstance(part, Reasoning):
            out.append(ReasoningDelta(part.text))
        elif isinstance(part, ToolCall):
            out.append(ToolCallDelta(calls, part))
            calls += 1
    return out
