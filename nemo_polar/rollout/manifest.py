# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The manifest of a run: under what it was made. Keys and passwords are left out."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from nemo_polar.capture.proxy import CaptureProxy
from nemo_polar.rollout.tasks import LoadedTask
from nemo_polar.settings import ProxySettings, RunSettings
from nemo_polar.trajectory.store import Manifest

_PACKAGES = ("nemo_polar", "renderers", "tokenizers", "aiohttp", "numpy", "pydantic")
_SECRET = ("api_key", "secret", "password", "token")


def manifest_of(
    settings: RunSettings | ProxySettings, proxy: CaptureProxy, created_at: float, tasks: Iterable[LoadedTask] = ()
) -> Manifest:
    """``created_at``: Unix seconds."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return Manifest(
        created_at=created_at,
        model=proxy.info.model,
        codec=proxy.codec.name,
        codec_fingerprint=proxy.codec.fingerprint.hex(),
        thinking_retention=settings.policy.codec.thinking_retention,
        sampling=settings.capture.sampling,
        traces=settings.traces,
        versions=versions,
        tasks=task_hashes(tasks),
        settings=plain_settings(settings),
    )


def plain_settings(settings: RunSettings | ProxySettings) -> dict[str, Any]:
    """Settings as the manifest has them."""
    return _without_secrets(settings.model_dump(mode="json"))


def task_hashes(tasks: Iterable[LoadedTask]) -> dict[str, str]:
    """Task id to a hash of all that a rollout of the task depends on: what is written down, and the files it names."""
    return {loaded.task.id: _task_hash(loaded) for loaded in tasks}


def _task_hash(loaded: LoadedTask) -> str:
    written = loaded.task.model_dump(mode="json", exclude={"metadata"})
    found = hashlib.sha256(json.dumps(written, sort_keys=True).encode())
    for source in sorted(set(_sources(written))):
        path = loaded.folder / source
        if path.is_file():  # a verifier may mean something else by it
            found.update(f"\0{source}\0{path.stat().st_size}\0".encode())
            found.update(path.read_bytes())
    return found.hexdigest()


def _sources(value: Any) -> Iterator[str]:
    """Every ``source`` in nested data."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key == "source" and isinstance(inner, str):
                yield inner
            else:
                yield from _sources(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _sources(inner)


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: "***" if k in _SECRET and v is not None else _without_secrets(v) for k, v in value.items()}
    return [_without_secrets(v) for v in value] if isinstance(value, list) else value
