# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The reply parser over a small vocabulary: one reply for every cut of the ids, and each rule by example."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_polar.tokens.parser import IncrementalParser, Marker, ReplyFormat
from nemo_polar.types import FinishReason, Part, Reasoning, ReasoningDelta, Text, TextDelta, ToolCall, ToolCallDelta
from tests.support.replies import ScriptedVocabulary, counted_ids, joined, pieces, run

STOP, LENGTH, ABORT = FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORT
VOCABULARY = ScriptedVocabulary()
CALL = '<tool_call>\n{"name": "ls", "arguments": {"n":  1e5}}\n</tool_call>'
LS = ToolCall("c0", "ls", '{"n":  1e5}')


def parser(*, spelled: bool = False, body: str = "hermes", reasoning: bool = True, **options: Any) -> IncrementalParser:
    form = VOCABULARY.format(spelled=spelled, body=body, reasoning=reasoning)
    return IncrementalParser(VOCABULARY, form, mint=counted_ids(), **options)


def ids_of(text: str, spelled: bool) -> list[int]:
    return VOCABULARY.spell(text) if spelled else VOCABULARY.write(text)


def parts_of(text: str, reason: FinishReason = STOP, *, spelled: bool = False, **options: Any) -> tuple[Part, ...]:
    reply = parser(spelled=spelled, **options)
    run(reply, [ids_of(text, spelled)], reason)
    return reply.message().parts


both_spellings = pytest.mark.parametrize("spelled", [False, True], ids=["by id", "spelled"])

# --- properties -------------------------------------------------------------------------------------------------------

_TEXTS = st.one_of(
    st.sampled_from(
        [
            *(
                "\n",
                "\n\n",
                " ",
                "hello",
                "  world\n",
                "é🙂語",
                "abab",
                "aSTOPb",
                "<",
                "</",
                "<tool",
                "<tool_ca",
                "</thin",
                "</tool_call",
            ),
            *("<think>", "</think>", "<tool_call>", "</tool_call>", "<function=f>", "<|im_start|>", "\xa0", "\x1f"),
        ]
    ),
    st.text(max_size=5).map(lambda s: s.encode("utf-8", "replace").decode()),
)
_CALLS = st.sampled_from(
    [
        CALL,
        '<tool_call>{ "arguments" :{"x":[-0, 1.0 ,12345678901234567890],"y":"\\u00e9 é\\"}"},"name":"f"}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"x": </tool_call>',
        '<tool_call>{"name": "f", "arguments": "no object"}</tool_call>',
        '<tool_call>{"name": "f"</tool_call>',
        "<tool_call>\n</tool_call>",
        "<tool_call>no name</tool_call>",
        '<tool_call>{"name": "open", "arguments": {}}',
        "<tool_call>\n<function=f>\n<parameter=s>\n two\n</parameter>\n</function>\n</tool_call>",
        "<tool_call><function=f><parameter=s>1</tool_call>",
    ]
)
_BROKEN_BYTES = st.sampled_from([b"\xf0\x9f", "語".encode()[:1], b"\xff", b"\x80", b"\xed\xa0\x80", b"\xff<tool"])
_SEGMENTS = st.one_of(
    _TEXTS.map(VOCABULARY.spell),
    _TEXTS.map(lambda s: VOCABULARY.spell(s, by_byte=True)),
    _TEXTS.map(VOCABULARY.write),
    _CALLS.map(VOCABULARY.write),
    _CALLS.map(VOCABULARY.spell),
    _CALLS.map(lambda s: VOCABULARY.spell(s, by_byte=True)),
    _BROKEN_BYTES.map(VOCABULARY.spell),
    st.sampled_from([[i] for text, i in VOCABULARY.special.items() if not text.startswith("<|")]),
    st.lists(st.integers(0, len(VOCABULARY) - 1), max_size=4),
)
_REPLIES = st.lists(_SEGMENTS, max_size=8).map(lambda segments: [i for segment in segments for i in segment])
_STOPS = st.lists(
    st.sampled_from(["\n", "\n\n", "STOP", "ab", "abab", "b", "hello", "<tool", "</think>", "\ufffd", "", "語", "f"]),
    max_size=3,
)
_OPTIONS = st.fixed_dictionaries(
    {"spelled": st.booleans(), "body": st.sampled_from(["hermes", "qwen_xml"]), "parse_calls": st.booleans(), "stop": _STOPS}
).flatmap(
    lambda known: st.sampled_from([(True, True), (True, False), (False, False)]).map(
        lambda r: {**known, "reasoning": r[0], "in_reasoning": r[1]}
    )
)
_REASONS = st.sampled_from(list(FinishReason))


