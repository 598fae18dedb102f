# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Rule 5: what was acknowledged is on disk. Kills and full disks are real ones."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nemo_polar.capture.journal import CallRow, Journal, JournalReader, Request
from nemo_polar.errors import JournalError
from nemo_polar.types import FinishReason, Kind, Message, Role, Sample, Text, ToolSpec, Turn, as_ids, as_logprobs
from tests.support.runs import FakePolicy, call_row, draw_tree, session_row

ROOT = Path(__file__).parents[2]


def turn_of(session_id: str, number: int, tokens: int = 8) -> Turn:
    [turn] = draw_tree(FakePolicy(random.Random(number)), session_id, 1, plain=True)
    ids, logprobs = as_ids(np.arange(tokens)), as_logprobs(-np.arange(tokens) / 3)
    ids_of_turn = {"request_id": f"{session_id}-q{number}", "call_id": f"{session_id}-c{number}"}
    return replace(turn, id=number, sample=Sample(ids, logprobs, FinishReason.STOP), **ids_of_turn)


def same(a: Turn, b: Turn) -> bool:
    def key(t: Turn) -> object:
        arrays = (t.prompt_delta.tobytes(), t.sample.token_ids.tobytes(), t.sample.logprobs.tobytes())
        bare = replace(t, prompt_delta=as_ids([]), sample=replace(t.sample, token_ids=as_ids([]), logprobs=as_logprobs([])))
        return arrays, repr(bare)

    return key(a) == key(b)


async def test_what_is_read_back_is_bit_equal_to_what_was_written(tmp_path: Path) -> None:
    turns = draw_tree(FakePolicy(random.Random(7)), "s", 30)
    turns[3] = replace(turns[3], tools_key=b"\x00t", system_key=b"\xffs", sample=replace(turns[3].sample, stop="é\ud800"[:1]))
    journal = Journal(tmp_path / "j.db")
    journal.start()
    row = replace(session_row("s", "r"), metadata={"odd": "\ud800", "big": 2**70})
    await journal.add_session(row)
    asked = Request((Message(Role.USER, (Text("é \ud800"),)),), (ToolSpec("t", "d", {"b": 1, "a": [2]}, True),))
    await asyncio.gather(*(journal.add_turn(t, asked if t.parent is None else None) for t in turns))
    for turn in turns:
        await journal.set_kind("s", turn.id, turn.kind)
        if turn.delivered:
            journal.mark_delivered("s", turn.id)
    await journal.stop()
    with JournalReader(journal.path) as reader:
        assert reader.sessions() == [row]
        assert reader.requests("s") == {t.id: asked for t in turns if t.parent is None}
        assert all(map(same, reader.turns("s"), turns))
        assert len(reader.turns("s")) == len(turns)
        assert reader.turns("other") == []
    await journal.stop()
    with sqlite3.connect(journal.path) as db:  # the log has been folded in: the file alone is the whole journal
        assert db.execute("PRAGMA wal_checkpoint").fetchone() == (0, 0, 0)


