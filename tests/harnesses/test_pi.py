# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Pi's plan and the reading of its output; with ``-m harness``, the real Pi in a local sandbox against a scripted model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_polar.errors import HarnessError
from nemo_polar.harnesses.base import Endpoint, HarnessTask, Plan
from nemo_polar.harnesses.pi import Pi
from nemo_polar.rollout.compose import home
from nemo_polar.sandboxes.base import HOME, TOOLCHAIN, WORKDIR, ExecResult
from tests.support.sandboxes import local_sandbox, needs_bwrap

MODELS, SETTINGS = f"{HOME}/.pi/agent/models.json", f"{HOME}/.pi/agent/settings.json"


def plan(instruction: str = "Do it", context: int = 131072, model: str = "polar", **options: object) -> Plan:
    endpoint = Endpoint("http://127.0.0.1:8080", "the-secret", model, context, 4096)
    return Pi().plan(endpoint, HarnessTask(instruction, WORKDIR, HOME, TOOLCHAIN, 60, None, options))


def event(kind: str, **fields: Any) -> bytes:
    return json.dumps({"type": kind, **fields}, separators=(",", ":")).encode() + b"\n"


def said(*parts: Mapping[str, Any], stop: str = "stop", **more: Any) -> bytes:
    return event("message_end", message={"role": "assistant", "content": list(parts), "stopReason": stop, **more})


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


CALL = {"type": "toolCall", "id": "1", "name": "bash", "arguments": {}}
HEAD = event("session", version=3, id="x")


def test_the_model_is_reached_only_through_the_endpoint() -> None:
    made = plan(model="org/some-model")
    [(name, provider)] = json.loads(made.files[MODELS])["providers"].items()
    assert provider["baseUrl"] == "http://127.0.0.1:8080/v1" and provider["api"] == "openai-completions"
    assert provider["apiKey"] == "the-secret"
    [model] = provider["models"]
    assert (model["id"], model["contextWindow"], model["maxTokens"]) == ("org/some-model", 131072, 4096)
    assert (
        made.argv[made.argv.index("--provider") + 1] == name and made.argv[made.argv.index("--model") + 1] == "org/some-model"
    )


@pytest.mark.parametrize(
    ("api", "dialect", "url"),
    [
        ("openai-completions", "openai_chat", "http://127.0.0.1:8080/v1"),
        ("openai-responses", "openai_responses", "http://127.0.0.1:8080/v1"),
        ("anthropic-messages", "anthropic", "http://127.0.0.1:8080"),
        ("google-generative-ai", "gemini", "http://127.0.0.1:8080/v1beta"),
    ],
)
def test_it_speaks_the_api_that_is_asked_for(api: str, dialect: str, url: str) -> None:
    [provider] = json.loads(plan(api=api).files[MODELS])["providers"].values()
    assert (provider["api"], provider["baseUrl"]) == (api, url) and Pi.dialect_for({"api": api}) == dialect
    assert Pi.dialect_for({}) == Pi.dialect


def test_the_secret_is_neither_on_the_command_line_nor_in_the_environment() -> None:
    made = plan()
    assert "the-secret" not in " ".join([*made.argv, *made.env.values()])


@given(st.text(min_size=1))
def test_every_instruction_goes_in_word_for_word_and_never_as_an_argument(instruction: str) -> None:
    instruction = instruction.encode(errors="replace").decode()
    made = plan(instruction)
    assert made.stdin == instruction.encode() and made.argv == plan("other").argv


def test_nothing_is_kept_between_runs_and_nobody_is_called() -> None:
    made = plan()
    assert "--no-session" in made.argv and made.env["PI_OFFLINE"] == "1" and made.env["PI_TELEMETRY"] == "0"
    assert json.loads(made.files[SETTINGS]) == {"enableInstallTelemetry": False}


@pytest.mark.parametrize(("context", "reserve"), [(4096, 1024), (32768, 8192), (65536, 16384), (80000, None), (200000, None)])
def test_a_small_context_leaves_room_to_work_in(context: int, reserve: int | None) -> None:
    compaction = json.loads(plan(context=context).files[SETTINGS]).get("compaction")
    assert (compaction and compaction["reserveTokens"]) == reserve


def test_options_become_flags() -> None:
    made = plan(mode="text", tools=["read", "bash"], system_prompt="Be X", thinking="high", extra_args=["--no-skills"])
    line = " ".join(made.argv)
    for flag in ("--mode text", "--tools read,bash", "--system-prompt Be X", "--thinking high", "--no-skills"):
        assert flag in line
    assert json.loads(made.files[MODELS])["providers"]["polar"]["models"][0]["reasoning"] is True
    assert "--no-tools" in plan(tools=[]).argv
    assert plan(skills={"calc": "text"}).files[f"{HOME}/.pi/agent/skills/calc/SKILL.md"] == b"text"
    assert json.loads(plan(settings={"retry": {"enabled": False}}).files[SETTINGS])["retry"] == {"enabled": False}


@pytest.mark.parametrize(("option", "value"), [("tool", ["read"]), ("mode", "rpc"), ("thinking", "a lot"), ("api", "chat")])
def test_a_wrong_option_is_named(option: str, value: object) -> None:
    with pytest.raises(HarnessError, match=option):
        plan(**{option: value})


