# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What must hold of a row. Nothing is excused: a cell that could not be run breaks the first rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.harness_matrix.lineage import misjudged, misplaced
from tests.harness_matrix.scenarios import SCENARIOS, Delegate

RAN, MISSING, CRASHED = "ran", "not installed", "crashed"
_ENDS = {"completed", "harness_error"}
"""Ways for a rollout to end, whatever the policy or the harness does."""
_GIVEN_UP = {"429", "500"}
"""Scenarios in which the engine itself fails: a harness that gives up has ended for a reason of infrastructure."""
_TOOL_TURNS = 6


def broken(row: Mapping[str, Any]) -> list[str]:
    """The rules that ``row`` breaks, in words; empty when it passes."""
    if row["state"] != RAN:
        return [row["state"] + (f": {row['why']}" if row.get("why") else "")]
    found = [f"audit: {f['code']}: {f['message']}" for f in row["findings"][:3]]
    if row["drift_tokens"]:
        found.append(f"{row['drift_tokens']} tokens drift")
    if row["unaccounted"]:
        found.append(f"{row['unaccounted']} sampled tokens are not accounted for")
    allowed = _ENDS | ({"engine_failed"} if row["scenario"] in _GIVEN_UP else set[str]())
    for status, error in zip(row["statuses"], [*row["errors"], *[""] * len(row["statuses"])], strict=False):
        if status not in allowed:
            found.append(f"ended as {status}: {error}")
    if row["counters"].get("failed_unforeseen"):
        found.append("the proxy failed in an unforeseen way; see polar.log")
    return found + _BY_SCENARIO.get(row["scenario"], _happened)(row)


def _plain(row: Mapping[str, Any]) -> list[str]:
    found: list[str] = []
    if row["main_traces"] != [1] * SCENARIOS["plain"].rollouts:
        found.append(f"main traces of the rollouts: {row['main_traces']}, should be one each")
    if row["forks"]:
        found.append(f"forks: {row['forks']}")
    if not row["same_first_prompt"]:
        found.append("the rollouts' first prompts differ: " + "; ".join(row.get("prompt_differences", ())))
    if set(row["statuses"]) != {"completed"}:
        found.append(f"ended as {row['statuses']}: {row['errors']}")
    if row["bridged"] < _TOOL_TURNS * row["rollouts"]:
        found.append(f"only {row['bridged']} turns went on from others; {_TOOL_TURNS} a rollout are due")
    if set(row["rewards"]) != {1.0}:
        found.append(f"letters.txt is not what the model wrote (rewards {row['rewards']})")
    return found


def _happened(row: Mapping[str, Any]) -> list[str]:
    """The scenario's first fault must have taken place, or the row shows nothing."""
    if SCENARIOS[row["scenario"]].overflows:
        compacted = row["roots"] + sum(row["forks"].values()) > 1
        return [] if "400" in row["http"] or compacted else ["the context was not used up, and nothing was compacted"]
    first = next(iter(SCENARIOS[row["scenario"]].faults.values()))
    return [] if first.value in row["faults"] else [f"the fault {first.value} did not take place"]


def _subagent(row: Mapping[str, Any]) -> list[str]:
    due = sum(isinstance(act, Delegate) for step in SCENARIOS["subagent"].steps for act in step.acts)
    began = sum(turn["is"] == "subagent" and turn["parent"] is None for turns in row["turn_list"] for turn in turns)
    found = [] if began == due else [f"{began} sub-agents began, should be {due}"]
    if row["main_traces"] != [1]:
        found.append(f"main traces: {row['main_traces']}, should be one")
    if row["forks"]:
        found.append(f"forks: {row['forks']}")
    return found + _lineage(row)


def _compaction(row: Mapping[str, Any]) -> list[str]:
    summed_up = any(turn["is"] == "compaction" for turns in row["turn_list"] for turn in turns)
    return ([] if summed_up else ["nothing was compacted"]) + _lineage(row)


def _lineage(row: Mapping[str, Any]) -> list[str]:
    """Kinds and parents are right, all of it is trained but for side calls, and the task was done to its end."""
    found: list[str] = []
    for turns, traces in zip(row["turn_list"], row["trace_list"], strict=True):
        found += misjudged(turns) + misplaced(turns, traces)
    if masked := {reason: n for reason, n in row["masked"].items() if reason != "auxiliary"}:
        found.append(f"masked: {masked}")
    if set(row["statuses"]) != {"completed"}:
        found.append(f"ended as {row['statuses']}: {row['errors']}")
    if set(row["rewards"]) != {1.0}:
        found.append(f"letters.txt is not what the model wrote (rewards {row['rewards']})")
    return found


_BY_SCENARIO = {"plain": _plain, "subagent": _subagent, "compaction": _compaction}
