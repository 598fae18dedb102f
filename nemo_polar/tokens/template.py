# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A codec for any Jinja chat template, with a bridge that never renders the history.

The bridge: a stand-in conversation (one user message, one assistant turn, with calls where the new messages are results) is
rendered with and without the new messages. Both texts agree up to the end of the stand-in's turn; what the longer one has
after it is what follows any turn, ours too. If they don't agree, appending changes what was rendered before, and there is no
bridge.

What a template can do is found out once, by trying, when the codec is made: the roles it takes, whether it shows tools, its
end-of-turn token.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from nemo_polar.errors import ConfigError
from nemo_polar.tokens.chat_template import ChatTemplate
from nemo_polar.tokens.codec import BaseCodec, Dicts, SpecialPolicy
from nemo_polar.tokens.reply_format import ReplyFormat
from nemo_polar.tokens.roles import RoleMap
from nemo_polar.tokens.tokenizer import Tokenizer
from nemo_polar.types import TokenIds, ToolSpec, as_ids

_STAND_IN = "stand-in-for-a-turn"
_THOUGHT = "thought-of-the-stand-in"
_USER = {"role": "user", "content": "question-to-the-stand-in"}
_TOOL = {
    "type": "function",
    "function": {
        "name": "stand_in_tool",
        "description": "stand-in",
        "parameters": {"type": "object", "properties": {"argument": {"type": "string"}}},
    },
}


@dataclass(frozen=True, slots=True)
class _Seam:
    """Where a stand-in's turn ends."""

    end_id: int
    end_text: str
    after: str
    """What follows the end-of-turn token once the new messages are there."""


class TemplateCodec(BaseCodec):
    """A ``Codec`` for one template. Build it with ``make_template_codec``."""

    prefix_stable: bool = False
    """For information: a bridge equals a full render, for turns written as the template writes them."""

    def __init__(
        self,
        name: str,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        format: ReplyFormat,
        roles: RoleMap,
        *,
        thinking_retention: Literal["all", "template"] = "all",
        special_tokens_in_text: SpecialPolicy = "escape",
    ):
        identity = {"template": template.source, "options": template.options, "thinking_retention": thinking_retention}
        super().__init__(name, tokenizer, format, roles, special_tokens_in_text=special_tokens_in_text, identity=identity)
        self._template = template
        self._joint = _Joint(template, tokenizer, format, thinking_retention)
        self.prefix_stable = _is_prefix_stable(self, template)

    def _render(self, messages: Dicts, tools: Dicts) -> list[int]:
        return self.tokenizer.encode(self._template.render(messages, tools, generation_prompt=True))

    def _bridge(self, prompt_ids: TokenIds, sampled_ids: TokenIds, new: Dicts, tools: Sequence[ToolSpec]) -> TokenIds | None:
        seam = self._joint.seam(new, with_tools=bool(tools))
        if seam is None:
            return None
        # Encoded with the end of turn before it, as it is in a full render, then taken off again.
        ids = self.tokenizer.encode(seam.end_text + seam.after)
        if len(ids) < 2 or ids[0] != seam.end_id:
            return None
        if len(sampled_ids) and int(sampled_ids[-1]) in self.format.end_ids:
            return as_ids(ids[1:])
        return as_ids([*self._closing_of_reasoning(prompt_ids, sampled_ids), *ids])

    def _closing_of_reasoning(self, prompt_ids: TokenIds, sampled_ids: TokenIds) -> list[int]:
        """What closes the reasoning block that a cut turn left open, so that what follows is not taken for reasoning."""
        if self.format.reasoning is None or not self.reasoning_open(prompt_ids, sampled_ids):
            return []
        return self.tokenizer.encode(self.format.reasoning[1].text)


