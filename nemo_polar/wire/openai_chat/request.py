# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Reading Chat Completions requests.

Each field of a request is honoured, dropped with a reason (recorded in ``ModelCall.dropped``) or refused by name. Where
OpenAI's own behaviour left a choice (for messages see ``messages``):

- ``max_tokens`` and ``max_completion_tokens`` together: the smaller counts (OpenAI refuses the pair).
- ``tool_choice`` of ``required`` or a named tool is kept and recorded, not enforced; a name must be among the tools.
- ``tools: []`` is no tools; ``tool_choice`` of ``auto`` or ``none`` needs none; ``stream_options`` without a
  stream means nothing.
- Sampling fields that OpenAI lacks but local servers take (``top_k``, ``min_p``, ``repetition_penalty``) are read.
- A temperature or top-p of 0 is legal here: the proxy decides what is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from nemo_polar.types import ModelCall, SamplingParams, ToolChoice, ToolSpec
from nemo_polar.wire.fields import Dropped, Fields, invalid, load, shown, unsupported
from nemo_polar.wire.history import Parsed, Read, serialised
from nemo_polar.wire.openai_chat.messages import NO_CACHE, leave_out, read_messages

_NO_STORE = "nothing is stored for the client"
_UNCONSTRAINED = "sampling is not constrained"

_DROPPED: Mapping[str, str] = {
    "user": "sessions are told apart by their secret",
    "safety_identifier": "sessions are told apart by their secret",
    "metadata": _NO_STORE,
    "store": _NO_STORE,
    "service_tier": "there is one tier",
    "prompt_cache_key": NO_CACHE,
    "prompt_cache_options": NO_CACHE,
    "prompt_cache_retention": NO_CACHE,
    "cache_control": NO_CACHE,
    "prediction": "it changes speed, not content",
    "moderation": "nothing is moderated",
    "reasoning_effort": "the run decides how the model thinks",
    "reasoning": "the run decides how the model thinks",
    "thinking": "the run decides how the model thinks",
    "enable_thinking": "the run decides how the model thinks",
    "chat_template_kwargs": "the run decides how the template is used",
    "verbosity": "the model has no such control",
}
_REFUSED: Mapping[str, str] = {
    "functions": "it is the legacy form of `tools`",
    "function_call": "it is the legacy form of `tool_choice`",
    "audio": "the model writes text only",
    "web_search_options": "there is no server-side search",
}
_HONOURED = {
    *("model", "messages", "tools", "tool_choice", "parallel_tool_calls", "stream", "stream_options", "n", "response_format"),
    *("max_tokens", "max_completion_tokens", "stop", "seed", "temperature", "top_p", "top_k", "min_p", "logit_bias"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "logprobs", "top_logprobs", "modalities"),
}
_KNOWN = frozenset(_HONOURED | _DROPPED.keys() | _REFUSED.keys())

_TOOL_FIELDS = frozenset({"type", "function"})
_FUNCTION_FIELDS = frozenset({"name", "description", "parameters", "strict"})
_MAX_STOPS = 4


def parse_request(body: bytes, dialect: str, history: Sequence[Read] = ()) -> Parsed:
    """The call in ``body``, read from where it differs from the requests in ``history``.

    Raises:
        BadRequest: ``param`` is the dotted path of the offending field.
    """
    dropped = Dropped()
    request = load(body, dropped)
    _account(request, dropped)
    model = request.nonempty_string("model")
    read = _with_tools(request, read_messages(request, history), history)
    dropped.include(read.phrases)
    dropped.include(read.tools_phrases)
    tool_choice = _tool_choice(request, read.tools, dropped)
    parallel = request.boolean("parallel_tool_calls", default=True)
    if not parallel:
        dropped.add(f"parallel_tool_calls: {_UNCONSTRAINED}")
    call = ModelCall(
        messages=read.messages,
        tools=read.tools,
        tool_choice=tool_choice,
        parallel_tool_calls=parallel,
        sampling=_sampling(request),
        stream=request.boolean("stream"),
        model=model,
        dialect=dialect,
        want_logprobs=request.boolean("logprobs"),
        options={"include_usage": _include_usage(request, dropped)},
        dropped=dropped.phrases(),
    )
    return Parsed(call, read)


