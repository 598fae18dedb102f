# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What is stored is read back as it was: bits of arrays, and any text a model or a harness can write."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_polar.errors import JournalError
from nemo_polar.trajectory.codec import (
    array_from_dict,
    array_to_dict,
    dumps,
    ids_from_bytes,
    ids_to_bytes,
    loads,
    logprobs_from_bytes,
    logprobs_to_bytes,
    message_from_dict,
    message_to_dict,
    sampling_from_dict,
    sampling_to_dict,
)
from nemo_polar.types import Image, Message, Reasoning, Role, SamplingParams, Text, ToolCall, ToolResult, as_ids

text = st.text(alphabet=st.characters(exclude_categories=()), max_size=20)  # lone surrogates too
plain = st.builds(Text, text) | st.builds(Image, text, st.none() | text)
parts = (
    plain
    | st.builds(Reasoning, text)
    | st.builds(ToolCall, text, text, text, st.booleans())
    | st.builds(ToolResult, text, st.lists(plain, max_size=3).map(tuple), st.none() | text, st.booleans())
)
messages = st.builds(Message, st.sampled_from(Role), st.lists(parts, max_size=5).map(tuple), st.none() | text)


@given(messages)
def test_a_message_comes_back_as_it_was(message: Message) -> None:
    assert message_from_dict(loads(dumps(message_to_dict(message)))) == message


@given(st.lists(st.integers(-(2**31), 2**31 - 1)), st.binary(max_size=64))
def test_arrays_come_back_bit_for_bit(ids: list[int], floats: bytes) -> None:
    array = as_ids(ids)
    logprobs = np.frombuffer(floats[: len(floats) // 4 * 4], "<f4").astype(np.float32)  # NaN and infinities too
    assert ids_from_bytes(ids_to_bytes(array)).tolist() == ids
    assert logprobs_from_bytes(logprobs_to_bytes(logprobs)).tobytes() == logprobs.tobytes()
    for value, dtype in ((array, "<i4"), (logprobs, "<f4"), (array > 0, "|b1")):
        back = array_from_dict(loads(dumps(array_to_dict(value))), dtype)
        assert back.dtype == value.dtype and back.tobytes() == value.tobytes()


def test_stored_bytes_are_little_endian() -> None:
    assert ids_to_bytes(as_ids([1, -2])) == b"\x01\x00\x00\x00\xfe\xff\xff\xff"


def test_sampling_parameters_come_back_as_they_were() -> None:
    sampling = SamplingParams(0.3, 0.9, 5, 0.1, 0.2, 0.3, 1.1, 77, ("a", "b"), 5)
    assert sampling_from_dict(loads(dumps(sampling_to_dict(sampling)))) == sampling


@pytest.mark.parametrize(
    "read",
    [
        lambda: loads("{"),
        lambda: message_from_dict({"role": "user"}),
        lambda: message_from_dict({"role": "user", "parts": [{"type": "smell"}]}),
        lambda: sampling_from_dict({"heat": 1, "stop": []}),
        lambda: array_from_dict({"dtype": "<i4", "shape": [2], "data": "AAAA"}, "<i4"),
        lambda: array_from_dict({"dtype": "<f4", "shape": [1], "data": "AAAAAA=="}, "<i4"),
        lambda: array_to_dict(np.zeros(2)),
        lambda: dumps({"x": object()}),
    ],
)
def test_what_cannot_be_stored_or_read_is_a_journal_error(read) -> None:
    with pytest.raises(JournalError):
        read()
