# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A pip harness's place in the toolchain: a Python that runs wherever the folder lies, and packages that are all pinned."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_polar.harnesses.base import Install
from nemo_polar.harnesses.mini_swe_agent import MiniSweAgent
from nemo_polar.rollout.compose import home
from nemo_polar.toolchain import python
from nemo_polar.toolchain.host import Progress
from nemo_polar.toolchain.install import Known, all_known
from nemo_polar.toolchain.layout import Place, lock_file

_SAY = """
import json, os, subprocess, sys
def say():
    import ctypes, hashlib, sqlite3, ssl, zlib
    child = subprocess.run([sys.executable, "-c", "import agent; print(agent.__file__)"], capture_output=True, text=True)
    library = os.environ.get("LD_LIBRARY_PATH")
    print(json.dumps({"prefix": sys.prefix, "path": sys.path, "argv": sys.argv, "library": library, "child": child.stdout}))
"""
_METADATA = "Metadata-Version: 2.1\nName: agent\nVersion: 1.2.3\n"


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A copied Python with one package, moved after it was made."""
    place = Place(tmp_path_factory.mktemp("made"), "agent", "say")
    for folder in (place.launcher.parent, place.folder / "packages" / "agent-1.2.3.dist-info"):
        folder.mkdir(parents=True)
    with Path(os.devnull).open("w") as nowhere:
        interpreter = Path(getattr(sys, "_base_executable"))
        python.copy_python(Progress(nowhere), interpreter, place.folder)
    packages = place.folder / "packages"
    (packages / "agent.py").write_text(_SAY)
    (packages / "agent-1.2.3.dist-info" / "METADATA").write_text(_METADATA)
    (packages / "agent-1.2.3.dist-info" / "entry_points.txt").write_text("[console_scripts]\nsay = agent:say\n")
    for binary in ("say", "agent-python"):
        python.write_start(place.folder, Install("pip", "agent", "1.2.3", binary))
        start_it = 'exec "$here/agent/bin/python" -I -B "$here/agent/start.py" "$@"\n'
        Place(place.toolchain, "agent", binary).write_launcher(start_it)
        (place.folder / "start.py").rename(place.folder / f"{binary}.py")
    moved = place.toolchain.rename(place.toolchain.with_name("moved here"))
    return Place(moved, "agent", "say")


def start(place: Place, binary: str, *words: str, library: str | None = None) -> dict[str, object]:
    (place.folder / f"{binary}.py").replace(place.folder / "start.py")
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": "/nowhere", **({"LD_LIBRARY_PATH": library} if library else {})}
    launcher = place.toolchain / "bin" / binary
    try:
        ran = subprocess.run([launcher, *words], env=env, capture_output=True, text=True, cwd="/", timeout=60)
    finally:
        (place.folder / "start.py").rename(place.folder / f"{binary}.py")
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.mark.parametrize("library", [None, "/x:/y"])
def test_a_copied_python_runs_wherever_it_is_moved_and_hands_nothing_of_its_own_to_what_it_starts(
    copied: Place, library: str | None
) -> None:
    said = start(copied, "say", "a b", library=library)
    assert said["prefix"] == str(copied.folder) and said["argv"] == ["say", "a b"] and said["library"] == library
    assert isinstance(said["path"], list) and all(path.startswith(str(copied.toolchain)) for path in said["path"])


def test_a_script_of_the_adapters_own_sees_the_packages_and_so_does_a_process_that_it_starts(
    copied: Place, tmp_path: Path
) -> None:
    script = tmp_path / "run.py"
    script.write_text("import agent, beside\nagent.say()\n")
    (tmp_path / "beside.py").write_text("")
    said = start(copied, "agent-python", str(script), "x")
    assert said["argv"] == [str(script), "x"]
    assert said["child"] == f"{copied.folder}/packages/agent.py\n"


@pytest.mark.parametrize("harness", [h for h in all_known()[0] if h.install.manager == "pip"], ids=lambda h: h.name)
def test_every_package_is_pinned_and_the_adapter_names_the_same_version(harness: Known) -> None:
    lock = lock_file(harness.name)
    assert lock is not None
    lines = [line for line in lock.read_text().splitlines() if line and not line.startswith("#")]
    assert all(line.count("==") == 1 for line in lines) and len({line.split("==")[0].lower() for line in lines}) == len(lines)
    assert f"{harness.install.package}=={harness.install.version}" in lines


@pytest.mark.harness
@pytest.mark.skipif(not (home() / "toolchain/mini_swe_agent/mini.yaml").exists(), reason="mini-swe-agent is not installed")
def test_the_configuration_of_mini_swe_agent_is_its_own_but_for_the_kernels_version() -> None:
    folder = home() / "toolchain" / MiniSweAgent.name
    own = (folder / "packages" / "minisweagent" / "config" / "mini.yaml").read_text().splitlines()
    ours = (folder / "mini.yaml").read_text().splitlines()
    [(before, after)] = [(a, b) for a, b in zip(own, ours, strict=True) if a != b]
    assert before.strip() == "{{system}} {{release}} {{version}} {{machine}}" and after.strip().startswith("Linux ")
