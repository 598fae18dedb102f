# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A line of turns as the output items of an OpenAI Response, the way NeMo Gym stores an agent's conversation.

The first prompt is not in it, as in Gym's own agents: items begin with the first reply. Then come, in the order they were said,
what the harness added (tool results as ``function_call_output``, the rest as messages without an id) and what was sampled. The
last item of a model call carries its token fields, as with Gym's model servers. Text is what the journal has, tool arguments
verbatim; nothing is decoded from ids here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nemo_polar.gym.plain import plain
from nemo_polar.gym.trace_json import floats
from nemo_polar.trajectory.records import Request
from nemo_polar.types import FinishReason, Image, Message, Reasoning, Role, Span, Text, ToolCall, ToolResult, Trace, Turn

Item = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """One model call on a line: the turn that answered it or, after an abort, those that continue it too."""

    turns: tuple[Turn, ...]
    request: Request | None
    """What it added to the conversation; None: not recorded."""

    @property
    def reply(self) -> Message:
        return self.turns[-1].reply

    @property
    def cut(self) -> bool:
        """True when its reply did not come to its own end."""
        return self.turns[-1].sample.finish_reason is not FinishReason.STOP


@dataclass(frozen=True, slots=True)
class Written:
    """A line as items."""

    items: list[Item]
    calls: tuple[Call, ...]
    generations: tuple[tuple[int, int], ...]
    """``[start, end)`` in the trace of what the token fields have as generated, in order."""


def write_items(line: Sequence[Turn], requests: Mapping[int, Request], trace: Trace | None) -> Written:
    """The items of ``line`` (root to leaf), with token fields where ``trace``, which is of this line, trains a sample.

    A call that is not trained has no token fields; its ids stand in the prompt of the next one that has. A trained sample
    that a masked one continues has them to itself. Should trained and masked samples of one call alternate, which no masking
    rule leads to, each trained run but the last gets a message of its own, empty and ``incomplete``.
    """
    calls = tuple(_calls(line, requests))
    trained = _trained_spans(trace)
    items: list[Item] = []
    generations: list[tuple[int, int]] = []
    for number, call in enumerate(calls):
        if number > 0 and call.request is not None:
            items += _added(call)
        runs = _runs(call, trained)
        for run in runs[:-1]:
            items.append({**_message(f"msg_{call.turns[0].call_id}_at_{run[0]}", "", cut=True), **_tokens(trace, run)})
        items += _reply(call)
        items[-1] |= _tokens(trace, runs[-1]) if runs else {}
        generations += runs
    return Written(items, calls, tuple(generations))


def _calls(line: Sequence[Turn], requests: Mapping[int, Request]) -> Iterator[Call]:
    made_of: list[Turn] = []
    for turn in line:
        if made_of and not turn.continues:
            yield Call(tuple(made_of), requests.get(made_of[0].id))
            made_of = []
        made_of.append(turn)
    if made_of:
        yield Call(tuple(made_of), requests.get(made_of[0].id))


# --- tokens -----------------------------------------------------------------------------------------------------------


def _trained_spans(trace: Trace | None) -> dict[int, Span]:
    """By turn, where the trace trains a sample."""
    spans = trace.spans if trace is not None else ()
    return {s.turn: s for s in spans if s.role == "sampled" and trace is not None and trace.loss_mask[s.start]}


def _runs(call: Call, trained: Mapping[int, Span]) -> list[tuple[int, int]]:
    """``[start, end)`` of the trained samples of a call; those that follow each other are one run."""
    runs: list[tuple[int, int]] = []
    for turn in call.turns:
        span = trained.get(turn.id)
        if span is not None and runs and runs[-1][1] == span.start:
            runs[-1] = (runs[-1][0], span.end)
        elif span is not None:
            runs.append((span.start, span.end))
    return runs


def _tokens(trace: Trace | None, run: tuple[int, int]) -> Item:
    if trace is None:
        return {}
    start, end = run
    return {
        "prompt_token_ids": trace.token_ids[:start].tolist(),
        "generation_token_ids": trace.token_ids[start:end].tolist(),
        "generation_log_probs": floats(trace.logprobs[start:end]),
    }


