# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""``polar bench``: the way to ``benchmarks/``, which lies beside the package in a clone and is not in the wheel."""

from __future__ import annotations

import sys
from pathlib import Path

from nemo_polar.cli.boundary import Exit, leave
from nemo_polar.errors import ConfigError
from nemo_polar.rollout.compose import PACKAGE


def proxy(
    out: Path,
    *,
    quick: bool,
    only: str,
    proxies: str,
    rounds: int | None,
    tokenizer: Path | None,
    profile: bool,
    as_json: bool,
) -> None:
    """See ``polar bench proxy --help``."""
    _find_benchmarks()
    from benchmarks.main import bench_proxy, profile_proxy

    if profile:
        print(profile_proxy(out, only=only, tokenizer=tokenizer))
        return
    names = [name.strip() for name in proxies.split(",") if name.strip()]
    met = bench_proxy(out, quick=quick, only=only, proxies=names, rounds=rounds, tokenizer=tokenizer, as_json=as_json)
    leave(Exit.OK if met else Exit.FINDINGS)


def sessions(out: Path, *, count: int, turns: int, arrive_seconds: float, tokenizer: Path | None, as_json: bool) -> None:
    """See ``polar bench sessions --help``."""
    _find_benchmarks()
    from benchmarks.main import bench_sessions
    from benchmarks.sessions import Load

    load = Load(sessions=count, turns=turns, arrive_seconds=arrive_seconds)
    leave(Exit.OK if bench_sessions(out, load, tokenizer=tokenizer, as_json=as_json) else Exit.FINDINGS)


def _find_benchmarks() -> None:
    clone = PACKAGE.parent
    if not (clone / "benchmarks" / "__init__.py").is_file():
        raise ConfigError(
            "the benchmarks are not in the wheel: clone the repository and run `polar bench` from its environment"
        )
    if str(clone) not in sys.path:
        sys.path.insert(0, str(clone))