class _Joint:
    """Finds what follows a turn, by the two renders. Knows nothing of any history."""

    def __init__(
        self,
        template: ChatTemplate,
        tokenizer: Tokenizer,
        format: ReplyFormat,
        retention: Literal["all", "template"],
    ):
        self._template = template
        self._tokenizer = tokenizer
        self._strict = retention == "template"
        self._thinks = self._strict and format.reasoning is not None
        self._alone: dict[bool, str] = {}
        empty = "".join(rf"{re.escape(m.text)}\s*" for m in format.reasoning) if format.reasoning else "(?!)"
        self._empty_reasoning = re.compile(rf"(?:{empty})\Z")

    def seam(self, new: Dicts, *, with_tools: bool) -> _Seam | None:
        """What comes after a turn that ``new`` answers; None when the template refuses, or changes the turn itself."""
        results = [m for m in new if m["role"] == "tool"]
        before = [_USER, self._turn(results)]
        tools = [_TOOL] if with_tools else []
        try:
            alone = self._template.render(before, tools) if results else self._plain(before, with_tools)
            joined = self._template.render([*before, *new], tools, generation_prompt=True)
        except Exception:  # noqa: BLE001 - a template is a program of somebody else's; rendering in full tells what is wrong
            return None
        return self._compare(alone, joined)

    def _turn(self, results: Dicts) -> dict[str, Any]:
        turn: dict[str, Any] = {"role": "assistant", "content": _STAND_IN}
        if self._thinks:
            turn["reasoning_content"] = _THOUGHT
        if results:
            turn["tool_calls"] = [
                {
                    "id": result["tool_call_id"],
                    "type": "function",
                    "function": {"name": result.get("name") or "stand_in_tool", "arguments": {"argument": _STAND_IN}},
                }
                for result in results
            ]
        return turn

    def _plain(self, before: Dicts, with_tools: bool) -> str:
        found = self._alone.get(with_tools)
        if found is None:
            found = self._alone[with_tools] = self._template.render(before, [_TOOL] if with_tools else [])
        return found

    def _compare(self, alone: str, joined: str) -> _Seam | None:
        count = alone.count(_STAND_IN)
        if not count or joined.count(_STAND_IN) < count:
            return None
        head, turn, rest = _cut(alone, count)
        joined_head, joined_turn, joined_rest = _cut(joined, count)
        if turn != joined_turn or not self._same_head(head, joined_head):
            return None
        shared = _common_prefix(rest, joined_rest)
        ends = list(self._tokenizer.find_specials(shared))
        if not ends:
            return None
        start, stop, token_id = ends[-1]
        return _Seam(token_id, shared[start:stop], joined_rest[stop:])

    def _same_head(self, head: str, joined: str) -> bool:
        if self._strict:
            return head == joined and (not self._thinks or _THOUGHT in head)
        # Sampled reasoning stays in context, so whether the template would show an empty block there does not matter.
        return self._empty_reasoning.sub("", head) == self._empty_reasoning.sub("", joined)


def _common_prefix(one: str, other: str) -> str:
    length = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return one[:length]


def _cut(text: str, count: int) -> tuple[str, str, str]:
    """``text`` before the first stand-in, from there through the ``count``-th, and after it."""
    first = text.index(_STAND_IN)
    end = first
    for _ in range(count):
        end = text.index(_STAND_IN, end) + len(_STAND_IN)
    return text[:first], text[first:end], text[end:]


def make_template_codec(
    name: str,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    format: ReplyFormat,
    *,
    thinking_retention: Literal["all", "template"] = "all",
    special_tokens_in_text: SpecialPolicy = "escape",
) -> TemplateCodec:
    """The codec for ``template``. ``format.end_ids`` may be empty: the end-of-turn ids found here are added to them.

    Raises:
        ConfigError: the template has no end-of-turn token that could be found.
    """
    joint = _Joint(template, tokenizer, format, "all")
    plain = joint.seam([{"role": "user", "content": "next"}], with_tools=False)
    if plain is None:
        raise ConfigError(
            f"chat template {name!r}: no token ends its assistant turns, or a message that follows changes them; "
            "such a model needs a renderer of its own (codec.renderer)"
        )
    after_call = joint.seam([{"role": "tool", "content": "result", "tool_call_id": "call00001"}], with_tools=True)
    ends = {seam.end_id for seam in (plain, after_call) if seam is not None}
    if tokenizer.eos_token_id is not None:
        ends.add(tokenizer.eos_token_id)
    return TemplateCodec(
        name,
        tokenizer,
        template,
        replace(format, end_ids=format.end_ids | ends),
        probe_roles(template),
        thinking_retention=thinking_retention,
        special_tokens_in_text=special_tokens_in_text,
    )


