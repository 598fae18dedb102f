# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Are an engine's log-probabilities those of the distribution it samples from? For engines that report sampled tokens only.

``probe.py`` compares the likeliest tokens at two temperatures, which a server that reports no others than the sampled ones
can't be asked for. But at a temperature of ``HOT`` every token of a vocabulary of V is about as likely as any other, so

- log-probabilities of that distribution are all near ``-log V``: they hardly spread;
- those from before the temperature, of the same (now arbitrary) tokens, lie as far apart as the model's logits do: nats;
- an engine that draws at another temperature than it was told, or from a few likely tokens only, stays far above ``-log V``.

Tokens drawn at T=1 are the control: a model that is as even at T=1 as at ``HOT`` could not be told apart.

Pure: no socket, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

Verdict = Literal["processed", "raw", "held", "undecided"]

HOT = 100.0
TOKENS = 24
"""To draw at each temperature."""
_LEAST = 8
_EVEN = 0.3
"""Nats: more than logits a hundred times smaller than a model's spread."""
_UNEVEN = 1.0
"""Nats: less than a model's logits spread over its vocabulary."""
_FEW = 5.0
"""Nats: of 150 tokens in all. Vocabularies are larger; truncations that servers apply unasked leave fewer."""
_CONTROL = 0.5
"""Nats by which tokens at T=1 are likelier, at least."""


def judge(plain: Sequence[float], hot: Sequence[float]) -> Verdict:
    """``plain``, ``hot``: log-probabilities of tokens sampled at T=1 and at ``HOT``.

    Returns:
        ``held``: the temperature was not followed, or the draw was truncated though nothing was said of it. ``undecided``: too
        few tokens, or a model too even to tell.
    """
    if min(len(plain), len(hot)) < _LEAST:
        return "undecided"
    level = sum(hot) / len(hot)
    spread = math.sqrt(sum((x - level) ** 2 for x in hot) / len(hot))
    if level > -_FEW:
        return "held"
    if spread > _UNEVEN:
        return "raw"
    if spread > _EVEN or sum(plain) / len(plain) - level < _CONTROL:
        return "undecided"
    return "processed"
