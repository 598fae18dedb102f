# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Where the plugin tree lies that NeMo Gym reads, and which servers are in it. Reads folder names only; imports no Gym."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from nemo_polar.errors import ConfigError

ENVIRONMENT = "polar"
SERVER_TYPES = ("responses_api_agents", "resources_servers", "responses_api_models", "environment_servers")
"""Folders of a Gym tree whose folders are servers, each with an environment of its own."""
ENVIRONMENTS = "environments"


def plugin_root() -> Path:
    """The folder to name as a search root of Gym.

    Raises:
        ConfigError: it is not there.
    """
    root = Path(__file__).resolve().parent / "plugin"
    if not (root / ENVIRONMENTS / ENVIRONMENT / "config.yaml").is_file():
        raise ConfigError(f"{root}: NeMo Gym's plugin tree is not there; install nemo_polar again")
    return root


def servers(root: Path) -> Iterator[tuple[str, str]]:
    """Type and name of every server in a Gym tree: folders that say what they need, as Gym itself tells them."""
    for kind in SERVER_TYPES:
        for folder in sorted((root / kind).glob("*")):
            if any((folder / name).is_file() for name in ("requirements.txt", "pyproject.toml")):
                yield kind, folder.name
