# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Weights for scripted engines: files that name a number, and a trainer that scores as the hash model of that number does."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np

from nemo_polar.engines.hash_policy import HashPolicy
from nemo_polar.engines.replicas import ReplicaSet
from nemo_polar.rl.handover.base import Handover
from nemo_polar.rl.handover.canary import Canary
from nemo_polar.rl.handover.make import make_handover
from nemo_polar.rl.handover.settings import HandoverSettings
from nemo_polar.rl.handover.weights_file import seal
from nemo_polar.types import as_ids, as_logprobs
from tests.support.proxy import Rig, running
from tests.support.replicas import QUICK
from tests.support.token_engines import VLLM, Kind, served

VOCAB, BLOCK = 259, 16
POLICY = HashPolicy(VOCAB)
SERVER = {"vocab": VOCAB, "reply_tokens": (4, 12), "cache_block": BLOCK}


def weights(folder: Path, number: int, *, version: int | None = None, file: str = "model.safetensors") -> Path:
    """A sealed folder that stands for the hash model of that number, with a tensor of some bytes."""
    folder.mkdir(parents=True)
    header: dict[str, Any] = {"__metadata__": {"scripted_weights": str(number)}}
    header["w"] = {"dtype": "F32", "shape": [64], "data_offsets": [0, 256]}
    raw = json.dumps(header).encode()
    (folder / file).write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(256))
    seal(folder, version=version)
    return folder


def canaries(number: int, before: int | None = None, *, count: int = 3, length: int = 40) -> list[Canary]:
    """What a trainer with the weights of that number says; ``before``: those it had a step earlier."""
    made = []
    for seed in range(count):
        ids = as_ids(np.random.default_rng(seed).integers(0, VOCAB, length))
        after = POLICY.distribution(POLICY.prefix(ids, number))
        made.append(
            Canary(
                ids,
                POLICY.score(ids, number),
                None if before is None else POLICY.score(ids, before),
                as_logprobs([after.logprob(token) for token in range(VOCAB)]),
            )
        )
    return made


@asynccontextmanager
async def handing_over(
    folder: Path,
    *,
    kind: Kind = VLLM,
    settings: dict[str, Any] | None = None,
    client: dict[str, Any] | None = None,
    servers: Sequence[dict[str, Any]] = ({},),
    adapters: Sequence[str] = (),
    **capture: Any,
) -> AsyncGenerator[tuple[Handover, Rig, list[Any]], None]:
    """A hand-over, the proxy it works through and the scripted servers behind; ``servers``: options that each differs in."""
    async with _servers(kind, list(servers), client or {}) as (running_servers, engines):
        for server in running_servers:
            if adapters:
                server.adapters.update(adapters)
        replicas = ReplicaSet(dict(zip("abcdef", engines, strict=False)), **QUICK)
        async with running(folder, engine=replicas, **capture) as rig:
            yield make_handover(rig.proxy, HandoverSettings(**(settings or {}))), rig, running_servers


@asynccontextmanager
async def _servers(kind: Kind, options: list[dict[str, Any]], client: dict[str, Any]) -> AsyncGenerator[Any, None]:
    if not options:
        yield [], []
        return
    async with served(kind, client=client, **{**SERVER, **options[0]}) as (server, engine):
        async with _servers(kind, options[1:], client) as (others, engines):
            yield [server, *others], [engine, *engines]
