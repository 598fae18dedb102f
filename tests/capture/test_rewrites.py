# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The date a harness writes into its first prompt is the group's, so that a group's first prompts are equal."""

from __future__ import annotations

from datetime import date

import pytest

from nemo_polar.capture.rewrites import DateRewrite, today
from nemo_polar.types import Message, ModelCall, Role, Text

PINNED = DateRewrite(date(2026, 12, 2))
NEXT_DAY = date(2026, 12, 3)


def call(text: str, role: Role = Role.SYSTEM) -> ModelCall:
    return ModelCall(messages=(Message(role, (Text(text),)),))


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("Current date: 2026-12-03\n", "Current date: 2026-12-02\n"),
        ("Thu Dec 03 2026", "Wed Dec 02 2026"),
        ("Thursday, December 3, 2026", "Wednesday, December 2, 2026"),
        ("on 12/3/2026.", "on 12/2/2026."),
    ],
)
def test_the_day_a_harness_started_on_becomes_the_groups_day(written, expected):
    rewritten, count = PINNED.apply(call(written), [NEXT_DAY])
    assert (rewritten.messages[0].text, count) == (expected, 1)


def test_on_the_groups_day_nothing_is_touched():
    same = call("2026-12-02")
    assert PINNED.apply(same, [PINNED.pinned]) == (same, 0)


def test_other_dates_and_longer_numbers_are_left_alone():
    for text in ("2025-01-01", "x2026-12-03y"):
        assert PINNED.apply(call(text), [NEXT_DAY])[1] == 0


def test_a_date_in_the_users_opening_is_the_groups_and_one_after_the_first_reply_is_what_a_tool_said():
    opening, reply, later = (Message(role, (Text("2026-12-03"),)) for role in (Role.USER, Role.ASSISTANT, Role.USER))
    rewritten, count = PINNED.apply(ModelCall(messages=(opening, reply, later)), [NEXT_DAY])
    assert count == 1
    assert [m.text for m in rewritten.messages] == ["2026-12-02", "2026-12-03", "2026-12-03"]


def test_today_is_in_utc():
    assert today(0.0) == date(1970, 1, 1)
