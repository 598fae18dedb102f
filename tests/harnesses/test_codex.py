# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Codex's plan and the reading of its output; with ``-m harness``, the real one in a local sandbox against a scripted model."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_polar.errors import HarnessError
from nemo_polar.harnesses.base import Endpoint, HarnessTask, Plan
from nemo_polar.harnesses.codex import Codex
from nemo_polar.sandboxes.base import HOME, TOOLCHAIN, WORKDIR
from tests.support.sandboxes import needs_bwrap
from tests.support.scripted_model import ScriptedModel, installed, responses_reply, run_real

CONFIG = f"{HOME}/.codex/config.toml"
ENDED = {"type": "turn.completed", "usage": {"input_tokens": 9}}
METADATA = {"id": "item_0", "type": "error", "message": "Model metadata for `polar` not found."}


def plan(instruction: str = "Do it", context: int = 131072, max_output: int = 4096, **options: object) -> Plan:
    endpoint = Endpoint("http://127.0.0.1:8080", "the-secret", "polar", context, max_output)
    return Codex().plan(endpoint, HarnessTask(instruction, WORKDIR, HOME, TOOLCHAIN, 60, None, options))


def config(**options: Any) -> dict[str, Any]:
    return tomllib.loads(plan(**options).files[CONFIG].decode())


def stream(*events: dict[str, Any]) -> bytes:
    return b"\n".join(json.dumps(event, separators=(",", ":")).encode() for event in events) + b"\n"


