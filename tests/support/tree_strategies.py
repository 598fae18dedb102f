# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Hypothesis strategies: seeds and sizes of random trees of turns (``runs.draw_tree``), and policies to build traces under."""

from __future__ import annotations

from hypothesis import strategies as st

from nemo_polar.settings import TracePolicy
from nemo_polar.types import Kind

policies = st.builds(
    TracePolicy,
    train_kinds=st.sets(st.sampled_from([Kind.SUBAGENT, Kind.COMPACTION, Kind.AUXILIARY])).map(lambda s: (Kind.MAIN, *s)),
    max_trace_tokens=st.none() | st.integers(1, 120),
    train_unrescorable=st.booleans(),
)
trees = st.tuples(st.integers(0, 2**32), st.integers(0, 25))
