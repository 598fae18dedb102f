# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""``polar gym``: finds NeMo Gym, says which of its commands is run, and runs it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from nemo_polar.cli.boundary import Exit, complain, leave
from nemo_polar.errors import ConfigError
from nemo_polar.gym.command import Command
from nemo_polar.gym.installed import find_gym
from nemo_polar.gym.launch import MODEL_TYPE, Launcher, Model, head_port
from nemo_polar.gym.plugin_root import plugin_root
from nemo_polar.gym.process import check_port, run
from nemo_polar.gym.venvs import is_linked, link_into_gym, unlink_from_gym

ENGINE_WORDS = ("auto", "none")


def env_command(where: str | None, model_type: str) -> None:
    """See ``polar gym env --help``."""
    print(_launcher(where, model_type).exports())


def link_command(where: str | None, *, remove: bool) -> None:
    """See ``polar gym link --help``."""
    gym, root = find_gym(where), plugin_root()
    for path in (unlink_from_gym if remove else link_into_gym)(gym, root):
        print(f"{'removed' if remove else 'linked'} {path}")


def list_command(where: str | None, words: Sequence[str], *, print_only: bool) -> None:
    """See ``polar gym list --help``."""
    launcher = _launcher(where)
    if not launcher.gym.extra_roots and not is_linked(launcher.gym, launcher.root):
        complain(f"NeMo Gym {launcher.gym.version} lists only what lies in its installation; polar gym link puts Polar there")
    _run([launcher.list_environments(words)], print_only=print_only)


def validate_command(
    where: str | None,
    model_type: str,
    model: str | None,
    model_url: str | None,
    key: str,
    words: Sequence[str],
    *,
    print_only: bool,
) -> None:
    """See ``polar gym validate --help``."""
    launcher = _launcher(where, model_type)
    _run(launcher.validate(Model(model_type, model, model_url, key), words), print_only=print_only)


def start_command(
    where: str | None,
    words: Sequence[str],
    *,
    model_type: str,
    model: str | None,
    model_url: str | None,
    model_api_key: str,
    engine_url: str | None,
    harness: str | None,
    tokenizer: Path | None,
    settings: Sequence[str],
    overrides: Sequence[str],
    out: Path,
    print_only: bool,
) -> None:
    """See ``polar gym start --help``."""
    here = Path.cwd()
    agent: dict[str, str | None] = {"out": _value(str(here / out))}
    if harness is not None:
        agent["harness"] = _value(harness)
    if engine_url is not None:
        if engine_url not in ENGINE_WORDS and not urlsplit(engine_url).scheme.startswith("http"):
            raise ConfigError(f"--engine-url {engine_url}: must be auto, none or an http URL")
        agent["engine_url"] = None if engine_url == "none" else _value(engine_url)
    if tokenizer is not None:
        if not (here / tokenizer).is_dir():
            raise ConfigError(f"--tokenizer {tokenizer}: no such folder")
        agent["tokenizer"] = _value(str((here / tokenizer).resolve()))
    for option, given in (("--set", settings), ("--polar", overrides)):
        for setting in given:
            key, equals, value = setting.partition("=")
            if not equals or not key:
                raise ConfigError(f"{option} {setting}: must be KEY=VALUE")
            if option == "--set":
                agent[key] = value
    if overrides:
        agent["overrides"] = f"[{','.join(map(_value, overrides))}]"
    launcher = _launcher(where, model_type)
    if launcher.linked.left_to_gym and shutil.which("uv") is None:
        names = ", ".join(launcher.linked.left_to_gym)
        raise ConfigError(f"{names} needs packages of its own, for which NeMo Gym runs uv, and there is none: pip install uv")
    if not print_only:
        check_port(head_port(words))
    _run([launcher.start(Model(model_type, model, model_url, model_api_key), agent, words)], print_only=print_only)


def collect_command(
    where: str | None,
    source: Path,
    target: Path,
    options: Mapping[str, str | int | None],
    words: Sequence[str],
    *,
    print_only: bool,
) -> None:
    """See ``polar gym collect --help``."""
    if not source.is_file():
        raise ConfigError(f"{source}: no such file")
    given = {name: None if value is None else str(value) for name, value in options.items()}
    _run([_launcher(where).collect(source, target, given, words)], print_only=print_only)


def test_command(where: str | None, words: Sequence[str], *, print_only: bool) -> None:
    """See ``polar gym test --help``."""
    _run(_launcher(where).test(words), print_only=print_only)


def _launcher(where: str | None, model_type: str = MODEL_TYPE) -> Launcher:
    return Launcher.prepare(find_gym(where), plugin_root(), Path.cwd(), [model_type])


def _run(commands: Sequence[Command], *, print_only: bool) -> None:
    """Say each command and run it; the worst exit code is ours. An interruption ends the rest."""
    here = Path.cwd()
    if print_only:
        for command in commands:
            print(command.shown(here))
        return
    failed = False
    for command in commands:
        complain(f"running {command.shown(here)}")
        ended = run(command)
        if ended.left_behind:
            complain(f"ended {ended.left_behind} processes that Gym had left behind")
        if ended.interrupted:
            leave(Exit.INTERRUPTED)
        if ended.exit_code:
            complain(f"that command of NeMo Gym ended with exit code {ended.exit_code}")
            failed = True
    leave(Exit.FINDINGS if failed else Exit.OK)


def _value(text: str) -> str:
    """A text as a value in Hydra's grammar."""
    plain = all(char.isalnum() or char in "/._-:" for char in text)
    return text if plain else "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
