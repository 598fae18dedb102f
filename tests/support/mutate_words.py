# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The vocabulary of each dialect, for mutations of its request bodies: fields, roles, parts and legal requests of other kinds.

Data only: ``mutate`` says what is done with it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Json = Any


@dataclass(frozen=True)
class Words:
    """What may stand in a request body of one dialect."""

    fields: tuple[str, ...]
    """Of the top level."""
    inner: tuple[str, ...]
    """Of what is below it."""
    roles: tuple[str, ...]
    parts: tuple[Json, ...]
    """What may, or may not, be in the list of a message's parts (``part_key``), or stand between messages."""
    part_key: str
    text: Callable[[str], Json]
    """A part that is a text."""
    user: Callable[[str], Json]
    """A message of the user."""
    tools: tuple[Json, ...]
    """In place of ``tools``."""
    choices: tuple[tuple[str, Json], ...]
    """Fields that say which tool is to be called."""
    asks: Callable[[random.Random], dict[str, Json]]
    """Fields of a legal request, mostly, so that answers of all forms come up between the bad ones."""


_ROLES = ("system", "developer", "user", "assistant", "tool", "function", "model", "wizard", "", "USER")
_ODD_PARTS: tuple[Json, ...] = ({"text": "no type"}, "a string", {"type": "thinking", "thinking": "hm"}, {})
_MODELS = ("gpt-5", "../x", "a\r\nX-Evil: 1", "\x00", "m" * 5000)
_STOPS: tuple[Json, ...] = ("a", ["e", "\n"], "\ud800", ["x"] * 5, [""], ["x"] * 100)
_EPHEMERAL = {"type": "ephemeral"}


CHAT = Words(
    fields=(
        *("model", "messages", "tools", "tool_choice", "parallel_tool_calls", "stream", "stream_options", "n"),
        *("max_tokens", "max_completion_tokens", "stop", "seed", "temperature", "top_p", "top_k", "min_p", "logit_bias"),
        *("presence_penalty", "frequency_penalty", "repetition_penalty", "logprobs", "top_logprobs", "modalities"),
        *("function_call", "functions", "audio", "web_search_options", "reasoning", "metadata", "store", "response_format"),
        "chat_template_kwargs",
    ),
    inner=("role", "content", "tool_calls", "id", "type"),
    roles=_ROLES,
    parts=(
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x.png", "detail": "low"}},
        {"type": "image_url", "image_url": "data:,"},
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
        {"type": "file", "file": {"file_id": "f"}},
        {"type": "text", "text": "block", "cache_control": _EPHEMERAL},
        {"type": "text", "text": ""},
        {"type": "refusal", "refusal": "no"},
        *_ODD_PARTS,
    ),
    part_key="content",
    text=lambda text: {"type": "text", "text": text},
    user=lambda text: {"role": "user", "content": text},
    tools=([], {}, "x", [{"type": "web_search"}], [None]),
    choices=(
        *(("tool_choice", choice) for choice in ("none", "auto", "required", "any", [])),
        *(("tool_choice", {"type": "function", "function": {"name": name}}) for name in ("bash", "nope")),
    ),
    asks=lambda rng: rng.choice(
        (
            {"stream": True, "stream_options": {"include_usage": rng.random() < 0.5}},
            {"stream": False, "stream_options": None},
            {"logprobs": True},
            {"stop": rng.choice(_STOPS)},
            {"max_tokens": rng.choice((1, 3, 10**9))},
            {"max_completion_tokens": 2, "max_tokens": 5},
            {"temperature": 0, "top_p": 0, "seed": -1},
            {"model": rng.choice(_MODELS)},
            {"response_format": rng.choice(({"type": "text"}, {"type": "json_object"}, {"type": 1}))},
        )
    ),
)

