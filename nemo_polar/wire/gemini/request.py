# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Reading Gemini requests: to generate content, streamed or not, and to count tokens.

Each field of a request is honoured, dropped with a reason (recorded in ``ModelCall.dropped``) or refused by name. Names may be
in camel case or in snake case (``names``). For contents see ``contents``, for tools ``tools``. Where
Google's own behaviour left a choice:

- Thoughts are shown only when asked for (``includeThoughts``); their signatures always come.
- What constrains sampling (``responseSchema``, a MIME type of JSON) is refused: the engines' interface has no guided decoding,
  and a sample drawn so could not be re-scored. A forced call (``mode`` ANY) is kept and recorded, not enforced.
- A temperature or top-p of 0 is legal here: the proxy decides what is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from nemo_polar.types import ModelCall, SamplingParams
from nemo_polar.wire.fields import Dropped, Fields, invalid, load, shown, unsupported
from nemo_polar.wire.gemini.contents import read_contents
from nemo_polar.wire.gemini.names import camel, camel_child, leave_out
from nemo_polar.wire.gemini.tools import read_tool_choice, with_tools
from nemo_polar.wire.history import Parsed, Read

_NO_STORE = "nothing is stored for the client"
_THINKING = "the run decides how the model thinks"
_TEXT_ONLY = "the model writes text only"
_GUIDED = (
    "it constrains sampling, for which the engines' interface has no guided decoding, and such a sample cannot be re-scored; "
    "ask for the form in the prompt, or offer a function with that schema"
)

_DROPPED: Mapping[str, str] = {
    "model": "the URL names it",
    "safetySettings": "nothing is moderated",
    "labels": _NO_STORE,
    "store": _NO_STORE,
    "serviceTier": "there is one tier",
}
_REFUSED: Mapping[str, str] = {
    "cachedContent": _NO_STORE,
    "continuationToken": "no reply of this server is to be continued by one",
}
_HONOURED = {"contents", "systemInstruction", "tools", "toolConfig", "generationConfig"}
_KNOWN = frozenset(_HONOURED | _DROPPED.keys() | _REFUSED.keys())

_CONFIG = "generationConfig."
_CONFIG_DROPPED: Mapping[str, str] = {
    "mediaResolution": "the model's renderer decides on resolution",
    "audioTimestamp": "the model takes no audio",
    "enableEnhancedCivicAnswers": "the model has no such control",
    "enableAffectiveDialog": "the model has no such control",
    "routingConfig": "one model is served",
    "modelSelectionConfig": "one model is served",
}
_CONFIG_REFUSED: Mapping[str, str] = {
    "responseSchema": _GUIDED,
    "responseJsonSchema": _GUIDED,
    "responseFormat": _GUIDED,
    "speechConfig": _TEXT_ONLY,
    "imageConfig": _TEXT_ONLY,
}
_CONFIG_HONOURED = {
    *("temperature", "topP", "topK", "maxOutputTokens", "stopSequences", "candidateCount", "seed", "presencePenalty"),
    *("frequencyPenalty", "responseMimeType", "responseModalities", "thinkingConfig", "responseLogprobs", "logprobs"),
}
_CONFIG_KNOWN = frozenset(_CONFIG_HONOURED | _CONFIG_DROPPED.keys() | _CONFIG_REFUSED.keys())
_THINKING_DROPPED: Mapping[str, str] = {"thinkingBudget": _THINKING, "thinkingLevel": _THINKING}
_MAX_STOPS = 5


def parse_request(
    body: bytes,
    dialect: str,
    history: Sequence[Read] = (),
    *,
    model: str,
    stream: bool,
    form: Literal["sse", "array"],
) -> Parsed:
    """The call in ``body``, read from where it differs from the requests in ``history``. ``model``, ``stream`` and ``form`` are
    what the URL says.

    Raises:
        BadRequest: ``param`` is the dotted path of the offending field.
    """
    dropped = Dropped()
    return _parse(camel(load(body, dropped)), dropped, dialect, history, model, stream, form)


def parse_count(body: bytes, dialect: str, history: Sequence[Read] = (), *, model: str) -> Parsed:
    """The call whose tokens are to be counted: that in ``generateContentRequest``, or the body itself.

    Raises:
        BadRequest: ``param`` is the dotted path of the offending field.
    """
    dropped = Dropped()
    request = camel(load(body, dropped))
    inner = camel_child(request, "generateContentRequest")
    if inner is not None:
        if request.given("contents"):
            raise invalid("contents", "and `generateContentRequest` exclude one another")
        dropped.unknown(request, ("generateContentRequest",))
    return _parse(request if inner is None else inner, dropped, dialect, history, model, False, "sse")


