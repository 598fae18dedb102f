# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The template bridge: what it appends is what a full render has there, and it never sees the history."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_polar.errors import BadRequest, ConfigError, TokenError
from nemo_polar.tokens.chat_template import ChatTemplate
from nemo_polar.tokens.reply_format import Marker, ReplyFormat
from nemo_polar.tokens.template import make_template_codec
from nemo_polar.tokens.tokenizer import Tokenizer
from nemo_polar.types import FinishReason, Message, Reasoning, Role, Text, as_ids
from tests.support import models
from tests.support.conversations import (
    TOOLS,
    WRITTEN_OUT,
    assistant,
    call,
    codec,
    cycles,
    developer,
    exchanges,
    result,
    spoken,
    system,
    turn_in,
    user,
)

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
FORMAT = ReplyFormat(frozenset(), None, (Marker(None, "<tool_call>"), Marker(None, "</tool_call>")), "hermes")


def hermes(**more: Any) -> Any:
    return codec(models.tiny(), chat_template="hermes", **more)


def small(template: str, format: ReplyFormat = FORMAT, **options: Any) -> Any:
    return make_template_codec("t", Tokenizer.load(models.tiny()), ChatTemplate(template, options=options), format)


@pytest.mark.parametrize("folder", [models.tiny, models.qwen3], ids=lambda f: f.__name__)
@settings(max_examples=40, deadline=None)
@given(opening=spoken, rounds=st.lists(st.one_of(cycles(), exchanges()), min_size=1, max_size=3))
def test_for_a_stable_template_bridges_equal_full_renders(folder: Any, opening: str, rounds: list[list[Message]]) -> None:
    made = codec(folder(), chat_template="hermes")
    assert made.prefix_stable
    history = [user(opening)]
    ids = made.render(history, TOOLS)
    for turn, *new in rounds:
        full = made.render([*history, turn, *new], TOOLS)
        sampled = turn_in(made, ids, full)
        added = made.bridge(ids, sampled, new, TOOLS)
        ids = np.concatenate((ids, sampled, added))
        assert ids.tolist() == full.tolist()
        history += [turn, *new]


@settings(max_examples=60, deadline=None)
@given(sampled=st.lists(st.integers(0, 400), max_size=20), rest=st.one_of(cycles(), exchanges()))
def test_whatever_was_sampled_the_bridge_closes_the_turn_once_and_opens_the_next(
    sampled: list[int], rest: list[Message]
) -> None:
    made = hermes()
    end = made.tokenizer.special_tokens["<|im_end|>"]
    prompt = made.render([user("hi")], TOOLS)
    added = made.bridge(prompt, as_ids(sampled), rest[1:], TOOLS).tolist()
    closed = bool(sampled) and sampled[-1] == end
    assert (added[0] == end) is not closed
    assert made.tokenizer.decode(added if closed else added[1:]).startswith("\n<|im_start|>user\n")
    assert made.tokenizer.decode(added).endswith("<|im_end|>\n<|im_start|>assistant\n")


def test_the_template_never_sees_the_history_when_bridging(monkeypatch: pytest.MonkeyPatch) -> None:
    made = hermes()
    prompt = made.render([user("h" * 50_000)], TOOLS)
    seen: list[str] = []
    render = ChatTemplate.render

    def spy(self: ChatTemplate, *args: Any, **kwargs: Any) -> str:
        seen.append(render(self, *args, **kwargs))
        return seen[-1]

    monkeypatch.setattr(ChatTemplate, "render", spy)
    sampled = as_ids(made.tokenizer.encode("ok<|im_end|>"))
    assert made.bridge(prompt, sampled, [user("new")], TOOLS) is not None
    assert seen and all("hhh" not in text and "Reads a file" not in text and len(text) < 1500 for text in seen)


@pytest.mark.parametrize("text", WRITTEN_OUT)
def test_special_tokens_in_a_tool_result_stay_text_and_are_counted(text: str) -> None:
    made = codec(models.qwen3(), chat_template="hermes")
    before = made.quoted_specials
    prompt = made.render([user("hi")], TOOLS)
    added = made.bridge(prompt, as_ids(made.tokenizer.encode("ok<|im_end|>")), [result(text)], TOOLS).tolist()
    plain = made.bridge(prompt, as_ids(made.tokenizer.encode("ok<|im_end|>")), [result("")], TOOLS).tolist()
    specials = set(made.tokenizer.special_tokens.values())
    assert [i for i in added if i in specials] == [i for i in plain if i in specials]
    assert text in made.tokenizer.decode(added)
    assert (made.quoted_specials > before) == any(s in text for s in made.tokenizer.special_tokens)


