# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What an inference engine is to Polar: ids in, ids and their log-probabilities out.

``generate`` is an async iterator of chunks; closing it early aborts the sample in the engine. An engine never renders, never
parses and never retries in the middle of a sample: what to do about a failure is the proxy's decision.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np

from nemo_polar.errors import EngineProtocol
from nemo_polar.types import FinishReason, LogProbs, ModelCall, SamplingParams, TokenIds


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What ``connect`` learnt about an engine."""

    model: str
    max_context: int
    """Tokens, prompt and sample together."""
    takes_ids: bool
    """False for a chat-only server: it renders itself, and what it reports is checked against the tree."""
    streams: bool = True
    scores: bool = False
    """True when ``score`` works."""
    weights_version: int | None = None
    """What it serves already, when that is known to have a number."""


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One sample to draw."""

    request_id: str
    prompt_ids: TokenIds
    """int32[P]"""
    sampling: SamplingParams
    """The parameters to use as they are; ``stop`` strings are not the engine's business (the parser cuts)."""
    stop_token_ids: tuple[int, ...]
    max_tokens: int
    """Tokens; already clamped to what fits."""
    session_id: str = ""
    """For affinity between replicas."""
    chat: ModelCall | None = None
    """The same request as messages, for a chat-only server."""
    required_prefix: int = 0
    """For a chat-only server: the first so many of ``prompt_ids`` are recorded ids it must keep (0 for a new root)."""


@dataclass(slots=True)
class Chunk:
    """Some sampled tokens. Not frozen: one is made for each token of a stream, and freezing costs several times the making."""

    token_ids: TokenIds
    """int32[t]"""
    logprobs: LogProbs
    """float32[t]"""
    finish_reason: FinishReason | None = None
    """Set on the last chunk only."""
    prompt_ids: TokenIds | None = None
    """The prompt as the engine says it saw it, when it says so (chat-only servers must, in their first chunk)."""
    weights_version: int | None = None
    """When the engine reports one."""


class Engine(Protocol):
    """A token-in/token-out client."""

    name: str

    async def connect(self) -> EngineInfo:
        """Reach the engine and prove that its log-probabilities are those of the sampling distribution.

        Raises:
            EngineUnavailable: not reachable.
            EngineProtocol: it answers, but its log-probabilities cannot be trained on; the message says what to start it with.
        """
        ...

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        """Draw one sample. The last chunk, and only it, has a finish reason; a stream that ends without one is an error.

        Raises:
            EngineError: one of its kinds.
        """
        ...

    async def score(self, token_ids: TokenIds) -> LogProbs:
        """Log-probability of every token given those before it, under the weights served now, at T=1.

        Returns:
            float32[N]; the first entry is 0.

        Raises:
            EngineError: this engine cannot score, or failed to.
        """
        ...

    async def health(self) -> None:
        """Return when the engine can serve.

        Raises:
            EngineUnavailable: it cannot.
        """
        ...

    async def pause(self) -> None:
        """Stop generating at once, so that weights can be replaced: running samples end with ``ABORT``, their ids intact."""
        ...

    async def resume(self, weights_version: int) -> None:
        """Serve again, under ``weights_version``; prefix caches of older weights are dropped."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class TellsWeights(Protocol):
    """What an engine has besides when it can say which weights it serves: a restart is told from a hiccup by it."""

    async def weights_version(self) -> int | None:
        """The number last given to ``resume``; None when there is none, as after a (re)start. It answers while paused, too.

        Raises:
            EngineError: it does not answer.
        """
        ...


_LEAST, _MOST = -9999.0, 1e-3
"""Between which a log-probability lies: vLLM writes -9999 for a missing one, and rounding makes some a little positive."""
_FEW = 16
"""Numbers that are looked at sooner one by one than by an array operation: a stream brings them singly."""


@dataclass(slots=True)
class ChunkChecker:
    """Rule 1 at the door: every engine client passes its chunks through one of these."""

    request_id: str
    seen: int = 0
    finished: bool = field(default=False)

    def check(
        self,
        token_ids: Sequence[int] | TokenIds,
        logprobs: Sequence[float | None] | LogProbs,
        finish_reason: FinishReason | None = None,
    ) -> tuple[TokenIds, LogProbs]:
        """Both as packed arrays.

        Raises:
            EngineProtocol: lengths differ, a log-probability is missing, not finite, positive or the -9999 that vLLM writes
                for "missing"; or tokens after the finish reason.
        """
        if self.finished:
            raise EngineProtocol(f"{self.request_id}: the engine sent tokens after its finish reason")
        if len(token_ids) != len(logprobs):
            raise EngineProtocol(
                f"{self.request_id}: {len(token_ids)} ids with {len(logprobs)} log-probabilities at token {self.seen}"
            )
        ids = np.array(token_ids, dtype=np.int32)
        lps = np.array(logprobs, dtype=np.float32)  # None becomes NaN
        good = [_LEAST < x <= _MOST for x in lps.tolist()] if len(lps) <= _FEW else (lps > _LEAST) & (lps <= _MOST)
        if not all(good):  # NaN and the infinities are not
            at = list(good).index(False)
            raise EngineProtocol(
                f"{self.request_id}: log-probability {lps[at]} at token {self.seen + at}; the engine must return a finite one "
                "for every token it samples"
            )
        self.seen += len(ids)
        self.finished = finish_reason is not None
        return ids, lps