@settings(max_examples=400)
@given(_REPLIES, st.lists(st.integers(0, 400), max_size=12), _OPTIONS, _REASONS)
def test_every_cut_of_the_ids_gives_the_same_reply(
    ids: list[int], cuts: list[int], options: dict[str, Any], reason: FinishReason
):
    whole = parser(**options)
    run(whole, [ids], reason)
    for chunks in (pieces(ids, cuts), [[i] for i in ids]):
        cut = parser(**options)
        deltas = run(cut, chunks, reason)
        assert joined(deltas) == cut.message().parts == whole.message().parts
        assert (cut.stopped, cut.malformed, cut.unparsed_blocks) == (whole.stopped, whole.malformed, whole.unparsed_blocks)
        assert all(d.call if isinstance(d, ToolCallDelta) else d.text for d in deltas)
        calls = [d for d in deltas if isinstance(d, ToolCallDelta)]
        assert [d.index for d in calls] == list(range(len(calls)))
        assert cut.malformed == sum(d.call.malformed for d in calls)


def _visible_ids(ids: Sequence[int]) -> list[int]:
    ends = VOCABULARY.format().end_ids
    return list(ids[: next((n for n, i in enumerate(ids) if i in ends), len(ids))])


def _decoded(ids: Sequence[int]) -> str:
    return b"".join(map(VOCABULARY.token_bytes, _visible_ids(ids))).decode("utf-8", "replace")


def _bare(text: str) -> str:
    """``text`` without what a parser may drop around reasoning."""
    return "".join(re.sub("</?think>", "", text).split())


@given(_REPLIES, _REASONS)
def test_with_nothing_to_parse_the_text_is_all_that_was_sampled(ids: list[int], reason: FinishReason):
    reply = parser(reasoning=False, parse_calls=False)
    run(reply, [[i] for i in ids], reason)
    assert reply.message().text == _decoded(ids)


@settings(max_examples=300)
@given(_REPLIES, st.booleans(), st.booleans(), _REASONS)
def test_only_markers_white_space_and_calls_are_taken_out(
    ids: list[int], spelled: bool, in_reasoning: bool, reason: FinishReason
):
    reply = parser(spelled=spelled, in_reasoning=in_reasoning)
    run(reply, [[i] for i in ids], reason)
    message, rest = reply.message(), _decoded(ids)
    order = [type(p) for p in message.parts]
    assert Reasoning not in order[1:]
    if not message.tool_calls:
        assert _bare((message.reasoning or "") + message.text) == _bare(rest)
    else:
        kept = iter(_bare(rest))
        assert all(c in kept for c in _bare((message.reasoning or "") + message.text))


@given(_REPLIES, _STOPS)
def test_visible_text_never_contains_a_stop_string(ids: list[int], stop: list[str]):
    reply, unstopped = parser(stop=stop, reasoning=False), parser(reasoning=False)
    run(reply, [[i] for i in ids])
    run(unstopped, [ids])
    texts = [p.text for p in reply.message().parts if isinstance(p, Text)]
    assert not any(s in text for s in stop if s for text in texts)
    if reply.stopped is None:
        assert reply.message() == unstopped.message()
    else:
        assert reply.stopped in stop


# --- reasoning --------------------------------------------------------------------------------------------------------


@both_spellings
@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("<think>\nwhy\n</think>\n\nbecause\n", (Reasoning("why"), Text("because\n"))),
        (" \n<think>why</think>because", (Reasoning("why"), Text("because"))),
        ("<think>\n\n</think>\n\nhi", (Text("hi"),)),
        ("<think>why\n", (Reasoning("why\n"),)),
        ("<think>a<think>b</think>c</think>d", (Reasoning("a<think>b"), Text("c</think>d"))),
        ("no <think>a</think>", (Text("no <think>a</think>"),)),
        ("</think>a", (Text("</think>a"),)),
        ("\n\n a \n", (Text("\n\n a \n"),)),
        ("<think>a</think>\n", (Reasoning("a"),)),
        ("<thin", (Text("<thin"),)),
        (" ", (Text(" "),)),
        ("", ()),
    ],
)
def test_reasoning_is_one_region_at_the_start(text: str, parts: tuple[Part, ...], spelled: bool):
    assert parts_of(text, spelled=spelled) == parts


