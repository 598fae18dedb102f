# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest
import uvicorn
from aiohttp import ClientResponseError
from fastapi import FastAPI
from fastapi.testclient import TestClient
from nemo_gym.server_utils import ServerClient
from omegaconf import OmegaConf
from responses_api_agents.polar_agent import app as polar

from nemo_polar.errors import BadRequest, ConfigError, EngineUnavailable, JournalError, TaskFileError
from nemo_polar.gym.settings import GymAgentSettings

ROW = {
    "responses_create_params": {"input": [{"role": "user", "content": "Create a.txt"}], "tools": []},
    "polar_task": {"id": "a", "instruction": "Create a.txt", "verifier": {"type": "command", "command": "test -f a.txt"}},
    "agent_ref": {"type": "responses_api_agents", "name": "polar_agent"},
    "_ng_task_index": 3,
    "_ng_rollout_index": 1,
}
SCORED = {
    "response": {"id": "resp_1", "output": [{"type": "message", "generation_token_ids": [3], "generation_log_probs": [-1e-7]}]},
    "reward": 1.0,
    "reward_components": {"exit": 1.0},
    "mask_sample": False,
    "failure_kind": None,
    "polar": {"format": "polar-gym", "status": "completed", "traces": [{"id": "a.0/4"}]},
}
FAILED = {
    "_ng_failure_class": "provider_unavailable",
    "_ng_failure_terminal": False,
    "_ng_failure_message": "no sandbox",
    "failure_kind": "provider_unavailable",
    "mask_sample": True,
    "polar": {"format": "polar-gym", "status": "sandbox_failed"},
}
WAIT_SECONDS = 20.0


class FakeService:
    """A service whose rollouts come to what a test says."""

    def __init__(self, settings: GymAgentSettings, outcome: Any = SCORED) -> None:
        self.settings = settings
        self.outcome = outcome
        self.rows: list[dict[str, Any]] = []
        self.running = threading.Event()
        self.cancelled = threading.Event()
        self.cancellations = 0
        self.calls: list[str] = []
        self.banner = "polar: fake harness; route exact: every token is exact by construction"

    async def start(self) -> None:
        self.calls.append("start")
        if isinstance(self.outcome, EngineUnavailable):
            raise self.outcome

    async def stop(self) -> None:
        self.calls.append("stop")

    async def run(self, row: dict[str, Any]) -> dict[str, Any]:
        self.rows.append(row)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        if self.outcome is None:  # a harness that would run for ever
            try:
                self.running.set()
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0.05)  # what was opened must be closed, undisturbed
                self.cancellations += 1
                self.cancelled.set()
        return row | self.outcome

    async def responses(self, params: dict[str, Any]) -> dict[str, Any]:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return {"id": "resp_1", "asked": params}


class FakeAnswer:
    """What Gym's client gives for an answer of the resources server."""

    def __init__(self, body: Any, status: int, session: str) -> None:
        self._body = json.dumps(body).encode()
        self.status, self.ok = status, status < 400
        self.cookies = {"session": session}
        self.content = MagicMock(read=AsyncMock(return_value=self._body))
        self.request_info = None

    async def read(self) -> bytes:
        return self._body

    def raise_for_status(self) -> None:
        raise ClientResponseError(MagicMock(), (), status=self.status)