RESPONSES = Words(
    fields=(
        *("model", "input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "stream", "stream_options"),
        *("store", "previous_response_id", "include", "reasoning", "text", "truncation", "background", "top_logprobs"),
        *("max_output_tokens", "max_tool_calls", "temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty"),
        *("frequency_penalty", "repetition_penalty", "conversation", "prompt", "prompt_cache_key", "metadata"),
        *("client_metadata", "service_tier", "safety_identifier", "user", "context_management"),
    ),
    inner=("role", "content", "id", "call_id", "type", "arguments", "output", "summary", "encrypted_content", "namespace"),
    roles=_ROLES,
    parts=(
        {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "low"},
        {"type": "input_image", "file_id": "f"},
        {"type": "input_file", "file_data": "x"},
        {"type": "input_text", "text": ""},
        {"type": "output_text", "text": "said", "annotations": [], "logprobs": []},
        {"type": "refusal", "refusal": "no"},
        {"type": "summary_text", "text": "in short"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "reasoning", "summary": [], "encrypted_content": "AAAA"},
        {"type": "reasoning", "summary": "x", "content": None, "encrypted_content": ""},
        {"type": "item_reference", "id": "msg_0123456789abcdef01234567_0"},
        {"type": "function_call", "call_id": "c", "name": "bash", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "c_verbatim", "name": "bash", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "x"}]},
        {"type": "web_search_call", "status": "completed", "action": {}},
        {"type": "local_shell_call_output", "call_id": "c", "output": "x"},
        {"type": "compaction", "encrypted_content": "AAAA"},
        {"type": "additional_tools", "tools": [{"type": "function", "name": "late", "parameters": {}}]},
        *_ODD_PARTS,
    ),
    part_key="content",
    text=lambda text: {"type": "input_text", "text": text},
    user=lambda text: {"role": "user", "content": text},
    tools=(
        *([], {}, "x", [None], [{"type": "web_search"}], [{"type": "custom", "name": "bash"}]),
        [{"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": "start:"}}],
        [{"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "n"}, {"type": "namespace"}]}],
    ),
    choices=(
        *(("tool_choice", choice) for choice in ("none", "auto", "required", "any", [], {"type": "web_search"})),
        *(("tool_choice", {"type": "function", "name": name}) for name in ("bash", "exec_command", "nope")),
        ("tool_choice", {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "bash"}]}),
    ),
    asks=lambda rng: rng.choice(
        (
            {"stream": True, "stream_options": {"include_obfuscation": True}},
            {"stream": False},
            {"store": rng.random() < 0.5, "previous_response_id": rng.choice((None, "resp_x", "", "\ud800"))},
            {"include": rng.choice((["reasoning.encrypted_content"], [], ["x"]))},
            {"max_output_tokens": rng.choice((1, 3, 10**9))},
            {"temperature": 0, "top_p": 0, "seed": -1},
            {"model": rng.choice(_MODELS)},
            {"instructions": rng.choice(("Be brief.", "", "\ud83d", ["x"]))},
            {"input": rng.choice(("hi", "", "\ud83d", [], [{"role": "user", "content": "hi"}]))},
            {"text": {"format": rng.choice(({"type": "text"}, {"type": "json_object"})), "verbosity": "low"}},
            {"background": True},
            {"truncation": rng.choice(("auto", "disabled", "x"))},
            {"metadata": rng.choice(({"a": "b"}, {"a": 1}, {"\ud800": "\udc00"}))},
        )
    ),
)

ANTHROPIC = Words(
    fields=(
        *("model", "messages", "system", "tools", "tool_choice", "max_tokens", "stop_sequences", "stream", "temperature"),
        *("top_p", "top_k", "thinking", "context_management", "output_config", "cache_control", "metadata", "container"),
        *("mcp_servers", "service_tier", "betas", "output_format", "fallbacks", "compaction"),
    ),
    inner=("role", "content", "id", "type", "input", "tool_use_id", "is_error", "signature", "cache_control", "source"),
    roles=_ROLES,
    parts=(
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
        {"type": "image", "source": {"type": "url", "url": "http://127.0.0.1:1/x.png"}},
        {"type": "image", "source": "x"},
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "hi"}, "title": "t"},
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "AAAA"}},
        {"type": "text", "text": "block", "cache_control": _EPHEMERAL},
        {"type": "text", "text": "cited", "citations": [{"type": "char_location"}]},
        {"type": "text", "text": ""},
        {"type": "thinking", "thinking": "hm", "signature": "AAAA"},
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "redacted_thinking", "data": "AAAA"},
        {"type": "tool_use", "id": "c", "name": "bash", "input": {}},
        {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "tool_reference", "tool_name": "bash"}]},
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
        {"type": "search_result", "source": "x", "title": "t", "content": []},
        *_ODD_PARTS,
    ),
    part_key="content",
    text=lambda text: {"type": "text", "text": text},
    user=lambda text: {"role": "user", "content": text},
    tools=(
        *([], {}, "x", [None], [{"type": "web_search_20250305", "name": "web_search"}], [{"type": "bash_20250124"}]),
        *([{"type": "custom", "name": "late", "input_schema": {}, "defer_loading": True}], [{"name": "no_schema"}]),
    ),
    choices=(
        *(("tool_choice", {"type": kind}) for kind in ("none", "auto", "any", "required", "")),
        *(("tool_choice", {"type": "tool", "name": name}) for name in ("bash", "Bash", "nope")),
        *(("tool_choice", choice) for choice in ("auto", [], {"type": "auto", "disable_parallel_tool_use": True})),
    ),
    asks=lambda rng: rng.choice(
        (
            {"stream": True},
            {"stream": False},
            {"thinking": rng.choice(({"type": "enabled", "budget_tokens": 1024}, {"type": "adaptive"}, {"type": "disabled"}))},
            {"thinking": {"type": "adaptive", "display": rng.choice(("omitted", "summarized", "x"))}},
            {"stop_sequences": rng.choice(_STOPS)},
            {"max_tokens": rng.choice((1, 3, 10**9))},
            {"temperature": 0, "top_p": 0, "top_k": -1},
            {"model": rng.choice(_MODELS)},
            {"system": rng.choice(("Be brief.", "", [], [{"type": "text", "text": "x"}], [{"type": "image"}], "\ud83d"))},
            {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}, {"type": "x"}]}},
            {"output_config": rng.choice(({"effort": "high"}, {"format": {}}, {"format": {"type": "json_schema"}}))},
        )
    ),
)

