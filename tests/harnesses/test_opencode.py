# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""OpenCode's plan, and the reading of outputs that the real one left. The real one runs in ``test_behind_the_proxy``."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_polar.errors import HarnessError
from nemo_polar.harnesses.base import Endpoint, HarnessTask, Plan
from nemo_polar.harnesses.opencode import OpenCode
from nemo_polar.sandboxes.base import HOME, TOOLCHAIN, WORKDIR
from tests.support.outcomes import recorded_outcome, recorded_stdout

CONFIG = f"{HOME}/.config/opencode/opencode.json"


def plan(instruction: str = "Do it", turns: int | None = None, **options: object) -> Plan:
    endpoint = Endpoint("http://127.0.0.1:8080", "the-secret", "polar", 131072, 4096)
    return OpenCode().plan(endpoint, HarnessTask(instruction, WORKDIR, HOME, TOOLCHAIN, 60, turns, options))


def config(**options: Any) -> dict[str, Any]:
    return json.loads(plan(**options).files[CONFIG])


def model(**options: Any) -> dict[str, Any]:
    return config(**options)["provider"]["polar"]["models"]["polar"]


def test_the_model_is_reached_only_through_the_endpoint_and_its_bounds_are_told() -> None:
    found = config()
    assert found["enabled_providers"] == ["polar"] and found["model"] == found["small_model"] == "polar/polar"
    provider = found["provider"]["polar"]
    assert (provider["options"]["baseURL"], provider["options"]["apiKey"]) == ("http://127.0.0.1:8080/v1", "the-secret")
    assert provider["models"]["polar"]["limit"] == {"context": 131072, "output": 4096}


@pytest.mark.parametrize(
    ("api", "package"),
    [
        ("openai_chat", "@ai-sdk/openai-compatible"),
        ("openai_responses", "@ai-sdk/openai"),
        ("anthropic", "@ai-sdk/anthropic"),
    ],
)
def test_it_speaks_the_api_that_is_asked_for(api: str, package: str) -> None:
    assert config(api=api)["provider"]["polar"]["npm"] == package
    assert OpenCode.dialect_for({"api": api}) == api and OpenCode.dialect_for({}) == OpenCode.dialect


def test_the_secret_is_neither_on_the_command_line_nor_in_the_environment_that_commands_inherit() -> None:
    made = plan()
    assert "the-secret" not in " ".join([*made.argv, *made.env.values()])


@given(st.text(min_size=1))
def test_every_instruction_goes_in_word_for_word_and_never_as_an_argument(instruction: str) -> None:
    instruction = instruction.encode(errors="replace").decode()
    made = plan(instruction)
    assert made.stdin == instruction.encode() and made.argv == plan("other").argv and made.files == plan("other").files


def test_no_title_is_asked_for_nobody_else_is_called_and_history_is_never_blanked() -> None:
    made, found = plan(), config()
    assert "--title" in made.argv
    assert found["autoupdate"] is False and found["share"] == "disabled" and found["compaction"]["prune"] is False
    assert made.env["OPENCODE_DISABLE_MODELS_FETCH"] == "1"


def test_a_bound_on_turns_does_not_become_one_on_steps_which_would_put_words_into_the_models_mouth() -> None:
    assert config(turns=3) == config()


def test_options_become_settings_and_its_own_settings_go_over_them() -> None:
    found = config(without_tools=["task"], system_prompt="Be X", compaction=False, settings={"agent": {"plan": {"a": 1}}})
    assert found["permission"] == {"*": "allow", "task": "deny"} and list(found["permission"]) == ["*", "task"]
    assert found["agent"] == {"build": {"prompt": "Be X"}, "plan": {"a": 1}} and found["compaction"]["auto"] is False
    assert model(effort="high") | {"name": ""} == model() | {
        "name": "", "reasoning": True, "options": {"reasoningEffort": "high"}
    }  # fmt: skip
    assert model(effort="high", api="anthropic", model_options={"x": 1})["options"] == {"effort": "high", "x": 1}
    assert plan(skills={"calc": "text"}).files[f"{HOME}/.config/opencode/skills/calc/SKILL.md"] == b"text"
    assert plan(extra_args=["--print-logs"]).argv[-1] == "--print-logs"


def test_servers_are_written_as_opencode_writes_them() -> None:
    servers = {
        "a": {"command": "c", "args": ["d"], "env": {"E": "f"}},
        "b": {"url": "http://127.0.0.1:1"},
        "c": {"type": "local"},
    }
    found = config(mcp_servers=servers)["mcp"]
    assert found["a"] == {"type": "local", "command": ["c", "d"], "environment": {"E": "f"}, "enabled": True}
    assert found["b"] == {"type": "remote", "url": "http://127.0.0.1:1", "enabled": True} and found["c"] == {"type": "local"}


@pytest.mark.parametrize(("option", "value"), [("tool", []), ("api", "gemini"), ("effort", "a lot"), ("extra_args", "x")])
def test_a_wrong_option_is_named(option: str, value: object) -> None:
    with pytest.raises(HarnessError, match=option):
        plan(**{option: value})


@pytest.mark.parametrize(
    ("case", "message"),
    [("work", "It is done."), ("talk", "Only words."), ("empty_after_work", ""), ("worked_round", "It is done.")],
)
def test_a_run_that_ended_well_has_its_last_words(case: str, message: str) -> None:
    outcome = recorded_outcome(OpenCode(), case)
    assert outcome.ok and outcome.final_message == message and outcome.error is None


@pytest.mark.parametrize(("case", "words"), [("empty", "neither"), ("refused", "This is odd"), ("length", "token limit")])
def test_a_run_that_did_not_end_well_says_why(case: str, words: str) -> None:
    outcome = recorded_outcome(OpenCode(), case)
    assert not outcome.ok and outcome.error is not None and words in outcome.error and "\n" not in outcome.error


def test_what_was_killed_in_the_middle_of_its_work_did_not_end_well() -> None:
    half = recorded_stdout(OpenCode(), "work").split(b'{"type":"text"')[0]
    finished = half + b'{"type":"step_finish","part":{"reason":"tool-calls"}}\n'
    assert "in the middle" in (OpenCode().outcome(137, finished, b"").error or "")
    assert not OpenCode().outcome(3, recorded_stdout(OpenCode(), "work"), b"").ok
    assert OpenCode().outcome(0, b"", b"").error == "no step was finished (exit code 0)"


@given(
    st.lists(
        st.binary(max_size=60) | st.sampled_from([b'{"type":"error","error":3}', b'{"type":"text","part":[]}']), max_size=5
    )
)
def test_no_output_makes_it_raise(lines: list[bytes]) -> None:
    OpenCode().outcome(0, b"\n".join(lines), b"\xff")
