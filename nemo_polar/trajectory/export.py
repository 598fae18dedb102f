# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A run's trajectories for other programs: as tokens or as chat, as JSON lines or as Parquet.

An export is a view: nothing reads it back. ``export_rows`` and ``export_chat`` say what a row is, ``export_filters`` what goes
in, ``export_files`` and ``export_parquet`` how it is written. Rows are streamed; a file appears whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, TypeAlias

import numpy as np

from nemo_polar.errors import ConfigError
from nemo_polar.trajectory import export_chat, export_rows
from nemo_polar.trajectory.export_chat import Arguments, ChatRows
from nemo_polar.trajectory.export_files import JsonlWriter, Writer, whole_file
from nemo_polar.trajectory.export_filters import Filters, Selection, Source
from nemo_polar.trajectory.export_parquet import ParquetWriter, pyarrow
from nemo_polar.trajectory.export_rows import Row, token_row
from nemo_polar.trajectory.store import Manifest
from nemo_polar.types import Trace, Trajectory

Progress: TypeAlias = Callable[[int, int], None]
"""Called after each rollout with (rollouts read, rows written)."""
_SUFFIXES = (".jsonl", ".parquet")


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export holds, and what it does not."""

    rows: int
    tokens: int
    """Of the traces written; for chat rows too."""
    trained_tokens: int
    rollouts_read: int
    rollouts_left_out: Mapping[str, int]
    """By reason; see ``Filters``."""
    traces_left_out: Mapping[str, int]
    """Of the rollouts that were not left out whole."""
    replaced_texts: int = 0
    """Texts that Parquet could not hold as they were."""


def export_tokens(
    source: Source,
    target: Path,
    *,
    filters: Filters | None = None,
    manifest: Manifest | None = None,
    progress: Progress | None = None,
) -> Exported:
    """Write traces as ids, masks and log-probabilities to ``target``, a .jsonl or .parquet file.

    ``manifest``: of the run, for the metadata of a Parquet file.

    Raises:
        ConfigError: another suffix, or pyarrow is needed and not installed.
        JournalError: the disk refused it, or the source cannot be read.
    """
    header = {"format": export_rows.FORMAT, "version": export_rows.VERSION}

    def opened(file: BinaryIO) -> Writer:
        return JsonlWriter(file, header) if suffix == ".jsonl" else ParquetWriter(file, "tokens", _metadata(header, manifest))

    suffix = _suffix(target)
    return _export(source, target, opened, token_row, filters or Filters(), progress)


def export_chat_rows(
    source: Source,
    journal: Path,
    target: Path,
    *,
    arguments: Arguments | None = None,
    filters: Filters | None = None,
    manifest: Manifest | None = None,
    progress: Progress | None = None,
) -> Exported:
    """Write traces as conversations to ``target``, a .jsonl or .parquet file.

    ``arguments``: see ``export_chat.Arguments``; by default objects in JSON lines and text in Parquet (only text there).

    Raises:
        ConfigError: another suffix, objects asked for in Parquet, or pyarrow is needed and not installed.
        JournalError: the disk refused it, the source or the journal cannot be read, or the run's messages were not recorded.
    """
    suffix = _suffix(target)
    if suffix == ".parquet" and arguments == "object":
        raise ConfigError("arguments as objects have no common type for a Parquet column: leave them text, or write .jsonl")
    header = {"format": export_chat.FORMAT, "version": export_chat.VERSION}

    def opened(file: BinaryIO) -> Writer:
        # No header line: `datasets` takes every line for a row. So each row names the format.
        return JsonlWriter(file, None) if suffix == ".jsonl" else ParquetWriter(file, "chat", _metadata(header, manifest))

    with closing(ChatRows(journal, arguments=arguments or ("object" if suffix == ".jsonl" else "text"))) as rows:
        return _export(source, target, opened, rows.row, filters or Filters(), progress)


def _export(
    source: Source,
    target: Path,
    opened: Callable[[BinaryIO], Writer],
    make_row: Callable[[Trajectory, Trace], Row],
    filters: Filters,
    progress: Progress | None,
) -> Exported:
    selection = Selection(filters)
    rows = tokens = trained = 0
    with whole_file(target, opened) as writer:
        for trajectory, traces in selection.of(source):
            for trace in traces:
                writer.write(make_row(trajectory, trace), len(trace))
                rows += 1
                tokens += len(trace)
                trained += int(np.count_nonzero(trace.loss_mask))
            if progress is not None:
                progress(selection.read, rows)
    replaced = writer.replaced if isinstance(writer, ParquetWriter) else 0
    return Exported(rows, tokens, trained, selection.read, dict(selection.rollouts), dict(selection.traces), replaced)


def _suffix(target: Path) -> Literal[".jsonl", ".parquet"]:
    suffix = Path(target).suffix
    if suffix == ".jsonl":
        return ".jsonl"
    if suffix == ".parquet":
        pyarrow()  # before anything is read
        return ".parquet"
    raise ConfigError(f"{target}: the file's suffix chooses the format; it must be one of {', '.join(_SUFFIXES)}")


def _metadata(header: Mapping[str, str | int], manifest: Manifest | None) -> dict[str, str]:
    metadata = {key: str(value) for key, value in header.items()}
    if manifest is not None:
        names = ("model", "codec", "codec_fingerprint", "thinking_retention")
        metadata |= {name: getattr(manifest, name) for name in names}
    return metadata
