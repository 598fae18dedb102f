# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""In what the first prompts of a group's rollouts differ, by place and by words.

Trainers group rollouts by equal first prompts. What makes them unequal is a date, a random name, a listing in another order: a
few characters of tens of thousands. This finds them, so that they can be turned off in the harness or declared as a rewrite.
Reads a finished journal; changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from nemo_polar.trajectory.kinds import classify
from nemo_polar.trajectory.records import JournalReader, Request, SessionRow
from nemo_polar.types import Kind, ToolSpec

_CONTEXT = 40
"""Characters shown on each side of where two texts part."""


@dataclass(frozen=True, slots=True)
class PromptDifference:
    """Where the first prompts of two rollouts of a group part."""

    group_id: str
    rollouts: tuple[str, str]
    where: str
    """E.g. ``messages[1].parts[0].text, character 1203`` or ``tools[3] (bash)``."""
    before: str
    now: str

    def __str__(self) -> str:
        one, other = self.rollouts
        return f"{self.where}: {self.before!r} in {one}, {self.now!r} in {other}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def prompt_differences(journal: JournalReader) -> list[PromptDifference]:
    """For each group whose first prompts differ, where the first rollout and each that differs from it part.

    Of a rollout that was tried again, the last attempt that made a call counts. Compared is what the harness sent, after the
    declared rewrites.

    Raises:
        JournalError: the journal cannot be read.
    """
    latest: dict[str, SessionRow] = {}
    for session in journal.sessions():
        latest[session.rollout_id] = session
    groups: dict[str, dict[str, Request]] = {}
    for rollout_id, session in latest.items():
        request = _first_request(journal, session.id)
        if request is not None:
            groups.setdefault(session.group_id, {})[rollout_id] = request
    return [difference for group_id, requests in groups.items() for difference in _in_group(group_id, requests)]


def _first_request(journal: JournalReader, session_id: str) -> Request | None:
    """What opened the main line of a session."""
    turns = journal.turns(session_id)
    kinds = classify(turns)
    root = next((t.id for t in turns if t.parent is None and kinds[t.id] is Kind.MAIN), None)
    return None if root is None else journal.requests(session_id).get(root)


def _in_group(group_id: str, requests: Mapping[str, Request]) -> Iterable[PromptDifference]:
    (first, request), *others = sorted(requests.items())
    for rollout_id, other in others:
        parted = _parted(request, other)
        if parted is not None:
            yield PromptDifference(group_id, (first, rollout_id), *parted)


def _parted(one: Request, other: Request) -> tuple[str, str, str] | None:
    """Where two requests part, and what stands there in each; None when they are equal."""
    for n, (a, b) in enumerate(zip(one.messages, other.messages, strict=False)):
        if a != b:
            return _leaf(_plain(a), _plain(b), f"messages[{n}]")
    if len(one.messages) != len(other.messages):
        counts = len(one.messages), len(other.messages)
        return f"messages[{min(counts)}]", f"{counts[0]} messages", f"{counts[1]} messages"
    a_tools, b_tools = one.tools or (), other.tools or ()
    for n, (a, b) in enumerate(zip(a_tools, b_tools, strict=False)):
        if a.name != b.name:
            return f"tools[{n}]", a.name, b.name
        if _spec(a) != _spec(b):
            return _leaf(_spec(a), _spec(b), f"tools[{n}] ({a.name})")
    if len(a_tools) != len(b_tools):
        return f"tools[{min(len(a_tools), len(b_tools))}]", f"{len(a_tools)} tools", f"{len(b_tools)} tools"
    return None


def _plain(value: Any) -> Any:
    """A message as plain data."""
    return orjson.loads(orjson.dumps(asdict(value), default=str))


def _spec(tool: ToolSpec) -> Any:
    # As text: the order of keys shows in the prompt.
    return orjson.dumps({"description": tool.description, "parameters": dict(tool.parameters)}).decode()


def _leaf(a: Any, b: Any, where: str) -> tuple[str, str, str]:
    """The first place, depth first, where ``a`` and ``b``, which differ, do."""
    if isinstance(a, str) and isinstance(b, str):
        at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        return f"{where}, character {at}", _around(a, at), _around(b, at)
    if isinstance(a, dict) and isinstance(b, dict):
        for key in [*a, *(k for k in b if k not in a)]:
            if a.get(key) != b.get(key):
                return _leaf(a.get(key), b.get(key), f"{where}.{key}")
    if isinstance(a, list) and isinstance(b, list):
        for n, (x, y) in enumerate(zip(a, b, strict=False)):
            if x != y:
                return _leaf(x, y, f"{where}[{n}]")
        return f"{where}[{min(len(a), len(b))}]", f"{len(a)} entries", f"{len(b)} entries"
    return where, str(a)[: 2 * _CONTEXT], str(b)[: 2 * _CONTEXT]


def _around(text: str, at: int) -> str:
    return text[max(0, at - _CONTEXT) : at + _CONTEXT]
