# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Runs inside vLLM: a whole new set of weights for a CPU worker.

``local_vllm`` loads it by ``--worker-extension-cls``; it is called over ``/collective_rpc``. vLLM's own ``reload_weights``
answers 200 on CPU and leaves most layers as they were: CPU linears are packed once, at start, and their ``weight`` is
emptied, so that a new weight reaches nothing. Here every layer gets its weight and is packed again.

It imports only torch and vLLM, since it lives in the engine's environment. It never touches the KV cache: whoever calls it
resets the prefix cache afterwards (``/reset_prefix_cache``), or answers mix old keys with new weights.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

FUSED: Mapping[str, tuple[str, ...]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
"""vLLM's fused layers and the checkpoint's names of their parts, in order of rows."""
TIED: Mapping[str, str] = {"lm_head": "model.embed_tokens.weight"}
"""Layers whose weight a checkpoint with tied embeddings leaves out, and where it is instead."""


class WeightSync:
    """A worker extension. Holds no state of its own; ``model_runner`` is the worker's."""

    model_runner: Any

    @torch.no_grad()
    def load_full(self, folder: str) -> dict[str, Any]:
        """Replace all weights by those in ``folder/model.safetensors`` (Hugging Face names, one file, tensor parallelism 1).

        Every tensor is looked up and its shape compared before the first layer changes, so a wrong file changes nothing.

        Returns:
            ``layers`` written, ``unused`` tensors of the file (a caller should refuse a list that is not empty), ``seconds``.

        Raises:
            KeyError: the file lacks a layer's weight.
            ValueError: a weight has another shape than the layer.
        """
        started = time.monotonic()
        tensors = load_file(str(Path(folder) / "model.safetensors"))
        plan: list[tuple[Any, torch.Tensor]] = []
        used: set[str] = set()
        for name, layer in self.model_runner.get_model().named_modules():
            for parameter in ("weight", "bias"):
                if layer._parameters.get(parameter) is None:
                    continue
                keys = _keys(name.replace(".base_layer", ""), parameter, tensors)
                value = torch.cat([tensors[k] for k in keys]) if len(keys) > 1 else tensors[keys[0]]
                _check_shape(name, layer, parameter, value)
                used.update(keys)
                plan.append(((layer, parameter), value))
        for (layer, parameter), value in plan:
            _write(layer, parameter, value)
        return {
            "layers": len(plan),
            "unused": sorted(set(tensors) - used),
            "seconds": round(time.monotonic() - started, 3),
        }


def _keys(name: str, parameter: str, tensors: Mapping[str, torch.Tensor]) -> list[str]:
    """The checkpoint's tensors that make up ``name``'s parameter."""
    parent, _, leaf = name.rpartition(".")
    keys = [f"{parent}.{part}.{parameter}".lstrip(".") for part in FUSED.get(leaf, (leaf,))]
    missing = [k for k in keys if k not in tensors]
    if missing and leaf in TIED and TIED[leaf] in tensors:
        return [TIED[leaf]]
    if missing:
        raise KeyError(f"the weights file lacks {', '.join(missing)}, which layer {name} needs")
    return keys


def _check_shape(name: str, layer: Any, parameter: str, value: torch.Tensor) -> None:
    """A packed layer has no shape left to compare; embeddings may be padded to more rows than the checkpoint has."""
    old = layer._parameters[parameter]
    if old.numel() == 0:
        rows, columns = getattr(layer, "output_size_per_partition", None), getattr(layer, "input_size_per_partition", None)
        expected = (rows, columns) if rows and columns else tuple(value.shape)
        fits = tuple(value.shape) == tuple(expected)
    else:
        expected = tuple(old.shape)
        fits = old.shape[1:] == value.shape[1:] and old.shape[0] >= value.shape[0]
    if not fits:
        raise ValueError(f"layer {name}: its {parameter} is {tuple(expected)}, the file's is {tuple(value.shape)}")


def _write(layer: Any, parameter: str, value: torch.Tensor) -> None:
    old = layer._parameters[parameter]
    if old.numel() == 0:
        setattr(layer, parameter, torch.nn.Parameter(value.to(old.dtype).contiguous(), requires_grad=False))
        dispatch_cpu_unquantized_gemm(layer, remove_weight=True)
        return
    old.data[: value.shape[0]].copy_(value)
    if parameter == "weight" and hasattr(layer, "cpu_linear"):
        dispatch_cpu_unquantized_gemm(layer, remove_weight=False)
