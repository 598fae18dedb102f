# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A trainer's side of a hand-over, with Hugging Face models in float32. Runs in the engine's environment, where torch is:

    python -m tests.support.hf_trainer PLAN.json

It makes the weights that the plan names and writes, for each, the canaries' log-probabilities: ``NAME.npz`` with ``logprobs``
(float32[C, N]) and ``after`` (float32[C, V]).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from nemo_polar.rl.handover.merge_lora import merge_lora
from nemo_polar.rl.handover.weights_file import save_weights, seal

LORA = {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj", "down_proj"], "task_type": "CAUSAL_LM"}


@torch.no_grad()
def score(model: Any, canaries: torch.Tensor) -> dict[str, np.ndarray]:
    logits = [model(ids[None]).logits[0].float().log_softmax(-1) for ids in canaries]
    picked = [x[:-1].gather(-1, ids[1:, None])[:, 0] for x, ids in zip(logits, canaries, strict=True)]
    own = torch.stack([torch.cat([torch.zeros(1), x]) for x in picked])
    return {"logprobs": own.numpy(), "after": torch.stack([x[-1] for x in logits]).numpy()}


def load(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def near(folder: Path, size: float, target: Path) -> None:
    """Weights a little beside those in ``folder``: the second hand-over of a training step that hardly learns."""
    torch.manual_seed(1)
    tensors = load_file(folder / "model.safetensors")
    for name, value in tensors.items():
        if value.ndim == 2:
            tensors[name] = value + size * value.std() * torch.randn_like(value)
    save_weights(target, tensors, like=folder)


def adapter(folder: Path, seed: int, target: Path) -> Any:
    """A random adapter, saved as peft does; the adapted model."""
    torch.manual_seed(seed)
    model = get_peft_model(load(folder), LoraConfig(**LORA))
    for name, value in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(value, std=0.02)
    model.save_pretrained(target)
    seal(target)
    return model.eval()


def main() -> None:
    plan = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(2)
    out, canaries = Path(plan["out"]), torch.tensor(plan["canaries"])
    base, policy = Path(plan["base"]), Path(plan["policy"])
    near(policy, plan["near"], out / "near")
    folders = {"base": base, "policy": policy, "near": out / "near"}
    scores = {name: score(load(folder), canaries) for name, folder in folders.items()}
    for seed in (1, 2):
        scores[f"adapter{seed}"] = score(adapter(policy, seed, out / f"adapter{seed}"), canaries)
    # What we merge ourselves is what peft computes, and what it merges.
    added = load_file(out / "adapter1" / "adapter_model.safetensors")
    config = json.loads((out / "adapter1" / "adapter_config.json").read_text())
    merged = merge_lora(load_file(policy / "model.safetensors"), added, config)
    theirs = PeftModel.from_pretrained(load(policy), out / "adapter1").merge_and_unload().state_dict()
    off = max(float((theirs[name] - value).abs().max()) for name, value in merged.items())
    save_weights(out / "merged", merged, like=policy)
    scores["merged"] = score(load(out / "merged"), canaries)
    for name, arrays in scores.items():
        np.savez(out / f"{name}.npz", **arrays)
    (out / "merge.json").write_text(json.dumps({"weights_off": off}))


if __name__ == "__main__":
    main()
