# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Settings of the sandbox over a NeMo Gym provider, as they stand in the sandbox block of a config. Reads nothing."""

from __future__ import annotations

from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from nemo_polar.sandboxes.options import HostOptions

_OURS = {
    "image": "give the option 'image'",
    "workdir": "it is always /workspace",
    "files": "give the task's own 'files'",
    "ports": "nothing inside is ever called",
}
"""Fields of Gym's request that are set otherwise, and how."""


class GymOptions(HostOptions):
    """What the gym sandbox takes. A task's sandbox block goes over it, key by key."""

    provider: str = Field(min_length=1)
    """A provider's name in Gym's registry."""
    provider_config: dict[str, Any] = {}
    """Its own settings, as in the provider's block of a Gym config."""
    image: str | None = None
    spec: dict[str, Any] = {}
    """More fields of Gym's ``SandboxSpec``: resources, ttl_s, ready_timeout_s, env, metadata, entrypoint, provider_options."""
    toolchain: Literal["image", "upload", "none"] = "image"
    """Where /opt/polar comes from: it is in the image, it is uploaded into each sandbox (which must then run as root), or the
    harness needs none. Of no consequence where the provider runs on this host's own files, as Gym's ``local`` does."""
    proxy_url: str | None = None
    """Where the sandbox reaches the proxy, if it is not on this host's network; ``{port}`` stands for the proxy's port."""
    forward_to: str | None = None
    """This host's address as the sandbox sees it: the provider then forwards a loopback port inside to the proxy's there."""
    network_off: Literal["enforced", "declared"] = "enforced"
    """Commands of the verifier run without a network. ``enforced``: with ``unshare`` inside, unless the provider's sandbox has
    none anyway; where that is not possible it does not start. ``declared``: they run as the provider's sandbox is, and you
    answer for what they can reach."""
    keep_env: tuple[str, ...] = ()
    """Variables of the provider's sandbox that commands see; PATH and those of ``spec.env`` always are among them."""
    start_seconds: float = Field(default=600, gt=0)
    """For the provider to make a sandbox."""
    transfer_seconds: float = Field(default=300, gt=0)
    """For one upload or download, and for each of our own commands around it."""

    @field_validator("spec")
    @classmethod
    def _not_ours(cls, spec: dict[str, Any]) -> dict[str, Any]:
        for name, how in _OURS.items():
            if name in spec:
                raise ValueError(f"{name!r} is not set here: {how}")
        return spec

    @field_validator("keep_env")
    @classmethod
    def _names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if not name.isidentifier() or not name.isascii():
                raise ValueError(f"{name!r} is no name of a variable")
        return names

    @field_validator("proxy_url")
    @classmethod
    def _url(cls, url: str | None) -> str | None:
        if url is not None:
            parts = urlsplit(url.replace("{port}", "80"))
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError(f"{url!r} is no http URL")
        return url
