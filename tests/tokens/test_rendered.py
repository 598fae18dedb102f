# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Codecs over hand-written renderers, with the real tokenizers of Qwen3 and Qwen3.5."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_polar.errors import BadRequest, ConfigError, TokenError
from nemo_polar.tokens.rendered import extends, make_renderer_codec
from nemo_polar.tokens.tokenizer import Tokenizer
from nemo_polar.types import FinishReason, Image, Message, Role, ToolResult, as_ids
from tests.support import models
from tests.support.conversations import (
    TOOLS,
    WRITTEN_OUT,
    assistant,
    call,
    codec,
    cycles,
    exchanges,
    result,
    system,
    turn_in,
    user,
)

FAMILIES: list[tuple[str, Callable[[], Path]]] = [("qwen3", models.qwen3), ("qwen3.5", models.qwen35)]
both = pytest.mark.parametrize(("family", "folder"), FAMILIES, ids=[name for name, _ in FAMILIES])


def load(family: str, folder: Callable[[], Path], **more: Any) -> Any:
    return codec(folder(), renderer=family, **more)


@both
@settings(max_examples=40, deadline=None)
@given(cycle=cycles())
def test_in_a_tool_cycle_bridges_equal_full_renders(family: str, folder: Callable[[], Path], cycle: list[Message]) -> None:
    # Both families render reasoning of the running tool cycle, so a turn written canonically is rendered in full as sampled.
    made = load(family, folder)
    turn, *new = cycle
    if turn.reasoning is None:
        turn = assistant(turn.text, *turn.tool_calls, reasoning="hm")
    prompt = made.render([system("s"), user("hi")], TOOLS)
    full = made.render([system("s"), user("hi"), turn, *new], TOOLS)
    assert extends(full.tolist(), prompt.tolist())
    sampled = turn_in(made, prompt, full)
    added = made.bridge(prompt, sampled, new, TOOLS)
    assert np.concatenate((prompt, sampled, added)).tolist() == full.tolist()


@both
@settings(max_examples=60, deadline=None)
@given(data=st.data(), rest=st.one_of(cycles(), exchanges()))
def test_whatever_was_sampled_a_bridge_only_adds(
    family: str, folder: Callable[[], Path], data: st.DataObject, rest: list[Message]
) -> None:
    made = load(family, folder)
    names = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<|im_end|>", "<|endoftext|>", "<|im_start|>")
    ids = st.one_of(st.sampled_from([made.tokenizer.special_tokens[n] for n in names]), st.integers(0, 140_000))
    sampled = as_ids(data.draw(st.lists(ids, max_size=12)))
    prompt = made.render([user("hi" * 300)], TOOLS)
    added = made.bridge(prompt, sampled, rest[1:], TOOLS)
    theirs = made._renderer.bridge_to_next_turn(prompt.tolist(), sampled.tolist(), [{"role": "user", "content": "x"}])
    whole = None if theirs is None else as_ids(theirs.token_ids)
    may = whole is not None and extends(whole.tolist(), [*prompt.tolist(), *sampled.tolist()])
    assert (added is not None) == may
    if added is not None:
        assert added.dtype == np.int32 and len(added) > 0
        assert made.tokenizer.special_tokens["<|im_start|>"] in added.tolist()


@both
@settings(max_examples=30, deadline=None)
@given(rest=st.one_of(cycles(), exchanges()))
def test_bridging_from_the_last_turn_alone_gives_what_the_whole_history_gives(
    family: str, folder: Callable[[], Path], rest: list[Message]
) -> None:
    made = load(family, folder)
    prompt = made.render([system("s"), user("one"), assistant("two"), user("three " * 200)], TOOLS)
    sampled = as_ids(made.tokenizer.encode("hm\n</think>\n\nok<|im_end|>"))
    dicts = [{"role": "user", "content": made._quote(m.text)} for m in rest[1:]]
    whole = made._renderer.bridge_to_next_turn(prompt.tolist(), sampled.tolist(), dicts).token_ids
    assert made._bridge(prompt, sampled, dicts, ()).tolist() == whole[len(prompt) + len(sampled) :]


