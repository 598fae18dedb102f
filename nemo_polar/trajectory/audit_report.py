# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What an audit says: typed findings, each with a place, and the counters that go into ``report.json``."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from nemo_polar.types import MaskReason


class Code(StrEnum):
    """What is wrong. The first group speaks of journal against engine log, the second of trajectories against both."""

    PROMPT = "prompt"
    """The prompt that the recorded tree adds up to is not the one the engine was given."""
    SAMPLE = "sample"
    """Recorded sampled ids are not those the engine drew."""
    LOGPROB = "logprob"
    """Recorded log-probabilities are not bit-equal to the engine's."""
    SAMPLING = "sampling"
    """The engine drew under other parameters than recorded."""
    UNLOGGED_TURN = "unlogged_turn"
    """The engine log knows nothing of a recorded turn: its tokens are invented."""
    DROPPED_TURN = "dropped_turn"
    """The engine drew a sample that is not recorded, and no named failure accounts for it."""
    TREE = "tree"
    """The recorded turns do not form a tree."""

    TRACE_CONTEXT = "trace_context"
    """What precedes a sampled span in its trace is not the prompt the engine was given."""
    TRACE_SAMPLE = "trace_sample"
    TRACE_LOGPROB = "trace_logprob"
    TRACE_SPANS = "trace_spans"
    """Spans do not tile the trace, or something is trained or scored outside the sampled ones."""
    TRACE_CONTENT = "trace_content"
    """The trace is not the one that its turns make."""
    MASK = "mask"
    """A loss-mask bit is not what the build rule says."""
    TRAINED_TWICE = "trained_twice"
    DUPLICATE_TRACE = "duplicate_trace"
    MISSING_TRACE = "missing_trace"
    EXTRA_TRACE = "extra_trace"
    MISSING_TRAJECTORY = "missing_trajectory"
    """The journal has a result that counts, but there is no trajectory for it."""
    LINEAGE = "lineage"
    """Kind, parent or fork reason is not what the build rule says."""
    ACCOUNT = "account"
    """Sampled tokens are not the sum of trained and masked ones, or the masked counts are wrong."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, and where."""

    code: Code
    trace: str | None
    """``<rollout id>/<leaf turn id>``; for a finding about a turn, a trace that runs through it."""
    turn: int | None
    position: int | None
    """Index into the trace's tokens."""
    message: str

    def __str__(self) -> str:
        where = ", ".join(f"{n} {v}" for n, v in (("turn", self.turn), ("position", self.position)) if v is not None)
        return f"{self.code}: {self.trace or '-'}{f' ({where})' if where else ''}: {self.message}"


@dataclass(slots=True)
class AuditReport:
    """The counters of a run; it passes when there are no findings."""

    rollouts: int = 0
    calls: int = 0
    """Engine requests that the journal opened."""
    turns: int = 0
    bridged_turns: int = 0
    """Turns that extend a recorded line."""
    traces: int = 0
    sampled_tokens: int = 0
    trained_tokens: int = 0
    """Unique (turn, index) pairs, like the masked ones."""
    masked_tokens: dict[MaskReason, int] = field(default_factory=dict)
    drift_tokens: int = 0
    """Trained tokens that the engine log does not have as drawn in the very context they have in their trace."""
    forks: dict[str, int] = field(default_factory=dict)
    """Roots by fork reason."""
    malformed_calls: int = 0
    failed_calls: int = 0
    """Engine samples that made no turn because the call ended in a named failure or was retried."""
    lost_in_flight: int = 0
    """Engine samples whose call was open when the proxy died. Not drift: nobody was told of them."""
    unclaimed_sessions: int = 0
    """Sessions that no trajectory was made of (superseded attempts, crashes); their tokens count as masked ``infra``."""
    max_logprob_diff: float | None = None
    """Largest difference between a trained token's log-probability and its re-scored one; None when nothing was re-scored."""
    rescored_tokens: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.findings

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data, for ``report.json``."""
        out = asdict(self)
        out["masked_tokens"] = {reason.value: n for reason, n in self.masked_tokens.items()}
        out["findings"] = [{**f, "code": f["code"].value} for f in out["findings"]]
        return {"ok": self.ok, **out}

    def find(self, code: Code, trace: str | None, turn: int | None, position: int | None, message: str) -> None:
        """Add a finding."""
        self.findings.append(Finding(code, trace, turn, position, message))
