# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What tells the first prompts of a group's rollouts apart is named by its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nemo_polar.trajectory.first_prompts import PromptDifference, prompt_differences
from nemo_polar.trajectory.records import JournalReader
from nemo_polar.trajectory.store import JOURNAL
from tests.support.proxy import TOOLS, running

SYSTEM = {"role": "system", "content": "You work in /workspace. Session 17."}
USER = {"role": "user", "content": "Fix it."}


async def found(folder: Path, *rollouts: dict[str, Any]) -> list[PromptDifference]:
    """What parts rollouts of one group that open with these requests."""
    async with running(folder) as rig:
        for n, asked in enumerate(rollouts):
            client = await rig.session(f"r{n}", attempt=asked.pop("attempt", 0), **asked.pop("session", {}))
            await client.ask(**asked)
    with JournalReader(folder / JOURNAL) as journal:
        return prompt_differences(journal)


async def test_equal_first_prompts_part_nowhere(tmp_path: Path) -> None:
    assert await found(tmp_path, {"messages": [SYSTEM, USER]}, {"messages": [SYSTEM, USER]}) == []


async def test_a_changed_word_is_named_by_message_and_character(tmp_path: Path) -> None:
    other = {**SYSTEM, "content": SYSTEM["content"].replace("17", "23")}
    [parted] = await found(tmp_path, {"messages": [SYSTEM, USER]}, {"messages": [other, USER]})
    assert parted.where == f"messages[0].parts[0].text, character {SYSTEM['content'].index('17')}"
    assert parted.before.endswith("Session 17.") and parted.now.endswith("Session 23.")
    assert (parted.group_id, parted.rollouts) == ("g", ("r0", "r1"))


async def test_a_message_more_is_named(tmp_path: Path) -> None:
    [parted] = await found(tmp_path, {"messages": [SYSTEM, USER]}, {"messages": [SYSTEM, USER, USER]})
    assert (parted.where, parted.before, parted.now) == ("messages[2]", "2 messages", "3 messages")


async def test_a_changed_tool_is_named(tmp_path: Path) -> None:
    [tool] = TOOLS
    other = {**tool, "function": {**tool["function"], "description": "Write!"}}
    [parted] = await found(tmp_path, {"messages": [USER]}, {"messages": [USER], "tools": [other]})
    assert parted.where.startswith("tools[0] (write), character ")
    [parted] = await found(tmp_path / "more", {"messages": [USER]}, {"messages": [USER], "tools": [tool, {**tool, **other}]})
    assert parted.where == "tools[1]"


async def test_only_a_rollouts_last_attempt_counts_and_other_groups_are_none_of_its_business(tmp_path: Path) -> None:
    spoilt = {"messages": [{**USER, "content": "?"}], "session": {"rollout_id": "r1"}}
    elsewhere = {"messages": [{**USER, "content": "!"}], "session": {"group_id": "h"}}
    again = {"messages": [USER], "session": {"rollout_id": "r1"}, "attempt": 1}
    assert await found(tmp_path, {"messages": [USER]}, spoilt, again, elsewhere) == []
