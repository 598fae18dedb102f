# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What the real CLIs left behind in runs against a scripted model: ``tests/data/harnesses/<harness>.json``, by case.

Recorded with the pinned versions. The cases: ``work`` (a call, then text), ``talk`` (text alone), ``empty`` and
``empty_after_work`` (replies of nothing), ``length`` (cut at the token limit), ``refused`` (400 after a call), ``turns`` (more
calls than are allowed), ``dropped`` (a connection that always breaks), ``worked_round`` (one error that the CLI got over).
"""

from __future__ import annotations

import json
from pathlib import Path

from nemo_polar.harnesses.base import Harness, Outcome

FOLDER = Path(__file__).parents[1] / "data" / "harnesses"


def recorded_outcome(harness: Harness, case: str) -> Outcome:
    """What ``harness`` makes of one recorded run."""
    ran = json.loads((FOLDER / f"{harness.name}.json").read_text(encoding="utf-8"))[case]
    return harness.outcome(ran["exit_code"], ran["stdout"].encode(), ran["stderr"].encode())


def recorded_stdout(harness: Harness, case: str) -> bytes:
    """What it wrote in that run."""
    return json.loads((FOLDER / f"{harness.name}.json").read_text(encoding="utf-8"))[case]["stdout"].encode()