class FakeResources:
    """A resources server that answers with what it is sent, a new cookie each time, or refuses at one path."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any, dict[str, str]]] = []
        self.refuses: str | None = None

    async def post(self, server_name: str, url_path: str, json: Any, cookies: Any) -> FakeAnswer:
        assert server_name == "polar"
        self.asked.append((url_path, json, dict(cookies or {})))
        refused = url_path == self.refuses
        return FakeAnswer({"detail": "not so"} if refused else json, 422 if refused else 200, f"after {url_path}")


class Rig:
    """An agent server with fakes around it."""

    def __init__(self, outcome: Any = SCORED, **block: Any) -> None:
        self.resources = FakeResources()
        client = MagicMock(spec=ServerClient, post=self.resources.post)
        client.global_config_dict = OmegaConf.create(
            {
                "policy_model": {
                    "responses_api_models": {
                        "vllm_model": {"host": "127.0.0.1", "port": 5, "base_url": "http://127.0.0.1:6/v1", "model": "m"}
                    }
                }
            }
        )
        client._build_server_base_url = lambda block: f"http://{block.host}:{block.port}"
        given = {
            "host": "127.0.0.1",
            "port": 1,
            "entrypoint": "app.py",
            "name": "polar_agent",
            "resources_server": {"type": "resources_servers", "name": "polar"},
            "model_server": {"type": "responses_api_models", "name": "policy_model"},
            "datasets": [],
        }
        self.service: FakeService
        rig = self

        class Agent(polar.PolarAgent):
            def make_service(self) -> Any:
                rig.service = FakeService(super().make_service().settings, outcome)
                return rig.service

        self.agent = Agent(config=polar.PolarAgentConfig(**given | block), server_client=client)
        self.app: FastAPI = self.agent.setup_webserver()

    @contextlib.contextmanager
    def client(self) -> Iterator[TestClient]:
        with TestClient(self.app) as client:
            yield client


def test_a_scored_rollout_is_verified_and_comes_back_with_every_extra_key() -> None:
    rig = Rig()
    with rig.client() as client:
        answer = client.post("/run", json=ROW, cookies={"session": "of the client"})
    assert answer.status_code == 200
    assert answer.json() == ROW | SCORED
    assert rig.service.rows == [ROW]
    seeded, verified = rig.resources.asked
    assert seeded == ("/seed_session", ROW, {"session": "of the client"})
    assert verified == ("/verify", ROW | SCORED, {"session": "after /seed_session"})


def test_a_failed_rollout_comes_back_as_gyms_failure_and_is_not_verified() -> None:
    rig = Rig(FAILED)
    with rig.client() as client:
        answer = client.post("/run", json=ROW)
    assert answer.status_code == 200
    assert answer.json() == ROW | FAILED
    assert "reward" not in answer.json()
    assert [path for path, _, _ in rig.resources.asked] == ["/seed_session"]


def test_a_failed_rollout_is_an_http_error_where_that_is_asked_for() -> None:
    with Rig(FAILED, on_failure="error").client() as client:
        answer = client.post("/run", json=ROW)
    assert answer.status_code == 503
    assert answer.json()["_ng_failure_class"] == "provider_unavailable"


@pytest.mark.parametrize(
    ("error", "kind", "terminal"),
    [
        (TaskFileError("is missing", field="polar_task"), "polar:bad_row", True),
        (BadRequest("a temperature of 0"), "polar:bad_row", True),
        (JournalError("disk full"), "polar:capture_failed", False),
    ],
)
def test_what_the_service_refuses_is_a_failure_row_and_never_a_reward(error: Exception, kind: str, terminal: bool) -> None:
    with Rig(error).client() as client:
        answer = client.post("/run", json=ROW)
    assert answer.status_code == 200
    body = answer.json()
    assert (body["_ng_failure_class"], body["_ng_failure_terminal"]) == (kind, terminal)
    assert str(error) in body["_ng_failure_message"]
    assert body["polar_task"] == ROW["polar_task"]
    assert not {"reward", "response"} & body.keys()


@pytest.mark.parametrize("path", ["/seed_session", "/verify"])
def test_a_resources_server_that_refuses_makes_a_failure_row(path: str) -> None:
    rig = Rig()
    rig.resources.refuses = path
    with rig.client() as client:
        body = client.post("/run", json=ROW).json()
    assert body["_ng_failure_class"] == "verifier_error"
    assert "not so" in body["_ng_failure_message"]
    assert not {"reward", "response"} & body.keys()


def test_a_row_without_a_prompt_is_refused_by_gym_itself() -> None:
    with Rig().client() as client:
        assert client.post("/run", json={"polar_task": {}}).status_code == 422


def test_responses_answers_with_a_single_rollout() -> None:
    with Rig().client() as client:
        answer = client.post("/v1/responses", json={"input": "Create a.txt"})
    assert answer.status_code == 200
    assert answer.json() == {"id": "resp_1", "asked": {"input": "Create a.txt"}}


@pytest.mark.parametrize(
    ("error", "status"),
    [(BadRequest("no user message", param="input"), 400), (TaskFileError("no text"), 400), (JournalError("disk full"), 503)],
)
def test_responses_says_why_there_is_no_answer(error: Exception, status: int) -> None:
    with Rig(error).client() as client:
        answer = client.post("/v1/responses", json={"input": "x"})
    assert answer.status_code == status
    assert str(error) in answer.json()["error"]["message"]


def test_the_service_lives_as_long_as_the_server_and_says_what_is_in_force(capsys: pytest.CaptureFixture[str]) -> None:
    rig = Rig()
    assert rig.service.calls == []
    with rig.client():
        assert rig.service.calls == ["start"]
        assert rig.service.banner in capsys.readouterr().out
    assert rig.service.calls == ["start", "stop"]


def test_a_service_that_cannot_start_ends_the_server_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    rig = Rig(EngineUnavailable("nothing listens at http://127.0.0.1:6"))
    with pytest.raises(EngineUnavailable), rig.client():
        pass
    assert "polar_agent cannot start: nothing listens at http://127.0.0.1:6" in capsys.readouterr().err
    assert rig.service.calls == ["start", "stop"]


def test_gyms_configuration_says_where_the_model_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("OLDPWD", str(tmp_path))
    settings = Rig(harness="shell", harness_options={"command": "true"}, out="kept", num_workers=1).service.settings
    assert (settings.model, settings.model_url, settings.model_base_urls) == (
        "m",
        "http://127.0.0.1:5",
        ("http://127.0.0.1:6/v1",),
    )
    assert (settings.name, settings.harness, settings.harness_options) == ("polar_agent", "shell", {"command": "true"})
    assert settings.out == str(tmp_path / "kept")


@pytest.mark.parametrize(
    ("block", "said"),
    [({"num_workers": 2}, "num_workers"), ({"harnes": "pi"}, "harnes"), ({"concurrency": 0}, "concurrency")],
)
def test_a_wrong_setting_is_refused_by_name(block: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Rig(**block)


# --- a client that leaves, with the middlewares that Gym puts around the server, over a real socket -----------------------


@contextlib.contextmanager
def served(rig: Rig) -> Iterator[int]:
    rig.agent.setup_exception_middleware(rig.app)
    if hasattr(rig.agent, "setup_cancellation_middleware"):
        rig.agent.setup_cancellation_middleware(rig.app)
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(rig.app, log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(WAIT_SECONDS)
        listening.close()
    assert not thread.is_alive()


def sent(port: int, path: str) -> socket.socket:
    body = json.dumps(ROW if path == "/run" else {"input": "x"}).encode()
    connection = socket.create_connection(("127.0.0.1", port))
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


def test_a_client_that_leaves_cancels_its_rollout_and_no_other() -> None:
    rig = Rig(None)
    with served(rig) as port:
        leaving = sent(port, "/run")
        assert rig.service.running.wait(WAIT_SECONDS)
        rig.service.running.clear()
        staying = sent(port, "/run")
        assert rig.service.running.wait(WAIT_SECONDS)
        leaving.close()
        assert rig.service.cancelled.wait(WAIT_SECONDS)
        assert rig.service.cancellations == 1
        staying.close()


def test_a_server_that_ends_cancels_its_rollouts_before_the_service_stops() -> None:
    rig = Rig(None)
    with served(rig) as port:
        waiting = sent(port, "/run")
        assert rig.service.running.wait(WAIT_SECONDS)
    assert rig.service.cancelled.is_set()
    assert rig.service.calls == ["start", "stop"]
    waiting.close()
