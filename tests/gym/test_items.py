# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A line as output items: what was said, in order and verbatim, with the token fields where the trainer looks for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings

from nemo_polar.gym.items import write_items
from nemo_polar.gym.main_trace import choose, leaf_of, own
from nemo_polar.settings import TracePolicy
from nemo_polar.types import (
    FinishReason,
    Image,
    Kind,
    Message,
    Reasoning,
    Role,
    SamplingParams,
    Text,
    ToolCall,
    ToolResult,
    Trace,
    Turn,
)
from tests.gym.made import asked, drawn, rolled, turn
from tests.support.tree_strategies import policies, trees

ABORT = FinishReason.ABORT


def written(turns: list[Turn], requests: Any = None, **policy: Any) -> list[dict[str, Any]]:
    """The items of the main trace of these turns."""
    made = rolled(turns, requests, TracePolicy(**policy))
    main = choose(made.trajectory.traces, made.turns)
    assert main is not None
    main = own(made.trajectory.traces, main)[0]
    return write_items(line(made.turns, main), made.requests, main).items


def line(turns: tuple[Turn, ...], main: Trace) -> list[Turn]:
    by_id = {t.id: t for t in turns}
    found = [by_id[leaf_of(main)]]
    while found[-1].parent is not None:
        found.append(by_id[found[-1].parent])
    return found[::-1]


def tokens(items: list[dict[str, Any]]) -> list[tuple[int, list[int]]]:
    """Length of the prompt and what was generated, of each item with token fields."""
    return [(len(i["prompt_token_ids"]), i["generation_token_ids"]) for i in items if "generation_token_ids" in i]


@given(trees, policies)
@settings(max_examples=200, deadline=None)
def test_the_token_fields_say_exactly_what_the_trace_trains(tree, policy) -> None:
    made = drawn(tree, policy)
    main = choose(made.trajectory.traces, made.turns)
    if main is None:
        return
    main = own(made.trajectory.traces, main)[0]
    got = write_items(line(made.turns, main), made.requests, main)
    told = [False] * len(main)
    for item in got.items:
        if "generation_token_ids" not in item:
            assert "prompt_token_ids" not in item and "generation_log_probs" not in item
            continue
        start, size = len(item["prompt_token_ids"]), len(item["generation_token_ids"])
        assert item["prompt_token_ids"] == main.token_ids[:start].tolist()
        assert item["generation_token_ids"] == main.token_ids[start : start + size].tolist()
        assert size and len(item["generation_log_probs"]) == size
        assert not any(told[start : start + size])
        told[start : start + size] = [True] * size
    assert told == main.loss_mask.tolist()
    ids = [item["id"] for item in got.items if "id" in item]
    assert len(set(ids)) == len(ids)


@given(trees)
@settings(max_examples=100, deadline=None)
def test_at_most_one_item_of_a_model_call_has_token_fields(tree) -> None:
    policy = TracePolicy(train_kinds=tuple(Kind), train_unrescorable=True)  # so that no call is masked in its middle
    made = drawn(tree, policy)
    main = choose(made.trajectory.traces, made.turns)
    if main is None:
        return
    main = own(made.trajectory.traces, main)[0]
    got = write_items(line(made.turns, main), made.requests, main)
    assert sum("generation_token_ids" in item for item in got.items) <= len(got.calls)
    for call in got.calls:
        of_call = [i for i in got.items if f"_{call.turns[0].call_id}_" in i.get("id", "") and "given" not in i["id"]]
        assert of_call and all("generation_token_ids" not in item for item in of_call[:-1])


def test_a_conversation_is_written_in_the_order_it_was_held_and_its_first_prompt_is_not() -> None:
    given_first = asked(Message(Role.SYSTEM, (Text("You are."),)), Message(Role.USER, (Text("Do it."),)))
    results = asked(
        Message(Role.TOOL, (ToolResult("k1", (Text("a"), Text("b"))),)), Message(Role.USER, (Text("go"), Text(" on")))
    )
    items = written(
        [turn(0, None, Reasoning("Hm"), Text("I will."), ToolCall("k1", "sh", "{}")), turn(1, 0)], {0: given_first, 1: results}
    )
    assert [(i["type"], i.get("role")) for i in items] == [
        ("reasoning", None),
        ("message", "assistant"),
        ("function_call", None),
        ("function_call_output", None),
        ("message", "user"),
        ("message", "assistant"),
    ]
    assert items[0]["summary"] == [{"type": "summary_text", "text": "Hm"}]
    assert items[3] == {"type": "function_call_output", "call_id": "k1", "output": "ab", "status": "completed"}
    assert items[4]["content"] == "go on"
    assert tokens(items) == [(3, [0, 1]), (8, [100, 101])]
    assert "generation_token_ids" in items[2] and "generation_token_ids" in items[5]


