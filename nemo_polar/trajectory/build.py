# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A session's tree to traces: one per leaf, each sampled token trained at most once and accounted for (rules 2 and 3).

A trace is the concatenation of what was recorded, root to leaf; nothing is rendered, cut or realigned here. Since a trace holds
a turn's sample wholly or not at all, what becomes of a token is decided a turn at a time: one trace, its owner, trains it,
or it is masked for one reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from nemo_polar.errors import ConfigError, TokenError
from nemo_polar.settings import TracePolicy
from nemo_polar.trajectory.kinds import origins
from nemo_polar.types import FinishReason, ForkReason, Kind, MaskReason, Span, Trace, Turn

_KIND_REASONS = {
    Kind.SUBAGENT: MaskReason.SUBAGENT,
    Kind.COMPACTION: MaskReason.COMPACTION,
    Kind.AUXILIARY: MaskReason.AUXILIARY,
}


@dataclass(frozen=True, slots=True)
class BuiltTraces:
    """What a session's tree became. ``sampled == trained + sum(masked.values())``, over unique (turn, index) pairs."""

    traces: tuple[Trace, ...]
    """The kept ones, those that own tokens first; one a leaf, with an all-False mask where everything has another fate."""
    masked: Mapping[MaskReason, int]
    """Tokens by reason; reasons without any are left out."""
    sampled: int
    trained: int
    owners: Mapping[int, str] = field(default_factory=dict)
    """Turn id to the trace that trains its sample. A turn is here or in ``reasons``."""
    reasons: Mapping[int, MaskReason] = field(default_factory=dict)
    """Turn id to why its sample is not trained."""
    dropped: tuple[str, ...] = ()
    """Traces over ``max_trace_tokens``."""


@dataclass(frozen=True, slots=True)
class _Tree:
    """The turns of a session by id, and who follows whom."""

    turns: dict[int, Turn]
    children: dict[int, list[Turn]]

    def line(self, leaf: Turn) -> list[Turn]:
        """Root to leaf."""
        line = [leaf]
        while line[-1].parent is not None:
            line.append(self.turns[line[-1].parent])
        return line[::-1]


def build_traces(rollout_id: str, turns: Sequence[Turn], policy: TracePolicy, *, infra: bool = False) -> BuiltTraces:
    """One trace for each leaf of the tree that ``turns`` form. Kinds are taken from the turns (see ``kinds.classify``).

    A sample is masked, by the first of these that holds: the rollout failed for reasons that are not the policy's (``infra``);
    its kind is not trained; it was aborted and nothing continued it; its reply reached nobody; its distribution cannot be
    re-scored. Otherwise the first kept trace through it trains it, main ones first, then those whose own end is trained;
    with none left it is truncated. Linear in the tokens of the traces.

    Raises:
        TokenError: the turns are not a tree (a missing parent, a parent that is not older, two turns with one id).
        ConfigError: the policy does not train the main line, for which there is no mask reason.
    """
    if Kind.MAIN not in policy.train_kinds:
        raise ConfigError("train_kinds: the main line is always trained; leave 'main' in")
    tree = _tree(turns)
    why = _fates(tree, policy, infra)
    leaves = [t for t in tree.turns.values() if not tree.children[t.id]]
    leaves.sort(key=lambda t: (t.kind is not Kind.MAIN, t.id in why, t.id))

    lines: list[list[Turn]] = []
    dropped: list[str] = []
    for leaf in leaves:
        line = tree.line(leaf)
        if policy.max_trace_tokens is not None and sum(map(len, line)) > policy.max_trace_tokens:
            dropped.append(f"{rollout_id}/{leaf.id}")
        else:
            lines.append(line)
    first = _first_through(lines)
    owners = {t: f"{rollout_id}/{leaf}" for t, leaf in first.items() if t not in why}
    why.update({t: MaskReason.TRUNCATED for t in tree.turns if t not in owners and t not in why})

    came_from = origins(turns)
    traces = tuple(_trace(rollout_id, line, first, owners, came_from) for line in lines)
    masked: dict[MaskReason, int] = {}
    for turn_id, reason in why.items():
        if count := len(tree.turns[turn_id].sample):
            masked[reason] = masked.get(reason, 0) + count
    sampled = sum(len(t.sample) for t in tree.turns.values())
    trained = sum(int(np.count_nonzero(t.loss_mask)) for t in traces)
    if sampled != trained + sum(masked.values()):
        raise TokenError(f"{rollout_id}: {sampled} tokens were sampled, but {trained} are trained and {masked} masked")
    return BuiltTraces(traces, masked, sampled, trained, owners, why, tuple(dropped))


