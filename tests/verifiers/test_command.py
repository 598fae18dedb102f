# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The command verifier: what earns a reward, what earns none, and what is no verdict at all."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from nemo_polar.errors import VerifierError
from nemo_polar.sandboxes.base import HOME, WORKDIR, ExecResult, Sandbox, SandboxSpec
from nemo_polar.sandboxes.local import LocalSandbox
from nemo_polar.sandboxes.process import ProcessSandbox
from nemo_polar.verifiers.base import Evidence, Verdict
from nemo_polar.verifiers.command import CommandVerifier
from tests.support.sandboxes import needs_bwrap


@pytest.fixture(params=[pytest.param(LocalSandbox, marks=needs_bwrap, id="local"), pytest.param(ProcessSandbox, id="process")])
async def sandbox(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Sandbox]:
    (tmp_path / "scratch").mkdir()
    box = request.param(SandboxSpec(id="verify", scratch=tmp_path / "scratch"))
    await box.start()
    yield box
    await box.stop()


async def verify(sandbox: Sandbox, task_dir: Path, seconds: float = 60, **options: Any) -> Verdict:
    return await CommandVerifier(**options).verify(Evidence("t", sandbox, None, task_dir, seconds))


async def agent_leaves(sandbox: Sandbox, script: str) -> None:
    """What the agent did to the workspace."""
    done = await sandbox.exec(["sh", "-c", script], timeout=10)
    assert done.exit_code == 0, done.stderr


async def test_an_exit_code_of_zero_is_one_and_any_other_is_nothing(sandbox: Sandbox, tmp_path: Path) -> None:
    assert (await verify(sandbox, tmp_path, command="exit 0")).reward == 1.0
    failed = await verify(sandbox, tmp_path, command="echo why; exit 3")
    assert failed.reward == 0.0 and "exit code 3" in failed.detail and "why" in failed.detail
    assert (await verify(sandbox, tmp_path, command=["test", "-d", "."])).reward == 1.0


async def test_checks_add_up_by_their_weights(sandbox: Sandbox, tmp_path: Path) -> None:
    await sandbox.put({f"{WORKDIR}/a.txt": b"a"})
    checks = [
        {"name": "there", "command": "test -f a.txt", "weight": 0.3},
        {"name": "right", "command": 'test "$(cat a.txt)" = b', "weight": 0.5},
        {"name": "short", "command": ["test", "-s", "a.txt"], "weight": 0.2},
    ]
    verdict = await verify(sandbox, tmp_path, checks=checks)
    assert verdict.reward == pytest.approx(0.5) and verdict.components == {"there": 0.3, "right": 0.0, "short": 0.2}
    assert "FAILED right" in verdict.detail and "passed there" in verdict.detail


async def test_a_loop_in_one_check_is_a_failed_check_and_leaves_time_for_the_others(sandbox: Sandbox, tmp_path: Path) -> None:
    checks = [
        {"name": "loop", "command": "while :; do sleep 1; done", "weight": 1},
        {"name": "loop 2", "command": "while :; do sleep 1; done", "weight": 1},
        {"name": "quick", "command": "true", "weight": 1},
    ]
    begun = time.monotonic()
    verdict = await verify(sandbox, tmp_path, seconds=2.5, checks=checks)
    assert verdict.components == {"loop": 0, "loop 2": 0, "quick": 1} and time.monotonic() - begun < 2.5
    assert (await verify(sandbox, tmp_path, command="sleep 60", timeout=0.6)).reward == 0.0
    assert (await verify(sandbox, tmp_path, command="sleep 60", timeout=0.6, reward="reward_file")).reward == 0.0


async def test_without_time_left_there_is_no_verdict(sandbox: Sandbox, tmp_path: Path) -> None:
    with pytest.raises(VerifierError, match="are left"):
        await verify(sandbox, tmp_path, seconds=0.1, command="true")


