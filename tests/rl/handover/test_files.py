# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Weights through a folder: a reader sees them whole or not at all, and what it says is no proof."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from nemo_polar.engines.scripted_http import weights_number
from nemo_polar.errors import DamagedWeights, HandoverFailed, StaleWeights
from nemo_polar.rl.handover.files import Inbox, Outbox
from tests.support.weights import canaries, handing_over, weights


@contextlib.asynccontextmanager
async def reading(outbox: Path, server: Any, *, loads: bool = True) -> AsyncIterator[None]:
    """Somebody else's loader; it says that it has loaded in any case."""

    async def read() -> None:
        inbox = Inbox(outbox)
        while True:
            try:
                found = inbox.look()
            except DamagedWeights:
                found = None
            if found is not None:
                published, folder = found
                if loads:
                    server.core.load_weights(weights_number(str(folder), "model.safetensors"))
                inbox.answer(published)
            await asyncio.sleep(0.01)

    task = asyncio.create_task(read())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def settings(outbox: Path, **more: Any) -> dict[str, Any]:
    return {"method": "files", "outbox": str(outbox), **more}


async def test_weights_taken_by_a_reader_are_proven_and_can_be_brought_back(tmp_path):
    out = tmp_path / "out"
    async with handing_over(tmp_path, settings=settings(out)) as (handover, _, servers):
        async with reading(out, servers[0]):
            for version in (1, 2):
                folder = weights(tmp_path / f"w{version}", version)
                assert (await handover.hand_over(folder, version, canaries(version, version - 1))).told_apart
            with pytest.raises(Exception, match="other weights") as refused:
                await handover.hand_over(weights(tmp_path / "w3", 9), 3, canaries(3, 2))
            assert refused.value.resumed_at == 2


async def test_a_reader_that_takes_and_does_not_load_is_refused(tmp_path):
    out = tmp_path / "out"
    stale = [{"stale_weights": True}]
    async with handing_over(tmp_path, settings=settings(out), servers=stale) as (handover, _, servers):
        async with reading(out, servers[0], loads=False):
            with pytest.raises(StaleWeights):
                await handover.hand_over(weights(tmp_path / "w1", 1), 1, canaries(1, 0))


async def test_a_reader_that_never_comes_or_fails_is_named(tmp_path):
    out = tmp_path / "out"
    async with handing_over(tmp_path, settings=settings(out, load_seconds=0.3)) as (handover, _, _servers):
        with pytest.raises(HandoverFailed, match="engine: weights version 1 was not taken"):
            await handover.hand_over(weights(tmp_path / "w1", 1), 1, canaries(1, 0))
        inbox = Inbox(out)

        async def fail() -> None:
            await asyncio.sleep(0.1)
            found = inbox.look()
            assert found is not None
            inbox.answer(found[0], "no room")

        failing = asyncio.create_task(fail())
        with pytest.raises(HandoverFailed, match=r"reader engine could not take .*: no room"):
            await handover.hand_over(tmp_path / "w1", 1, canaries(1, 0))
        await failing


def test_a_reader_sees_whole_weights_or_none(tmp_path):
    outbox, inbox = Outbox(tmp_path / "out"), Inbox(tmp_path / "out")
    assert inbox.look() is None
    published = outbox.publish(weights(tmp_path / "w", 4, version=4), 4)
    found = inbox.look()
    assert found is not None and weights_number(str(found[1]), "model.safetensors") == 4
    file = found[1] / "model.safetensors"
    half = file.read_bytes()[:150]
    file.unlink()
    file.write_bytes(half)  # as where the folder is copied by something else
    with pytest.raises(DamagedWeights, match="not whole"):
        inbox.look()
    assert outbox.taken("engine") is None
    inbox.answer(published)
    assert inbox.look() is None
    assert outbox.taken("engine") is not None


def test_the_outbox_keeps_the_last_two_and_never_touches_the_trainers_own(tmp_path):
    outbox = Outbox(tmp_path / "out")
    folders = [weights(tmp_path / f"w{n}", n) for n in range(4)]
    for number, folder in enumerate(folders):
        outbox.publish(folder, number)
    assert sorted(p.name for p in (tmp_path / "out").iterdir() if p.is_dir()) == ["000003-v2", "000004-v3"]
    assert all((folder / "model.safetensors").exists() for folder in folders)


def test_a_writer_that_died_before_its_mark_leaves_nothing_to_read(tmp_path):
    outbox, inbox = Outbox(tmp_path / "out"), Inbox(tmp_path / "out")
    (tmp_path / "out" / "000001-v1").mkdir()
    (tmp_path / "out" / "000001-v1" / "model.safetensors").write_bytes(os.urandom(10))
    assert inbox.look() is None
    outbox.publish(weights(tmp_path / "w", 1), 1)
    assert inbox.look() is not None
