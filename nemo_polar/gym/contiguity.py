# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The rule a trainer holds a Gym response to: its token fields are one chain, each prompt going on from all that came before.

NeMo RL (``environments/nemo_gym.py``, main of 2026-08-22) looks only at output items whose ``generation_token_ids`` are not
empty, and ends the whole batch when a prompt does not begin with the tokens seen so far, or when a log-probability is NaN.
Gym 0.7.0 refuses items that have some of the token fields and not all. Both are checked here, before a trainer can trip over
them. Pure; nothing is repaired.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nemo_polar.errors import GymError
from nemo_polar.types import LogProbs, TokenIds

TOKEN_FIELDS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")
"""Gym's token fields: an item has all three or none."""


@dataclass(frozen=True, slots=True)
class Chain:
    """What the token fields of a response say, put together."""

    token_ids: TokenIds
    """int32[N]: the last prompt and its generation, which hold everything before them."""
    generations: tuple[tuple[int, int], ...]
    """``[start, end)`` in ``token_ids`` of each model call that is trained, in order."""
    logprobs: LogProbs
    """float32[G]: of all generations, one after the other."""


def check_contiguous(output_items: Iterable[Mapping[str, Any]]) -> Chain:
    """The chain that the token fields of ``output_items`` (``response.output`` as plain data) form.

    Raises:
        GymError: they form none; the message names the item by its index.
    """
    seen = np.empty(0, dtype=np.int32)
    generations: list[tuple[int, int]] = []
    logprobs: list[LogProbs] = []
    for index, item in enumerate(output_items):
        there = [name for name in (*TOKEN_FIELDS, "routed_experts") if name in item]
        if not there:
            continue
        if missing := [name for name in TOKEN_FIELDS if name not in there]:
            raise GymError(f"output[{index}] has {', '.join(there)} but not {', '.join(missing)}")
        prompt, drawn = (int_array(item[name], f"output[{index}].{name}") for name in TOKEN_FIELDS[:2])
        if not len(drawn):
            continue
        if not np.array_equal(prompt[: len(seen)], seen):
            size = min(len(prompt), len(seen))
            differs = prompt[:size] != seen[:size]
            at = int(np.argmax(differs)) if differs.any() else size
            raise GymError(f"output[{index}].prompt_token_ids leaves the {len(seen)} tokens before it at index {at}")
        drawn_logprobs = float_array(item[TOKEN_FIELDS[2]], f"output[{index}].{TOKEN_FIELDS[2]}")
        if len(drawn_logprobs) != len(drawn):
            raise GymError(f"output[{index}] has {len(drawn)} generated tokens and {len(drawn_logprobs)} log-probabilities")
        seen = np.concatenate([prompt, drawn])
        generations.append((len(prompt), len(seen)))
        logprobs.append(drawn_logprobs)
    return Chain(seen, tuple(generations), np.concatenate(logprobs) if logprobs else np.empty(0, dtype=np.float32))


def int_array(value: Any, where: str) -> TokenIds:
    """A JSON list of integers as int32[N].

    Raises:
        GymError: it is something else, or one does not fit; ``where`` is named.
    """
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError) as exc:
        raise GymError(f"{where} is no list of integers") from exc
    if array.ndim != 1 or (len(array) and array.dtype.kind != "i"):
        raise GymError(f"{where} is no list of integers")
    ids = array.astype(np.int32)
    if not np.array_equal(ids, array):
        raise GymError(f"{where} holds an integer of more than 32 bits")
    return ids


def float_array(value: Any, where: str) -> LogProbs:
    """A JSON list of numbers as float32[N], all finite.

    Raises:
        GymError: it is something else; ``where`` is named.
    """
    try:
        array = np.asarray(value)
    except ValueError as exc:
        raise GymError(f"{where} is no list of numbers") from exc
    if array.ndim != 1 or (len(array) and array.dtype.kind not in "if"):
        raise GymError(f"{where} is no list of numbers")
    with np.errstate(over="ignore"):
        floats = array.astype(np.float32)
    if not np.isfinite(floats).all():
        raise GymError(f"{where} holds a number that is not finite")
    return floats
