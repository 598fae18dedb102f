# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Puts mini-swe-agent, unmodified, into the toolchain: its pinned packages and a Python of its own, in one folder.

A virtual environment points at an interpreter outside itself, which a sandbox does not show. So the interpreter and its
standard library are copied beside the packages; CPython finds its library from where its executable lies, wherever the folder
is mounted. The result serves any Linux with a C library like this machine's, read-only.

    mini/bin, mini/lib     the interpreter
    mini/packages          mini-swe-agent and what it imports
    mini/mini.yaml         its own default configuration, with the kernel's version taken out of the prompt
    bin/mini               starts it
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

from steps import ROOT, Missing, Progress, run

PACKAGES = ROOT / "tools" / "mini_swe_agent.txt"
PYTHONS = ("3.12", "3.13", "3.11")
_LEFT_OUT = shutil.ignore_patterns(
    "site-packages", "dist-packages", "test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "config-*",
    "pydoc_data", "sitecustomize.py", "_tkinter.*",
)  # fmt: skip
_FACTS = """
import json, sys, sysconfig
paths = sysconfig.get_paths()
print(json.dumps({"executable": sys.executable, "prefix": sys.base_prefix, "version": "%d.%d" % sys.version_info[:2],
                  "folders": sorted({paths["stdlib"], paths["platstdlib"]})}))
"""
_START = """
import os, sys
here = os.path.dirname(os.path.realpath(__file__))
own = os.path.join(here, "lib")
paths = [path for path in os.environ.get("LD_LIBRARY_PATH", "").split(":") if path and path != own]
os.environ.pop("LD_LIBRARY_PATH", None)
if paths:
    os.environ["LD_LIBRARY_PATH"] = ":".join(paths)
sys.path.insert(0, os.path.join(here, "packages"))
from minisweagent.run.mini import app
app(prog_name="mini")
"""
_LAUNCHER = """#!/bin/sh
here=$(dirname -- "$(readlink -f -- "$0")")/../mini
here=$(cd -- "$here" && pwd)
{library}exec "$here/bin/python{version}" -I -S -B "$here/start.py" "$@"
"""
_LIBRARY = 'LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"\nexport LD_LIBRARY_PATH\n'
_KERNEL = re.compile(r"\{\{\s*system\s*\}\} \{\{\s*release\s*\}\} \{\{\s*version\s*\}\} \{\{\s*machine\s*\}\}")
_QUIET = {
    "MSWEA_CONFIGURED": "true",
    "MSWEA_SILENT_STARTUP": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "TERM": "dumb",
    "COLUMNS": "100",
}


def version() -> str:
    """The pinned version of mini-swe-agent."""
    found = re.search(r"^mini-swe-agent==(\S+)$", PACKAGES.read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise Missing(f"{PACKAGES.relative_to(ROOT)} pins no mini-swe-agent: get the file from the repository again.")
    return found[1]


def install(progress: Progress, python: Path, toolchain: Path) -> None:
    """Make ``<toolchain>/mini`` and ``<toolchain>/bin/mini`` with a copy of ``python``.

    Raises:
        Missing: pip fails, or what was installed does not start.
    """
    part = toolchain.with_name("mini.part")
    shutil.rmtree(part, ignore_errors=True)
    target = part / "mini"
    (part / "bin").mkdir(parents=True)
    launcher = part / "bin" / "mini"
    launcher.write_text(_copied_python(progress, python, target), encoding="utf-8")
    launcher.chmod(0o755)
    builder = part / "builder"
    run(progress, "making an environment to install from", [python, "-m", "venv", builder])
    pip = [builder / "bin" / "python", "-m", "pip", "install", "--no-deps", "--target", target / "packages", "-r", PACKAGES]
    quiet = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_PROGRESS_BAR": "off", "PIP_NO_INPUT": "1"}
    run(progress, f"installing mini-swe-agent {version()} (about 65 packages)", pip, env=quiet)
    shutil.rmtree(builder)
    (target / "start.py").write_text(_START, encoding="utf-8")
    _write_config(target)
    _start(progress, launcher, target, part / "settings")
    shutil.rmtree(toolchain / "mini", ignore_errors=True)
    (toolchain / "bin").mkdir(parents=True, exist_ok=True)
    target.rename(toolchain / "mini")
    launcher.replace(toolchain / "bin" / "mini")
    shutil.rmtree(part)


def keep(old: Path, new: Path) -> None:
    """Move an installed mini-swe-agent from one toolchain folder to another that is about to replace it."""
    if (old / "mini").is_dir() and (old / "bin" / "mini").is_file():
        (old / "mini").rename(new / "mini")
        (old / "bin" / "mini").rename(new / "bin" / "mini")


def _copied_python(progress: Progress, python: Path, target: Path) -> str:
    """Copy an interpreter to ``target``; returns the text of the launcher that starts it."""
    facts = json.loads(run(progress, f"copying {python}", [python, "-I", "-c", _FACTS]).splitlines()[-1])
    executable, prefix = Path(facts["executable"]).resolve(), Path(facts["prefix"])
    (target / "bin").mkdir(parents=True)
    shutil.copy2(executable, target / "bin" / f"python{facts['version']}")
    for folder in map(Path, facts["folders"]):
        shutil.copytree(folder, target / folder.relative_to(prefix), ignore=_LEFT_OUT, dirs_exist_ok=True)
    modules = sorted(path for path in target.glob("lib*/python*/lib-dynload/*.so"))
    libraries = _own_libraries([executable, *modules], prefix)
    for library in libraries:
        shutil.copy2(library.resolve(), target / "lib" / library.name)
    return _LAUNCHER.format(library=_LIBRARY if libraries else "", version=facts["version"])


def _own_libraries(binaries: list[Path], prefix: Path) -> list[Path]:
    """The shared libraries that come with this Python, not with the system: its own, and what else lies below its prefix."""
    listing = subprocess.run(["ldd", *map(str, binaries)], capture_output=True, text=True).stdout
    found = {Path(path) for path in re.findall(r"=> (/\S+) \(", listing)}
    system = prefix == Path("/usr")
    return sorted(p for p in found if p.name.startswith("libpython") or (not system and prefix in p.parents))


def _start(progress: Progress, launcher: Path, target: Path, settings: Path) -> None:
    """See that the command works, and what it only imports once it asks a model."""
    env = {**_QUIET, "MSWEA_GLOBAL_CONFIG_DIR": str(settings), "LD_LIBRARY_PATH": str(target / "lib")}
    run(progress, "starting it", [launcher, "--help"], env=env)
    imports = f"import sys; sys.path.insert(0, {str(target / 'packages')!r}); import minisweagent.models.litellm_model"
    run(progress, "importing litellm", [next(target.glob("bin/python*")), "-I", "-S", "-B", "-c", imports], env=env)


def _write_config(target: Path) -> None:
    """mini's own default configuration, but with a prompt that is the same on every host of this kind.

    Raises:
        Missing: the prompt names the kernel in another way than this version's does.
    """
    source = target / "packages" / "minisweagent" / "config" / "mini.yaml"
    text, count = _KERNEL.subn(f"Linux {os.uname().machine}", source.read_text(encoding="utf-8"))
    if count != 1:
        raise Missing(f"{source.name} of mini-swe-agent {version()} names the system {count} times where once was expected.")
    (target / "mini.yaml").write_text(text, encoding="utf-8")
