# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The parts of the matrix that need no CLI: what the model writes is what it means, and a broken row is never called ok."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from nemo_polar.settings import CodecSettings
from nemo_polar.tokens.load import load_codec
from nemo_polar.types import FinishReason, Message, Role, Text, ToolSpec
from tests.harness_matrix.families import FAMILIES
from tests.harness_matrix.rules import MISSING, RAN, broken
from tests.harness_matrix.run import plan
from tests.harness_matrix.scenarios import LETTERS, SCENARIOS
from tests.harness_matrix.tools import Raw
from tests.harness_matrix.writer import Call, Writer, odd_json

TOOL = ToolSpec(
    "write", "Writes.", {"type": "object", "properties": {"path": {"type": "string"}, "content": {"type": "string"}}}
)
ARGUMENTS = {"path": "/workspace/letters.txt", "content": LETTERS, "note": [Raw("1.50"), Raw("-0"), None, {"a": False}]}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_written_reply_is_read_as_it_was_meant_and_is_not_what_a_tokenizer_makes(name: str) -> None:
    family = FAMILIES[name]
    codec = load_codec(CodecSettings(**family.codec()))
    writer = Writer(codec.tokenizer, family)  # type: ignore[attr-defined]
    prompt = codec.render([Message(Role.USER, (Text("go"),))], [TOOL])
    thinking = writer.tokenizer.decode(prompt).rstrip().endswith("<think>")
    for seed in range(8):
        calls = [Call("write", ARGUMENTS), Call("write", ARGUMENTS)]
        ids = writer.reply(random.Random(seed), thought="Why 🙂", text=" Now e\u0301 ", calls=calls, thinking=thinking)
        parser = codec.parser(prompt, [TOOL])
        parser.feed(ids)
        parser.finish(FinishReason.STOP)
        reply = parser.message()
        assert reply.reasoning == ("Why 🙂" if family.reasons else None)
        assert reply.text.strip() == "Now e\u0301"
        assert [json.loads(c.arguments) for c in reply.tool_calls] == [
            {"path": "/workspace/letters.txt", "content": LETTERS, "note": [1.5, 0, None, {"a": False}]}
        ] * 2
        assert ids != writer.tokenizer.encode(writer.tokenizer.decode(ids))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_broken_call_is_read_as_malformed(name: str) -> None:
    family = FAMILIES[name]
    codec = load_codec(CodecSettings(**family.codec()))
    writer = Writer(codec.tokenizer, family)  # type: ignore[attr-defined]
    prompt = codec.render([Message(Role.USER, (Text("go"),))], [TOOL])
    for seed in range(8):
        call = Call("write", {"path": "a", "content": "b"}, broken=True)
        parser = codec.parser(prompt, [TOOL])
        parser.feed(writer.reply(random.Random(seed), thought="x", text="", calls=[call], thinking=True))
        parser.finish(FinishReason.STOP)
        assert [(c.name, c.malformed) for c in parser.message().tool_calls] == [("write", True)]


def test_odd_json_is_json_of_the_same_value() -> None:
    for seed in range(50):
        value = {"a/b": ["ü", {"🙂": "\u2028\n"}, True], "": 1}
        assert json.loads(odd_json(value, random.Random(seed))) == value


def row(**changes: Any) -> dict[str, Any]:
    good = {
        "state": RAN,
        "harness": "pi",
        "scenario": "plain",
        "family": "tiny",
        "findings": [],
        "drift_tokens": 0,
        "unaccounted": 0,
        "statuses": ["completed", "completed"],
        "errors": [],
        "counters": {},
        "main_traces": [1, 1],
        "forks": {},
        "roots": 1,
        "same_first_prompt": True,
        "bridged": 14,
        "rollouts": 2,
        "rewards": [1.0, 1.0],
        "http": {"200": 16},
        "faults": [],
    }
    return good | changes


WRONG: list[dict[str, Any]] = [
    {"drift_tokens": 1},
    {"unaccounted": -3},
    {"findings": [{"code": "mask", "message": "x"}]},
    {"statuses": ["completed", "capture_failed"], "errors": ["x"]},
    {"main_traces": [1, 2]},
    {"main_traces": [1]},
    {"forks": {"edited": 1}},
    {"same_first_prompt": False},
    {"bridged": 11},
    {"rewards": [1.0, 0.0]},
    {"counters": {"failed_unforeseen": 1.0}},
    {"state": MISSING},
    {"scenario": "malformed"},
    {"scenario": "500", "faults": ["wire_500"], "statuses": ["timeout"]},
    {"scenario": "empty", "faults": ["empty"], "statuses": ["engine_failed"]},
    {"scenario": "overflow"},
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_each_rule_can_be_broken(wrong: dict[str, Any]) -> None:
    assert broken(row()) == []
    assert broken(row(**wrong))


def test_every_harness_meets_every_scenario_and_plain_meets_every_family() -> None:
    cells = plan(["codex", "claude_code"], list(SCENARIOS), ["x", "y"])
    assert len(cells) == len(set(cells)) == 2 * (len(SCENARIOS) - 1 + 2)
    assert {cell[1] for cell in cells[:4]} == {"plain"} and {cell[1] for cell in cells[-4:]} == {"overflow", "compaction"}


def test_only_a_harness_with_sub_agents_or_compaction_meets_those_scenarios() -> None:
    cells = plan(["mini_swe_agent", "pi", "codex"], ["subagent", "compaction"], ["x"])
    assert cells == [("codex", "subagent", "x"), ("pi", "compaction", "x"), ("codex", "compaction", "x")]
