# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""How a running proxy is found by its folder: ``logs/proxy.json`` names its addresses and the file with its control secret.

Both are there while it runs. The secret is in a file of its own, which only its owner can read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_polar.capture.proxy import CaptureProxy
from nemo_polar.errors import ConfigError
from nemo_polar.rollout.folder import RunFolder, read_json, write_json

NAME = "proxy.json"
SECRET = "control.secret"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a proxy's control listener is, and what opens it."""

    url: str
    secret: str


def facts_of(proxy: CaptureProxy, folder: RunFolder, secret_file: Path | None) -> dict[str, Any]:
    """What may be told of a running proxy."""
    facts = {
        "url": proxy.url,
        "socket": None if proxy.socket is None else str(proxy.socket),
        "control_url": proxy.control_url,
        "control_secret_file": None if secret_file is None else str(secret_file),
        "model": proxy.info.model,
        "max_context": proxy.info.max_context,
        "journal": str(folder.journal),
    }
    return {key: value for key, value in facts.items() if value is not None}


@contextmanager
def announced(proxy: CaptureProxy, folder: RunFolder, secret_file: Path | None) -> Iterator[None]:
    """Have the proxy found by its folder, in this block. Without a ``secret_file`` its secret is written nowhere.

    Raises:
        ConfigError: the secret cannot be written.
    """
    place = folder.logs / NAME
    if secret_file is not None:
        _write_secret(secret_file, proxy.control_secret)
    try:
        write_json(place, facts_of(proxy, folder, secret_file and secret_file.absolute()))
        yield
    finally:
        place.unlink(missing_ok=True)
        if secret_file is not None:
            secret_file.unlink(missing_ok=True)


def find(path: Path, secret_file: Path | None = None) -> Address:
    """The proxy that runs in the folder ``path``; its secret is read from ``secret_file`` if one is given.

    Raises:
        ConfigError: none does, it has no control listener, or its secret cannot be read.
    """
    facts = read_json(RunFolder(path).logs / NAME)
    if facts is None:
        raise ConfigError(
            f"no proxy that can be watched runs in {path}: give the folder of a running `polar proxy` (its --out), or of a "
            "`polar rollout` started with capture.control_port=PORT, or --control URL"
        )
    url, secret_file = facts.get("control_url"), secret_file or facts.get("control_secret_file")
    if url is None:
        raise ConfigError(f"the proxy in {path} has no control listener (capture.control=false)")
    if secret_file is None:
        raise ConfigError(f"the proxy in {path} wrote its control secret to no file: give it with --secret-file")
    return Address(url, read_secret(Path(secret_file)))


def read_secret(path: Path) -> str:
    """A control secret from its file.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"the control secret cannot be read from {path}: {exc}") from exc


def _write_secret(path: Path, secret: str) -> None:
    """A file that only its owner can read, from the moment it exists."""
    try:
        path.unlink(missing_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(secret + "\n")
    except OSError as exc:
        raise ConfigError(f"the control secret cannot be written to {path}: {exc.strerror}") from exc
