# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Training on many continuations of one prefix, with the prefix computed once, forward and backward, exactly.

All rollouts of one harness begin with the same system prompt and tools: here some 1,430 of 1,550 tokens. Their keys and values
are computed once and detached; each batch of continuations attends to them and adds its gradient to them; at the end one
backward pass through the prefix carries the sum on into the weights. The result is the plain computation's, to rounding.

    prefix ids ──► model ──► keys, values (per layer) ──detached──► attended to by every continuation
                     ▲                                                        │
                     └──────────── one backward ◄──── gradients, summed ◄─────┘
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

ATTENTION = "polar_shared_prefix"
"""Load the model with ``attn_implementation=ATTENTION``."""

Pairs = dict[int, tuple[torch.Tensor, torch.Tensor]]
"""Layer number to keys and values, float[1, H, P, D] each."""


class SharedPrefix:
    """One prefix under one set of weights. Use: construct, ``logprobs`` and ``backward`` for each batch, then ``finish``."""

    _active: SharedPrefix | None = None
    """The one whose forward pass is running; the attention function has no other way to know."""

    def __init__(self, model: PreTrainedModel, prefix: Sequence[int], *, gradient: bool = True) -> None:
        """Computes the prefix. ``model`` is a causal LM (with or without adapters).

        ``gradient`` False: the prefix counts as given. That halves the time, and biases the gradient: what the weights do to
        the prefix is left out. For scoring, or a warm start.
        """
        self._model = model
        self._length = len(prefix)
        self._computed: Pairs = {}
        self._leaves: Pairs = {}
        with torch.set_grad_enabled(gradient):
            self._forward(torch.tensor([list(prefix)]), torch.arange(self._length)[None])
        self._leaves = {
            layer: (keys.detach().requires_grad_(gradient), values.detach().requires_grad_(gradient))
            for layer, (keys, values) in self._computed.items()
        }

    def logprobs(self, continuations: Sequence[Sequence[int]], wanted: Sequence[Sequence[bool]]) -> torch.Tensor:
        """Log-probabilities, at T=1, of the wanted tokens of what follows the prefix.

        Args:
            continuations: token ids; any lengths from 2 on.
            wanted: a mask for each, as long as it is. The first token cannot be wanted, as that would take the prefix's last
                hidden state: let the prefix end before anything is trained.

        Returns:
            float32[number of wanted tokens], in reading order.
        """
        width = max(map(len, continuations)) - 1
        inputs = torch.zeros(len(continuations), width, dtype=torch.long)
        targets, mask = torch.zeros_like(inputs), torch.zeros_like(inputs, dtype=torch.bool)
        for row, (ids, wants) in enumerate(zip(continuations, wanted, strict=True)):
            inputs[row, : len(ids) - 1] = torch.tensor(ids[:-1])
            targets[row, : len(ids) - 1] = torch.tensor(ids[1:])
            mask[row, : len(ids) - 1] = torch.tensor(wants[1:])
        positions = torch.arange(self._length, self._length + width)[None].expand_as(inputs)
        hidden = self._forward(inputs, positions)[mask]  # a row of scores is 85 times as wide as a hidden state
        scores = torch.log_softmax(self._model.get_output_embeddings()(hidden).float(), dim=-1)
        return scores.gather(1, targets[mask][:, None])[:, 0]

    def finish(self) -> None:
        """Carry the gradients that the continuations left at the prefix on into the weights. Once, after the last backward."""
        outputs, gradients = [], []
        for layer, pair in self._computed.items():
            for computed, leaf in zip(pair, self._leaves[layer], strict=True):
                if leaf.grad is not None:
                    outputs.append(computed)
                    gradients.append(leaf.grad)
        if outputs:
            torch.autograd.backward(outputs, gradients)
        self._computed.clear()
        self._leaves.clear()

    def _forward(self, inputs: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        SharedPrefix._active = self
        try:
            body = self._model.get_decoder()
            return body(input_ids=inputs, position_ids=positions, use_cache=False).last_hidden_state
        finally:
            SharedPrefix._active = None

    def _attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None) -> torch.Tensor:
        """Causal attention; of a continuation, over the prefix too. q: float[B, H, S, D]; k, v: float[B, H', S, D]."""
        if not self._leaves:
            self._computed[layer] = (k, v)
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)
        rows, length = q.shape[0], q.shape[2]
        keys, values = (
            torch.cat([p.expand(rows, -1, -1, -1), own], 2) for p, own in zip(self._leaves[layer], (k, v), strict=True)
        )
        mask = torch.ones(length, self._length + length, dtype=torch.bool).tril(self._length)
        return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, scale=scale, enable_gqa=True)


def _attention(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, scaling: float | None = None, **_: Any
) -> tuple[torch.Tensor, None]:
    """The shape transformers calls attention functions in. Its mask is not needed: rows are padded on the right only."""
    active = SharedPrefix._active
    if active is None:
        out = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=True)
    else:
        out = active._attend(module.layer_idx, query, key, value, scaling)
    return out.transpose(1, 2).contiguous(), None


ALL_ATTENTION_FUNCTIONS.register(ATTENTION, _attention)
