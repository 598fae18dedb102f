# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_polar.engines.sse import SseLines
from nemo_polar.errors import EngineProtocol

payloads = st.lists(st.binary(min_size=1, max_size=20).filter(lambda b: b.strip() == b and b"\n" not in b), max_size=8)


@given(payloads=payloads, cuts=st.lists(st.integers(0, 300), max_size=12), end=st.sampled_from([b"\n\n", b"\r\n\r\n"]))
def test_payloads_do_not_depend_on_where_the_bytes_are_cut(payloads, cuts, end):
    stream = b"".join(b": keep-alive\n\ndata: " + p + end for p in payloads)
    edges = [0, *sorted(min(c, len(stream)) for c in cuts), len(stream)]
    lines = SseLines()
    found = [p for a, b in pairwise(edges) for p in lines.feed(stream[a:b])]
    assert found == payloads
    assert lines.pending == b""


def test_a_line_cut_short_stays_pending():
    lines = SseLines()
    assert lines.feed(b'data: {"a"') == []
    assert lines.pending == b'data: {"a"'


def test_a_line_that_is_no_event_is_refused():
    with pytest.raises(EngineProtocol, match="not an event"):
        SseLines().feed(b"<html>\n")
