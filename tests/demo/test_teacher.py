# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The scripted teacher: it goes on from what the prompt shows, and its flaws are those it is told to have."""

from __future__ import annotations

import json
import random
import re

import numpy as np
import pytest
from tokenizers import Tokenizer

from nemo_polar.demo.families import FAMILIES
from nemo_polar.demo.generate import tasks
from nemo_polar.demo.teacher import END_OF_TURN, Flaws, make_script, reply
from nemo_polar.engines.base import GenerateRequest
from nemo_polar.types import SamplingParams
from tests.support import models

SYSTEM = "<|im_start|>system\nYou write code.<|im_end|>\n"
COPY = "Read olive.txt and write the word it holds to maple.txt"
WRITE = "Create the file olive.txt containing exactly maple"


def opening(instruction: str) -> str:
    return f"{SYSTEM}<|im_start|>user\n{instruction}<|im_end|>\n<|im_start|>assistant\n"


def answered(prompt: str, said: str, result: str) -> str:
    return f"{prompt}{said}\n<|im_start|>user\n<tool_response>\n{result}\n</tool_response><|im_end|>\n<|im_start|>assistant\n"


def call_of(text: str) -> dict[str, object]:
    found = re.fullmatch(r"<tool_call>\n(.*)\n</tool_call><\|im_end\|>", text)
    assert found, text
    return json.loads(found.group(1))


def rng(seed: object = 0) -> random.Random:
    return random.Random(f"{seed}")


def test_each_turn_is_the_next_step_with_the_results_so_far_and_the_last_a_sentence() -> None:
    first = reply(opening(COPY), rng())
    assert call_of(first) == {"name": "read", "arguments": {"path": "olive.txt"}}
    prompt = answered(opening(COPY), first, "quartz\n")
    second = reply(prompt, rng())
    assert call_of(second) == {"name": "write", "arguments": {"path": "maple.txt", "content": "quartz"}}
    last = reply(answered(prompt, second, "ok"), rng())
    assert last == f"Wrote maple.txt.{END_OF_TURN}"


def test_a_call_that_lacked_an_argument_is_made_again() -> None:
    slipped = reply(opening(WRITE), rng(), Flaws(0, 0, 1))
    assert call_of(slipped)["arguments"] in ({"path": "olive.txt"}, {"content": "maple"})
    again = reply(answered(opening(WRITE), slipped, "Validation failed"), rng())
    assert call_of(again)["arguments"] == {"path": "olive.txt", "content": "maple"}


def test_a_wrong_word_changes_one_argument_and_leaves_the_call_whole() -> None:
    for seed in range(20):
        arguments = call_of(reply(opening(WRITE), rng(seed), Flaws(1, 0, 0)))["arguments"]
        assert isinstance(arguments, dict) and set(arguments) == {"path", "content"}
        assert (arguments["path"] != "olive.txt") != (arguments["content"] != "maple")


def test_an_idle_teacher_claims_to_have_done_it() -> None:
    assert reply(opening(WRITE), rng(), Flaws(0, 1, 0)) == f"Created olive.txt.{END_OF_TURN}"


def test_flaws_come_as_often_as_they_should() -> None:
    flaws, draws = Flaws(0.2, 0.1, 0.05), rng()
    drawn = [flaws.draw(draws) for _ in range(20_000)]
    for name, share in (("wrong_word", 0.2), ("idle", 0.1), ("slip", 0.05), (None, 0.65)):
        assert drawn.count(name) / len(drawn) == pytest.approx(share, abs=0.015)


def test_an_unknown_instruction_gets_a_sentence() -> None:
    assert reply(opening("Write a compiler"), rng()).endswith(f"task.{END_OF_TURN}")


def test_every_flawed_first_turn_of_every_family_ends_properly() -> None:
    for task in tasks("train", 5 * len(FAMILIES)):
        for seed in range(5):
            text = reply(opening(task["instruction"]), rng(seed), Flaws(0.4, 0.2, 0.2))
            assert text.endswith(END_OF_TURN) and text.count(END_OF_TURN) == 1


def test_the_script_answers_ids_with_ids_and_depends_only_on_seed_and_request() -> None:
    tokenizer = Tokenizer.from_file(str(models.tiny() / "tokenizer.json"))
    prompt = np.array(tokenizer.encode(opening(WRITE), add_special_tokens=False).ids, dtype=np.int32)

    def ask(request_id: str, seed: int) -> list[int]:
        script = make_script(tokenizer, flaws=Flaws(0.5, 0.2, 0.2), seed=seed)
        return script(GenerateRequest(request_id, prompt, SamplingParams(), (), 256))

    assert ask("a", 0) == ask("a", 0)
    assert len({tuple(ask(f"{n}", 0)) for n in range(20)}) > 1
    right = make_script(tokenizer)(GenerateRequest("a", prompt, SamplingParams(), (), 256))
    assert tokenizer.decode(right, skip_special_tokens=False) == reply(opening(WRITE), rng())
