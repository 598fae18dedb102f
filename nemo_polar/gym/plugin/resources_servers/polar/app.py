# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The verifier of Polar's tasks as a NeMo Gym resources server, for Gym 0.4.0 and 0.7.0.

Polar's own agent brings the verdict that its rollout came to; it is looked over and passed on. For any other agent the task's
verifier is run here, in a fresh sandbox. The work is ``nemo_polar.gym.verifying``'s. A verifier that fails gives no reward: the
sample is masked (Gym 0.7.0), or, where Gym knows no mask, the request is refused.
"""

import asyncio
from pathlib import Path
from typing import Any, ClassVar

import nemo_gym.base_resources_server as gym
from fastapi import HTTPException
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.server_utils import ServerClient
from pydantic import ConfigDict, PrivateAttr

from nemo_polar.errors import PolarError, SandboxError, TaskFileError, VerifierError
from nemo_polar.gym.settings import from_block
from nemo_polar.gym.verifying import GymVerifySettings, check_verdict, verify_row

KNOWS_MASKS = "mask_sample" in BaseVerifyResponse.model_fields
"""Gym 0.4.0 trains on whatever has a reward."""
_Response: Any = getattr(gym, "BaseMultiRewardVerifyResponse", BaseVerifyResponse)


class PolarResourcesServerConfig(BaseResourcesServerConfig):
    """The server's block. What is not listed here is a field of ``GymVerifySettings``, and a misspelt one is refused."""

    model_config = ConfigDict(extra="allow")
    if hasattr(gym, "ReverifyMode"):  # a stored result does not hold the workspace that would have to be verified again
        REVERIFY_MODE: ClassVar[Any] = gym.ReverifyMode.UNSUPPORTED


class PolarVerifyRequest(BaseVerifyRequest):
    """A row, a response and, from Polar's agent, ``polar`` and the verdict. ``polar_workspace`` is what another agent left."""

    model_config = ConfigDict(extra="allow", populate_by_name=True)


class PolarVerifyResponse(_Response):
    """Gym's answer with the components of the reward; what came with the request is kept."""

    model_config = ConfigDict(extra="allow", populate_by_name=True)

    reward_components: dict[str, float]
    mask_sample: bool = False
    failure_kind: str | None = None
    failure_reason: str | None = None


class PolarResourcesServer(SimpleResourcesServer):
    """See the module."""

    ray_enabled: ClassVar[bool | None] = False
    config: PolarResourcesServerConfig
    _settings: GymVerifySettings = PrivateAttr()
    _slots: asyncio.Semaphore = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        super().model_post_init(context)
        self._settings = from_block(GymVerifySettings, self.config.name, self.config.model_extra or {})
        self._slots = asyncio.Semaphore(self._settings.concurrency)

    async def verify(self, body: PolarVerifyRequest) -> PolarVerifyResponse:
        """Pass a verdict of Polar's agent on, or reach one.

        Raises:
            HTTPException: 400 for a row that is no task, 422 for a verdict that is none; on Gym 0.4.0 also 500 for a verifier
                or a sandbox that failed.
        """
        request = body.model_dump(mode="json", by_alias=True, exclude_unset=True)
        if "polar" in request:
            try:
                check_verdict(request)
            except VerifierError as exc:
                raise HTTPException(422, str(exc)) from exc
            return PolarVerifyResponse.model_validate(request)
        try:
            async with self._slots:
                verdict = await verify_row(request, self._settings)
        except TaskFileError as exc:
            raise HTTPException(400, str(exc)) from exc
        except (VerifierError, SandboxError) as exc:
            return self._failed(request, "verifier_error" if isinstance(exc, VerifierError) else "provider_unavailable", exc)
        scored = {"reward": verdict.reward, "reward_components": dict(verdict.components), "verifier_detail": verdict.detail}
        return PolarVerifyResponse.model_validate(request | scored)

    def _failed(self, request: dict[str, Any], kind: str, exc: PolarError) -> PolarVerifyResponse:
        """A sample that is no measurement. Gym's answer must have a reward; the mask says that it is none."""
        if not KNOWS_MASKS:
            raise HTTPException(500, f"{kind}: {exc}") from exc
        masked = {"mask_sample": True, "failure_kind": kind, "failure_reason": str(exc)}
        return PolarVerifyResponse.model_validate(request | {"reward": 0.0, "reward_components": {}} | masked)


def _for_fixture() -> PolarResourcesServer:
    """A server for the fixture's own, harmless tasks; plain processes will do for them, and run everywhere."""
    config = PolarResourcesServerConfig(
        host="127.0.0.1", port=1, entrypoint="app.py", name="polar", domain="coding", sandbox="process"
    )
    return PolarResourcesServer(config=config, server_client=ServerClient.model_construct())


def _no_seed(server: PolarResourcesServer, body: PolarVerifyRequest) -> None:
    """Nothing in a verification is drawn at random."""


try:
    from nemo_gym.verifier_fixture import VerifierFixture
except ImportError:  # Gym 0.4.0
    VERIFIER_FIXTURE = None
else:
    VERIFIER_FIXTURE = VerifierFixture(
        server_factory=_for_fixture,
        request_model=PolarVerifyRequest,
        cases_path=Path(__file__).parent / "tests" / "verifier_cases.jsonl",
        reseed=_no_seed,
    )


if __name__ == "__main__":
    PolarResourcesServer.run_webserver()
