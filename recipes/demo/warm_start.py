# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Fits the demo's LoRA adapter on the demonstrations of a run, on the trajectories' own loss masks.

    PYTHONPATH=. .venv-engine/bin/python recipes/demo/warm_start.py runs/demonstrations

Runs in the engine's environment, which has torch, transformers and peft. A few minutes on two cores; the same seed on the same
machine gives the same adapter. It trains on every token that the masks say was sampled and is to be trained, the deliberately
wrong ones too (``nemo_polar/demo/teacher.py``): the adapter is where reinforcement learning starts, not a finished policy.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from shared_prefix import ATTENTION, SharedPrefix
from transformers import AutoModelForCausalLM

from nemo_polar.trajectory.store import TRAJECTORIES, read_trajectories

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@dataclass(frozen=True)
class Options:
    """How the adapter is fitted."""

    rank: int = 8
    steps: int = 24
    batch: int = 16
    """Traces a step."""
    micro_batch: int = 8
    """Traces in one forward pass; only memory depends on it."""
    learning_rate: float = 1e-3
    warm_up: int = 3
    """Steps until the learning rate is reached; in the second half it falls off linearly to a tenth."""
    prefix_gradient: int = 0
    """1: the exact gradient, at twice the time a step; 0: the shared prefix counts as given (``SharedPrefix``)."""
    clip: float = 1.0
    """Of the gradient's norm."""
    seed: int = 0

    def rate(self, step: int) -> float:
        rise = min(1.0, (step + 1) / self.warm_up)
        fall = min(1.0, 2 * (1 - step / self.steps) * 0.9 + 0.1)
        return self.learning_rate * rise * fall


@dataclass(frozen=True)
class Example:
    """One trace."""

    ids: list[int]
    mask: list[bool]
    """The trace's loss mask, as long as ``ids``."""


def read_examples(run: Path) -> tuple[list[Example], list[float]]:
    """Every trace that trains a token, and the rewards of the rollouts they are from."""
    examples, rewards = [], []
    for trajectory in read_trajectories(run / TRAJECTORIES):
        if trajectory.status.infra or trajectory.reward is None:
            continue
        rewards.append(trajectory.reward)
        for trace in trajectory.traces:
            if trace.loss_mask.any():
                examples.append(Example(trace.token_ids.tolist(), trace.loss_mask.tolist()))
    return examples, rewards


def common_prefix(examples: Sequence[Example]) -> list[int]:
    """The tokens that all examples begin with, ending before the first one that any of them trains and leaving a token over."""
    limit = min(min(len(e.ids) - 2, e.mask.index(True) - 1) for e in examples)
    first = examples[0].ids
    length = next((i for i in range(limit) if any(e.ids[i] != first[i] for e in examples)), limit)
    return first[: max(length, 1)]


def fit(model: torch.nn.Module, examples: Sequence[Example], options: Options) -> list[float]:
    """Minimise the mean negative log-likelihood of the masked tokens. Returns the loss of each step, in nats a token."""
    prefix = common_prefix(examples)
    start = len(prefix)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=options.learning_rate, betas=(0.9, 0.99), weight_decay=0.0)
    rng = random.Random(options.seed)
    queue: list[Example] = []
    losses = []
    began = time.monotonic()
    for step in range(options.steps):
        while len(queue) < options.batch:
            queue += rng.sample(examples, len(examples))
        batch, queue = sorted(queue[: options.batch], key=lambda e: len(e.ids)), queue[options.batch :]
        tokens = sum(sum(e.mask) for e in batch)
        for group in optimizer.param_groups:
            group["lr"] = options.rate(step)
        total = 0.0
        with torch.autocast("cpu", torch.bfloat16):
            shared = SharedPrefix(model, prefix, gradient=bool(options.prefix_gradient))
            for at in range(0, len(batch), options.micro_batch):
                rows = batch[at : at + options.micro_batch]
                loss = -shared.logprobs([e.ids[start:] for e in rows], [e.mask[start:] for e in rows]).sum() / tokens
                loss.backward()
                total += float(loss.detach())
            shared.finish()
        torch.nn.utils.clip_grad_norm_(trained, options.clip)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
        elapsed = time.monotonic() - began
        left = elapsed / (step + 1) * (options.steps - step - 1)
        print(f"step {step + 1}/{options.steps}  loss {total:.3f}  {elapsed:.0f} s, {left:.0f} s to go", flush=True)
    return losses


def save(model: torch.nn.Module, target: Path, report: dict[str, object]) -> None:
    """The adapter in peft's format, its weights in bfloat16, with a README of how it was made."""
    target.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(target)
    weights = target / "adapter_model.safetensors"
    save_file(
        {name: value.to(torch.bfloat16) for name, value in load_file(weights).items()}, weights, metadata={"format": "pt"}
    )
    weights.chmod(0o644)
    config = target / "adapter_config.json"
    settings = json.loads(config.read_text(encoding="utf-8"))
    settings["base_model_name_or_path"] = "SmolLM2-135M-Instruct"
    config.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    (target / "README.md").write_text(README.format(report=json.dumps(report, indent=2)), encoding="utf-8")


README = """# The demo's adapter

A LoRA for SmolLM2-135M-Instruct (Apache-2.0), which untrained never calls a tool. It was fitted on demonstrations that Pi
itself made, in its sandbox and through the capture proxy, with a scripted teacher in the engine's place, some of them wrong on
purpose; the loss masks are the trajectories' own. `make adapter` makes it again: `recipes/demonstrations.yaml`, then
`recipes/demo/warm_start.py`. `make model` merges it into the base model, which is what the demo serves.

The demonstrations' words are not those of `tasks.yaml` (`words.json`: train, held_out).

```json
{report}
```
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Fit the demo's adapter on a run of demonstrations.")
    parser.add_argument("run", type=Path, help="folder with trajectories.jsonl")
    parser.add_argument("--base", type=Path, default=ROOT / ".polar" / "models" / "smollm2-135m")
    parser.add_argument("--target", type=Path, default=ROOT / "nemo_polar" / "demo" / "adapter")
    for name, value in asdict(Options()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    args = parser.parse_args()
    options = Options(**{name: getattr(args, name) for name in asdict(Options())})
    torch.manual_seed(options.seed)
    with contextlib.suppress(AttributeError):
        torch.set_num_threads(len(os.sched_getaffinity(0)))
    examples, rewards = read_examples(args.run)
    if not examples:
        sys.exit(f"{args.run} holds no trace that trains a token")
    prefix = len(common_prefix(examples))
    sampled = sum(sum(e.mask) for e in examples)
    print(f"{len(examples)} traces, {sampled} tokens to train, {prefix} tokens shared by all", flush=True)
    base = AutoModelForCausalLM.from_pretrained(args.base, dtype=torch.float32, attn_implementation=ATTENTION)
    model = get_peft_model(base, LoraConfig(r=options.rank, lora_alpha=2 * options.rank, target_modules=LAYERS))
    model.train()
    began = time.monotonic()
    losses = fit(model, examples, options)
    report = {
        "options": asdict(options),
        "rollouts": len(rewards),
        "reward_mean_of_demonstrations": round(sum(rewards) / len(rewards), 3),
        "traces": len(examples),
        "trained_tokens": sampled,
        "shared_prefix_tokens": prefix,
        "loss_first_and_last": [round(losses[0], 3), round(losses[-1], 3)],
        "seconds": round(time.monotonic() - began),
        "torch": torch.__version__,
    }
    save(model, args.target, report)
    print(f"wrote {args.target}")


if __name__ == "__main__":
    main()
