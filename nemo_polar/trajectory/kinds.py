# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What each turn of a session was for, and which turn a conversation came from: worked out from structure alone (tools, system
prompt, position, who waited for whom), never from text.

The main line is the root with tools under which most turns were sampled, of those that did not run *inside* another line: a
sub-agent may well take more turns than the one that started it, but it begins while a call of that one is unanswered, and that
one goes on after. What the other roots are follows from how they relate to the main one; the turns below a root share its kind,
as they share its tools and its system prompt. The one exception is a summary asked for within a line: its last turn.

A compaction is told by what follows it: the main conversation goes on with a *shorter* prompt than it had. A retry with an
edited history, which has the same structure otherwise, goes on with one as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from nemo_polar.errors import TokenError
from nemo_polar.types import Kind, Turn


def classify(turns: Sequence[Turn]) -> dict[int, Kind]:
    """The kind of every turn, by turn id. ``turns`` are those of one session, in any order.

    With M the main root:

    - M and the roots that M goes back to by way of ``fork_of`` under one system prompt: ``MAIN``;
    - no tools where M has some: ``COMPACTION`` if its history is ours (``fork_of``), ``AUXILIARY`` if it is a single turn (a
      title, a topic check), else ``SUBAGENT``;
    - history of ours and the system prompt of the line it left (the history was edited, or the tools changed): what that line
      is, except for a single turn after which that line went on: ``AUXILIARY``;
    - a new conversation with M's system prompt and tools that does not overlap M in time (what goes on after a compaction):
      ``MAIN``;
    - everything else is a ``SUBAGENT``, except single turns without tools: ``AUXILIARY``;
    - where the main line goes on in a shorter conversation, the turns without calls that led to it are ``COMPACTION``: the last
      of the conversation before, and single turns between the two that were ``AUXILIARY`` so far.

    Raises:
        TokenError: a parent is missing or not older.
    """
    forest = _Forest(turns)
    return _kinds(forest) if forest.trees else {}


def origins(turns: Sequence[Turn]) -> dict[int, int]:
    """For each root that came from a line of this session, the turn it came from; an older one, always.

    Of a main root, that is the turn it forked from, if that is of the latest main line, else the last turn of that line;
    of a compaction, the last turn of the main line before it; of a sub-agent or a side call, the turn whose call was unanswered
    when it began. With several turns waiting, a line that has started one of its kind before is taken, and of its turns the
    oldest that made more calls than it has been given sub-agents.

    Raises:
        TokenError: a parent is missing or not older.
    """
    forest = _Forest(turns)
    if not forest.trees:
        return {}
    kinds = _kinds(forest)
    found: dict[int, int] = {}
    starters = _Starters(forest)
    before: _Tree | None = None
    """The main line so far."""
    for tree in forest.trees.values():
        root, kind = tree.root, kinds[tree.root.id]
        origin = root.fork_of
        if before is not None and kind in (Kind.MAIN, Kind.COMPACTION):
            if kind is Kind.COMPACTION or origin not in before.ids:
                origin = max((t for t in before.ids if t < root.id), default=origin)
        elif origin is None and kind is not Kind.MAIN:
            origin = starters.of(tree)
        if origin is not None:
            found[root.id] = origin
        if kind is Kind.MAIN:
            before = tree
    return found


@dataclass(slots=True)
class _Tree:
    """A root and the turns below it."""

    root: Turn
    ids: list[int] = field(default_factory=list)
    """In order."""

    @property
    def keys(self) -> tuple[bytes, bytes]:
        return self.root.system_key, self.root.tools_key


