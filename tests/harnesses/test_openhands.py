# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""OpenHands' plan, and the reading of outputs that the real one left. The real one runs in ``test_behind_the_proxy``."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_polar.errors import HarnessError
from nemo_polar.harnesses.base import Endpoint, HarnessTask, Plan
from nemo_polar.harnesses.openhands import OpenHands
from nemo_polar.sandboxes.base import HOME, TOOLCHAIN, WORKDIR
from tests.support.outcomes import recorded_outcome, recorded_stdout

FOLDER = f"{HOME}/.openhands/polar"


def plan(instruction: str = "Do it", context: int = 131072, turns: int | None = None, **options: object) -> Plan:
    endpoint = Endpoint("http://127.0.0.1:8080", "the-secret", "polar", context, 4096)
    return OpenHands().plan(endpoint, HarnessTask(instruction, WORKDIR, HOME, TOOLCHAIN, 59.5, turns, options))


def config(**options: Any) -> dict[str, Any]:
    return json.loads(plan(**options).files[f"{FOLDER}/config.json"])


def test_the_model_is_reached_only_through_the_endpoint_and_its_bounds_are_told() -> None:
    llm = config()["llm"]
    assert (llm["model"], llm["base_url"], llm["api_mode"]) == ("openai/polar", "http://127.0.0.1:8080/v1", "chat")
    assert (llm["api_key"], llm["max_input_tokens"], llm["max_output_tokens"]) == ("the-secret", 131072, 4096)
    assert llm["timeout"] == 60


def test_the_secret_is_neither_on_the_command_line_nor_in_the_environment_that_commands_inherit() -> None:
    made = plan()
    assert "the-secret" not in " ".join([*made.argv, *made.env.values()])


@given(st.text(min_size=1))
def test_every_instruction_goes_in_word_for_word_and_never_as_an_argument(instruction: str) -> None:
    instruction = instruction.encode(errors="replace").decode()
    made = plan(instruction)
    assert made.stdin == instruction.encode() and made.argv == plan("other").argv and made.files == plan("other").files


def test_the_script_is_in_the_sandbox_and_reads_every_key_of_its_configuration_and_no_other() -> None:
    made = plan()
    assert made.argv == ("openhands-python", f"{FOLDER}/run.py", f"{FOLDER}/config.json")
    tree = ast.parse(made.files[f"{FOLDER}/run.py"])
    read = {
        node.slice.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and isinstance(node.slice, ast.Constant)
        if node.value.id == "config"
    }
    assert read == set(config())


def test_the_terminal_is_the_same_on_every_host_and_writes_no_escape_codes() -> None:
    assert config()["tool_params"] == {"terminal": {"terminal_type": "subprocess"}}
    assert plan().files[f"{HOME}/.inputrc"] == b"set enable-bracketed-paste off\n"


@pytest.mark.parametrize(("context", "tokens"), [(131072, 126976), (4096, 1024)])
def test_it_summarises_where_one_more_reply_would_not_fit(context: int, tokens: int) -> None:
    assert config(context=context)["condenser"] == {"max_tokens": tokens}
    assert config(compaction=False)["condenser"] is None


def test_options_become_fields_and_its_own_settings_go_over_them() -> None:
    found = config(
        turns=7, effort="high", retries=1, settings={"llm": {"temperature": 0.5}, "agent": {"tool_concurrency_limit": 2}}
    )
    assert found["conversation"] == {"max_iteration_per_run": 7} and found["agent"] == {"tool_concurrency_limit": 2}
    assert (found["llm"]["reasoning_effort"], found["llm"]["num_retries"], found["llm"]["temperature"]) == ("high", 1, 0.5)
    assert config()["llm"]["reasoning_effort"] is None
    found = config(system_prompt="Be X", append_system_prompt="And Y", without_tools=["think"], subagents=True)
    assert (found["system_prompt"], found["append_system_prompt"], found["subagents"]) == ("Be X", "And Y", True)
    assert config(mcp_servers={"calc": {"command": "c"}})["mcp_servers"] == {"calc": {"command": "c"}}
    made = plan(skills={"calc": "text"})
    assert (
        made.files[f"{HOME}/.openhands/skills/calc/SKILL.md"] == b"text" and config(skills={"calc": "text"})["skills"] is True
    )


@pytest.mark.parametrize(("option", "value"), [("tool", []), ("effort", "a lot"), ("retries", -1), ("settings", [])])
def test_a_wrong_option_is_named(option: str, value: object) -> None:
    with pytest.raises(HarnessError, match=option):
        plan(**{option: value})


@pytest.mark.parametrize(("case", "message"), [("work", "It is done."), ("talk", "Only words.")])
def test_a_run_that_ended_well_has_its_last_words(case: str, message: str) -> None:
    outcome = recorded_outcome(OpenHands(), case)
    assert outcome.ok and outcome.final_message == message and outcome.error is None


@pytest.mark.parametrize(
    ("case", "words"),
    [("empty", "stuck"), ("empty_after_work", "stuck"), ("refused", "This is odd"), ("turns", "MaxIterationsReached")],
)
def test_a_run_that_did_not_end_well_says_why(case: str, words: str) -> None:
    outcome = recorded_outcome(OpenHands(), case)
    assert not outcome.ok and outcome.error is not None and words in outcome.error and "\n" not in outcome.error


def test_having_done_nothing_is_no_success_whatever_the_exit_code() -> None:
    assert OpenHands().outcome(0, b"", b"").error == "it did not come to its end (exit code 0)"
    assert OpenHands().outcome(1, b"", b"Traceback\nImportError: x\n").error == "ImportError: x"
    assert not OpenHands().outcome(0, b'{"status": "finished", "final_message": "", "calls": 0}\n', b"").ok
    assert not OpenHands().outcome(3, recorded_stdout(OpenHands(), "work"), b"").ok


@given(
    st.lists(
        st.binary(max_size=60) | st.sampled_from([b'{"status":3}', b'{"status":"finished","error":[]}', b"[]"]), max_size=5
    )
)
def test_no_output_makes_it_raise(lines: list[bytes]) -> None:
    OpenHands().outcome(0, b"\n".join(lines), b"\xff")
