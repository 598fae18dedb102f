# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Reading Responses requests.

Each field of a request is honoured, dropped with a reason (recorded in ``ModelCall.dropped``) or refused by name. Where
OpenAI's own behaviour left a choice (for items see ``items`` and ``content``, for tools
``tools``):

- A reply can be gone on from by ``previous_response_id`` unless ``store`` is false, as the API has it; ``store`` does no more.
- ``truncation: auto`` is dropped: a prompt that does not fit gets the context-length error, so that no turn is cut in silence.
- ``include`` asks for ``reasoning.encrypted_content``; of what else it may name there is nothing here.
- Sampling fields that OpenAI lacks but local servers take (``top_k``, ``min_p``, penalties, ``seed``) are read.
- A temperature or top-p of 0 is legal here: the proxy decides what is drawn.

What the response repeats of the request is put together here, out of what was read: ``options["echo"]``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nemo_polar.types import ModelCall, SamplingParams
from nemo_polar.wire.fields import Dropped, Fields, invalid, load, shown, unsupported
from nemo_polar.wire.history import Parsed, Read, serialised
from nemo_polar.wire.openai_chat.messages import NO_CACHE
from nemo_polar.wire.openai_responses.ids import reply_of_response
from nemo_polar.wire.openai_responses.items import ItemsRead, read_items
from nemo_polar.wire.openai_responses.tools import UNCONSTRAINED, Offered, all_tools, echoed, read_choice, read_tools

_DECIDED = "the run decides how the model thinks"
_SECRET = "sessions are told apart by their secret"
_NO_TOOLS = "no tools are run here"

