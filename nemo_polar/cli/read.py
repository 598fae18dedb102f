# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""``polar inspect`` and ``polar audit``: what reads a run folder. Neither writes into it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from nemo_polar.cli.boundary import Exit, leave, run_async
from nemo_polar.cli.console import number, print_json, stdout
from nemo_polar.engines.base import Engine
from nemo_polar.errors import ConfigError
from nemo_polar.rollout.assemble import make_engine
from nemo_polar.rollout.audited import audit_folder
from nemo_polar.rollout.folder import RunFolder
from nemo_polar.settings import EngineSettings
from nemo_polar.trajectory.audit import AuditReport
from nemo_polar.trajectory.build import BuiltTraces, build_traces
from nemo_polar.trajectory.codec import message_to_dict
from nemo_polar.trajectory.inspect import rollout_tree
from nemo_polar.trajectory.records import JournalReader, SessionRow
from nemo_polar.trajectory.store import Manifest, read_manifest, read_trajectories
from nemo_polar.types import Trajectory, Turn

SHOWN_FINDINGS = 20


def opened(path: Path) -> RunFolder:
    """The run folder at ``path``.

    Raises:
        ConfigError: there is none.
    """
    folder = RunFolder(path)
    if not folder.journal.is_file():
        raise ConfigError(f"{path} is no run folder: it has no {folder.journal.name}")
    return folder


# --- inspect ----------------------------------------------------------------------------------------------------------


def inspect_run(path: Path, rollout_id: str | None, *, attempt: int | None, excerpt: int, as_json: bool) -> None:
    """All rollouts of a run, or one as a tree."""
    folder = opened(path)
    trajectories = {t.rollout_id: t for t in _trajectories(folder)}
    with JournalReader(folder.journal) as journal:
        sessions = journal.sessions()
        if rollout_id is None:
            rows = [
                _row(name, trajectories.get(name)) for name in dict.fromkeys([*trajectories, *(s.rollout_id for s in sessions)])
            ]
            print_json(rows) if as_json else stdout().print(_rollout_table(rows))
            return
        session = _session(sessions, rollout_id, attempt, path)
        turns = journal.turns(session.id)
    trajectory = trajectories.get(rollout_id)
    current = session.attempt == max(s.attempt for s in sessions if s.rollout_id == rollout_id)
    infra = trajectory is None or trajectory.status.infra or not current
    built = build_traces(rollout_id, turns, read_manifest(path).traces, infra=infra)
    if as_json:
        print_json(_as_json(session, turns, built, trajectory if current else None))
        return
    title = f"{rollout_id}  attempt {session.attempt}: {'tried again' if not current else 'no trajectory'}"
    tree = rollout_tree(turns, trajectory=trajectory if current else None, reasons=built.reasons, title=title, excerpt=excerpt)
    stdout().print(tree)


def _trajectories(folder: RunFolder) -> list[Trajectory]:
    return list(read_trajectories(folder.trajectories)) if folder.trajectories.exists() else []


def _session(sessions: Sequence[SessionRow], rollout_id: str, attempt: int | None, path: Path) -> SessionRow:
    mine = [s for s in sessions if s.rollout_id == rollout_id]
    if not mine:
        raise ConfigError(f"{path} has no session of a rollout {rollout_id!r}; `polar inspect {path}` lists them")
    if attempt is None:
        return max(mine, key=lambda s: s.attempt)
    found = [s for s in mine if s.attempt == attempt]
    if not found:
        raise ConfigError(f"rollout {rollout_id} has attempts {', '.join(str(s.attempt) for s in mine)}, not {attempt}")
    return found[-1]


