# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What each turn of a session was for, worked out from structure alone: tools, system prompt, position. Never from its text.

The main line is the root with tools under which most turns were sampled. What the other roots are follows from how they
relate to it; the turns below a root share its kind, as they share its tools and its system prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nemo_polar.errors import TokenError
from nemo_polar.types import Kind, Turn


@dataclass(slots=True)
class _Tree:
    """A root and the turns below it."""

    root: Turn
    ids: list[int] = field(default_factory=list)

    @property
    def keys(self) -> tuple[bytes, bytes]:
        return self.root.system_key, self.root.tools_key


def classify(turns: Sequence[Turn]) -> dict[int, Kind]:
    """The kind of every turn, by turn id. ``turns`` are those of one session, in any order; linear in their number.

    With M the main root:

    - M and the roots that M goes back to by way of ``fork_of`` under one system prompt: ``MAIN``;
    - no tools where M has some: ``COMPACTION`` if its history is ours (``fork_of``), ``AUXILIARY`` if it is a single turn (a
      title, a topic check), else ``SUBAGENT``;
    - history of ours and the system prompt of the line it left (the history was edited, or the tools changed): what that line
      is, except for a single turn after which that line went on: ``AUXILIARY``;
    - a new conversation with M's system prompt and tools that does not overlap M in time (what goes on after a compaction):
      ``MAIN``;
    - everything else is a ``SUBAGENT``, except single turns without tools: ``AUXILIARY``.

    Raises:
        TokenError: a parent is missing or not older.
    """
    trees: dict[int, _Tree] = {}
    root_of: dict[int, int] = {}
    last_below: dict[int, int] = {}
    """Turn id to the highest id that descends from it: whether a line went on."""
    for turn in sorted(turns, key=lambda t: t.id):
        if turn.parent is not None and turn.parent not in root_of:
            raise TokenError(f"turn {turn.id} has parent {turn.parent}, which is missing or not older")
        root = turn.id if turn.parent is None else root_of[turn.parent]
        root_of[turn.id] = root
        trees.setdefault(root, _Tree(turn)).ids.append(turn.id)
    for turn in sorted(turns, key=lambda t: -t.id):
        last = last_below.setdefault(turn.id, turn.id)
        if turn.parent is not None:
            last_below[turn.parent] = max(last, last_below.get(turn.parent, turn.parent))
    if not trees:
        return {}
    candidates = [t for t in trees.values() if t.root.tools_key] or list(trees.values())
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
            kinds[tree.root.id] = _kind(tree, main, trees, root_of, kinds, last_below)
    return {turn_id: kinds[root] for turn_id, root in root_of.items()}


def _kind(
    tree: _Tree,
    main: _Tree,
    trees: Mapping[int, _Tree],
    root_of: Mapping[int, int],
    kinds: Mapping[int, Kind],
    last_below: Mapping[int, int],
) -> Kind:
    root, single = tree.root, len(tree.ids) == 1
    if main.root.tools_key and not root.tools_key:
        if root.fork_of is not None:
            return Kind.COMPACTION
        return Kind.AUXILIARY if single else Kind.SUBAGENT
    if root.fork_of is not None and trees[root_of[root.fork_of]].root.system_key == root.system_key:
        went_on = last_below[root.fork_of] > root.id
        return Kind.AUXILIARY if single and went_on else kinds[root_of[root.fork_of]]
    if tree.keys == main.keys and (tree.ids[-1] < main.ids[0] or tree.ids[0] > main.ids[-1]):
        return Kind.MAIN
    return Kind.AUXILIARY if single and not root.tools_key else Kind.SUBAGENT
