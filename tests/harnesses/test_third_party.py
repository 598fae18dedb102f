# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A harness that comes in a wheel of its own is found by its entry point, listed, resolved and named in a config. Offline."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

_ADAPTER = """
from nemo_polar.harnesses.base import Endpoint, HarnessTask, Install, Outcome, Plan


class MyAgent:
    name = "my_agent"
    dialect = "openai_chat"
    install = Install("npm", "my-agent", "1.2.3", "my-agent")

    def plan(self, endpoint: Endpoint, task: HarnessTask) -> Plan:
        return Plan(argv=("my-agent",), stdin=task.instruction.encode())

    def outcome(self, exit_code: int, stdout: bytes, stderr: bytes) -> Outcome:
        return Outcome(exit_code == 0, stdout.decode())
"""
_INFO = "my_polar_agent-1.0.dist-info"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has put a wheel with one good and one broken adapter."""
    folder = tmp_path_factory.mktemp("third-party")
    entries = "[nemo_polar.harnesses]\nmy_agent = my_polar_agent:MyAgent\nbroken_agent = my_polar_agent:Nothing\n"
    wheel = folder / "my_polar_agent-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("my_polar_agent.py", _ADAPTER)
        archive.writestr(f"{_INFO}/METADATA", "Metadata-Version: 2.1\nName: my-polar-agent\nVersion: 1.0\n")
        archive.writestr(f"{_INFO}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{_INFO}/entry_points.txt", entries)
        archive.writestr(f"{_INFO}/RECORD", "")
    packages = folder / "packages"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-deps",
        "--no-index",
        "--no-cache-dir",
        "-q",
        "--target",
        packages,
        wheel,
    ]
    subprocess.run(pip, check=True, capture_output=True, env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"})
    return packages


def run(installed: Path, *words: str, code: int) -> str:
    paths = os.pathsep.join([str(installed), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": paths, "POLAR_HOME": str(installed.parent / "home")}
    ran = subprocess.run([sys.executable, *words], env=env, capture_output=True, text=True, timeout=60)
    assert ran.returncode == code, ran.stderr
    return ran.stdout


def test_it_is_listed_with_what_it_pins_and_one_that_cannot_be_loaded_stops_no_other(installed: Path) -> None:
    listed: dict[str, Any] = json.loads(run(installed, "-m", "nemo_polar.cli", "harness", "list", "--json", code=1))
    [found] = [row for row in listed["harnesses"] if row["name"] == "my_agent"]
    assert (found["dialect"], found["package"], found["pinned"], found["state"]) == ("openai_chat", "my-agent", "1.2.3", "no")
    assert list(listed["broken"]) == ["broken_agent"] and "cannot be imported" in listed["broken"]["broken_agent"]
    assert any(row["name"] == "pi" for row in listed["harnesses"])
    text = run(installed, "-m", "nemo_polar.cli", "harness", "list", code=1)
    assert "my_agent" in text and "broken_agent cannot be used" in text


def test_its_name_stands_for_it_as_a_built_in_ones_does(installed: Path) -> None:
    code = "from nemo_polar import registry; print(registry.resolve('harnesses', 'my_agent').__module__)"
    assert run(installed, "-c", code, code=0) == "my_polar_agent\n"


def test_here_where_it_is_not_installed_nothing_is_called_so() -> None:
    code = "from nemo_polar import registry; print('my_agent' in registry.names('harnesses'))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
