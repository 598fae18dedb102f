# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The control listener has a secret of its own, and sandboxes cannot reach through the other one."""

from __future__ import annotations

import pytest

from tests.support.proxy import running

OPEN = {"rollout_id": "r", "task_id": "t", "group_id": "g"}


async def control(rig, method: str, path: str, *, secret: str | None = None, json=None):
    headers = {"Authorization": f"Bearer {rig.proxy.control_secret if secret is None else secret}"}
    async with rig.http.request(method, rig.proxy.control_url + path, json=json, headers=headers) as response:
        return response.status, await response.json()


async def test_sessions_are_opened_listed_and_closed_over_it(tmp_path):
    async with running(tmp_path) as rig:
        status, opened = await control(rig, "POST", "/sessions", json=OPEN)
        assert status == 200
        assert opened["base_url"] == rig.proxy.url
        _, listed = await control(rig, "GET", "/sessions")
        assert [s["id"] for s in listed] == [opened["id"]]
        assert opened["secret"] not in str(listed)
        assert (await control(rig, "DELETE", f"/sessions/{opened['id']}"))[0] == 200
        assert (await control(rig, "GET", f"/sessions/{opened['id']}"))[0] == 404


@pytest.mark.parametrize("secret", ["", "guess", "ünï"])
async def test_without_its_secret_nothing_is_answered(tmp_path, secret):
    async with running(tmp_path) as rig:
        for method, path in (("GET", "/health"), ("POST", "/sessions"), ("POST", "/pause")):
            assert (await control(rig, method, path, secret=secret))[0] == 401


async def test_a_session_secret_opens_no_control_route_and_the_data_listener_has_none(tmp_path):
    async with running(tmp_path) as rig:
        client = await rig.session()
        assert (await control(rig, "GET", "/health", secret=client.secret))[0] == 401
        for path in ("/sessions", "/pause", "/health", "/resume"):
            assert (await client.post(OPEN, path=path))[0] == 404


@pytest.mark.parametrize("body", [{}, {**OPEN, "seconds": -1}, {**OPEN, "nope": 1}, {**OPEN, "rollout_id": 5}])
async def test_a_wrong_body_names_the_field(tmp_path, body):
    async with running(tmp_path) as rig:
        status, answer = await control(rig, "POST", "/sessions", json=body)
        assert status == 400
        assert ":" in answer["error"]


async def test_health_tells_of_the_engine_and_the_journal(tmp_path):
    async with running(tmp_path) as rig:
        status, answer = await control(rig, "GET", "/health")
        assert (status, answer["ok"], answer["paused"]) == (200, True, False)
        await control(rig, "POST", "/pause")
        assert (await control(rig, "GET", "/health"))[1]["paused"]
        assert (await control(rig, "POST", "/resume", json={"weights_version": 4}))[0] == 200
        assert (await control(rig, "GET", "/health"))[1]["weights_version"] == 4
