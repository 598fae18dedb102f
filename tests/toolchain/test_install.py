# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Installing: what is done again and what is not, that a failure changes nothing, and what a person is told.

npm is a script here that writes the packages it is asked for.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from nemo_polar import registry
from nemo_polar.errors import HarnessError, RegistryError
from nemo_polar.harnesses.base import Edited, Install
from nemo_polar.toolchain.check import check
from nemo_polar.toolchain.host import Missing, Progress
from nemo_polar.toolchain.install import Known, all_known, install, known
from nemo_polar.toolchain.layout import NODE
from nemo_polar.toolchain.python import edit

FAKE_NPM = """#!{python}
import json, os, sys
from pathlib import Path
prefix = Path(sys.argv[sys.argv.index("--prefix") + 1])
wanted = json.loads((prefix / "package.json").read_text())["dependencies"]
here = Path(__file__).parent
with (here / "calls").open("a") as log:
    log.write(" ".join(sorted(wanted)) + "\\n")
if (here / "broken").exists():
    sys.exit("npm error network")
for name, version in wanted.items():
    folder = prefix / "node_modules" / name
    (folder / "bin").mkdir(parents=True)
    found = version if not (here / "old").exists() else "0.0.1"
    (folder / "package.json").write_text(json.dumps({{"version": found, "bin": {{"tool": "bin/tool.js"}}}}))
    if name == "node":  # a real program, that is not Node
        (folder / "bin" / "node").symlink_to("{shell}")
    said = (here / "says").read_text() if (here / "says").exists() else version
    (folder / "bin" / "tool.js").write_text("echo tool " + said + " $POLAR_PROBE\\n")
"""


class World:
    """A toolchain folder and a fake npm."""

    def __init__(self, folder: Path) -> None:
        self.bin, self.toolchain = folder / "bin", folder / "toolchain"
        self.bin.mkdir()
        npm = self.bin / "npm"
        shell = os.path.realpath("/bin/sh")
        npm.write_text(FAKE_NPM.format(python=sys.executable, shell=shell))
        npm.chmod(0o755)
        self.said = io.StringIO()

    def set(self, name: str, text: str = "") -> None:
        (self.bin / name).write_text(text)

    def clear(self, name: str) -> None:
        (self.bin / name).unlink()

    @property
    def calls(self) -> list[str]:
        return (self.bin / "calls").read_text().splitlines() if (self.bin / "calls").exists() else []

    def install(self, harness: Known, *, force: bool = False) -> bool:
        return install(harness, self.toolchain, Progress(self.said), force=force)

    def run(self, binary: str) -> str:
        return subprocess.run([self.toolchain / "bin" / binary], capture_output=True, text=True, check=True).stdout


def tool(version: str = "1.2.3", name: str = "tool", **more: object) -> Known:
    return Known(name, "openai_chat", Install("npm", "the-tool", version, "tool", **more))  # type: ignore[arg-type]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(tmp_path)
    monkeypatch.setenv("PATH", f"{made.bin}:/usr/bin:/bin")
    # The fake Node is a shell: started for its version, it says the one that is wanted.
    node = replace(NODE, probe=("-c", f"echo v{NODE.version}"))
    monkeypatch.setattr("nemo_polar.toolchain.install.NODE", node)
    monkeypatch.setattr("nemo_polar.toolchain.npm.NODE", node)
    return made


def test_a_harness_is_installed_once_and_again_only_when_its_pin_changes_it_is_gone_or_forced(world: World) -> None:
    assert world.install(tool()) and world.run("tool").split()[:2] == ["tool", "1.2.3"]
    assert not world.install(tool())
    assert world.install(tool("1.2.4")) and world.run("tool").split()[1] == "1.2.4"
    (world.toolchain / "bin" / "tool").unlink()
    assert world.install(tool("1.2.4"))
    assert world.install(tool("1.2.4"), force=True)
    assert world.calls.count("the-tool") == 4 and world.calls.count("node") == 1


