# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The demo's families of small coding tasks: for each one its instruction, files, graded checks and how it is done.

One description serves the task generator (words in, task out) and the scripted teacher (instruction in, calls out), so the two
cannot drift apart. Pure data and functions: no clock, no disk, no randomness.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Words: TypeAlias = Mapping[str, str]
"""A family's fields, each filled with one word."""


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call of a demonstration."""

    name: str
    arguments: Mapping[str, Any]
    spoil: tuple[str, ...] = ()
    """The arguments whose value an imperfect teacher may get wrong without the call itself failing."""


Step: TypeAlias = Callable[[Words, Sequence[str]], Call]
"""The next call, from the words of the instruction and the results of the calls before it."""
Check: TypeAlias = tuple[str, str, float]
"""Name, shell command run in the workspace (0: passed), share of the reward. A family's shares add up to 1."""


@dataclass(frozen=True, slots=True)
class Family:
    """One kind of task."""

    name: str
    instruction: str
    """A format string; its fields are words."""
    checks: Callable[[Words], list[Check]]
    steps: tuple[Step, ...]
    final: str
    """What is said at the end; a format string like ``instruction``."""
    files: Callable[[Words], dict[str, str]] = lambda _: {}
    hidden: tuple[str, ...] = ()
    """Words that only the files hold."""
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Fields that take one of these values, and not a word."""

    @property
    def fields(self) -> tuple[str, ...]:
        """All fields, those of the instruction first, in order."""
        return (*dict.fromkeys(re.findall(r"\{(\w+)\}", self.instruction)), *self.hidden)

    def match(self, instruction: str) -> Words | None:
        """The words that make ``instruction``, or None when it is of another family."""
        pattern = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>\\w+)", re.escape(self.instruction))
        found = re.fullmatch(pattern, instruction.strip())
        return found.groupdict() if found else None


def recognise(instruction: str) -> tuple[Family, Words] | None:
    """The family of an instruction and its words."""
    for family in FAMILIES:
        words = family.match(instruction)
        if words is not None:
            return family, words
    return None


# --- steps ------------------------------------------------------------------------------------------------------------


def _write(path: str, content: str) -> Step:
    return lambda w, _: Call("write", {"path": path.format(**w), "content": content.format(**w)}, ("path", "content"))


def _read(path: str) -> Step:
    return lambda w, _: Call("read", {"path": path.format(**w)})


def _bash(command: str, *, spoil: bool = False) -> Step:
    return lambda w, _: Call("bash", {"command": command.format(**w)}, ("command",) if spoil else ())


def _write_result(path: str) -> Step:
    """Write what the call before it brought."""
    return lambda w, results: Call("write", {"path": path.format(**w), "content": results[-1].strip()}, ("path", "content"))


_OPERATORS = {"add": "+", "subtract": "-", "multiply": "*"}
_WRONG = {"add": "-", "subtract": "*", "multiply": "+"}


def _mend(words: Words, results: Sequence[str]) -> Call:
    """Replace the operator found in the file that was read by the one the instruction names."""
    found = re.search(r"return (a . b)", results[-1])
    old = found.group(1) if found else f"a {_WRONG[words['verb']]} b"
    edit = {"oldText": old, "newText": f"a {_OPERATORS[words['verb']]} b"}
    return Call("edit", {"path": f"{words['file']}.py", "edits": [edit]})


def _swap(words: Words, _: Sequence[str]) -> Call:
    edit = {"oldText": words["old"], "newText": words["new"]}
    return Call("edit", {"path": f"{words['file']}.txt", "edits": [edit]}, ("newText",))


# --- checks -----------------------------------------------------------------------------------------------------------


def _holds(path: str, text: str, exists: float, right: float) -> list[Check]:
    """Part for a file that is there, the rest for what it holds (a final newline more or less does not matter)."""
    return [(f"{path} exists", f"test -f {path}", exists), (f"{path} is right", f'test "$(cat {path})" = "{text}"', right)]


def _mended(words: Words) -> list[Check]:
    path, wrong = f"{words['file']}.py", _WRONG[words["verb"]]
    expected = {"add": 9, "subtract": 5, "multiply": 14}[words["verb"]]
    load = f"import runpy; f = runpy.run_path('{path}')['{words['function']}']"
    return [
        ("still runs, and is changed", f"! grep -qF 'a {wrong} b' {path} && python3 -I -c \"{load}\"", 0.3),
        ("gives the right result", f'python3 -I -c "{load}; assert f(7, 2) == {expected}"', 0.7),
    ]


# --- families ---------------------------------------------------------------------------------------------------------

FAMILIES: tuple[Family, ...] = (
    Family(
        name="write",
        instruction="Create the file {file}.txt containing exactly {word}",
        checks=lambda w: _holds(f"{w['file']}.txt", w["word"], 0.3, 0.7),
        steps=(_write("{file}.txt", "{word}"),),
        final="Created {file}.txt.",
    ),
    Family(
        name="write_two",
        instruction="Create two files: {first}.txt containing exactly {one} and {second}.txt containing exactly {two}",
        checks=lambda w: [
            *_holds(f"{w['first']}.txt", w["one"], 0.2, 0.3),
            *_holds(f"{w['second']}.txt", w["two"], 0.2, 0.3),
        ],
        steps=(_write("{first}.txt", "{one}"), _write("{second}.txt", "{two}")),
        final="Created {first}.txt and {second}.txt.",
    ),
    Family(
        name="copy",
        instruction="Read {source}.txt and write the word it holds to {target}.txt",
        files=lambda w: {f"{w['source']}.txt": w["word"] + "\n"},
        hidden=("word",),
        checks=lambda w: _holds(f"{w['target']}.txt", w["word"], 0.3, 0.7),
        steps=(_read("{source}.txt"), _write_result("{target}.txt")),
        final="Wrote {target}.txt.",
    ),
    Family(
        name="run",
        instruction="Run {script}.sh with sh and save what it prints to {target}.txt",
        files=lambda w: {f"{w['script']}.sh": f"echo {w['word']}\n"},
        hidden=("word",),
        checks=lambda w: _holds(f"{w['target']}.txt", w["word"], 0.3, 0.7),
        steps=(_bash("sh {script}.sh > {target}.txt", spoil=True),),
        final="Saved the output to {target}.txt.",
    ),
    Family(
        name="count",
        instruction="Count the lines of {source}.txt and write the number to {target}.txt",
        files=lambda w: {f"{w['source']}.txt": "".join(f"{letter}\n" for letter in w["source"])},
        checks=lambda w: _holds(f"{w['target']}.txt", str(len(w["source"])), 0.3, 0.7),
        steps=(_bash("wc -l < {source}.txt"), _write_result("{target}.txt")),
        final="Wrote the number of lines to {target}.txt.",
    ),
    Family(
        name="rename",
        instruction="Rename the file {source}.txt to {target}.txt",
        files=lambda w: {f"{w['source']}.txt": w["word"] + "\n"},
        hidden=("word",),
        checks=lambda w: [
            ("the old name is gone", f"! test -e {w['source']}.txt", 0.3),
            ("the new name holds it", f'test "$(cat {w["target"]}.txt)" = "{w["word"]}"', 0.7),
        ],
        steps=(_bash("mv {source}.txt {target}.txt", spoil=True),),
        final="Renamed it to {target}.txt.",
    ),
    Family(
        name="replace",
        instruction="In {file}.txt replace {old} by {new}",
        files=lambda w: {f"{w['file']}.txt": f"the {w['old']} is here\n"},
        checks=lambda w: [
            ("the old word is gone", f"test -f {w['file']}.txt && ! grep -qw {w['old']} {w['file']}.txt", 0.4),
            ("the new word is in its place", f'test "$(cat {w["file"]}.txt)" = "the {w["new"]} is here"', 0.6),
        ],
        steps=(_swap,),
        final="Replaced {old} by {new}.",
    ),
    Family(
        name="mend",
        instruction="The function {function} in {file}.py should {verb} its two arguments, but has a bug. Mend it",
        choices={"verb": tuple(_OPERATORS)},
        files=lambda w: {f"{w['file']}.py": f"def {w['function']}(a, b):\n    return a {_WRONG[w['verb']]} b\n"},
        checks=_mended,
        steps=(_read("{file}.py"), _mend),
        final="Mended {function} in {file}.py.",
    ),
)
"""In two to three turns each; ``recognise`` takes the first that matches."""
