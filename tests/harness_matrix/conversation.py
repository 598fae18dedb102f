# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What the scripted model sees: a prompt's ids, decoded, and what can be told from them. ChatML, as all families here do it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.harness_matrix.scenarios import INSTRUCTION_MARK, Act, Write
from tests.harness_matrix.tools import Tool, Toolset

_TURN = re.compile(r"<\|im_start\|>(\w+)\n(.*?)(?:<\|im_end\|>|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Conversation:
    """One prompt."""

    turns: tuple[tuple[str, str], ...]
    """Role and text; the last one is the assistant's that begins."""

    @classmethod
    def read(cls, prompt: str) -> Conversation:
        return cls(tuple(_TURN.findall(prompt)))

    @property
    def thinking(self) -> bool:
        """The prompt has opened the reasoning."""
        return self.turns[-1][1].rstrip().endswith("<think>")

    @property
    def ours(self) -> bool:
        """This is the conversation about the task, not a sub-agent's or a side call's."""
        return any(role != "assistant" and INSTRUCTION_MARK in text for role, text in self.turns)

    @property
    def last_word(self) -> str:
        """What the harness said last."""
        return next((text for role, text in reversed(self.turns) if role != "assistant"), "")

    def done(self, act: Act) -> bool:
        """The act is behind us: its result is here, or it is mentioned in a summary."""
        everywhere = isinstance(act, Write)
        return any(act.mark in text for role, text in self.turns if everywhere or role != "assistant")

    def offered(self, tools: tuple[Tool, ...]) -> Tool | None:
        """The first of several spellings of a tool that the prompt offers."""
        shown = self.turns[0][1] if self.turns else ""
        for tool in tools:
            name = re.escape(tool.name)
            if re.search(rf'"name":\s*"{name}"|<name>{name}</name>', shown):
                return tool
        return None

    def has_tools(self, toolset: Toolset) -> bool:
        return self.offered(toolset.shell) is not None
