# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""mini-swe-agent's plan and the reading of its end; with ``-m harness``, the real one in a local sandbox behind the proxy."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from typer.testing import CliRunner

from nemo_polar.cli import app
from nemo_polar.engines.base import GenerateRequest
from nemo_polar.errors import HarnessError
from nemo_polar.harnesses.base import Endpoint, HarnessTask, Plan
from nemo_polar.harnesses.mini_swe_agent import MiniSweAgent
from nemo_polar.registry import resolve
from nemo_polar.rollout.compose import home, load_settings
from nemo_polar.sandboxes.base import HOME, TOOLCHAIN, WORKDIR
from nemo_polar.trajectory.store import read_trajectories
from tests.support.cli import overrides
from tests.support.models import tiny
from tests.support.sandboxes import needs_bwrap

OWN = f"{HOME}/.config/mini-swe-agent/polar.yaml"


def plan(instruction: str = "Do it", turns: int | None = None, model: str = "polar", **options: object) -> Plan:
    endpoint = Endpoint("http://127.0.0.1:8080", "the-secret", model, 8192, 4096)
    return MiniSweAgent().plan(endpoint, HarnessTask(instruction, WORKDIR, HOME, TOOLCHAIN, 59.5, turns, options))


def settings(made: Plan) -> dict[str, Any]:
    return yaml.safe_load(made.files[OWN])


def ended(status: str, submission: str = "") -> bytes:
    """The output of a run, its last lines as the command line prints them out of mini's trajectory file."""
    lines = json.dumps({"info": {"config": {}, "exit_status": status, "submission": submission}}, indent=2).splitlines()
    return (
        b"Saved trajectory\n\n"
        + "\n".join(line for line in lines if line.startswith('    "') and "config" not in line).encode()
    )


def test_the_model_is_reached_only_through_the_endpoint() -> None:
    model = settings(plan(model="org/some-model"))["model"]
    assert model["model_name"] == "openai/org/some-model"
    assert model["model_kwargs"]["api_base"] == "http://127.0.0.1:8080/v1" and model["model_kwargs"]["api_key"] == "the-secret"
    assert model["model_kwargs"]["max_tokens"] == 4096 and model["model_kwargs"]["timeout"] == 60.0


def test_the_secret_is_neither_on_the_command_line_nor_in_the_environment_that_commands_inherit() -> None:
    made = plan()
    assert "the-secret" not in " ".join([*made.argv, *made.env.values()])


@given(st.text())
def test_every_instruction_goes_in_word_for_word_and_never_as_an_argument(instruction: str) -> None:
    instruction = instruction.encode(errors="replace").decode()
    made = plan(instruction)
    assert settings(made)["run"]["task"] == instruction and made.argv == plan("other").argv and made.stdin == b""


def test_nobody_else_is_called_and_no_cost_or_step_ends_a_run_that_has_no_bound() -> None:
    made = plan()
    assert made.env["LITELLM_LOCAL_MODEL_COST_MAP"] == "True" and made.env["MSWEA_COST_TRACKING"] == "ignore_errors"
    assert settings(made)["agent"]["cost_limit"] == 0 and settings(made)["agent"]["step_limit"] == 0
    assert settings(plan(turns=7))["agent"]["step_limit"] == 7


def test_it_starts_from_the_toolchains_copy_of_its_own_configuration_never_from_a_file_in_the_workspace() -> None:
    specs = [made for at, made in enumerate(plan().argv) if plan().argv[at - 1] == "-c" and made.endswith(".yaml")]
    assert specs == [f"{TOOLCHAIN}/mini_swe_agent/mini.yaml", OWN]
    assert f"{WORKDIR}/my.yaml" in plan(config=f"{WORKDIR}/my.yaml").argv


def test_options_become_settings_and_its_own_settings_go_over_them() -> None:
    own = {"model": {"model_kwargs": {"temperature": 0.5}}, "agent": {"system_template": "Be X"}}
    made = plan(command_seconds=5, attempts=2, settings=own)
    found = settings(made)
    assert found["environment"]["timeout"] == 5 and made.env["MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT"] == "2"
    assert found["model"]["model_kwargs"] == settings(plan())["model"]["model_kwargs"] | {"temperature": 0.5}
    assert found["agent"]["system_template"] == "Be X" and found["agent"]["agent_class"] == "default"


@pytest.mark.parametrize(("option", "value"), [("mode", "yolo"), ("command_seconds", 0), ("attempts", "x"), ("settings", [])])
def test_a_wrong_option_is_named(option: str, value: object) -> None:
    with pytest.raises(HarnessError, match=option):
        plan(**{option: value})


@pytest.mark.parametrize("submission", ["", "All done.\n", 'é "quoted"\n    "exit_status": "Other"\nend'])
def test_the_final_message_is_what_was_submitted(submission: str) -> None:
    outcome = MiniSweAgent().outcome(0, ended("Submitted", submission), b"Warning: Input is not a terminal (fd=0).\n")
    assert outcome.ok and outcome.final_message == submission and outcome.error is None


