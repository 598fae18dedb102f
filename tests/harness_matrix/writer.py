# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Replies as ids, in a family's own format and never in canonical form.

A sampled text is any ids that spell it: here it is cut at random places, each piece encoded by itself, and some characters byte
by byte, so that whoever encodes the text anew gets other ids. JSON is written as no serialiser writes it.
"""

from __future__ import annotations

import json
import random
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nemo_polar.tokens.tokenizer import Tokenizer
from tests.harness_matrix.families import Family
from tests.harness_matrix.tools import Raw

END = "<|im_end|>"
_CUT = 0.12
"""Chance of a cut after a character."""
_BYTEWISE = 0.3
"""Chance of a character outside ASCII to be spelled byte by byte."""


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call to write."""

    name: str
    arguments: Mapping[str, Any]
    broken: bool = False
    """Leave out what makes it well-formed."""


class Writer:
    """Writes replies for one family. Deterministic by the ``rng`` that it is given each time."""

    def __init__(self, tokenizer: Tokenizer, family: Family) -> None:
        self.tokenizer, self.family = tokenizer, family
        self._byte_ids = _byte_ids(tokenizer)

    def end(self) -> list[int]:
        """The end of the turn."""
        return self.tokenizer.encode(END)

    def reply(
        self, rng: random.Random, *, thought: str, text: str, calls: Sequence[Call] = (), thinking: bool = False
    ) -> list[int]:
        """A whole reply. ``thinking``: the prompt has opened the reasoning already."""
        ids: list[int] = []
        if self.family.reasons:
            ids += [] if thinking else [*self._marker("<think>"), *self.text("\n", rng)]
            ids += [*self.text(thought, rng), *self._marker("</think>"), *self.text("\n\n", rng)]
        ids += self.text(text, rng)
        for n, call in enumerate(calls):
            ids += self.text("\n" if n or text else "", rng)
            ids += [*self._marker("<tool_call>"), *self.text(self._body(call, rng), rng), *self._marker("</tool_call>")]
        return ids + self.end()

    def text(self, text: str, rng: random.Random) -> list[int]:
        """Ids that spell ``text``, in ordinary tokens only."""
        ids: list[int] = []
        piece = ""
        for character in text:
            # Tokenizers that normalise text would compose a combining character; a model may well sample its bytes.
            if not character.isascii() and (unicodedata.combining(character) or rng.random() < _BYTEWISE):
                ids += [*self._plain(piece), *(self._byte_ids[b] for b in character.encode())]
                piece = ""
                continue
            piece += character
            if rng.random() < _CUT:
                ids += self._plain(piece)
                piece = ""
        return ids + self._plain(piece)

    def _plain(self, text: str) -> list[int]:
        return self.tokenizer.encode(self.tokenizer.quote(text)[0]) if text else []

    def _marker(self, text: str) -> list[int]:
        return self.tokenizer.encode(text)

    def _body(self, call: Call, rng: random.Random) -> str:
        names = list(call.arguments)
        rng.shuffle(names)
        if self.family.calls == "qwen_xml":
            values = {name: call.arguments[name] for name in names}
            shown = {n: v if isinstance(v, str) else odd_json(v, rng) for n, v in values.items()}
            pairs = "".join(f"<parameter={n}>\n{v}\n</parameter>\n" for n, v in shown.items())
            if call.broken:
                return f"\n<function={call.name}>\n" + pairs.replace("</parameter>\n", "", 1)
            return f"\n<function={call.name}>\n{pairs}</function>\n"
        arguments = odd_json({name: call.arguments[name] for name in names}, rng)
        members = [f'"name"{_gap(rng)}:{_gap(rng)}{json.dumps(call.name)}', f'"arguments"{_gap(rng)}:{_gap(rng)}{arguments}']
        if call.broken:
            return "\n{" + f"{members[0]}, {members[1].rstrip('}')[:-1]}" + "\n"
        rng.shuffle(members)
        return "\n{" + _gap(rng) + f"{_gap(rng)},{_gap(rng)}".join(members) + _gap(rng) + "}\n"


def odd_json(value: Any, rng: random.Random) -> str:
    """``value`` as JSON with odd spacing and escapes; ``Raw`` numbers as they stand."""
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, str):
        return _odd_string(value, rng)
    if isinstance(value, Mapping):
        pairs = [f"{_odd_string(k, rng)}{_gap(rng)}:{_gap(rng)}{odd_json(v, rng)}" for k, v in value.items()]
        return "{" + _gap(rng) + f"{_gap(rng)},{_gap(rng)}".join(pairs) + _gap(rng) + "}"
    if isinstance(value, Sequence):
        return "[" + f",{_gap(rng)}".join(odd_json(v, rng) for v in value) + _gap(rng) + "]"
    return json.dumps(value)


def _odd_string(text: str, rng: random.Random) -> str:
    written = json.dumps(text, ensure_ascii=rng.random() < 0.4)
    return written.replace("/", "\\/") if rng.random() < 0.4 else written


def _gap(rng: random.Random) -> str:
    return rng.choice(["", " ", "", "  ", "\n", "\t", " \n  "])


def _byte_ids(tokenizer: Tokenizer) -> dict[int, int]:
    """The token of each single byte."""
    found: dict[int, int] = {}
    for token_id in range(len(tokenizer)):
        spelled = tokenizer.token_bytes(token_id)
        if len(spelled) == 1:
            found.setdefault(spelled[0], token_id)
            if len(found) == 256:
                break
    return found