@both
def test_a_line_goes_on_over_user_messages_with_reasoning_kept(family: str, folder: Callable[[], Path]) -> None:
    made = load(family, folder)
    ids = made.render([user("hi")], TOOLS)
    thought = "hm\n</think>\n\n" if made.in_reasoning(ids) else "<think>\nhm\n</think>\n\n"
    for n, new in enumerate(([user("a")], [result("r")], [user("b"), user("c")])):
        sampled = as_ids(made.tokenizer.encode(f"{thought}answer {n}<|im_end|>"))
        ids = np.concatenate((ids, sampled, made.bridge(ids, sampled, new, TOOLS)))
    assert made.tokenizer.decode(ids).count("hm\n</think>\n\nanswer") == 3


@both
def test_retention_as_in_the_template_ends_a_line_at_a_user_message(family: str, folder: Callable[[], Path]) -> None:
    made = load(family, folder, thinking_retention="template")
    prompt = made.render([user("hi")], TOOLS)
    sampled = as_ids(made.tokenizer.encode("<think>\nhm\n</think>\n\nok<|im_end|>"))
    assert made.bridge(prompt, sampled, [user("more")], TOOLS) is None
    assert made.bridge(prompt, sampled, [result("r")], TOOLS) is not None


def test_a_turn_that_ended_inside_its_reasoning_forks() -> None:
    # Qwen's renderers find no way on from there that the model was trained on; the tree then starts a new line.
    made = load("qwen3.5", models.qwen35)
    prompt = made.render([user("hi")], ())
    assert made.bridge(prompt, as_ids(made.tokenizer.encode("hm<|im_end|>")), [user("more")], ()) is None


@both
def test_a_cut_turn_is_closed_before_what_follows(family: str, folder: Callable[[], Path]) -> None:
    made = load(family, folder)
    prompt = made.render([user("hi")], ())
    for cut in ("", "<think>\nhm", "<think>\nhm\n</think>\n\nhalf a"):
        added = made.tokenizer.decode(made.bridge(prompt, as_ids(made.tokenizer.encode(cut)), [user("more")], ()))
        assert added.split("\n")[0] in ("<|im_end|>", "</think><|im_end|>")
        assert "<|im_start|>user\nmore<|im_end|>" in added


@both
@pytest.mark.parametrize("text", WRITTEN_OUT)
def test_special_tokens_written_in_text_never_become_ids(family: str, folder: Callable[[], Path], text: str) -> None:
    made = load(family, folder)
    specials = set(made.tokenizer.special_tokens.values())
    before = made.quoted_specials

    def render(t: str) -> list[int]:
        tools = [TOOLS[0], type(TOOLS[0])("n" + t, "d" + t, {"k" + t: ["v" + t]})]
        history = [
            system("s" + t),
            user("u" + t),
            assistant(
                "a" + t, call(arguments='{"path": "x' + t + '"}'), call("c" + t, "n" + t, "no json" + t), reasoning="r" + t
            ),
            result("o" + t),
        ]
        prompt = made.render(history, tools)
        sampled = as_ids(made.tokenizer.encode("hm</think>ok<|im_end|>"))
        added = made.bridge(prompt, sampled, [result("o" + t), user("u" + t)], tools)
        return [*prompt.tolist(), *added.tolist()]

    ids, plain = render(text), render("")
    assert [i for i in ids if i in specials] == [i for i in plain if i in specials]
    if "\n" not in text:  # which JSON writes otherwise
        assert made.tokenizer.decode(ids).replace(text, "") == made.tokenizer.decode(plain).replace(text, "")
    if text in made.tokenizer.special_tokens:
        assert made.quoted_specials - before >= 10


@both
def test_an_image_is_refused_by_name(family: str, folder: Callable[[], Path]) -> None:
    made = load(family, folder)
    picture = Message(Role.USER, (*user("see").parts, Image("data:,")))
    with pytest.raises(BadRequest) as refused:
        made.render([user("hi"), picture], ())
    assert refused.value.param == "messages[1].content[1]"
    shot = Message(Role.TOOL, (ToolResult("c", (Image("data:,"),)),))
    with pytest.raises(BadRequest):
        made.bridge(made.render([user("hi")], ()), as_ids([1]), [shot], ())


