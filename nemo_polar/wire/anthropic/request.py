# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Reading Anthropic Messages requests.

Each field of a request is honoured, dropped with a reason (recorded in ``ModelCall.dropped``) or refused by name; headers
(``anthropic-beta`` above all) change nothing. Where Anthropic's own behaviour left a choice (for messages see
``messages``, for tools ``tools``):

- How the model thinks is the run's business; ``thinking`` says what the client wants to see of it. ``enabled`` and ``adaptive``
  show it in full (there is nobody to summarise it), with ``display: omitted`` only its signature comes, and without any of
  these there are no thinking blocks: a client that asked for none need not know them.
- ``context_management`` that keeps all thinking is what happens anyway. Edits of the history are left out: the history is
  what the harness sends, or nothing that was sampled could be found in it again.
- ``max_tokens`` is required, as with Anthropic, except for counting.
- A temperature or top-p of 0 is legal here: the proxy decides what is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from nemo_polar.types import ModelCall, SamplingParams
from nemo_polar.wire.anthropic.messages import joined_turns, read_messages
from nemo_polar.wire.anthropic.tools import NO_CACHE, MessagesRead, read_choice, read_tools
from nemo_polar.wire.fields import Dropped, Fields, invalid, load, shown, unsupported
from nemo_polar.wire.history import Parsed, Read

Thinking: TypeAlias = Literal["shown", "omitted", "hidden"]
"""What a client sees of the reasoning: blocks with text and signature, with the signature alone, or none."""

_BY_SECRET = "sessions are told apart by their secret"
_ONE_MODEL = "there is one model, on one machine"
_AS_SENT = "the history is what the harness sends"

_DROPPED: Mapping[str, str] = {
    "metadata": _BY_SECRET,
    "user_profile_id": _BY_SECRET,
    "workspace_id": _BY_SECRET,
    "service_tier": _ONE_MODEL,
    "inference_geo": _ONE_MODEL,
    "speed": _ONE_MODEL,
    "billing_policy": _ONE_MODEL,
    "fallbacks": _ONE_MODEL,
    "fallback_credit_token": _ONE_MODEL,
    "diagnostics": "there is no prompt cache to diagnose",
    "compaction": _AS_SENT,
    "betas": "they change nothing",
    "anthropic_beta": "they change nothing",
    "anthropic_version": "there is one version",
}
_REFUSED: Mapping[str, str] = {
    "container": "nothing is run on the server",
    "mcp_servers": "the server calls no other servers",
    "thread": "nothing is stored for the client",
    "output_format": "it constrains sampling, and such a sample cannot be re-scored",
}
_HONOURED = {
    *("model", "messages", "system", "tools", "tool_choice", "max_tokens", "stop_sequences", "stream", "temperature"),
    *("top_p", "top_k", "thinking", "context_management", "output_config", "cache_control"),
}
_KNOWN = frozenset(_HONOURED | _DROPPED.keys() | _REFUSED.keys())

_EDITS = frozenset({"clear_thinking_20251015", "clear_tool_uses_20250919", "compact_20260112"})
_MAX_STOPS = 64


def parse_request(body: bytes, dialect: str, history: Sequence[Read] = (), *, counting: bool = False) -> Parsed:
    """The call in ``body``, read from where it differs from the requests in ``history``.

    Args:
        counting: it asks for the number of tokens in its prompt, not for a reply.

    Raises:
        BadRequest: ``param`` is the dotted path of the offending field.
    """
    dropped = Dropped()
    request = load(body, dropped)
    _account(request, dropped)
    model = request.nonempty_string("model")
    thinking = _thinking(request, dropped)
    known = [read for read in history if isinstance(read, MessagesRead)]
    tools = read_tools(request, known)
    read, marked = read_messages(request, tools, known)
    if marked or request.given("cache_control"):
        dropped.add(NO_CACHE)
    dropped.include(read.phrases)
    dropped.include(tools.phrases)
    choice, parallel = read_choice(request, tools, dropped)
    call = ModelCall(
        messages=joined_turns(read.messages),
        tools=tools.offered,
        tool_choice=choice,
        parallel_tool_calls=parallel,
        sampling=_sampling(request, counting=counting),
        stream=request.boolean("stream") and not counting,
        model=model,
        dialect=dialect,
        options={"thinking": thinking},
        dropped=dropped.phrases(),
    )
    return Parsed(call, read)


def _account(request: Fields, dropped: Dropped) -> None:
    """Refuse what cannot be honoured, record what is left out."""
    for field, reason in _REFUSED.items():
        if request.raw.get(field) not in (None, []):
            raise unsupported(field, reason)
    for field, reason in _DROPPED.items():
        if request.given(field):
            dropped.add(f"{field}: {reason}")
    _output_config(request, dropped)
    _context_management(request, dropped)
    dropped.unknown(request, _KNOWN)


def _output_config(request: Fields, dropped: Dropped) -> None:
    config = request.optional_child("output_config")
    if config is None:
        return
    if config.given("format"):
        raise unsupported(config.at("format"), _REFUSED["output_format"])
    if config.given("effort"):
        dropped.add("output_config.effort: the run decides how the model thinks")
    if config.given("task_budget"):
        dropped.add("output_config.task_budget: the model is told of no budget")
    dropped.unknown(config, ("format", "effort", "task_budget"), "output_config.")


def _context_management(request: Fields, dropped: Dropped) -> None:
    management = request.optional_child("context_management")
    if management is None:
        return
    for edit in management.children("edits"):
        kind = edit.string("type")
        keep = edit.raw.get("keep")
        if kind == "clear_thinking_20251015" and keep in ("all", {"type": "all"}):
            continue
        where = f"context_management.{kind}" if kind in _EDITS else "context_management.edits"
        dropped.add(f"{where}: {_AS_SENT}")
    dropped.unknown(management, ("edits",), "context_management.")


def _thinking(request: Fields, dropped: Dropped) -> Thinking:
    config = request.optional_child("thinking")
    if config is None:
        return "hidden"
    kind = config.string("type")
    if kind not in ("enabled", "adaptive", "disabled"):
        raise invalid(config.at("type"), f"must be 'enabled', 'adaptive' or 'disabled', got {shown(kind)}")
    if config.given("budget_tokens"):
        dropped.add("thinking.budget_tokens: the run decides how the model thinks")
    dropped.unknown(config, ("type", "budget_tokens", "display"), "thinking.")
    display = config.optional_string("display")
    if display not in (None, "summarized", "omitted"):
        raise invalid(config.at("display"), f"must be 'summarized' or 'omitted', got {shown(display)}")
    if kind == "disabled":
        return "hidden"
    return "omitted" if display == "omitted" else "shown"


def _sampling(request: Fields, *, counting: bool) -> SamplingParams:
    limit = request.integer("max_tokens", least=1)
    if limit is None and not counting:
        raise request.missing("max_tokens")
    request.array("stop_sequences")  # a single string is none
    stops = request.strings("stop_sequences")
    if len(stops) > _MAX_STOPS:
        raise invalid("stop_sequences", f"takes at most {_MAX_STOPS} strings, got {len(stops)}")
    if "" in stops:
        raise invalid("stop_sequences", "must not hold an empty string")
    temperature = request.number("temperature", least=0, most=1)
    top_p = request.number("top_p", least=0, most=1)
    top_k = request.integer("top_k", least=-1, most=2**31 - 1)
    return SamplingParams(
        temperature=1.0 if temperature is None else temperature,
        top_p=1.0 if top_p is None else top_p,
        top_k=-1 if top_k is None else top_k,
        max_tokens=limit,
        stop=stops,
    )
