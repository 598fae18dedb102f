# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The events of SGLang's ``/generate``.

Every event has ``output_ids`` and, in ``meta_info``, ``output_token_logprobs``: triples of log-probability, id and text.
Sampled ids are read from the triples, so that an id and its log-probability cannot come apart, and compared with
``output_ids``.

By default each event repeats all triples so far; with ``--incremental-streaming-output`` it holds the new ones. Which of the
two it is shows in each event: ``output_token_logprobs_length`` counts all of them. (A repeating server may already list more
than it counts, and an incremental one repeats them all when a sample is aborted before it could go on.) Tokens lost between two
events, or changed since, are an error.

Failures come as events too: as ``error``, or as a finish reason ``abort`` with an HTTP status. An ``abort`` without one is an
abort that was asked for.
"""

from __future__ import annotations

from array import array
from typing import Any

import orjson

from nemo_polar.engines.http_client import json_ids, json_logprobs
from nemo_polar.engines.token_stream import Sampled, TokenStream, version_number
from nemo_polar.errors import EngineProtocol
from nemo_polar.types import FinishReason


class SglangStream(TokenStream):
    """Remembers the ids it has passed on, to find what is new."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._ids = array("i")

    def _sampled(self, event: dict[str, Any]) -> Sampled:
        meta = event["meta_info"]
        finish = self._finish(meta.get("finish_reason"))
        # A server told to shorten long prompts would sample after another one than ours.
        if meta.get("prompt_tokens", self._prompt_tokens) != self._prompt_tokens:
            raise EngineProtocol(
                f"{self._request_id}: the engine was given {self._prompt_tokens} tokens, and sampled after "
                f"{meta['prompt_tokens']}"
            )
        triples = meta["output_token_logprobs"]
        ids = [triple[1] for triple in triples]
        known = self._known(ids, meta.get("output_token_logprobs_length", meta.get("completion_tokens")))
        new_ids = json_ids(ids[known:])
        self._check_output_ids(event.get("output_ids"), ids, new_ids, finish)
        self._ids.extend(new_ids)
        self._version = _version(meta)
        return new_ids, json_logprobs([triple[0] for triple in triples[known:]]), finish

    def _finish(self, reason: Any) -> FinishReason | None:
        """Raises what the engine says it failed with."""
        if reason is None:
            return None
        finish = FinishReason(reason["type"])
        status = reason.get("status_code")
        if finish is FinishReason.ABORT and status is not None:
            raise self._failed(int(status), orjson.dumps({"message": reason.get("message")}))
        # We ask for no stop strings. SGLang ends with one when logits were NaN, having put a stop id where nothing was sampled.
        if finish is FinishReason.STOP and isinstance(reason.get("matched"), str):
            raise EngineProtocol(f"{self._request_id}: the engine stopped at {reason['matched']!r}, which was not asked for")
        return finish

    def _known(self, ids: list[int], total: Any) -> int:
        """How many of an event's ids were in earlier events."""
        if type(total) is not int:
            raise ValueError("meta_info has no output_token_logprobs_length")
        seen = len(self._ids)
        if len(ids) < total:  # only the new ones
            if seen + len(ids) != total:
                raise EngineProtocol(
                    f"{self._request_id}: {len(ids)} new tokens after {seen} do not make the {total} that the engine counts"
                )
            return 0
        if array("i", json_ids(ids[:seen])) != self._ids:
            raise EngineProtocol(f"{self._request_id}: the engine changed or left out some of the {seen} tokens it had sent")
        return seen

    def _check_output_ids(self, reported: Any, ids: list[int], new_ids: list[int], finish: FinishReason | None) -> None:
        """All ids, or the new ones. Of a sample aborted while it was queued an incremental server repeats the last one."""
        if reported is None or reported in (ids, new_ids):
            return
        if not (finish is FinishReason.ABORT and reported == ids[-1:]):
            raise ValueError("the log-probabilities are of other ids than those in output_ids")


def _version(meta: dict[str, Any]) -> int | None:
    """The last token's, where weights changed under the sample; else the one version."""
    spans = meta.get("weight_versions")
    return version_number(spans[-1]["version"] if spans else meta.get("weight_version"))
