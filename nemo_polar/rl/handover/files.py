# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Weights through a folder that others read: an engine's own loader, another machine, another trainer.

    outbox/000007-v12/           the weights, sealed (``weights_file.py``)
    outbox/latest.json           which folder is the newest; written last, whole or not at all
    outbox/taken-READER.json     written by a reader: which it has taken, or why it could not

``Outbox`` lays out, ``Inbox`` takes. A hand-over by files waits until every reader has taken the weights, and then proves them
by canaries like any other: that a reader says so is no proof.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

from pydantic import Field, ValidationError

from nemo_polar.engines.base import Engine
from nemo_polar.errors import DamagedWeights, HandoverFailed
from nemo_polar.rl.handover.base import Handover
from nemo_polar.rl.handover.weights_file import MANIFEST, read_manifest, verify
from nemo_polar.settings import Settings
from nemo_polar.whole import write_whole

LATEST = "latest.json"
_LOOK_SECONDS = 0.1


class Published(Settings):
    """One laid out set of weights."""

    serial: int = Field(ge=1)
    """Counts what was laid out; a version may be laid out again."""
    version: int
    folder: str
    """Within the outbox."""


class Taken(Settings):
    """What a reader has to say of it."""

    serial: int
    error: str | None = None


class Outbox:
    """The writing side. One process writes to a folder."""

    def __init__(self, folder: Path | str, *, keep: int = 2):
        """``keep``: sets of weights that stay; a reader that is still busy with an older one will notice."""
        self.folder, self._keep = Path(folder), keep
        self.folder.mkdir(parents=True, exist_ok=True)

    def publish(self, weights: Path, version: int) -> Published:
        """Lay out a sealed folder (as hard links where the disk can). Blocks on the disk.

        Raises:
            DamagedWeights: it is not sealed.
            OSError: the disk refused it.
        """
        last = _read_latest(self.folder)
        published = Published(serial=_after(last), version=version, folder=f"{_after(last):06d}-v{version}")
        target = self.folder / published.folder
        shutil.rmtree(target, ignore_errors=True)  # a writer that died before it wrote latest.json
        target.mkdir()
        for name in (*read_manifest(weights).files, MANIFEST):
            _link_or_copy(Path(weights) / name, target / name)
        write_whole(self.folder / LATEST, published.model_dump_json().encode() + b"\n")
        laid_out = sorted(f for f in self.folder.iterdir() if f.is_dir())
        for old in laid_out[: -self._keep]:
            shutil.rmtree(old, ignore_errors=True)
        return published

    def taken(self, reader: str) -> Taken | None:
        """What a reader said last."""
        try:
            return Taken.model_validate_json((self.folder / f"taken-{reader}.json").read_bytes())
        except (OSError, ValidationError):
            return None


class Inbox:
    """The reading side, under a name that the writer knows."""

    def __init__(self, folder: Path | str, reader: str = "engine"):
        self.folder, self.reader = Path(folder), reader
        self._serial = 0

    def look(self) -> tuple[Published, Path] | None:
        """What is new since the last ``answer``, and its folder, verified; None when there is nothing. Blocks on the disk.

        Raises:
            DamagedWeights: what is there is not whole (yet, where the outbox is copied by something else). Look again, or
                ``answer`` with the error.
        """
        latest = _read_latest(self.folder)
        if latest is None or latest.serial == self._serial:
            return None
        folder = self.folder / latest.folder
        manifest = verify(folder)
        if manifest.version not in (None, latest.version):
            raise DamagedWeights(f"{folder} holds weights version {manifest.version}, and was laid out as {latest.version}")
        return latest, folder

    def answer(self, published: Published, error: str | None = None) -> None:
        """Tell the writer that they are loaded, or why they are not."""
        self._serial = published.serial
        taken = Taken(serial=published.serial, error=error)
        write_whole(self.folder / f"taken-{self.reader}.json", taken.model_dump_json().encode() + b"\n")


class Files(Handover):
    """See the module. The engine client still pauses, resumes and scores; only the loading is another's."""

    async def _load_all(self, folder: Path, version: int) -> None:
        assert self.settings.outbox is not None
        outbox = Outbox(self.settings.outbox)
        try:
            published = await asyncio.to_thread(outbox.publish, folder, version)
        except OSError as exc:
            raise HandoverFailed(f"the weights could not be laid out in {self.settings.outbox}: {exc}") from exc
        waiting = set(self.settings.readers)
        try:
            async with asyncio.timeout(self.settings.load_seconds):
                while waiting:
                    for reader in sorted(waiting):
                        taken = outbox.taken(reader)
                        if taken is None or taken.serial != published.serial:
                            continue
                        if taken.error is not None:
                            raise HandoverFailed(f"reader {reader} could not take weights version {version}: {taken.error}")
                        waiting.discard(reader)
                    if waiting:
                        await asyncio.sleep(_LOOK_SECONDS)
        except TimeoutError:
            raise HandoverFailed(
                f"{', '.join(sorted(waiting))}: weights version {version} was not taken within {self.settings.load_seconds:g} s"
            ) from None

    async def _load(self, name: str, engine: Engine, folder: Path, version: int) -> None:
        raise NotImplementedError("readers load for all engines at once")


def _read_latest(folder: Path) -> Published | None:
    try:
        return Published.model_validate_json((folder / LATEST).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as exc:
        raise DamagedWeights(f"{folder / LATEST} cannot be read: {exc}") from exc


def _after(last: Published | None) -> int:
    return 1 if last is None else last.serial + 1


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