@pytest.mark.parametrize(
    ("text", "reward", "components"),
    [("0.25", 0.25, {}), ('{"reward": 1, "components": {"a": 0.5, "b": -1}}', 1.0, {"a": 0.5, "b": -1.0}), (" -2\n", -2.0, {})],
)
async def test_a_reward_file_is_a_number_or_an_object(
    sandbox: Sandbox, tmp_path: Path, text: str, reward: float, components: dict[str, float]
) -> None:
    script = f"echo '{text}' > \"$POLAR_REWARD_FILE\"; exit 9"
    verdict = await verify(sandbox, tmp_path, command=script, reward="reward_file")
    assert (verdict.reward, verdict.components) == (reward, components)
    assert (await verify(sandbox, tmp_path, command=f"echo '{text}' > ~/reward.json", reward="reward_file")).reward == reward


NO_REWARD = """NaN|Infinity|1e999||x|true|[1]|{}|"1"|null|{"reward": "1"}|{"reward": 1, "components": 3}|
{"reward": 1, "components": {"a": NaN}}"""


class FakeSandbox(ProcessSandbox):
    """Runs nothing; whatever file is asked for holds ``written``."""

    written = b""

    async def exec(self, argv: Sequence[str], **_: Any) -> ExecResult:
        return ExecResult(0, b"", b"")

    async def get(self, path: str, *, max_bytes: int = 0) -> bytes:
        return self.written


@pytest.mark.parametrize("text", NO_REWARD.replace("\n", "").split("|"))
async def test_a_reward_file_without_a_finite_number_is_no_verdict(tmp_path: Path, text: str) -> None:
    fake = FakeSandbox(SandboxSpec(id="fake", scratch=tmp_path))
    fake.written = text.encode()
    with pytest.raises(VerifierError, match="holds no reward"):
        await verify(fake, tmp_path, command="true", reward="reward_file")


async def test_no_reward_file_is_no_verdict_even_when_the_agent_left_one(sandbox: Sandbox, tmp_path: Path) -> None:
    await agent_leaves(sandbox, f"echo 1 > reward.json; mkdir -p out; ln -s {HOME}/x out/r")
    for place in (f"{HOME}/reward.json", "reward.json", "out/r", f"{WORKDIR}/none/r"):
        with pytest.raises(VerifierError, match="exit code 0 and wrote no"):
            await verify(sandbox, tmp_path, command="true", reward="reward_file", reward_file=place)


async def test_hidden_files_come_from_the_task_or_its_text(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / "check.sh").write_text("#!/bin/sh\ntest -f data/x && test -f ~/y\n")
    files = {"tests/check.sh": {"source": "check.sh", "executable": True}, "data/x": "text", f"{HOME}/y": {"text": ""}}
    assert (await verify(sandbox, tmp_path / "task", command=["tests/check.sh"], files=files)).reward == 1.0


OBSTACLES = {
    "file": "mkdir -p tests; echo exit 0 > tests/check.sh",
    "link to a file": "mkdir -p tests; echo exit 0 > mine; ln -s ../mine tests/check.sh",
    "link to nowhere": "mkdir -p tests; ln -s /none tests/check.sh",
    "folder": "mkdir -p tests/check.sh/in; echo > tests/check.sh/in/file",
    "locked folder": "mkdir -p tests/check.sh/in; echo > tests/check.sh/in/f; chmod 0 tests/check.sh/in tests/check.sh tests",
    "link for its folder": "mkdir other; echo exit 0 > other/check.sh; ln -s other tests",
    "link out for its folder": "ln -s /usr tests",
    "file for its folder": "echo > tests",
    "pipe": "mkdir -p tests; mkfifo tests/check.sh",
    "read-only": "mkdir -p tests; echo exit 0 > tests/check.sh; chmod 444 tests/check.sh; chmod 555 tests",
}


@pytest.mark.parametrize("script", OBSTACLES.values(), ids=OBSTACLES)
async def test_nothing_the_agent_left_keeps_a_hidden_file_out(sandbox: Sandbox, tmp_path: Path, script: str) -> None:
    await agent_leaves(sandbox, script)
    files = {"tests/check.sh": "echo the real one; exit 7"}
    verdict = await verify(sandbox, tmp_path, command=["sh", "tests/check.sh"], files=files)
    assert verdict.reward == 0.0 and "the real one" in verdict.detail


