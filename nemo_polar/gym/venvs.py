# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The folder that spares NeMo Gym its virtual environments, and the links by which Gym 0.4.0 finds Polar.

Gym gives every server an environment of its own, ``<uv_venv_dir>/<type>/<name>/.venv``, and with ``skip_venv_if_present`` takes
one that is there. Here those are links to the environment that Gym itself runs in, for servers that need nothing which is not
in it: ours, and those of Gym's own that ask for nothing but nemo-gym. Others are left to Gym. Nothing is installed here.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from nemo_polar.errors import ConfigError
from nemo_polar.gym.installed import Gym
from nemo_polar.gym.plugin_root import ENVIRONMENT, ENVIRONMENTS, servers
from nemo_polar.rollout.compose import home

ENVIRONMENT_SERVERS = "environment_servers"
MODEL_SERVERS = "responses_api_models"


@dataclass(frozen=True, slots=True)
class Linked:
    """What ``link_venvs`` did."""

    folder: Path
    """For Gym's ``uv_venv_dir``."""
    left_to_gym: tuple[str, ...]
    """Servers, as ``type/name``, that need more than is here: Gym builds their environments, with uv."""


def state_folder(gym: Gym) -> Path:
    """Where what is made for one Gym environment lies, below Polar's home."""
    which = hashlib.sha256(str(gym.prefix).encode()).hexdigest()[:8]
    return home() / "gym" / f"{gym.version}-{which}"


def link_venvs(gym: Gym, root: Path, model_types: Iterable[str] = ()) -> Linked:
    """Make the folder, or bring it up to date.

    Args:
        root: the plugin tree. model_types: Gym's model servers that will be used.

    Raises:
        ConfigError: there is no such model server, or something that is no link is in the way.
    """
    folder = state_folder(gym) / "venvs"
    wanted = list(servers(root))
    left = []
    builtin = [(kind, name) for kind, name in servers(gym.site) if kind == ENVIRONMENT_SERVERS]
    for name in model_types:
        if not (gym.site / MODEL_SERVERS / name).is_dir() and (MODEL_SERVERS, name) not in wanted:
            known = ", ".join(sorted(n for kind, n in servers(gym.site) if kind == MODEL_SERVERS))
            raise ConfigError(f"--model-type {name}: NeMo Gym {gym.version} has {known}")
        builtin.append((MODEL_SERVERS, name))
    for kind, name in builtin:
        if (kind, name) in wanted:
            continue
        if needs_only_gym(gym.site / kind / name):
            wanted.append((kind, name))
        elif kind == MODEL_SERVERS:
            left.append(f"{kind}/{name}")
    for kind, name in wanted:
        _environment(folder / kind / name, gym)
    return Linked(folder, tuple(left))


def needs_only_gym(server: Path) -> bool:
    """Whether a server of Gym's own runs in the environment that Gym is installed in."""
    requirements, project = server / "requirements.txt", server / "pyproject.toml"
    if requirements.is_file():
        lines = [line.partition("#")[0].strip() for line in requirements.read_text(encoding="utf-8").splitlines()]
        return all(_is_gym(line.removeprefix("-e ")) for line in lines if line)
    if project.is_file():
        about = tomllib.loads(project.read_text(encoding="utf-8")).get("project", {})
        return "dependencies" not in about.get("dynamic", ()) and all(map(_is_gym, about.get("dependencies", ())))
    return False


def work_folder(gym: Gym, root: Path, beside: Path) -> Path:
    """A folder to start a Gym in that has no search roots: the plugin tree by links, and ``env.yaml`` of ``beside`` if there.

    Gym looks for servers in its working folder, and leaves ``outputs`` and ``cache`` there, which do not belong into a package.
    """
    folder = state_folder(gym) / "work"
    for kind, name in [*servers(root), (ENVIRONMENTS, ENVIRONMENT)]:
        _link(folder / kind / name, root / kind / name)
    settings = folder / "env.yaml"
    if (beside / "env.yaml").is_file():
        _link(settings, (beside / "env.yaml").resolve())
    elif settings.is_symlink():
        settings.unlink()
    return folder


def is_linked(gym: Gym, root: Path) -> bool:
    """Whether Polar's tree lies among Gym's own, so that it is found from anywhere."""
    return all((gym.site / kind / name).is_dir() for kind, name in [*servers(root), (ENVIRONMENTS, ENVIRONMENT)])


def link_into_gym(gym: Gym, root: Path) -> list[Path]:
    """Put links to the plugin tree among Gym's own trees.

    Returns:
        The links.

    Raises:
        ConfigError: something of that name is there that is no link.
    """
    links = []
    for kind, name in [*servers(root), (ENVIRONMENTS, ENVIRONMENT)]:
        links.append(gym.site / kind / name)
        _link(links[-1], root / kind / name)
    return links


def unlink_from_gym(gym: Gym, root: Path) -> list[Path]:
    """Take those links away; what is no link to a Polar tree stays.

    Returns:
        The links that were there.
    """
    gone = []
    for kind, name in [*servers(root), (ENVIRONMENTS, ENVIRONMENT)]:
        link = gym.site / kind / name
        if link.is_symlink() and str(link.readlink()).endswith(f"nemo_polar/gym/plugin/{kind}/{name}"):
            link.unlink()
            gone.append(link)
    return gone


def _environment(server: Path, gym: Gym) -> None:
    """``<server>/.venv``, as Gym wants it: with ``bin/python`` and ``bin/activate``."""
    venv = server / ".venv"
    if gym.is_venv and (gym.prefix / "bin" / "activate").is_file():
        _link(venv, gym.prefix)
        return
    # No activate of its own that does the right thing (conda's activates another environment): one is written for it.
    if venv.is_symlink():
        venv.unlink()
    _link(venv / "bin" / "python", gym.python)
    path = shlex.quote(f"{venv / 'bin'}{os.pathsep}{gym.scripts}")
    (venv / "bin" / "activate").write_text(f'export PATH={path}:"$PATH"\nunset PYTHONHOME\n', encoding="utf-8")


def _link(link: Path, target: Path) -> None:
    """Make ``link`` point at ``target``; another process that does the same at the same time does no harm."""
    if link.is_symlink() and link.readlink() == target:
        return
    if link.exists() and not link.is_symlink():
        raise ConfigError(f"{link} is in the way: it is no link; move it away")
    try:
        link.parent.mkdir(parents=True, exist_ok=True)
        draft = link.with_name(f".{link.name}.{os.getpid()}")
        draft.unlink(missing_ok=True)
        draft.symlink_to(target)
        draft.replace(link)
    except OSError as exc:
        raise ConfigError(f"{link} cannot be made: {exc.strerror}") from exc


def _is_gym(requirement: str) -> bool:
    return requirement.startswith("nemo-gym") and requirement.removeprefix("nemo-gym")[:1] in ("", "[", " ", "=", "@")
