# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What the scripted model sees: a prompt's ids, decoded, and what can be told from them. ChatML, as all families here do it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.harness_matrix.scenarios import INSTRUCTION_MARK, PART_MARK, SUMMARY_MARK, Act, Write
from tests.harness_matrix.tools import Tool, Toolset

_TURN = re.compile(r"<\|im_start\|>(\w+)\n(.*?)(?:<\|im_end\|>|\Z)", re.DOTALL)

_RESULT = re.compile(r"<tool_response>.*?(</tool_response>|\Z)", re.DOTALL)
_PART = re.compile(re.escape(PART_MARK) + r" (\w+):")


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
    def part(self) -> str | None:
        """The part of the task that this conversation was begun for, if it is a sub-agent's."""
        told = next((text for role, text in self.turns if role == "user" and PART_MARK in _by_hand(text)), None)
        found = None if told is None or self.ours else _PART.search(_by_hand(told))
        return None if found is None else found[1]

    @property
    def asks_for_a_summary(self) -> bool:
        """The last word is no result, and asks for a summary."""
        return "summar" in _by_hand(self.last_word).lower()

    @property
    def last_word(self) -> str:
        """What the harness said last."""
        return next((text for role, text in reversed(self.turns) if role != "assistant"), "")

    def done(self, act: Act) -> bool:
        """The act is behind us: its result is here, or it is mentioned in a summary."""
        everywhere = isinstance(act, Write)
        told = (text for role, text in self.turns if everywhere or role != "assistant" or SUMMARY_MARK in text)
        return any(act.mark in text for text in told)

    def offered(self, tools: tuple[Tool, ...]) -> Tool | None:
        """The first of several spellings of a tool that the prompt offers."""
        shown = self.turns[0][1] if self.turns else ""
        for tool in tools:
            name = re.escape(tool.name)
            if re.search(rf'"name":\s*"{name}"|<name>{name}</name>', shown):
                return tool
        return None

    def found(self, pattern: str) -> list[str]:
        """What a regular expression finds in results, in their order."""
        return [found for role, text in self.turns if role != "assistant" for found in re.findall(pattern, text)]

    def has_tools(self, toolset: Toolset) -> bool:
        return self.offered(toolset.shell) is not None


def _by_hand(text: str) -> str:
    """A turn without the results in it."""
    return _RESULT.sub("", text)
