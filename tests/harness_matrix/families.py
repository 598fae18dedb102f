# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The model families of the matrix: a real tokenizer, the codec over it, and how that family writes reasoning and calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tests.support import models


@dataclass(frozen=True, slots=True)
class Family:
    """One model family."""

    name: str
    folder: Callable[[], Path]
    """Makes or finds the tokenizer; skips (pytest's way) when it cannot be had."""
    renderer: str
    calls: Literal["hermes", "qwen_xml"]
    reasons: bool = True
    template: str | None = None
    markers_are_tokens: bool = True
    """False: whatever looks like a marker is one, so that a reply may not speak of them."""

    def codec(self) -> dict[str, Any]:
        """``policy.codec`` of a run."""
        return {"tokenizer": str(self.folder()), "renderer": self.renderer, "chat_template": self.template}


FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family("qwen3.5", models.qwen35, "qwen3.5", "qwen_xml"),
        Family("qwen3", models.qwen3, "qwen3", "hermes"),
        Family("nemotron3", models.nemotron, "nemotron-3", "qwen_xml"),
        Family("tiny", models.tiny, "template", "hermes", reasons=False, template="hermes", markers_are_tokens=False),
    )
}
