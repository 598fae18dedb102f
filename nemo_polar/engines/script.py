# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What a scripted engine is told: its options, its replies, and how a reply goes wrong. Plain data; nothing runs here."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, TypeAlias

import orjson

from nemo_polar.engines.base import GenerateRequest
from nemo_polar.errors import ConfigError
from nemo_polar.types import FinishReason


class Fault(StrEnum):
    """How a reply goes wrong. The first three before the first token, the others after ``fault_after`` tokens."""

    UNAVAILABLE = "unavailable"
    """An internal error (HTTP 500)."""
    OVERLOADED = "overloaded"
    """HTTP 429."""
    BUSY = "busy"
    """HTTP 503."""
    CUT = "cut"
    """The connection is reset."""
    HALF_LINE = "half_line"
    """The stream ends within a line."""
    NO_FINISH = "no_finish"
    """The stream ends, cleanly, without a finish reason."""
    ERROR_EVENT = "error_event"
    """The stream carries an error in place of tokens."""
    HANG = "hang"
    """Nothing comes any more, and the connection stays."""
    NO_LOGPROB = "no_logprob"
    NAN_LOGPROB = "nan_logprob"
    SENTINEL_LOGPROB = "sentinel_logprob"
    """-9999, which vLLM writes for a missing one."""


@dataclass(frozen=True, slots=True)
class ScriptedReply:
    """One reply. What is None is left to the engine's options."""

    token_ids: Sequence[int] | None = None
    """None: drawn from the hash model. Cut at ``max_tokens`` and after a stop id, like any sample."""
    logprobs: Sequence[float] | None = None
    """None: the hash model's own for these ids."""
    finish_reason: FinishReason | None = None
    """None: ``stop``, unless it was cut at ``max_tokens``."""
    chunk_tokens: int | None = None
    first_delay: float | None = None
    """Seconds before the first token."""
    token_delay: float | None = None
    """Seconds between chunks, for each token."""
    fault: Fault | None = None
    fault_after: int = 2

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> ScriptedReply:
        """From a plain object with the same keys.

        Raises:
            ConfigError: an unknown key, fault or finish reason.
        """
        try:
            reply = cls(**raw)
            return dataclasses.replace(
                reply,
                fault=None if reply.fault is None else Fault(reply.fault),
                finish_reason=None if reply.finish_reason is None else FinishReason(reply.finish_reason),
            )
        except (TypeError, ValueError) as exc:
            raise ConfigError(f"scripted reply {raw!r}: {exc}") from exc


Script: TypeAlias = Callable[[GenerateRequest], ScriptedReply | Sequence[int] | None]
"""Called once for each request; plain ids are a reply of these ids, None is a reply drawn from the hash model."""


@dataclass(frozen=True, slots=True)
class ScriptedOptions:
    """How a scripted engine behaves where the script is silent."""

    model: str = "scripted"
    vocab: int = 512
    seed: int = 0
    max_context: int = 8192
    """Tokens, prompt and sample together."""
    stop_token_ids: tuple[int, ...] = ()
    """Stop ids of the model itself, besides those of a request."""
    reply_tokens: tuple[int, int] | None = None
    """Length of drawn replies, lowest and highest, the stop id included; None: until a stop id happens to be drawn."""
    chunk_tokens: int = 1
    first_delay: float = 0.0
    token_delay: float = 0.0
    logprobs: Literal["processed", "raw"] = "processed"
    """``raw``: reports those of the untempered, untruncated distribution, as vLLM does unless told otherwise."""
    stale_weights: bool = False
    """True: ``resume`` reports the new version, and the old weights go on serving."""
    cache_block: int = 0
    """Tokens. A prompt longer than this is drawn from under the weights that first saw its first so many, until the prefix
    cache is dropped; 0: there is no cache. Scores pass it by, as they do in vLLM."""
    keeps_cache: bool = False
    """True: that the prefix cache was dropped is reported, and not done."""


def load_script(spec: str) -> Script | list[ScriptedReply]:
    """A script from a JSON file (a list of replies) or from ``package.module:function``.

    Raises:
        ConfigError: neither can be read.
    """
    if spec.endswith(".json"):
        try:
            raw = orjson.loads(Path(spec).read_bytes())
        except (OSError, orjson.JSONDecodeError) as exc:
            raise ConfigError(f"script {spec}: {exc}") from exc
        if not isinstance(raw, list):
            raise ConfigError(f"script {spec}: a list of replies is needed, not a {type(raw).__name__}")
        return [ScriptedReply.from_json(item) for item in raw]
    module, _, attribute = spec.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as exc:
        raise ConfigError(f"script {spec}: give a .json file or package.module:function ({exc})") from exc
