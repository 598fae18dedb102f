# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The traces of a batch as one tree, in which a prefix that several of them share stands once.

All rollouts of a harness begin with the same system prompt and tools, those of a group with the same task, those that fork with
the same turns. The tree is kept flat: its tokens in depth-first order, so that every line from a root is in order and every
subtree is one range. Three arrays then say all that a forward pass needs (U unique tokens):

    tokens     5 7 7 │ 2 9 │ 2 4 4 │ 8        traces: 5 7 7 2 9,  5 7 7 2 4 4 (shares the 2),  5 7 7 8
    positions  0 1 2   3 4     4 5   3        what the token's position is in its trace
    ends       ...                            token j is seen from token i when  j <= i < ends[j]

It is built from the sorted traces, each compared with the one before it: time and memory are linear in their tokens. Pure: it
needs no torch, and never looks at what the tokens mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from nemo_polar.types import Mask, TokenIds, as_ids

Places = npt.NDArray[np.int64]
"""Where tokens stand in a tree: int64[N], each from 0 to U - 1."""
Values = npt.NDArray[np.floating]


@dataclass(frozen=True, slots=True)
class Node:
    """A run of tokens that no trace enters, leaves or ends within: ``[start, end)`` of the tree."""

    start: int
    end: int
    parent: int | None
    """The node before it, by its number in ``PrefixTree.nodes``; None at a root."""
    position: int
    """Of its first token in every trace that it is part of: this node covers ``[position, position + end - start)`` of each."""
    traces: tuple[int, ...]
    """Which traces have it, in the order they were given."""

    def __len__(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class PrefixTree:
    """A batch's traces, merged. Build it with ``of``."""

    tokens: TokenIds
    """int32[U], depth-first."""
    positions: Places
    """int64[U]: the distance from the root."""
    ends: Places
    """int64[U]: where the token's subtree ends (exclusive). All tokens that descend from token j lie in ``[j, ends[j])``."""
    parents: Places
    """int64[U]: the token before it; -1 at a root."""
    paths: tuple[Places, ...]
    """For each trace as given, int64[N]: where each of its tokens stands. Traces that are equal have equal paths."""

    @classmethod
    def of(cls, traces: Sequence[TokenIds]) -> PrefixTree:
        """The tree of ``traces`` (int32[N] each, ids from 0 on; an empty one adds nothing).

        Raises:
            ValueError: a trace is not one-dimensional, or holds a negative id.
        """
        ids = [as_ids(trace) for trace in traces]
        for number, trace in enumerate(ids):
            if trace.ndim != 1 or (len(trace) and trace.min() < 0):
                raise ValueError(f"trace {number} is not a line of token ids: shape {trace.shape}")
        # Big-endian bytes sort as the ids do; what shares a prefix then lies side by side, with the longest one next to it.
        order = sorted(range(len(ids)), key=[trace.astype(">i4").tobytes() for trace in ids].__getitem__)
        total = sum(map(len, ids))
        tokens, parents = np.empty(total, np.int32), np.empty(total, np.int64)
        positions, ends = np.empty(total, np.int64), np.empty(total, np.int64)
        paths: list[Places] = [np.empty(0, np.int64)] * len(ids)
        size, before, path = 0, np.empty(0, np.int32), np.empty(0, np.int64)
        for number in order:
            trace = ids[number]
            shared = _common(before, trace)
            ends[path[shared:]] = size
            new = slice(size, size + len(trace) - shared)
            tokens[new] = trace[shared:]
            positions[new] = np.arange(shared, len(trace))
            path = np.concatenate([path[:shared], np.arange(new.start, new.stop)])
            parents[new] = np.arange(new.start, new.stop) - 1
            if len(trace) > shared:
                parents[size] = path[shared - 1] if shared else -1
            paths[number], before, size = path, trace, new.stop
        ends[path] = size
        return cls(tokens[:size], positions[:size], ends[:size], parents[:size], tuple(paths))

    def __len__(self) -> int:
        """U, the unique tokens."""
        return len(self.tokens)

    @property
    def trace_tokens(self) -> int:
        """Tokens of all traces, shared ones counted in each."""
        return sum(map(len, self.paths))

    @property
    def sharing(self) -> float:
        """How many traces a token is part of on average: what a computation that shares prefixes has less to do. 1 at least."""
        return self.trace_tokens / len(self) if len(self) else 1.0

    def ancestors(self, place: int) -> list[tuple[int, int]]:
        """The ranges of the tree that the tokens before ``place`` in its trace stand in, in order."""
        ranges = []
        at = int(self.parents[place])
        while at >= 0:
            start = int(self._run_starts[at])
            ranges.append((start, at + 1))
            at = int(self.parents[start])
        return ranges[::-1]

    def any_of(self, masks: Sequence[Mask]) -> Mask:
        """bool[U]: the tokens that some trace's mask (bool[N] each) has."""
        found = np.zeros(len(self), np.bool_)
        for path, mask in zip(self.paths, masks, strict=True):
            found[path[mask]] = True
        return found

    def sum_of(self, values: Sequence[Values]) -> npt.NDArray[np.float64]:
        """float64[U]: for each token the sum of what the traces (float[N] each) have for it, as gradients add up."""
        total = np.zeros(len(self))
        for path, part in zip(self.paths, values, strict=True):
            total[path] += part  # a trace passes a token once, so that no index repeats
        return total

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """The tree in segments, depth-first. For people and tests: the forward pass works on the tokens."""
        starts = self._node_starts()
        number_of = np.cumsum(starts) - 1
        cuts = np.flatnonzero(starts).tolist()
        through: list[list[int]] = [[] for _ in cuts]
        for trace, path in enumerate(self.paths):
            for node in np.unique(number_of[path]):
                through[node].append(trace)
        nodes = []
        for node, (start, stop) in enumerate(pairwise([*cuts, len(self)])):
            parent = int(self.parents[start])
            above = int(number_of[parent]) if parent >= 0 else None
            nodes.append(Node(start, stop, above, int(self.positions[start]), tuple(through[node])))
        return tuple(nodes)

    @cached_property
    def _run_starts(self) -> Places:
        """int64[U]: where the run of tokens, each the child of the one before it in the tree's order, began."""
        places = np.arange(len(self))
        return np.maximum.accumulate(np.where(self.parents != places - 1, places, 0)) if len(self) else places

    def _node_starts(self) -> Mask:
        """bool[U]: a token that is no only child, or that follows one at which a trace ends."""
        starts = np.ones(len(self), np.bool_)
        children = np.bincount(self.parents[self.parents >= 0], minlength=len(self))
        ending = np.zeros(len(self), np.bool_)
        ending[[path[-1] for path in self.paths if len(path)]] = True
        inner = np.flatnonzero(self.parents >= 0)
        above = self.parents[inner]
        starts[inner] = (children[above] > 1) | ending[above]
        return starts


def _common(left: TokenIds, right: TokenIds) -> int:
    """The length of the common prefix."""
    length = min(len(left), len(right))
    differ = np.flatnonzero(left[:length] != right[:length])
    return int(differ[0]) if len(differ) else length
