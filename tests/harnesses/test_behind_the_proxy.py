# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The real CLIs (``-m harness``), unmodified, in local sandboxes behind the proxy: one exact trace each, and starts alike.

Each runs one task twice as ``polar rollout`` does. The model is a script that works with the harness's own tools and says what
is next by how often it has spoken.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from typer.testing import CliRunner

from nemo_polar.cli import app
from nemo_polar.engines.base import GenerateRequest
from nemo_polar.registry import resolve
from nemo_polar.rollout.compose import home, load_settings
from nemo_polar.trajectory.store import read_trajectories
from tests.support.cli import overrides
from tests.support.models import tiny
from tests.support.sandboxes import needs_bwrap
from tests.support.scripted_model import installed

INSTRUCTION = "  /do it: @x -- make out.txt,\n'it', for a@b.c é 🙂"
TASKS = """\
tasks:
  - id: works
    instruction: {instruction}
    files:
      x: {{text: CONTENTS_OF_X}}
    verifier: {{type: command, command: "grep -qx 'hi 🙂' out.txt && grep -q b out.txt.b"}}
"""


@dataclass(frozen=True)
class Case:
    """One harness in one way, and what its tools are called."""

    harness: str
    shell: str
    write: str
    path: str
    content: str
    read: str
    options: dict[str, Any] = field(default_factory=dict)
    fixed: dict[str, Any] = field(default_factory=dict)
    """More arguments of the shell."""
    create: dict[str, Any] = field(default_factory=dict)
    view: dict[str, Any] = field(default_factory=dict)
    trimmed: bool = False
    """White space at the instruction's ends is lost."""


def _pi(api: str) -> Case:
    return Case("pi", "bash", "write", "path", "content", "read", {"api": api}, trimmed=True)


def _opencode(api: str) -> Case:
    return Case("opencode", "bash", "write", "filePath", "content", "read", {"api": api}, {"description": "One step"})


CASES = {
    "pi": _pi("openai-completions"),
    "pi-responses": _pi("openai-responses"),
    "pi-anthropic": _pi("anthropic-messages"),
    "pi-gemini": _pi("google-generative-ai"),
    "qwen_code": Case(
        *("qwen_code", "run_shell_command", "write_file", "file_path", "content", "read_file"),
        fixed={"is_background": False},
        trimmed=True,
    ),
    "gemini_cli": Case("gemini_cli", "run_shell_command", "write_file", "file_path", "content", "read_file"),
    "opencode": _opencode("openai_chat"),
    "opencode-responses": _opencode("openai_responses"),
    "opencode-anthropic": _opencode("anthropic"),
    "openhands": Case(
        *("openhands", "terminal", "file_editor", "path", "file_text", "file_editor"),
        create={"command": "create"},
        view={"command": "view"},
    ),
}
SPEAKING: list[Case] = []
"""The case under way; ``script`` is found by its name, and told nothing."""


def _call(name: str, arguments: dict[str, Any]) -> str:
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def _replies(case: Case) -> list[str]:
    write = _call(case.write, {**case.create, case.path: "/workspace/out.txt.b", case.content: 'b é "x"\n'})
    read = _call(case.read, {**case.view, case.path: "/workspace/x"})
    return [
        "I will look.\n" + _call(case.shell, {**case.fixed, "command": "echo 'hi 🙂' > out.txt; pwd; ls -a"}),
        write + "\n" + read,
        _call(case.shell, {"command": "cat out.txt", **case.fixed}),
        "All done é",
    ]


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(tiny() / "tokenizer.json"))


def script(request: GenerateRequest) -> list[int]:
    """The model."""
    prompt = tokenizer().decode(request.prompt_ids.tolist(), skip_special_tokens=False)
    said = _replies(SPEAKING[-1])[prompt.count("<|im_start|>assistant") - 1]
    return tokenizer().encode(said + "<|im_end|>", add_special_tokens=False).ids


@pytest.mark.harness
@needs_bwrap
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", CASES)
def test_the_real_one_works_unmodified_its_turns_append_and_its_rollouts_start_alike(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    if not installed(case.harness):
        pytest.skip(f"{case.harness} is not installed (polar harness install {case.harness})")
    (tmp_path / "tasks.yaml").write_text(TASKS.format(instruction=json.dumps(INSTRUCTION, ensure_ascii=False)))
    words = [
        *overrides(tmp_path / "tasks.yaml", f"harness={case.harness}", "sandbox=local"),
        f"sandbox.toolchain={home() / 'toolchain'}",
        "engine.options={script: 'tests.harnesses.test_behind_the_proxy:script', vocab: 1024, max_context: 262144}",
        *(f"harness.options.{key}={value}" for key, value in case.options.items()),
    ]
    left_out = ("harness=shell", "harness.options.command", "sandbox=process", "sandbox.toolchain=null")
    words = [word for word in words if not word.startswith(left_out)]
    SPEAKING.append(case)
    result = CliRunner().invoke(app, ["rollout", "--json", "--rescore", *words])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    logs = sorted(tmp_path.glob("runs/small/logs/**/std*.log"))
    assert report["statuses"] == {"completed": 2}, [(log.name, log.read_text()[-1500:]) for log in logs]
    assert report["drift_tokens"] == 0 and report["findings"] == [] and report["group_prompt_mismatches"] == []
    assert report["trained_tokens"] == report["sampled_tokens"] > 0
    for done in read_trajectories(tmp_path / "runs" / "small" / "trajectories.jsonl"):
        assert done.reward == 1.0 and done.final_message == "All done é"
        [trace] = done.traces
        assert [span.role for span in trace.spans] == ["prompt", *["sampled", "context"] * 3, "sampled"]
        first = tokenizer().decode(trace.token_ids[: trace.spans[0].end].tolist(), skip_special_tokens=False)
        assert (INSTRUCTION.strip() if case.trimmed else INSTRUCTION) in first and "CONTENTS_OF_X" not in first


@pytest.mark.parametrize("name", sorted({case.harness for case in CASES.values()}))
def test_each_is_in_the_registry_and_the_config_groups_under_its_name(name: str) -> None:
    codec = ["policy.codec.tokenizer=unused", "policy.model=null"]
    chosen = load_settings(overrides=[f"harness={name}", "env.tasks=[t.yaml]", "engine.url=http://127.0.0.1:9", *codec])
    assert resolve("harnesses", chosen.harness.name).name == name and chosen.harness.options == {}  # type: ignore[attr-defined]
