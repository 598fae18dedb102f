# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Identifiers that are unique and not secret. Secrets come from ``secrets``; a system call for every id costs too much."""

from __future__ import annotations

import os
import random

_random = random.Random(os.urandom(32))
os.register_at_fork(after_in_child=lambda: _random.seed(os.urandom(32)))


def unique_id(size: int = 12) -> str:
    """``size`` random bytes in hexadecimal."""
    return f"{_random.getrandbits(8 * size):0{2 * size}x}"
