# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The table of sessions is bounded, and its counts are those of what it holds."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from nemo_polar.engines.affinity import Affinity


def test_the_session_unused_for_longest_is_forgotten_first() -> None:
    table: Affinity[str] = Affinity(2)
    table.put("a", "x")
    table.put("b", "x")
    assert table.find("a") == "x"
    table.put("c", "y")
    assert (table.find("a"), table.find("b"), table.find("c")) == ("x", None, "y")
    assert (len(table), table.sessions("x"), table.sessions("y"), table.sessions("z")) == (2, 1, 1, 0)


@given(st.lists(st.tuples(st.sampled_from(["put", "find", "forget"]), st.integers(0, 6), st.integers(0, 2))), st.integers(1, 4))
def test_it_is_a_bounded_table_with_true_counts(steps: list[tuple[str, int, int]], limit: int) -> None:
    table: Affinity[int] = Affinity(limit)
    model: dict[str, int] = {}
    for what, session, replica in steps:
        name = str(session)
        if what == "find":
            assert table.find(name) == model.get(name)
            if name in model:
                model[name] = model.pop(name)
        elif what == "forget":
            table.forget(name)
            model.pop(name, None)
        else:
            table.put(name, replica)
            model.pop(name, None)
            model[name] = replica
            if len(model) > limit:
                del model[next(iter(model))]
        counts = Counter(model.values())
        assert len(table) == len(model) and all(table.sessions(r) == counts[r] for r in range(3))
