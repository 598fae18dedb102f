# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The nouns of Polar, shared by every layer.

Plain frozen data: nothing here touches the network, the disk or a clock. Token ids are int32 arrays, log-probabilities
float32 arrays, both one-dimensional; the letters in the comments name lengths (P prompt, T sampled, N a whole trace).

Text that a harness or a model wrote is kept as it is. In particular a tool call's ``arguments`` is the exact string the
model sampled, whether or not it is JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

TokenIds: TypeAlias = npt.NDArray[np.int32]
LogProbs: TypeAlias = npt.NDArray[np.float32]
Mask: TypeAlias = npt.NDArray[np.bool_]


def as_ids(values: Any) -> TokenIds:
    """``values`` (any sequence of ints) as a contiguous int32 array; arrays of that type pass through uncopied."""
    return np.ascontiguousarray(values, dtype=np.int32)


def as_logprobs(values: Any) -> LogProbs:
    """``values`` (any sequence of floats) as a contiguous float32 array."""
    return np.ascontiguousarray(values, dtype=np.float32)


# --- a conversation ---------------------------------------------------------------------------------------------------


class Role(StrEnum):
    """Who speaks. ``DEVELOPER`` is kept apart from ``SYSTEM``: a model family's role map decides how it is rendered."""

    SYSTEM = "system"
    DEVELOPER = "developer"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True, slots=True)
class Text:
    """Visible text."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Chain of thought, as sampled or as echoed by a harness."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call the assistant made."""

    id: str
    """Minted by us for sampled calls; whatever the harness sent for calls in its history."""
    name: str
    arguments: str
    """Verbatim: the JSON text as sampled (or sent), valid or not."""
    malformed: bool = False
    """True when a sampled block had a readable name but is not a well-formed call. Never repaired, only counted."""


@dataclass(frozen=True, slots=True)
class Image:
    """An image, as a URL or inline data. Text-only models refuse it by name; it is never dropped silently."""

    url: str
    media_type: str | None = None


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool answered."""

    call_id: str
    content: tuple[Text | Image, ...]
    name: str | None = None
    is_error: bool = False


Part: TypeAlias = Text | Reasoning | ToolCall | ToolResult | Image


@dataclass(frozen=True, slots=True)
class Message:
    """One message; the order of ``parts`` is the order they were written in."""

    role: Role
    parts: tuple[Part, ...]
    name: str | None = None

    @property
    def text(self) -> str:
        """All text parts, joined."""
        return "".join(p.text for p in self.parts if isinstance(p, Text))

    @property
    def reasoning(self) -> str | None:
        """All reasoning parts, joined; None when there is none."""
        found = [p.text for p in self.parts if isinstance(p, Reasoning)]
        return "".join(found) if found else None

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return tuple(p for p in self.parts if isinstance(p, ToolCall))


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool the model may call; ``parameters`` is its JSON schema."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    strict: bool | None = None
    freeform: bool = False
    """The harness takes plain text for arguments. The model still writes an object; its one member is ``FREEFORM``."""


FREEFORM = "input"
"""The parameter under which a freeform tool's text stands."""


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """What the harness asked for. ``auto`` and ``none`` are honoured; others are logged: a forced call is not re-scorable."""

    mode: Literal["auto", "none", "required", "named"] = "auto"
    name: str | None = None


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to draw tokens. Defaults are the untruncated policy distribution, which is what a trainer can re-score."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    """-1: no limit."""
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int | None = None
    """Upper bound on sampled tokens; None: up to the context length."""
    stop: tuple[str, ...] = ()
    seed: int | None = None

    @property
    def rescorable(self) -> bool:
        """True when a plain forward pass reproduces the sampling log-probabilities."""
        return (
            self.temperature == 1.0
            and self.top_p == 1.0
            and self.top_k in (-1, 0)
            and self.min_p == 0.0
            and self.presence_penalty == 0.0
            and self.frequency_penalty == 0.0
            and self.repetition_penalty == 1.0
        )


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One request of the harness, free of its dialect."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    sampling: SamplingParams = SamplingParams()
    """As asked for; the proxy's sampling policy may override it."""
    stream: bool = False
    model: str = ""
    dialect: str = ""
    n: int = 1
    want_logprobs: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    """What only the dialect itself needs to answer (for Chat Completions: ``include_usage``)."""
    dropped: tuple[str, ...] = ()
    """Request features left out by an explicit rule, one short phrase each, for the log and the metrics."""


