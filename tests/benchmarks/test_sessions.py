# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The load of many sessions, in small: every call is answered and recorded as the engine drew it."""

from __future__ import annotations

from benchmarks import sessions
from tests.support import models


async def test_every_call_of_every_session_is_answered_and_equals_the_engines_log(tmp_path):
    told = []
    load = sessions.Load(sessions=6, turns=3, arrive_seconds=0.2)
    found = await sessions.run(load, models.qwen3(), tmp_path, lambda done, of: told.append((done, of)))
    assert (found["calls"], found["errors"], found["drift_tokens"], found["findings"]) == (18, 0, 0, [])
    assert (found["turns_recorded"], found["bridged"]) == (18, 12)
    assert told[-1] == (18, 18) and found["rss_mb"]["most"] > 0
    sessions.draw(found, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 1000