@both_spellings
@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("\nwhy\n</think>\n\nhi", (Reasoning("why"), Text("hi"))),
        ("</think>hi", (Text("hi"),)),
        ("\n<think>\nwhy</think>hi", (Reasoning("why"), Text("hi"))),
        ("why <think>", (Reasoning("why <think>"),)),
        ("why </thin", (Reasoning("why </thin"),)),
        (" \n", ()),
    ],
)
def test_reasoning_opened_in_the_prompt_goes_on(text: str, parts: tuple[Part, ...], spelled: bool):
    assert parts_of(text, spelled=spelled, in_reasoning=True) == parts


@both_spellings
@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (f"<think>go \n{CALL}\nbye", (Reasoning("go"), LS, Text("bye"))),
        (f"<think>go {CALL}</think>", (Reasoning("go"), LS, Text("</think>"))),
        ("<think>use <tool_call></tool_call> tags</think>ok", (Reasoning("use <tool_call></tool_call> tags"), Text("ok"))),
        ('<think>or <tool_call>{"name": "f"</think>ok', (Reasoning('or <tool_call>{"name": "f"'), Text("ok"))),
        ("<think>or <tool_call> \n", (Reasoning("or <tool_call> \n"),)),
    ],
)
def test_only_a_call_that_can_be_read_ends_reasoning(text: str, parts: tuple[Part, ...], spelled: bool):
    reply = parser(spelled=spelled)
    run(reply, [ids_of(text, spelled)])
    assert reply.message().parts == parts
    assert reply.unparsed_blocks == 0


def test_a_block_cut_inside_reasoning_stays_reasoning():
    assert parts_of(f"<think>go {CALL}"[:-12], LENGTH) == (Reasoning(f"go {CALL}"[:-12]),)


def test_in_reasoning_needs_a_format_that_reasons():
    with pytest.raises(ValueError, match="in_reasoning"):
        parser(reasoning=False, in_reasoning=True)


# --- calls ------------------------------------------------------------------------------------------------------------


@both_spellings
@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (f"so:\n{CALL}\n", (Text("so:"), LS)),
        (f"{CALL}\n\n{CALL}", (LS, ToolCall("c1", "ls", LS.arguments))),
        (f"a {CALL} b {CALL} c ", (Text("a"), LS, Text("b"), ToolCall("c1", "ls", LS.arguments), Text("c "))),
        (f"\n{CALL}", (LS,)),
        ("a </tool_call> b", (Text("a </tool_call> b"),)),
        ("a <tool_call> b </tool_call> c", (Text("a <tool_call> b </tool_call> c"),)),
        ("<tool_call><tool_call>x</tool_call>", (Text("<tool_call><tool_call>x</tool_call>"),)),
        ('<tool_call>{"name": "f", </tool_call>.', (ToolCall("c0", "f", "", malformed=True), Text("."))),
        (f"a {CALL[:-13]}", (Text("a"), LS)),
        (f"a {CALL[:-14]}", (Text("a"), ToolCall("c0", "ls", LS.arguments, malformed=True))),
        ("a <tool_call> b ", (Text("a <tool_call> b "),)),
    ],
)
def test_calls_stand_where_they_were_written(text: str, parts: tuple[Part, ...], spelled: bool):
    assert parts_of(text, spelled=spelled) == parts


@both_spellings
@pytest.mark.parametrize("reason", [LENGTH, ABORT])
@pytest.mark.parametrize("cut", [1, 12, 13, 14, 30, 56])
def test_half_a_call_is_never_run(reason: FinishReason, cut: int, spelled: bool):
    text = f"a \n{CALL[:-cut]}"
    reply = parser(spelled=spelled)
    run(reply, [ids_of(text, spelled)], reason)
    assert reply.message().parts == (Text(text),)
    assert reply.unparsed_blocks == ("<tool_call>" in text)


@both_spellings
def test_a_call_comes_in_one_burst_when_it_closes(spelled: bool):
    reply = parser(spelled=spelled)
    ids = ids_of(f"a{CALL}", spelled)
    bursts = [reply.feed([i]) for i in ids]
    assert bursts[-1] == [ToolCallDelta(0, LS)]
    assert [d for burst in bursts[:-1] for d in burst] == [TextDelta("a")]


