# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""``polar harness``: what it prints, and how it exits. Nothing is installed here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nemo_polar import registry
from nemo_polar.cli import app


@pytest.fixture(autouse=True)
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A POLAR_HOME without a toolchain, on a machine without npm."""
    monkeypatch.setenv("POLAR_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    return tmp_path


def polar(*words: str, code: int) -> tuple[str, str]:
    ran = CliRunner().invoke(app, ["harness", *words])
    assert ran.exit_code == code, ran.output
    return ran.stdout, ran.stderr


def test_the_list_names_every_harness_with_its_api_and_its_pin(empty: Path) -> None:
    lines = polar("list", code=0)[0].splitlines()
    names = registry.names("harnesses")
    assert lines[0].split() == ["name", "API", "pinned", "installed", "command", "package"]
    assert [line.split()[0] for line in lines[1:-1]] == names and lines[-1] == f"toolchain: {empty / 'toolchain'}"
    [pi] = [line.split() for line in lines if line.startswith("pi ")]
    assert pi == ["pi", "openai_chat", "1.6.0", "no", "pi", "@earendil-works/pi-coding-agent"]
    assert [row["name"] for row in json.loads(polar("list", "--json", code=0)[0])["harnesses"]] == names


def test_a_name_that_nothing_is_called_is_wrong_usage_and_installs_nothing(empty: Path) -> None:
    assert "nothing is called 'nosuch'" in polar("install", "pi", "nosuch", code=2)[1]
    assert not (empty / "toolchain").exists()


def test_what_cannot_be_installed_is_said_in_one_sentence_and_stops_no_other() -> None:
    assert "polar: pi: npm is missing: install Node.js" in polar("install", "pi", code=3)[1]
    said = polar("install", "pi", "codex", "shell", code=3)[1]
    assert said.count("npm is missing") == 2 and "[3/3] shell: nothing to install" in said
    assert "polar: not installed: pi, codex; run the same command again" in said


def test_the_doctor_fails_for_what_it_was_asked_about_and_only_mentions_the_rest() -> None:
    text = polar("doctor", "pi", code=1)[0]
    assert "wrong    pi" in text and "is not installed" in text and "polar harness install pi" in text
    found = json.loads(polar("doctor", "--json", code=0)[0])
    assert [entry["name"] for entry in found["checked"]] == ["shell"]
    assert found["not_installed"] == [name for name in registry.names("harnesses") if name != "shell"]
