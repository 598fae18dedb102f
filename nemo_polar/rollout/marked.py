# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""YAML and JSONL values that remember the line each of their parts was written on.

YAML is read with the safe constructors only. Keys given twice, which both formats let the last one win silently, are recorded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from nemo_polar.errors import TaskFileError

Keys = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Marked:
    """A value, and the line of every part of it."""

    value: Any
    lines: dict[Keys, int]
    """Path of keys and indices to the line (from 1) of that key, or of that list entry."""
    duplicates: tuple[Keys, ...] = ()

    def line(self, *keys: str | int) -> int:
        """The line of the part at ``keys``; where there is no such part, of the nearest one around it."""
        while keys not in self.lines:
            keys = keys[:-1]
        return self.lines[keys]

    def child(self, *keys: str | int) -> Marked:
        """The part at ``keys`` by itself."""
        value = self.value
        for key in keys:
            value = value[key]
        n = len(keys)
        lines = {path[n:]: line for path, line in self.lines.items() if path[:n] == keys}
        return Marked(value, lines, tuple(path[n:] for path in self.duplicates if path[:n] == keys))


def read_yaml(text: str, path: str) -> Marked:
    """One YAML document.

    Raises:
        TaskFileError: it does not parse; ``line`` is where.
    """
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        mark = getattr(exc, "problem_mark", None)
        problem = getattr(exc, "problem", None) or str(exc) or type(exc).__name__
        raise TaskFileError(f"not valid YAML: {problem}", path=path, line=mark.line + 1 if mark else None) from exc
    lines: dict[Keys, int] = {(): 1}
    duplicates: list[Keys] = []
    if node is not None:
        _walk(node, (), lines, duplicates, frozenset())
    return Marked(value, lines, tuple(duplicates))


def _walk(node: yaml.Node, at: Keys, lines: dict[Keys, int], duplicates: list[Keys], above: frozenset[int]) -> None:
    """Note the line of every part below ``node``. An anchor that contains itself is not followed."""
    lines.setdefault(at, node.start_mark.line + 1)
    if id(node) in above:
        return
    above |= {id(node)}
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = (*at, str(key.value))
            if here in lines:
                duplicates.append(here)
            lines[here] = key.start_mark.line + 1
            _walk(value, here, lines, duplicates, above)
    elif isinstance(node, yaml.SequenceNode):
        for i, value in enumerate(node.value):
            lines[(*at, i)] = value.start_mark.line + 1
            _walk(value, (*at, i), lines, duplicates, above)


def read_jsonl(text: str, path: str) -> Iterator[Marked]:
    """One value a line; blank lines are passed over.

    Raises:
        TaskFileError: a line is not JSON.
    """
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        twice: list[Keys] = []

        def pairs(found: list[tuple[str, Any]], twice: list[Keys] = twice) -> dict[str, Any]:
            keys = [key for key, _ in found]
            twice += [(key,) for key in dict.fromkeys(keys) if keys.count(key) > 1]
            return dict(found)

        try:
            value = json.loads(line, object_pairs_hook=pairs)
        except (ValueError, RecursionError) as exc:
            raise TaskFileError(f"not valid JSON: {exc}", path=path, line=number) from exc
        yield Marked(value, {(): number}, tuple(twice))
