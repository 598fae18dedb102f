# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Exports as Parquet: typed columns, arrays packed, row groups of bounded size. pyarrow is imported when it is needed.

A chat row's free-form parts (arguments of calls, parameters of tools) are JSON text here, as a column has one type. Lone
surrogates, which Parquet's text cannot hold, become U+FFFD and are counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any, BinaryIO, Literal

import numpy as np

from nemo_polar.errors import ConfigError
from nemo_polar.trajectory.export_rows import Row

GROUP_TOKENS = 1 << 20
"""Tokens after which a row group is written: about 15 MB of arrays."""
GROUP_ROWS = 4096
_ARRAYS = ("token_ids", "loss_mask", "logprobs", "weights_version")


def pyarrow() -> ModuleType:
    """The package.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as exc:
        raise ConfigError("writing Parquet needs pyarrow: pip install 'nemo_polar[parquet]', or name a .jsonl file") from exc
    return pyarrow


class ParquetWriter:
    """Writes one row group whenever enough rows are held."""

    def __init__(self, file: BinaryIO, shape: Literal["tokens", "chat"], metadata: Mapping[str, str]) -> None:
        """``metadata`` goes into the file's schema, each key after ``polar.``.

        Raises:
            ConfigError: pyarrow is not installed.
        """
        self._pa = pa = pyarrow()
        fields = _token_fields(pa) if shape == "tokens" else _chat_fields(pa)
        self._schema = pa.schema(fields, metadata={f"polar.{key}": value for key, value in metadata.items()})
        floats = ["logprobs.list.element"] if shape == "tokens" else []
        texts = ["task_id", "group_id", "status", "kind", "fork_reason"]
        self._writer = pa.parquet.ParquetWriter(
            file, self._schema, compression="zstd", use_dictionary=texts, use_byte_stream_split=floats
        )
        self._rows: list[Row] = []
        self._held = 0
        self.replaced = 0
        """Texts in which a lone surrogate had to give way."""

    def write(self, row: Row, size: int) -> None:
        """See ``Writer.write``."""
        self._rows.append(row)
        self._held += size
        if self._held >= GROUP_TOKENS or len(self._rows) >= GROUP_ROWS:
            self._flush()

    def close(self) -> None:
        """See ``Writer.close``."""
        try:
            self._flush()
        finally:
            self._rows.clear()
            self._writer.close()

    def _flush(self) -> None:
        if self._rows:
            columns = [self._column(field.name, field.type) for field in self._schema]
            self._writer.write_table(self._pa.Table.from_arrays(columns, schema=self._schema))
            self._rows.clear()
            self._held = 0

    def _column(self, name: str, kind: Any) -> Any:
        values = [row[name] for row in self._rows]
        if name in _ARRAYS:
            ends = np.cumsum([0, *map(len, values)], dtype=np.int32)
            return self._pa.ListArray.from_arrays(ends, self._pa.array(np.concatenate(values)), type=kind)
        if name == "components":
            values = [list(value.items()) for value in values]
        try:
            return self._pa.array(values, type=kind)
        except UnicodeEncodeError:
            return self._pa.array([self._encodable(value) for value in values], type=kind)

    def _encodable(self, value: Any) -> Any:
        """``value`` with every lone surrogate in its texts replaced."""
        if isinstance(value, str):
            text = value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
            self.replaced += text != value
            return text
        if isinstance(value, dict):
            return {key: self._encodable(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self._encodable(inner) for inner in value)
        return value


def _about_fields(pa: ModuleType) -> list[Any]:
    text = pa.string()
    names = ("trace_id", "rollout_id", "task_id", "group_id", "status")
    return [
        *(pa.field(name, text, nullable=False) for name in names),
        pa.field("reward", pa.float64()),
        pa.field("components", pa.map_(text, pa.float64()), nullable=False),
        pa.field("kind", text, nullable=False),
    ]


def _token_fields(pa: ModuleType) -> list[Any]:
    int32 = pa.int32()
    span = pa.struct([("start", int32), ("end", int32), ("role", pa.string()), ("turn", int32)])
    arrays = {"token_ids": int32, "loss_mask": pa.bool_(), "logprobs": pa.float32(), "weights_version": int32}
    return [
        *_about_fields(pa),
        pa.field("parent", pa.string()),
        pa.field("fork_reason", pa.string()),
        pa.field("spans", pa.list_(span), nullable=False),
        *(pa.field(name, pa.list_(kind), nullable=False) for name, kind in arrays.items()),
    ]


def _chat_fields(pa: ModuleType) -> list[Any]:
    text = pa.string()
    call = pa.struct([("id", text), ("type", text), ("function", pa.struct([("name", text), ("arguments", text)]))])
    message = pa.struct(
        [
            ("role", text),
            ("content", text),
            ("reasoning_content", text),
            ("tool_calls", pa.list_(call)),
            ("tool_call_id", text),
            ("name", text),
        ]
    )
    return [
        pa.field("format", text, nullable=False),
        pa.field("version", pa.int32(), nullable=False),
        *_about_fields(pa),
        pa.field("messages", pa.list_(message), nullable=False),
        pa.field("tools", text),
        pa.field("trained", pa.list_(pa.bool_()), nullable=False),
    ]