def test_lines_like_its_own_that_came_earlier_do_not_count() -> None:
    outcome = MiniSweAgent().outcome(0, b'    "exit_status": "Submitted",\n' + ended("LimitsExceeded"), b"")
    assert not outcome.ok and outcome.error == "LimitsExceeded: its limit of steps is used up"


FAILURES = {
    "nothing at all": (0, b"", b"", "no trajectory"),
    "did not start": (1, b"\n", b"ModuleNotFoundError: x\n", "ModuleNotFoundError: x"),
    "format": (0, ended("RepeatedFormatError"), b"", "RepeatedFormatError: several replies"),
    "context": (1, ended("ContextWindowExceededError"), b"Traceback\nlitellm.X: too long\n", "litellm.X: too long"),
    "killed at work": (137, ended(""), b"", "in the middle"),
    "bad exit": (3, ended("Submitted"), b"", "exit code 3"),
}


@pytest.mark.parametrize(("code", "stdout", "stderr", "words"), FAILURES.values(), ids=FAILURES)
def test_a_run_that_did_not_end_well_is_not_ok_whatever_its_exit_code(
    code: int, stdout: bytes, stderr: bytes, words: str
) -> None:
    outcome = MiniSweAgent().outcome(code, stdout, stderr)
    assert not outcome.ok and outcome.error is not None and words in outcome.error and "\n" not in outcome.error


@given(st.lists(st.binary(max_size=60) | st.just(b'    "exit_status": "\\q"') | st.just(ended("Submitted", "x")), max_size=5))
def test_no_output_makes_it_raise(lines: list[bytes]) -> None:
    MiniSweAgent().outcome(0, b"\n".join(lines), b"\xff")


def test_it_is_in_the_registry_and_the_config_groups_under_its_name() -> None:
    codec = ["policy.codec.tokenizer=unused", "policy.model=null"]
    chosen = load_settings(overrides=["harness=mini_swe_agent", "env.tasks=[t.yaml]", "engine.url=http://127.0.0.1:9", *codec])
    assert resolve("harnesses", chosen.harness.name) is MiniSweAgent and chosen.harness.options == {}


# --- the real mini-swe-agent ------------------------------------------------------------------------------------------

SUBMIT = "printf 'COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\\nAll done é\\n'"
TASKS = """\
tasks:
  - id: works
    instruction: "WORK\\n-- 'on' {{ it }} é"
    verifier: {type: command, command: "grep -qx 'hi 🙂' out.txt"}
  - id: talks
    instruction: TALK
    verifier: {type: command, command: "test -e out.txt"}
"""


def call(command: str) -> str:
    body = json.dumps({"name": "bash", "arguments": {"command": command}}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


WORK = [
    "I will look.\n" + call("echo 'hi 🙂' > out.txt; pwd; ls -a"),
    call("cat out.txt") + "\n" + call("exit 3"),
    call("nope('") + "\n",
    "Now I submit. " + call(SUBMIT),
]


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(tiny() / "tokenizer.json"))


def script(request: GenerateRequest) -> list[int]:
    """The model: what it says next is decided by how often it has spoken."""
    prompt = tokenizer().decode(request.prompt_ids.tolist(), skip_special_tokens=False)
    said = WORK[prompt.count("<|im_start|>assistant") - 1] if "issue: WORK" in prompt else "I only talk."
    return tokenizer().encode(said + "<|im_end|>", add_special_tokens=False).ids


@pytest.mark.harness
@needs_bwrap
@pytest.mark.skipif(not (home() / "toolchain/bin/mini").exists(), reason="mini-swe-agent is not installed (make mini)")
def test_the_real_one_works_unmodified_its_turns_append_and_its_rollouts_start_alike(tmp_path: Path) -> None:
    (tmp_path / "tasks.yaml").write_text(TASKS)
    words = [
        *overrides(tmp_path / "tasks.yaml", "harness=mini_swe_agent", "sandbox=local"),
        f"sandbox.toolchain={home() / 'toolchain'}",
        "engine.options={script: 'tests.harnesses.test_mini_swe_agent:script', vocab: 1024, max_context: 65536}",
    ]
    words = [word for word in words if not word.startswith(("harness=shell", "harness.options", "sandbox=process"))]
    result = CliRunner().invoke(app, ["rollout", "--json", "--rescore", *words])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert (
        report["statuses"] == {"completed": 2, "harness_error": 2} and report["drift_tokens"] == 0 and report["findings"] == []
    )
    assert report["group_prompt_mismatches"] == [] and report["trained_tokens"] == report["sampled_tokens"] > 0
    done = {t.rollout_id: t for t in read_trajectories(tmp_path / "runs" / "small" / "trajectories.jsonl")}
    for name in ("works.0.0", "works.0.1"):
        assert done[name].final_message == "All done é\n" and done[name].reward == 1.0
        [trace] = done[name].traces
        assert [span.role for span in trace.spans] == ["prompt", *["sampled", "context"] * 3, "sampled"]
    for name in ("talks.1.0", "talks.1.1"):
        assert done[name].reward == 0.0 and (done[name].error or "").startswith("RepeatedFormatError")
