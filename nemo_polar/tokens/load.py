# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""From settings to a codec: which tokenizer, which renderer or template, which reply format.

With ``renderer: auto``, a hand-written renderer is taken when the model's name or type points to one *and*, if the model
ships a template, both render the same ids for a few conversations: a fine-tune with a changed template is not served by the
renderer of the model it came from. Everything else is served by its own template. A ChatML model whose own template shows no
tools (SmolLM2's) gets the packaged ``hermes`` template, which can also be asked for by that name.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, TypeAlias

from renderers.base import MODEL_RENDERER_MAP
from renderers.configs import config_from_name

from nemo_polar.errors import ConfigError, PolarError
from nemo_polar.settings import CodecSettings
from nemo_polar.tokens.base import Codec
from nemo_polar.tokens.chat_template import ChatTemplate
from nemo_polar.tokens.messages import message_dicts, tool_dicts
from nemo_polar.tokens.rendered import CALL_BODIES, RendererCodec, make_renderer_codec, marker
from nemo_polar.tokens.reply_format import ReplyFormat
from nemo_polar.tokens.template import TemplateCodec, make_template_codec, shows_tools
from nemo_polar.tokens.tokenizer import Tokenizer
from nemo_polar.types import Message, Reasoning, Role, Text, ToolCall, ToolResult, ToolSpec

log = logging.getLogger(__name__)

_TYPES = {
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3",
    "qwen3_5": "qwen3.5",
    "qwen3_5_moe": "qwen3.5",
}
"""Renderers to try, by ``model_type`` of the model's ``config.json``."""
_MARKS = (
    ("<function=example_function_name>", "qwen3.5"),
    ("<args-json-object>", "qwen3"),
)
"""Renderers to try, by a piece of the model's own template."""


def load_codec(settings: CodecSettings) -> Codec:
    """The codec that ``settings`` ask for.

    Raises:
        ConfigError: a file, a name or an option is wrong, or the model's replies cannot be parsed; the message names the
        setting.
    """
    folder = Path(settings.tokenizer)
    tokenizer = Tokenizer.load(folder)
    if settings.renderer not in ("auto", "template"):
        return _renderer_codec(settings.renderer, tokenizer, settings)
    name, source = _template_source(folder, tokenizer, settings)
    template = None if source is None else _compiled(source, tokenizer, settings)
    if settings.renderer == "auto" and settings.chat_template is None:
        codec = _matching_renderer(folder, tokenizer, template, settings)
        if codec is not None:
            return codec
        if settings.call_format != "none" and (template is None or not shows_tools(template)):
            if "<|im_start|>" not in tokenizer.special_tokens:
                raise ConfigError(
                    "chat_template: the model has none that shows tools; give one, name a renderer, or set call_format to none"
                )
            log.info("%s: the model's own chat template shows no tools; the packaged hermes template is used", folder)
            name, source = "hermes", _packaged("hermes")
            template = _compiled(source, tokenizer, settings)
    if template is None:
        raise ConfigError(f"chat_template: {folder} has none; give the path of one, or a renderer by name")
    return _template_codec(name, folder, tokenizer, template, settings)


def _renderer_codec(name: str, tokenizer: Tokenizer, settings: CodecSettings) -> RendererCodec:
    return make_renderer_codec(
        name,
        tokenizer,
        thinking_retention=settings.thinking_retention,
        template_options=settings.template_options,
        special_tokens_in_text=settings.special_tokens_in_text,
        call_format=settings.call_format,
    )


def _template_codec(
    name: str, folder: Path, tokenizer: Tokenizer, template: ChatTemplate, settings: CodecSettings
) -> TemplateCodec:
    reasons = "<think>" in tokenizer.special_tokens or "<think>" in template.source
    body = _call_body(template, settings)
    format = ReplyFormat(
        end_ids=frozenset(_generation_ends(folder)),
        reasoning=(marker(tokenizer, "<think>"), marker(tokenizer, "</think>")) if reasons else None,
        call=None if body is None else (marker(tokenizer, "<tool_call>"), marker(tokenizer, "</tool_call>")),
        call_body=body or "hermes",
    )
    return make_template_codec(
        f"template:{name}",
        tokenizer,
        template,
        format,
        thinking_retention=settings.thinking_retention,
        special_tokens_in_text=settings.special_tokens_in_text,
    )


def _call_body(template: ChatTemplate, settings: CodecSettings) -> Literal["hermes", "qwen_xml"] | None:
    """How the model writes calls, by what its template writes."""
    if settings.call_format == "none":
        return None
    if settings.call_format != "auto":
        return settings.call_format
    if "<tool_call>" in template.source:
        return "qwen_xml" if "<function=" in template.source else "hermes"
    raise ConfigError(
        "call_format: the template writes tool calls in a way we cannot parse; supported are hermes (JSON in <tool_call>), "
        "qwen_xml (<function=...> in <tool_call>) and none"
    )


# --- templates --------------------------------------------------------------------------------------------------------


def _template_source(folder: Path, tokenizer: Tokenizer, settings: CodecSettings) -> tuple[str, str | None]:
    """Name and text of the template asked for, or the model's own (None when it has none)."""
    asked = settings.chat_template
    if asked == "hermes":
        return asked, _packaged(asked)
    own = folder / "chat_template.jinja"
    path = Path(asked) if asked is not None else own if own.is_file() else None
    if path is None:
        return folder.name, tokenizer.chat_template
    try:
        return (path.stem if asked is not None else folder.name), path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"chat_template: {path} cannot be read: {exc}") from exc


