# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_polar.engines.hash_policy import HashPolicy
from nemo_polar.types import SamplingParams, as_ids

vocabularies = st.integers(2, 700)
prefixes = st.lists(st.integers(0, 1), max_size=5)


def every_logprob(policy: HashPolicy, prefix: list[int], sampling: SamplingParams) -> np.ndarray:
    distribution = policy.distribution(policy.prefix(as_ids(prefix)), sampling)
    return np.array([distribution.logprob(i) for i in range(policy.vocab)])


@given(vocab=vocabularies, prefix=prefixes, temperature=st.sampled_from([0.3, 1.0, 1.7]), top_k=st.sampled_from([-1, 3]))
@settings(max_examples=40, deadline=None)
def test_probabilities_sum_to_one_at_every_temperature(vocab, prefix, temperature, top_k):
    logprobs = every_logprob(HashPolicy(vocab), prefix, SamplingParams(temperature=temperature, top_k=top_k))
    assert math.isclose(np.exp(logprobs).sum(), 1.0, rel_tol=1e-9)


@given(vocab=vocabularies, prefix=prefixes)
@settings(max_examples=40, deadline=None)
def test_tempered_logprobs_are_the_tempered_softmax_of_the_plain_ones(vocab, prefix):
    policy = HashPolicy(vocab)
    plain = every_logprob(policy, prefix, SamplingParams())
    scaled = plain / 0.4
    expected = scaled - np.log(np.exp(scaled).sum())
    np.testing.assert_allclose(every_logprob(policy, prefix, SamplingParams(temperature=0.4)), expected, atol=1e-9)


@given(vocab=vocabularies, uniform=st.floats(0, 1, exclude_max=True), prefix=prefixes)
@settings(max_examples=60, deadline=None)
def test_drawing_follows_the_cumulative_distribution(vocab, uniform, prefix):
    policy = HashPolicy(vocab)
    distribution = policy.distribution(policy.prefix(as_ids(prefix)))
    token = distribution.draw(uniform)
    cumulative = np.cumsum(np.exp(every_logprob(policy, prefix, SamplingParams())))
    assert 0 <= token < vocab
    assert (cumulative[token - 1] if token else 0.0) - 1e-9 <= uniform <= cumulative[token] + 1e-9


@pytest.mark.parametrize("sampling", [SamplingParams(top_k=4), SamplingParams(top_p=0.3), SamplingParams(min_p=0.5)])
def test_truncation_never_draws_what_it_cut_off(sampling):
    policy = HashPolicy(97)
    distribution = policy.distribution(policy.prefix(as_ids([1])), sampling)
    drawn = {distribution.draw(u) for u in np.linspace(0, 0.999999, 200)}
    assert all(math.isfinite(distribution.logprob(token)) for token in drawn)
    assert sum(math.isfinite(distribution.logprob(token)) for token in range(97)) < 97


def test_other_weights_other_seeds_and_other_prefixes_are_other_models():
    policy = HashPolicy(64)
    ids = as_ids(range(20))
    base = policy.score(ids)
    assert np.abs(base - policy.score(ids, weights_version=1)).max() > 0.1
    assert np.abs(base - HashPolicy(64, seed=1).score(ids)).max() > 0.1
    shifted = policy.score(as_ids([63, *range(1, 20)]))
    assert np.abs(base[1:] - shifted[1:]).min() > 0  # every token sees the whole prefix, however far back it differs


def test_greedy_draws_the_likeliest_and_reports_its_plain_logprob():
    policy = HashPolicy(64)
    prefix = policy.prefix(as_ids([5]))
    greedy = policy.distribution(prefix, SamplingParams(temperature=0))
    (likeliest, logprob) = policy.distribution(prefix).top(1)[0]
    assert greedy.draw(0.99) == likeliest
    assert greedy.logprob(likeliest) == pytest.approx(logprob)
