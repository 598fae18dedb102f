# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Any order of roles renders and bridges in every family, and no text of it is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_polar.tokens.chat_template import ChatTemplate
from nemo_polar.tokens.rendered import CALL_BODIES
from nemo_polar.tokens.roles import FAMILIES, RoleMap
from nemo_polar.tokens.template import probe_roles
from nemo_polar.types import Message, Role, as_ids
from tests.support import models
from tests.support.conversations import assistant, codec, developer, result, system, user

RENDERERS: list[tuple[Callable[[], Path], dict[str, Any]]] = [
    (models.qwen3, {"renderer": "qwen3"}),
    (models.qwen3, {"renderer": "prime-qwen3"}),
    (models.qwen35, {"renderer": "qwen3.5"}),
    (models.qwen35, {"renderer": "qwen3.6"}),
    (models.qwen35, {"renderer": "nemotron-3"}),
    (models.qwen3, {"renderer": "template"}),
    (models.tiny, {"chat_template": "hermes"}),
]
every = pytest.mark.parametrize(("folder", "how"), RENDERERS, ids=[next(iter(how.values())) for _, how in RENDERERS])
speakers = st.lists(st.sampled_from([system, developer, user, assistant]), min_size=1, max_size=6)


def numbered(speakers: list[Callable[[str], Message]]) -> tuple[list[Message], list[str]]:
    words = [f"word-{n}" for n in range(len(speakers))]
    return [speak(word) for speak, word in zip(speakers, words, strict=True)], words


@every
@settings(max_examples=40, deadline=None)
@given(speakers=speakers)
def test_every_order_of_roles_renders_with_all_its_text(folder: Any, how: dict[str, Any], speakers: list[Any]) -> None:
    made = codec(folder(), **how)
    messages, words = numbered([*speakers, user])
    text = made.tokenizer.decode(made.render(messages, ()))
    places = [text.find(word) for word in words]
    assert -1 not in places and places == sorted(places)


@every
@settings(max_examples=40, deadline=None)
@given(speakers=st.lists(st.sampled_from([system, developer, user, result]), min_size=1, max_size=5))
def test_every_order_of_roles_can_follow_a_sampled_turn(folder: Any, how: dict[str, Any], speakers: list[Any]) -> None:
    made = codec(folder(), **how)
    messages, words = numbered(speakers)
    prompt, sampled = made.render([user("hi")], ()), as_ids(made.tokenizer.encode("x</think>ok<|im_end|>"))
    added = made.bridge(prompt, sampled, messages, ())
    text = made.tokenizer.decode(added)
    places = [text.find(word) for word in words]
    assert -1 not in places and places == sorted(places)


def test_every_renderer_that_can_be_loaded_has_a_role_map() -> None:
    assert set(FAMILIES) == set(CALL_BODIES)


def test_what_a_map_does_with_each_place() -> None:
    talk = [system("a"), developer("b"), user("c"), system("d"), user("e")]

    def roles(map: RoleMap, **more: Any) -> list[tuple[str, str]]:
        return [(m.role.value, m.text) for m in map.apply(talk, **more)]

    assert roles(RoleMap()) == [("system", "a\n\nb"), ("user", "c"), ("user", "d"), ("user", "e")]
    kept = [("system", "a"), ("system", "b"), ("user", "c"), ("system", "d"), ("user", "e")]
    assert roles(RoleMap(leading="keep", later="keep")) == kept
    assert roles(RoleMap(developer="keep", leading="keep", later="keep"))[1] == ("developer", "b")
    assert roles(RoleMap(leading="user", merge_users=True)) == [("user", "a\n\nb\n\nc\n\nd\n\ne")]
    assert roles(RoleMap(), opening=False)[:2] == [("user", "a"), ("user", "b")]


def test_tool_results_are_not_merged_into_user_messages() -> None:
    talk = [result("r"), user("a"), user("b"), Message(Role.USER, result("q").parts)]
    assert [m.text for m in RoleMap(merge_users=True).apply(talk)] == ["", "a\n\nb", ""]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("{{ m.role }}{{ m.content }}", RoleMap(leading="keep", later="keep")),
        ("{% if m.role == 'system' and not loop.first %}{{ raise_exception('late') }}{% endif %}{{ m.content }}", RoleMap()),
        ("{% if m.role == 'system' %}{{ raise_exception('none') }}{% endif %}{{ m.content }}", RoleMap(leading="user")),
        ("{% if m.role != 'system' %}{{ m.content }}{% endif %}", RoleMap(leading="user")),
        (
            "{% if loop.previtem and loop.previtem.role == m.role %}{{ raise_exception('turns') }}{% endif %}{{ m.content }}",
            RoleMap(later="keep", merge_users=True),
        ),
    ],
)
def test_the_roles_of_a_template_are_found_by_trying(body: str, expected: RoleMap) -> None:
    assert probe_roles(ChatTemplate("{% for m in messages %}" + body + "{% endfor %}")) == expected