def _packaged(name: str) -> str:
    return (files("nemo_polar.tokens") / "templates" / f"{name}.jinja").read_text(encoding="utf-8")


def _compiled(source: str, tokenizer: Tokenizer, settings: CodecSettings) -> ChatTemplate:
    return ChatTemplate(source, options=settings.template_options, named_tokens=tokenizer.named_tokens)


def _generation_ends(folder: Path) -> list[int]:
    """End-of-text ids of ``generation_config.json``: what the model's makers stop at."""
    ends = _optional_json(folder / "generation_config.json").get("eos_token_id", [])
    return [int(i) for i in (ends if isinstance(ends, list) else [ends]) if i is not None]


def _optional_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{path} cannot be read: {exc}") from exc


# --- choosing a renderer ----------------------------------------------------------------------------------------------


def _matching_renderer(
    folder: Path, tokenizer: Tokenizer, template: ChatTemplate | None, settings: CodecSettings
) -> RendererCodec | None:
    """The hand-written renderer for this model, if there is one and it agrees with the model's own template."""
    name = MODEL_RENDERER_MAP.get(tokenizer.name_or_path) or _TYPES.get(
        _optional_json(folder / "config.json").get("model_type", "")
    )
    if name is None and template is not None:
        name = next((name for mark, name in _MARKS if mark in template.source), None)
    if name is None:
        return None
    if template is None:
        return _renderer_codec(name, tokenizer, settings)
    if name not in CALL_BODIES:
        return None
    for thinking in _thinking_choices(name, settings.template_options):
        options = settings.template_options | thinking
        codec = _renderer_codec(name, tokenizer, settings.model_copy(update={"template_options": options}))
        if _agree(codec, template, _FIRST) and _agree_on_history(name, template, codec, settings):
            return codec
    log.info("%s: its chat template differs from what the %s renderer writes; the template is used", folder, name)
    return None


def _thinks(name: str) -> bool:
    config = config_from_name(name)
    return config is not None and "enable_thinking" in config.template_field_names()


def _thinking_choices(name: str, options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Small and large models of a family differ in whether they think by default; only the template knows."""
    return [{}] if "enable_thinking" in options or not _thinks(name) else [{}, {"enable_thinking": False}]


def _agree_on_history(name: str, template: ChatTemplate, codec: RendererCodec, settings: CodecSettings) -> bool:
    """Earlier turns are compared with thinking on: with it off, renderers keep an empty block on purpose."""
    if not _thinks(name):
        return _agree(codec, template, _HISTORIES)
    options = settings.template_options | {"enable_thinking": True}
    thinking = _renderer_codec(name, codec.tokenizer, settings.model_copy(update={"template_options": options}))
    return _agree(thinking, template.with_options(options), _HISTORIES)


_TOOL = ToolSpec("read", "Reads a file.", {"type": "object", "properties": {"path": {"type": "string"}}})
_SYSTEM, _USER = Message(Role.SYSTEM, (Text("Be brief."),)), Message(Role.USER, (Text("Read a.txt"),))
_CALL = Message(Role.ASSISTANT, (Reasoning("Look first."), Text("Reading."), ToolCall("c1", "read", '{"path": "a.txt"}')))
_RESULT = Message(Role.TOOL, (ToolResult("c1", (Text("hello"),), name="read"),))
_ANSWER = Message(Role.ASSISTANT, (Text("It says hello."),))
_Conversations: TypeAlias = list[tuple[list[Message], list[ToolSpec]]]
_FIRST: _Conversations = [([_USER], []), ([_SYSTEM, _USER], [_TOOL])]
_HISTORIES: _Conversations = [
    ([_SYSTEM, _USER, _CALL, _RESULT], [_TOOL]),
    ([_USER, _CALL, _RESULT, _RESULT, _ANSWER, _USER], [_TOOL]),
]


def _agree(codec: RendererCodec, template: ChatTemplate, conversations: _Conversations) -> bool:
    """True when the renderer and the template make the same ids of ``conversations``."""
    for messages, tools in conversations:
        try:
            text = template.render(message_dicts(messages, str), tool_dicts(tools, str), generation_prompt=True)
        except Exception:  # noqa: BLE001 - a template that refuses is not the one that the renderer copies
            return False
        try:
            if codec.render(messages, tools).tolist() != codec.tokenizer.encode(text):
                return False
        except PolarError:
            return False
    return True
