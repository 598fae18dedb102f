# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The manifest of a run: under what it was made. Keys and passwords are left out."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from nemo_polar.capture.proxy import CaptureProxy
from nemo_polar.settings import ProxySettings, RunSettings
from nemo_polar.trajectory.store import Manifest

_PACKAGES = ("nemo_polar", "renderers", "tokenizers", "aiohttp", "numpy", "pydantic")
_SECRET = ("api_key", "secret", "password", "token")


def manifest_of(settings: RunSettings | ProxySettings, proxy: CaptureProxy, created_at: float) -> Manifest:
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
        settings=_without_secrets(settings.model_dump(mode="json")),
    )


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: "***" if k in _SECRET and v is not None else _without_secrets(v) for k, v in value.items()}
    return [_without_secrets(v) for v in value] if isinstance(value, list) else value
