# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Any command as a harness: its contract is the environment it is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_polar.errors import HarnessError
from nemo_polar.harnesses.base import Endpoint, HarnessTask, Plan
from nemo_polar.harnesses.shell import Shell
from nemo_polar.sandboxes.base import HOME, TOOLCHAIN, WORKDIR
from tests.support.sandboxes import local_sandbox, needs_bwrap

ENDPOINT = Endpoint("http://127.0.0.1:8080", "the-secret", "polar", 8192, 1024)


def plan(instruction: str = "Do it", turns: int | None = None, **options: object) -> Plan:
    return Shell().plan(ENDPOINT, HarnessTask(instruction, WORKDIR, HOME, TOOLCHAIN, 90.0, turns, options))


def test_the_endpoint_is_there_under_every_providers_names() -> None:
    env = plan(command="true").env
    assert env["POLAR_BASE_URL"] == env["ANTHROPIC_BASE_URL"] == env["GOOGLE_GEMINI_BASE_URL"] == "http://127.0.0.1:8080"
    assert env["OPENAI_BASE_URL"] == env["OPENAI_API_BASE"] == "http://127.0.0.1:8080/v1"
    assert {env[f"{name}_API_KEY"] for name in ("POLAR", "OPENAI", "ANTHROPIC", "GEMINI")} == {"the-secret"}
    assert {env[f"{name}_MODEL"] for name in ("POLAR", "OPENAI", "ANTHROPIC", "GEMINI")} == {"polar"}


def test_the_task_and_its_bounds_are_there() -> None:
    made = plan("Do 'it'\n", turns=7, command=["agent", "--go"], files={"conf": "a", f"{WORKDIR}/b": "b"}, env={"X": "1"})
    assert made.argv == ("agent", "--go") and made.env["X"] == "1"
    assert made.env["POLAR_INSTRUCTION"] == "Do 'it'\n" and made.files[made.env["POLAR_INSTRUCTION_FILE"]] == b"Do 'it'\n"
    assert (made.env["POLAR_WORKDIR"], made.env["POLAR_SECONDS"], made.env["POLAR_TURNS"]) == (WORKDIR, "90", "7")
    assert (made.env["POLAR_CONTEXT"], made.env["POLAR_MAX_OUTPUT"]) == ("8192", "1024")
    assert made.files[f"{HOME}/conf"] == b"a" and made.files[f"{WORKDIR}/b"] == b"b"
    assert "POLAR_TURNS" not in plan(command="true").env


def test_an_instruction_too_long_for_a_variable_is_in_its_file() -> None:
    made = plan("x" * 200_000, command="true")
    assert "POLAR_INSTRUCTION" not in made.env and len(made.files[made.env["POLAR_INSTRUCTION_FILE"]]) == 200_000


@pytest.mark.parametrize("options", [{}, {"command": ""}, {"command": []}, {"command": 3}, {"command": "x", "cmd": "y"}])
def test_a_wrong_option_is_named(options: dict) -> None:
    with pytest.raises(HarnessError, match=r"command|cmd"):
        plan(**options)


def test_the_final_message_is_what_it_wrote() -> None:
    good = Shell().outcome(0, b"line\nlast \xff\n", b"noise")
    assert good.ok and good.final_message == "line\nlast \ufffd"
    bad = Shell().outcome(3, b"", b"first\nwhy\n\n")
    assert not bad.ok and bad.final_message is None and bad.error == "why"
    assert Shell().outcome(3, b"", b"").error == "exit code 3"


@needs_bwrap
async def test_the_contract_holds_in_a_real_sandbox(tmp_path: Path) -> None:
    made = plan("Say 'hi'", command='cat "$POLAR_INSTRUCTION_FILE"; echo " $POLAR_INSTRUCTION $PWD"')
    async with local_sandbox(tmp_path) as sandbox:
        await sandbox.put(made.files)
        result = await sandbox.exec(made.argv, timeout=10, env=made.env, stdin=made.stdin)
    assert Shell().outcome(result.exit_code, result.stdout, result.stderr).final_message == f"Say 'hi' Say 'hi' {WORKDIR}"
