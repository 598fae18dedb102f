# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Instructions for CLIs that read stdin as if it had been typed."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_polar.harnesses.typed import typed

PLAIN = st.text(st.characters(exclude_characters="@/?", exclude_categories=["Cs"]), min_size=1)
SPECIAL = st.text(st.sampled_from('@/!?{}"\\\n\r\t\x00\x7f é🙂ab'), min_size=1).filter(
    lambda text: not any(mark in text for mark in ("@{", "!{", "{{args}}"))
)


@given(PLAIN)
def test_an_instruction_that_means_nothing_more_is_typed_as_it_is(instruction: str) -> None:
    assert typed(instruction, "/c", "toml").stdin == instruction.encode() and not typed(instruction, "/c", "md").files


@given(SPECIAL)
def test_one_that_does_is_the_prompt_of_a_command_character_by_character(instruction: str) -> None:
    instruction = f"@ {instruction}"
    made = typed(instruction, "/c", "toml")
    assert made.stdin == b"/polar-task\n"
    assert tomllib.loads(made.files["/c/polar-task.toml"].decode()) == {"prompt": instruction}


@pytest.mark.parametrize("instruction", ["/init", "  /init it", "see a@b.c", "? for help"])
def test_a_command_in_markdown_is_one_that_the_model_is_not_told_of(instruction: str) -> None:
    [(path, content)] = typed(instruction, "/c", "md").files.items()
    assert path == "/c/polar-task.md"
    assert content.decode() == f"---\ndisable-model-invocation: true\n---\n{instruction}"


@pytest.mark.parametrize("mark", ["@{x}", "!{x}", "{{args}}"])
def test_what_a_commands_prompt_would_change_is_typed(mark: str) -> None:
    assert typed(f"/do {mark} @x", "/c", "toml").stdin == f"/do {mark} @x".encode()
