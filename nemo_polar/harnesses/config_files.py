# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What adapters write into a sandbox: settings as JSON, and skills. Nothing here touches a disk."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from nemo_polar.errors import HarnessError

_SKILL = re.compile(r"[A-Za-z0-9][\w.-]*")


def as_json(value: Any) -> bytes:
    return json.dumps(value, indent=2).encode() + b"\n"


def skill_files(folder: str, skills: Mapping[str, str]) -> dict[str, bytes]:
    """Skills as files: name to the text of its ``SKILL.md``, below ``folder``.

    Raises:
        HarnessError: a name is no name for a folder.
    """
    for name in skills:
        if not _SKILL.fullmatch(name):
            raise HarnessError(f"skills: {name!r} is no name for a folder: letters, digits, '.', '_' and '-'")
    return {f"{folder}/{name}/SKILL.md": text.encode() for name, text in skills.items()}
