# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The tree of a batch's traces against what it stands for, computed the slow way."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_polar.rl.prefix_tree import PrefixTree
from nemo_polar.types import as_ids

IDS = st.lists(st.integers(0, 2), max_size=8)
"""Few ids, so that prefixes are shared."""
BATCHES = st.lists(IDS, max_size=8).map(lambda batch: [as_ids(ids) for ids in batch])


@given(BATCHES)
def test_every_trace_is_read_back_along_its_path(batch: list) -> None:
    tree = PrefixTree.of(batch)
    for trace, path in zip(batch, tree.paths, strict=True):
        assert tree.tokens[path].tolist() == trace.tolist()
        assert tree.positions[path].tolist() == list(range(len(trace)))
        assert tree.parents[path].tolist() == [-1, *path[:-1].tolist()][: len(trace)]


@given(BATCHES)
def test_a_prefix_stands_once_however_many_traces_share_it(batch: list) -> None:
    tree = PrefixTree.of(batch)
    prefixes = {tuple(trace[: n + 1].tolist()) for trace in batch for n in range(len(trace))}
    assert len(tree) == len(prefixes)
    assert tree.trace_tokens == sum(map(len, batch))
    assert tree.sharing >= 1


@given(BATCHES)
def test_a_token_is_seen_from_exactly_the_tokens_after_it_in_its_traces(batch: list) -> None:
    tree = PrefixTree.of(batch)
    seen = {(int(i), int(j)) for path in tree.paths for n, i in enumerate(path) for j in path[: n + 1]}
    by_arrays = {(i, j) for i in range(len(tree)) for j in range(len(tree)) if j <= i < tree.ends[j]}
    assert by_arrays == seen


@given(BATCHES)
def test_the_ancestors_of_a_token_are_the_rest_of_its_path(batch: list) -> None:
    tree = PrefixTree.of(batch)
    for path in tree.paths:
        for n, place in enumerate(path):
            ranges = tree.ancestors(int(place))
            assert [i for start, stop in ranges for i in range(start, stop)] == path[:n].tolist()
            assert all(stop < start for (_, stop), (start, _) in pairwise(ranges))


@given(BATCHES)
def test_nodes_cover_the_tree_and_each_is_whole_in_each_of_its_traces(batch: list) -> None:
    tree = PrefixTree.of(batch)
    assert [place for node in tree.nodes for place in range(node.start, node.end)] == list(range(len(tree)))
    covered = [0] * len(batch)
    for node in tree.nodes:
        assert len(node) > 0 and node.traces
        assert node.parent is None or set(node.traces) < set(tree.nodes[node.parent].traces)
        for trace in node.traces:
            assert tree.paths[trace][node.position : node.position + len(node)].tolist() == list(range(node.start, node.end))
            covered[trace] += len(node)
    assert covered == list(map(len, batch))


@given(BATCHES, st.randoms(use_true_random=False))
def test_sums_and_masks_gather_what_every_trace_says_of_a_token(batch: list, random: object) -> None:
    rng = np.random.default_rng(random.getrandbits(32))  # type: ignore[attr-defined]
    tree = PrefixTree.of(batch)
    values = [rng.normal(size=len(trace)) for trace in batch]
    masks = [rng.random(len(trace)) < 0.5 for trace in batch]
    total, found = np.zeros(len(tree)), np.zeros(len(tree), bool)
    for path, value, mask in zip(tree.paths, values, masks, strict=True):
        for place, one, has in zip(path, value, mask, strict=True):
            total[place] += one
            found[place] |= has
    assert np.allclose(tree.sum_of(values), total)
    assert np.array_equal(tree.any_of(masks), found)


def test_equal_traces_are_merged_and_one_that_ends_within_another_splits_it() -> None:
    tree = PrefixTree.of([as_ids([5, 7, 7, 8]), as_ids([5, 7, 7, 2, 9]), as_ids([5, 7, 7, 8]), as_ids([5, 7])])
    assert tree.tokens.tolist() == [5, 7, 7, 2, 9, 8]
    assert [(node.start, node.end, node.parent, node.traces) for node in tree.nodes] == [
        (0, 2, None, (0, 1, 2, 3)),
        (2, 3, 0, (0, 1, 2)),
        (3, 5, 1, (1,)),
        (5, 6, 1, (0, 2)),
    ]
    assert (tree.trace_tokens, len(tree)) == (15, 6)


def test_ids_are_compared_as_numbers_however_large() -> None:
    tree = PrefixTree.of([as_ids([256, 1]), as_ids([1, 256]), as_ids([2**31 - 1]), as_ids([256])])
    assert tree.tokens.tolist() == [1, 256, 256, 1, 2**31 - 1]
    assert len(tree) == 5


@pytest.mark.parametrize("bad", [[3, -1], [[1, 2], [3, 4]]])
def test_what_is_no_line_of_token_ids_is_refused(bad: list) -> None:
    with pytest.raises(ValueError, match="trace 1 is not a line of token ids"):
        PrefixTree.of([as_ids([1]), as_ids(bad)])
