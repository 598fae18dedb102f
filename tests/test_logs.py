# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A log says whose a record is, one line each, holds no secret, and never holds up the code that logs."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nemo_polar import logs
from nemo_polar.engines.scripted import ScriptedEngine
from nemo_polar.engines.vllm import VllmEngine
from nemo_polar.errors import EngineUnavailable
from nemo_polar.logs import Form, Level, Lost, about, hide, redact, to_file, to_stderr
from tests.support.proxy import running

SESSION = "sk-polar-" + "aB3_-" * 8
CONTROL = "polar-control-" + "Zz9-_" * 8
KEY = "f00dcafe-8899"
log = logging.getLogger("nemo_polar.test")


def lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(autouse=True)
def hidden() -> Iterator[None]:
    before = set(logs._hidden)
    yield
    logs._hidden.clear()
    logs._hidden.update(before)


LEAKS = {
    "session": f"refused {SESSION}",
    "control": f"secret={CONTROL}.",
    "bearer": f"{{'Authorization': 'Bearer {KEY}'}}",
    "lower case": f'authorization: bearer {KEY}"',
    "basic": f"Authorization: Basic {KEY}",
    "no scheme": f"authorization={KEY}",
    "another provider's": f"x-api-key: {KEY}, x-goog-api-key: {KEY}",
    "python": f"EngineHttp(api_key='{KEY}')",
    "json": f'{{"api_key": "{KEY}"}}',
    "query": f"GET /v1beta/models?key={KEY}&alt=sse",
    "in a URL": f"http://me:{KEY}@host:1/v1",
    "bytes": repr(f"Bearer {KEY}".encode()),
    "provider's shape": f"sk-proj-{KEY}",
}


@pytest.mark.parametrize("text", LEAKS.values(), ids=LEAKS)
def test_secrets_are_redacted_wherever_they_stand(text: str) -> None:
    shown = redact(text)
    assert not any(secret in shown for secret in (SESSION, CONTROL, KEY)) and "[redacted]" in shown


def test_what_is_no_secret_is_left_as_it_is() -> None:
    text = "task-12345678 of risk-00000001: 12 tokens, key words, http://127.0.0.1:8000/v1?a=b, sk-, Bearer"
    assert redact(text) == text


@pytest.mark.parametrize("form", list(Form))
def test_secrets_in_messages_arguments_and_exceptions_reach_no_log(form: Form, capsys: pytest.CaptureFixture[str]) -> None:
    hide(KEY)
    with to_stderr(form, Level.INFO):
        log.warning("refused %s", SESSION)
        log.warning("answered %r", {"Authorization": f"Bearer {CONTROL}"})
        try:
            try:
                raise ValueError(f"inner {CONTROL}")
            except ValueError as exc:
                raise EngineUnavailable(f"POST http://x/ with {KEY} and {SESSION}") from exc
        except EngineUnavailable:
            log.exception("it failed with %s", KEY)
        logging.getLogger("aiohttp.server").error("header %s", SESSION)
    shown = capsys.readouterr().err
    assert not any(secret in shown for secret in (SESSION, CONTROL, KEY))
    assert shown.count("[redacted]") >= 6 and "EngineUnavailable" in shown and "aiohttp.server" in shown


def test_keys_of_engines_are_hidden_once_a_client_has_them() -> None:
    VllmEngine("http://127.0.0.1:9", api_key=KEY)
    assert redact(f"the engine says: {KEY}") == "the engine says: [redacted]"


def test_a_record_is_one_line_with_its_time_level_logger_and_subject(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Kept from pytest's own capture: a report with half a surrogate pair in it ends the test process of pytest-xdist.
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    with to_file(tmp_path / "a.log"):
        with about("s1", "r1"):
            log.info("two\nlines, \x1b[31m and \udc80")
        log.debug("too little to be told")
    (line,) = lines(tmp_path / "a.log")
    assert line.pop("ts").endswith("Z")
    assert line == {
        "level": "INFO",
        "logger": "nemo_polar.test",
        "message": "two\nlines, \x1b[31m and \udc80",
        "session": "s1",
        "rollout": "r1",
    }


def test_text_for_people_cannot_be_made_to_look_like_another_line(capsys: pytest.CaptureFixture[str]) -> None:
    with to_stderr(Form.TEXT, Level.INFO):
        log.info("hello\n2026-01-01T00:00:00Z ERROR forged\x1b[2J")
    (line,) = capsys.readouterr().err.splitlines()
    assert "\\n2026" in line and "\x1b" not in line


def test_a_reader_that_has_stopped_costs_lines_and_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_CLOSE_SECONDS", 0.05)
    stuck = threading.Event()
    handler = logs.LineHandler(lambda _: stuck.wait(), Form.JSON)
    lost, record = Lost.lines, logging.makeLogRecord({"msg": "x"})
    began = time.perf_counter()
    for _ in range(logs._QUEUED + 500):
        handler.handle(record)
    handler.close()
    assert Lost.lines - lost >= 499 and time.perf_counter() - began < 20
    stuck.set()


def test_a_record_that_cannot_be_formatted_is_counted_and_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    lost, written = Lost.lines, []
    handler = logs.LineHandler(written.append, Form.JSON)
    handler.handle(logging.makeLogRecord({"msg": "%d", "args": (SESSION,)}))
    handler.handle(logging.makeLogRecord({"msg": "the next one"}))
    handler.close()
    assert Lost.lines == lost + 1 and [json.loads(line)["message"] for line in written] == ["the next one"]
    assert capsys.readouterr().err == ""


def test_loggers_are_left_as_they_were(tmp_path: Path) -> None:
    root, ours = logging.getLogger(), logging.getLogger("nemo_polar")
    before = (list(root.handlers), ours.level)
    with to_file(tmp_path / "a.log"), to_stderr(level=Level.DEBUG):
        assert ours.level == logging.DEBUG
    assert (list(root.handlers), ours.level) == before


class Leaky(ScriptedEngine):
    """Fails with a secret in its message; its own library logs another."""

    async def generate(self, request):
        logging.getLogger("some.library").error("sent Bearer %s", KEY)
        raise EngineUnavailable(f"POST with Authorization: Bearer {KEY} was refused ({SESSION})")
        yield


async def test_a_call_that_fails_is_logged_with_its_session_rollout_and_call(tmp_path: Path) -> None:
    with to_file(tmp_path / "a.log"):
        async with running(tmp_path, engine=Leaky(vocab=259), engine_retries=1) as rig:
            client = await rig.session("the-rollout")
            assert (await client.post(client.body([{"role": "user", "content": "go"}])))[0] == 503
            await rig.proxy.close_session(client.session_id)
    found = lines(tmp_path / "a.log")
    assert {line["session"] for line in found} == {client.session_id}
    assert {line["rollout"] for line in found} == {"the-rollout"}
    said = [line["message"].partition(":")[0] for line in found]
    assert said == [
        "session opened",
        "sent Bearer [redacted]",
        "the engine failed, and is asked again",
        "sent Bearer [redacted]",
        "a reply failed (EngineUnavailable)",
        "session ended",
    ]
    assert len({line["call"] for line in found if "call" in line}) == 1 and "call" in found[-2]
    text = (tmp_path / "a.log").read_text()
    assert not any(secret in text for secret in (KEY, SESSION, client.secret, rig.proxy.control_secret))