def shows_tools(template: ChatTemplate) -> bool:
    """True when the template writes out the tools it is given, the calls made and their results."""
    call = {"id": "call00001", "type": "function", "function": {"name": "called_tool", "arguments": {"argument": "value"}}}
    turn = {"role": "assistant", "content": "", "tool_calls": [call]}
    result = {"role": "tool", "content": "result-of-the-tool", "tool_call_id": "call00001", "name": "called_tool"}
    return _shows(template, [_USER, turn, result], ["called_tool", "result-of-the-tool"], [_TOOL], also="stand_in_tool")


def probe_roles(template: ChatTemplate) -> RoleMap:
    """The roles that ``template`` takes, found by trying."""
    user, more = {"role": "user", "content": "first-user"}, {"role": "user", "content": "second-user"}
    one, two = {"role": "system", "content": "first-system"}, {"role": "system", "content": "second-system"}
    if _shows(template, [one, two, user], ["first-system", "second-system", "first-user"]):
        leading: Literal["keep", "merge", "user"] = "keep"
    else:
        leading = "merge" if _shows(template, [one, user], ["first-system", "first-user"]) else "user"
    later = _shows(template, [user, two, more], ["first-user", "second-system", "second-user"])
    return RoleMap(
        leading=leading,
        later="keep" if later else "user",
        merge_users=not _shows(template, [user, more], ["first-user", "second-user"]),
    )


def _shows(template: ChatTemplate, messages: Dicts, texts: list[str], tools: Dicts | None = None, *, also: str = "") -> bool:
    """True when ``messages`` render with ``texts`` in that order, and with ``also`` somewhere."""
    try:
        rendered = template.render(messages, tools or [], generation_prompt=True)
    except Exception:  # noqa: BLE001 - refusing is an answer
        return False
    places = [rendered.find(text) for text in texts]
    return -1 not in places and places == sorted(places) and also in rendered


def _is_prefix_stable(codec: TemplateCodec, template: ChatTemplate) -> bool:
    """Plays a conversation of two turns, one a tool cycle if it has tools, and compares bridges with full renders."""
    call = {"id": "call00001", "type": "function", "function": {"name": "stand_in_tool", "arguments": {"argument": "value"}}}
    cycle = ({"role": "assistant", "content": "Calling.", "tool_calls": [call]}, {"role": "tool", "content": "4"})
    cycle[1].update(tool_call_id="call00001", name="stand_in_tool")
    steps = [({"role": "assistant", "content": "Four."}, {"role": "user", "content": "Thanks."})]
    tools = [_TOOL] if shows_tools(template) else []
    history: Dicts = [_USER]
    for turn, new in [cycle, *steps] if tools else steps:
        try:
            prompt = template.render(history, tools, generation_prompt=True)
            whole = template.render([*history, turn], tools)
            full = template.render([*history, turn, new], tools, generation_prompt=True)
        except Exception:  # noqa: BLE001 - a template that cannot do this much is not stable
            return False
        ends = [stop for _, stop, i in codec.tokenizer.find_specials(whole) if i in codec.format.end_ids and stop > len(prompt)]
        if not whole.startswith(prompt) or not ends:
            return False
        prompt_ids, turn_ids = codec.tokenizer.encode(prompt), codec.tokenizer.encode(whole[len(prompt) : ends[-1]])
        added = codec._bridge(as_ids(prompt_ids), as_ids(turn_ids), [new], [ToolSpec("stand_in_tool")] if tools else [])
        if added is None or codec.tokenizer.encode(full) != [*prompt_ids, *turn_ids, *added.tolist()]:
            return False
        history += [turn, new]
    return True
