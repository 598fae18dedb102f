# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What an environment has of NeMo Gym. Its text is also run by other Pythons, which need not have nemo_polar, nor be new:
it uses the standard library only, and imports nothing that it looks for."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import platform
import sys
import sysconfig
from pathlib import Path


def look() -> dict:
    """The environment of this interpreter, as plain data for ``installed.find_gym``."""
    try:
        version = importlib.metadata.version("nemo-gym")
    except importlib.metadata.PackageNotFoundError:
        version = None
    spec = importlib.util.find_spec("nemo_gym")
    origin = spec.origin if spec is not None else None
    return {
        "python": platform.python_version(),
        "python_info": list(sys.version_info[:3]),
        "prefix": sys.prefix,
        "is_venv": sys.prefix != sys.base_prefix,
        "scripts": sysconfig.get_path("scripts"),
        "version": version if origin is not None else None,
        "site": str(Path(origin).absolute().parent.parent) if origin is not None else None,
        "polar": importlib.util.find_spec("nemo_polar") is not None,
        "pytest": importlib.util.find_spec("pytest") is not None,
    }


if __name__ == "__main__":
    print(json.dumps(look()))
