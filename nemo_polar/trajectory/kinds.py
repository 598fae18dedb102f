# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What each turn of a session was for, worked out from structure alone: tools, system prompt, position. Never from its text.

The main line is the root with tools under which most turns were sampled. What the other roots are follows from how they
relate to it; the turns below a root share its kind, as they share its tools and its system prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

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

    - no tools where M has some: ``COMPACTION`` if its history is ours (``fork_of``), ``AUXILIARY`` if it is a single turn (a
      title, a topic check), else ``SUBAGENT``;
    - history of ours and M's system prompt (the history was edited, or the tools changed): ``MAIN``, except for a single turn
      after which the line it left went on: ``AUXILIARY``;
    - a new conversation with M's system prompt and tools that does not overlap M in time (what goes on after a compaction):
      ``MAIN``;
    - everything else is a ``SUBAGENT``, except single turns without tools under another system prompt: ``AUXILIARY``.
    """
    trees: dict[int, _Tree] = {}
    root_of: dict[int, int] = {}
    last_below: dict[int, int] = {}
    """Turn id to the highest id that descends from it: whether a line went on."""
    for turn in sorted(turns, key=lambda t: t.id):
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
    return {i: _kind(tree, main, last_below) for tree in trees.values() for i in tree.ids}


def _kind(tree: _Tree, main: _Tree, last_below: dict[int, int]) -> Kind:
    root, single = tree.root, len(tree.ids) == 1
    if tree is main:
        return Kind.MAIN
    if main.root.tools_key and not root.tools_key:
        if root.fork_of is not None:
            return Kind.COMPACTION
        return Kind.AUXILIARY if single else Kind.SUBAGENT
    same_system = root.system_key == main.root.system_key
    if same_system and root.fork_of is not None:
        left_behind = last_below.get(root.fork_of, root.fork_of) < root.id
        return Kind.AUXILIARY if single and not left_behind else Kind.MAIN
    if tree.keys == main.keys and (tree.ids[-1] < main.ids[0] or tree.ids[0] > main.ids[-1]):
        return Kind.MAIN
    return Kind.AUXILIARY if single and not root.tools_key else Kind.SUBAGENT
