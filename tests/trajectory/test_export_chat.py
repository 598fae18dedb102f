# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Chat rows are the conversations that were held, as chat templates take them, and say which replies their trace trains."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_polar.capture.journal import Journal, Request
from nemo_polar.errors import ConfigError, JournalError
from nemo_polar.settings import TracePolicy
from nemo_polar.trajectory.build import build_traces
from nemo_polar.trajectory.export import Exported, export_chat_rows
from nemo_polar.trajectory.export_chat import json_object
from nemo_polar.trajectory.export_filters import Filters
from nemo_polar.trajectory.store import JOURNAL
from nemo_polar.types import FinishReason, Message, Role, Status, Text, ToolSpec, Trajectory, Turn
from tests.support.proxy import TOOLS, running
from tests.support.runs import FakePolicy, draw_tree, session_row, trajectory_of

ALL = Filters(trained_only=False)
ARGUMENTS = '{"n": 1.0, "deep": {"é": [1, null]}}'


def export(made: list[Trajectory], folder: Path, **options: Any) -> tuple[list[dict[str, Any]], Exported]:
    options = {"filters": ALL, **options}
    done = export_chat_rows(lambda: made, folder / JOURNAL, folder / "c.jsonl", **options)
    return [json.loads(line) for line in (folder / "c.jsonl").read_text().splitlines()], done


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


# --- through the proxy ------------------------------------------------------------------------------------------------


async def held(folder: Path) -> Trajectory:
    """A conversation of four replies, the second of which the harness then edits away."""
    async with running(folder) as rig:
        client = await rig.session("r")
        core = rig.engine.core
        for said, arguments in (("I will.", ARGUMENTS), ("", '{"n": 1,')):
            body = '{"name": "write", "arguments": ' + arguments + "}"
            core.push(rig.ids(f"{said}\n<tool_call>\n{body}\n</tool_call>"))
        core.push(rig.ids("All done 🙂"))
        core.push(rig.ids("Instead."))
        line: list[dict[str, Any]] = [{"role": "developer", "content": "Be brief."}, user("Do <|im_end|> it.")]
        for result in ("ok", "no"):
            reply = await client.message(line)
            content = [{"type": "text", "text": result}]
            line = [*line, reply, {"role": "tool", "tool_call_id": reply["tool_calls"][0]["id"], "content": content}]
        await client.message(line)
        await client.message([*line[:4], user("Stop that.")])
        turns = await rig.delivered(client.session_id)
    built = build_traces("r", turns, TracePolicy())
    return Trajectory("r", "t", "g", Status.COMPLETED, built.traces, 1.0, {"passed": 1.0}, built.masked)


async def test_a_row_is_the_conversation_as_it_was_held_in_the_shape_of_chat_templates(tmp_path: Path) -> None:
    made = await held(tmp_path)
    rows, done = export([made], tmp_path)
    assert done.rows == len(made.traces) == 2
    whole = next(row for row in rows if row["messages"][-1]["content"] == "All done 🙂")
    calls = [m["tool_calls"][0] for m in whole["messages"] if "tool_calls" in m]
    assert whole["messages"] == [
        {"role": "system", "content": "Be brief."},
        user("Do <|im_end|> it."),
        {"role": "assistant", "content": "I will.", "tool_calls": [calls[0]]},
        {"role": "tool", "content": "ok", "tool_call_id": calls[0]["id"], "name": "write"},
        {"role": "assistant", "content": "", "tool_calls": [calls[1]]},
        {"role": "tool", "content": "no", "tool_call_id": calls[1]["id"], "name": "write"},
        {"role": "assistant", "content": "All done 🙂"},
    ]
    assert calls[0]["type"] == "function"
    assert calls[0]["function"] == {"name": "write", "arguments": {"n": 1.0, "deep": {"é": [1, None]}}}
    assert calls[1]["function"] == {"name": "write", "arguments": '{"n": 1,}'}
    assert whole["tools"] == TOOLS and whole["reward"] == 1.0 and whole["format"] == "polar-chat"


async def test_a_reply_that_two_rows_share_is_trained_in_one_of_them(tmp_path: Path) -> None:
    rows, _ = export([await held(tmp_path)], tmp_path)
    said = [
        (message["content"] + message.get("tool_calls", [{"id": ""}])[0]["id"], trained)
        for row in rows
        for message, trained in zip(row["messages"], row["trained"], strict=True)
        if message["role"] == "assistant"
    ]
    assert len(said) == 5 and len({text for text, _ in said}) == 4
    assert sorted(text for text, trained in said if trained) == sorted({text for text, _ in said})
    others = [flag for r in rows for m, flag in zip(r["messages"], r["trained"], strict=True) if m["role"] != "assistant"]
    assert not any(others)


async def test_arguments_as_text_are_the_sampled_text_and_parquet_holds_the_same(tmp_path: Path) -> None:
    made = await held(tmp_path)
    rows, _ = export([made], tmp_path, arguments="text")
    written = [c["function"]["arguments"] for m in rows[0]["messages"] for c in m.get("tool_calls", ())]
    assert written[0] == ARGUMENTS and json.loads(rows[0]["tools"]) == TOOLS
    export_chat_rows(lambda: [made], tmp_path / JOURNAL, tmp_path / "c.parquet", filters=ALL)
    table = pq.read_table(tmp_path / "c.parquet")
    assert table.schema.metadata[b"polar.format"] == b"polar-chat"
    back = table.to_pylist()
    for row in back:
        row["components"] = dict(row["components"])
        row["messages"] = [{k: v for k, v in m.items() if v is not None} for m in row["messages"]]
    assert back == rows
    with pytest.raises(ConfigError, match="Parquet"):
        export_chat_rows(lambda: [made], tmp_path / JOURNAL, tmp_path / "c.parquet", arguments="object")