@both_spellings
def test_calls_that_are_not_to_be_parsed_are_text(spelled: bool):
    text = f"a \n{CALL}\n{CALL} b"
    assert parts_of(text, spelled=spelled, parse_calls=False) == (Text(text),)
    assert parts_of(f"<think>{text}</think>", spelled=spelled, parse_calls=False) == (Reasoning(text),)


def test_a_marker_with_an_id_is_only_that_id():
    reply = parser()
    run(reply, [VOCABULARY.spell(f"<think>a</think>{CALL}")])
    assert reply.message().parts == (Text(f"<think>a</think>{CALL}"),)


def test_a_closer_spelled_inside_a_block_does_not_close_one_that_has_an_id():
    inner = '{"name": "w", "arguments": {"s": "</tool_call>"}}'
    ids = [*VOCABULARY.write("<tool_call>"), *VOCABULARY.spell(inner), *VOCABULARY.write("</tool_call>")]
    reply = parser()
    run(reply, [ids])
    assert reply.message().parts == (ToolCall("c0", "w", '{"s": "</tool_call>"}'),)


def test_metrics_count_malformed_calls_and_blocks_left_as_text():
    reply = parser()
    run(reply, [VOCABULARY.write(f'<tool_call></tool_call>{CALL}<tool_call>"name": "f"</tool_call><tool_call>x')])
    assert (reply.malformed, reply.unparsed_blocks) == (1, 2)


def test_call_ids_are_unguessable_and_differ():
    form = VOCABULARY.format()
    seen = set()
    for _ in range(50):
        reply = IncrementalParser(VOCABULARY, form)
        run(reply, [VOCABULARY.write(CALL + CALL)])
        seen |= {call.id for call in reply.message().tool_calls}
    assert len(seen) == 100
    assert all(re.fullmatch("call_[0-9a-f]{24}", i) for i in seen)


# --- ends, stop strings, streaming ------------------------------------------------------------------------------------


@both_spellings
@pytest.mark.parametrize("end", ["<|im_end|>", "<|endoftext|>"])
def test_an_end_id_is_invisible_and_ends_the_reply(end: str, spelled: bool):
    reply = parser(spelled=spelled)
    ids = [*ids_of("a <tool", spelled), VOCABULARY.special[end], *ids_of(f"b{CALL}", spelled)]
    deltas = run(reply, [[i] for i in ids])
    assert joined(deltas) == reply.message().parts == (Text("a <tool"),)


def test_an_added_token_that_is_no_marker_is_its_text():
    assert parts_of("a<|im_start|>b") == (Text("a<|im_start|>b"),)


def test_an_unfinished_character_is_a_replacement_character_at_the_end_and_before_a_marker():
    half = VOCABULARY.spell("語".encode()[:2])
    reply = parser()
    run(reply, [[*VOCABULARY.spell("a"), *half, *VOCABULARY.write(CALL), *half]])
    assert reply.message().parts == (Text("a\ufffd"), LS, Text("\ufffd"))


@pytest.mark.parametrize(
    ("text", "stop", "parts", "stopped"),
    [
        ("one STOP two", ["STOP"], (Text("one "),), "STOP"),
        ("one STO", ["STOP"], (Text("one STO"),), None),
        ("abab", ["abab", "ba"], (Text("a"),), "ba"),  # complete first, though it starts later
        ("xab", ["b", "ab"], (Text("x"),), "ab"),  # complete together: the longer
        ("<think>STOP</think>STOP", ["STOP"], (Reasoning("STOP"),), "STOP"),
        (CALL + "a", ["ls", "name"], (LS, Text("a")), None),
        (f"a\n\n{CALL}", ["\n\n"], (Text("a"),), "\n\n"),
        ("<think>a</think>\n\nb\n", ["\n"], (Reasoning("a"), Text("b")), "\n"),
        (f"ST{CALL}OP", ["STOP"], (Text("ST"), LS, Text("OP")), None),
        ("a <tool_call>STOP</tool_call>", ["STOP"], (Text("a <tool_call>"),), "STOP"),
        ("a", ["", "a"], (), "a"),
        ("語", ["語"], (), "語"),
    ],
)
def test_a_stop_string_cuts_the_visible_text(text: str, stop: list[str], parts: tuple[Part, ...], stopped: str | None):
    for spelled in (False, True):
        reply = parser(spelled=spelled, stop=stop)
        run(reply, [[i] for i in ids_of(text, spelled)])
        assert reply.message().parts == parts
        assert reply.stopped == stopped


