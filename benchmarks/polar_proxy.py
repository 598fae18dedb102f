# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""``polar proxy`` as a user runs it, with the lag sampler in its event loop: ``python -m benchmarks.polar_proxy ARGUMENTS``."""

from __future__ import annotations

import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

import nemo_polar.cli.proxy
from benchmarks import lag
from nemo_polar.cli import app
from nemo_polar.cli.boundary import run_async

_T = TypeVar("_T")


async def _measured(serving: Coroutine[Any, Any, _T]) -> _T:
    lag.install()
    return await serving


def _run(serving: Coroutine[Any, Any, _T]) -> _T:
    return run_async(_measured(serving))


if __name__ == "__main__":
    nemo_polar.cli.proxy.run_async = _run
    sys.exit(app(["proxy", *sys.argv[1:]]))