# --- what was sampled -------------------------------------------------------------------------------------------------


def _reply(call: Call) -> list[Item]:
    """The items of a reply, at least one. What was cut is the last that was said."""
    parts = list(_joined(call.reply))
    if not any(isinstance(part, Text | ToolCall) for part in parts):
        parts.append(Text(""))  # as Gym's converter does, so that every call ends with something a verifier looks at
    key = call.turns[0].call_id
    items: list[Item] = []
    for index, part in enumerate(parts):
        cut = call.cut and index == len(parts) - 1
        match part:
            case ToolCall():
                items.append(_function_call(part, f"fc_{key}_{index}", cut=cut))
            case Text(text):
                items.append(_message(f"msg_{key}_{index}", text, cut=cut))
            case Reasoning(text):
                items.append(_reasoning(f"rs_{key}_{index}", text))
    return items


def _joined(message: Message) -> Iterator[Text | Reasoning | ToolCall]:
    """The parts of a reply, those of one kind that follow each other joined and empty ones left out."""
    held: Text | Reasoning | None = None
    for part in message.parts:
        if isinstance(part, Text | Reasoning):
            if type(part) is type(held) and held is not None:
                held = type(part)(held.text + part.text)
            elif part.text:
                if held is not None:
                    yield held
                held = part
        elif isinstance(part, ToolCall):
            if held is not None:
                yield held
            held = None
            yield part
    if held is not None:
        yield held


def _message(item_id: str, text: str, *, cut: bool) -> Item:
    content = [{"type": "output_text", "text": plain(text), "annotations": []}]
    status = "incomplete" if cut else "completed"
    return {"id": item_id, "type": "message", "role": "assistant", "status": status, "content": content}


def _reasoning(item_id: str, text: str) -> Item:
    # In the summary, where Gym keeps what a policy thinks: the item of 0.4.0 has no content.
    return {"id": item_id, "type": "reasoning", "summary": [{"type": "summary_text", "text": plain(text)}]}


def _function_call(call: ToolCall, item_id: str, *, cut: bool) -> Item:
    return {
        "id": item_id,
        "type": "function_call",
        "call_id": plain(call.id),
        "name": plain(call.name),
        "arguments": plain(call.arguments),
        "status": "incomplete" if cut else "completed",
    }


# --- what the harness added -------------------------------------------------------------------------------------------


def _added(call: Call) -> Iterator[Item]:
    """The items of the messages that a request added."""
    number = 0
    for message in call.request.messages if call.request is not None else ():
        said: list[Text | Image] = []
        for part in message.parts:
            if isinstance(part, Text | Image):
                said.append(part)
                continue
            yield from _said(message.role, said)
            said = []
            number += 1
            match part:
                case ToolResult():
                    yield _result(part)
                case ToolCall():
                    yield _function_call(part, f"fc_{call.turns[0].call_id}_given_{number}", cut=False)
                case Reasoning(text):
                    yield _reasoning(f"rs_{call.turns[0].call_id}_given_{number}", text)
        yield from _said(message.role, said)


def _said(role: Role, parts: Sequence[Text | Image]) -> Iterator[Item]:
    if not parts:
        return
    content: str | list[Item] = "".join(_as_text(part) for part in parts)
    known = Role.USER if role is Role.TOOL else role
    if known is not Role.ASSISTANT and any(isinstance(part, Image) for part in parts):
        content = [_input_part(part) for part in parts]
    yield {"type": "message", "role": known.value, "content": content}


def _input_part(part: Text | Image) -> Item:
    if isinstance(part, Image):
        return {"type": "input_image", "image_url": plain(part.url), "detail": "auto"}
    return {"type": "input_text", "text": plain(part.text)}


def _result(result: ToolResult) -> Item:
    """As text, which is all that 0.4.0 takes; an image in it is named."""
    return {
        "type": "function_call_output",
        "call_id": plain(result.call_id),
        "output": "".join(_as_text(part) for part in result.content),
        "status": "incomplete" if result.is_error else "completed",
    }


def _as_text(part: Text | Image) -> str:
    return plain(part.text) if isinstance(part, Text) else f"[image {plain(part.media_type or 'of unknown type')}]"