def _account(request: Fields, dropped: Dropped) -> None:
    """Refuse what cannot be honoured, record what is left out."""
    for field, reason in _REFUSED.items():
        if request.given(field):
            raise unsupported(field, reason)
    n = request.integer("n", least=1)
    if n is not None and n > 1:
        raise unsupported("n", "one request draws one sample")
    if request.integer("top_logprobs", least=0):
        raise unsupported("top_logprobs", "only the sampled token's log-probability is kept")
    bias = request.optional_child("logit_bias")
    if bias is not None and bias.raw:
        raise unsupported("logit_bias", "a biased sample cannot be re-scored")
    form = request.optional_child("response_format")
    if form is not None and form.string("type") != "text":
        raise unsupported(
            form.at("type"), f"{shown(form.raw['type'])} constrains sampling, and such a sample cannot be re-scored"
        )
    if request.given("modalities") and request.strings("modalities") != ("text",):
        raise unsupported("modalities", "the model writes text only")
    for field, reason in _DROPPED.items():
        if request.given(field):
            dropped.add(f"{field}: {reason}")
    dropped.unknown(request, _KNOWN)


def _sampling(request: Fields) -> SamplingParams:
    limits = [request.integer(field, least=1) for field in ("max_tokens", "max_completion_tokens")]
    stops = request.strings("stop")
    if len(stops) > _MAX_STOPS:
        raise invalid("stop", f"takes at most {_MAX_STOPS} strings, got {len(stops)}")
    if "" in stops:
        raise invalid("stop", "must not hold an empty string")

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
        max_tokens=min((limit for limit in limits if limit is not None), default=None),
        stop=stops,
        seed=request.integer("seed", least=-(2**63)),
    )


def _include_usage(request: Fields, dropped: Dropped) -> bool:
    options = request.optional_child("stream_options")
    if options is None:
        return False
    if options.given("include_obfuscation"):
        dropped.add("stream_options.include_obfuscation: the stream never leaves the machine")
    dropped.unknown(options, ("include_usage", "include_obfuscation"), "stream_options.")
    return options.boolean("include_usage")


# --- tools ------------------------------------------------------------------------------------------------------------


def _with_tools(request: Fields, read: Read, history: Sequence[Read]) -> Read:
    """``read`` with the request's tools, taken over from ``history`` where they are the same."""
    raw = request.raw.get("tools")
    if not raw:
        request.children("tools")  # whose business it is that "tools": "" is no array
        return read
    written = serialised(raw)
    for known in history if written is not None else ():
        if known.tools_json == written:
            return replace(read, tools_json=written, tools=known.tools, tools_phrases=known.tools_phrases)
    dropped = Dropped()
    return replace(read, tools=_tools(request, dropped), tools_json=written, tools_phrases=dropped.phrases())


def _tools(request: Fields, dropped: Dropped) -> tuple[ToolSpec, ...]:
    specs: list[ToolSpec] = []
    for tool in request.children("tools"):
        kind = tool.string("type")
        if kind != "function":
            raise unsupported(tool.at("type"), f"tools are functions, not {shown(kind)}")
        function = tool.child("function")
        leave_out(tool, _TOOL_FIELDS, "tools.", dropped)
        leave_out(function, _FUNCTION_FIELDS, "tools.function.", dropped)
        if function.boolean("strict"):
            dropped.add(f"tools.function.strict: {_UNCONSTRAINED}")
        specs.append(
            ToolSpec(
                name=function.nonempty_string("name"),
                description=function.optional_string("description") or "",
                parameters=function.schema("parameters"),
                strict=function.optional_boolean("strict"),
            )
        )
    return tuple(specs)


def _tool_choice(request: Fields, tools: tuple[ToolSpec, ...], dropped: Dropped) -> ToolChoice:
    raw = request.raw.get("tool_choice")
    if raw is None or raw == "auto":
        return ToolChoice()
    if raw == "none":
        return ToolChoice("none")
    if raw == "required":
        if not tools:
            raise invalid("tool_choice", "'required' needs `tools`")
        dropped.add(f"tool_choice required: {_UNCONSTRAINED}")
        return ToolChoice("required")
    if isinstance(raw, str):
        raise invalid("tool_choice", f"must be 'auto', 'none', 'required' or a named function, got {shown(raw)}")
    choice = request.child("tool_choice")
    kind = choice.string("type")
    if kind != "function":
        raise unsupported(choice.at("type"), f"a named choice is a function, not {shown(kind)}")
    function = choice.child("function")
    name = function.nonempty_string("name")
    if all(tool.name != name for tool in tools):
        raise invalid(function.at("name"), f"{shown(name)} is not among `tools`")
    dropped.add(f"tool_choice named: {_UNCONSTRAINED}")
    return ToolChoice("named", name)