def _parse(
    request: Fields,
    dropped: Dropped,
    dialect: str,
    history: Sequence[Read],
    model: str,
    stream: bool,
    form: Literal["sse", "array"],
) -> Parsed:
    for field, reason in _REFUSED.items():
        if request.given(field):
            raise unsupported(request.at(field), reason)
    leave_out(request, _DROPPED, "", dropped)
    dropped.unknown(request, _KNOWN)
    config = camel_child(request, "generationConfig") or Fields({}, request.at("generationConfig"))
    _account(config, dropped)
    read = with_tools(request, read_contents(request, history, dropped), history)
    dropped.include(read.phrases)
    dropped.include(read.tools_phrases)
    call = ModelCall(
        messages=read.messages,
        tools=read.tools,
        tool_choice=read_tool_choice(request, read.tools, dropped),
        sampling=_sampling(config),
        stream=stream,
        model=model,
        dialect=dialect,
        want_logprobs=config.boolean("responseLogprobs"),
        options={"include_thoughts": _include_thoughts(config, dropped), "form": form},
        dropped=dropped.phrases(),
    )
    return Parsed(call, read)


def _account(config: Fields, dropped: Dropped) -> None:
    """Refuse what cannot be honoured, record what is left out."""
    for field, reason in _CONFIG_REFUSED.items():
        if config.given(field):
            raise unsupported(config.at(field), reason)
    candidates = config.integer("candidateCount", least=1)
    if candidates is not None and candidates > 1:
        raise unsupported(config.at("candidateCount"), "one request draws one sample")
    if config.integer("logprobs", least=0):
        raise unsupported(config.at("logprobs"), "only the sampled token's log-probability is kept")
    mime_type = config.optional_string("responseMimeType")
    if mime_type not in (None, "", "text/plain"):
        raise unsupported(config.at("responseMimeType"), f"{shown(mime_type)}: {_GUIDED}")
    if any(modality.upper() not in ("TEXT", "MODALITY_UNSPECIFIED") for modality in config.strings("responseModalities")):
        raise unsupported(config.at("responseModalities"), _TEXT_ONLY)
    leave_out(config, _CONFIG_DROPPED, _CONFIG, dropped)
    dropped.unknown(config, _CONFIG_KNOWN, _CONFIG)


def _sampling(config: Fields) -> SamplingParams:
    stops = config.strings("stopSequences")
    if len(stops) > _MAX_STOPS:
        raise invalid(config.at("stopSequences"), f"takes at most {_MAX_STOPS} strings, got {len(stops)}")
    if "" in stops:
        raise invalid(config.at("stopSequences"), "must not hold an empty string")

    def number(field: str, default: float, *, least: float, most: float) -> float:
        value = config.number(field, least=least, most=most)
        return default if value is None else value

    return SamplingParams(
        temperature=number("temperature", 1.0, least=0, most=2),
        top_p=number("topP", 1.0, least=0, most=1),
        top_k=_top_k(config),
        presence_penalty=number("presencePenalty", 0.0, least=-2, most=2),
        frequency_penalty=number("frequencyPenalty", 0.0, least=-2, most=2),
        max_tokens=config.integer("maxOutputTokens", least=1),
        stop=stops,
        seed=config.integer("seed", least=-(2**63)),
    )


def _top_k(config: Fields) -> int:
    """An integer, which the Python client writes as a number; 0 is no limit."""
    value = config.number("topK", least=0, most=2**31 - 1)
    if value is not None and not value.is_integer():
        raise invalid(config.at("topK"), f"must be a whole number, got {value}")
    return int(value) if value else -1


def _include_thoughts(config: Fields, dropped: Dropped) -> bool:
    thinking = camel_child(config, "thinkingConfig")
    if thinking is None:
        return False
    where = f"{_CONFIG}thinkingConfig."
    leave_out(thinking, _THINKING_DROPPED, where, dropped)
    dropped.unknown(thinking, {"includeThoughts", *_THINKING_DROPPED}, where)
    return thinking.boolean("includeThoughts")
