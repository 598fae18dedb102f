# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Running as root: every local sandbox gets a host uid of its own.

Without this, root's sandboxes would run as the host's uid 0 behind a user namespace: read-only mounts would be the only thing
between an agent and root's files, and the kernel exempts uid 0 from the limit on processes. So an outer stage makes a mount
namespace of its own, binds there what the sandbox needs (its paths may lie below folders that only root can enter), drops to
the new uid and starts bubblewrap as any user would. Its mounts end with its processes.
"""

from __future__ import annotations

import os
import shutil
import stat
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nemo_polar.errors import SandboxError
from nemo_polar.sandboxes.files import Owner

_BASE = 0x6000_0000
"""Start of the uids used: above what systems, containers and subuid ranges hand out, below what some tools read as negative."""
_SPAN = 0x0100_0000
GROUP = _BASE
"""Group of all of them; the proxy's socket is opened to it."""
HOST_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where the outer stage's programs are looked for: not in folders that a user's PATH may add."""
_STAGES = ("/media", "/srv", "/mnt", "/opt")

_SCRIPT = """set -eu
stage=$1 uid=$2 gid=$3
shift 3
mount -t tmpfs -o mode=0755,size=1m polar "$stage"
n=0
while [ "$1" != -- ]; do
    if [ -d "$1" ]; then mkdir "$stage/$n"; else : > "$stage/$n"; fi
    mount --bind "$1" "$stage/$n"
    n=$((n + 1))
    shift
done
shift
exec setpriv --reuid "$uid" --regid "$gid" --clear-groups -- "$@"
"""


def owner_for(sandbox_id: str) -> Owner | None:
    """The uid a sandbox is to run under: None when we are not root, or are root of a namespace without uids to spare."""
    if os.geteuid() != 0 or not _has_ids():
        return None
    return Owner(_BASE + 1 + zlib.crc32(sandbox_id.encode()) % _SPAN, GROUP)


def _has_ids() -> bool:
    ranges = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
    return any(int(first) <= _BASE and int(first) + int(count) > _BASE + _SPAN for first, _, count in ranges)


def check_tools() -> None:
    """See that the programs of the outer stage are there.

    Raises:
        SandboxError: one is not.
    """
    for name in ("unshare", "mount", "setpriv"):
        if shutil.which(name, path=HOST_PATH) is None:
            raise SandboxError(f"as root, the local sandbox needs {name}: install util-linux, or give the option own_uid=false")


def open_socket_to_group(path: Path) -> None:
    """Let the sandboxes' group connect to the proxy's socket (connecting needs write permission on it)."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if path.stat().st_gid != GROUP or mode & 0o060 != 0o060:
        os.chown(path, -1, GROUP)
        path.chmod(mode | 0o060)


@dataclass(frozen=True, slots=True)
class Stage:
    """Host paths and where the outer stage shows them; used only as root."""

    folder: str
    owner: Owner
    sources: tuple[Path, ...]

    @classmethod
    def of(cls, owner: Owner, sources: Sequence[Path]) -> Stage:
        """A stage in a folder that every system has and none of ``sources`` lies in; one that lies in another needs no mount.

        Raises:
            SandboxError: there is none.
        """
        for folder in _STAGES:
            if Path(folder).is_dir() and not any(source.is_relative_to(folder) for source in sources):
                tops = [source for source in sources if not any(other in source.parents for other in sources)]
                return cls(folder, owner, tuple(dict.fromkeys(tops)))
        raise SandboxError(f"one of {', '.join(_STAGES)} must exist and hold none of: {', '.join(map(str, sources))}")

    def shown(self, source: Path) -> Path:
        """Where ``source`` is seen by the dropped uid."""
        number, top = next((n, top) for n, top in enumerate(self.sources) if source.is_relative_to(top))
        return Path(self.folder, str(number)) / source.relative_to(top)

    def wrap(self, argv: Sequence[str]) -> list[str]:
        """``argv``, to be run behind this stage."""
        who = [self.folder, str(self.owner.uid), str(self.owner.gid)]
        head = ["unshare", "--mount", "--propagation", "private", "--", "/bin/sh", "-c", _SCRIPT, "polar-stage", *who]
        return [*head, *map(str, self.sources), "--", *argv]
