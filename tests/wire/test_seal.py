# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Reasoning sealed is reasoning unsealed; nothing else is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_polar.wire.seal import seal, unseal


@given(st.text(st.characters(exclude_categories=()), max_size=200))
def test_what_was_sealed_comes_back(text):
    assert unseal(seal(text)) == text
    assert seal(text).isascii()


@given(st.text(min_size=1, max_size=50), st.data())
def test_a_cut_or_changed_seal_is_none_of_ours(text, data):
    sealed = seal(text)
    cut = data.draw(st.integers(0, len(sealed) - 1))
    assert unseal(sealed[:cut]) is None


@pytest.mark.parametrize("foreign", ["", "polar1.", "polar1.####", "EqQBCkYIBxgCKkA", "polar1.AAAA", "polar1.é"])
def test_what_is_not_ours_is_none(foreign):
    assert unseal(foreign) is None
