# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What the scripted engine and the scripted servers have in common: replies as told, drawn from a hash model, logged.

A script decides each reply; what it leaves open comes from the ``HashPolicy``, so that log-probabilities of scripted ids are
real ones and re-scoring agrees with them. Faults are part of a script. The core keeps the engine-side log itself, and knows
nothing of HTTP.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from nemo_polar.engines.base import GenerateRequest
from nemo_polar.engines.hash_policy import Distribution, HashPolicy, Prefix
from nemo_polar.engines.log import EngineCall, EngineLog
from nemo_polar.engines.script import Fault, Script, ScriptedOptions, ScriptedReply
from nemo_polar.errors import EngineOverflow, EngineProtocol
from nemo_polar.types import FinishReason, LogProbs, SamplingParams, TokenIds, as_ids, as_logprobs


class ScriptedFault(Exception):
    """Raised by ``ScriptedCore.draw`` where the transport has to misbehave."""

    def __init__(self, fault: Fault):
        super().__init__(fault.value)
        self.fault = fault


@dataclass(frozen=True, slots=True)
class Step:
    """What the engine emits at once."""

    token_ids: list[int]
    logprobs: list[float | None]
    finish_reason: FinishReason | None
    weights_version: int
    top: list[list[tuple[int, float]]] = field(default_factory=list)
    """For each token the likeliest ones, when asked for."""


@dataclass(slots=True, eq=False)
class _Running:
    request: GenerateRequest
    started_at: float
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    weights_version: int = 0
    logged: bool = False


