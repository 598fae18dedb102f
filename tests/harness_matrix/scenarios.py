# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What the model says, turn by turn, and where it goes wrong. Plain data, the same for every harness and family.

A step is one reply with calls; it is done when the conversation shows its mark. Marks are printed by commands that do not
contain them, so a call alone never looks like its result.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

WORKDIR = "/workspace"
TASK = "matrix"
INSTRUCTION = (
    "Work through the steps of the matrix, one after the other, with the tools you have: print the mark of each step, write "
    "letters.txt, read it, and say so when all of it is done.  Some text that must arrive as it is: 日本語, 🙂, e\u0301, \"'`, "
    "<b>."
)
INSTRUCTION_MARK = "Work through the steps of the matrix"
SUMMARY_MARK = "Summary of what was done: "
"""How every summary begins."""
PART_MARK = "Do the delegated part"
"""How a sub-agent's task begins, whose name follows."""

LETTERS = (
    "Ünïcödé: 日本語 · 🙂👩\u200d👩\u200d👧 · e\u0301 (combining) · שלום مرحبا (RTL) · line\u2028separator · tab\there · "
    '"quotes" \'and\' \\ backslash\n  indented, {"json": [1e2, 1.50, -0]} <b>&amp;</b>\n'
)
"""What letters.txt must hold: everything a wire format or a serialiser may get wrong."""


class Fault(StrEnum):
    """What goes wrong, once."""

    MALFORMED = "malformed"
    """A tool call that is not well-formed."""
    EMPTY = "empty"
    """A reply of nothing but the end of the turn."""
    LENGTH = "length"
    """A reply that is cut at its token limit, in the middle of a call."""
    ENGINE_CUT = "engine_cut"
    """The engine's stream is reset; the proxy asks again."""
    CLIENT_CUT = "client_cut"
    """The harness's connection is reset in the middle of the answer."""
    WIRE_429 = "wire_429"
    """The harness's next request is answered with 429."""
    WIRE_500 = "wire_500"
    ENGINE_429 = "engine_429"
    """The engine answers 429 as often as the proxy asks it for one reply."""
    ENGINE_500 = "engine_500"


@dataclass(frozen=True, slots=True)
class Shell:
    """Run a command."""

    command: str
    mark: str


@dataclass(frozen=True, slots=True)
class Write:
    """Write a file, by a tool for that if there is one. Done when the call itself is part of the conversation."""

    path: str
    text: str

    @property
    def mark(self) -> str:
        return self.path


@dataclass(frozen=True, slots=True)
class ReadFile:
    path: str
    mark: str
    """A piece of what the file holds."""


@dataclass(frozen=True, slots=True)
class Delegate:
    """Have a sub-agent do the part of the scenario that has this name, and report."""

    part: str

    @property
    def prompt(self) -> str:
        """What it is told."""
        return f"{PART_MARK} {self.part}: print both of its marks, one after the other, then report."

    @property
    def report(self) -> str:
        return f"The report of part {self.part} is here: both marks were printed."

    @property
    def mark(self) -> str:
        return self.report

    @property
    def steps(self) -> tuple[Step, ...]:
        """What the sub-agent does before it reports."""
        first, second = (shell(f"{self.part}-{k}") for k in (1, 2))
        return Step((first,), text=f"Part {self.part}.", thought=_THOUGHT), Step((second,), text="")


Act = Shell | Write | ReadFile | Delegate


@dataclass(frozen=True, slots=True)
class Step:
    """One reply of the model."""

    acts: tuple[Act, ...]
    text: str = ""
    """Before the calls."""
    thought: str = "Next."


@dataclass(frozen=True, slots=True)
class Scenario:
    """A conversation, and its faults by step number."""

    name: str
    steps: tuple[Step, ...]
    faults: dict[int, Fault] = field(default_factory=dict)
    rollouts: int = 1
    overflows: bool = False
    """The context is made so short that it is used up after several steps."""
    compacts: bool = False
    """The harness is made to compact its history after three long steps."""
    delegates: bool = False
    """Sub-agents do parts of it."""
    final: str = "\n\n All of it is done: every mark was printed. 👍 \n"


