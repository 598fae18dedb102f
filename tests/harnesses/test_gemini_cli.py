# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Gemini CLI's plan, and the reading of outputs that the real one left. The real one runs in ``test_behind_the_proxy``."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_polar.errors import HarnessError
from nemo_polar.harnesses.base import Endpoint, HarnessTask, Plan
from nemo_polar.harnesses.gemini_cli import GeminiCli
from nemo_polar.sandboxes.base import HOME, TOOLCHAIN, WORKDIR
from tests.support.outcomes import recorded_outcome, recorded_stdout

SETTINGS = f"{HOME}/.gemini/settings.json"
WINDOW = 1_048_576


def plan(instruction: str = "Do it", context: int = 131072, turns: int | None = None, **options: object) -> Plan:
    endpoint = Endpoint("http://127.0.0.1:8080", "the-secret", "polar", context, 4096)
    return GeminiCli().plan(endpoint, HarnessTask(instruction, WORKDIR, HOME, TOOLCHAIN, 60, turns, options))


def settings(**options: Any) -> dict[str, Any]:
    return json.loads(plan(**options).files[SETTINGS])


def generation(**options: Any) -> dict[str, Any]:
    [override] = settings(**options)["modelConfigs"]["customOverrides"]
    assert override["match"] == {"model": "polar"}
    return override["modelConfig"]["generateContentConfig"]


def test_the_model_is_reached_only_through_the_endpoint() -> None:
    made = plan()
    assert made.env["GOOGLE_GEMINI_BASE_URL"] == "http://127.0.0.1:8080" and made.env["GEMINI_API_KEY"] == "the-secret"
    assert made.argv[made.argv.index("--model") + 1] == "polar"
    assert settings()["security"]["auth"] == {"selectedType": "gemini-api-key"}


def test_the_secret_is_not_on_the_command_line_and_is_kept_from_the_commands_that_the_agent_runs() -> None:
    assert "the-secret" not in " ".join(plan().argv)
    assert settings()["security"]["environmentVariableRedaction"] == {"enabled": True}


def test_nobody_else_is_called_and_the_model_is_called_for_the_task_alone() -> None:
    found = settings()
    assert found["general"]["enableAutoUpdate"] is False and found["privacy"]["usageStatisticsEnabled"] is False
    assert found["telemetry"]["enabled"] is False and found["model"]["disableLoopDetection"] is True
    assert {"google_web_search", "web_fetch"} <= set(found["tools"]["exclude"])


@pytest.mark.parametrize(("context", "tokens"), [(131072, 111411), (16384, 12288), (4096, 1024)])
def test_its_fraction_of_a_window_it_believes_in_is_the_real_one(context: int, tokens: int) -> None:
    assert int(settings(context=context)["model"]["compressionThreshold"] * WINDOW) == tokens


def test_thinking_is_asked_for_as_a_level_or_a_budget() -> None:
    assert generation() == {"maxOutputTokens": 4096}
    assert generation(thinking="high")["thinkingConfig"] == {"includeThoughts": True, "thinkingLevel": "HIGH"}
    assert generation(thinking=512)["thinkingConfig"] == {"includeThoughts": True, "thinkingBudget": 512}
    assert generation(thinking="off")["thinkingConfig"] == {"includeThoughts": False, "thinkingBudget": 0}
    assert generation(generation={"temperature": 0.5})["temperature"] == 0.5


def test_options_become_settings_and_its_own_settings_go_over_them() -> None:
    made = plan(system_prompt="Be X", extra_args=["--debug"], skills={"calc": "text"})
    assert made.files[made.env["GEMINI_SYSTEM_MD"]] == b"Be X" and made.argv[-1] == "--debug"
    assert made.files[f"{HOME}/.gemini/skills/calc/SKILL.md"] == b"text"
    found = settings(turns=7, attempts=2, without_tools=[], subagents=False, mcp_servers={"calc": {"command": "c"}})
    assert found["model"]["maxSessionTurns"] == 7 and found["general"]["maxAttempts"] == 2
    assert found["tools"]["exclude"] == ["invoke_agent"] and found["mcpServers"] == {"calc": {"command": "c"}}
    assert settings(settings={"model": {"name": "y"}})["model"]["name"] == "y"


@pytest.mark.parametrize(("option", "value"), [("tool", []), ("thinking", "a lot"), ("attempts", 11), ("extra_args", "x")])
def test_a_wrong_option_is_named(option: str, value: object) -> None:
    with pytest.raises(HarnessError, match=option):
        plan(**{option: value})


@pytest.mark.parametrize(("case", "message"), [("work", "It is done."), ("talk", "Only words."), ("empty_after_work", "")])
def test_a_run_that_ended_well_has_its_last_words(case: str, message: str) -> None:
    outcome = recorded_outcome(GeminiCli(), case)
    assert outcome.ok and outcome.final_message == message and outcome.error is None


@pytest.mark.parametrize(
    ("case", "words"),
    [("empty", "empty response"), ("refused", "This is odd"), ("turns", "max session turns"), ("dropped", "terminated")],
)
def test_a_run_that_did_not_end_well_says_why(case: str, words: str) -> None:
    outcome = recorded_outcome(GeminiCli(), case)
    assert not outcome.ok and outcome.error is not None and words in outcome.error and "\n" not in outcome.error


def test_having_done_nothing_is_no_success_whatever_the_exit_code() -> None:
    assert GeminiCli().outcome(0, b"", b"").error == "it left no result (exit code 0)"
    assert not GeminiCli().outcome(0, b'{"type":"result","status":"success"}\n', b"").ok
    assert not GeminiCli().outcome(3, recorded_stdout(GeminiCli(), "work"), b"").ok


@given(st.lists(st.binary(max_size=60) | st.sampled_from([b'{"type":"result","error":3}', b'{"type":[]}']), max_size=5))
def test_no_output_makes_it_raise(lines: list[bytes]) -> None:
    GeminiCli().outcome(0, b"\n".join(lines), b"\xff")
