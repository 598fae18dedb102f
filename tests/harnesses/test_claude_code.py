# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Claude Code's plan and the reading of its output; with ``-m harness``, the real one in a local sandbox against a scripted
model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_polar.errors import HarnessError
from nemo_polar.harnesses.base import Endpoint, HarnessTask, Plan
from nemo_polar.harnesses.claude_code import CODING_TOOLS, ClaudeCode
from nemo_polar.sandboxes.base import HOME, TOOLCHAIN, WORKDIR
from tests.support.sandboxes import needs_bwrap
from tests.support.scripted_model import ScriptedModel, installed, messages_reply, run_real

FOLDER = f"{HOME}/.claude"


def plan(instruction: str = "Do it", turns: int | None = None, **options: object) -> Plan:
    endpoint = Endpoint("http://127.0.0.1:8080", "the-secret", "org/some-model", 32768, 4096)
    return ClaudeCode().plan(endpoint, HarnessTask(instruction, WORKDIR, HOME, TOOLCHAIN, 60, turns, options))


def after(made: Plan, flag: str) -> str:
    return made.argv[made.argv.index(flag) + 1]


def said(**fields: Any) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def result(text: str | None = "", **fields: Any) -> bytes:
    told = {"duration_ms": 1, "is_error": False, "num_turns": 1, "subtype": "success", "type": "result", "result": text}
    return said(**{**told, **fields})


CALL = said(type="assistant", message={"content": [{"type": "tool_use", "id": "t", "name": "Bash", "input": {}}]})
NOISE = b'[claude-code:unrecognized_model] {"model":"polar"}\n'


