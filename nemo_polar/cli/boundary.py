# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Where errors become a sentence and an exit code. ``POLAR_DEBUG=1`` shows the traceback as well."""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import sys
import traceback
from collections.abc import Callable, Coroutine
from enum import IntEnum
from typing import Any, ParamSpec, TypeVar

import typer

from nemo_polar.errors import ConfigError, PolarError

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Exit(IntEnum):
    """What the exit code of ``polar`` means."""

    OK = 0
    FINDINGS = 1
    USAGE = 2
    INFRA = 3
    INTERRUPTED = 130


EXIT_CODES = (
    "Exit codes: 0 all is well; 1 findings, or rollouts that failed; 2 wrong usage, settings or task file; "
    "3 the engine, a sandbox or the disk failed; 130 interrupted."
)


def guarded(command: Callable[_P, None]) -> Callable[_P, None]:
    """Turn our errors, and an interruption, into one sentence on stderr and an exit code."""

    @functools.wraps(command)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except PolarError as exc:
            complain(str(exc))
            raise typer.Exit(Exit.USAGE if isinstance(exc, ConfigError) else Exit.INFRA) from exc
        except BrokenPipeError as exc:  # the reader of our output has gone; Python would complain once more at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(Exit.INFRA) from exc
        except OSError as exc:
            complain(f"{exc.filename}: {exc.strerror}" if exc.filename else str(exc))
            raise typer.Exit(Exit.INFRA) from exc
        except (KeyboardInterrupt, asyncio.CancelledError) as exc:
            complain("interrupted")
            raise typer.Exit(Exit.INTERRUPTED) from exc

    return run


def complain(text: str) -> None:
    """One sentence on stderr; under POLAR_DEBUG, the traceback of the error being handled before it."""
    if os.environ.get("POLAR_DEBUG") and sys.exc_info()[0] is not None:
        traceback.print_exc()
    print(f"polar: {text}", file=sys.stderr)


def leave(code: Exit) -> None:
    """End the command with ``code``."""
    if code is not Exit.OK:
        raise typer.Exit(code)


def run_async(main: Coroutine[Any, Any, _T]) -> _T:
    """Run a command's coroutine to its end, on uvloop where there is one."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(main)


def settle_heap() -> None:
    """Tell the garbage collector that what is loaded by now stays, and to look at the rest less often.

    A process that serves makes few cycles and many short-lived objects; by default each few hundred of them cost a look.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # not on Windows
        return None
    return uvloop.new_event_loop