def _row(rollout_id: str, trajectory: Trajectory | None) -> dict[str, Any]:
    if trajectory is None:
        return {
            "rollout": rollout_id,
            "status": "unfinished",
            "reward": None,
            "turns": None,
            "traces": 0,
            "trained": 0,
            "masked": {},
        }
    return {
        "rollout": rollout_id,
        "status": trajectory.status.value,
        "reward": trajectory.reward,
        "turns": int(trajectory.metrics.get("turns", 0)),
        "traces": len(trajectory.traces),
        "trained": sum(int(t.loss_mask.sum()) for t in trajectory.traces),
        "masked": {reason.value: count for reason, count in trajectory.masked.items()},
        "error": trajectory.error,
    }


def _rollout_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("rollout", "status", "reward", "turns", "traces", "trained", "masked"):
        table.add_column(name, justify="left" if name in ("rollout", "status", "masked") else "right")
    for row in rows:
        masked = ", ".join(f"{count} {reason}" for reason, count in row["masked"].items())
        turns = "-" if row["turns"] is None else str(row["turns"])
        cells = (escape(row["rollout"]), row["status"], number(row["reward"]), turns, str(row["traces"]), str(row["trained"]))
        table.add_row(*cells, masked)
    return table


def _as_json(session: SessionRow, turns: Sequence[Turn], built: BuiltTraces, trajectory: Trajectory | None) -> dict[str, Any]:
    return {
        **_row(session.rollout_id, trajectory),
        "attempt": session.attempt,
        "session": session.id,
        "turns": [
            {
                "id": turn.id,
                "parent": turn.parent,
                "kind": turn.kind.value,
                "prompt_tokens": turn.prompt_len,
                "new_prompt_tokens": len(turn.prompt_delta),
                "sampled_tokens": len(turn.sample),
                "finish_reason": turn.sample.finish_reason.value,
                "weights_version": list(turn.sample.weights_version),
                "delivered": turn.delivered,
                "fork_reason": turn.fork_reason,
                "fork_of": turn.fork_of,
                "trained_by": built.owners.get(turn.id),
                "mask_reason": built.reasons.get(turn.id),
                "reply": message_to_dict(turn.reply),
            }
            for turn in turns
        ],
    }


# --- audit ------------------------------------------------------------------------------------------------------------


def audit_command(path: Path, engine_url: str | None, *, as_json: bool) -> None:
    """Audit a run folder, and score it again when an engine is given."""
    folder = opened(path)
    engine = None if engine_url is None else _engine(read_manifest(path), engine_url, folder)
    report = run_async(_audit(path, engine))
    if as_json:
        print_json(report.to_dict())
    else:
        _print_audit(report)
    leave(Exit.OK if report.ok else Exit.FINDINGS)


def _engine(manifest: Manifest, url: str, folder: RunFolder) -> Engine:
    """A client like the run's own, for another address."""
    settings = EngineSettings.model_validate(manifest.settings.get("engine", {"name": "vllm"}))
    if settings.name == "scripted":
        settings = EngineSettings(name="vllm")
    return make_engine(settings, url, folder.engine_log)


async def _audit(path: Path, engine: Engine | None) -> AuditReport:
    if engine is None:
        return await audit_folder(path)
    try:
        await engine.connect()
        return await audit_folder(path, engine)
    finally:
        await engine.close()


def _print_audit(report: AuditReport) -> None:
    out = stdout()
    table = Table(box=None, show_header=False, pad_edge=False)
    for key, value in report.to_dict().items():
        if key in ("ok", "findings"):
            continue
        if isinstance(value, dict):
            value = ", ".join(f"{count} {name}" for name, count in value.items()) or "none"
        table.add_row(key, "not re-scored" if value is None else str(value))
    out.print(table)
    for finding in report.findings[:SHOWN_FINDINGS]:
        out.print(str(finding), style="red", markup=False, highlight=False)
    if len(report.findings) > SHOWN_FINDINGS:
        out.print(f"... and {len(report.findings) - SHOWN_FINDINGS} more; --json shows all")
    out.print("ok" if report.ok else f"{len(report.findings)} findings", style="green" if report.ok else "red")
