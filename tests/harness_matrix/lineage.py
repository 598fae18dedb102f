# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What became of a session: its turns and traces as plain rows, and whether kinds and parents are what they should be.

The scripted model knows what each call was for, as it is the one that wrote the sub-agent's task and the summary. The proxy has
to work that out from structure; here the two are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from nemo_polar.trajectory.kinds import classify, origins
from nemo_polar.types import Kind, Trace, Turn

Row = Mapping[str, Any]


def turn_rows(turns: Sequence[Turn], truth: Mapping[str, Kind]) -> list[dict[str, Any]]:
    """One row a turn. ``truth``: by request id, what the model took the call for. Keys are numbered as they appear."""
    kinds, came_from = classify(turns), origins(turns)
    systems: dict[bytes, int] = {}
    tools: dict[bytes, int] = {}
    return [
        {
            "id": turn.id,
            "parent": turn.parent,
            "fork_of": turn.fork_of,
            "origin": came_from.get(turn.id),
            "reason": None if turn.fork_reason is None else turn.fork_reason.value,
            "prompt_len": turn.prompt_len,
            "system": systems.setdefault(turn.system_key, len(systems)),
            "tools": tools.setdefault(turn.tools_key, len(tools)) if turn.tools_key else None,
            "calls": len(turn.reply.tool_calls),
            "kind": kinds[turn.id].value,
            "is": truth[turn.request_id].value if turn.request_id in truth else None,
            "says": " ".join(turn.reply.text.split())[:40],
        }
        for turn in sorted(turns, key=lambda t: t.id)
    ]


def trace_rows(traces: Iterable[Trace]) -> list[dict[str, Any]]:
    """One row a trace, by its last turn; ``parent`` is the last turn of another."""
    return [
        {
            "leaf": _leaf(trace.id),
            "root": trace.spans[0].turn,
            "kind": trace.kind.value,
            "parent": None if trace.parent is None else _leaf(trace.parent),
            "trained": int(np.count_nonzero(trace.loss_mask)),
        }
        for trace in traces
    ]


def misjudged(turns: Iterable[Row]) -> list[str]:
    """Turns whose kind is not what the model took them for."""
    return [f"turn {t['id']} is {t['is']}, taken for {t['kind']}" for t in turns if t["is"] and t["is"] != t["kind"]]


def misplaced(turns: Sequence[Row], traces: Sequence[Row]) -> list[str]:
    """Traces whose parent is not the trace they came from: of the first one, none; of every other, the main line then.

    Only the traces that a root begins are looked at; a branch inside a tree belongs to the trace it left.
    """
    kinds = {turn["id"]: turn["is"] for turn in turns}
    above = {turn["id"]: turn["parent"] for turn in turns}
    holds_main = {trace["leaf"]: "main" in {kinds[t] for t in _line(trace["leaf"], above)} for trace in traces}
    root_of = {trace["leaf"]: trace["root"] for trace in traces}
    found = []
    for trace in traces:
        if trace["parent"] is not None and root_of.get(trace["parent"]) == trace["root"]:
            continue
        before = [t["root"] for t in traces if holds_main[t["leaf"]] and t["root"] < trace["root"]]
        due = max(before, default=None)
        actual = None if trace["parent"] is None else root_of.get(trace["parent"])
        if actual != due:
            words = ("no trace" if root is None else f"the one that began with turn {root}" for root in (due, actual))
            found.append("the trace that began with turn {} came from {}, its parent is {}".format(trace["root"], *words))
    return found


def _line(leaf: int, above: Mapping[int, int | None]) -> list[int]:
    line: list[int] = []
    at: int | None = leaf
    while at is not None:
        line.append(at)
        at = above[at]
    return line


def _leaf(trace_id: str) -> int:
    return int(trace_id.rsplit("/", 1)[1])
