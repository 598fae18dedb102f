# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A LoRA adapter added to the weights it was trained on, for an engine that takes full weights. Runs in the trainer.

Only what plain LoRA does: anything else that peft can write changes more than a sum, and is refused.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from nemo_polar.errors import ConfigError

PREFIX = "base_model.model."
"""What peft puts before the names of the base model's modules."""


def merge_lora(
    base: Mapping[str, torch.Tensor], adapter: Mapping[str, torch.Tensor], config: Mapping[str, Any]
) -> dict[str, torch.Tensor]:
    """``W + scale * B @ A`` in float32 for every adapted layer; all other tensors as they are, in their own dtype.

    Args:
        base: Hugging Face names; ``W`` float[out, in].
        adapter: as peft saves it: ``...lora_A.weight`` float[r, in] and ``...lora_B.weight`` float[out, r].
        config: ``adapter_config.json``; scale is ``lora_alpha / r``, with ``use_rslora`` over the root of r.

    Raises:
        ConfigError: the adapter is no plain LoRA, or does not fit the base weights.
    """
    odd = [
        name for name in ("use_dora", "modules_to_save", "rank_pattern", "alpha_pattern", "fan_in_fan_out") if config.get(name)
    ]
    if odd or config.get("bias", "none") != "none":
        raise ConfigError(f"the adapter is no plain LoRA ({', '.join(odd) or 'bias'}), and cannot be merged as a sum")
    rank = int(config["r"])
    scale = config["lora_alpha"] / (math.sqrt(rank) if config.get("use_rslora") else rank)
    merged, left = dict(base), set(adapter)
    for key in sorted(k for k in adapter if k.endswith(".lora_A.weight")):
        name = key.removesuffix(".lora_A.weight")
        up, target = f"{name}.lora_B.weight", f"{name.removeprefix(PREFIX)}.weight"
        if up not in adapter or target not in base:
            raise ConfigError(f"the adapter's {key} has no {up if up not in adapter else target} to go with")
        delta = scale * (adapter[up].float() @ adapter[key].float())
        if delta.shape != base[target].shape:
            raise ConfigError(f"the adapter changes {target} as {tuple(delta.shape)}, and it is {tuple(base[target].shape)}")
        merged[target] = base[target].float() + delta
        left -= {key, up}
    if left:
        raise ConfigError(f"the adapter has tensors that are no LoRA: {', '.join(sorted(left)[:3])}")
    return merged