class ScriptedCore:
    """The engine without its transport. One event loop."""

    def __init__(
        self,
        script: Script | Iterable[ScriptedReply | Sequence[int]] | None = None,
        *,
        log: str | Path | EngineLog | None = None,
        options: ScriptedOptions | None = None,
    ):
        self.options = options or ScriptedOptions()
        self.policy = HashPolicy(self.options.vocab, seed=self.options.seed)
        self.weights_version = 0
        """As reported."""
        self._served_version = 0
        self._loaded = False
        self._cached: dict[bytes, int] = {}
        """The weights that keys in the prefix cache are of."""
        self._script: Script | None = script if callable(script) else None
        self._queue: deque[ScriptedReply | Sequence[int]] = deque(() if script is None or callable(script) else script)
        self._log = EngineLog(log) if isinstance(log, str | Path) else log
        self._go = asyncio.Event()
        self._go.set()
        self._running: list[_Running] = []

    @property
    def running(self) -> int:
        """Samples being drawn now."""
        return len(self._running)

    def push(self, *replies: ScriptedReply | Sequence[int]) -> None:
        """Replies for the next requests, before the script is asked."""
        self._queue.extend(replies)

    def check(self, token_ids: TokenIds) -> None:
        """Raise what a real engine would for this prompt.

        Raises:
            EngineOverflow: no token fits after it.
        """
        if len(token_ids) >= self.options.max_context:
            raise EngineOverflow(
                f"the prompt (length {len(token_ids)}) leaves no room in the maximum model length of {self.options.max_context}"
            )

    async def draw(self, request: GenerateRequest, *, top: int = 0) -> AsyncGenerator[Step, None]:
        """Draw one sample, step by step; the last step has the finish reason. Closing it early aborts the sample.

        Raises:
            EngineOverflow: the prompt does not fit.
            ScriptedFault: the script says so.
        """
        self.check(request.prompt_ids)
        reply = self._next_reply(request)
        if reply.fault is not None and reply.fault in _AT_ONCE:
            raise ScriptedFault(reply.fault)
        await self._go.wait()
        call = _Running(request, time.time(), weights_version=self.weights_version)
        self._running.append(call)
        try:
            async for step in self._steps(call, reply, top):
                call.token_ids += step.token_ids
                call.logprobs += [math.nan if x is None else x for x in step.logprobs]
                if step.finish_reason is not None:
                    self._write(call, step.finish_reason)
                yield step
        finally:
            self._running.remove(call)
            self._write(call, FinishReason.ABORT)

    def score(self, token_ids: TokenIds) -> LogProbs:
        """float32[N] under the weights really served.

        Raises:
            EngineOverflow: too long.
        """
        self.check(token_ids)
        return self.policy.score(token_ids, self._served_version)

    def abort(self, request_id: str) -> None:
        """End the samples of that request with ``ABORT``."""
        for call in self._running:
            if call.request.request_id == request_id:
                call.stop.set()

    def pause(self) -> None:
        """End all samples with ``ABORT``; later requests wait."""
        self._go.clear()
        for call in self._running:
            call.stop.set()

    def set_version(self, weights_version: int) -> None:
        """Other weights, reported and (unless told to be stale) served."""
        self.weights_version = weights_version
        if not self.options.stale_weights and not self._loaded:
            self._served_version = weights_version

    def load_weights(self, number: int) -> None:
        """Serve (unless told to be stale) the weights of that number. From now on a version is only a name."""
        self._loaded = True
        if not self.options.stale_weights:
            self._served_version = number

    def drop_cache(self) -> None:
        """Forget the prefix cache (unless told to keep it)."""
        if not self.options.keeps_cache:
            self._cached.clear()

    def _drawing_weights(self, prompt_ids: TokenIds) -> int:
        block = self.options.cache_block
        if not block or len(prompt_ids) <= block:
            return self._served_version
        return self._cached.setdefault(prompt_ids[:block].tobytes(), self._served_version)

    def resume(self) -> None:
        """Serve again."""
        self._go.set()

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None

    def _next_reply(self, request: GenerateRequest) -> ScriptedReply:
        reply = self._queue.popleft() if self._queue else self._script(request) if self._script else None
        if reply is None:
            return ScriptedReply()
        return reply if isinstance(reply, ScriptedReply) else ScriptedReply(token_ids=reply)

    async def _steps(self, call: _Running, reply: ScriptedReply, top: int) -> AsyncGenerator[Step, None]:
        options, request = self.options, call.request
        chunk = reply.chunk_tokens or options.chunk_tokens
        delay = options.token_delay if reply.token_delay is None else reply.token_delay
        await _pause(call, options.first_delay if reply.first_delay is None else reply.first_delay)
        source = _Source(self.policy, options, request, reply, self._drawing_weights(request.prompt_ids), top)
        sent = 0
        while True:
            if call.stop.is_set():
                yield Step([], [], FinishReason.ABORT, call.weights_version)
                return
            limit = chunk
            if reply.fault is not None:
                if sent >= reply.fault_after:
                    await self._misbehave(call, reply.fault)
                    if reply.fault is Fault.HANG:
                        continue
                else:
                    limit = min(chunk, reply.fault_after - sent)
            ids, logprobs, tops, finish = source.take(limit)
            bad = reply.fault in _BAD_LOGPROBS and sent >= reply.fault_after
            reported: list[float | None] = [_BAD_LOGPROBS[reply.fault]] * len(ids) if bad else [*logprobs]
            yield Step(ids, reported, finish, call.weights_version, tops)
            if finish is not None:
                return
            sent += len(ids)
            await _pause(call, delay * len(ids))

    async def _misbehave(self, call: _Running, fault: Fault) -> None:
        if fault is Fault.HANG:
            await call.stop.wait()
        elif fault not in _BAD_LOGPROBS:
            raise ScriptedFault(fault)

    def _write(self, call: _Running, finish_reason: FinishReason) -> None:
        if call.logged or self._log is None:
            return
        call.logged = True
        sampling = call.request.sampling
        self._log.append(
            EngineCall(
                request_id=call.request.request_id,
                prompt_ids=call.request.prompt_ids,
                token_ids=as_ids(call.token_ids),
                logprobs=as_logprobs(call.logprobs),
                finish_reason=finish_reason.value,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                started_at=call.started_at,
                ended_at=time.time(),
                weights_version=call.weights_version,
            )
        )


_AT_ONCE = frozenset({Fault.UNAVAILABLE, Fault.OVERLOADED, Fault.BUSY})
_BAD_LOGPROBS: dict[Fault | None, float | None] = {
    Fault.NO_LOGPROB: None,
    Fault.NAN_LOGPROB: math.nan,
    Fault.SENTINEL_LOGPROB: -9999.0,
}


