# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Settings of the host sandboxes, as they stand in the sandbox block of a config. Reads nothing."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field, ValidationError

from nemo_polar.errors import SandboxError
from nemo_polar.settings import Settings


class HostOptions(Settings):
    """What both host sandboxes take."""

    snapshot_bytes: int = Field(default=1024**3, gt=0)
    """Upper bound on what one snapshot copies."""
    snapshot_files: int = Field(default=200_000, gt=0)
    """Upper bound on its files, folders and links."""


class LocalOptions(HostOptions):
    """What the local sandbox takes."""

    port: int = Field(default=8080, gt=1023, le=65535)
    """Loopback port inside where the proxy is found. Another one, if the task's own programs want this one."""
    processes: int = Field(default=2048, gt=0)
    """Processes and threads in one sandbox: a fork bomb stays its own problem. Root without ``own_uid`` has no such bound."""
    open_files: int = Field(default=65536, gt=0)
    file_bytes: int | None = Field(default=None, gt=0)
    """Largest file that can be written; None: no limit."""
    own_uid: bool = True
    """As root: give every sandbox a host uid of its own. False only where unprivileged user namespaces are forbidden."""


def parse(model: type[HostOptions], options: Mapping[str, object]) -> HostOptions:
    """``options`` as ``model``.

    Raises:
        SandboxError: an option is unknown or out of range.
    """
    try:
        return model.model_validate(dict(options))
    except ValidationError as exc:
        first = exc.errors()[0]
        raise SandboxError(f"sandbox option {'.'.join(map(str, first['loc']))}: {first['msg']}") from exc
