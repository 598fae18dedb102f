# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Gym's own commands know Polar: it is listed, its configuration is valid, and its servers pass Gym's tests. Starts no servers.

Runs inside an environment that has ``nemo_gym`` (either version); skipped elsewhere.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = [pytest.mark.gym, pytest.mark.timeout(900)]
pytest.importorskip("nemo_gym", reason="runs inside NeMo Gym's own environment")

from tests.gym.live.real_gym import gym_version, polar  # noqa: E402


def test_gym_lists_the_environment(tmp_path: Path) -> None:
    linked = polar("gym", "link", cwd=tmp_path)
    assert linked.returncode == 0, linked.stderr
    try:
        listed = polar("gym", "list", cwd=tmp_path)
    finally:
        removed = polar("gym", "link", "--remove", cwd=tmp_path)
    assert listed.returncode == 0, listed.stderr
    assert "polar" in listed.stdout.split()
    assert "coding" in listed.stdout
    assert removed.returncode == 0, removed.stderr


def test_the_configuration_is_valid(tmp_path: Path) -> None:
    done = polar("gym", "validate", "--model", "m", "--model-url", "http://127.0.0.1:9/v1", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Config is valid" in done.stdout


def test_gyms_own_tests_of_our_servers_and_their_data_pass(tmp_path: Path) -> None:
    pytest.importorskip("pytest_asyncio", reason="Gym's own tests want it")
    done = polar("gym", "test", cwd=tmp_path, seconds=800)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "resources_servers/polar has been successfully validated" in done.stdout
    if gym_version() >= (0, 7):
        assert "Verifier: polar" in done.stdout
