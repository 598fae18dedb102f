# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A scripted engine that does the demo's tasks: what the demonstrations for the shipped adapter are made with.

It sees what an engine sees, the prompt's ids, and answers with ids in the model's own format: one ``<tool_call>`` block a
turn and a sentence at the end. Some turns are wrong on purpose, drawn from the seed and the request's id: a model fitted on
them fails in ways that reinforcement learning can then remove. It is stateless, and no part of any training run.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from nemo_polar.demo.families import Call, Family, Words, recognise
from nemo_polar.demo.generate import WORDS
from nemo_polar.engines.base import GenerateRequest
from nemo_polar.errors import ConfigError

END_OF_TURN = "<|im_end|>"
_TURN = re.compile(r"<\|im_start\|>(\w+)\n(.*?)(?:<\|im_end\|>|\Z)", re.DOTALL)
_CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)
_RESULT = re.compile(r"<tool_response>\n(.*?)\n</tool_response>", re.DOTALL)


class Tokenizer(Protocol):
    """The part of ``tokenizers.Tokenizer`` that is used."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str: ...

    def encode(self, sequence: str, *, add_special_tokens: bool = True) -> Any: ...


@dataclass(frozen=True, slots=True)
class Flaws:
    """The chance, in each turn, of each way to do it wrong."""

    wrong_word: float = 0.15
    """A path, content or command is of another word."""
    idle: float = 0.08
    """The final sentence, with work still to do."""
    slip: float = 0.04
    """The call lacks an argument. The harness answers with an error, and the next turn makes the call properly."""

    def draw(self, rng: random.Random) -> str | None:
        """One of the fields' names, or None."""
        roll = rng.random()
        for name in ("wrong_word", "idle", "slip"):
            roll -= getattr(self, name)
            if roll < 0:
                return name
        return None


NO_FLAWS = Flaws(0.0, 0.0, 0.0)


def reply(prompt: str, rng: random.Random, flaws: Flaws = NO_FLAWS) -> str:
    """The next assistant turn of a ChatML ``prompt`` (special tokens written out), end of turn included."""
    turns = _TURN.findall(prompt)
    instruction = next((text for role, text in turns if role == "user"), "")
    known = recognise(instruction)
    if known is None:
        return "I do not know this task." + END_OF_TURN
    family, words = known
    done, results = _progress(family, words, turns)
    flaw = flaws.draw(rng)
    if done == len(family.steps) or flaw == "idle":
        return family.final.format(**words) + END_OF_TURN
    call = family.steps[done](words, results)
    arguments = dict(call.arguments)
    if flaw == "wrong_word" and call.spoil:
        _spoil(arguments, rng.choice(call.spoil), words, rng)
    elif flaw == "slip":
        arguments.pop(rng.choice(sorted(arguments)))
    block = json.dumps({"name": call.name, "arguments": arguments})
    return f"<tool_call>\n{block}\n</tool_call>{END_OF_TURN}"


def _progress(family: Family, words: Words, turns: Sequence[tuple[str, str]]) -> tuple[int, list[str]]:
    """How many steps are done, and their results. A call that lacks an argument of its step is not one."""
    done, results = 0, list[str]()
    pending = False
    for role, text in turns:
        if role == "assistant" and (written := _CALL.search(text)):
            expected = family.steps[done](words, results) if done < len(family.steps) else None
            pending = expected is not None and _is(expected, written.group(1))
        elif role == "user" and pending and (answer := _RESULT.search(text)):
            done, pending = done + 1, False
            results.append(answer.group(1))
    return done, results


def _is(expected: Call, written: str) -> bool:
    try:
        call = json.loads(written)
        return call["name"] == expected.name and set(call["arguments"]) == set(expected.arguments)
    except (ValueError, KeyError, TypeError):
        return False


def _spoil(arguments: dict[str, Any], key: str, words: Words, rng: random.Random) -> None:
    """Put another word into the argument ``key`` (inside ``edits``, for an edit's ``newText``)."""
    other = rng.choice([word for word in WORDS["train"] if word not in words.values()])
    if key == "newText":
        arguments["edits"] = [{**edit, "newText": other} for edit in arguments["edits"]]
    elif key == "path":
        stem, dot, suffix = arguments["path"].partition(".")
        arguments["path"] = other + dot + suffix if stem else other
    elif key == "command":
        target = rng.choice([word for word in words.values() if word in arguments["command"]])
        arguments["command"] = arguments["command"].replace(target, other)
    else:
        arguments["content"] = other


def make_script(tokenizer: Tokenizer, *, flaws: Flaws = NO_FLAWS, seed: int = 0) -> Callable[[GenerateRequest], list[int]]:
    """A script for ``nemo_polar.engines.scripted``: the teacher's reply, encoded."""

    def script(request: GenerateRequest) -> list[int]:
        prompt = tokenizer.decode(request.prompt_ids.tolist(), skip_special_tokens=False)
        text = reply(prompt, random.Random(f"{seed}/{request.request_id}"), flaws)
        return tokenizer.encode(text, add_special_tokens=False).ids

    return script


@cache
def _demonstrator() -> Callable[[GenerateRequest], list[int]]:
    from tokenizers import Tokenizer

    from nemo_polar.rollout.compose import home

    path = home() / "models" / "smollm2-135m" / "tokenizer.json"
    if not path.is_file():
        raise ConfigError(f"{path} is missing: make model")
    return make_script(Tokenizer.from_file(str(path)), flaws=Flaws())


def demonstrate(request: GenerateRequest) -> list[int]:
    """The script that the shipped adapter's demonstrations were made with: ``engine.options.script`` of the recipe."""
    return _demonstrator()(request)
