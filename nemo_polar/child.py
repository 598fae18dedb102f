# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Child processes that do not outlive the one that started them (Linux)."""

from __future__ import annotations

import ctypes
import signal

_PR_SET_PDEATHSIG = 1


def signalled_with_parent(number: signal.Signals) -> None:
    """In a child, before it starts: be sent ``number`` when the parent's thread dies, however that happens."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