def test_malformed_arguments_stay_as_they_were_sampled() -> None:
    items = written([turn(0, None, ToolCall("k", "sh", '{"cmd": "ls', malformed=True))])
    assert items[0]["arguments"] == '{"cmd": "ls' and items[0]["name"] == "sh"


def test_a_masked_call_has_no_token_fields_and_stands_in_the_next_prompt() -> None:
    tempered = turn(0)
    tempered.sample = replace(tempered.sample, sampling=SamplingParams(temperature=0.5))
    items = written([tempered, turn(1, 0)])
    assert tokens(items) == [(8, [100, 101])]
    assert items[-1]["prompt_token_ids"] == [7, 8, 9, 0, 1, 7, 8, 9]
    assert [i["type"] for i in items] == ["message", "message"]


def test_an_aborted_sample_and_the_turns_that_go_on_with_it_are_one_call() -> None:
    turns = [turn(0, finish=ABORT), turn(1, 0, finish=ABORT, continues=True), turn(2, 1, continues=True), turn(3, 2)]
    items = written(turns, {0: asked(), 3: asked(Message(Role.USER, (Text("more"),)))})
    assert tokens(items) == [(3, [0, 1, 100, 101, 200, 201]), (12, [300, 301])]
    assert [i.get("content") for i in items][1] == "more" and items[0]["content"][0]["text"] == "reply 2"
    assert items[0]["status"] == "completed"


def test_a_masked_end_of_a_call_is_not_in_its_generation() -> None:
    turns = [turn(0, finish=ABORT), turn(1, 0, continues=True, kind=Kind.COMPACTION)]
    assert tokens(written(turns, train_kinds=(Kind.MAIN,))) == [(3, [0, 1])]


def test_trained_runs_that_alternate_in_one_call_are_all_told() -> None:
    middle = turn(1, 0, finish=ABORT, continues=True, kind=Kind.COMPACTION)
    turns = [turn(0, finish=ABORT), middle, turn(2, 1, continues=True), turn(3, 2)]
    items = written(turns, train_kinds=(Kind.MAIN,))
    assert tokens(items) == [(3, [0, 1]), (7, [200, 201]), (12, [300, 301])]
    assert items[0]["status"] == "incomplete" and items[0]["content"][0]["text"] == ""


def test_a_reply_cut_at_its_limit_is_incomplete_in_its_last_item_only() -> None:
    items = written([turn(0, None, Text("a"), ToolCall("k", "sh", "{}"), Text("b"), finish=FinishReason.LENGTH)])
    assert [i["status"] for i in items] == ["completed", "completed", "incomplete"]


def test_a_reply_without_a_visible_part_ends_with_an_empty_message_that_carries_its_tokens() -> None:
    items = written([turn(0, None, Reasoning("only this"))])
    assert [i["type"] for i in items] == ["reasoning", "message"]
    assert items[1]["content"][0]["text"] == "" and tokens(items) == [(3, [0, 1])]


def test_a_sample_without_a_token_has_no_token_fields() -> None:
    assert tokens(written([turn(0, sampled=0), turn(1, 0)])) == [(6, [100, 101])]


def test_images_are_parts_of_messages_and_named_in_results() -> None:
    image = Image("data:image/png;base64,AA==", "image/png")
    added = asked(Message(Role.USER, (Text("see"), image)), Message(Role.TOOL, (ToolResult("k", (Text("shot "), image)),)))
    items = written([turn(0), turn(1, 0)], {1: added})
    assert items[1]["content"] == [
        {"type": "input_text", "text": "see"},
        {"type": "input_image", "image_url": image.url, "detail": "auto"},
    ]
    assert items[2]["output"] == "shot [image image/png]"


def test_what_the_harness_put_into_the_assistants_mouth_has_no_tokens() -> None:
    added = asked(Message(Role.ASSISTANT, (Reasoning("r"), Text("t"), ToolCall("k", "sh", "{}"))))
    items = written([turn(0), turn(1, 0)], {1: added})
    assert [i["type"] for i in items] == ["message", "reasoning", "message", "function_call", "message"]
    assert tokens(items[1:4]) == [] and items[2] == {"type": "message", "role": "assistant", "content": "t"}


def test_a_tools_error_is_told_by_its_status() -> None:
    items = written([turn(0), turn(1, 0)], {1: asked(Message(Role.TOOL, (ToolResult("k", (Text("no"),), is_error=True),)))})
    assert items[1]["status"] == "incomplete"