class _Forest:
    """The turns of a session as trees."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        self.turns = {turn.id: turn for turn in sorted(turns, key=lambda t: t.id)}
        self.trees: dict[int, _Tree] = {}
        """By root, the oldest first."""
        self.root_of: dict[int, int] = {}
        self.last_below: dict[int, int] = {}
        """Turn id to the highest id that descends from it: whether a line went on."""
        self._answered: dict[int, int] = {}
        """Turn id to the first turn that has the results of its calls."""
        self._callers: list[int] = []
        """Turns with calls, by id."""
        for turn in self.turns.values():
            if turn.parent is not None and turn.parent not in self.root_of:
                raise TokenError(f"turn {turn.id} has parent {turn.parent}, which is missing or not older")
            root = turn.id if turn.parent is None else self.root_of[turn.parent]
            self.root_of[turn.id] = root
            self.trees.setdefault(root, _Tree(turn)).ids.append(turn.id)
            if turn.parent is not None and not turn.continues:
                self._answered.setdefault(turn.parent, turn.id)
            if turn.reply.tool_calls:
                self._callers.append(turn.id)
        for turn in reversed(self.turns.values()):
            last = self.last_below.setdefault(turn.id, turn.id)
            if turn.parent is not None:
                self.last_below[turn.parent] = max(last, self.last_below.get(turn.parent, turn.parent))

    def is_summary(self, at: int) -> bool:
        """True when it could be one: it makes no calls, and nothing answers it."""
        return not self.turns[at].reply.tool_calls and self.last_below[at] == at

    def waiting(self, root: int) -> list[int]:
        """The turns of other lines that waited for results of their calls when ``root`` began, oldest first."""
        found = []
        for at in self._callers:
            if at >= root:
                break
            if self.root_of[at] != root and self._answered.get(at, root) >= root:
                found.append(at)
        return found

    def inside(self, tree: _Tree) -> bool:
        """True when it began while a call of another line was unanswered, and that line went on after."""
        return tree.root.fork_of is None and any(self.last_below[t] > tree.root.id for t in self.waiting(tree.root.id))


class _Starters:
    """Who started which sub-agent, asked in the order they began."""

    def __init__(self, forest: _Forest) -> None:
        self._forest = forest
        self._given: dict[int, int] = {}
        """Turn id to how many sub-agents it has been given."""
        self._lines: dict[tuple[bytes, bytes], int] = {}
        """Keys of a sub-agent to the root of the line that started the last one with these."""

    def of(self, tree: _Tree) -> int | None:
        """The turn that started ``tree``; None when nobody waited."""
        forest = self._forest
        waiting = forest.waiting(tree.root.id)
        before = self._lines.get(tree.keys)
        waiting = [t for t in waiting if forest.root_of[t] == before] or waiting
        if not waiting:
            return None
        free = (t for t in waiting if self._given.get(t, 0) < len(forest.turns[t].reply.tool_calls))
        origin = next(free, waiting[-1])
        self._given[origin] = self._given.get(origin, 0) + 1
        self._lines[tree.keys] = forest.root_of[origin]
        return origin


def _kinds(forest: _Forest) -> dict[int, Kind]:
    trees, root_of = forest.trees, forest.root_of
    candidates = [t for t in trees.values() if t.root.tools_key] or list(trees.values())
    candidates = [t for t in candidates if not forest.inside(t)] or candidates
    main = max(candidates, key=lambda t: (len(t.ids), -t.root.id))
    kinds: dict[int, Kind] = {}
    """By root."""
    line = main
    while line.root.id not in kinds and line.root.system_key == main.root.system_key:
        kinds[line.root.id] = Kind.MAIN
        if line.root.fork_of is not None:
            line = trees[root_of[line.root.fork_of]]
    for tree in trees.values():  # oldest first, so that what a fork left is known
        if tree.root.id not in kinds:
            kinds[tree.root.id] = _kind(tree, main, forest, kinds)
    found = {turn_id: kinds[root] for turn_id, root in root_of.items()}
    for summary in _summaries(forest, kinds):
        found[summary] = Kind.COMPACTION
    return found


def _kind(tree: _Tree, main: _Tree, forest: _Forest, kinds: dict[int, Kind]) -> Kind:
    root, single = tree.root, len(tree.ids) == 1
    if main.root.tools_key and not root.tools_key:
        if root.fork_of is not None:
            return Kind.COMPACTION
        return Kind.AUXILIARY if single else Kind.SUBAGENT
    left = None if root.fork_of is None else forest.root_of[root.fork_of]
    if left is not None and root.fork_of is not None and forest.trees[left].root.system_key == root.system_key:
        went_on = forest.last_below[root.fork_of] > root.id
        return Kind.AUXILIARY if single and went_on else kinds[left]
    apart = tree.ids[-1] < main.ids[0] or tree.ids[0] > main.ids[-1]
    if tree.keys == main.keys and apart and not forest.inside(tree):
        return Kind.MAIN
    return Kind.AUXILIARY if single and not root.tools_key else Kind.SUBAGENT


def _summaries(forest: _Forest, kinds: dict[int, Kind]) -> list[int]:
    """The turns that summed up a main line so that it could go on in a shorter conversation. A first turn is none: there was
    nothing to sum up."""
    trees = list(forest.trees.values())
    mains = [tree for tree in trees if kinds[tree.root.id] is Kind.MAIN]
    found = []
    for tree, after in pairwise(mains):
        last = forest.turns[tree.ids[-1]]
        if last.id > after.root.id or after.root.prompt_len >= last.prompt_len:
            continue
        aside = [t.root for t in trees if last.id < t.root.id < after.root.id and len(t.ids) == 1]
        found += [t.id for t in aside if kinds[t.id] is Kind.AUXILIARY and not t.reply.tool_calls]
        summed_up_apart = any(t.id in found or kinds[t.id] is Kind.COMPACTION for t in aside)
        has_history = last.parent is not None or last.fork_of is not None
        if has_history and not last.reply.tool_calls and not summed_up_apart:
            # With those that were asked for again, as they were not what the harness wanted.
            found += [t for t in tree.ids if forest.turns[t].parent == last.parent and forest.is_summary(t)]
    return found
