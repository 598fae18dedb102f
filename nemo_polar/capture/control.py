# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The control listener: open and close sessions, pause and resume, see how the proxy is.

It is another listener than the harness's, with another secret. Answers are plain JSON; an error is
``{"error": "one sentence"}``.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import web
from pydantic import Field, ValidationError

from nemo_polar.capture.metrics import Metrics
from nemo_polar.errors import CallError, EngineError, PolarError
from nemo_polar.settings import Settings

if TYPE_CHECKING:
    from nemo_polar.capture.proxy import CaptureProxy


class OpenSession(Settings):
    """Body of ``POST /sessions``."""

    rollout_id: str
    task_id: str
    group_id: str
    attempt: int = 0
    seconds: float | None = Field(default=None, gt=0)
    max_turns: int | None = Field(default=None, gt=0)
    max_tokens: int | None = Field(default=None, gt=0)
    metadata: dict[str, Any] = {}


class ResumeBody(Settings):
    """Body of ``POST /resume``."""

    weights_version: int = Field(ge=0)


class SessionList(Settings):
    """Query of ``GET /sessions``."""

    busiest: int | None = Field(default=None, ge=0)
    """Only so many; None: all."""


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(value), content_type="application/json")


def control_refusal(status: int, sentence: str, _: bytes) -> web.Response:
    """The answer to what does not reach a route."""
    return _json({"error": sentence}, status)


def control_error(exc: CallError) -> tuple[int, Mapping[str, str], bytes]:
    """Status, extra headers and body of an error, for what the listener refuses before there is a request."""
    return exc.status, {}, orjson.dumps({"error": str(exc)})


def control_app(proxy: CaptureProxy) -> web.Application:
    """The application behind the control listener."""
    routes = web.RouteTableDef()
    metrics = Metrics(proxy)

    @web.middleware
    async def guarded(request: web.Request, handler: Any) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ").encode(errors="surrogateescape")
        if not hmac.compare_digest(given, proxy.control_secret.encode()):
            return _json({"error": "wrong control secret: send it as a bearer token"}, 401)
        try:
            return await handler(request)
        except ValidationError as exc:
            first = exc.errors()[0]
            where = ".".join(map(str, first["loc"])) or "body"
            return _json({"error": f"{where}: {first['msg']}"}, 400)
        except CallError as exc:
            return _json({"error": str(exc)}, exc.status)
        except EngineError as exc:
            return _json({"error": f"{type(exc).__name__}: {exc}"}, 502)
        except PolarError as exc:
            return _json({"error": str(exc)}, 404)

    @routes.post("/sessions")
    async def open_session(request: web.Request) -> web.Response:
        body = OpenSession.model_validate_json(await request.read())
        handle = await proxy.open_session(**body.model_dump())
        return _json({"id": handle.id, "secret": handle.secret, "expires_at": handle.expires_at, "base_url": proxy.url})

    @routes.get("/sessions")
    async def list_sessions(request: web.Request) -> web.Response:
        busiest = SessionList.model_validate(dict(request.query)).busiest
        return _json(proxy.busiest(len(proxy.sessions) if busiest is None else busiest))

    @routes.get("/sessions/{id}")
    async def show_session(request: web.Request) -> web.Response:
        return _json(proxy.session_status(request.match_info["id"]))

    @routes.delete("/sessions/{id}")
    async def close_session(request: web.Request) -> web.Response:
        record = await proxy.close_session(request.match_info["id"])
        return _json({"id": record.id, "turns": len(record.turns), "calls": record.calls, "infra_error": record.infra_error})

    @routes.post("/pause")
    async def pause(_: web.Request) -> web.Response:
        await proxy.pause()
        return _json({"paused": True})

    @routes.post("/resume")
    async def resume(request: web.Request) -> web.Response:
        body = ResumeBody.model_validate_json(await request.read())
        await proxy.resume(body.weights_version)
        return _json({"paused": False, "weights_version": body.weights_version})

    @routes.get("/health")
    async def health(_: web.Request) -> web.Response:
        problem = await proxy.problem()
        return _json({"ok": problem is None, "problem": problem, **proxy.status()}, 200 if problem is None else 503)

    @routes.get("/metrics")
    async def show_metrics(request: web.Request) -> web.Response:
        content_type, body = metrics.text(request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})

    app = web.Application(middlewares=[guarded])
    app.add_routes(routes)
    return app