def test_one_harness_is_installed_without_touching_another_and_shares_its_node(world: World) -> None:
    world.install(tool())
    before = (world.toolchain / "tool" / "polar.json").stat().st_mtime_ns
    other = Known("other", "openai_chat", Install("npm", "the-other", "2.0.0", "tool"))
    assert world.install(other)
    assert (world.toolchain / "tool" / "polar.json").stat().st_mtime_ns == before
    assert world.calls == ["the-tool", "node", "the-other"]
    assert sorted(p.name for p in world.toolchain.iterdir()) == ["bin", "install.lock", "node", "other", "tool"]


FAILURES: dict[str, tuple[Callable[[World], None], str]] = {
    "the network": (lambda world: world.set("broken"), "if it is the network, run the same command again"),
    "an old release": (lambda world: world.set("old"), "npm brought the-tool 0.0.1 where 1.2.4 is pinned"),
    "a program of another version": (lambda world: world.set("says", "1.2.40"), "says that it is version 1.2.40 where 1.2.4"),
    "a program that says nothing": (lambda world: world.set("says", "hello"), "says that it is version tool hello"),
}


@pytest.mark.parametrize(("breakage", "words"), FAILURES.values(), ids=FAILURES)
def test_what_fails_leaves_what_was_there_and_nothing_else(world: World, breakage: Callable[[World], None], words: str) -> None:
    world.install(tool())
    breakage(world)
    with pytest.raises(HarnessError, match=words):
        world.install(tool("1.2.4"))
    assert world.run("tool").split()[1] == "1.2.3" and not world.install(tool())
    assert sorted(p.name for p in world.toolchain.iterdir()) == ["bin", "install.lock", "node", "tool"]


def test_an_installation_that_was_killed_is_done_anew(world: World) -> None:
    world.install(tool())
    (world.toolchain / "tool" / "polar.json").unlink()
    (world.toolchain / "tool.part" / "tool").mkdir(parents=True)
    (world.toolchain / "tool.part" / "tool" / "rest").write_text("")
    assert world.install(tool()) and not (world.toolchain / "tool.part").exists()
    assert not (world.toolchain / "tool" / "rest").exists()


def test_the_toolchain_works_wherever_it_is_moved(world: World, tmp_path: Path) -> None:
    world.install(tool())
    world.toolchain = world.toolchain.rename(tmp_path / "moved here")
    assert world.run("tool").split()[1] == "1.2.3"


def test_a_native_program_is_started_without_node_and_a_missing_one_is_said(world: World) -> None:
    with pytest.raises(HarnessError, match="has no program for this machine"):
        world.install(tool(native="the-tool-*/bin/tool"))
    native = Known(
        "native", "openai_chat", Install("npm", "node", "1.2.3", "sh", native="node/bin/node", probe=("-c", "echo 1.2.3"))
    )
    assert world.install(native) and world.calls == ["the-tool", "node"]
    assert "bin/node" in (world.toolchain / "bin" / "sh").read_text() and not (world.toolchain / "bin" / "node").exists()


def test_a_missing_npm_is_one_sentence_that_says_how_to_get_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(HarnessError, match=r"tool: npm is missing: install Node\.js"):
        world.install(tool())


def test_what_brings_its_own_command_needs_no_installing(world: World) -> None:
    assert not world.install(known("shell")) and not world.toolchain.exists()


# --- health ---------------------------------------------------------------------------------------------------------


def health(world: World, harness: Known) -> tuple[bool, str]:
    found = check(harness, world.toolchain, Progress(io.StringIO()))
    assert found.ok == (not found.fix)
    return found.ok, found.detail


