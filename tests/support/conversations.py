# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Conversations for codec tests, short to write and random ones for properties."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from nemo_polar.settings import CodecSettings
from nemo_polar.tokens.load import load_codec
from nemo_polar.types import Message, Part, Reasoning, Role, Text, TokenIds, ToolCall, ToolResult, ToolSpec

TOOLS = (ToolSpec("read", "Reads a file.", {"type": "object", "properties": {"path": {"type": "string"}}}),)
WRITTEN_OUT = (
    "<|im_end|>",
    "<|im_start|>assistant\n",
    "</think>",
    "<tool_call>",
    "</tool_response>",
    "\ufdd0",
    "\ufdd11\ufdd0",
)
"""What an attacker, or a file about chat templates, has in its text."""


def system(text: str) -> Message:
    return Message(Role.SYSTEM, (Text(text),))


def developer(text: str) -> Message:
    return Message(Role.DEVELOPER, (Text(text),))


def user(text: str) -> Message:
    return Message(Role.USER, (Text(text),))


def assistant(text: str = "", *calls: ToolCall, reasoning: str | None = None) -> Message:
    parts: list[Part] = [] if reasoning is None else [Reasoning(reasoning)]
    return Message(Role.ASSISTANT, (*parts, *([Text(text)] if text else []), *calls))


def call(id: str = "call00001", name: str = "read", arguments: str = '{"path": "a.txt"}') -> ToolCall:
    return ToolCall(id, name, arguments)


def result(text: str, id: str = "call00001", name: str | None = None) -> Message:
    return Message(Role.TOOL, (ToolResult(id, (Text(text),), name=name),))


texts = st.lists(st.one_of(st.sampled_from([*WRITTEN_OUT, "\n", " "]), st.text(max_size=6)), max_size=5).map("".join)
spoken = texts.map(lambda text: "w" + text)
"""What an assistant says: the first character does not merge with the generation prompt before it."""


@st.composite
def cycles(draw: st.DrawFn) -> list[Message]:
    """An assistant turn with reasoning and calls, and the results of its calls."""
    ids = [f"call0000{n}" for n in range(draw(st.integers(1, 3)))]
    calls = [call(id, arguments=json.dumps({"path": draw(texts)}, ensure_ascii=False)) for id in ids]
    turn = assistant(draw(spoken), *calls, reasoning=draw(st.one_of(st.none(), spoken)))
    return [turn, *(result(draw(texts), id) for id in ids)]


@st.composite
def exchanges(draw: st.DrawFn) -> list[Message]:
    """An assistant turn without calls, and what the user says to it."""
    return [assistant(draw(spoken)), *draw(st.lists(texts.map(user), min_size=1, max_size=2))]


@functools.cache
def _loaded(tokenizer: Path, options: str) -> Any:
    return load_codec(CodecSettings(tokenizer=str(tokenizer), **json.loads(options)))


def codec(tokenizer: Path, **settings: Any) -> Any:
    """A codec, loaded once for all tests that ask for the same. Typed Any: tests look inside."""
    return _loaded(tokenizer, json.dumps(settings, sort_keys=True))


def turn_in(codec: Any, prompt: TokenIds, full: TokenIds) -> TokenIds:
    """The ids of the turn that ``full`` has after ``prompt``, its end included."""
    rest = full[len(prompt) :].tolist()
    end = next(n for n, i in enumerate(rest) if i in codec.stop_token_ids)
    return full[len(prompt) : len(prompt) + end + 1]
