# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""How an export reaches the disk: row by row into a draft beside the target, which takes its name when it is whole.

``JsonlWriter`` is here; ``export_parquet`` has the other one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from nemo_polar.errors import JournalError
from nemo_polar.trajectory.codec import dumps
from nemo_polar.trajectory.export_rows import Row


class Writer(Protocol):
    """Takes rows; holds a bounded number of them."""

    def write(self, row: Row, size: int) -> None:
        """One more row. ``size``: the tokens of its trace, for the writer to know how much it holds."""
        ...

    def close(self) -> None:
        """Write what is held, and the file's end."""
        ...


@contextmanager
def whole_file(target: Path, open_writer: Callable[[BinaryIO], Writer]) -> Iterator[Writer]:
    """A writer for ``target``, which appears, synced, when the block ends well, and is left as it was when it does not.

    Raises:
        JournalError: the disk refused it.
    """
    target = Path(target)
    draft = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    try:
        with draft.open("wb") as file:
            writer = open_writer(file)
            try:
                yield writer
            except BaseException:
                with suppress(OSError, ValueError):
                    writer.close()  # while its file is still open
                raise
            writer.close()
            file.flush()
            os.fsync(file.fileno())
        draft.replace(target)
    except OSError as exc:
        raise JournalError(f"{target} cannot be written: {exc}") from exc
    finally:
        draft.unlink(missing_ok=True)


class JsonlWriter:
    """JSON lines, arrays as plain lists, masks as 0 and 1."""

    def __init__(self, file: BinaryIO, header: Mapping[str, Any] | None) -> None:
        """``header``: the first line; None for readers that take every line for a row."""
        self._file = file
        if header is not None:
            self._line(header)

    def write(self, row: Row, size: int) -> None:
        """See ``Writer.write``."""
        self._line({key: _plain(value) for key, value in row.items()})

    def close(self) -> None:
        """See ``Writer.close``."""

    def _line(self, value: Mapping[str, Any]) -> None:
        self._file.write(dumps(value).encode() + b"\n")


def _plain(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    return (value.view(np.uint8) if value.dtype == np.bool_ else value).tolist()
