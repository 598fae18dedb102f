# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Putting encoding off changes no id, for any renderer that is used, and threads do not see each other's texts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from renderers import create_renderer
from renderers.configs import config_from_name

from nemo_polar.tokens.deferred import DeferredTokenizer
from nemo_polar.tokens.rendered import make_renderer_codec
from nemo_polar.tokens.tokenizer import Tokenizer
from tests.support import models

FOLDERS = {"qwen3": models.qwen3, "qwen3.5": models.qwen35}
_loaded: dict[str, tuple] = {}

words = st.text(alphabet=st.sampled_from("ab \n\t.,<>/|{}\"'012é→"), max_size=40)
texts = st.one_of(words, st.tuples(words, st.integers(10, 40)).map(lambda t: (t[0] or "x\n") * t[1]))
"""Short ones, and long ones, which are what is put off."""


@pytest.fixture(params=FOLDERS)
def both(request):
    """A family's renderer as it is, the same one with encoding put off, and the tokenizer."""
    if request.param not in _loaded:
        folder: Path = FOLDERS[request.param]()
        tokenizer = Tokenizer.load(folder)
        codec = make_renderer_codec(request.param, tokenizer)
        config = config_from_name(request.param)
        assert config is not None
        config = type(config).model_validate({**config.model_dump(exclude_unset=True), "thinking_retention": "all"})
        _loaded[request.param] = (create_renderer(tokenizer, config), codec, tokenizer)
    return _loaded[request.param]


new_messages = st.lists(
    st.tuples(st.sampled_from(["user", "tool"]), texts).map(
        lambda m: {"role": m[0], "content": m[1], **({"tool_call_id": "c", "name": "t"} if m[0] == "tool" else {})}
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(new=new_messages, reply=texts, thought=texts, cut=st.booleans())
def test_a_bridge_is_the_renderers_own(both, new, reply, thought, cut):
    plain, codec, tokenizer = both
    prompt = plain.render_ids([{"role": "user", "content": "go"}], add_generation_prompt=True)
    sampled = tokenizer.encode(f"<think>\n{thought}\n</think>\n\n{reply}" + ("" if cut else "<|im_end|>"))
    expected = plain.bridge_to_next_turn(list(prompt), list(sampled), new)
    with codec._deferred.recording() as put_off:
        found = codec._renderer.bridge_to_next_turn(list(prompt), list(sampled), new)
    if expected is None:
        assert found is None
    else:
        assert codec._deferred.expand(found.token_ids, put_off) == list(expected.token_ids)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(system=texts, new=new_messages, thought=texts, reply=texts)
def test_a_whole_conversation_is_the_renderers_own(both, system, new, thought, reply):
    plain, codec, _ = both
    turn = {"role": "assistant", "content": reply, "reasoning_content": thought}
    history = [{"role": "system", "content": system}, {"role": "user", "content": "go"}, turn, *new]
    tools = [{"type": "function", "function": {"name": "t", "description": "long " * 60, "parameters": {"type": "object"}}}]
    assert codec._render(history, tools) == plain.render_ids(history, tools=tools, add_generation_prompt=True)


def test_a_long_text_is_put_off_in_the_thread_that_records_and_nowhere_else():
    deferred = DeferredTokenizer(Tokenizer.load(models.tiny()))
    text = "a long text " * 20
    real = deferred.encode(text)
    with deferred.recording() as put_off:
        (stand_in,) = deferred.encode(text)
        assert deferred.encode("short") == deferred.tokenizer.encode("short")
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(deferred.encode, text).result() == real
    assert stand_in >= 2**31
    assert put_off == [text]
    assert deferred.expand([7, stand_in, 8], put_off) == [7, *real, 8]
    assert deferred.encode(text) == real