def test_special_tokens_become_real_when_asked_for() -> None:
    made = hermes(special_tokens_in_text="as_template")
    ids = made.render([user("a<|im_end|>b\ufdd0")], ())
    assert ids.tolist().count(made.tokenizer.special_tokens["<|im_end|>"]) == 3, "system, the written one, user"
    assert made.quoted_specials == 0
    assert "b\ufdd0<|im_end|>" in made.tokenizer.decode(ids)


def test_an_assistant_message_that_was_not_sampled_is_no_bridge() -> None:
    made = hermes()
    prompt, sampled = made.render([user("hi")], ()), as_ids(made.tokenizer.encode("ok<|im_end|>"))
    assert made.bridge(prompt, sampled, [user("a"), assistant("b"), user("c")], ()) is None
    assert made.bridge(prompt, sampled, [], ()) is None


def test_a_template_that_rewrites_earlier_text_is_no_bridge() -> None:
    # The last user message carries a note, as tools do in some templates: appending one takes it from the one before.
    moving = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + ('note ' if m.role == 'user' and "
        "loop.index0 == messages|length - 1 - (messages|map(attribute='role')|list)[::-1].index('user')"
        " else '') + m.content + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    talk = [{"role": role, "content": role} for role in ("user", "assistant", "user")]
    assert "user\nuser" in ChatTemplate(moving).render(talk) and "user\nnote user" in ChatTemplate(moving).render(talk)
    with pytest.raises(ConfigError, match="renderer of its own"):
        small(moving)


def test_a_template_without_an_end_of_turn_token_is_refused_with_a_reason() -> None:
    with pytest.raises(ConfigError, match="no token ends its assistant turns"):
        small("{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}")
    with pytest.raises(ConfigError, match="does not compile"):
        small("{% for m in messages %}")


def test_a_cut_turn_is_closed_and_so_is_its_reasoning() -> None:
    made = codec(models.qwen3(), renderer="template")
    prompt = made.render([user("hi")], ())
    encode = made.tokenizer.encode

    def appended(sampled: str) -> str:
        return made.tokenizer.decode(made.bridge(prompt, as_ids(encode(sampled)), [user("more")], ()))

    rest = "<|im_end|>\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n"
    assert appended("said") == rest
    assert appended("<think>\nhm") == "</think>" + rest
    assert appended("<think>\nhm</think>said") == rest
    assert appended("<think>\nhm<tool_call>\n{") == rest
    assert appended("said<|im_end|>") == rest.removeprefix("<|im_end|>")


def test_retention_as_in_the_template_forks_where_the_template_drops_reasoning() -> None:
    keeps, drops = (codec(models.qwen3(), renderer="template", thinking_retention=how) for how in ("all", "template"))
    prompt = keeps.render([user("hi")], TOOLS)
    sampled = as_ids(keeps.tokenizer.encode("<think>\nhm\n</think>\n\nok<|im_end|>"))
    assert keeps.bridge(prompt, sampled, [user("more")], TOOLS) is not None
    assert drops.bridge(prompt, sampled, [user("more")], TOOLS) is None
    within = drops.bridge(prompt, sampled, [result("x")], TOOLS)
    assert within is not None and within.tolist() == keeps.bridge(prompt, sampled, [result("x")], TOOLS).tolist()
    assert not keeps.prefix_stable


def test_a_reply_can_be_begun_where_the_template_allows_it() -> None:
    made = hermes()
    ids = made.render([user("hi"), assistant("The answer is <|im_end|>")], ())
    assert made.tokenizer.decode(ids).endswith("<|im_start|>assistant\nThe answer is <|im_end|>")
    assert ids[-1] != made.tokenizer.special_tokens["<|im_end|>"]
    with pytest.raises(BadRequest, match=r"messages\[1\]"):
        made.render([user("hi"), assistant("x", call())], ())


def test_a_template_that_fails_on_a_conversation_is_a_token_error() -> None:
    made = small(CHATML.replace("{% for", "{% if messages|length > 5 %}{{ raise_exception('too many') }}{% endif %}{% for"))
    assert len(made.render([user("a")], ())) > 0
    with pytest.raises(TokenError, match="too many"):
        made.render([user("a"), assistant("b")] * 3 + [user("c")], ())
    with pytest.raises(BadRequest):
        made.render([], ())


def test_chat_templates_run_with_hugging_face_conventions() -> None:
    source = (
        "{%- for m in messages %}\n    {%- if m.role == 'skip' %}\n        {%- continue %}\n    {%- endif %}\n"
        "    {%- generation %}{{ m.content | tojson }}{%- endgeneration %}\n{%- endfor %}"
        "{{ strftime_now('%d %b %Y') }}{{ eos_token }}{{ style }}{{ tools is none }}{{ missing }}"
        "{{ {'a': '<é\ufdd0'} | tojson(ensure_ascii=True) }}"
    )
    template = ChatTemplate(source, options={"style": "!"}, named_tokens={"eos_token": "</s>"})
    rendered = template.render([{"role": "skip", "content": "x"}, {"role": "user", "content": "<é>"}])
    assert rendered == '"<é>"01 Jan 2025</s>!True{"a": "<\\u00e9\ufdd0"}'
    assert "31 Mar 2026" in ChatTemplate(source, options={"date": "2026-03-31"}).render([])
    with pytest.raises(ConfigError, match="date"):
        ChatTemplate(source, options={"date": "today"})


def test_a_chat_template_cannot_leave_its_sandbox() -> None:
    escape = ChatTemplate("{{ ''.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(Exception, match="unsafe"):
        escape.render([])


def test_an_end_of_turn_token_that_swallows_white_space_is_bridged_exactly(tmp_path: Any) -> None:
    # Phi's <|end|> takes the line break after it: encoding what follows on its own would find that break.
    tokenizer = Tokenizer.load(models.tiny())
    source = models.tiny() / "tokenizer.json"
    text = source.read_text(encoding="utf-8")
    entry = text.index('"content": "<|im_end|>"')
    flag = text.index('"rstrip": false', entry)
    (tmp_path / "tokenizer.json").write_text(text[:flag] + '"rstrip": true' + text[flag + len('"rstrip": false') :])
    swallowing = Tokenizer.load(tmp_path)
    assert len(swallowing.encode("<|im_end|>\n")) == 1 < len(tokenizer.encode("<|im_end|>\n"))
    made = make_template_codec("t", swallowing, ChatTemplate(CHATML), FORMAT)
    assert made.prefix_stable
    prompt = made.render([user("a")], ())
    added = made.bridge(prompt, as_ids(swallowing.encode("b<|im_end|>")), [user("c")], ())
    assert added is not None and swallowing.decode(added).startswith("<|im_start|>user")


def test_the_fingerprint_changes_with_whatever_changes_the_ids() -> None:
    settings_: list[dict[str, Any]] = [
        {},
        {"special_tokens_in_text": "as_template"},
        {"thinking_retention": "template"},
        {"template_options": {"x": 1}},
    ]
    prints = [hermes(**s).fingerprint for s in settings_]
    prints += [codec(models.qwen3(), chat_template="hermes").fingerprint, small(CHATML).fingerprint]
    assert len(set(prints)) == len(prints)
    assert small(CHATML).fingerprint == small(CHATML).fingerprint


def test_a_parser_starts_inside_the_reasoning_that_the_prompt_opened() -> None:
    opened = CHATML.replace("assistant\n'", "assistant\n<think>\n'")
    think = (Marker(None, "<think>"), Marker(None, "</think>"))
    made = small(opened, ReplyFormat(frozenset(), think, FORMAT.call, "hermes"))
    prompt = made.render([user("never mind </think>")], ())
    parser = made.parser(prompt, ())
    parser.feed(made.tokenizer.encode("hm</think>said<|im_end|>"))
    parser.finish(FinishReason.STOP)
    assert parser.message() == Message(Role.ASSISTANT, (Reasoning("hm"), Text("said")))
    plain = hermes()
    assert not plain.in_reasoning(plain.render([user("<think>")], ()))


def test_counting_is_rendering_and_is_not_counted_as_quoting() -> None:
    made = small(CHATML)
    conversation = [system("s"), developer("d"), user("<|im_end|>")]
    assert made.count(conversation, TOOLS) == len(made.render(conversation, TOOLS))
    assert made.quoted_specials == 1
    assert made.token_text(made.tokenizer.special_tokens["<|im_end|>"]) == ("<|im_end|>", b"<|im_end|>")
