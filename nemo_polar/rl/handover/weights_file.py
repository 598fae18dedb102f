# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A folder of weights that is whole, or is known not to be: safetensors files and a manifest that is written last.

The manifest holds the length and SHA-256 of every other file. A folder without one was not finished; a file that was cut short,
changed or swapped does not match it. ``save_weights`` runs in the trainer (it needs torch's safetensors); everything else reads
bytes only. Folders are never changed after they are sealed: an engine may be reading them, and the last proven one is what it
is brought back to.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
from pydantic import Field, ValidationError

from nemo_polar.errors import ConfigError, DamagedWeights
from nemo_polar.settings import Settings
from nemo_polar.unique import unique_id
from nemo_polar.whole import write_whole

MANIFEST = "polar-weights.json"
WEIGHTS = "model.safetensors"


class FileEntry(Settings):
    """One file."""

    bytes: int = Field(ge=0)
    sha256: str


class WeightsManifest(Settings):
    """What a folder of weights holds."""

    format: int = 1
    version: int | None = None
    """The weights version, where the trainer counts one."""
    files: dict[str, FileEntry]


def save_weights(
    folder: Path, tensors: Mapping[str, Any], *, version: int | None = None, like: Path | None = None, name: str = WEIGHTS
) -> WeightsManifest:
    """Write ``tensors`` (torch, Hugging Face names, any dtype) as one safetensors file, the small files of the model folder
    ``like`` beside it, and the manifest. The folder appears whole or not at all.

    Raises:
        ConfigError: ``folder`` exists already.
        OSError: the disk refused it.
    """
    from safetensors.torch import save_file

    folder = Path(folder)
    if folder.exists():
        raise ConfigError(
            f"{folder} exists; weights are never overwritten, as an engine may be reading them: use another folder"
        )
    draft = folder.with_name(f"{folder.name}.{unique_id(6)}.part")
    draft.mkdir(parents=True)
    try:
        for file in Path(like).iterdir() if like is not None else ():
            if file.is_file() and file.suffix not in (".safetensors", ".bin", ".gguf") and file.name != MANIFEST:
                shutil.copy2(file, draft / file.name)
        save_file({key: value.detach().cpu().contiguous() for key, value in tensors.items()}, draft / name, {"format": "pt"})
        manifest = seal(draft, version=version)
        draft.rename(folder)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return manifest


def seal(folder: Path, *, version: int | None = None) -> WeightsManifest:
    """Write the manifest of the files that lie in ``folder`` now (those of ``PeftModel.save_pretrained``, say), synced first.

    Raises:
        DamagedWeights: there is no weights file, or one is not whole.
        OSError: the disk refused it.
    """
    folder = Path(folder)
    files = sorted(f for f in folder.iterdir() if f.is_file() and f.name != MANIFEST and not f.name.endswith(".part"))
    _require_weights(folder, [f.name for f in files])
    entries: dict[str, FileEntry] = {}
    for file in files:
        if file.suffix == ".safetensors":
            check_safetensors(file)
        _sync(file)
        entries[file.name] = FileEntry(bytes=file.stat().st_size, sha256=_digest(file))
    manifest = WeightsManifest(version=version, files=entries)
    write_whole(folder / MANIFEST, manifest.model_dump_json(indent=2).encode() + b"\n")
    return manifest


def verify(folder: Path, *, version: int | None = None) -> WeightsManifest:
    """The manifest of a folder that holds, byte for byte, what it was sealed with. Reads every file once.

    Raises:
        DamagedWeights: it does not; the message names the first file that is off.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    _require_weights(folder, manifest.files)
    for name, entry in manifest.files.items():
        file = folder / name
        if not file.is_file():
            raise DamagedWeights(f"{file} is missing, and the manifest beside it lists it")
        size = file.stat().st_size
        if size != entry.bytes:
            raise DamagedWeights(f"{file} has {size} bytes, and was sealed with {entry.bytes}: it is not whole, or was changed")
        if _digest(file) != entry.sha256:
            raise DamagedWeights(f"{file} is not the file that was sealed: its SHA-256 is another")
    return manifest


def read_manifest(folder: Path) -> WeightsManifest:
    """The manifest alone; nothing is compared.

    Raises:
        DamagedWeights: there is none that can be read.
    """
    path = Path(folder) / MANIFEST
    try:
        return WeightsManifest.model_validate_json(path.read_bytes())
    except OSError as exc:
        raise DamagedWeights(f"{folder} has no manifest ({MANIFEST}), so it was not finished: {exc}; seal() writes it") from exc
    except ValidationError as exc:
        raise DamagedWeights(f"{path} is no manifest of weights: {exc}") from exc


def check_safetensors(file: Path) -> None:
    """Compare the length of a safetensors file with what its header says.

    The format: 8 bytes with the header's length (little-endian), the header as JSON (``data_offsets`` of each tensor, counted
    from the header's end), then the data.

    Raises:
        DamagedWeights: cut short, too long, or no safetensors file.
    """
    size = file.stat().st_size
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if not 0 < length <= size - 8:
                raise ValueError(f"a header of {length} bytes in a file of {size}")
            header = orjson.loads(stream.read(length))
        ends = [entry["data_offsets"][1] for key, entry in header.items() if key != "__metadata__"]
        expected = 8 + length + max(ends, default=0)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as exc:
        raise DamagedWeights(f"{file} is not a whole safetensors file: {exc!r}") from exc
    if size != expected:
        raise DamagedWeights(f"{file} has {size} bytes, and its header speaks of {expected}: it is not whole")


def _require_weights(folder: Path, names: Any) -> None:
    if not any(str(name).endswith(".safetensors") for name in names):
        raise DamagedWeights(f"{folder} holds no .safetensors file")


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sync(file: Path) -> None:
    with file.open("rb") as stream:
        os.fsync(stream.fileno())