def mark(number: str) -> str:
    return f"the mark of step {number} stands here"


def shell(number: str, command: str = "") -> Shell:
    """A command that prints the step's mark, and may do more."""
    printed = f"printf 'the mark of step %s stands here\\n' {number}"
    return Shell(f"{command}{printed}", mark(number))


_THOUGHT = 'I need the next mark.\n\n  It is printed by a command: `printf`. 数字 🙂 "quoted" {"a": 1}\n'
_PLAIN = (
    Step((shell("1"),), text="  I start with the first step.\n\n", thought=_THOUGHT),
    Step((shell("2", "echo 'äöü — 🙂' $'tab\\there' \"it's\" ; "),), text=""),
    Step((Write(f"{WORKDIR}/letters.txt", LETTERS),), text="Now the file, with <tags> & \\backslashes\\:", thought="\n\n"),
    Step((shell("4a", "# two lines\n"), shell("4b", "cd . && ")), text="\tTwo at once.\n", thought=_THOUGHT * 2),
    Step(
        (shell("5", "printf 'the mark of step %s stands here\\n' 6 > sixth.txt; "),),
        text="\u2028 A separator before this, \u200f and a direction mark.",
    ),
    Step((ReadFile(f"{WORKDIR}/sixth.txt", mark("6")),), text=""),
    Step((shell("7", "true;" + " " * 20), shell("8", "cat letters.txt; ")), text="Nearly there…  ", thought=_THOUGHT),
)
_SHORT = (
    Step((shell("1"),), text="First.", thought=_THOUGHT),
    Step((shell("2", "echo 'äöü — 🙂'; "),), text="\n Second. \n"),
    Step((Write(f"{WORKDIR}/letters.txt", LETTERS),), text="", thought=_THOUGHT),
    Step((shell("4a"), shell("4b")), text="Fourth."),
    Step((shell("5"),), text="Fifth.\n"),
)
FILLER = "seq 10000 11499 | paste -d' ' - - - - - - - - - -"
"""Prints 9000 characters, mostly digits, which are a token each: more than harnesses keep free for a reply, and less
than they cut from a result."""
FILLER_TEXT = "\n".join(" ".join(str(n) for n in range(line, line + 10)) for line in range(10000, 11500, 10)) + "\n"
_DELEGATED = (
    Step((shell("1"),), text="First.", thought=_THOUGHT),
    Step((Delegate("alpha"),), text="Somebody else may do this one."),
    Step((Write(f"{WORKDIR}/letters.txt", LETTERS),), text="", thought=_THOUGHT),
    Step((Delegate("beta"), Delegate("gamma")), text="Two at once."),
    Step((shell("5"),), text="Last.\n"),
)
_LONG = tuple(Step((shell(str(k), f"{FILLER}; "),), text="More.", thought=_THOUGHT) for k in range(1, 9))
_COMPACTED = (
    *_LONG[:3],
    Step((Write(f"{WORKDIR}/letters.txt", LETTERS),), text="On with it.", thought=_THOUGHT),
    Step((shell("5"),), text="Fifth."),
    Step((shell("6"),), text=""),
)

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario("plain", _PLAIN, rollouts=2),
        Scenario("malformed", _SHORT, {1: Fault.MALFORMED}),
        Scenario("empty", _SHORT, {1: Fault.EMPTY}),
        Scenario("length", _SHORT, {1: Fault.LENGTH}),
        Scenario("dropped", _SHORT, {1: Fault.ENGINE_CUT, 3: Fault.CLIENT_CUT}),
        Scenario("429", _SHORT, {1: Fault.WIRE_429, 3: Fault.ENGINE_429}),
        Scenario("500", _SHORT, {1: Fault.WIRE_500, 3: Fault.ENGINE_500}),
        Scenario("subagent", _DELEGATED, delegates=True),
        Scenario("overflow", _LONG, overflows=True),
        Scenario("compaction", _COMPACTED, compacts=True),
    )
}
PROBE = Scenario("probe", ())
"""One reply, to learn how long a harness's first prompt is."""