# --- what the engine returned -----------------------------------------------------------------------------------------


class FinishReason(StrEnum):
    """Why sampling ended. ``STOP`` covers end-of-turn ids and stop strings."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class Sample:
    """What one engine call drew. Rule 1: every id came from the engine with its log-probability."""

    token_ids: TokenIds
    """int32[T], as sampled, the end-of-turn id included when there was one."""
    logprobs: LogProbs
    """float32[T], of the *sampling* distribution (temperature and truncation applied), finite, <= 0."""
    finish_reason: FinishReason
    stop: str | None = None
    """The stop string that ended the visible text, if one did."""
    weights_version: tuple[int, int] = (0, 0)
    """The policy version at the first and the last token. Stamped by us: an engine may report none for a cut stream."""
    sampling: SamplingParams = SamplingParams()
    """The parameters really used."""
    started_at: float = 0.0
    """Unix seconds, like the next two."""
    first_token_at: float = 0.0
    ended_at: float = 0.0

    def __post_init__(self) -> None:
        if self.token_ids.shape != self.logprobs.shape or self.token_ids.ndim != 1:
            raise ValueError(
                f"a sample needs a log-probability a token: {self.token_ids.shape} ids, {self.logprobs.shape} log-probabilities"
            )

    def __len__(self) -> int:
        return len(self.token_ids)


# --- replies, as they are streamed ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A whole tool call: sent in one burst, when its block has closed."""

    index: int
    """0-based position among the calls of this reply."""
    call: ToolCall


Delta: TypeAlias = TextDelta | ReasoningDelta | ToolCallDelta


@dataclass(frozen=True, slots=True)
class Usage:
    """Exact token counts: harnesses compact their history on them."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class TokenLogProb:
    """One sampled token as a client that asked for log-probabilities sees it."""

    text: str
    utf8: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class Reply:
    """A finished answer, free of any dialect."""

    id: str
    """Unique; dialects derive their response id from it."""
    created: int
    """Unix seconds."""
    model: str
    message: Message
    finish_reason: FinishReason
    usage: Usage
    stop: str | None = None
    logprobs: tuple[TokenLogProb, ...] | None = None


# --- the tree and what is made of it ----------------------------------------------------------------------------------


class Kind(StrEnum):
    """What a call was for, worked out from its structure."""

    MAIN = "main"
    SUBAGENT = "subagent"
    COMPACTION = "compaction"
    AUXILIARY = "auxiliary"


class ForkReason(StrEnum):
    """Why a call that carried history did not extend a recorded line."""

    NEW = "new"
    """No history of ours in the request: a conversation begins."""
    EDITED = "edited"
    """The history does not match what we sent: an earlier turn was changed, dropped or reordered."""
    TOOLS = "tools"
    """Same messages, but the tool list (or the template options) changed."""
    BRIDGE = "bridge"
    """The template cannot append these messages to sampled ids (for example an assistant message we did not sample)."""
    RETENTION = "retention"
    """``thinking_retention=template``: the template strips earlier reasoning, so the line cannot go on."""
    ENGINE = "engine"
    """A chat-only engine rendered something that does not extend the recorded ids."""


class MaskReason(StrEnum):
    """Why a sampled token is not trained. Rule 3: each one is trained, or has one of these."""

    UNDELIVERED = "undelivered"
    """The reply never reached the harness."""
    ABANDONED = "abandoned"
    """An aborted sample that nothing continued."""
    AUXILIARY = "auxiliary"
    SUBAGENT = "subagent"
    COMPACTION = "compaction"
    TRUNCATED = "truncated"
    """Dropped by a length policy."""
    INFRA = "infra"
    """The rollout failed for reasons that are not the policy's."""
    DISTRIBUTION = "distribution"
    """Drawn from a distribution the trainer cannot re-score, and the policy says not to train on it."""


