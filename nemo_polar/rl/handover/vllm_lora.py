# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A LoRA adapter of a vLLM server, replaced in place under its name.

The server is started with ``VllmOptions(lora=LoraOptions(...))`` (or ``--enable-lora --max-lora-rank R --lora-modules
NAME=PATH`` and ``VLLM_ALLOW_RUNTIME_LORA_UPDATING=1``), and the client with ``VllmEngine(url, model=NAME)``: requests name the
adapter as their model. A client that asks for the base model gets the base model, and the proof refuses that as stale.
"""

from __future__ import annotations

from pathlib import Path

from nemo_polar.engines.base import Engine
from nemo_polar.rl.handover.base import Handover, administered


class VllmLora(Handover):
    """See the module. The folder is one of peft's: ``adapter_config.json`` and ``adapter_model.safetensors``."""

    async def _load(self, name: str, engine: Engine, folder: Path, version: int) -> None:
        body = {"lora_name": self.settings.adapter, "lora_path": str(folder), "load_inplace": True}
        await administered(name, engine).admin("/v1/load_lora_adapter", body, timeout=self.settings.load_seconds)
