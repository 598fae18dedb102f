# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""One rollout that has ended, with all that a trainer's own format may want of it. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nemo_polar.trajectory.records import Request
from nemo_polar.types import Trajectory, Turn


@dataclass(frozen=True, slots=True)
class Rolled:
    """A rollout as its worker hands it over."""

    trajectory: Trajectory
    turns: tuple[Turn, ...] = ()
    """Of the attempt that the trajectory was made of, by id: parents before children, kinds told."""
    requests: Mapping[int, Request] = field(default_factory=dict)
    """By turn id: what its request added to the conversation. A turn that continues an aborted sample is not here."""
    first_prompt: str | None = None
    """Hash of the first prompt's ids on the main line (``roller.root_hash``); None when there was no call."""