def _tree(turns: Sequence[Turn]) -> _Tree:
    tree = _Tree({}, {})
    for turn in sorted(turns, key=lambda t: t.id):
        if turn.id in tree.turns:
            raise TokenError(f"turn {turn.id} is there twice")
        if turn.parent is not None and turn.parent not in tree.turns:
            raise TokenError(f"turn {turn.id} has parent {turn.parent}, which is missing or not older")
        tree.turns[turn.id] = turn
        tree.children[turn.id] = []
        if turn.parent is not None:
            tree.children[turn.parent].append(turn)
    return tree


def _fates(tree: _Tree, policy: TracePolicy, infra: bool) -> dict[int, MaskReason]:
    """Why turns are masked, whatever traces are kept. Turns not in it are trained if a kept trace has them."""
    why: dict[int, MaskReason] = {}
    lost: dict[int, MaskReason | None] = {}
    for turn in reversed(tree.turns.values()):  # children before parents
        lost[turn.id] = _lost(turn, tree.children[turn.id], lost)
        if infra:
            reason = MaskReason.INFRA
        elif turn.kind not in policy.train_kinds:
            reason = _KIND_REASONS[turn.kind]
        elif lost[turn.id] is not None:
            reason = lost[turn.id]
        elif not turn.sample.sampling.rescorable and not policy.train_unrescorable:
            reason = MaskReason.DISTRIBUTION
        else:
            reason = None
        if reason is not None:
            why[turn.id] = reason
    return why


def _lost(turn: Turn, children: Sequence[Turn], lost: Mapping[int, MaskReason | None]) -> MaskReason | None:
    """Why nobody saw this reply; None when the harness has it.

    A child that answers the reply proves that it arrived. One that continues it is the same reply, so its fate is shared.
    """
    if not children:
        if turn.sample.finish_reason is FinishReason.ABORT:
            return MaskReason.ABANDONED
        return None if turn.delivered else MaskReason.UNDELIVERED
    if any(not c.continues or lost[c.id] is None for c in children):
        return None
    return lost[children[-1].id]


def _first_through(lines: Sequence[Sequence[Turn]]) -> dict[int, int]:
    """Turn id to the leaf of the first line that runs through it."""
    first: dict[int, int] = {}
    for line in lines:
        for turn in reversed(line):
            if turn.id in first:
                break
            first[turn.id] = line[-1].id
    return first


def _trace(
    rollout_id: str, line: Sequence[Turn], first: Mapping[int, int], owners: Mapping[int, str], came_from: Mapping[int, int]
) -> Trace:
    leaf, root = line[-1], line[0]
    trace_id = f"{rollout_id}/{leaf.id}"
    size = sum(map(len, line))
    token_ids = np.empty(size, dtype=np.int32)
    loss_mask = np.zeros(size, dtype=np.bool_)
    logprobs = np.zeros(size, dtype=np.float32)
    versions = np.full(size, -1, dtype=np.int32)
    spans: list[Span] = []
    at = 0
    for turn in line:
        if len(turn.prompt_delta):
            end = at + len(turn.prompt_delta)
            token_ids[at:end] = turn.prompt_delta
            spans.append(Span(at, end, "prompt" if turn is root else "context", turn.id))
            at = end
        if len(turn.sample):
            end = at + len(turn.sample)
            token_ids[at:end] = turn.sample.token_ids
            logprobs[at:end] = turn.sample.logprobs
            # A sample that spans a weight update counts as drawn under the older weights: staleness is never understated.
            versions[at:end] = turn.sample.weights_version[0]
            loss_mask[at:end] = owners.get(turn.id) == trace_id
            spans.append(Span(at, end, "sampled", turn.id))
            at = end
    parent, reason = _lineage(line, first, came_from)
    return Trace(
        id=trace_id,
        token_ids=token_ids,
        loss_mask=loss_mask,
        logprobs=logprobs,
        weights_version=versions,
        spans=tuple(spans),
        kind=leaf.kind,
        parent=None if parent is None else f"{rollout_id}/{parent}",
        fork_reason=reason,
    )


def _lineage(
    line: Sequence[Turn], first: Mapping[int, int], came_from: Mapping[int, int]
) -> tuple[int | None, ForkReason | None]:
    """The leaf of the line this one left or was started by, and why it is a line of its own. A branch inside one tree has no
    reason: the same history was sampled again."""
    root, leaf = line[0], line[-1]
    if first[root.id] == leaf.id:
        origin = came_from.get(root.id)
        return (None if origin is None else first.get(origin)), root.fork_reason
    branch = next(t for t in reversed(line) if first[t.id] != leaf.id)
    return first[branch.id], None
