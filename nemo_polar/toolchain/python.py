# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""pip harnesses: their packages, unmodified, and a Python of their own, in one folder that runs wherever it is mounted.

A virtual environment points at an interpreter outside itself, which a sandbox does not show. So the interpreter and its
standard library are copied beside the packages; CPython finds its library from where its executable lies. The result serves
any Linux with a C library like this machine's, read-only.

    bin/ lib/       the interpreter; its ``sitecustomize`` shows it the packages, and gives it ``bin/python`` as its own name,
                    which finds its libraries: so a Python that it starts works too, and other programs inherit nothing
    packages/       the harness and what it imports
    start.py        what the launcher runs

Copying a Python is no work for a package manager: nothing here is downloaded but the packages.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from importlib.metadata import Distribution, distributions
from pathlib import Path

from nemo_polar.harnesses.base import Edited, Install
from nemo_polar.toolchain.host import Missing, Progress, find_python, run
from nemo_polar.toolchain.layout import Place, lock_file

PYTHONS = ("3.12", "3.13", "3.11")
_LEFT_OUT = shutil.ignore_patterns(
    "site-packages", "dist-packages", "test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "config-*",
    "pydoc_data", "sitecustomize.py", "usercustomize.py", "_tkinter.*",
)  # fmt: skip
_FACTS = """
import json, sys, sysconfig
paths = sysconfig.get_paths()
print(json.dumps({"executable": sys.executable, "prefix": sys.base_prefix, "version": "%d.%d" % sys.version_info[:2],
                  "folders": sorted({paths["stdlib"], paths["platstdlib"]})}))
"""
_CUSTOMIZE = """
import os, site, sys
own = os.path.join(sys.prefix, "lib")
paths = [path for path in os.environ.get("LD_LIBRARY_PATH", "").split(":") if path and path != own]
os.environ.pop("LD_LIBRARY_PATH", None)
if paths:
    os.environ["LD_LIBRARY_PATH"] = ":".join(paths)
sys.executable = os.path.join(sys.prefix, "bin", "python")
site.addsitedir(os.path.join(sys.prefix, "packages"))
"""
_PYTHON = """#!/bin/sh
here=$(dirname -- "$(readlink -f -- "$0")")
here=$(cd -- "$here/.." && pwd)
{library}exec "$here/bin/{name}" "$@"
"""
_LIBRARY = 'LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"\nexport LD_LIBRARY_PATH\n'
_COMMAND = """\
import sys
sys.argv[0] = {binary!r}
from {module} import {root}
sys.exit({call}())
"""
_INTERPRETER = """\
import os, runpy, sys
if len(sys.argv) < 2:
    sys.exit("usage: {binary} SCRIPT [ARGUMENT]...")
del sys.argv[0]
sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
runpy.run_path(sys.argv[0], run_name="__main__")
"""
_PIP_ENV = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_PROGRESS_BAR": "off", "PIP_NO_INPUT": "1"}


def install_packages(progress: Progress, name: str, install: Install, part: Place) -> str:
    """Install into ``part``, launcher included; returns what it runs on, e.g. ``python3.12``.

    Raises:
        Missing: there is no Python to copy, pip or the network fails, or a file to be edited is not as it was.
    """
    python = find_python(PYTHONS)
    version = copy_python(progress, python, part.folder)
    lock = lock_file(name)
    if lock is not None and f"{install.package}=={install.version}" not in lock.read_text(encoding="utf-8").split():
        raise Missing(f"{lock.name} does not pin {install.package} {install.version}: it must change with the adapter.")
    what = ["--no-deps", "-r", lock] if lock else [f"{install.package}=={install.version}", *install.also]
    packages = part.folder / "packages"
    pip = [_with_pip(progress, python, part.toolchain / "builder"), "-m", "pip", "install", "--target", packages, *what]
    run(progress, f"installing {install.package} {install.version}", pip, env=_PIP_ENV)
    shutil.rmtree(part.toolchain / "builder", ignore_errors=True)
    for edited in install.edited:
        edit(edited, packages, part.folder, install)
    write_start(part.folder, install)
    part.write_launcher(f'exec "$here/{name}/bin/python" -I -B "$here/{name}/start.py" "$@"\n')
    return version