@dataclass(slots=True)
class Turn:
    """One node of a session's tree: an engine call and what came of it.

    The ids the engine was given are ``prompt(parent) + sample(parent) + prompt_delta``; for a root, ``prompt_delta`` alone.
    Only ``delivered`` and ``kind`` change after a turn is recorded.
    """

    id: int
    """Position in the session, from 0; a parent's id is always smaller."""
    session_id: str
    parent: int | None
    prompt_delta: TokenIds
    """int32[D]; empty only when this turn continues its parent's aborted sample."""
    sample: Sample
    reply: Message
    """Parsed from the sampled ids (with those of the turn it continues, if any)."""
    request_id: str
    """The id the engine call was made under; the engine-side log carries it too."""
    call_id: str
    kind: Kind = Kind.MAIN
    delivered: bool = False
    fork_reason: ForkReason | None = None
    """Set on roots only."""
    fork_of: int | None = None
    """For a root with history: the recorded turn with the longest common message prefix."""
    continues: bool = False
    """True when ``sample`` goes on where the parent's aborted sample ended."""
    prompt_len: int = 0
    """Length of the whole prompt, in tokens."""
    tools_key: bytes = b""
    system_key: bytes = b""
    """Fingerprints that tell kinds apart."""

    def __len__(self) -> int:
        return len(self.prompt_delta) + len(self.sample)


@dataclass(frozen=True, slots=True)
class Span:
    """A run of tokens in a trace, ``[start, end)``."""

    start: int
    end: int
    role: Literal["prompt", "context", "sampled"]
    """``prompt``: the root's rendered prompt; ``context``: appended between turns; ``sampled``: drawn by the policy."""
    turn: int


@dataclass(frozen=True, slots=True)
class Trace:
    """One root-to-leaf line of a session's tree, as a trainer takes it."""

    id: str
    """``<rollout id>/<leaf turn id>``."""
    token_ids: TokenIds
    """int32[N]"""
    loss_mask: Mask
    """bool[N]: True where this trace trains the token. A sampled token is True in at most one trace."""
    logprobs: LogProbs
    """float32[N]: the sampling log-probability on sampled tokens, 0 elsewhere."""
    weights_version: TokenIds
    """int32[N]: the policy version on sampled tokens, -1 elsewhere."""
    spans: tuple[Span, ...]
    kind: Kind
    parent: str | None = None
    """The trace this one forked from; of a sub-agent, the one that started it; after a compaction, the one before it."""
    fork_reason: ForkReason | None = None

    def __len__(self) -> int:
        return len(self.token_ids)


class Status(StrEnum):
    """How a rollout ended. Only the first four are about the policy; rule 4 keeps the rest out of rewards and baselines."""

    COMPLETED = "completed"
    HARNESS_ERROR = "harness_error"
    """The harness ended with an error of its own making; the verifier still scored what it left."""
    TIMEOUT = "timeout"
    """Its time was up; the verifier still scored what it left."""
    BUDGET = "budget"
    """Its turns or tokens were up."""
    ENGINE_FAILED = "engine_failed"
    SANDBOX_FAILED = "sandbox_failed"
    VERIFIER_FAILED = "verifier_failed"
    CAPTURE_FAILED = "capture_failed"
    CANCELLED = "cancelled"

    @property
    def infra(self) -> bool:
        return self not in (Status.COMPLETED, Status.HARNESS_ERROR, Status.TIMEOUT, Status.BUDGET)


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The traces of one rollout under one reward."""

    rollout_id: str
    task_id: str
    group_id: str
    status: Status
    traces: tuple[Trace, ...]
    reward: float | None
    """None unless the verifier gave one (rule 4)."""
    components: Mapping[str, float] = field(default_factory=dict)
    masked: Mapping[MaskReason, int] = field(default_factory=dict)
    """Sampled tokens that no trace trains, by reason."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None
    final_message: str | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """All rollouts of one task: what a GRPO baseline is taken over."""

    group_id: str
    task_id: str
    trajectories: tuple[Trajectory, ...]
