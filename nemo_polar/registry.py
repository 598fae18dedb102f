# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""One registry for everything that can be plugged in: dialects, engines, harnesses, sandboxes, verifiers.

A name resolves, in this order, to what was registered in this process, to a built-in, to an entry point of the group
``nemo_polar.<kind>``, or (a name with a colon) to an import path ``package.module:attribute``. Nothing is imported before it is
asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, Literal, TypeAlias

from nemo_polar.errors import RegistryError

PluginKind: TypeAlias = Literal["dialects", "engines", "harnesses", "sandboxes", "verifiers"]

_BUILT_IN: dict[PluginKind, dict[str, str]] = {
    "dialects": {
        "anthropic": "nemo_polar.wire.anthropic.dialect:Anthropic",
        "openai_chat": "nemo_polar.wire.openai_chat.dialect:OpenAIChat",
        "openai_responses": "nemo_polar.wire.openai_responses.dialect:OpenAIResponses",
        "gemini": "nemo_polar.wire.gemini.dialect:Gemini",
    },
    "engines": {
        "vllm": "nemo_polar.engines.vllm:VllmEngine",
        "sglang": "nemo_polar.engines.sglang:SglangEngine",
        "scripted": "nemo_polar.engines.scripted:ScriptedEngine",
        "chat_prefix": "nemo_polar.engines.chat_prefix:ChatPrefixEngine",
        "gym_model": "nemo_polar.engines.gym_model:GymModelEngine",
    },
    "harnesses": {
        "claude_code": "nemo_polar.harnesses.claude_code:ClaudeCode",
        "codex": "nemo_polar.harnesses.codex:Codex",
        "pi": "nemo_polar.harnesses.pi:Pi",
        "qwen_code": "nemo_polar.harnesses.qwen_code:QwenCode",
        "opencode": "nemo_polar.harnesses.opencode:OpenCode",
        "openhands": "nemo_polar.harnesses.openhands:OpenHands",
        "gemini_cli": "nemo_polar.harnesses.gemini_cli:GeminiCli",
        "mini_swe_agent": "nemo_polar.harnesses.mini_swe_agent:MiniSweAgent",
        "shell": "nemo_polar.harnesses.shell:Shell",
    },
    "sandboxes": {
        "local": "nemo_polar.sandboxes.local:LocalSandbox",
        "process": "nemo_polar.sandboxes.process:ProcessSandbox",
        "gym": "nemo_polar.sandboxes.gym:GymSandbox",
    },
    "verifiers": {"command": "nemo_polar.verifiers.command:CommandVerifier"},
}
_registered: dict[PluginKind, dict[str, Any]] = {kind: {} for kind in _BUILT_IN}


def register(kind: PluginKind, name: str, plugin: Any = None) -> Any:
    """Register ``plugin`` under ``name`` for this process. With no plugin given, a decorator.

    Raises:
        RegistryError: something else is registered under that name already.
    """

    def put(obj: Any) -> Any:
        if _registered[kind].get(name, obj) is not obj:
            raise RegistryError(f"{kind}: {name!r} is registered already; choose another name")
        _registered[kind][name] = obj
        return obj

    return put if plugin is None else put(plugin)


def names(kind: PluginKind) -> list[str]:
    """All names that resolve for ``kind``, sorted; import paths aside."""
    found = entry_points(group=f"nemo_polar.{kind}")
    return sorted({*_registered[kind], *_BUILT_IN[kind], *(e.name for e in found)})


def resolve(kind: PluginKind, name: str) -> Callable[..., Any]:
    """The class or factory that ``name`` stands for.

    Raises:
        RegistryError: no such name, or its module or attribute cannot be imported.
    """
    if name in _registered[kind]:
        return _registered[kind][name]
    path = _BUILT_IN[kind].get(name)
    if path is None:
        for entry in entry_points(group=f"nemo_polar.{kind}", name=name):
            path = entry.value
    if path is None and all(name.partition(":")):
        path = name
    if path is None:
        raise RegistryError(
            f"{kind}: nothing is called {name!r}; known: {', '.join(names(kind))}. "
            "A third-party one is named by its entry point or as package.module:attribute"
        )
    module, _, attribute = path.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as exc:
        raise RegistryError(f"{kind}: {name!r} stands for {path}, which cannot be imported: {exc}") from exc
