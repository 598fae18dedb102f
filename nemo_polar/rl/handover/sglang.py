# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""All weights of an SGLang server, from a folder that it reads itself.

Written against SGLang's source (``update_weights_from_disk``: ``model_path`` in, ``success`` and ``message`` out, HTTP 400 on
failure) and tested against a scripted server of its shape. **Not run against a real SGLang server.**
"""

from __future__ import annotations

from pathlib import Path

from nemo_polar.engines.base import Engine
from nemo_polar.errors import HandoverFailed
from nemo_polar.rl.handover.base import Handover, administered


class Sglang(Handover):
    """See the module. The folder is a whole Hugging Face model folder."""

    async def _load(self, name: str, engine: Engine, folder: Path, version: int) -> None:
        # The version is set, and the cache flushed, when it is resumed.
        body = {"model_path": str(folder), "abort_all_requests": False}
        answer = await administered(name, engine).admin("/update_weights_from_disk", body, timeout=self.settings.load_seconds)
        if not (isinstance(answer, dict) and answer.get("success") is True):
            raise HandoverFailed(f"{name}: update_weights_from_disk answered {answer!r}")
