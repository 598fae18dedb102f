# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The hand-over that the settings name."""

from __future__ import annotations

from nemo_polar.capture.proxy import CaptureProxy
from nemo_polar.rl.handover.base import Handover
from nemo_polar.rl.handover.files import Files
from nemo_polar.rl.handover.settings import HandoverSettings, Method
from nemo_polar.rl.handover.sglang import Sglang
from nemo_polar.rl.handover.vllm_full import VllmFull
from nemo_polar.rl.handover.vllm_lora import VllmLora

_METHODS: dict[Method, type[Handover]] = {"vllm_full": VllmFull, "vllm_lora": VllmLora, "files": Files, "sglang": Sglang}


def make_handover(proxy: CaptureProxy, settings: HandoverSettings) -> Handover:
    """For a proxy that has been started, over a ``ReplicaSet``.

    Raises:
        ConfigError: its engine is none.
    """
    return _METHODS[settings.method](proxy, settings)