GEMINI = Words(
    fields=(
        *("contents", "systemInstruction", "system_instruction", "tools", "toolConfig", "tool_config", "generationConfig"),
        *("generation_config", "safetySettings", "cachedContent", "labels", "model", "store", "serviceTier"),
        *("continuationToken", "generateContentRequest"),
    ),
    inner=(
        *("role", "parts", "text", "thought", "thoughtSignature", "thought_signature", "functionCall", "function_call", "args"),
        *("functionResponse", "response", "id", "name", "topK", "maxOutputTokens", "thinkingConfig", "includeThoughts"),
    ),
    roles=_ROLES,
    parts=(
        {"inlineData": {"mimeType": "image/png", "data": "AAAA"}},
        {"inline_data": {"mime_type": "image/png", "data": "!"}},
        {"fileData": {"fileUri": "http://127.0.0.1:1/x.png"}},
        {"text": "thinks", "thought": True},
        {"text": "", "thoughtSignature": "AAAA"},
        {"thoughtSignature": "skip_thought_signature_validator"},
        {"text": "two", "functionCall": {"name": "bash", "args": {}}},
        {"functionCall": {"name": "bash"}},
        {"functionCall": {"name": "bash", "args": {"__malformed_arguments__": "{"}}, "thoughtSignature": "x"},
        {"functionResponse": {"name": "bash", "response": {"output": "x"}, "parts": [{"inlineData": {}}]}},
        {"functionResponse": {"name": "nope", "response": None}},
        {"executableCode": {"language": "PYTHON", "code": "1"}},
        {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}},
        {"videoMetadata": {"fps": 1}, "text": "x"},
        *({"text": None}, {"text": 7}, {"thought": True}),
        *_ODD_PARTS,
    ),
    part_key="parts",
    text=lambda text: {"text": text},
    user=lambda text: {"role": "user", "parts": [{"text": text}]},
    tools=(
        *([], {}, "x", [None], [{"googleSearch": {}}], [{"codeExecution": {}}], [{"functionDeclarations": None}], [{}]),
        [{"function_declarations": [{"name": "f", "parameters": {"type": "OBJECT", "properties": {"a": {"type": "STRING"}}}}]}],
        [{"functionDeclarations": [{"name": "f", "parameters": {}, "parametersJsonSchema": {}}]}],
    ),
    choices=(
        *(("toolConfig", {"functionCallingConfig": {"mode": m}}) for m in ("NONE", "AUTO", "ANY", "VALIDATED", "any", 1)),
        *(
            ("toolConfig", {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": names}})
            for names in (["bash"], ["nope"], [], "bash")
        ),
        *(("toolConfig", choice) for choice in ([], {}, {"retrievalConfig": {}}, {"function_calling_config": {}})),
    ),
    asks=lambda rng: {
        "generationConfig": rng.choice(
            (
                {"stopSequences": rng.choice(_STOPS)},
                {"maxOutputTokens": rng.choice((1, 3, 10**9))},
                {"temperature": 0, "topP": 0, "topK": -1, "seed": -1},
                {"responseLogprobs": True},
                {"responseLogprobs": True, "logprobs": 3},
                {"thinkingConfig": {"includeThoughts": rng.random() < 0.5, "thinkingLevel": "HIGH"}},
                {"candidateCount": rng.choice((0, 1, 2))},
                {"responseMimeType": rng.choice(("text/plain", "application/json"))},
                {"response_modalities": rng.choice((["TEXT"], ["IMAGE"], "TEXT"))},
                {},
            )
        )
    },
)