def test_the_final_message_is_the_text_of_the_last_reply() -> None:
    stdout = HEAD + said(text("on it"), CALL, stop="toolUse") + event("tool_execution_end") + said(text("All "), text("done"))
    outcome = Pi().outcome(0, stdout, b"")
    assert outcome.ok and outcome.final_message == "All done" and outcome.error is None


def test_an_empty_last_reply_after_work_was_done_is_no_error() -> None:
    outcome = Pi().outcome(0, HEAD + said(CALL, stop="toolUse") + said(text("")), b"")
    assert outcome.ok and outcome.final_message == ""


FAILURES = {
    "nothing at all": (0, b"", "no output"),
    "no reply": (0, HEAD + event("agent_end", messages=[]), "no message from the model"),
    "no word and no call": (0, HEAD + said(text("")), "neither"),
    "only thought": (0, HEAD + said({"type": "thinking", "thinking": "hm"}), "neither"),
    "cut": (0, HEAD + said(text("I wi"), stop="length"), "length"),
    "context error": (0, HEAD + said(stop="error", errorMessage="400 too\nlong"), "error: 400 too long"),
    "aborted": (1, HEAD + said(text("x"), stop="aborted"), "aborted"),
    "killed at work": (137, HEAD + said(CALL, stop="toolUse"), "tool call"),
    "bad exit": (3, HEAD + said(text("done")), "exit code 3"),
}


@pytest.mark.parametrize(("code", "stdout", "words"), FAILURES.values(), ids=FAILURES)
def test_a_run_that_did_not_end_well_is_not_ok_whatever_its_exit_code(code: int, stdout: bytes, words: str) -> None:
    outcome = Pi().outcome(code, stdout, b"")
    assert not outcome.ok and outcome.error is not None and words in outcome.error and "\n" not in outcome.error


def test_output_that_was_cut_in_the_middle_still_has_its_end() -> None:
    cut = HEAD + said(text("early"))[:40] + b"\n[1000 bytes left out]\n" + said(text("x"))[30:] + said(text("the end"))
    assert Pi().outcome(0, cut, b"").final_message == "the end"


@given(
    st.lists(st.binary(max_size=80) | st.just(said(text("x"))) | st.just(b'{"type":"message_end","message":3}\n'), max_size=6)
)
def test_no_output_makes_it_raise(lines: list[bytes]) -> None:
    Pi().outcome(0, HEAD + b"\n".join(lines), b"\xff")


def test_text_mode_is_read_as_text() -> None:
    assert Pi().outcome(0, b"All done\n", b"").final_message == "All done"
    failed = Pi().outcome(1, b"", b"\nRequest error\n")
    assert not failed.ok and failed.error == "Request error"


# --- the real Pi ------------------------------------------------------------------------------------------------------


class ScriptedModel:
    """A chat completions server on a Unix socket, with the next of its replies for each request; it keeps the requests."""

    def __init__(self, *replies: dict[str, Any]) -> None:
        self.replies, self.bodies = list(replies), []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        self.bodies.append(await reader.readexactly(int(head.split("content-length:")[1].split("\r\n")[0])))
        finish = "tool_calls" if "tool_calls" in (delta := self.replies.pop(0)) else "stop"
        events = [{"delta": delta}, {"delta": {}, "finish_reason": finish}]
        lines = [json.dumps({"id": "x", "object": "chat.completion.chunk", "choices": [{"index": 0, **e}]}) for e in events]
        payload = "".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"])
        writer.write(f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n{payload}".encode())
        await writer.drain()
        writer.close()


async def run_pi(folder: Path, scripted: ScriptedModel, instruction: str, **options: Any) -> tuple[ExecResult, bytes]:
    server = await asyncio.start_unix_server(scripted.serve, folder / "s")
    async with server, local_sandbox(folder, toolchain=home() / "toolchain", proxy_socket=folder / "s") as sandbox:
        made = plan(instruction, **options)
        await sandbox.put(made.files)
        result = await sandbox.exec(made.argv, timeout=60, env=made.env, stdin=made.stdin)
        made_file = await sandbox.exec(["cat", "made"], timeout=10)
        return result, made_file.stdout


@pytest.mark.harness
@needs_bwrap
@pytest.mark.skipif(not (home() / "toolchain/bin/pi").exists(), reason="Pi is not installed (make toolchain)")
async def test_the_real_pi_works_unmodified_and_two_runs_send_the_same_requests(tmp_path: Path) -> None:
    call = {
        "index": 0,
        "id": "c",
        "type": "function",
        "function": {"name": "bash", "arguments": '{"command":"echo hi > made"}'},
    }
    sent: list[list[bytes]] = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        scripted = ScriptedModel({"tool_calls": [call]}, {"content": "It is made."})
        result, made = await run_pi(tmp_path / name, scripted, "@x -- make\n'it'", context=8192, model="org/some-model")
        outcome = Pi().outcome(result.exit_code, result.stdout, result.stderr)
        assert outcome.ok and outcome.final_message == "It is made." and made == b"hi\n", (result, outcome)
        sent.append(scripted.bodies)
    assert len(sent[0]) == 2 and sent[0] == sent[1]
    assert json.loads(sent[0][0])["messages"][1]["content"] == [{"type": "text", "text": "@x -- make\n'it'"}]
