# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_polar.engines.log import EngineCall, EngineLog, read_engine_log
from nemo_polar.errors import AuditError
from nemo_polar.types import as_ids, as_logprobs


def call(request_id: str = "r", ids: tuple[int, ...] = (1, 2, 3)) -> EngineCall:
    return EngineCall(request_id, as_ids([7, 8]), as_ids(ids), as_logprobs([-0.5] * len(ids)), "stop", weights_version=4)


@given(
    prompt=st.lists(st.integers(0, 2**31 - 1), max_size=30),
    sampled=st.lists(st.tuples(st.integers(0, 2**31 - 1), st.floats(-1e4, 0, width=32)), max_size=30),
    version=st.none() | st.integers(0, 10**6),
)
def test_a_call_reads_back_as_it_was_written(tmp_path_factory, prompt, sampled, version):
    path = tmp_path_factory.mktemp("log") / "engine.jsonl"
    written = EngineCall(
        "r",
        as_ids(prompt),
        as_ids([i for i, _ in sampled]),
        as_logprobs([x for _, x in sampled]),
        "length",
        temperature=0.7,
        top_p=0.9,
        top_k=20,
        started_at=1.5,
        ended_at=2.5,
        weights_version=version,
    )
    log = EngineLog(path)
    log.append(written)
    log.close()
    (read,) = read_engine_log(path)
    assert read.token_ids.dtype == np.int32 and read.logprobs.dtype == np.float32
    assert read.token_ids.tolist() == written.token_ids.tolist() and read.prompt_ids.tolist() == prompt
    np.testing.assert_array_equal(read.logprobs, written.logprobs)
    scalars = ("request_id", "finish_reason", "temperature", "top_p", "top_k", "started_at", "ended_at", "weights_version")
    assert [getattr(read, name) for name in scalars] == [getattr(written, name) for name in scalars]


def test_a_line_is_in_the_file_before_append_returns(tmp_path: Path):
    log = EngineLog(tmp_path / "log")
    log.append(call("a"))
    assert [c.request_id for c in read_engine_log(tmp_path / "log")] == ["a"]
    log.close()


def test_a_torn_last_line_is_left_out_and_the_next_writer_starts_a_line_of_its_own(tmp_path: Path):
    path = tmp_path / "log"
    log = EngineLog(path)
    log.append(call("a"))
    log.append(call("b"))
    log.close()
    path.write_bytes(path.read_bytes()[:-20])
    assert [c.request_id for c in read_engine_log(path)] == ["a"]
    log = EngineLog(path)
    log.append(call("c"))
    log.close()
    assert [c.request_id for c in read_engine_log(path)] == ["a", "c"]


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path):
    path = tmp_path / "log"
    log = EngineLog(path)
    log.append(call("a"))
    log.append(call("b"))
    log.close()
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([lines[0], lines[1][:30], lines[2], b""]))
    with pytest.raises(AuditError, match=r"log:2: broken line"):
        read_engine_log(path)


@pytest.mark.parametrize("content", [b"", b"hello\n", b'{"format":"other"}\n', b'{"format":"polar-engine-log","version":9}\n'])
def test_what_is_no_engine_log_is_refused(tmp_path: Path, content: bytes):
    (tmp_path / "log").write_bytes(content)
    with pytest.raises(AuditError):
        read_engine_log(tmp_path / "log")


def test_a_writer_never_appends_to_a_file_of_another_kind(tmp_path: Path):
    (tmp_path / "notes.txt").write_bytes(b"my notes\n")
    with pytest.raises(AuditError):
        EngineLog(tmp_path / "notes.txt")
    assert (tmp_path / "notes.txt").read_bytes() == b"my notes\n"


def test_a_missing_log_is_an_audit_error(tmp_path: Path):
    with pytest.raises(AuditError, match="cannot be read"):
        read_engine_log(tmp_path / "none")
