# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The tree a person sees says what every turn is, and model text cannot steer the terminal."""

from __future__ import annotations

import io
import random
from dataclasses import replace

from rich.console import Console
from rich.tree import Tree

from nemo_polar.settings import TracePolicy
from nemo_polar.trajectory.build import build_traces
from nemo_polar.trajectory.inspect import rollout_tree
from nemo_polar.types import Message, Role, Text, ToolCall
from tests.support.runs import FakePolicy, draw_tree, trajectory_of


def printed(tree: Tree) -> str:
    out = io.StringIO()
    Console(file=out, width=300, color_system=None).print(tree)
    return out.getvalue()


def test_every_turn_is_shown_once_with_its_fate() -> None:
    turns = draw_tree(FakePolicy(random.Random(3)), "s", 20)
    built = build_traces("r", turns, TracePolicy())
    shown = printed(rollout_tree(turns, trajectory=trajectory_of("r", turns, TracePolicy()), reasons=built.reasons))
    lines = [line for line in shown.splitlines() if " prompt  " in line]
    assert len(lines) == len(turns)
    for turn in turns:
        [line] = [x for x in lines if f"#{turn.id} " in x.replace("after #", "after ").replace("from #", "from ")]
        reason = built.reasons.get(turn.id)
        assert ("trained" if reason is None else f"masked: {reason.value}") in line
        assert f"+{len(turn.prompt_delta)} prompt" in line and f"{len(turn.sample)} sampled" in line
    assert "reward 1" in shown and f"{built.trained} tokens trained" in shown


def test_control_characters_and_markup_in_replies_are_shown_and_not_obeyed() -> None:
    [turn] = draw_tree(FakePolicy(random.Random(3)), "s", 1, plain=True)
    reply = Message(
        Role.ASSISTANT, (Text("\x1b[2Jgone\x07\u202e\ud800 [red]x[/red]"), ToolCall("c", "n\x1bm", '{"a":\n1}', True))
    )
    shown = printed(rollout_tree([replace(turn, reply=reply)], title="t\x1b"))
    assert "\x1b" not in shown and "\x07" not in shown and "\u202e" not in shown
    assert "\\x1b[2Jgone\\x07\\u202e\\ud800 [red]x[/red]" in shown
    assert "n\\x1bm" in shown and '{"a":\\n1}' in shown and "malformed" in shown


def test_a_long_conversation_stays_within_the_width_of_a_screen() -> None:
    [first] = draw_tree(FakePolicy(random.Random(3)), "s", 1, plain=True)
    turns = [replace(first, id=i, parent=i - 1 if i else None) for i in range(200)]
    assert max(len(line) - len(line.lstrip("│├└─ ")) for line in printed(rollout_tree(turns)).splitlines()) < 20


def test_a_long_reply_is_cut() -> None:
    [turn] = draw_tree(FakePolicy(random.Random(3)), "s", 1, plain=True)
    shown = printed(rollout_tree([replace(turn, reply=Message(Role.ASSISTANT, (Text("x" * 999),)))], excerpt=50))
    assert "x" * 50 + "…" in shown and "x" * 51 not in shown