async def test_a_tool_that_the_verifier_needs_and_lacks_is_no_verdict(sandbox: Sandbox, tmp_path: Path) -> None:
    for command in (["no-such-tool"], "sh -c 'exit 0' && no-such-tool --x"):
        with pytest.raises(VerifierError, match="no-such-tool"):
            await verify(sandbox, tmp_path, command=command)
    with pytest.raises(VerifierError, match="no-such-tool"):
        await verify(sandbox, tmp_path, checks=[{"name": "x", "command": "no-such-tool"}])


async def test_the_agents_own_127_is_a_failure_like_any_other(sandbox: Sandbox, tmp_path: Path) -> None:
    await agent_leaves(sandbox, "echo 'echo sh: 1: cat: not found >&2; absent-thing; exit 127' > main.sh")
    assert (await verify(sandbox, tmp_path, command="sh main.sh && cat x")).reward == 0.0
    assert (await verify(sandbox, tmp_path, command="./never-made")).reward == 0.0
    assert (await verify(sandbox, tmp_path, command=["./never-made"])).reward == 0.0


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "neither": ({}, "command"),
    "both": ({"command": "x", "checks": [{"name": "a", "command": "x"}]}, "command"),
    "empty": ({"command": ""}, "command"),
    "no checks": ({"checks": []}, "checks"),
    "unknown key in a check": ({"checks": [{"name": "a", "comand": "x"}]}, r"checks\.0"),
    "same name": ({"checks": [{"name": "a", "command": "x"}] * 2}, "same name"),
    "weight": ({"checks": [{"name": "a", "command": "x", "weight": float("nan")}]}, "weight"),
    "reward": ({"command": "x", "reward": "maybe"}, "reward"),
    "timeout": ({"command": "x", "timeout": 0}, "timeout"),
    "way out": ({"command": "x", "files": {"../x": "y"}}, r"\.\."),
    "file": ({"command": "x", "files": {"x": {"source": "a", "text": "b"}}}, "files"),
}


@pytest.mark.parametrize(("options", "words"), WRONG.values(), ids=WRONG)
def test_a_wrong_block_is_refused_before_anything_runs(options: dict[str, Any], words: str) -> None:
    with pytest.raises(VerifierError, match=words):
        CommandVerifier(**options)


async def test_hidden_files_that_are_missing_or_lead_out_are_no_verdict(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "task").mkdir()
    for source in ("none", "../scratch", "/etc/passwd"):
        with pytest.raises(VerifierError, match="files: /workspace/x"):
            await verify(sandbox, tmp_path / "task", command="true", files={"x": {"source": source}})


async def test_isolated_python_is_not_led_astray_by_modules_the_agent_left(sandbox: Sandbox, tmp_path: Path) -> None:
    python = shutil.which("python3", path="/usr/bin") if isinstance(sandbox, LocalSandbox) else sys.executable
    if python is None:
        pytest.skip("no Python under /usr")
    script = "for m in json sitecustomize usercustomize conftest; do echo 'import os; os._exit(0)' > $m.py; done"
    await agent_leaves(sandbox, script)
    files = {"check.py": "import json, sys\nsys.exit(7)\n"}
    assert (await verify(sandbox, tmp_path, command=[python, "-I", "check.py"], files=files)).reward == 0.0


async def test_a_hidden_file_in_base64_is_put_in_place_as_its_bytes(sandbox: Sandbox, tmp_path: Path) -> None:
    verdict = await verify(sandbox, tmp_path, command="test $(wc -c < a.bin) = 2", files={"a.bin": {"base64": "AP8="}})
    assert verdict.reward == 1.0
    with pytest.raises(VerifierError, match="not base64"):
        CommandVerifier(command="true", files={"a.bin": {"base64": "AP8"}})