# --- random trees -----------------------------------------------------------------------------------------------------


async def recorded(folder: Path, sessions: dict[str, tuple[int, list[Turn]]], *, requests: bool = True) -> None:
    """A journal with sessions of rollout r: session id to attempt and turns."""
    journal = Journal(folder / JOURNAL)
    journal.start()
    for name, (attempt, turns) in sessions.items():
        await journal.add_session(session_row(name, "r", attempt))
        for turn in turns:
            asked = (Message(Role.SYSTEM, (Text("s"),)),) if turn.parent is None else ()
            asked += (Message(Role.USER, (Text(f"{name} ask {turn.id}"),)),)
            tools = (ToolSpec(f"tool{turn.id}"),) if turn.parent is None else None
            await journal.add_turn(turn, None if turn.continues or not requests else Request(asked, tools))
            if turn.delivered:
                journal.mark_delivered(turn.session_id, turn.id)
            await journal.set_kind(turn.session_id, turn.id, turn.kind)
        await journal.add_result("r", "group", "task", attempt, {"status": "completed", "reward": 1.0})
    await journal.stop()


@pytest.mark.parametrize("seed", range(4))
async def test_rows_follow_the_tree_and_a_reply_that_went_on_after_an_abort_is_one(tmp_path: Path, seed: int) -> None:
    turns = draw_tree(FakePolicy(random.Random(seed)), "s", 25)
    assert any(t.continues for t in turns)
    await recorded(tmp_path, {"s": (0, turns)})
    made = trajectory_of("r", turns, TracePolicy())
    rows, _ = export([made], tmp_path)
    assert len(rows) == len(made.traces)
    for row, trace in zip(rows, made.traces, strict=True):
        line = [turns[int(trace.id.split("/")[1])]]
        while line[-1].parent is not None:
            line.append(turns[line[-1].parent])
        line.reverse()
        asked = [f"s ask {t.id}" for t in line if not t.continues]
        ends = [t for t, after in zip(line, [*line[1:], None], strict=True) if after is None or not after.continues]
        says = [m["content"] for m in row["messages"] if m["role"] == "user"]
        replies = [m["content"] for m in row["messages"] if m["role"] == "assistant"]
        assert says == asked[: len(says)] and replies == [f"reply {t.id}" for t in ends][: len(says)]
        trained = {s.turn for s in trace.spans if trace.loss_mask[s.start : s.end].any()}
        assert any(row["trained"]) == bool(trained)
        assert row["trained"][-1] if trained else len(says) == len(asked)
        assert row["tools"][0]["function"]["name"] == f"tool{line[0].id}"


async def test_rows_come_from_the_attempt_that_the_trajectory_is_made_of(tmp_path: Path) -> None:
    first = draw_tree(FakePolicy(random.Random(1)), "old", 5, plain=True, branching=1)
    second = draw_tree(FakePolicy(random.Random(2)), "new", 5, plain=True, branching=1)
    await recorded(tmp_path, {"new": (1, second), "old": (0, first)})
    rows, _ = export([trajectory_of("r", second, TracePolicy())], tmp_path)
    assert [m["content"][:3] for row in rows for m in row["messages"] if m["role"] == "user"] == ["new"] * 5
    with pytest.raises(JournalError, match="does not hold trace r/4"):
        export([trajectory_of("r", first, TracePolicy())], tmp_path)
    with pytest.raises(JournalError, match="no session of rollout x"):
        export([trajectory_of("x", first, TracePolicy())], tmp_path)


async def test_a_run_whose_messages_were_not_recorded_is_refused_in_words(tmp_path: Path) -> None:
    turns = draw_tree(FakePolicy(random.Random(1)), "s", 3, plain=True)
    await recorded(tmp_path, {"s": (0, turns)}, requests=False)
    with pytest.raises(JournalError, match=r"messages of turn 0 of rollout r were not recorded.*this version"):
        export([trajectory_of("r", turns, TracePolicy())], tmp_path)


async def test_what_comes_after_the_last_trained_reply_is_cut_off(tmp_path: Path) -> None:
    turns = draw_tree(FakePolicy(random.Random(1)), "s", 3, plain=True, branching=1)
    turns[2] = replace(turns[2], sample=replace(turns[2].sample, finish_reason=FinishReason.ABORT))
    await recorded(tmp_path, {"s": (0, turns)})
    [row], _ = export([trajectory_of("r", turns, TracePolicy())], tmp_path)
    assert [m["content"] for m in row["messages"]][-2:] == ["s ask 1", "reply 1"] and row["trained"][-1]


# --- arguments --------------------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(st.dictionaries(st.text(), st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists), max_size=3))
def test_an_object_is_taken_as_it_is(value: dict[str, Any]) -> None:
    assert json_object(json.dumps(value)) == value


@pytest.mark.parametrize("text", ["", "[]", "1", "null", '{"a": 1', '{"a": NaN}', '{"a": -Infinity}', "[" * 100_000])
def test_what_is_no_json_object_stays_text(text: str) -> None:
    assert json_object(text) is None
