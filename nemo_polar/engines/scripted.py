# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""An engine in this process that says what it is told, or what a hash model says. For tests, demos and benchmarks; never for
training.

It keeps its own engine-side log, and its log-probabilities are those of a proper distribution, so that scoring, auditing and
weight hand-over can be tested against it, including an engine that serves other weights than it reports.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from pathlib import Path
from typing import Any

from nemo_polar.engines.base import Chunk, ChunkChecker, EngineInfo, GenerateRequest
from nemo_polar.engines.log import EngineLog
from nemo_polar.engines.script import Fault, Script, ScriptedOptions, ScriptedReply, load_script
from nemo_polar.engines.scripted_core import ScriptedCore, ScriptedFault
from nemo_polar.errors import EngineError, EngineOverloaded, EngineProtocol, EngineUnavailable
from nemo_polar.types import LogProbs, TokenIds

__all__ = ["Fault", "Script", "ScriptedEngine", "ScriptedOptions", "ScriptedReply"]


class ScriptedEngine:
    """``script``: a function, a list of replies, or the text of ``load_script``. Further keywords are ``ScriptedOptions``."""

    name = "scripted"

    def __init__(
        self,
        script: Script | str | Iterable[ScriptedReply | Sequence[int]] | None = None,
        *,
        log: str | Path | EngineLog | None = None,
        **options: Any,
    ):
        self.core = ScriptedCore(
            load_script(script) if isinstance(script, str) else script, log=log, options=ScriptedOptions(**options)
        )

    async def connect(self) -> EngineInfo:
        """Nothing to reach.

        Raises:
            EngineProtocol: it was told to report raw log-probabilities.
        """
        if self.core.options.logprobs == "raw":
            raise EngineProtocol("the scripted engine reports raw log-probabilities; use logprobs=processed")
        return EngineInfo(self.core.options.model, self.core.options.max_context, takes_ids=True, streams=True, scores=True)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        """See ``Engine.generate``; faults of the script come as the errors an engine client would raise for them."""
        checker = ChunkChecker(request.request_id)
        steps = self.core.draw(request)
        try:
            async for step in steps:
                ids, logprobs = checker.check(step.token_ids, step.logprobs, step.finish_reason)
                yield Chunk(ids, logprobs, step.finish_reason, weights_version=step.weights_version)
        except ScriptedFault as exc:
            raise _error(request.request_id, exc.fault) from exc
        finally:
            await steps.aclose()

    async def score(self, token_ids: TokenIds) -> LogProbs:
        """See ``Engine.score``."""
        return self.core.score(token_ids)

    async def health(self) -> None:
        """Always well."""

    async def weights_version(self) -> int | None:
        """See ``TellsWeights``."""
        return self.core.weights_version

    async def pause(self) -> None:
        self.core.pause()

    async def resume(self, weights_version: int) -> None:
        self.core.drop_cache()
        self.core.set_version(weights_version)
        self.core.resume()

    async def close(self) -> None:
        self.core.close()


def _error(request_id: str, fault: Fault) -> EngineError:
    message = f"{request_id}: scripted fault: {fault.value}"
    if fault in (Fault.OVERLOADED, Fault.BUSY):
        return EngineOverloaded(message)
    if fault in (Fault.HALF_LINE, Fault.NO_FINISH):
        return EngineProtocol(message)
    return EngineUnavailable(message)