def test_the_model_is_reached_only_through_the_endpoint_whichever_of_its_names_a_sub_agent_asks_for() -> None:
    made = plan()
    assert made.env["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:8080" and after(made, "--model") == "org/some-model"
    named = {value for name, value in made.env.items() if name.startswith("ANTHROPIC_DEFAULT_")}
    assert named == {"org/some-model"} == {made.env["CLAUDE_CODE_SUBAGENT_MODEL"]}
    assert (made.env["CLAUDE_CODE_MAX_CONTEXT_TOKENS"], made.env["CLAUDE_CODE_MAX_OUTPUT_TOKENS"]) == ("32768", "4096")


def test_the_secret_is_neither_on_the_command_line_nor_in_the_environment() -> None:
    made = plan()
    assert "the-secret" not in " ".join([*made.argv, *made.env.values()])
    helper = json.loads(made.files[after(made, "--settings")])["apiKeyHelper"]
    path = helper.split('"')[1].replace("$CLAUDE_CONFIG_DIR", made.env["CLAUDE_CONFIG_DIR"])
    assert made.files[path] == b"the-secret"


@given(st.text(min_size=1))
def test_every_instruction_goes_in_word_for_word_and_never_as_a_command_of_its_own(instruction: str) -> None:
    instruction = instruction.encode(errors="replace").decode()
    made = plan(instruction)
    assert made.stdin in (instruction.encode(), b"\n" + instruction.encode()) and not made.stdin.startswith(b"/")
    assert made.argv == plan("other").argv and made.files == plan("other").files


def test_what_would_differ_between_runs_is_off_or_fixed() -> None:
    made = plan()
    assert made.env["CLAUDE_CODE_ATTRIBUTION_HEADER"] == "0" and made.env["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"] == "1"
    assert "--no-session-persistence" in made.argv and after(made, "--session-id") == after(plan("x"), "--session-id")
    assert json.loads(made.files[f"{FOLDER}/.claude.json"])["userID"] == "0" * 64


def test_by_default_it_believes_that_the_model_takes_the_plain_api() -> None:
    believed = plan().env["CLAUDE_CODE_MODEL_CAPABILITIES"].split(",")
    assert {"-mid_conv_system", "-mid_conv_tool_change", "-adaptive_thinking", "-effort"} == set(believed)
    assert plan().env["ENABLE_TOOL_SEARCH"] == "false" and plan().env["CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS"] == "1"


def test_effort_and_thinking_are_asked_for_only_where_wanted() -> None:
    low = plan(effort="low")
    assert after(low, "--effort") == "low" and "effort" in low.env["CLAUDE_CODE_MODEL_CAPABILITIES"].split(",")
    assert "adaptive_thinking" in plan(thinking="adaptive").env["CLAUDE_CODE_MODEL_CAPABILITIES"].split(",")
    assert plan(thinking="off").env["CLAUDE_CODE_DISABLE_THINKING"] == "1"
    assert plan(thinking=2000).env["MAX_THINKING_TOKENS"] == "2000"
    assert not {"MAX_THINKING_TOKENS", "CLAUDE_CODE_DISABLE_THINKING"} & set(plan().env)


def test_options_become_flags_and_files() -> None:
    made = plan(
        turns=7, tools=["Bash", "Read"], allowed_tools=["Bash"], disallowed_tools=["Bash(git *)", "Edit"], system_prompt="Be X",
        append_system_prompt="Y", agents={"a": {"description": "d", "prompt": "p"}}, mcp_servers={"calc": {"command": "c"}},
        skills={"greet": "---\n"}, compaction=False, retries=0, settings={"attribution": {"pr": "z"}}, env={"TZ": "X"},
        extra_args=["--brief"],
    )  # fmt: skip
    assert after(made, "--tools") == "Bash,Read" and after(made, "--max-turns") == "7" and made.argv[-1] == "--brief"
    assert after(made, "--allowedTools") == "Bash" and after(made, "--disallowedTools") == "Bash(git *),Edit"
    assert (
        made.files[after(made, "--system-prompt-file")] == b"Be X"
        and made.files[after(made, "--append-system-prompt-file")] == b"Y"
    )
    assert "a" in json.loads(made.files[after(made, "--agents")]) and "--strict-mcp-config" in made.argv
    assert json.loads(made.files[after(made, "--mcp-config")]) == {"mcpServers": {"calc": {"command": "c"}}}
    assert json.loads(made.files[after(made, "--settings")])["attribution"] == {"commit": "", "pr": "z"}
    assert f"{FOLDER}/skills/greet/SKILL.md" in made.files and made.env["DISABLE_AUTO_COMPACT"] == "1" and made.env["TZ"] == "X"
    assert all(path.startswith(f"{FOLDER}/") for path in made.files)
    assert after(plan(), "--tools") == ",".join(CODING_TOOLS) and "--max-turns" not in plan().argv
    bare = plan(bare=True)
    assert "--bare" in bare.argv and "--tools" not in bare.argv


@pytest.mark.parametrize(("option", "value"), [("tool", ["Bash"]), ("thinking", "a lot"), ("effort", "none"), ("retries", -1)])
def test_a_wrong_option_is_named(option: str, value: object) -> None:
    with pytest.raises(HarnessError, match=option):
        plan(**{option: value})


def test_the_final_message_is_the_results() -> None:
    outcome = ClaudeCode().outcome(0, said(type="system") + CALL + result("All done"), NOISE)
    assert outcome.ok and outcome.final_message == "All done" and outcome.error is None


def test_an_empty_last_reply_after_work_was_done_is_no_error() -> None:
    outcome = ClaudeCode().outcome(0, CALL + result("", num_turns=2), NOISE)
    assert outcome.ok and outcome.final_message == ""


FAILURES = {
    "nothing at all": (1, b"", "no result"),
    "cut off at work": (137, CALL, "no result"),
    "no word and no call": (0, result(""), "neither"),
    "never asked the model": (0, result("", num_turns=0), "never asked"),
    "a command of its own": (0, result("/help isn't available", num_turns=0), "/help"),
    "refused": (1, result("API Error: 400\nbad thing", is_error=True, terminal_reason="api_error"), "400 bad thing"),
    "said to be well": (0, result("API Error: 529", is_error=True), "529"),
    "turns used up": (
        1,
        result(None, is_error=True, subtype="error_max_turns", errors=["Reached 2"]),
        "error_max_turns: Reached 2",
    ),
    "bad exit": (3, result("done"), "exit code 3"),
}


@pytest.mark.parametrize(("code", "stdout", "words"), FAILURES.values(), ids=FAILURES)
def test_a_run_that_did_not_end_well_is_not_ok_whatever_its_exit_code(code: int, stdout: bytes, words: str) -> None:
    outcome = ClaudeCode().outcome(code, stdout, NOISE)
    assert not outcome.ok and outcome.error is not None and words in outcome.error and "\n" not in outcome.error


def test_output_that_was_cut_in_the_middle_still_has_its_end() -> None:
    cut = CALL[:40] + b"\n[1000 bytes left out]\n" + result("x")[30:] + result("the end")
    assert ClaudeCode().outcome(0, cut, b"").final_message == "the end"


@given(st.lists(st.binary(max_size=80) | st.just(b'{"type":"result"}') | st.just(b'{"x":{"type":"result"}}'), max_size=6))
def test_no_output_makes_it_raise(lines: list[bytes]) -> None:
    ClaudeCode().outcome(0, b"\n".join(lines), b"\xff")


# --- the real Claude Code ---------------------------------------------------------------------------------------------


@pytest.mark.harness
@needs_bwrap
@pytest.mark.skipif(not installed("claude_code"), reason="Claude Code is not installed (polar harness install claude_code)")
@pytest.mark.parametrize("bare", [False, True])
async def test_the_real_claude_code_works_unmodified_and_two_runs_send_the_same_bytes(tmp_path: Path, bare: bool) -> None:
    thought = ({"type": "thinking", "thinking": "", "signature": ""}, {"type": "thinking_delta", "thinking": "hm"})
    arguments = {"type": "input_json_delta", "partial_json": '{"command" : "echo hi > made","description":"d"}'}
    call = ({"type": "tool_use", "id": "t", "name": "Bash", "input": {}}, arguments)
    text = ({"type": "text", "text": ""}, {"type": "text_delta", "text": "It is made."})
    sent: list[list[bytes]] = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        model = ScriptedModel(messages_reply(thought, call, stop="tool_use"), messages_reply(text))
        result, outcome, made = await run_real(tmp_path / name, ClaudeCode(), model, "/help -- 'it'\n", made="made", bare=bare)
        assert outcome.ok and outcome.final_message == "It is made." and made == b"hi\n", (result, outcome)
        sent.append(model.bodies)
    assert sent[0] == sent[1] and len(sent[0]) == 2
    first, second = json.loads(sent[0][0]), json.loads(sent[0][1])
    assert first["messages"][-1]["content"][-1]["text"] == "\n/help -- 'it'\n" and first["max_tokens"] == 4096
    assert [m["role"] for m in second["messages"]] == ["user", "assistant", "user"]
    assert second["tools"] == first["tools"] and not {"context_management", "output_config"} & set(first)
    assert {tool["name"] for tool in first["tools"]} == ({"Bash", "Edit", "Read"} if bare else set(CODING_TOOLS))
