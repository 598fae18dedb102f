# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A command of Gym is ended the way it cleans up after, and nothing of its group outlives it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from nemo_polar.errors import ConfigError
from nemo_polar.gym.command import Command
from nemo_polar.gym.process import check_port, run


def command(script: str, folder: Path) -> Command:
    return Command(("/bin/sh", "-c", script), folder, {"ADDED": "yes"})


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_the_exit_code_is_the_commands_and_it_ran_where_it_was_told(tmp_path: Path) -> None:
    ended = run(command('pwd > here; echo "$ADDED" >> here; exit 7', tmp_path))
    assert (ended.exit_code, ended.interrupted, ended.left_behind) == (7, False, 0)
    assert (tmp_path / "here").read_text() == f"{tmp_path}\nyes\n"
    assert run(command("kill -9 $$", tmp_path)).exit_code == 137


def test_what_a_failed_command_leaves_behind_is_ended_even_if_it_does_not_want_to(tmp_path: Path) -> None:
    script = "(trap '' TERM INT; while :; do sleep 0.1; done) & echo $! > stubborn; sleep 100 & echo $! > plain; exit 1"
    ended = run(command(script, tmp_path))
    assert ended.exit_code == 1 and ended.left_behind >= 2
    assert not any(alive(int((tmp_path / name).read_text())) for name in ("stubborn", "plain"))


def test_processes_of_others_are_not_touched(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "100"]) as other:
        run(command("sleep 100 & exit 0", tmp_path))
        assert other.poll() is None
        other.kill()


STARTER = """
import sys
from pathlib import Path
from nemo_polar.gym.command import Command
from nemo_polar.gym.process import run
ended = run(Command(("/bin/sh", "-c", sys.argv[1]), Path(sys.argv[2])), patience=float(sys.argv[3]))
print(ended.exit_code, ended.interrupted, flush=True)
"""
SERVES = "trap 'echo told > told; exit 3' INT; : > up; while :; do sleep 0.05; done"


def started(script: str, folder: Path, patience: float = 60) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", textwrap.dedent(STARTER), script, str(folder), str(patience)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 30
    while not (folder / "up").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_an_interrupt_for_gym_whichever_came(tmp_path: Path, number: signal.Signals) -> None:
    with started(SERVES, tmp_path) as process:
        process.send_signal(number)
        said, _ = process.communicate(timeout=30)
    assert said == "3 True\n" and (tmp_path / "told").exists()


def test_a_command_that_does_not_end_when_told_to_is_killed_in_time(tmp_path: Path) -> None:
    with started("trap '' INT TERM; : > up; while :; do sleep 0.05; done", tmp_path, patience=0.5) as process:
        process.terminate()
        said, _ = process.communicate(timeout=30)
    assert said == "137 True\n"


def test_gym_is_interrupted_when_polar_is_killed(tmp_path: Path) -> None:
    with started(SERVES, tmp_path) as process:
        process.kill()
    deadline = time.monotonic() + 30
    while not (tmp_path / "told").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert (tmp_path / "told").exists()


def test_a_command_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no-such-gym"):
        run(Command((str(tmp_path / "no-such-gym"),), tmp_path))


def test_a_port_in_use_is_refused_with_another_one_to_take() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"port {port} is in use(.|\n)*head_server\.port={port + 1}"):
            check_port(port)
    check_port(port)
