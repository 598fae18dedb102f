# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""``polar bench proxy``: run a plan, show it, write it down."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import hotspots, report, sessions
from benchmarks.hotspots import Sampler
from benchmarks.plan import NEW_BYTES, make_plan
from benchmarks.run import Bench, Measurements
from benchmarks.sessions import Load
from benchmarks.texts import encoding_ms
from nemo_polar.cli.boundary import run_async
from nemo_polar.cli.console import LOG_SECONDS, stderr, stdout
from nemo_polar.errors import ConfigError
from nemo_polar.rollout.compose import home

PROFILE_SECONDS = 10.0
QUICK = ("passthrough", "polar")
FULL = ("passthrough", "polar", "rllm-model-gateway", "agentlightning")


def bench_proxy(
    out: Path, *, quick: bool, only: str, proxies: Sequence[str], rounds: int | None, tokenizer: Path | None, as_json: bool
) -> bool:
    """Run it; true when no target that was measured is missed.

    Raises:
        ConfigError: a name or folder is wrong, or ``only`` matches nothing.
        PolarError: the engine, the pass-through or our own proxy failed.
    """
    plan = make_plan(quick=quick, rounds=rounds).only(only)
    names = list(proxies or (QUICK if quick else FULL))
    # Latency and CPU are told relative to these two.
    first = ("direct", "passthrough") if "passthrough" not in names else ("direct",)
    names = [*first, *(name for name in dict.fromkeys(names) if name not in first)]
    model, folder = _tokenizer(tokenizer), out / "work"
    with _Progress() as progress:
        bench = Bench(plan, names, tokenizer=model, out=folder, progress=progress)
        _fresh(folder)
        machine, began = _machine(model), time.monotonic()
        progress.begin(bench.steps())
        found = run_async(bench.run())
    shutil.rmtree(folder)  # the journals, of no use to anyone; after a failure they stay, with the logs
    doc = report.document(found, {**machine, "seconds": round(time.monotonic() - began)})
    _write(out, doc, found)
    if as_json:
        print(orjson.dumps(doc, option=orjson.OPT_INDENT_2).decode())
    else:
        _show(out, doc)
    return all(target["met"] is not False for target in doc["targets"])


def profile_proxy(out: Path, *, only: str, tokenizer: Path | None) -> str:
    """Load our proxy with one window and see where its time goes; the page, which is also in ``profile.md``.

    Raises:
        ConfigError: no py-spy, or ``only`` matches nothing.
        PolarError: the engine or the proxy failed.
    """
    plan = make_plan(quick=False).only(only or "128 KB, 32 at a time, whole")
    if not plan.windows:
        raise ConfigError("--profile: --only must name a window")
    window = plan.windows[0]
    folder = out / "work"
    sampler = Sampler(out / "profile.stacks")
    with _Progress() as progress:
        bench = Bench(plan, ["polar"], tokenizer=_tokenizer(tokenizer), out=folder, progress=progress)
        _fresh(folder)
        progress.begin(2)
        calls, cpu_ms = run_async(bench.hold(window, PROFILE_SECONDS, sampler.watch))
    page = hotspots.page(window.title, cpu_ms, calls, *hotspots.shares(sampler.stacks()))
    (out / "profile.md").write_text(page, encoding="utf-8")
    return page


def bench_sessions(out: Path, load: Load, *, tokenizer: Path | None, as_json: bool) -> bool:
    """Many sessions on one proxy; true when there was no error and no drift. ``sessions.json`` and a plot go to ``out``.

    Raises:
        ConfigError: there is no tokenizer, or the folder cannot be made.
        EngineUnavailable: a process did not start.
    """
    model, work = _tokenizer(tokenizer), out / "work"
    _fresh(work)
    with _Progress() as progress:
        total = load.sessions * load.turns
        progress.begin(total)
        found = run_async(sessions.run(load, model, work, lambda done, of: progress.at(done, f"calls of {of:,}")))
    shutil.rmtree(work)
    (out / "sessions.json").write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2))
    if importlib.util.find_spec("matplotlib") is not None:
        sessions.draw(found, out / "sessions.png")
    shown = {key: value for key, value in found.items() if key != "curve"}
    if as_json:
        print(orjson.dumps(shown, option=orjson.OPT_INDENT_2).decode())
    else:
        print("\n".join(f"{key.replace('_', ' ') + ':':20}{value}" for key, value in shown.items()))
    return found["calls"] == total and not (found["errors"] or found["drift_tokens"] or found["findings"])


