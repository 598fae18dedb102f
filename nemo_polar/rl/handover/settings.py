# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""How weights get from the trainer to the engine, and how sure we want to be that they did."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from nemo_polar.settings import Settings

Method = Literal["vllm_full", "vllm_lora", "files", "sglang"]


class HandoverSettings(Settings):
    """One hand-over's way and bounds."""

    method: Method = "vllm_full"
    bound: float = Field(default=1e-3, gt=0)
    """Nats. The most by which trainer and engine may differ on any canary token. Both in float32 differ by about 5e-5; an
    engine in bfloat16 needs about 0.3, and then proves little."""
    still: float = Field(default=1e-5, ge=0)
    """Nats. When the trainer's own scores moved by no more than this, the update counts as none as far as canaries can tell."""
    in_flight: Literal["finish", "abort"] = "abort"
    """What happens to samples being drawn. ``abort``: they end with the ids they have, and go on from them under the new
    weights. ``finish``: they are waited for, and what is not done after ``finish_seconds`` is aborted."""
    finish_seconds: float = Field(default=120.0, gt=0)
    load_seconds: float = Field(default=600.0, gt=0)
    """For an engine to load weights, or for a reader of files to take them."""
    restore: bool = True
    """After a refusal, bring the engine back to the weights that were proven last. False: it stays paused."""
    adapter: str = "adapter"
    """With ``vllm_lora``: the name that the engine client asks for as its model."""
    outbox: str | None = None
    """With ``files``: the folder where weights are laid out for their readers."""
    readers: tuple[str, ...] = ("engine",)
    """With ``files``: who has to take them before they are proven."""

    @model_validator(mode="after")
    def _files_need_a_folder(self) -> Self:
        if self.method == "files" and not (self.outbox and self.readers):
            raise ValueError("outbox: method=files needs a folder to lay weights out in, and at least one reader of it")
        return self
