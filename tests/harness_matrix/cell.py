# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""One cell: a run of one harness in one scenario with one family, and the row that it comes to.

``python -m tests.harness_matrix.cell FOLDER`` does what ``FOLDER/cell.json`` says and writes ``FOLDER/row.json``. Each cell is
a process, so that a cell that hangs or dies takes no other with it, and its processor time is its own.
"""

from __future__ import annotations

import asyncio
import json
import resource
import shutil
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nemo_polar import registry
from nemo_polar.capture.journal import JournalReader
from nemo_polar.harnesses.base import Harness
from nemo_polar.rollout.checks import check
from nemo_polar.rollout.run import Finished, Run
from nemo_polar.settings import RunSettings
from nemo_polar.tokens.tokenizer import Tokenizer
from nemo_polar.trajectory.first_prompts import prompt_differences
from nemo_polar.trajectory.store import JOURNAL
from nemo_polar.types import ForkReason, Kind
from tests.harness_matrix import model as scripted
from tests.harness_matrix.families import FAMILIES
from tests.harness_matrix.lineage import trace_rows, turn_rows
from tests.harness_matrix.scenarios import FILLER_TEXT, INSTRUCTION, LETTERS, PROBE, SCENARIOS, TASK, Scenario
from tests.harness_matrix.tools import HARNESSES
from tests.harness_matrix.wire import SWITCH
from tests.harness_matrix.writer import Writer

_CONTEXT = 262_144
_ENGINE_RETRIES = 1
_SEED = 4
_LONG_STEPS = 3.6
"""Steps of the overflow scenario that fit: the next result is too much, while there is always room for a reply."""
_COMPACTED_STEPS = 2.6
"""Long steps after which a compaction is due, of the three that there are."""
_REPLY_TOKENS = 350


@dataclass(frozen=True, slots=True)
class Cell:
    """What to run."""

    harness: str
    scenario: str
    family: str
    toolchain: str
    seconds: float = 120
    """For the harness's own run."""
    first_prompt: int | None = None
    """Tokens, where another cell of the harness and family has told."""


def main(folder: Path) -> None:
    cell = Cell(**json.loads((folder / "cell.json").read_text()))
    row = asyncio.run(run_cell(cell, folder))
    (folder / "row.json").write_text(json.dumps(row, indent=1, ensure_ascii=False))


async def run_cell(cell: Cell, folder: Path) -> dict[str, Any]:
    """Run ``cell`` in ``folder``; the run folder is left there."""
    scenario = SCENARIOS[cell.scenario]
    tokenizer = Tokenizer.load(FAMILIES[cell.family].folder())
    context, options, toolset = _CONTEXT, dict[str, Any](), HARNESSES[cell.harness]
    if scenario.overflows or scenario.compacts:
        first = cell.first_prompt or (await _run(cell, PROBE, folder / "probe", _CONTEXT, tokenizer, {})).first_prompt
        used = first + int((_LONG_STEPS if scenario.overflows else _COMPACTED_STEPS) * _tokens_of_a_step(tokenizer))
        if scenario.compacts and toolset.compact_option is not None:
            options = {toolset.compact_option: used}
        else:
            context = used + toolset.reserve + (toolset.compact_room if scenario.compacts else 0)
    ran = await _run(cell, scenario, folder / "run", context, tokenizer, options)
    return {**asdict(cell), **ran.row(), "context": context, "context_used": round(ran.journal.longest / context, 3)}


def _tokens_of_a_step(tokenizer: Tokenizer) -> int:
    """Of the overflow scenario, reply and result."""
    return len(tokenizer.encode(FILLER_TEXT)) + _REPLY_TOKENS


@dataclass(frozen=True, slots=True)
class _Ran:
    finished: Finished
    harness: Harness
    wall_s: float
    proxy_cpu_s: float
    harness_cpu_s: float
    http: dict[str, int]
    faults: list[str]
    journal: _Journal

    @property
    def first_prompt(self) -> int:
        return max(self.journal.first_prompts, default=0)

    def row(self) -> dict[str, Any]:
        """Everything the table says, counts of tokens from the audit."""
        report, trajectories = self.finished.report, self.finished.trajectories
        traces = [trace for t in trajectories for trace in t.traces]
        forks = {k: n for k, n in report["forks"].items() if k != ForkReason.NEW.value}
        masked = {k: n for k, n in report["masked_tokens"].items() if n}
        return {
            "version": self.harness.install.version,
            "dialect": "+".join(sorted(self.journal.dialects)) or self.harness.dialect,
            "rollouts": len(trajectories),
            "calls": report["calls"],
            "turns": report["turns"],
            "bridged": report["bridged_turns"],
            "main_traces": [sum(t.kind is Kind.MAIN for t in r.traces) for r in trajectories],
            "traces": len(traces),
            "roots": report["forks"].get(ForkReason.NEW.value, 0),
            "forks": forks,
            "kinds": dict(Counter(trace.kind.value for trace in traces)),
            "drift_tokens": report["drift_tokens"],
            "sampled": report["sampled_tokens"],
            "trained": report["trained_tokens"],
            "masked": masked,
            "unaccounted": report["sampled_tokens"] - report["trained_tokens"] - sum(masked.values()),
            "malformed_calls": report["malformed_calls"],
            "failed_calls": report["failed_calls"],
            "findings": report["findings"],
            "trace_list": [trace_rows(t.traces) for t in trajectories],
            "turn_list": self.journal.lines,
            "statuses": [t.status.value for t in trajectories],
            "errors": [t.error for t in trajectories if t.error],
            "final_messages": [t.final_message for t in trajectories],
            "rewards": [t.reward for t in trajectories],
            "counters": _added(t.metrics for t in trajectories),
            "same_first_prompt": report["group_prompt_mismatches"] == [],
            "prompt_differences": self.journal.differences,
            "first_prompt": self.first_prompt,
            "http": self.http,
            "faults": self.faults,
            "wall_s": round(self.wall_s, 1),
            "cpu_s": round(self.harness_cpu_s, 1),
            "proxy_cpu_s": round(self.proxy_cpu_s, 1),
        }


