# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""All weights of a vLLM server, through our worker extension (``engines/vllm_extension.py``, which ``LocalVllm`` loads).

The folder must hold one ``model.safetensors`` and be readable by the server's workers under the same path. vLLM's own
``reload_weights`` is not relied on: on CPU it was once measured to answer 200 and serve a mixture, and in later runs (0.32.0,
float32, paused) its weights passed the proof; what tells the two apart is not known.
"""

from __future__ import annotations

from pathlib import Path

from nemo_polar.engines.base import Engine
from nemo_polar.errors import HandoverFailed
from nemo_polar.rl.handover.base import Handover, administered


class VllmFull(Handover):
    """See the module. vLLM runs in its dev mode (``LocalVllm`` sees to it)."""

    async def _load(self, name: str, engine: Engine, folder: Path, version: int) -> None:
        answer = await administered(name, engine).admin(
            "/collective_rpc", {"method": "load_full", "args": [str(folder)]}, timeout=self.settings.load_seconds
        )
        try:
            done = [(int(worker["layers"]), list(worker["unused"])) for worker in answer["results"]]
        except (KeyError, TypeError, ValueError) as exc:
            raise HandoverFailed(f"{name}: load_full answered {answer!r}, and not what it loaded") from exc
        if not done or not all(layers for layers, _ in done):
            raise HandoverFailed(f"{name}: load_full wrote no layers")
        unused = sorted({tensor for _, left in done for tensor in left})
        if unused:
            raise HandoverFailed(f"{name}: {len(unused)} tensors of {folder} belong to no layer: {', '.join(unused[:3])}")