def test_a_reply_is_begun_only_where_it_does_not_begin_with_reasoning() -> None:
    beginning = [user("hi"), assistant("Sure")]
    with pytest.raises(BadRequest, match="reasoning"):
        load("qwen3.5", models.qwen35).render(beginning, ())
    calm = load("qwen3.5", models.qwen35, template_options={"enable_thinking": False})
    assert calm.tokenizer.decode(calm.render(beginning, ())).endswith("</think>\n\nSure")


def test_the_parser_reads_a_reply_of_each_family() -> None:
    bodies = {
        "qwen3": '<tool_call>\n{"name": "read", "arguments": {"path": "a"}}\n</tool_call>',
        "qwen3.5": "<tool_call>\n<function=read>\n<parameter=path>\na\n</parameter>\n</function>\n</tool_call>",
    }
    for family, folder in FAMILIES:
        made = load(family, folder)
        prompt = made.render([user("hi")], TOOLS)
        thought = "hm</think>" if family == "qwen3.5" else "<think>hm</think>"
        parser = made.parser(prompt, TOOLS)
        parser.feed(made.tokenizer.encode(f"{thought}ok{bodies[family]}<|im_end|>"))
        parser.finish(FinishReason.STOP)
        message = parser.message()
        assert (message.reasoning, message.text) == ("hm", "ok")
        assert [(c.name, c.malformed) for c in message.tool_calls] == [("read", False)]


def test_a_renderer_that_breaks_on_a_conversation_is_a_token_error(monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_renderer_codec("qwen3", Tokenizer.load(models.qwen3()))

    def broken(*_: Any, **__: Any) -> None:
        raise KeyError("role")

    monkeypatch.setattr(made._renderer, "render_ids", broken)
    monkeypatch.setattr(made._renderer, "bridge_to_next_turn", broken)
    with pytest.raises(TokenError, match="qwen3"):
        made.render([user("hi")], ())
    assert made.bridge(as_ids([1]), as_ids([2]), [user("hi")], ()) is None


def test_a_bridge_that_does_not_begin_with_what_was_sampled_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_renderer_codec("qwen3", Tokenizer.load(models.qwen3()))
    prompt, sampled = made.render([user("hi")], ()), as_ids(made.tokenizer.encode("ok<|im_end|>"))
    honest = made._renderer.bridge_to_next_turn

    def rewriting(*args: Any, **kwargs: Any) -> Any:
        rendered = honest(*args, **kwargs)
        assert rendered is not None
        rendered.token_ids[len(args[0])] += 1
        return rendered

    assert made.bridge(prompt, sampled, [user("more")], ()) is not None
    monkeypatch.setattr(made._renderer, "bridge_to_next_turn", rewriting)
    assert made.bridge(prompt, sampled, [user("more")], ()) is None


@pytest.mark.parametrize(
    ("name", "options", "named"),
    [
        ("gpt-oss", {}, "cannot be parsed"),
        ("nothing", {}, "cannot be parsed"),
        ("qwen3", {"enable_thinkng": True}, "enable_thinkng"),
        ("qwen3", {"enable_thinking": "maybe"}, "enable_thinking"),
        ("qwen3.6", {"preserve_thinking": False}, "preserve_thinking"),
    ],
)
def test_a_renderer_or_option_that_does_not_fit_is_a_config_error(name: str, options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        make_renderer_codec(name, Tokenizer.load(models.tiny()), template_options=options)


def test_a_tokenizer_without_the_familys_tokens_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="tool_call"):
        make_renderer_codec("qwen3", Tokenizer.load(models.tiny()))


def test_the_fingerprint_tells_options_apart() -> None:
    made = [
        load("qwen3", models.qwen3),
        load("qwen3", models.qwen3, template_options={"enable_thinking": False}),
        load("qwen3", models.qwen3, thinking_retention="template"),
        load("prime-qwen3", models.qwen3),
    ]
    assert len({c.fingerprint for c in made}) == len(made)
