# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The set-up's machinery: what is done again, what is not, and what a person is told. In child processes, as make runs it."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"polar_{name}", TOOLS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


steps = load("steps")


class CountedStep:
    """A step that counts how often it works."""

    def __init__(self) -> None:
        self.worked, self.inputs, self.present, self.fails = 0, "a", True, False

    def work(self, progress: object) -> None:
        self.worked += 1
        if self.fails:
            raise steps.Missing("no such thing.")

    def bring(self, state: Path, **options: bool) -> None:
        steps.Step("counted", self.work, lambda: self.inputs, lambda: self.present).bring(state, "[1/1]", **options)


def test_a_step_is_done_again_only_when_its_inputs_change_its_result_is_gone_or_it_is_forced(tmp_path: Path) -> None:
    step = CountedStep()
    step.bring(tmp_path)
    step.bring(tmp_path)
    assert step.worked == 1
    step.inputs = "b"
    step.bring(tmp_path)
    assert step.worked == 2
    step.present = False
    step.bring(tmp_path)
    assert step.worked == 3
    step.present = True
    step.bring(tmp_path, force=True)
    assert step.worked == 4


def test_a_step_that_fails_leaves_no_stamp(tmp_path: Path) -> None:
    step = CountedStep()
    step.bring(tmp_path)
    step.inputs, step.fails = "b", True
    with pytest.raises(steps.Missing):
        step.bring(tmp_path)
    step.inputs, step.fails = "a", False
    step.bring(tmp_path)
    assert step.worked == 3


def test_a_failed_command_is_quoted_without_the_noise() -> None:
    code = "print('WARNING: Location x is ignored: it is neither a file nor a directory.\\nERROR: no such package'); exit(3)"
    with pytest.raises(steps.Missing, match="code 3") as failure:
        steps.run(steps.Progress(), "installing", [sys.executable, "-c", code])
    assert "ERROR: no such package" in str(failure.value) and "Location" not in str(failure.value)


def test_a_command_that_is_not_there_is_named() -> None:
    with pytest.raises(steps.Missing, match="/nowhere/npm cannot be started"):
        steps.run(steps.Progress(), "installing", ["/nowhere/npm"])


def test_a_second_set_up_waits_for_the_first_and_a_killed_one_holds_nobody_up(tmp_path: Path) -> None:
    code = "import sys, time; sys.path.insert(0, sys.argv[1]); import steps, pathlib\n"
    code += "with steps.locked(pathlib.Path(sys.argv[2])): print('in', flush=True); time.sleep(60)"
    argv = [sys.executable, "-c", code, str(TOOLS), str(tmp_path / "lock")]
    first = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None and first.stdout.readline() == "in\n"
    second = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert second.stdout is not None and "another set-up" in second.stdout.readline()
    time.sleep(0.2)
    first.kill()
    assert second.stdout.readline() == "in\n"
    for child in (first, second):
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


def fake_python(folder: Path, name: str, answer: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{answer}\n")
    path.chmod(0o755)


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any Python of the versions asked for."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    monkeypatch.setenv("UV_PYTHON_INSTALL_DIR", str(tmp_path / "uv"))
    monkeypatch.delenv("POLAR_PYTHON", raising=False)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    monkeypatch.setattr(sys, "_base_executable", "/nowhere/python")
    return tmp_path


def test_the_newest_python_that_works_is_taken_wherever_it_is(bare: Path) -> None:
    fake_python(bare / "bin", "python3.13", "echo 'pyenv: python3.13: command not found' >&2; exit 127")
    fake_python(bare / "pyenv/versions/3.12.4/bin", "python3.12", "echo 3.12")
    fake_python(bare / "uv/cpython-3.11.9-linux/bin", "python3.11", "echo 3.11")
    assert steps.find_python(("3.13", "3.12", "3.11")) == bare / "pyenv/versions/3.12.4/bin/python3.12"
    assert steps.find_python(("3.11",)) == bare / "uv/cpython-3.11.9-linux/bin/python3.11"


def test_with_no_python_the_message_is_one_sentence_that_says_how_to_get_one(bare: Path) -> None:
    with pytest.raises(steps.Missing, match=r"no CPython 3\.11 .* was found: install one .*POLAR_PYTHON\.$"):
        steps.find_python(("3.11",))


@pytest.mark.parametrize("path", ["tools/setup.py", "tools/steps.py", "nemo_polar/toolchain/host.py"])
def test_the_set_up_is_written_in_the_grammar_of_python_3_8(path: str) -> None:
    ast.parse((TOOLS.parent / path).read_text(encoding="utf-8"), feature_version=(3, 8))


def test_status_says_what_is_not_set_up_and_changes_nothing(tmp_path: Path) -> None:
    env = {"PATH": "/usr/bin:/bin", "POLAR_HOME": str(tmp_path / "state")}
    ran = subprocess.run([sys.executable, str(TOOLS / "setup.py"), "status"], env=env, capture_output=True, text=True)
    assert ran.returncode == 1 and "not set up: make setup" in ran.stdout and not ran.stderr
    assert not (tmp_path / "state").exists()


def test_a_missing_npm_is_one_sentence_and_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    env = {"PATH": str(tmp_path / "bin"), "POLAR_HOME": str(tmp_path / "state")}
    ran = subprocess.run([sys.executable, str(TOOLS / "setup.py"), "toolchain"], env=env, capture_output=True, text=True)
    assert ran.returncode == 1 and "Traceback" not in ran.stderr
    if not (TOOLS.parent / ".venv").exists():
        assert "the package is not installed: run `make package` first." in ran.stderr
    else:
        assert "npm is missing: install" in ran.stderr and "set-up stopped: `polar harness install pi` failed" in ran.stderr
