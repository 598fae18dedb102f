# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""``polar top``: a live proxy in the terminal. What is known of it comes from ``watch.py``."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from nemo_polar.cli.console import print_json
from nemo_polar.cli.watch import Look, Unreachable, Watcher, frame
from nemo_polar.errors import ConfigError
from nemo_polar.rollout.address import Address, find, read_secret

_PLAIN_WIDTH = 160
_SHOWN = 60
"""Characters of a name or an error that somebody else chose."""


def main(
    folder: Path,
    *,
    control: str | None,
    secret_file: Path | None,
    interval: float,
    sessions: int,
    once: bool,
    as_json: bool,
) -> None:
    """See ``polar top --help``."""

    def locate() -> Address:
        return _locate(folder, control, secret_file)

    if not (once or as_json) and sys.stdout.isatty():
        _live(locate, interval, sessions)
        return
    watcher = Watcher(locate())
    try:
        before = watcher.look(0)
        time.sleep(interval)
        shown = frame(before, watcher.look(sessions))
    finally:
        watcher.close()
    if as_json:
        print_json({"url": watcher.url, **shown})
    else:
        Console(width=_PLAIN_WIDTH, color_system=None).print(drawn(watcher.url, shown))


def _locate(folder: Path, control: str | None, secret_file: Path | None) -> Address:
    if control is None:
        return find(folder, secret_file)
    if secret_file is None:
        raise ConfigError("--control needs --secret-file, the file that `polar proxy` names as control_secret_file")
    return Address(control, read_secret(secret_file))


# --- on a terminal ----------------------------------------------------------------------------------------------------


def _live(locate: Callable[[], Address], interval: float, sessions: int) -> None:
    """Until q or Ctrl-C. A proxy that goes away is waited for, one that was started anew is found again."""
    watcher = Watcher(locate())
    try:
        before, look = None, watcher.look(sessions)
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # the terminal is to be left as it was
        with _keys() as wait, Live(screen=True, auto_refresh=False) as live:
            lost: str | None = None
            while True:
                live.update(_screen(watcher.url, before, look, lost), refresh=True)
                if wait(interval):
                    return
                try:
                    latest = watcher.look(sessions)
                except (Unreachable, ConfigError) as exc:
                    lost = str(exc)
                    watcher = _again(watcher, locate)
                    continue
                before, look, lost = None if lost else look, latest, None
    except KeyboardInterrupt:
        return
    finally:
        watcher.close()


def _again(watcher: Watcher, locate: Callable[[], Address]) -> Watcher:
    """A watcher of where the proxy is now; the same one while it is nowhere."""
    try:
        found = Watcher(locate())
    except ConfigError:
        return watcher
    watcher.close()
    return found


def _screen(url: str, before: Look | None, look: Look, lost: str | None) -> RenderableType:
    parts: list[RenderableType] = [drawn(url, frame(before, look)), Text("\nq: quit", "dim")]
    if lost is not None:
        parts.insert(0, Text(f"{_plain(lost, 200)}; trying again. What follows is of before.", "bold red"))
    return Group(*parts)


@contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """A function that waits so many seconds, and returns True at once when q is pressed."""
    if not sys.stdin.isatty():
        yield _sleep
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    tty.setcbreak(fd)
    try:
        yield lambda seconds: _pressed(fd, seconds)
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def _pressed(fd: int, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if not select.select([fd], [], [], left)[0]:
            return False
        typed = os.read(fd, 64)
        if not typed or b"q" in typed.lower():  # nothing: the terminal has gone
            return True
    return False


# --- what it looks like -----------------------------------------------------------------------------------------------


def drawn(url: str, shown: Mapping[str, Any]) -> RenderableType:
    """One frame."""
    parts: list[RenderableType] = [_head(url, shown), _work(shown), Text(), _times(shown["seconds"])]
    for title in ("refused", "engine_failures"):
        if shown[title]:
            counts = ", ".join(f"{_plain(key)} {count:,}" for key, count in sorted(shown[title].items()))
            parts.append(Text(f"{title.replace('_', ' ')}: {counts}", "yellow"))
    if shown["replicas"]:
        parts += [Text(), _replicas(shown["replicas"])]
    if shown["busiest"]:
        parts += [Text(), _sessions(shown["busiest"])]
    return Group(*parts)


def _head(url: str, shown: Mapping[str, Any]) -> Text:
    if not shown["ok"]:
        state, style = _plain(f"cannot serve: {shown['problem']}", 200), "bold red"
    else:
        state, style = ("paused", "bold yellow") if shown["paused"] else ("healthy", "bold green")
    served = f"   {_plain(shown['model'])}" if shown["model"] else ""
    line = Text.assemble(("polar top", "bold"), f"   {url}{served}   weights {shown['weights_version']}   ")
    return line.append(f"up {_span(shown['up_seconds'])}   ").append(state, style)


def _work(shown: Mapping[str, Any]) -> Text:
    rate, journal = shown["per_second"], shown["journal"]
    text = Text(
        f"calls {_number(rate['calls'])}/s   replies {_number(rate['replies'])}/s   failed {_number(rate['failed'])}/s   "
        f"tokens {_number(rate['sampled_tokens'])}/s sampled, {_number(rate['prompt_tokens'])}/s prompt\n"
        f"in flight {shown['in_flight']:,}   streams {shown['streams']:,}   connections {shown['connections']:,}   "
        f"sessions {shown['sessions']:,}   memory {shown['memory_bytes'] / 2**20:,.0f} MiB   "
        f"CPU {_number(None if rate['cpu'] is None else rate['cpu'] * 100)}%\n"
    )
    style = "" if journal["healthy"] else "bold red"
    state = "" if journal["healthy"] else ", cannot be written"
    return text.append(f"journal: {journal['queued']:,} rows queued, {journal['errors']:,} errors{state}", style)


def _times(seconds: Mapping[str, Mapping[str, float | None]]) -> Table:
    table = _table("", *(name.replace("_", " ") for name in seconds))
    for key in ("p50", "p99"):
        table.add_row(key, *(_span(found[key]) for found in seconds.values()))
    return table


def _replicas(replicas: Sequence[Mapping[str, Any]]) -> Table:
    table = _table("replica", "up", "in flight", "sessions", "weights", "last error")
    for replica in replicas:
        up = Text("yes", "green") if replica["healthy"] else Text("no", "bold red")
        weights = "-" if replica["weights_version"] is None else str(replica["weights_version"])
        counts = (f"{replica['in_flight']:,}", f"{replica['sessions']:,}", weights)
        table.add_row(Text(_plain(replica["url"])), up, *counts, Text(_plain(replica["last_error"] or "")))
    return table


def _sessions(sessions: Sequence[Mapping[str, Any]]) -> Table:
    table = _table("rollout", "turns", "in flight", "idle", "tokens", "last error")
    for session in sessions:
        idle = "-" if session["in_flight"] else _span(session["idle_seconds"])
        counts = (f"{session['turns']:,}", f"{session['in_flight']:,}", idle)
        tokens = f"{session['counters'].get('sampled_tokens', 0):,}"
        problem = session["infra_error"] or (session["budget_exhausted"] and f"budget of {session['budget_exhausted']} spent")
        table.add_row(Text(_plain(session["rollout_id"])), *counts, tokens, Text(_plain(problem or "")))
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="left" if name == "last error" else "right", no_wrap=True)
    return table


def _plain(text: str, most: int = _SHOWN) -> str:
    """Text from elsewhere, that cannot steer the terminal. (It is put into ``Text``, so it is never taken for markup.)"""
    printable = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return printable if len(printable) <= most else printable[: most - 1] + "…"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _span(seconds: float | None) -> str:
    """A time for people."""
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = int(seconds // 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02} min"
