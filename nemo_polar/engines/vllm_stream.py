# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The events of vLLM's ``/inference/v1/generate``.

One event carries ids, a log-probability for each with the id again, and at the end a finish reason; then comes ``[DONE]``.
"""

from __future__ import annotations

from typing import Any

from nemo_polar.engines.token_stream import Sampled, TokenStream, version_number
from nemo_polar.types import FinishReason


class GenerateStream(TokenStream):
    """``server_id`` is the id vLLM made of ours, known from the first event on."""

    def _sampled(self, event: dict[str, Any]) -> Sampled:
        if self.server_id is None and isinstance(event.get("request_id"), str):
            self.server_id = event["request_id"]
        if not event["choices"]:
            return [], [], None  # usage only
        (choice,) = event["choices"]
        ids: list[int] = choice["token_ids"] or []
        entries = (choice["logprobs"] or {}).get("content") or []
        if entries and [entry["token_id"] for entry in entries] != ids:
            raise ValueError("the log-probabilities are of other ids than those sampled")
        finish = None if choice["finish_reason"] is None else FinishReason(choice["finish_reason"])
        spans = choice.get("weight_versions")
        self._version = version_number(spans[-1]["version"]) if spans else None  # the last token's
        return ids, [entry["logprob"] for entry in entries], finish