def item(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": "item.completed", "item": {"type": kind, **fields}}


def test_the_model_is_reached_only_through_the_endpoint_and_over_plain_http() -> None:
    found = config()
    provider = found["model_providers"][found["model_provider"]]
    assert (provider["base_url"], provider["wire_api"]) == ("http://127.0.0.1:8080/v1", "responses")
    assert provider["experimental_bearer_token"] == "the-secret" and provider["supports_websockets"] is False
    assert (found["model"], found["model_context_window"]) == ("polar", 131072)


def test_the_secret_is_neither_on_the_command_line_nor_in_the_environment() -> None:
    made = plan()
    assert "the-secret" not in " ".join([*made.argv, *made.env.values()])


@given(st.text(min_size=1))
def test_every_instruction_goes_in_word_for_word_and_never_as_an_argument(instruction: str) -> None:
    instruction = instruction.encode(errors="replace").decode()
    made = plan(instruction)
    assert made.stdin == instruction.encode() and made.argv == plan("other").argv and made.files == plan("other").files


def test_nothing_that_would_call_another_host_is_on() -> None:
    found = config()
    assert found["check_for_update_on_startup"] is found["analytics"]["enabled"] is found["feedback"]["enabled"] is False
    assert found["features"]["apps"] is found["features"]["plugins"] is False and found["web_search"] == "disabled"
    assert set(found["otel"].values()) == {"none"} and "--ephemeral" in plan().argv


@pytest.mark.parametrize(
    ("context", "max_output", "limit"), [(100000, 4096, 90000), (32768, 8192, 24576), (16384, 12000, 8192), (8192, 4096, 4096)]
)
def test_it_compacts_while_one_more_reply_still_fits(context: int, max_output: int, limit: int) -> None:
    assert config(context=context, max_output=max_output)["model_auto_compact_token_limit"] == limit
    assert config(context=context, compact_at=1000)["model_auto_compact_token_limit"] == 1000


def test_options_become_configuration() -> None:
    servers = {"calc": {"command": "python3", "args": ["a b.py"], "env": {"A.b": "1"}}}
    made = plan(
        effort="high", system_prompt="Be X", append_system_prompt='"And"\n', subagents=False, mcp_servers=servers,
        skills={"greet": "---\nname: greet\n---\n"}, features={"goals": False},
        config={"features": {"hooks": False}, "model": "m"}, extra_args=["--strict-config"],
    )  # fmt: skip
    found = tomllib.loads(made.files[CONFIG].decode())
    assert found["model_reasoning_effort"] == "high" and found["mcp_servers"] == servers and found["model"] == "m"
    assert (
        found["developer_instructions"] == '"And"\n'
        and made.files[f"{HOME}/.codex/{found['model_instructions_file']}"] == b"Be X"
    )
    assert found["features"] == {"apps": False, "plugins": False, "multi_agent": False, "goals": False, "hooks": False}
    assert made.files[f"{HOME}/.codex/skills/greet/SKILL.md"].startswith(b"---")
    assert "--strict-config" in made.argv and made.argv[-1] == "-"


@given(st.dictionaries(st.text(), st.text() | st.integers() | st.booleans() | st.lists(st.text()), max_size=4))
def test_any_configuration_is_written_as_toml_that_means_the_same(more: dict[str, Any]) -> None:
    assert config(config={"x": more})["x"] == more


@pytest.mark.parametrize(("option", "value"), [("efort", "low"), ("effort", "a lot"), ("skills", ["x"]), ("compact_at", 0)])
def test_a_wrong_option_is_named(option: str, value: object) -> None:
    with pytest.raises(HarnessError, match=option):
        plan(**{option: value})


def test_the_final_message_is_that_of_the_last_agent_message() -> None:
    said = stream(item("agent_message", text="on it"), item("command_execution"), item("agent_message", text="All done"), ENDED)
    outcome = Codex().outcome(0, said, b"")
    assert outcome.ok and outcome.final_message == "All done" and outcome.error is None


def test_work_without_a_last_word_and_the_missing_metadata_are_no_failures() -> None:
    outcome = Codex().outcome(0, stream(item("error", **METADATA), item("command_execution"), ENDED), b"")
    assert outcome.ok and outcome.final_message == ""


BODY = json.dumps({"error": {"message": "bad\nthing", "code": None}})
FAILURES = {
    "nothing at all": (0, b"", "never ended"),
    "no word and no call": (0, stream(item("error", **METADATA), ENDED), "neither"),
    "only thought": (0, stream(item("reasoning", text="hm"), ENDED), "neither"),
    "refused": (1, stream({"type": "turn.failed", "error": {"message": BODY}}), "bad thing"),
    "context error": (1, stream({"type": "error", "message": "ran out of room"}, {"type": "turn.failed", "error": {}}), "room"),
    "killed at work": (137, stream(item("agent_message", text="I wi")), "137"),
    "bad exit": (3, stream(item("agent_message", text="done"), ENDED), "exit code 3"),
    "bad configuration": (1, b"", "never ended"),
}


@pytest.mark.parametrize(("code", "stdout", "words"), FAILURES.values(), ids=FAILURES)
def test_a_run_that_did_not_end_well_is_not_ok_whatever_its_exit_code(code: int, stdout: bytes, words: str) -> None:
    outcome = Codex().outcome(code, stdout, b"")
    assert not outcome.ok and outcome.error is not None and words in outcome.error and "\n" not in outcome.error


def test_what_it_says_on_stderr_is_the_reason_when_it_never_began() -> None:
    assert Codex().outcome(1, b"", b"Error loading config.toml: x\n").error == "Error loading config.toml: x"


@given(
    st.lists(st.binary(max_size=80) | st.just(b'{"type":"item.completed","item":3}') | st.just(b'{"type":["x"]}'), max_size=6)
)
def test_no_output_makes_it_raise(lines: list[bytes]) -> None:
    Codex().outcome(0, b"\n".join(lines), b"\xff")


# --- the real Codex ---------------------------------------------------------------------------------------------------


def shown(body: bytes) -> Any:
    """What of a request the model is shown: no ids, no metadata."""
    request = json.loads(body)
    return [{k: v for k, v in entry.items() if k not in ("id", "output")} for entry in request["input"]], request["tools"]


@pytest.mark.harness
@needs_bwrap
@pytest.mark.skipif(not installed("codex"), reason="Codex is not installed (polar harness install codex)")
async def test_the_real_codex_works_unmodified_and_two_runs_show_the_model_the_same(tmp_path: Path) -> None:
    arguments = '{"cmd" : "echo hi > made"}'
    call = {"type": "function_call", "id": "f", "call_id": "c", "name": "exec_command", "arguments": arguments}
    text = {"type": "message", "id": "m", "role": "assistant", "content": [{"type": "output_text", "text": "It is made."}]}
    sent: list[list[bytes]] = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        model = ScriptedModel(responses_reply(call), responses_reply(text))
        result, outcome, made = await run_real(tmp_path / name, Codex(), model, " @x -- make\n'it'\n", made="made")
        assert outcome.ok and outcome.final_message == "It is made." and made == b"hi\n", (result, outcome)
        sent.append(model.bodies)
    assert [shown(body) for body in sent[0]] == [shown(body) for body in sent[1]] and len(sent[0]) == 2
    first, second = json.loads(sent[0][0]), json.loads(sent[0][1])
    assert first["input"][-1]["content"] == [{"type": "input_text", "text": " @x -- make\n'it'\n"}]
    assert second["input"][: len(first["input"])] == first["input"] and second["tools"] == first["tools"]
    assert all(tool["type"] in ("function", "namespace") for tool in first["tools"])
    assert next(entry for entry in second["input"] if entry["type"] == "function_call")["arguments"] == arguments
