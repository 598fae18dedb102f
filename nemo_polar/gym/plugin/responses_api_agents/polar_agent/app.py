# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The Polar agent: any harness, unmodified, with every sampled token exact, as a NeMo Gym agent server.

One file for Gym 0.4.0 and 0.7.0. It speaks HTTP with Gym and nothing else: rollouts are ``nemo_polar.gym.service``'s, and what
a result holds is ``nemo_polar.gym.result``'s. A rollout whose client has gone is cancelled, and a failed one is answered as
Gym's own failure row, never as a reward.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

import orjson
from aiohttp import ClientResponse, ClientResponseError
from fastapi import FastAPI, Request, Response
from nemo_gym.base_resources_server import BaseRunRequest
from nemo_gym.base_responses_api_agent import BaseResponsesAPIAgentConfig, SimpleResponsesAPIAgent
from nemo_gym.config_types import ModelServerRef, ResourcesServerRef
from nemo_gym.global_config import get_first_server_config_dict
from nemo_gym.openai_utils import NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.server_utils import get_response_json, raise_for_status
from pydantic import ConfigDict, PrivateAttr

from nemo_polar.errors import CallError, ConfigError, PolarError, VerifierError
from nemo_polar.gym.result import FAILURE_CLASS, failure_row
from nemo_polar.gym.service import GymService
from nemo_polar.gym.settings import GymAgentSettings, from_block


class PolarAgentConfig(BaseResponsesAPIAgentConfig):
    """The agent's block. What is not listed here is a field of ``GymAgentSettings``, and a misspelt one is refused."""

    model_config = ConfigDict(extra="allow")

    resources_server: ResourcesServerRef
    model_server: ModelServerRef


class PolarRunRequest(BaseRunRequest):
    """A row of a dataset; see ``nemo_polar.gym.rows`` for the keys that Polar reads."""

    model_config = ConfigDict(extra="allow", populate_by_name=True)


