# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A codec over a hand-written renderer of the `renderers` package.

The package knows how a family's template behaves and how to go on from sampled ids; we never take its word for the latter:
what a bridge returns must begin with the very ids it was given, or it is no bridge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, Literal

from renderers import create_renderer
from renderers.base import Renderer
from renderers.configs import config_from_name

from nemo_polar.errors import ConfigError
from nemo_polar.tokens.codec import BaseCodec, Dicts, SpecialPolicy
from nemo_polar.tokens.deferred import DeferredTokenizer
from nemo_polar.tokens.reply_format import Marker, ReplyFormat
from nemo_polar.tokens.roles import FAMILIES, RoleMap
from nemo_polar.tokens.tokenizer import Tokenizer
from nemo_polar.types import TokenIds, ToolSpec, as_ids

CALL_BODIES: dict[str, Literal["hermes", "qwen_xml"]] = {
    "qwen3": "hermes",
    "prime-qwen3": "qwen_xml",
    "qwen3.5": "qwen_xml",
    "qwen3.6": "qwen_xml",
    "qwen3.8": "qwen_xml",
    "nemotron-3": "qwen_xml",
    "nemotron-3-ultra": "qwen_xml",
    "nemotron-3.5": "qwen_xml",
}
"""How the families write tool calls, by renderer name. All of them reason in <think> and call in <tool_call>."""


class RendererCodec(BaseCodec):
    """A ``Codec`` for one family. Build it with ``make_renderer_codec``."""

    def __init__(
        self, name: str, deferred: DeferredTokenizer, renderer: Renderer, format: ReplyFormat, roles: RoleMap, **rest: Any
    ):
        """``renderer`` was made with ``deferred``."""
        super().__init__(name, deferred.tokenizer, format, roles, **rest)
        self._renderer, self._deferred = renderer, deferred

    def _render(self, messages: Dicts, tools: Dicts) -> list[int]:
        with self._deferred.recording() as texts:
            ids = self._renderer.render_ids(messages, tools=tools or None, add_generation_prompt=True)  # type: ignore[arg-type]
        return self._deferred.expand(ids, texts)

    def _bridge(self, prompt_ids: TokenIds, sampled_ids: TokenIds, new: Dicts, tools: Sequence[ToolSpec]) -> TokenIds | None:
        # Renderers read the prompt only back to its last end of turn, so the rest of the history need not be copied for them.
        tail = self._last_turn(prompt_ids)
        before, sampled = (tail if len(tail) else prompt_ids[-1:]).tolist(), sampled_ids.tolist()
        try:
            with self._deferred.recording() as texts:
                bridged = self._renderer.bridge_to_next_turn(before, sampled, new)  # type: ignore[arg-type]
        except Exception:  # noqa: BLE001 - what it cannot append, it cannot; the tree forks, and rendering says why
            return None
        given = before + sampled
        if bridged is None or not extends(bridged.token_ids, given):
            return None
        return as_ids(self._deferred.expand(bridged.token_ids[len(given) :], texts))


def extends(ids: Sequence[int], given: Sequence[int]) -> bool:
    """True when ``ids`` begin with ``given`` and go on after it."""
    return len(ids) > len(given) and ids[: len(given)] == given


def make_renderer_codec(
    name: str,
    tokenizer: Tokenizer,
    *,
    thinking_retention: Literal["all", "template"] = "all",
    template_options: Mapping[str, Any] | None = None,
    special_tokens_in_text: SpecialPolicy = "escape",
    call_format: Literal["auto", "hermes", "qwen_xml", "none"] = "auto",
) -> RendererCodec:
    """The codec for the renderer called ``name``.

    Raises:
        ConfigError: no such renderer, one whose replies we cannot parse, an option it does not have, or tokens it misses.
    """
    if name not in CALL_BODIES:
        raise ConfigError(
            f"renderer: replies of {name!r} cannot be parsed; supported are {', '.join(CALL_BODIES)}, "
            "and 'template' for models that write calls as Hermes JSON or Qwen XML"
        )
    options = dict(template_options or {})
    try:
        config = config_from_name(name)
        assert config is not None  # only for "auto"
        unknown = set(options) - config.template_field_names()
        if unknown:
            raise ValueError(f"template_options {sorted(unknown)} are not among {sorted(config.template_field_names())}")
        # Without a retention of its own, a renderer keeps what the template keeps.
        retention = {"thinking_retention": "all"} if thinking_retention == "all" else {}
        config = type(config).model_validate({**config.model_dump(exclude_unset=True), "name": name, **retention, **options})
        deferred = DeferredTokenizer(tokenizer)
        renderer = create_renderer(deferred, config)  # type: ignore[arg-type]
        stop_ids = renderer.get_stop_token_ids()
    except Exception as exc:  # the package raises what it likes: assertions, pydantic's errors, ValueError
        raise ConfigError(f"renderer {name!r} does not fit this tokenizer or these options: {exc}") from exc
    body = CALL_BODIES[name] if call_format in ("auto", "none") else call_format
    reply = ReplyFormat(
        end_ids=frozenset(stop_ids),
        reasoning=(marker(tokenizer, "<think>"), marker(tokenizer, "</think>")),
        call=None if call_format == "none" else (marker(tokenizer, "<tool_call>"), marker(tokenizer, "</tool_call>")),
        call_body=body,
    )
    identity = {
        "renderer": name,
        "version": version("renderers"),
        "config": getattr(renderer, "config", config).model_dump(mode="json"),
        "thinking_retention": thinking_retention,
    }
    return RendererCodec(
        name,
        deferred,
        renderer,
        reply,
        FAMILIES[name],
        special_tokens_in_text=special_tokens_in_text,
        identity=identity,
    )


def marker(tokenizer: Tokenizer, text: str) -> Marker:
    """A structural marker: one id where the tokenizer has one for it, else its text."""
    return Marker(tokenizer.token_id(text), text)
