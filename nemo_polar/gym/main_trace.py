# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Which trace of a rollout goes into Gym's ``response``, and who then trains what.

Gym has room for one chain of tokens and no mask a token, so the chosen trace must train every trained token on it: those that
another trace owned so far move to it. The number of trained tokens stays as it was, each trained once (rule 3). Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

import numpy as np

from nemo_polar.rollout.roller import first_root
from nemo_polar.types import Kind, Trace, Turn

MainChoice: TypeAlias = Literal["first_prompt", "most_tokens"]
"""How the trace is chosen. ``first_prompt``: of those that begin with the group's first prompt, the one with the most trainable
tokens; NeMo RL forms its groups by equal first prompts. ``most_tokens``: the one with the most trainable tokens of all main
lines, for a harness that compacts its history early and works on after it."""


def choose(traces: Sequence[Trace], turns: Sequence[Turn], choice: MainChoice = "first_prompt") -> Trace | None:
    """The trace for the response; None when there is none at all.

    A trace is of the main line when its root is: its last turn may be the summary that a compaction asked for. Of the traces
    in question the one with the most trainable tokens is taken, of equal ones that with the latest leaf. Where none begins with
    the first prompt (it was dropped for its length), those of other main roots are in question, then all. A prompt counts as
    the first one by its ids: a harness whose first call was lost asks again, under a root of its own.
    """
    kinds = {turn.id: turn.kind for turn in turns}
    main = [t for t in traces if t.spans and kinds.get(t.spans[0].turn) is Kind.MAIN]
    root = first_root(turns)
    begun = [t for t in main if choice == "first_prompt" and root is not None and starts_with(t, root)]
    trained = trained_turns(traces)
    return max(begun or main or traces, key=lambda t: (_trainable(t, trained), leaf_of(t)), default=None)


def own(traces: Sequence[Trace], main: Trace) -> tuple[Trace, ...]:
    """``traces``, of which ``main`` is one, with every trained token on ``main`` trained by it: ``main`` first, the others in
    their order. What no trace trains stays untrained."""
    trained = trained_turns(traces)
    on_main = {span.turn for span in main.spans if span.role == "sampled"}
    others = (_with(trace, dict.fromkeys(on_main, False)) for trace in traces if trace.id != main.id)
    return _with(main, {turn: turn in trained for turn in on_main}), *others


def starts_with(trace: Trace, root: Turn) -> bool:
    """Whether a trace's first prompt has the ids of ``root``'s."""
    prompt = trace.spans[0]
    return prompt.role == "prompt" and np.array_equal(trace.token_ids[: prompt.end], root.prompt_delta)


def trained_turns(traces: Sequence[Trace]) -> set[int]:
    """The turns whose sample some trace trains. A sample is trained wholly or not at all."""
    return {s.turn for t in traces for s in t.spans if s.role == "sampled" and t.loss_mask[s.start]}


def leaf_of(trace: Trace) -> int:
    """The id of a trace's last turn."""
    return int(trace.id.rpartition("/")[2])


def _trainable(trace: Trace, trained: set[int]) -> int:
    """Tokens on a trace that are trained, by whichever trace."""
    return sum(s.end - s.start for s in trace.spans if s.role == "sampled" and s.turn in trained)


def _with(trace: Trace, fates: dict[int, bool]) -> Trace:
    """``trace`` with the samples of some turns trained or not."""
    mask = trace.loss_mask.copy()
    for span in trace.spans:
        if span.role == "sampled" and span.turn in fates:
            mask[span.start : span.end] = fates[span.turn]
    return trace if np.array_equal(mask, trace.loss_mask) else replace(trace, loss_mask=mask)