@both_spellings
def test_ids_after_a_stop_string_change_nothing(spelled: bool):
    reply = parser(spelled=spelled, stop=["STOP"])
    assert reply.feed(ids_of("a STOP", spelled)) == [TextDelta("a"), TextDelta(" ")]
    assert reply.stopped == "STOP"
    lookups = VOCABULARY.lookups
    assert reply.feed(ids_of(f"b{CALL}STOP", spelled)) == []
    assert VOCABULARY.lookups == lookups
    assert reply.finish(STOP) == []
    assert reply.message().parts == (Text("a "),)


@both_spellings
def test_text_is_held_back_only_while_it_may_mean_something(spelled: bool):
    reply = parser(spelled=spelled, stop=["xyz"])
    shown = [
        "".join(d.text for d in reply.feed(ids_of(t, spelled)) if isinstance(d, TextDelta))
        for t in ("a", " ", "b", "x", "y", "q")
    ]
    assert shown == ["a", "", " b", "", "", "xyq"]
    assert reply.feed(VOCABULARY.spell("z<tool_ca")) == ([TextDelta("z")] if spelled else [TextDelta("z<tool_ca")])


@both_spellings
def test_reasoning_streams_as_it_comes(spelled: bool):
    reply = parser(spelled=spelled, in_reasoning=True)
    assert reply.feed(VOCABULARY.spell("\nwhy")) == [ReasoningDelta("why")]
    assert reply.feed(VOCABULARY.spell(" not ")) == [ReasoningDelta(" not")]


def test_packed_ids_are_taken():
    reply = parser()
    run(reply, [np.asarray(VOCABULARY.write(f"a{CALL}<|im_end|>b"), dtype=np.int32)])
    assert reply.message().parts == (Text("a"), LS)


def test_nothing_sampled_is_an_empty_reply():
    reply = parser()
    assert reply.feed([]) == []
    assert reply.finish(ABORT) == []
    assert reply.message().parts == ()


# --- cost -------------------------------------------------------------------------------------------------------------

_LONG = {
    "text": "hello world, é ",
    "spaces": " \n",
    "nearly a marker": "<tool_cal</thin",
    "nearly a stop string": "STO",
    "blocks of no call": "<tool_call>x</tool_call>",
    "an open block": '<tool_call>{"name": "f", "arguments": {"s": "',
}


@both_spellings
@pytest.mark.parametrize("unit", _LONG.values(), ids=_LONG.keys())
def test_a_token_costs_the_same_at_any_length(unit: str, spelled: bool):
    unit_ids = ids_of(unit, spelled)

    def seconds(count: int) -> float:
        ids = (unit_ids * count)[:count]
        best = float("inf")
        for _ in range(2):
            reply, lookups = parser(spelled=spelled, stop=["STOP", "\n\n\nx"]), VOCABULARY.lookups
            started = time.process_time()
            for token_id in ids:
                reply.feed([token_id])
            reply.finish(STOP)
            best = min(best, time.process_time() - started)
            assert VOCABULARY.lookups - lookups <= count
        return best

    short, long = seconds(10_000), seconds(20_000)
    assert long < 4 * short + 0.05


def test_one_chunk_costs_no_more_than_single_ids():
    reply = parser(spelled=True)
    started = time.process_time()
    run(reply, [VOCABULARY.spell(CALL) * 3000])
    assert time.process_time() - started < 5
    assert len(reply.message().tool_calls) == 3000


def test_a_format_may_have_neither_reasoning_nor_calls():
    reply = IncrementalParser(VOCABULARY, ReplyFormat(frozenset(), None, None, "hermes"))
    run(reply, [VOCABULARY.write(f"<think>a</think>{CALL}<|im_end|>")])
    assert reply.message().parts == (Text(f"<think>a</think>{CALL}<|im_end|>"),)


def test_markers_may_mix_ids_and_spelling():
    form = ReplyFormat(
        frozenset(),
        (Marker(VOCABULARY.special["<think>"], "<think>"), Marker(None, "</think>")),
        (Marker(None, "<tool_call>"), Marker(VOCABULARY.special["</tool_call>"], "</tool_call>")),
        "hermes",
    )
    reply = IncrementalParser(VOCABULARY, form, mint=counted_ids())
    ids = [*VOCABULARY.write("<think>"), *VOCABULARY.spell(f"a</think>{CALL[:-12]}"), *VOCABULARY.write("</tool_call>")]
    run(reply, [[i] for i in ids])
    assert reply.message().parts == (Reasoning("a"), LS)