class PolarAgent(SimpleResponsesAPIAgent):
    """See the module."""

    ray_enabled: ClassVar[bool | None] = False
    config: PolarAgentConfig
    _service: GymService = PrivateAttr()
    _under_way: set[asyncio.Task[Any]] = PrivateAttr(default_factory=set)

    def setup_webserver(self) -> FastAPI:
        """Gym's own routes, and the service started and stopped with the server.

        Raises:
            ConfigError: a setting is wrong; the message names it.
        """
        if self.config.num_workers not in (None, 1):
            raise ConfigError(
                f"num_workers: must be 1 for {self.config.name}, and is {self.config.num_workers}. One process holds the "
                "capture proxy and every rollout's session; 'concurrency' bounds how many run at a time"
            )
        self._service = self.make_service()
        app = super().setup_webserver()
        inner = app.router.lifespan_context

        @contextlib.asynccontextmanager
        async def lifespan(started: FastAPI) -> AsyncIterator[Any]:
            async with self._serving(), inner(started) as state:
                yield state

        app.router.lifespan_context = lifespan
        return app

    def make_service(self) -> GymService:
        """The service this agent fronts.

        Raises:
            ConfigError: a setting is wrong.
        """
        name, block = self.config.name, self.config.model_extra or {}
        settings = from_block(GymAgentSettings, name, block, {"name": name, **self._model_server()})
        changed: dict[str, Any] = {"out": str(_from_where_gym_was_started(settings.out))}
        if settings.tokenizer is not None:
            changed["tokenizer"] = str(_from_where_gym_was_started(settings.tokenizer))
        return GymService(settings.model_copy(update=changed), say=_say)

    def _model_server(self) -> dict[str, Any]:
        """Gym's model server, its model, and the engine (or engines) that it fronts, as Gym's own configuration has them."""
        block = get_first_server_config_dict(self.server_client.global_config_dict, self.config.model_server.name)
        behind = block.get("base_url") or []
        return {
            "model": block.get("model"),
            "model_url": self.server_client._build_server_base_url(block),
            "model_base_urls": [behind] if isinstance(behind, str) else list(behind),
        }

    # --- life ---------------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        try:
            await self._service.start()
        except PolarError as exc:
            print(f"{self.config.name} cannot start: {exc}", file=sys.stderr, flush=True)
            await self._service.stop()
            raise
        _say(self._service.banner)
        try:
            with self._cancelled_by_signals():
                yield
        finally:
            await self._cancel_all()
            await self._service.stop()

    @contextlib.contextmanager
    def _cancelled_by_signals(self) -> Iterator[None]:
        """Cancel rollouts as soon as the server is told to end.

        Gym kills a server that is still there one second after its SIGINT, and uvicorn lets requests run on for half of it.
        """
        loop = asyncio.get_running_loop()
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

        def told(number: int, frame: FrameType | None) -> None:
            loop.call_soon_threadsafe(self._cancel)
            handler = before[signal.Signals(number)]
            if callable(handler):
                handler(number, frame)

        try:
            for number in before:
                signal.signal(number, told)
        except ValueError:  # not the main thread, as in a test client: nobody sends signals here
            yield
            return
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _cancel(self) -> None:
        for task in self._under_way:
            _cancel_once(task)

    async def _cancel_all(self) -> None:
        self._cancel()
        if self._under_way:
            await asyncio.wait(self._under_way)

    # --- routes -------------------------------------------------------------------------------------------------------

    async def run(self, request: Request, body: PolarRunRequest) -> Response:  # type: ignore[override]
        """One rollout of one row, verified.

        Answers Gym's verify response, or, for a rollout that failed for reasons of infrastructure, a failure row: with status
        200, or with 503 where ``on_failure`` is ``error``.
        """
        row = orjson.loads(await request.body())
        result = await self._unless_gone(request, self._rolled(row, request.cookies))
        if result is None:
            return _json(_error("the client has gone, so the rollout was cancelled", "cancelled"), 499)
        failed = FAILURE_CLASS in result
        return _json(result, 503 if failed and self._service.settings.on_failure == "error" else 200)

    async def responses(  # type: ignore[override]
        self, request: Request, body: NeMoGymResponseCreateParamsNonStreaming
    ) -> Response:
        """A single-turn rollout, or the reason why there is none."""
        params = orjson.loads(await request.body())
        try:
            answer = await self._unless_gone(request, self._service.responses(params))
        except CallError as exc:
            return _json(_error(exc.message, exc.kind, exc.param), exc.status)
        except ConfigError as exc:
            return _json(_error(str(exc), "invalid_request"), 400)
        except PolarError as exc:
            return _json(_error(str(exc), "unavailable"), 503)
        return _json(_error("the client has gone", "cancelled"), 499) if answer is None else _json(answer)

    async def _rolled(self, row: dict[str, Any], cookies: Mapping[str, str]) -> dict[str, Any]:
        """A row's rollout, handed to the resources server if it came to a result; whatever fails, a failure row."""
        try:
            seeded = await self._resources("/seed_session", row, cookies)
            result = await self._service.run(row)
            if FAILURE_CLASS in result:
                return result
            verified = await self._resources("/verify", result, seeded.cookies)
            return await get_response_json(verified)
        except (ConfigError, CallError) as exc:  # of this row, and so of every further attempt
            return failure_row(row, "polar:bad_row", str(exc), terminal=True)
        except VerifierError as exc:
            return failure_row(row, "verifier_error", str(exc))
        except PolarError as exc:
            return failure_row(row, "polar:capture_failed", str(exc))

    async def _resources(self, path: str, body: dict[str, Any], cookies: Any) -> ClientResponse:
        """A call of the resources server, the session's cookies along.

        Raises:
            VerifierError: it refused, with what it said.
        """
        name = self.config.resources_server.name
        answer = await self.server_client.post(server_name=name, url_path=path, json=body, cookies=cookies)
        try:
            await raise_for_status(answer)
        except ClientResponseError as exc:
            said = getattr(exc, "response_content", b"").decode(errors="replace")
            raise VerifierError(f"{name}{path} answered {exc.status}: {said[:2000]}") from exc
        return answer

    async def _unless_gone(self, request: Request, work: Coroutine[Any, Any, Any]) -> Any:
        """What ``work`` comes to; None, and ``work`` cancelled, when the client leaves first.

        ``work`` runs in a task of its own, so that it is cancelled once and can clean up at leisure: Gym 0.7.0 cancels a
        handler whose client has gone over and over, and 0.4.0 does not cancel it at all.
        """
        working = asyncio.create_task(work)
        self._under_way.add(working)
        working.add_done_callback(self._under_way.discard)
        leaving = asyncio.create_task(_gone(request))
        try:
            await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
            if working.done() and not working.cancelled():
                return working.result()
            return None
        finally:
            leaving.cancel()
            _cancel_once(working)


def _from_where_gym_was_started(path: str) -> Path:
    """``path`` as the user meant it: Gym's shell went from there into this server's own folder, and left it in OLDPWD."""
    return Path(os.environ.get("OLDPWD") or Path.cwd()) / Path(path).expanduser()


def _say(text: str) -> None:
    print(text, flush=True)


def _cancel_once(task: asyncio.Task[Any]) -> None:
    """Cancel ``task`` unless that was done already: a second time would cut into its cleaning up."""
    if not task.cancelling():
        task.cancel()


async def _gone(request: Request) -> None:
    """Return when the client has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _json(value: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status, media_type="application/json")


def _error(message: str, kind: str, param: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": None}}


if __name__ == "__main__":
    PolarAgent.run_webserver()