_DROPPED: Mapping[str, str] = {
    "user": _SECRET,
    "safety_identifier": _SECRET,
    "client_metadata": _SECRET,
    "metadata": "it is repeated in the response and not kept",
    "service_tier": "there is one tier",
    "prompt_cache_key": NO_CACHE,
    "prompt_cache_options": NO_CACHE,
    "prompt_cache_retention": NO_CACHE,
    "moderation": "nothing is moderated",
    "access_programs": "there are none",
    "background_options": "nothing is run in the background",
    "context_management": "conversations are not compacted here",
    "image": "the model's renderer decides on resolution",
    "max_tool_calls": _NO_TOOLS,
}
_REFUSED: Mapping[str, str] = {
    "conversation": "conversations are not stored; send the items, or go on from `previous_response_id`",
    "prompt": "prompt templates are not stored here",
}
_HONOURED = {
    *("model", "input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "stream", "stream_options", "store"),
    *("previous_response_id", "include", "reasoning", "text", "truncation", "background", "top_logprobs"),
    *("max_output_tokens", "temperature", "top_p", "top_k", "min_p", "seed"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
}
_KNOWN = frozenset(_HONOURED | _DROPPED.keys() | _REFUSED.keys())
_ENCRYPTED = "reasoning.encrypted_content"
_REASONING_FIELDS = ("effort", "summary", "generate_summary", "context", "mode")


def parse_request(body: bytes, dialect: str, history: Sequence[Read] = ()) -> Parsed:
    """The call in ``body``, read from where it differs from the requests in ``history``.

    Raises:
        BadRequest: ``param`` is the dotted path of the offending field.
    """
    dropped = Dropped()
    request = load(body, dropped)
    _account(request, dropped)
    model = request.nonempty_string("model")
    previous = request.optional_string("previous_response_id")
    offered, written = _offered(request, dialect, history)
    # A numbered name depends on all tools, so what was read under other tools may not be what it says now.
    read, preamble = read_items(
        request, offered, () if offered.numbered else history, mark=dialect, continues=previous is not None
    )
    read = replace(read, tools_json=written, tools=offered.specs, tools_phrases=offered.phrases)
    dropped.include(read.phrases)
    dropped.include(offered.phrases)
    tool_choice, choice_echo = read_choice(request, offered, dropped)
    parallel = request.boolean("parallel_tool_calls", default=True)
    if not parallel:
        dropped.add(f"parallel_tool_calls: {UNCONSTRAINED}")
    sampling = _sampling(request)
    store = request.boolean("store", default=True)
    echo = {
        "instructions": request.optional_string("instructions"),
        "max_output_tokens": sampling.max_tokens,
        "metadata": _metadata(request),
        "parallel_tool_calls": parallel,
        "previous_response_id": previous,
        "prompt_cache_key": request.optional_string("prompt_cache_key"),
        "reasoning": _reasoning(request, dropped),
        "safety_identifier": request.optional_string("safety_identifier"),
        "service_tier": "default",
        "store": store,
        "temperature": sampling.temperature,
        "text": _text(request, dropped),
        "tool_choice": choice_echo,
        "top_logprobs": 0,
        "top_p": sampling.top_p,
        "truncation": _truncation(request, dropped),
        "user": request.optional_string("user"),
    }
    call = ModelCall(
        messages=read.messages,
        tools=offered.specs,
        tool_choice=tool_choice,
        parallel_tool_calls=parallel,
        sampling=sampling,
        stream=request.boolean("stream"),
        model=model,
        dialect=dialect,
        options={"echo": echo, "tools": offered.echo, "names": offered.names, "encrypted": _include(request, dropped)},
        dropped=dropped.phrases(),
    )
    return Parsed(
        call,
        None if offered.numbered else read,
        preamble=preamble,
        stored=store,
        continues=None if previous is None else reply_of_response(previous),
    )


def _account(request: Fields, dropped: Dropped) -> None:
    """Refuse what cannot be honoured, record what is left out."""
    for field, reason in _REFUSED.items():
        if request.given(field):
            raise unsupported(field, reason)
    if request.boolean("background"):
        raise unsupported("background", "a reply is given to the request that asks for it")
    if request.integer("top_logprobs", least=0):
        raise unsupported("top_logprobs", "only the sampled token's log-probability is kept")
    for field, reason in _DROPPED.items():
        if request.given(field):
            dropped.add(f"{field}: {reason}")
    options = request.optional_child("stream_options")
    if options is not None:
        if options.given("include_obfuscation"):
            dropped.add("stream_options.include_obfuscation: the stream never leaves the machine")
        dropped.unknown(options, ("include_obfuscation",), "stream_options.")
    dropped.unknown(request, _KNOWN)


def _offered(request: Fields, dialect: str, history: Sequence[Read]) -> tuple[Offered, bytes | None]:
    """The request's tools, taken over from ``history`` where they are the same, and what they are known again by."""
    raw = request.raw.get("input")
    tools, given = all_tools(request, raw if type(raw) is list else ())
    if not tools:
        return Offered(), None
    written = serialised([dialect, *given])
    for known in history if written is not None else ():
        if isinstance(known, ItemsRead) and known.tools_json == written:
            return known.offered, written
    return replace(read_tools(tools), echo=echoed(request.raw.get("tools"))), written


def _sampling(request: Fields) -> SamplingParams:
    def number(field: str, default: float, *, least: float, most: float) -> float:
        value = request.number(field, least=least, most=most)
        return default if value is None else value

    top_k = request.integer("top_k", least=-1, most=2**31 - 1)
    return SamplingParams(
        temperature=number("temperature", 1.0, least=0, most=2),
        top_p=number("top_p", 1.0, least=0, most=1),
        top_k=-1 if top_k is None else top_k,
        min_p=number("min_p", 0.0, least=0, most=1),
        presence_penalty=number("presence_penalty", 0.0, least=-2, most=2),
        frequency_penalty=number("frequency_penalty", 0.0, least=-2, most=2),
        repetition_penalty=number("repetition_penalty", 1.0, least=0.01, most=10),
        max_tokens=request.integer("max_output_tokens", least=1),
        seed=request.integer("seed", least=-(2**63)),
    )


def _metadata(request: Fields) -> dict[str, str]:
    found = request.optional_child("metadata")
    return {} if found is None else {name: found.string(name) for name in found.raw}


def _reasoning(request: Fields, dropped: Dropped) -> dict[str, Any]:
    """``reasoning`` as it was asked for; an effort that the run has decided on is none of the harness's business."""
    found = request.optional_child("reasoning")
    echo: dict[str, Any] = {"effort": None, "summary": None}
    if found is None:
        return echo
    for field in _REASONING_FIELDS:
        value = found.optional_string(field)
        if value is not None:
            dropped.add(f"reasoning.{field}: {_DECIDED}")
            echo[field] = value
    dropped.unknown(found, _REASONING_FIELDS, "reasoning.")
    return echo


def _text(request: Fields, dropped: Dropped) -> dict[str, Any]:
    found = request.optional_child("text")
    echo: dict[str, Any] = {"format": {"type": "text"}}
    if found is None:
        return echo
    form = found.optional_child("format")
    if form is not None and form.string("type") != "text":
        raise unsupported(
            form.at("type"), f"{shown(form.raw['type'])} constrains sampling, and such a sample cannot be re-scored"
        )
    verbosity = found.optional_string("verbosity")
    if verbosity is not None:
        dropped.add("text.verbosity: the model has no such control")
        echo["verbosity"] = verbosity
    dropped.unknown(found, ("format", "verbosity"), "text.")
    return echo


def _truncation(request: Fields, dropped: Dropped) -> str:
    value = request.optional_string("truncation")
    if value not in (None, "auto", "disabled"):
        raise invalid("truncation", f"must be 'auto' or 'disabled', got {shown(value)}")
    if value == "auto":
        dropped.add("truncation auto: a prompt that does not fit is refused")
    return "disabled"


def _include(request: Fields, dropped: Dropped) -> bool:
    """Whether ``encrypted_content`` is asked for."""
    asked = request.strings("include")
    for name in asked:
        if name != _ENCRYPTED:
            dropped.add(f"include {shown(name)}: there is no such thing here")
    return _ENCRYPTED in asked
