# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Auditing a run folder from async code, optionally re-scoring its tokens with an engine that serves the same weights."""

from __future__ import annotations

import asyncio
from pathlib import Path

from nemo_polar.engines.base import Engine
from nemo_polar.trajectory.audit import AuditReport, audit_run
from nemo_polar.types import LogProbs, TokenIds


async def audit_folder(path: Path, engine: Engine | None = None) -> AuditReport:
    """Audit in a thread; ``engine`` (connected) scores from this loop.

    Raises:
        AuditError: the folder is no finished run, or has no engine-side log.
        EngineError: the engine cannot score.
    """
    if engine is None:
        return await asyncio.to_thread(audit_run, path)
    loop = asyncio.get_running_loop()

    def score(token_ids: TokenIds) -> LogProbs:
        return asyncio.run_coroutine_threadsafe(engine.score(token_ids), loop).result()

    return await asyncio.to_thread(audit_run, path, score=score)
