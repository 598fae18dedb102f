# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What installing is made of: child processes with progress, a lock, and the search for a Python.

Standard library only, in the grammar of Python 3.8: ``tools/setup.py`` loads this file by itself, before the package is there.
It knows nothing of what is installed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TextIO

TAIL_LINES = 12
NOISE = re.compile(
    r"is ignored: it is neither a file|^Looking in |^Requirement already|^\s*$|\[notice\]|root user action|as the 'root' user"
    r"|pip available|^Skipping .* not installed|npm warn|it/s\]"
)
"""Lines of pip and npm that say nothing."""


class Missing(Exception):
    """Something cannot be installed. The message is one sentence: what is missing and how to get it."""


class Progress:
    """Shows what runs, for how long, and its last line: in place on a terminal, every 20 seconds in a log."""

    def __init__(self, out: TextIO | None = None) -> None:
        self.out = sys.stdout if out is None else out
        self.live = self.out.isatty()
        self.every = 0.2 if self.live else 20.0

    def say(self, text: str) -> None:
        """One line of its own."""
        print(text, file=self.out, flush=True)

    def show(self, title: str, seconds: float, last: str) -> None:
        width = shutil.get_terminal_size().columns
        text = f"      {title} ({seconds:.0f} s) {last}"
        if self.live:
            print(f"\r\x1b[K{text[: width - 1]}", end="", file=self.out, flush=True)
        else:
            self.say(text[:160])

    def done(self, title: str, seconds: float) -> None:
        self.say(f"{chr(13) + chr(27) + '[K' if self.live else ''}      {title}: {seconds:.0f} s")


def run(
    progress: Progress,
    title: str,
    command: Sequence[object],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> str:
    """Run a command to its end and return what it printed, noise left out.

    Raises:
        Missing: it failed; ends with the last lines of what it printed.
    """
    started = time.monotonic()
    lines: list[str] = []
    words = [str(word) for word in command]
    try:
        child = subprocess.Popen(
            words,
            cwd=str(cwd) if cwd else None,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        )
    except OSError as exc:
        raise Missing(f"{words[0]} cannot be started ({exc.strerror}).") from exc
    reader = threading.Thread(target=_collect, args=(child, lines), daemon=True)
    reader.start()
    try:
        while reader.is_alive():
            reader.join(progress.every)
            if reader.is_alive():
                progress.show(title, time.monotonic() - started, lines[-1] if lines else "")
        code = child.wait()
    except BaseException:
        child.terminate()
        child.wait()
        raise
    if code:
        tail = "\n".join(f"    {line}" for line in lines[-TAIL_LINES:])
        raise Missing(f"{title} failed with code {code}; if it is the network, run the same command again. It said:\n{tail}")
    progress.done(title, time.monotonic() - started)
    return "\n".join(lines)


def _collect(child: subprocess.Popen[str], lines: list[str]) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        text = line.rstrip().rsplit("\r", 1)[-1]
        if not NOISE.search(text):
            lines.append(text)


@contextlib.contextmanager
def locked(path: Path, progress: Progress | None = None) -> Iterator[None]:
    """One set-up at a time: a second one waits for the first, and then finds its stamps. The lock goes with the process."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            (progress or Progress()).say("another set-up is running here; waiting for it to end")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def find_python(versions: Sequence[str]) -> Path:
    """The first of ``versions`` that is on this machine and can make an environment.

    Looks at POLAR_PYTHON, the PATH, pyenv's and uv's folders, and the Python that runs this. Each candidate is started, so a
    shim whose version is not chosen, or a Python without ensurepip, does not count.

    Raises:
        Missing: there is none.
    """
    for version in versions:
        for candidate in _candidates(version):
            if _works(candidate, version):
                return candidate
    wanted = " or ".join(versions)
    raise Missing(
        f"no CPython {wanted} with venv and pip was found: install one (for example `uv python install {versions[0]}`, "
        f"`pyenv install {versions[0]}`, or python{versions[0]} and python{versions[0]}-venv from your system's packages), "
        "or name one in POLAR_PYTHON."
    )


def _candidates(version: str) -> Iterator[Path]:
    name = f"python{version}"
    if os.environ.get("POLAR_PYTHON"):
        yield Path(os.environ["POLAR_PYTHON"])
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        for executable in (name, "python3"):
            path = Path(folder) / executable
            if path.exists() and "shims" not in path.parts:
                yield path
    home = Path.home()
    pyenv = Path(os.environ.get("PYENV_ROOT", home / ".pyenv"))
    uv = Path(os.environ.get("UV_PYTHON_INSTALL_DIR", home / ".local/share/uv/python"))
    yield from sorted(pyenv.glob(f"versions/{version}.*/bin/{name}"), reverse=True)
    yield from sorted(uv.glob(f"cpython-{version}*/bin/{name}"), reverse=True)
    yield Path(sys.executable)
    yield Path(getattr(sys, "_base_executable", sys.executable))  # of an environment: what it was made from


def _works(python: Path, version: str) -> bool:
    """Whether it is that version of CPython, outside any environment, and has ensurepip."""
    ask = (
        "import sys, ensurepip, venv; assert sys.implementation.name == 'cpython' and sys.prefix == sys.base_prefix; "
        "print('%d.%d' % sys.version_info[:2])"
    )
    try:
        with tempfile.TemporaryDirectory() as folder:
            answer = subprocess.run([str(python), "-I", "-c", ask], capture_output=True, text=True, timeout=30, cwd=folder)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.returncode == 0 and answer.stdout.strip() == version