async def _pause(call: _Running, seconds: float) -> None:
    """Wait, but not beyond the end of the call. With no delay, only let others run."""
    if seconds <= 0:
        await asyncio.sleep(0)
        return
    try:
        await asyncio.wait_for(call.stop.wait(), seconds)
    except TimeoutError:
        return


class _Source:
    """The tokens of one reply, with their log-probabilities, until it ends."""

    def __init__(
        self,
        policy: HashPolicy,
        options: ScriptedOptions,
        request: GenerateRequest,
        reply: ScriptedReply,
        weights_version: int,
        top: int,
    ):
        self._policy, self._request, self._reply, self._top = policy, request, reply, top
        self._raw = options.logprobs == "raw"
        self._prefix: Prefix = policy.prefix(request.prompt_ids, weights_version)
        self._stops = {*request.stop_token_ids, *options.stop_token_ids}
        self._room = min(request.max_tokens, options.max_context - len(request.prompt_ids))
        self._random = np.random.default_rng(_seed(options.seed, request))
        self._drawn = 0
        self._ending = next(iter((*request.stop_token_ids, *options.stop_token_ids)), None)
        low_high = options.reply_tokens if reply.token_ids is None else None
        self._length = int(self._random.integers(low_high[0], low_high[1] + 1)) if low_high else None

    def take(self, limit: int) -> tuple[list[int], list[float], list[list[tuple[int, float]]], FinishReason | None]:
        """Up to ``limit`` tokens and, when they end the reply, why."""
        ids: list[int] = []
        logprobs: list[float] = []
        tops: list[list[tuple[int, float]]] = []
        finish = self._finished()
        while finish is None and len(ids) < limit:
            token_id, logprob, top = self._next()
            ids.append(token_id)
            logprobs.append(logprob)
            if self._top:
                tops.append(top)
            self._drawn += 1
            finish = FinishReason.STOP if token_id in self._stops else self._finished()
        return ids, logprobs, tops, finish

    def _finished(self) -> FinishReason | None:
        forced = self._reply.token_ids
        end = len(forced) if forced is not None else self._length
        if end is not None and self._drawn >= end:
            return self._reply.finish_reason or FinishReason.STOP
        return FinishReason.LENGTH if self._drawn >= self._room else None

    def _next(self) -> tuple[int, float, list[tuple[int, float]]]:
        drawn_from = self._policy.distribution(self._prefix, self._request.sampling)
        reported = self._policy.distribution(self._prefix) if self._raw else drawn_from
        uniform = float(self._random.random())
        if self._reply.token_ids is not None:
            token_id = int(self._reply.token_ids[self._drawn])
        elif self._ending is not None and self._length is not None and self._drawn == self._length - 1:
            token_id = self._ending
        else:
            token_id = drawn_from.draw(uniform)
        logprob = self._logprob(token_id, reported)
        top = reported.top(self._top) if self._top else []
        self._prefix.push(token_id)
        return token_id, logprob, top

    def _logprob(self, token_id: int, reported: Distribution) -> float:
        if self._reply.logprobs is not None:
            return float(self._reply.logprobs[self._drawn])
        logprob = reported.logprob(token_id)
        if logprob == -math.inf:
            # A scripted id that truncation would have cut: as if nothing had been.
            whole = replace(self._request.sampling, top_p=1.0, top_k=-1, min_p=0.0)
            logprob = self._policy.distribution(self._prefix, whole).logprob(token_id)
        if logprob == -math.inf:
            raise EngineProtocol(
                f"scripted id {token_id} is outside the vocabulary of {self._policy.vocab}; give a larger vocab"
            )
        return logprob


def _seed(seed: int, request: GenerateRequest) -> int:
    """The request's own seed with its prompt, or else the engine's with the request's id: either way repeatable."""
    sampling: SamplingParams = request.sampling
    if sampling.seed is not None:
        text = f"{sampling.seed}".encode() + request.prompt_ids.tobytes()
    else:
        text = f"{seed}/{request.request_id}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
