# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""mini-swe-agent's place in the toolchain: a Python that runs wherever the folder lies, and packages that are all pinned."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from nemo_polar.harnesses.mini_swe_agent import MiniSweAgent
from nemo_polar.rollout.compose import home

TOOLS = Path(__file__).resolve().parents[2] / "tools"
_AGENT = """
import json, os, sys
def app(prog_name):
    import ctypes, hashlib, sqlite3, ssl, zlib
    library = os.environ.get("LD_LIBRARY_PATH")
    print(json.dumps({"prefix": sys.prefix, "path": sys.path, "argv": sys.argv[1:], "library": library}))
"""


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(TOOLS))
    import mini_swe_agent  # pyright: ignore[reportMissingImports]

    return mini_swe_agent


def test_a_copied_python_runs_wherever_it_is_moved_and_hands_nothing_of_its_own_to_what_it_starts(
    tool: ModuleType, tmp_path: Path
) -> None:
    steps = sys.modules["steps"]
    made = tmp_path / "made"
    launcher = tool._copied_python(steps.Progress(), Path(getattr(sys, "_base_executable")), made / "mini")
    (made / "bin").mkdir()
    (made / "bin" / "mini").write_text(launcher)
    (made / "bin" / "mini").chmod(0o755)
    package = made / "mini" / "packages" / "minisweagent" / "run"
    package.mkdir(parents=True)
    (package / "mini.py").write_text(_AGENT)
    (made / "mini" / "start.py").write_text(tool._START)
    moved = made.rename(tmp_path / "moved here")
    for given in (None, "/x:/y"):
        env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": "/nowhere", **({"LD_LIBRARY_PATH": given} if given else {})}
        ran = subprocess.run([moved / "bin" / "mini", "a b"], env=env, capture_output=True, text=True, cwd="/", timeout=60)
        assert ran.returncode == 0, ran.stderr
        said = json.loads(ran.stdout)
        assert said["prefix"] == str(moved / "mini") and said["argv"] == ["a b"] and said["library"] == given
        assert all(path.startswith(str(moved)) for path in said["path"])


def test_a_new_toolchain_takes_over_the_mini_swe_agent_of_the_old_one(tool: ModuleType, tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for folder in (old / "mini", old / "bin", new / "bin"):
        folder.mkdir(parents=True)
    tool.keep(old, new)
    assert not (new / "mini").exists()
    (old / "bin" / "mini").write_text("x")
    tool.keep(old, new)
    assert (new / "mini").is_dir() and (new / "bin" / "mini").read_text() == "x" and not (old / "mini").exists()


def test_every_package_is_pinned_and_the_adapter_names_the_same_version(tool: ModuleType) -> None:
    lines = [line for line in tool.PACKAGES.read_text().splitlines() if line and not line.startswith("#")]
    assert all(line.count("==") == 1 for line in lines) and len({line.split("==")[0].lower() for line in lines}) == len(lines)
    assert tool.version() == MiniSweAgent.install.version


@pytest.mark.harness
@pytest.mark.skipif(not (home() / "toolchain/mini/mini.yaml").exists(), reason="mini-swe-agent is not installed (make mini)")
def test_its_configuration_is_its_own_but_for_the_kernels_version() -> None:
    folder = home() / "toolchain" / "mini"
    own = (folder / "packages" / "minisweagent" / "config" / "mini.yaml").read_text().splitlines()
    ours = (folder / "mini.yaml").read_text().splitlines()
    [(before, after)] = [(a, b) for a, b in zip(own, ours, strict=True) if a != b]
    assert before.strip() == "{{system}} {{release}} {{version}} {{machine}}" and after.strip().startswith("Linux ")
