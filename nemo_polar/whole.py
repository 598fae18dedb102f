# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Small files that a reader sees whole, or as they were before."""

from __future__ import annotations

import os
from pathlib import Path

from nemo_polar.unique import unique_id


def write_whole(path: Path, data: bytes) -> None:
    """Write a file beside ``path``, sync it and put it in its place. Blocks on the disk.

    Raises:
        OSError: the disk refused it; what was at ``path`` is as it was.
    """
    draft = path.with_name(f"{path.name}.{unique_id(6)}.part")
    try:
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
