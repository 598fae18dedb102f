# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""``polar demo``: the demo recipe, with every trace scored again by the engine, and strict about what comes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nemo_polar.cli.boundary import Exit, complain, leave, run_async
from nemo_polar.cli.console import RunView, stderr
from nemo_polar.cli.rollout import show, verdict, watched
from nemo_polar.rollout.checks import check
from nemo_polar.rollout.compose import load_settings
from nemo_polar.rollout.run import Run

MAX_LOGPROB_DIFF = 1e-3
"""Nats, in float32."""


def main(overrides: Sequence[str], *, as_json: bool) -> None:
    """See ``polar demo --help``."""
    checked = check(load_settings("demo", overrides))
    view = RunView(stderr())
    finished = run_async(watched(Run(checked, overwrite=True, rescore=True, say=view.say), view))
    show(finished, as_json=as_json)
    if not finished.cancelled and (wrong := shortcomings(finished.report)):
        for sentence in wrong:
            complain(sentence)
        leave(Exit.FINDINGS)
    leave(verdict(finished))


def shortcomings(report: Mapping[str, Any]) -> list[str]:
    """Why a report does not show what the demo is there to show; empty when it does."""
    if not report["audited"]:
        return ["the run could not be audited: there is no engine-side log"]
    wrong = []
    if report["drift_tokens"]:
        wrong.append(f"{report['drift_tokens']} trained tokens are not in the context they were sampled in")
    if report["findings"]:
        wrong.append(f"the audit found {len(report['findings'])} things; see `polar audit`")
    if report["sampled_tokens"] != report["trained_tokens"] + sum(report["masked_tokens"].values()):
        wrong.append("sampled tokens are not the sum of trained and masked ones")
    diff = report["max_logprob_diff"]
    if diff is None:
        wrong.append("no trace was scored again")
    elif diff > MAX_LOGPROB_DIFF:
        wrong.append(f"a log-probability differs by {diff:.2g} when scored again; at most {MAX_LOGPROB_DIFF} is right")
    return wrong
