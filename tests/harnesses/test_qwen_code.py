# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Qwen Code's plan, and the reading of outputs that the real one left. The real one runs in ``test_behind_the_proxy``."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_polar.errors import HarnessError
from nemo_polar.harnesses.base import Endpoint, HarnessTask, Plan
from nemo_polar.harnesses.qwen_code import QwenCode
from nemo_polar.sandboxes.base import HOME, TOOLCHAIN, WORKDIR
from tests.support.outcomes import recorded_outcome, recorded_stdout

SETTINGS = f"{HOME}/.qwen/settings.json"


def plan(instruction: str = "Do it", context: int = 131072, turns: int | None = None, **options: object) -> Plan:
    endpoint = Endpoint("http://127.0.0.1:8080", "the-secret", "polar", context, 4096)
    return QwenCode().plan(endpoint, HarnessTask(instruction, WORKDIR, HOME, TOOLCHAIN, 59.5, turns, options))


def settings(**options: Any) -> dict[str, Any]:
    return json.loads(plan(**options).files[SETTINGS])


def test_the_model_is_reached_only_through_the_endpoint_and_its_bounds_are_told() -> None:
    found = settings()
    assert found["security"]["auth"]["baseUrl"] == "http://127.0.0.1:8080/v1"
    assert found["security"]["auth"]["apiKey"] == "the-secret"
    generation = found["model"]["generationConfig"]
    assert (found["model"]["name"], generation["contextWindowSize"]) == ("polar", 131072)
    assert generation["samplingParams"] == {"max_tokens": 4096} and generation["timeout"] == 60_000


def test_the_secret_is_neither_on_the_command_line_nor_in_the_environment_that_commands_inherit() -> None:
    made = plan()
    assert "the-secret" not in " ".join([*made.argv, *made.env.values()])


def test_nobody_else_is_called_and_nothing_runs_in_the_background() -> None:
    found = settings()
    assert found["general"]["enableAutoUpdate"] is False and found["privacy"]["usageStatisticsEnabled"] is False
    assert not any(found["memory"].values()) and found["telemetry"]["enabled"] is False


@pytest.mark.parametrize(("context", "share"), [(131072, 0.85), (16384, 0.75), (4096, 0.25)])
def test_it_compacts_where_one_more_reply_would_not_fit(context: int, share: float) -> None:
    assert settings(context=context)["context"]["autoCompactThreshold"] == share


def test_options_become_flags_and_settings_and_its_own_settings_go_over_them() -> None:
    made = plan(system_prompt="Be X", append_system_prompt="And Y", turns=7, extra_args=["--debug"])
    line = " ".join(made.argv)
    for flag in ("--system-prompt Be X", "--append-system-prompt And Y", "--max-session-turns 7", "--debug"):
        assert flag in line
    found = settings(effort="high", body={"x": 1}, without_tools=["glob"], subagents=False, settings={"model": {"name": "y"}})
    assert found["model"]["generationConfig"]["extra_body"] == {"reasoning_effort": "high", "x": 1}
    assert found["tools"]["disabled"] == ["glob", "agent", "list_agents"] and found["model"]["name"] == "y"
    assert settings(bundled_skills=True)["skills"]["disabledLevels"] == []
    assert settings(mcp_servers={"calc": {"command": "c"}})["mcpServers"] == {"calc": {"command": "c"}}
    assert plan(skills={"calc": "text"}).files[f"{HOME}/.qwen/skills/calc/SKILL.md"] == b"text"


@pytest.mark.parametrize(
    ("option", "value"), [("tool", []), ("effort", "a lot"), ("retries", -1), ("extra_args", "x"), ("skills", {"../x": ""})]
)
def test_a_wrong_option_is_named(option: str, value: object) -> None:
    with pytest.raises(HarnessError, match=option):
        plan(**{option: value})


@pytest.mark.parametrize(("case", "message"), [("work", "It is done."), ("talk", "Only words."), ("empty_after_work", "")])
def test_a_run_that_ended_well_has_its_last_words(case: str, message: str) -> None:
    outcome = recorded_outcome(QwenCode(), case)
    assert outcome.ok and outcome.final_message == message and outcome.error is None


@pytest.mark.parametrize(
    ("case", "words"),
    [("empty", "empty response"), ("refused", "This is odd"), ("turns", "max session turns"), ("dropped", "terminated")],
)
def test_a_run_that_did_not_end_well_says_why(case: str, words: str) -> None:
    outcome = recorded_outcome(QwenCode(), case)
    assert not outcome.ok and outcome.error is not None and words in outcome.error and "\n" not in outcome.error


def test_having_done_nothing_is_no_success_whatever_the_exit_code() -> None:
    assert QwenCode().outcome(0, b"", b"").error == "it left no result (exit code 0)"
    nothing = b'{"type":"result","subtype":"success","is_error":false,"result":""}\n'
    assert not QwenCode().outcome(0, nothing, b"").ok
    assert not QwenCode().outcome(3, recorded_stdout(QwenCode(), "work"), b"").ok


@given(st.lists(st.binary(max_size=60) | st.sampled_from([b'{"type":"result","error":3}', b'{"type":[]}']), max_size=5))
def test_no_output_makes_it_raise(lines: list[bytes]) -> None:
    QwenCode().outcome(0, b"\n".join(lines), b"\xff")