def check_starts(progress: Progress, install: Install, place: Place) -> str:
    """Start the command, import what it only imports later, and read the version its package has.

    Raises:
        Missing: it does not start, or is another version than is pinned.
    """
    found = installed_version(place.folder / "packages", install.package)
    if found != install.version:
        raise Missing(f"pip brought {install.package} {found or '(nothing)'} where {install.version} is pinned.")
    with tempfile.TemporaryDirectory(prefix="polar-home-") as home:
        env = {"HOME": home, "TERM": "dumb", "COLUMNS": "100", **install.env}
        if command_of(place.folder / "packages", install):
            run(progress, f"starting {install.binary}", [place.launcher, *install.probe], env=env, cwd=Path(home))
        if install.imports:
            code = "import " + ", ".join(install.imports)
            python = place.folder / "bin" / "python"
            run(progress, f"importing {', '.join(install.imports)}", [python, "-I", "-B", "-c", code], env=env)
    return install.version


def copy_python(progress: Progress, python: Path, target: Path) -> str:
    """Copy an interpreter to ``target``; returns its name, e.g. ``python3.12``. To be started as ``bin/python``.

    Raises:
        Missing: the interpreter does not run.
    """
    facts = json.loads(run(progress, f"copying {python}", [python, "-I", "-c", _FACTS]).splitlines()[-1])
    executable, prefix, name = Path(facts["executable"]).resolve(), Path(facts["prefix"]), f"python{facts['version']}"
    (target / "bin").mkdir(parents=True, exist_ok=True)
    shutil.copy2(executable, target / "bin" / name)
    for folder in map(Path, facts["folders"]):
        shutil.copytree(folder, target / folder.relative_to(prefix), ignore=_LEFT_OUT, dirs_exist_ok=True)
    (target / "lib" / name / "sitecustomize.py").write_text(_CUSTOMIZE, encoding="utf-8")
    modules = sorted(path for path in target.glob("lib*/python*/lib-dynload/*.so"))
    libraries = _own_libraries([executable, *modules], prefix)
    for library in libraries:
        shutil.copy2(library.resolve(), target / "lib" / library.name)
    wrapper = target / "bin" / "python"
    wrapper.write_text(_PYTHON.format(library=_LIBRARY if libraries else "", name=name), encoding="utf-8")
    wrapper.chmod(0o755)
    return name


def write_start(folder: Path, install: Install) -> None:
    """Write what the launcher runs: the package's command, or a Python for a script."""
    command = command_of(folder / "packages", install)
    if command is None:
        body = _INTERPRETER.replace("{binary}", install.binary)
    else:
        module, _, call = command.partition(":")
        body = _COMMAND.format(binary=install.binary, module=module, root=call.partition(".")[0], call=call)
    (folder / "start.py").write_text(body, encoding="utf-8")


def command_of(packages: Path, install: Install) -> str | None:
    """The ``module:attribute`` behind the package's command, if it has one of that name."""
    found = _distribution(packages, install.package)
    scripts = found.entry_points.select(group="console_scripts", name=install.binary) if found else ()
    return next((script.value.partition("[")[0].strip() for script in scripts), None)


def installed_version(packages: Path, package: str) -> str | None:
    """The version of ``package`` in a folder of packages."""
    found = _distribution(packages, package)
    return None if found is None else found.version


def _distribution(packages: Path, package: str) -> Distribution | None:
    return next(iter(distributions(name=package, path=[str(packages)])), None)


def _with_pip(progress: Progress, python: Path, builder: Path) -> Path:
    """``python`` if it has pip, else an environment of it, which has."""
    if subprocess.run([python, "-I", "-m", "pip", "--version"], capture_output=True).returncode == 0:
        return python
    run(progress, "making an environment to install from", [python, "-m", "venv", builder])
    return builder / "bin" / "python"


def _own_libraries(binaries: list[Path], prefix: Path) -> list[Path]:
    """The shared libraries that come with this Python, not with the system: its own, and what else lies below its prefix."""
    listing = subprocess.run(["ldd", *map(str, binaries)], capture_output=True, text=True).stdout
    found = {Path(path) for path in re.findall(r"=> (/\S+) \(", listing)}
    system = prefix == Path("/usr")
    return sorted(p for p in found if p.name.startswith("libpython") or (not system and prefix in p.parents))


def edit(edited: Edited, packages: Path, folder: Path, install: Install) -> None:
    """Write the edited copy of one file.

    Raises:
        Missing: what is to be changed is not there exactly once.
    """
    source = packages / edited.source
    replacement = edited.replacement.replace("{machine}", os.uname().machine)
    text, count = re.subn(edited.pattern, lambda _: replacement, source.read_text(encoding="utf-8"))
    if count != 1:
        raise Missing(
            f"{source.name} of {install.package} {install.version} holds {count} times what is to be changed in it once."
        )
    (folder / edited.target).write_text(text, encoding="utf-8")