async def _run(cell: Cell, scenario: Scenario, out: Path, context: int, tokenizer: Tokenizer, options: dict[str, Any]) -> _Ran:
    shutil.rmtree(out, ignore_errors=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    harness: Harness = registry.resolve("harnesses", cell.harness)()
    SWITCH.dialect = harness.dialect
    SWITCH.passed.clear()
    SWITCH.harness_cpu_s = 0.0
    writer = Writer(tokenizer, FAMILIES[cell.family])
    model = scripted.Model(writer, HARNESSES[cell.harness], scenario, SWITCH, seed=_SEED, engine_tries=_ENGINE_RETRIES + 1)
    scripted.install(model)
    before, began = _cpu(), time.monotonic()
    finished = await Run(check(_settings(cell, scenario, out, context, len(tokenizer), options))).run()
    journal = _read_journal(out, model.kinds)
    return _Ran(
        finished,
        harness,
        wall_s=time.monotonic() - began,
        proxy_cpu_s=_cpu() - before,
        harness_cpu_s=SWITCH.harness_cpu_s,
        http=dict(sorted(SWITCH.passed.items())),
        faults=model.happened,
        journal=journal,
    )


def _settings(cell: Cell, scenario: Scenario, out: Path, context: int, vocab: int, options: dict[str, Any]) -> RunSettings:
    task = {
        "id": TASK,
        "instruction": INSTRUCTION,
        "verifier": {
            "type": "command",
            "command": "cmp letters.txt expected.txt",
            "files": {"expected.txt": {"text": LETTERS}},
        },
    }
    tasks = out.parent / "task.jsonl"
    tasks.write_text(json.dumps(task) + "\n")
    return RunSettings.model_validate(
        {
            "name": out.name,
            "out": str(out.parent),
            "group_size": scenario.rollouts,
            "seconds": cell.seconds + 100,
            "retries": 0,
            "env": {"tasks": [str(tasks)], "budget": {"seconds": cell.seconds, "turns": 60}},
            "harness": {"name": cell.harness, "options": options},
            "sandbox": {"name": "tests.harness_matrix.wire:WireSandbox", "toolchain": cell.toolchain},
            "engine": {
                "name": "scripted",
                "options": {
                    "script": "tests.harness_matrix.model:current",
                    "vocab": vocab,
                    "max_context": context,
                    "chunk_tokens": 3,
                },
            },
            "policy": {"name": cell.family, "codec": FAMILIES[cell.family].codec()},
            "capture": {"engine_retries": _ENGINE_RETRIES},
            "stages": {"run": 1, "verify_seconds": 30},
        }
    )


@dataclass(slots=True)
class _Journal:
    first_prompts: list[int] = field(default_factory=list)
    """Tokens of each session's first root with tools."""
    longest: int = 0
    """Tokens of the longest prompt with its reply."""
    dialects: set[str] = field(default_factory=set)
    differences: list[str] = field(default_factory=list)
    """In what the rollouts' first prompts differ."""
    lines: list[list[dict[str, Any]]] = field(default_factory=list)
    """See ``lineage.turn_rows``; a session each."""


def _read_journal(out: Path, kinds: Mapping[str, Kind]) -> _Journal:
    """``kinds``: what the model took its calls for, by request id."""
    found = _Journal()
    with JournalReader(out / JOURNAL) as journal:
        for session in journal.sessions():
            turns = journal.turns(session.id)
            found.first_prompts += [t.prompt_len for t in turns if t.parent is None and t.tools_key][:1]
            found.longest = max(found.longest, *(t.prompt_len + len(t.sample) for t in turns), 0)
            found.lines.append(turn_rows(turns, kinds))
            found.dialects |= {call.dialect for call in journal.calls(session.id)}
        found.differences = [str(difference) for difference in prompt_differences(journal)]
    return found


def _added(metrics: Any) -> dict[str, float]:
    total: Counter[str] = Counter()
    for of_one in metrics:
        total.update({k.removeprefix("capture."): n for k, n in of_one.items() if k.startswith("capture.") and n})
    return dict(sorted(total.items()))


def _cpu() -> float:
    """Seconds of this process: engine, proxy and the rest of nemo_polar."""
    spent = resource.getrusage(resource.RUSAGE_SELF)
    return spent.ru_utime + spent.ru_stime


if __name__ == "__main__":
    main(Path(sys.argv[1]))
