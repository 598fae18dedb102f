# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What the Gym agent server does, without Gym: a row in, a rollout of an unmodified harness, a result row out.

The server (``plugin/responses_api_agents/polar_agent/app.py``) is a thin shell around it. A rollout that failed for reasons of
infrastructure has been tried again by the worker; if it still failed it comes back as Gym's failure, never with a reward.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from nemo_polar.errors import BadRequest, ConfigError
from nemo_polar.gym.result import check_row, gym_result
from nemo_polar.gym.route import Route, choose_route
from nemo_polar.gym.rows import PARAMS, row_sampling, row_to_task
from nemo_polar.gym.settings import GymAgentSettings
from nemo_polar.rollout.assemble import Say, void
from nemo_polar.rollout.attempt import Identity
from nemo_polar.rollout.checks import make_verifier
from nemo_polar.rollout.compose import config_dir, load_settings
from nemo_polar.rollout.worker import Worker
from nemo_polar.settings import RunSettings, SamplingPolicy

TASK_INDEX = "_ng_task_index"
"""Gym's number of a row within a collection; the repeats of a row share it."""


class GymService:
    """One worker behind one Gym agent server."""

    def __init__(self, settings: GymAgentSettings, *, say: Say = void) -> None:
        self.settings = settings
        self.route: Route | None = None
        """How replies are drawn; after ``start``."""
        self._say = say
        self._worker: Worker | None = None
        self._numbers = itertools.count()

    @property
    def worker(self) -> Worker:
        """After ``start``.

        Raises:
            ConfigError: before it, or after ``stop``.
        """
        if self._worker is None:
            raise ConfigError("the Polar worker is not serving: it was not started, or has been stopped")
        return self._worker

    @property
    def banner(self) -> str:
        """One line on what is in force, for the server's log; after ``start``."""
        assert self.route is not None
        folder = self.worker.folder.path
        return (
            f"polar: {self.settings.harness} in sandbox {self.settings.sandbox}; {self.route.sentence}; recording into {folder}"
        )

    async def start(self) -> None:
        """Choose the route and serve.

        Raises:
            ConfigError: something in the settings is wrong.
            EngineError: the engine cannot be reached or trained on.
        """
        self.route = await choose_route(self.settings)
        worker = Worker(run_settings(self.settings, self.route), say=self._say)
        await worker.start()
        self._worker = worker

    async def stop(self) -> None:
        """End every rollout, its processes and its sandboxes. Safe to call twice."""
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.stop()

    async def run(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """One rollout of a row.

        Returns:
            What ``gym_result`` makes of it: a scored row, or a failure that is never a score.

        Raises:
            TaskFileError: the row is no task, or asks for sampling that is none; names the field.
            ConfigError: its verifier or sandbox options are wrong, it has keys of a result, or the service is not serving.
            JournalError: the result cannot be recorded.
        """
        worker = self.worker
        check_row(row)
        loaded = row_to_task(row, default_verifier=self.settings.verifier, checks={"verifier": make_verifier})
        sampling = self._sampling(row)
        group = f"{loaded.task.id}.{row[TASK_INDEX]}" if TASK_INDEX in row else loaded.task.id
        who = Identity(f"{loaded.task.id}.{next(self._numbers)}", loaded.task.id, group)
        rolled = await worker.rollout(loaded, who, sampling=sampling)
        return gym_result(rolled, row, model=worker.proxy.info.model, main=self.settings.main)

    async def responses(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """One rollout whose instruction is the last user message of ``params``; its response alone, unscored.

        Raises:
            BadRequest: nothing there that a harness could be told, or the rollout failed for reasons of infrastructure.
        """
        unscored = {"type": "command", "checks": [{"name": "unscored", "command": "true", "weight": 1.0}]}
        loaded = row_to_task({PARAMS: dict(params)}, default_verifier=unscored)
        who = Identity(f"{loaded.task.id}.{next(self._numbers)}", loaded.task.id, loaded.task.id)
        rolled = await self.worker.rollout(loaded, who, sampling=self._sampling({PARAMS: params}))
        if rolled.trajectory.status.infra:
            raise BadRequest(f"the rollout failed ({rolled.trajectory.status.value}): {rolled.trajectory.error}")
        row = {PARAMS: dict(params)}
        return gym_result(rolled, row, model=self.worker.proxy.info.model, main=self.settings.main)["response"]

    def _sampling(self, row: Mapping[str, Any]) -> SamplingPolicy | None:
        """The row's own sampling over the worker's; None where it asks for nothing else."""
        asked, policy = row_sampling(row), self.worker.settings.capture.sampling
        changes: dict[str, Any] = {}
        if asked.temperature is not None:
            if asked.temperature == 0:
                raise BadRequest(
                    "a temperature of 0 draws from no distribution that can be trained on or scored again; leave it out, or "
                    "ask for a small one",
                    param=f"{PARAMS}.temperature",
                )
            changes["temperature"] = asked.temperature
        if asked.top_p is not None:
            changes["top_p"] = asked.top_p
        if asked.max_output_tokens is not None:
            changes["max_tokens"] = min(asked.max_output_tokens, policy.max_tokens or asked.max_output_tokens)
        chosen = policy.model_copy(update=changes)
        return None if chosen == policy else chosen


def run_settings(settings: GymAgentSettings, route: Route) -> RunSettings:
    """The settings of a Polar run that a Gym config amounts to.

    Raises:
        ConfigError: a key is wrong, or a value is missing (the tokenizer, say).
    """
    chosen = {"env": "external", "harness": settings.harness, "sandbox": settings.sandbox}
    conf = config_dir("conf")
    groups = [f"{group}={name}" for group, name in chosen.items() if (conf / group / f"{name}.yaml").is_file()]

    def adapt(config: Any, overridden: Sequence[str]) -> None:
        from omegaconf import OmegaConf

        config.harness.name = settings.harness
        config.harness.options = OmegaConf.merge(config.harness.options, dict(settings.harness_options))
        config.sandbox.name = settings.sandbox
        config.sandbox.options = OmegaConf.merge(config.sandbox.options, dict(settings.sandbox_options))
        config.engine = OmegaConf.create(route.engine.model_dump(mode="json"))
        config.out, config.name = settings.out, settings.name
        if settings.tokenizer is not None:
            config.policy.codec.tokenizer = settings.tokenizer
        if settings.seconds is not None:
            config.seconds = settings.seconds
        if settings.retries is not None:
            config.retries = settings.retries
        if "stages.run" not in overridden:
            config.stages.run = settings.concurrency

    return load_settings(settings.recipe, [*groups, *settings.overrides], adapt=adapt)
