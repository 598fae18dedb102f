# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The reply parser against `renderers`, an independent parser of whole replies, on real vocabularies.

`renderers` strips white space, drops the text after a call and looks at the whole reply, so the comparison is up to that, and
leaves out the one case that no streaming parser can match: a call inside reasoning that a later closer takes back.
"""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from renderers.base import ParsedResponse, ToolCallParseStatus
from renderers.parsing import parse_qwen3, parse_qwen35

from nemo_polar.tokens.calls import CallBody
from nemo_polar.tokens.parser import IncrementalParser, Marker, ReplyFormat
from nemo_polar.tokens.tokenizer import Tokenizer
from nemo_polar.types import FinishReason, Message, Text, ToolCall, ToolSpec
from tests.support import models
from tests.support.replies import counted_ids, joined, pieces, run

TOOLS = (
    ToolSpec("run", parameters={"properties": {"cmd": {"type": "string"}, "n": {"type": "integer"}, "o": {"type": "object"}}}),
)
WIRE_TOOLS: list[Any] = [{"name": t.name, "description": "", "parameters": dict(t.parameters)} for t in TOOLS]
BODY: dict[str, CallBody] = {"qwen3": "hermes", "qwen35": "qwen_xml"}


@cache
def tokenizer_of(family: str) -> Tokenizer:
    return Tokenizer.load({"qwen3": models.qwen3, "qwen35": models.qwen35, "tiny": models.tiny}[family]())


@cache
def plain_ids(family: str, text: str) -> tuple[int, ...]:
    """``text`` in ordinary tokens only, whatever it looks like."""
    tokenizer = tokenizer_of(family)
    return tuple(tokenizer.encode(tokenizer.quote(text)[0]))


def format_of(family: str, body: CallBody) -> ReplyFormat:
    tokenizer = tokenizer_of(family)

    def marker(text: str) -> Marker:
        return Marker(tokenizer.token_id(text), text)

    ends = {tokenizer.token_id("<|im_end|>"), tokenizer.token_id("<|endoftext|>")}
    return ReplyFormat(
        end_ids=frozenset(i for i in ends if i is not None),
        reasoning=(marker("<think>"), marker("</think>")),
        call=(marker("<tool_call>"), marker("</tool_call>")),
        call_body=body,
    )


def theirs(family: str, ids: list[int], in_reasoning: bool) -> ParsedResponse:
    tokenizer: Any = tokenizer_of(family)
    of = tokenizer.token_id
    common = {
        "stop_ids": {of("<|im_end|>"), of("<|endoftext|>")},
        "tool_call_id": of("<tool_call>"),
        "tool_call_end_id": of("</tool_call>"),
        "prefilled_thinking": in_reasoning,
    }
    if family == "qwen3":
        return parse_qwen3(tokenizer, ids, reasoning_end_id=of("</think>"), **common)
    return parse_qwen35(tokenizer, ids, think_id=of("<think>"), think_end_id=of("</think>"), tools=WIRE_TOOLS, **common)


# --- replies ----------------------------------------------------------------------------------------------------------

_WORDS = st.one_of(
    st.sampled_from(
        ["Let me see.", "\n\n", " ", "  indented\n", "é🙂語", "<tool_call", "a < b", "```py\nx = 1\n```", "\u3000", "\\u00e9"]
    ),
    st.text(max_size=6).map(lambda s: s.encode("utf-8", "replace").decode()),
)
_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.sampled_from([1e5, -0.0, 1.0, 12345678901234567890]), _WORDS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(_WORDS, inner, max_size=3)),
    max_leaves=6,
)


@st.composite
def _hermes(draw: st.DrawFn) -> str:
    call = {
        "name": draw(st.sampled_from(["run", "read_file", "é"])),
        "arguments": draw(st.dictionaries(_WORDS, _JSON, max_size=3)),
    }
    separators = draw(st.sampled_from([(", ", ": "), (",", ":"), (" ,\n", " :  ")]))
    return json.dumps(call, ensure_ascii=draw(st.booleans()), separators=separators, indent=draw(st.sampled_from([None, 2])))


@st.composite
def _xml(draw: st.DrawFn) -> str:
    name = draw(st.sampled_from(["run", "read_file", "é"]))
    values = st.one_of(_WORDS, _JSON.map(json.dumps)).filter(lambda v: "</parameter>" not in v)
    pairs = draw(st.lists(st.tuples(st.sampled_from(["cmd", "n", "o", "other"]), values), max_size=3))
    return f"<function={name}>\n" + "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in pairs) + "</function>"


@st.composite
def _replies(draw: st.DrawFn, family: str) -> tuple[list[int], bool]:
    """Ids of a reply, and whether the prompt ended inside reasoning."""
    tokenizer = tokenizer_of(family)
    special = {t: [tokenizer.special_tokens[t]] for t in ("<think>", "</think>", "<tool_call>", "</tool_call>", "<|im_end|>")}
    ordinary = st.one_of(
        _WORDS.map(lambda s: list(plain_ids(family, s))), st.lists(st.integers(0, min(special["<|im_end|>"]) - 10), max_size=4)
    )
    bodies = (_hermes() if family == "qwen3" else _xml()).map(lambda s: list(plain_ids(family, f"\n{s}\n")))
    call = st.tuples(bodies).map(lambda b: [*special["<tool_call>"], *b[0], *special["</tool_call>"]])
    damaged = call.flatmap(lambda c: st.integers(1, max(1, len(c) - 2)).map(lambda i: c[:i] + c[i + 1 :]))
    stray = [*plain_ids(family, "x"), *special["<think>"]]  # not at the start, where it would open reasoning
    content = st.one_of(ordinary, call, call, damaged, st.sampled_from([special["</tool_call>"], stray]))
    end = draw(st.sampled_from(["closed", "closed", "call", "open"]))
    in_reasoning, opened = draw(st.booleans()), draw(st.booleans())
    ids: list[int] = []
    if in_reasoning or opened:
        ids += [] if in_reasoning else [*draw(st.sampled_from([[], list(plain_ids(family, "\n"))])), *special["<think>"]]
        ids += [i for part in draw(st.lists(ordinary, max_size=3)) for i in part]
        ids += {"closed": special["</think>"], "call": draw(call), "open": []}[end]
        if end == "open":
            return ids, in_reasoning
    ids += [i for part in draw(st.lists(content, max_size=5)) for i in part]
    if draw(st.booleans()):
        ids += [*special["<|im_end|>"], *draw(ordinary)]
    return ids, in_reasoning


def _stripped(value: Any) -> Any:
    """Arguments as `renderers` gives those of tags: strings without white space around them."""
    return {k: v.strip() if isinstance(v, str) else v for k, v in value.items()}


def _before_calls(message: Message) -> str:
    texts = []
    for part in message.parts:
        if isinstance(part, ToolCall):
            break
        if isinstance(part, Text):
            texts.append(part.text)
    return "".join(texts).strip()


@pytest.mark.parametrize("family", ["qwen3", "qwen35"])
def test_calls_reasoning_and_content_are_those_of_renderers(family: str):
    @settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(_replies(family), st.lists(st.integers(0, 300), max_size=6))
    def check(reply: tuple[list[int], bool], cuts: list[int]) -> None:
        ids, in_reasoning = reply
        parser = IncrementalParser(
            tokenizer_of(family), format_of(family, BODY[family]), in_reasoning=in_reasoning, tools=TOOLS, mint=counted_ids()
        )
        # LENGTH: like renderers, leave a block that never closed.
        deltas = run(parser, pieces(ids, cuts), FinishReason.LENGTH)
        ours, other = parser.message(), theirs(family, ids, in_reasoning)
        assert joined(deltas) == ours.parts
        assert (ours.reasoning or "").strip() == (other.reasoning_content or "").strip()
        if parser.unparsed_blocks:
            assert _before_calls(ours).startswith(other.content.strip())
        else:
            assert _before_calls(ours) == other.content.strip()
        mine = [c for c in ours.tool_calls if not c.malformed]
        if family == "qwen3":
            good = [c for c in other.tool_calls if c.status is ToolCallParseStatus.OK and isinstance(c.arguments, dict)]
            assert [(c.name, json.loads(c.arguments)) for c in mine] == [(c.name, c.arguments) for c in good]
        else:  # they call what breaks the grammar well-formed, if its parameters can be found
            named = {(c.name, json.dumps(_stripped(c.arguments))) for c in other.tool_calls if isinstance(c.arguments, dict)}
            assert {(c.name, json.dumps(_stripped(json.loads(c.arguments)))) for c in mine} <= named
            # and read a name on into the next tag where its own is not closed
            names = [c.name for c in other.tool_calls if c.name and not re.search("[<\n]", c.name)]
            assert [c.name for c in ours.tool_calls] == names

    check()


@pytest.mark.parametrize("family", ["qwen3", "qwen35"])
@pytest.mark.parametrize("spelled", [False, True], ids=["markers by id", "markers spelled"])
def test_every_cut_of_real_ids_gives_the_same_reply(family: str, spelled: bool):
    vocabulary = "tiny" if spelled else family  # the small one has no think or call tokens
    form = format_of(vocabulary, BODY[family])
    assert all((m.id is None) == spelled for pair in (form.reasoning, form.call) if pair for m in pair)

    @settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(_replies(family), st.lists(st.integers(0, 300), max_size=6), st.sampled_from([(), ("\n\n", "e"), ("語",)]))
    def check(reply: tuple[list[int], bool], cuts: list[int], stop: tuple[str, ...]) -> None:
        ids, in_reasoning = reply
        if spelled:
            ids = tokenizer_of("tiny").encode(tokenizer_of(family).decode(ids))
        results = []
        for chunks in ([ids], pieces(ids, cuts), [[i] for i in ids]):
            parser = IncrementalParser(
                tokenizer_of(vocabulary), form, in_reasoning=in_reasoning, stop=stop, tools=TOOLS, mint=counted_ids()
            )
            deltas = run(parser, chunks)
            assert joined(deltas) == parser.message().parts
            results.append((parser.message(), parser.stopped, parser.malformed, parser.unparsed_blocks))
        assert results[0] == results[1] == results[2]

    check()


@pytest.mark.parametrize(("family", "vocabulary"), [("qwen3", "tiny"), ("qwen35", "tiny")])
def test_spelled_markers_give_the_reply_that_ids_give(family: str, vocabulary: str):
    @settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(_replies(family))
    def check(reply: tuple[list[int], bool]) -> None:
        ids, in_reasoning = reply
        text = tokenizer_of(family).decode(ids)
        messages = []
        for name in (family, vocabulary):
            parser = IncrementalParser(
                tokenizer_of(name), format_of(name, BODY[family]), in_reasoning=in_reasoning, tools=TOOLS, mint=counted_ids()
            )
            run(parser, [[i] for i in tokenizer_of(name).encode(text)])
            messages.append(parser.message())
        assert messages[0] == messages[1]

    check()