def test_health_is_being_there_being_the_pinned_version_and_starting(world: World) -> None:
    assert health(world, tool()) == (False, f"the-tool 1.2.3 is not installed in {world.toolchain}")
    world.install(tool())
    assert health(world, tool()) == (True, "the-tool 1.2.3 starts, on node")
    assert health(world, tool("1.3.0")) == (False, "the-tool 1.2.3 is installed, and the-tool 1.3.0 is pinned")
    program = world.toolchain / "tool" / "node_modules" / "the-tool" / "bin" / "tool.js"
    program.write_text("echo 9.9.9")
    ok, detail = health(world, tool())
    assert not ok and "says that it is version 9.9.9 where 1.2.3 is pinned" in detail
    program.write_text("exit 3")
    ok, detail = health(world, tool())
    assert not ok and "starting tool failed with code 3" in detail
    (world.toolchain / "node" / "polar.json").unlink()
    assert health(world, tool()) == (False, "it lacks its Node")


# --- pip ------------------------------------------------------------------------------------------------------------


def wheel(folder: Path, name: str, version: str, files: dict[str, str]) -> None:
    info = f"{name}-{version}.dist-info"
    metadata = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in {**files, **metadata}.items():
            archive.writestr(path, text)


def test_a_pip_harness_gets_a_python_of_its_own_its_packages_and_its_edited_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("PIP_NO_INDEX", "1"), ("PIP_FIND_LINKS", str(tmp_path)), ("PIP_CONFIG_FILE", os.devnull)):
        monkeypatch.setenv(name, value)
    code = "import sys, beside\nprint('agent', *sys.argv[1:])\n"
    wheel(tmp_path, "agent", "1.2.3", {"agent.py": code, "agent.yaml": "on x86\n"})
    wheel(tmp_path, "beside", "2.0.0", {"beside.py": ""})
    how = Install("pip", "agent", "1.2.3", "agent-python", also=("beside==2.0.0",), imports=("agent",))
    edited = (Edited("agent.yaml", "ours.yaml", "x86", "{machine}"),)
    toolchain = tmp_path / "toolchain"
    one = Known("agent", "openai_chat", replace(how, edited=edited))
    assert install(one, toolchain, Progress(io.StringIO())) and not install(one, toolchain, Progress(io.StringIO()))
    assert (toolchain / "agent" / "ours.yaml").read_text() == f"on {os.uname().machine}\n"
    script = tmp_path / "script.py"
    script.write_text("import agent")
    ran = subprocess.run([toolchain / "bin" / "agent-python", script, "a b"], capture_output=True, text=True)
    assert ran.stdout == "agent a b\n", ran
    assert check(one, toolchain, Progress(io.StringIO())).ok


def test_a_file_that_is_not_as_it_was_is_not_edited(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text("on x86\n")
    with pytest.raises(Missing, match=r"agent\.yaml of agent 1\.2\.3 holds 3 times what is to be changed in it once"):
        edit(Edited("agent.yaml", "ours.yaml", "[nox]", ""), tmp_path, tmp_path, Install("pip", "agent", "1.2.3", "agent"))
    assert not (tmp_path / "ours.yaml").exists()


# --- names ----------------------------------------------------------------------------------------------------------


def test_every_harness_that_ships_says_how_it_is_installed_and_pins_a_version() -> None:
    found, broken = all_known()
    assert not broken and {h.name for h in found} == set(registry.names("harnesses"))
    for harness in found:
        how = harness.install
        assert how.manager == "none" or (how.package and how.version and how.binary), harness.name
    assert len({h.install.binary for h in found}) == len(found)


def test_a_name_that_nothing_is_called_and_a_harness_that_does_not_say_how_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RegistryError, match="nothing is called 'nosuch'"):
        known("nosuch")

    class Mute:
        name, dialect, install = "mute", "openai_chat", "npm i mute"

    class Bin:
        name, dialect, install = "bin", "openai_chat", Install("npm", "x", "1", "x")

    monkeypatch.setattr(registry, "_registered", {**registry._registered, "harnesses": {"mute": Mute, "bin": Bin}})
    with pytest.raises(HarnessError, match="does not say how it is installed"):
        known("mute")
    with pytest.raises(HarnessError, match="no name for a folder"):
        known("bin")
    assert {"mute", "bin"} == set(all_known()[1])