async def test_every_request_of_a_call_ends_with_its_turn_a_retry_or_a_named_failure(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.db")
    journal.start()
    turn = turn_of("s", 0)
    for request_id, call_id in [
        ("q-first", turn.call_id),
        (turn.request_id, turn.call_id),
        ("q-lost", "c9"),
        ("q-open", "c10"),
    ]:
        journal.open_call(replace(call_row(turn), request_id=request_id, call_id=call_id, dropped=("n>1",)))
    await journal.add_turn(turn)
    await journal.end_call("c9", "q-lost", 5.0, "EngineTimeout", "no answer \ud800")
    await journal.stop()
    with JournalReader(journal.path) as reader:
        calls = reader.calls("s")
    assert [(c.request_id, c.status) for c in calls] == [
        ("q-first", "retried"),
        (turn.request_id, "turn"),
        ("q-lost", "EngineTimeout"),
        ("q-open", None),
    ]
    assert calls[2].error == "no answer \\ud800" and calls[2].ended_at == 5.0
    assert isinstance(calls[0], CallRow) and calls[0].dropped == ("n>1",) and calls[0].streamed is True


async def test_delivery_kind_results_and_the_end_of_a_session_are_recorded(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.db", durability="power")
    journal.start()
    await journal.add_session(session_row("s", "r"))
    await journal.add_turn(replace(turn_of("s", 0), delivered=False))
    journal.mark_delivered("s", 0)
    await journal.set_kind("s", 0, Kind.COMPACTION)
    await journal.close_session("s", 9.0, "closed")
    await journal.add_result("r", "g", "t", 0, {"reward": 0.0})
    await journal.add_result("r", "g", "t", 0, {"reward": 1.0})
    await journal.stop()
    with JournalReader(journal.path) as reader:
        [turn], [session], [result] = reader.turns("s"), reader.sessions(), reader.results()
    assert turn.delivered and turn.kind is Kind.COMPACTION
    assert (session.closed_at, session.status) == (9.0, "closed")
    assert result.payload == {"reward": 1.0}


async def test_a_wrong_row_fails_alone_and_its_batch_is_committed(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.db")
    journal.start()
    await journal.add_turn(turn_of("s", 0))
    writes = [journal.add_turn(turn_of("s", n)) for n in (1, 0, 2)]
    first, twice, last, unknown, no_json = await asyncio.gather(
        *writes,
        journal.end_call("c", "q99", 1.0, "EngineTimeout", None),
        journal.add_result("r", "g", "t", 0, {"x": object()}),
        return_exceptions=True,
    )
    assert first is None and last is None
    assert isinstance(twice, JournalError) and isinstance(unknown, JournalError) and isinstance(no_json, JournalError)
    assert journal.healthy
    with JournalReader(journal.path) as reader:
        assert [t.id for t in reader.turns("s")] == [0, 1, 2]
    await journal.stop()


async def test_a_stopped_journal_refuses_writes_and_what_was_queued_before_is_committed(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.db")
    journal.start()
    queued = [asyncio.ensure_future(journal.add_turn(turn_of("s", n))) for n in range(100)]
    await asyncio.sleep(0)
    await journal.stop()
    await asyncio.gather(*queued)
    with pytest.raises(JournalError):
        await journal.add_turn(turn_of("s", 100))
    assert not journal.healthy
    await journal.stop()
    with JournalReader(journal.path) as reader:
        assert len(reader.turns("s")) == 100


async def test_cancelling_a_caller_neither_undoes_its_write_nor_harms_the_others(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.db")
    journal.start()
    tasks = [journal.add_turn(turn_of("s", n)) for n in range(10)]
    tasks[4].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    await journal.stop()
    assert [type(r) for r in results if r is not None] == [asyncio.CancelledError]
    with JournalReader(journal.path) as reader:
        assert len(reader.turns("s")) == 10


def test_callers_in_several_event_loops_are_each_woken_in_their_own(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.db")
    journal.start()

    async def write(session_id: str) -> None:
        await asyncio.gather(*(journal.add_turn(turn_of(session_id, n)) for n in range(50)))

    threads = [threading.Thread(target=lambda s=s: asyncio.run(write(s))) for s in ("a", "b", "c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    asyncio.run(journal.stop())
    with JournalReader(journal.path) as reader:
        assert [len(reader.turns(s)) for s in ("a", "b", "c")] == [50, 50, 50]


# --- files that are not ours --------------------------------------------------------------------------------------------


def test_an_unknown_schema_version_is_refused_by_writer_and_reader_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE meta (key TEXT PRIMARY KEY, value)")
        db.execute("INSERT INTO meta VALUES ('schema', 99)")
    before = path.read_bytes()
    for open_it in (Journal(path).start, lambda: JournalReader(path)):
        with pytest.raises(JournalError, match="schema 99"):
            open_it()
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"not a database at all" * 100, None])
def test_a_file_that_is_no_journal_is_refused_and_left_alone(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "j.db"
    if content is None:
        with sqlite3.connect(path) as db:
            db.execute("CREATE TABLE other (x)")
        content = path.read_bytes()
    path.write_bytes(content)
    for open_it in (Journal(path).start, lambda: JournalReader(path)):
        with pytest.raises(JournalError):
            open_it()
    assert path.read_bytes() == content


def test_a_missing_journal_is_not_made_by_a_reader(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="no journal"):
        JournalReader(tmp_path / "j.db")
    assert not list(tmp_path.iterdir())


# --- kill -9 ------------------------------------------------------------------------------------------------------------

_NURSERY = """
import asyncio, os, sys
sys.path.insert(0, ".")
from pathlib import Path
from nemo_polar.capture.journal import Journal
from tests.capture.test_journal import turn_of

async def session(journal, name):
    for n in range(100_000):
        await journal.add_turn(turn_of(name, n))
        os.write(1, f"{name} {n}\\n".encode())

async def main(name):
    journal = Journal(Path(sys.argv[1]))
    journal.start()
    await asyncio.gather(*(session(journal, f"{name}-{k}") for k in range(8)))

for name in sys.stdin:
    pid = os.fork()
    if pid == 0:
        asyncio.run(main(name.strip()))
    os.write(1, f"pid {pid}\\n".encode())
    os.waitpid(pid, 0)
    os.write(1, b"dead 0\\n")
"""


def test_every_acknowledged_turn_survives_kill_9(tmp_path: Path) -> None:
    path, rng = tmp_path / "j.db", random.Random(5)
    acknowledged: dict[str, int] = {}
    argv = [sys.executable, "-c", _NURSERY, str(path)]
    with subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as nursery:
        assert nursery.stdin is not None and nursery.stdout is not None
        for kill in range(20):
            nursery.stdin.write(f"w{kill}\n")
            nursery.stdin.flush()
            pid, left, born = 0, rng.randint(1, 200), set(acknowledged)
            for line in nursery.stdout:
                word, number = line.split()
                if word == "dead":
                    break
                if word == "pid":
                    pid = int(number)
                else:
                    acknowledged[word] = int(number)
                left -= 1
                if left <= 0 and pid:
                    os.kill(pid, signal.SIGKILL)
                    pid = 0
            with JournalReader(path) as reader:
                for session_id in acknowledged.keys() - born:
                    found = [t.id for t in reader.turns(session_id)]
                    assert found[: acknowledged[session_id] + 1] == list(range(acknowledged[session_id] + 1)), f"kill {kill}"
        nursery.stdin.close()
    with JournalReader(path) as reader:
        assert all(len(reader.turns(session_id)) > number for session_id, number in acknowledged.items())
    assert len(acknowledged) > 20


# --- disks that refuse ----------------------------------------------------------------------------------------------------

_FILL = """
import asyncio, json, sys
sys.path.insert(0, ".")
from pathlib import Path
from nemo_polar.capture.journal import Journal, JournalReader
from nemo_polar.errors import JournalError
from tests.capture.test_journal import turn_of

async def main(path, limit, free):
    limit()
    journal = Journal(path)
    journal.start()
    written = 0
    try:
        while written < 10_000:
            await journal.add_turn(turn_of("s", written, tokens=2000))
            written += 1
        refused = None
    except JournalError as exc:
        refused = str(exc)
    unhealthy = not journal.healthy and journal.last_error == refused
    batch = await asyncio.gather(*(journal.add_turn(turn_of("b", n, tokens=20_000)) for n in range(8)), return_exceptions=True)
    with JournalReader(path) as reader:
        kept = [n for n, outcome in enumerate(batch) if outcome is None]
        readable = [t.id for t in reader.turns("s")] == list(range(written)) and [t.id for t in reader.turns("b")] == kept
    free()
    for _ in range(100):  # recovers by itself: nobody writes meanwhile
        if journal.healthy:
            break
        await asyncio.sleep(0.05)
    healthy = journal.healthy
    await journal.add_turn(turn_of("s", written))
    await journal.stop()
    with JournalReader(path) as reader:
        after = [t.id for t in reader.turns("s")] == list(range(written + 1))
    said = dict(written=written, refused=refused, unhealthy=unhealthy, readable=readable, healthy=healthy, after=after)
    print(json.dumps({**said, "batch": [type(b).__name__ for b in batch]}))
"""

_QUOTA = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
size = lambda n: (lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (n, resource.RLIM_INFINITY)))
asyncio.run(main(Path(sys.argv[1]) / "j.db", size(600_000), size(resource.RLIM_INFINITY)))
"""

_TMPFS = """
import os, subprocess
folder = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1500k", "tmpfs", str(folder)], check=True)
ballast = folder / "ballast"
ballast.write_bytes(bytes(400_000))
asyncio.run(main(folder / "j.db", lambda: None, ballast.unlink))
"""


def _can_mount() -> bool:
    probe = "d=$(mktemp -d) && mount -t tmpfs tmpfs $d"
    try:
        done = subprocess.run(
            ["unshare", "-m", "sh", "-c", f"{probe}; code=$?; umount $d; rmdir $d; exit $code"], capture_output=True
        )
    except FileNotFoundError:
        return False
    return done.returncode == 0


@pytest.mark.parametrize("how", ["quota", "full"])
def test_a_full_disk_fails_the_callers_keeps_what_was_written_and_recovers(tmp_path: Path, how: str) -> None:
    if how == "full" and not _can_mount():
        pytest.skip("needs the right to mount a small file system")
    wrap = ["unshare", "-m"] if how == "full" else []
    code = _FILL + (_TMPFS if how == "full" else _QUOTA)
    done = subprocess.run([*wrap, sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    said = json.loads(done.stdout)
    assert 10 < said["written"] < 10_000 and "cannot be written" in said["refused"]
    assert "JournalError" in said["batch"] and set(said["batch"]) <= {"JournalError", "NoneType"}
    assert said["unhealthy"] and said["readable"] and said["healthy"] and said["after"]


_READ_ONLY = """
import asyncio, os, sys
import urllib.parse  # pathlib imports it late, when the interpreter's own folder may be closed to us
sys.path.insert(0, ".")
from pathlib import Path
from nemo_polar.capture.journal import Journal, JournalReader
from nemo_polar.errors import JournalError
if os.getuid() == 0:
    os.setgid(65534); os.setuid(65534)
with JournalReader(Path(sys.argv[1])) as reader:
    print("read", len(reader.turns("s")))
try:
    Journal(Path(sys.argv[1])).start()
except JournalError as exc:
    print("refused", exc)
"""


def test_a_file_that_can_only_be_read_is_refused_at_start_and_can_be_read() -> None:
    with tempfile.TemporaryDirectory() as folder:  # tmp_path is closed to other users, and root may write anything
        path = Path(folder) / "j.db"

        async def make() -> None:
            journal = Journal(path)
            journal.start()
            await journal.add_turn(turn_of("s", 0))
            await journal.stop()

        asyncio.run(make())
        path.chmod(0o444)
        path.parent.chmod(0o555)
        done = subprocess.run(
            [sys.executable, "-c", _READ_ONLY, str(path)], cwd=ROOT, capture_output=True, text=True, timeout=60
        )
        read, refused = done.stdout.splitlines()
        assert read == "read 1" and refused.startswith("refused") and str(path) in refused, done.stderr
        path.parent.chmod(0o755)


async def test_a_reader_sees_what_is_committed_while_the_writer_goes_on(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.db")
    journal.start()
    with JournalReader(journal.path) as reader:
        for n in range(20):
            await journal.add_turn(turn_of("s", n))
            assert len(reader.turns("s")) == n + 1
    await journal.stop()
