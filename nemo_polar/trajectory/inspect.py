# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A rollout as a tree that a person can read: what was asked, what was sampled, what is trained and why not.

From data to a rich renderable; nothing is printed here. Text of models and tools is shown with its control characters made
visible, so that it cannot steer the terminal.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence

from rich.text import Text
from rich.tree import Tree

from nemo_polar.types import FinishReason, MaskReason, Trajectory, Turn


def rollout_tree(
    turns: Sequence[Turn],
    *,
    trajectory: Trajectory | None = None,
    reasons: Mapping[int, MaskReason] | None = None,
    title: str = "",
    excerpt: int = 100,
) -> Tree:
    """The turns of one session as a tree.

    Args:
        turns: in any order.
        trajectory: heads the tree with status, reward and token counts, when there is one.
        reasons: turn id to why it is masked (``BuiltTraces.reasons``); None: nothing is said about training.
        title: names the tree when there is no trajectory.
        excerpt: characters of a reply to show.
    """
    root = Tree(_head(trajectory) if trajectory is not None else Text(_visible(title)))
    nodes: dict[int, Tree] = {}
    children: dict[int, int] = {}
    for turn in turns:
        if turn.parent is not None:
            children[turn.parent] = children.get(turn.parent, 0) + 1
    for turn in sorted(turns, key=lambda t: t.id):
        # A line that does not branch stays in one column; only forks are indented.
        above = root if turn.parent is None else nodes.get(turn.parent, root)
        node = above.add(_line(turn, reasons, excerpt))
        straight = turn.parent is not None and children.get(turn.id, 0) == 1
        nodes[turn.id] = above if straight else node
    return root


def _head(trajectory: Trajectory) -> Text:
    t = trajectory
    head = Text.assemble((_visible(t.rollout_id), "bold"), f"  task {_visible(t.task_id)}  ")
    head.append(t.status.value, "red" if t.status.infra else "green")
    head.append("  no reward" if t.reward is None else f"  reward {t.reward:g}", "bold")
    for name, value in t.components.items():
        head.append(f"  {_visible(name)} {value:g}", "dim")
    trained = sum(int(trace.loss_mask.sum()) for trace in t.traces)
    head.append(f"\n{len(t.traces)} traces, {trained} tokens trained")
    for reason, count in t.masked.items():
        head.append(f", {count} {reason.value}", "yellow")
    if t.error:
        head.append(f"\n{_visible(t.error)}", "red")
    return head


def _line(turn: Turn, reasons: Mapping[int, MaskReason] | None, excerpt: int) -> Text:
    sample = turn.sample
    first, last = sample.weights_version
    version = f"v{first}" if first == last else f"v{first}-{last}"
    line = Text.assemble(
        (f"#{turn.id}", "bold"), f" {turn.kind.value}  +{len(turn.prompt_delta)} prompt  {len(sample)} sampled  {version}"
    )
    if turn.parent is not None:
        line.append(f"  after #{turn.parent}", "dim")
    if turn.fork_reason is not None:
        line.append(f"  {turn.fork_reason.value} root", "cyan")
        if turn.fork_of is not None:
            line.append(f" from #{turn.fork_of}", "cyan")
    if turn.continues:
        line.append("  continues", "cyan")
    if sample.finish_reason is not FinishReason.STOP:
        line.append(f"  {sample.finish_reason.value}", "magenta")
    if not turn.delivered:
        line.append("  not delivered", "magenta")
    if reasons is not None:
        reason = reasons.get(turn.id)
        line.append("  trained" if reason is None else f"  masked: {reason.value}", "green" if reason is None else "yellow")
    text = _visible(turn.reply.text.strip())
    if text:
        line.append(f"\n  {text[:excerpt]}{'…' if len(text) > excerpt else ''}", "dim")
    for call in turn.reply.tool_calls:
        arguments = _visible(call.arguments)
        cut = f"{arguments[:excerpt]}{'…' if len(arguments) > excerpt else ''}"
        line.append(f"\n  → {_visible(call.name)}({cut})", "blue")
        if call.malformed:
            line.append("  malformed", "red")
    return line


def _visible(text: str) -> str:
    """``text`` on one line, its control, format and surrogate characters escaped."""
    return "".join(c if unicodedata.category(c)[0] != "C" else c.encode("unicode_escape").decode("ascii") for c in text)