def _tokenizer(given: Path | None) -> Path:
    """The model folder to take.

    Raises:
        ConfigError: it has no tokenizer.
    """
    folder = given or home() / "test-models" / "qwen3"
    if not (folder / "tokenizer.json").is_file():
        raise ConfigError(
            f"{folder} has no tokenizer.json; `make test` fetches Qwen3's into .polar/test-models, "
            "or give a Qwen3 model's folder with --tokenizer"
        )
    return folder


def _fresh(folder: Path) -> None:
    """Make an empty folder; what an earlier benchmark left there goes."""
    if folder.exists():
        if any(folder.iterdir()) and not (folder / "replies.json").exists():
            raise ConfigError(f"{folder} exists and is not of a benchmark; give another --out")
        shutil.rmtree(folder)
    folder.mkdir(parents=True)


def _machine(model: Path) -> dict[str, Any]:
    """What a reader has to know to place the figures; taken before the run."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
    stack = ", ".join(f"{name} {version(name)}" for name in ("nemo_polar", "aiohttp", "uvloop", "orjson", "renderers"))
    return {
        "date": time.strftime("%Y-%m-%d %H:%M", time.gmtime()) + " UTC",
        "cpu": f"{cpu}, {len(os.sched_getaffinity(0))} cores, shared by proxy, engine and client",
        "load before": f"{os.getloadavg()[0]:.1f} over the last minute",
        "python": platform.python_version(),
        "packages": stack,
        "tokenizing the new text of a call, alone": f"{encoding_ms(model / 'tokenizer.json', NEW_BYTES):.2f} ms",
    }


def _write(out: Path, doc: dict[str, Any], found: Measurements) -> None:
    (out / "proxy.json").write_bytes(orjson.dumps(doc, option=orjson.OPT_INDENT_2))
    (out / "proxy.md").write_text(report.markdown(doc), encoding="utf-8")
    if importlib.util.find_spec("matplotlib"):
        from benchmarks.plots import draw

        draw(doc["rows"], out)


def _show(out: Path, doc: dict[str, Any]) -> None:
    console = stdout()
    rows = [row for row in doc["rows"] if row["proxy"] != "direct"]
    for header, cells in (report.table(rows), report.target_table(doc["targets"])):
        # Plain columns: a table of rich's would be squeezed into 80 characters where there is no terminal.
        widths = [max(len(line[at]) for line in (header, *cells)) for at in range(len(header))]
        for line in (header, *cells):
            text = "  ".join(c.ljust(w) if at == 0 else c.rjust(w) for at, (c, w) in enumerate(zip(line, widths, strict=True)))
            style = {"met": "green", "MISSED": "red"}.get(line[-1], "bold" if line is header else "")
            console.print(text, style=style, markup=False, highlight=False, no_wrap=True, crop=False, overflow="ignore")
        console.print()
    for name, reason in {**doc["no_stream"], **doc["unavailable"]}.items():
        console.print(f"{name}: {reason}", markup=False, highlight=False)
    console.print(str(out / "proxy.json"), markup=False, highlight=False)


class _Progress:
    """A bar on a terminal, a line now and then elsewhere. Drawn between windows only, as it would disturb them."""

    def __init__(self) -> None:
        self._console = stderr()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, console=self._console, auto_refresh=False, transient=True)
        self._task = self._bar.add_task("starting", total=None)
        self._said_at = 0.0

    def __enter__(self) -> _Progress:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def begin(self, steps: int) -> None:
        self._bar.update(self._task, total=steps)

    def at(self, done: int, what: str) -> None:
        """So much is done."""
        if self._console.is_terminal:
            self._bar.update(self._task, description=what, completed=done, refresh=True)
        elif time.monotonic() - self._said_at > LOG_SECONDS:
            self._said_at = time.monotonic()
            self._console.print(f"{done:,} {what}", markup=False, highlight=False)

    def step(self, what: str) -> None:
        if self._console.is_terminal:
            self._bar.update(self._task, description=what, advance=1, refresh=True)
        elif time.monotonic() - self._said_at > LOG_SECONDS:
            self._said_at = time.monotonic()
            self._bar.update(self._task, advance=1)
            self._console.print(what, markup=False, highlight=False)
