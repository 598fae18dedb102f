# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What was counted in all sessions of a proxy, also in those that have ended.

A session counts for itself (``Session.counters``), as that is what its rollout reports. Where a counter has a label it is
written ``name:label``. Labels that a client chooses are folded here, so that no harness can make metrics grow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from nemo_polar.types import FinishReason, Turn

_MAX_DROPPED = 64
"""Different features left out that are told apart; the rules of the dialects have fewer."""
_OTHER = "other"


def count_turn(counters: Counter[str], turn: Turn) -> None:
    """Count a recorded turn for its session."""
    counters["sampled_tokens"] += len(turn.sample)
    counters["prompt_tokens"] += turn.prompt_len
    if turn.continues:
        counters["continued"] += 1
    elif turn.fork_reason is None:
        counters["bridged"] += 1
    else:
        counters[f"forks:{turn.fork_reason.value}"] += 1
    if turn.sample.finish_reason is FinishReason.ABORT:
        counters["aborted"] += 1
        return  # its reply goes on in another turn, or is no reply
    calls = turn.reply.tool_calls
    if calls and (malformed := sum(call.malformed for call in calls)):
        counters["malformed_calls"] += malformed


class Totals:
    """Of one proxy, since it was started."""

    def __init__(self) -> None:
        self.opened = 0
        """Sessions."""
        self.closed: Counter[str] = Counter()
        """Sessions by how they ended."""
        self._past: Counter[str] = Counter()

    def end(self, counters: Mapping[str, int], status: str) -> None:
        """Keep what a session that ends has counted."""
        self.closed[status] += 1
        _fold(self._past, counters)

    def sum(self, open_now: Iterable[Mapping[str, int]]) -> Counter[str]:
        """What ended sessions counted, and those that are open."""
        found: dict[str, int] = {}
        for counters in open_now:  # of a thousand sessions, in the event loop: so no more is done here than must be
            for name, count in counters.items():
                found[name] = found.get(name, 0) + count
        total = Counter(self._past)
        _fold(total, found)
        return total


def _fold(total: Counter[str], counters: Mapping[str, int]) -> None:
    for name, count in counters.items():
        total[_dropped(total, name) if name.startswith("dropped:") else name] += count


def _dropped(total: Mapping[str, int], name: str) -> str:
    """``dropped:field: why`` without the reason, and all fields that no rule knows as one."""
    _, feature, *rest = name.split(":", 2)
    if rest and feature == "unknown":
        return "dropped:unknown"
    folded = f"dropped:{feature}"
    known = folded in total or sum(other.startswith("dropped:") for other in total) < _MAX_DROPPED
    return folded if known else f"dropped:{_OTHER}"
