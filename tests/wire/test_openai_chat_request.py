# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Chat Completions requests: what is honoured, what is dropped, what is refused and under which name."""

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_polar.errors import BadRequest
from nemo_polar.types import (
    Image,
    Message,
    ModelCall,
    Reasoning,
    Role,
    SamplingParams,
    Text,
    ToolCall,
    ToolChoice,
    ToolResult,
    ToolSpec,
)
from tests.support.openai_chat import WEATHER, cycle, parse, request

PIXEL = "data:image/png;base64,iVBORw0KGgo="
NAMED = {"type": "function", "function": {"name": "weather"}}


def message(**fields):
    return request(messages=[fields])


def assistant(**fields):
    return request(messages=[{"role": "user", "content": "hi"}, {"role": "assistant", **fields}])


def call(**fields):
    return assistant(tool_calls=[{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}, **fields}])


def tool(**fields):
    return request(tools=[{"type": "function", "function": {"name": "f"}, **fields}])


def deep(levels):
    value: dict = {}
    for _ in range(levels):
        value = {"a": value}
    return value


def refused(body) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        parse(body)
    return caught.value


# --- what is honoured -------------------------------------------------------------------------------------------------


def test_a_plain_request():
    assert parse(request()) == ModelCall(
        messages=(Message(Role.USER, (Text("hi"),)),),
        model="polar",
        dialect="openai_chat",
        options={"include_usage": False},
    )


def test_every_honoured_field():
    read = parse(
        request(
            tools=[{**WEATHER, "function": {**WEATHER["function"], "strict": False}}],
            tool_choice="none",
            parallel_tool_calls=True,
            max_tokens=100,
            stop=["a", "b"],
            temperature=0,
            top_p=0.5,
            top_k=20,
            min_p=0.1,
            presence_penalty=-1,
            frequency_penalty=1.5,
            repetition_penalty=1.1,
            seed=-7,
            n=1,
            stream=True,
            stream_options={"include_usage": True},
            logprobs=True,
            top_logprobs=0,
            response_format={"type": "text"},
            logit_bias={},
            modalities=["text"],
        )
    )
    function = WEATHER["function"]
    assert read.tools == (ToolSpec("weather", function["description"], function["parameters"], strict=False),)
    assert read.tool_choice == ToolChoice("none")
    assert read.sampling == SamplingParams(0.0, 0.5, 20, 0.1, -1.0, 1.5, 1.1, 100, ("a", "b"), -7)
    assert (read.stream, read.want_logprobs, read.options) == (True, True, {"include_usage": True})
    assert read.dropped == ()


def test_every_role_and_part():
    read = parse(
        request(
            messages=[
                {"role": "system", "content": "s", "name": "sys"},
                {"role": "developer", "content": [{"type": "text", "text": "d"}]},
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "u"}, {"type": "image_url", "image_url": {"url": PIXEL}}],
                },
                {
                    "role": "assistant",
                    "content": [{"type": "text", "text": "t"}, {"type": "refusal", "refusal": "no"}],
                    "reasoning_content": "r",
                    "tool_calls": [
                        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": '}},
                        {"id": "c2", "function": {"name": "g", "arguments": ""}},
                    ],
                },
                {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "2"}], "name": "other"},
                {"role": "tool", "tool_call_id": "c1", "content": [{"type": "image_url", "image_url": {"url": "https://x/y"}}]},
                {"role": "assistant", "content": None, "refusal": "sorry", "reasoning": "hm"},
            ]
        )
    )
    assert read.messages == (
        Message(Role.SYSTEM, (Text("s"),), "sys"),
        Message(Role.DEVELOPER, (Text("d"),)),
        Message(Role.USER, (Text("u"), Image(PIXEL, "image/png"))),
        Message(
            Role.ASSISTANT,
            (Reasoning("r"), Text("t"), Text("no"), ToolCall("c1", "f", '{"a": '), ToolCall("c2", "g", "")),
        ),
        Message(Role.TOOL, (ToolResult("c2", (Text("2"),), "g"),)),
        Message(Role.TOOL, (ToolResult("c1", (Image("https://x/y"),), "f"),)),
        Message(Role.ASSISTANT, (Reasoning("hm"), Text("sorry"))),
    )
    assert read.dropped == ()


@pytest.mark.parametrize("content", ["", [], [{"type": "text", "text": ""}]])
@pytest.mark.parametrize("role", ["user", "assistant", "system"])
def test_all_forms_of_empty_text_are_one(role, content):
    assert parse(message(role=role, content=content)).messages[0].parts == ()


@pytest.mark.parametrize(
    "empty", [{}, {"content": None}, {"content": ""}, {"content": "", "tool_calls": []}, {"tool_calls": None}]
)
def test_an_empty_reply_comes_back_as_an_empty_message(empty):
    assert parse(assistant(**empty)).messages[1] == Message(Role.ASSISTANT, ())


@pytest.mark.parametrize("text", ["  a \n", "\r\n\t", "\u2028\x00\U0001f600", "<|im_end|>", "é" * 1000])
def test_text_is_kept_to_the_character(text):
    assert parse(message(role="user", content=text)).messages[0].text == text
    assert parse(call(function={"name": "f", "arguments": text})).messages[1].tool_calls[0].arguments == text


@pytest.mark.parametrize(
    "arguments",
    ["", "{", '{"a":1,"a":2}', '{"a": 1e999, "b": NaN}', "9" * 5000, "[" * 5000, '{"a":"\\ud800"}'],
    ids=lambda a: a[:12],
)
def test_arguments_are_a_string_whatever_is_in_it(arguments):
    made = parse(request(messages=cycle(function={"name": "weather", "arguments": arguments}))).messages[1].tool_calls[0]
    assert made.arguments == arguments and made.malformed is False


def test_the_smaller_of_two_token_limits_counts():
    assert parse(request(max_tokens=5, max_completion_tokens=9)).sampling.max_tokens == 5
    assert parse(request(max_tokens=9, max_completion_tokens=5)).sampling.max_tokens == 5
    assert parse(request(max_completion_tokens=9)).sampling.max_tokens == 9


def test_a_result_may_answer_any_earlier_call():
    later = [*cycle(), {"role": "assistant", "content": "wait"}, {"role": "tool", "tool_call_id": "c1", "content": "sun"}]
    assert parse(request(messages=later)).messages[-1].parts == (ToolResult("c1", (Text("sun"),), "weather"),)


def test_null_is_not_given_in_every_optional_field():
    fields = (
        "tools tool_choice parallel_tool_calls max_tokens max_completion_tokens stop temperature top_p top_k min_p "
        "presence_penalty frequency_penalty repetition_penalty seed n stream stream_options logprobs top_logprobs "
        "response_format logit_bias modalities user store functions function_call audio web_search_options never_heard_of"
    )
    assert parse(request(**dict.fromkeys(fields.split()))) == parse(request())


def test_the_last_of_two_equal_keys_counts():
    assert parse(b'{"model":"a","model":"b","messages":[{"role":"user","content":"x","content":"y"}]}').messages[0].text == "y"


# --- what is dropped --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "phrase"),
    [
        (request(user="u"), "user: "),
        (request(metadata={"a": "b"}), "metadata: "),
        (request(store=False), "store: "),
        (request(service_tier="auto"), "service_tier: "),
        (request(prompt_cache_key="k"), "prompt_cache_key: "),
        (request(reasoning_effort="high"), "reasoning_effort: "),
        (request(verbosity="low"), "verbosity: "),
        (request(prediction={"type": "content", "content": "x"}), "prediction: "),
        (request(parallel_tool_calls=False), "parallel_tool_calls: "),
        (request(tools=[WEATHER], tool_choice="required"), "tool_choice required: "),
        (request(tools=[WEATHER], tool_choice=NAMED), "tool_choice named: "),
        (request(tools=[{"type": "function", "function": {"name": "f", "strict": True}}]), "tools.function.strict: "),
        (request(stream_options={"include_obfuscation": False}), "stream_options.include_obfuscation: "),
        (request(stream_options={"x": 1}), "unknown:stream_options.x"),
        (request(never_heard_of={"a": [1]}), "unknown:never_heard_of"),
        (tool(cache_control={"type": "ephemeral"}), "tools.cache_control: "),
        (tool(x=1), "unknown:tools.x"),
        (message(role="user", content="hi", cache_control={}), "messages.cache_control: "),
        (
            message(role="user", content=[{"type": "text", "text": "a", "cache_control": {}}]),
            "messages.content.cache_control: ",
        ),
        (message(role="user", content="hi", x=1), "unknown:messages.x"),
        (assistant(content="a", provider_specific_fields={"x": 1}), "unknown:messages.provider_specific_fields"),
        (assistant(content="a", reasoning="b", reasoning_content="c"), "messages.reasoning: "),
        (call(index=0), "unknown:messages.tool_calls.index"),
        (call(function={"name": "f", "arguments": "", "x": 1}), "unknown:messages.tool_calls.function.x"),
        (
            message(role="user", content=[{"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}}]),
            "image_url.detail: ",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_dropped_is_recorded_once_by_name(body, phrase):
    (recorded,) = parse(body).dropped
    assert recorded.startswith(phrase)
    body["messages"] = body["messages"] * 2
    assert parse(body).dropped == (recorded,)


def test_a_wish_for_a_tool_is_kept_as_it_was():
    assert parse(request(tools=[WEATHER], tool_choice="required")).tool_choice == ToolChoice("required")
    assert parse(request(tools=[WEATHER], tool_choice=NAMED)).tool_choice == ToolChoice("named", "weather")
    assert parse(request(tools=[], tool_choice="auto")).tool_choice == ToolChoice()


# --- what is refused --------------------------------------------------------------------------------------------------

REFUSED = [
    (request(model=...), "model"),
    (request(model=3), "model"),
    (request(model=""), "model"),
    (request(messages=...), "messages"),
    (request(messages=None), "messages"),
    (request(messages="hi"), "messages"),
    (request(messages={}), "messages"),
    (request(messages=[]), "messages"),
    (request(messages=["hi"]), "messages[0]"),
    (message(content="hi"), "messages[0].role"),
    (message(role=1, content="hi"), "messages[0].role"),
    (message(role="function", name="f", content="hi"), "messages[0].role"),
    (message(role="robot", content="hi"), "messages[0].role"),
    (message(role="user"), "messages[0].content"),
    (message(role="user", content=None), "messages[0].content"),
    (message(role="user", content=1), "messages[0].content"),
    (message(role="user", content={"type": "text"}), "messages[0].content"),
    (message(role="user", content=["hi"]), "messages[0].content[0]"),
    (message(role="user", content=[{"text": "hi"}]), "messages[0].content[0].type"),
    (message(role="user", content=[{"type": "text"}]), "messages[0].content[0].text"),
    (message(role="user", content=[{"type": "text", "text": 1}]), "messages[0].content[0].text"),
    (message(role="user", content=[{"type": "input_audio", "input_audio": {}}]), "messages[0].content[0].type"),
    (message(role="user", content=[{"type": "file", "file": {}}]), "messages[0].content[0].type"),
    (message(role="user", content=[{"type": "refusal", "refusal": "x"}]), "messages[0].content[0].type"),
    (message(role="user", content=[{"type": "image_url", "image_url": PIXEL}]), "messages[0].content[0].image_url"),
    (message(role="user", content=[{"type": "image_url", "image_url": {}}]), "messages[0].content[0].image_url.url"),
    (message(role="user", content=[{"type": "image_url", "image_url": {"url": ""}}]), "messages[0].content[0].image_url.url"),
    (message(role="system", content=[{"type": "image_url", "image_url": {"url": PIXEL}}]), "messages[0].content[0].type"),
    (message(role="user", content="hi", name=1), "messages[0].name"),
    (message(role="tool", content="x"), "messages[0].tool_call_id"),
    (message(role="tool", content="x", tool_call_id=""), "messages[0].tool_call_id"),
    (message(role="tool", content="x", tool_call_id="c1"), "messages[0].tool_call_id"),
    (message(role="tool", tool_call_id="c1"), "messages[0].content"),
    (request(messages=[*cycle()[::-1]]), "messages[0].tool_call_id"),
    (request(messages=[*cycle(), {"role": "tool", "tool_call_id": "c2", "content": ""}]), "messages[3].tool_call_id"),
    (assistant(content=[{"type": "image_url", "image_url": {"url": PIXEL}}]), "messages[1].content[0].type"),
    (assistant(content=[{"type": "thinking", "thinking": "x"}]), "messages[1].content[0].type"),
    (assistant(content="x", function_call={"name": "f", "arguments": ""}), "messages[1].function_call"),
    (assistant(content="x", audio={"id": "a"}), "messages[1].audio"),
    (assistant(content="x", refusal=1), "messages[1].refusal"),
    (assistant(content="x", reasoning_content=["x"]), "messages[1].reasoning_content"),
    (assistant(content="x", reasoning={"effort": 1}), "messages[1].reasoning"),
    (assistant(tool_calls={}), "messages[1].tool_calls"),
    (assistant(tool_calls=[1]), "messages[1].tool_calls[0]"),
    (call(id=...), "messages[1].tool_calls[0].id"),
    (call(id=None), "messages[1].tool_calls[0].id"),
    (call(id=7), "messages[1].tool_calls[0].id"),
    (call(type="custom", custom={"name": "f", "input": ""}), "messages[1].tool_calls[0].type"),
    (call(function=None), "messages[1].tool_calls[0].function"),
    (call(function={"arguments": ""}), "messages[1].tool_calls[0].function.name"),
    (call(function={"name": "", "arguments": ""}), "messages[1].tool_calls[0].function.name"),
    (call(function={"name": "f"}), "messages[1].tool_calls[0].function.arguments"),
    (call(function={"name": "f", "arguments": {"a": 1}}), "messages[1].tool_calls[0].function.arguments"),
    (request(tools={}), "tools"),
    (request(tools=["f"]), "tools[0]"),
    (request(tools=[WEATHER, {"function": {"name": "f"}}]), "tools[1].type"),
    (tool(type="custom"), "tools[0].type"),
    (tool(type="web_search"), "tools[0].type"),
    (tool(function=None), "tools[0].function"),
    (tool(function={}), "tools[0].function.name"),
    (tool(function={"name": ""}), "tools[0].function.name"),
    (tool(function={"name": "f", "description": 1}), "tools[0].function.description"),
    (tool(function={"name": "f", "parameters": []}), "tools[0].function.parameters"),
    (tool(function={"name": "f", "parameters": deep(200)}), "tools[0].function.parameters"),
    (tool(function={"name": "f", "strict": "yes"}), "tools[0].function.strict"),
    (request(tool_choice="required"), "tool_choice"),
    (request(tools=[WEATHER], tool_choice="any"), "tool_choice"),
    (request(tools=[WEATHER], tool_choice=1), "tool_choice"),
    (request(tools=[WEATHER], tool_choice={"type": "allowed_tools"}), "tool_choice.type"),
    (request(tools=[WEATHER], tool_choice={"type": "function"}), "tool_choice.function"),
    (request(tools=[WEATHER], tool_choice={"type": "function", "function": {"name": "x"}}), "tool_choice.function.name"),
    (request(tool_choice=NAMED), "tool_choice.function.name"),
    (request(parallel_tool_calls="no"), "parallel_tool_calls"),
    (request(max_tokens=0), "max_tokens"),
    (request(max_tokens=-1), "max_tokens"),
    (request(max_tokens=True), "max_tokens"),
    (request(max_tokens=1.0), "max_tokens"),
    (request(max_tokens="1"), "max_tokens"),
    (request(max_tokens=2**64 - 1), "max_tokens"),
    (request(max_completion_tokens=0), "max_completion_tokens"),
    (request(stop=1), "stop"),
    (request(stop=""), "stop"),
    (request(stop=["a", ""]), "stop"),
    (request(stop=list("abcde")), "stop"),
    (request(stop=["a", 1]), "stop[1]"),
    (request(temperature=-0.1), "temperature"),
    (request(temperature=2.1), "temperature"),
    (request(temperature=True), "temperature"),
    (request(temperature="1"), "temperature"),
    (request(top_p=1.1), "top_p"),
    (request(top_k=-2), "top_k"),
    (request(min_p=2), "min_p"),
    (request(presence_penalty=3), "presence_penalty"),
    (request(frequency_penalty=-3), "frequency_penalty"),
    (request(repetition_penalty=0), "repetition_penalty"),
    (request(seed=1.5), "seed"),
    (request(seed=2**64 - 1), "seed"),
    (request(n=2), "n"),
    (request(n=0), "n"),
    (request(n=True), "n"),
    (request(stream=1), "stream"),
    (request(stream_options=True), "stream_options"),
    (request(stream_options={"include_usage": 1}), "stream_options.include_usage"),
    (request(logprobs=1), "logprobs"),
    (request(logprobs=True, top_logprobs=1), "top_logprobs"),
    (request(top_logprobs=True), "top_logprobs"),
    (request(response_format={"type": "json_object"}), "response_format.type"),
    (request(response_format={"type": "json_schema", "json_schema": {}}), "response_format.type"),
    (request(response_format={}), "response_format.type"),
    (request(response_format="text"), "response_format"),
    (request(logit_bias={"1": 5}), "logit_bias"),
    (request(modalities=["text", "audio"]), "modalities"),
    (request(modalities=[1]), "modalities[0]"),
    (request(audio={"voice": "x"}), "audio"),
    (request(functions=[]), "functions"),
    (request(function_call="auto"), "function_call"),
    (request(web_search_options={}), "web_search_options"),
    (b'{"model":"m","messages":[{"role":"user","content":"a"}],"max_tokens":123456789012345678901234567890}', "max_tokens"),
]


def _without_ellipsis(value):
    if isinstance(value, dict):
        return {k: _without_ellipsis(v) for k, v in value.items() if v is not ...}
    return [_without_ellipsis(v) for v in value] if isinstance(value, list) else value


@pytest.mark.parametrize(("body", "param"), REFUSED, ids=[f"{i}-{param}" for i, (_, param) in enumerate(REFUSED)])
def test_what_is_refused_is_named(body, param):
    error = refused(_without_ellipsis(body))
    assert error.param == param
    assert error.code in {"invalid_type", "invalid_value", "missing_required_parameter", "unsupported_parameter"}
    assert param in error.message and "\n" not in error.message and len(error.message) < 300


def test_an_unknown_call_id_is_quoted():
    assert "'c9'" in refused(request(messages=[*cycle(), {"role": "tool", "tool_call_id": "c9", "content": ""}])).message


def test_a_cut_emoji_in_tool_output_does_not_end_the_rollout():
    body = orjson.dumps(request(messages=cycle())).replace(b'"rain"', b'"rain\\ud83c"')
    read = parse(body)
    assert read.messages[2].parts == (ToolResult("c1", (Text("rain\ufffd"),), "weather"),)
    assert read.dropped == ("lone surrogates: replaced by U+FFFD",)


# --- anything at all --------------------------------------------------------------------------------------------------

WHOLE = request(
    messages=[
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "u"}, {"type": "image_url", "image_url": {"url": PIXEL}}]},
        *cycle(),
        {"role": "assistant", "content": "done", "reasoning_content": "r", "refusal": None},
    ],
    tools=[WEATHER],
    tool_choice=NAMED,
    max_tokens=5,
    stop=["a"],
    temperature=0.5,
    n=1,
    stream=True,
    stream_options={"include_usage": True},
    response_format={"type": "text"},
    logit_bias={},
    user="u",
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)
words = st.sampled_from(
    sorted({*WHOLE, "role", "content", "type", "text", "function", "tool_calls", "id", "name", "arguments", "x"})
)


def places(value, path=()):
    """The path of every value inside ``value``."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in inner:
        yield from places(child, (*path, key))


@st.composite
def mutated(draw):
    """A valid body with up to three values replaced, removed, added or moved."""
    body = orjson.loads(orjson.dumps(WHOLE))
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from([p for p in places(body) if p]))
        holder = body
        for key in path[:-1]:
            holder = holder[key]
        action = draw(st.sampled_from(["replace", "remove", "add", "copy"]))
        if action == "remove":
            del holder[path[-1]]
        elif action == "add" and isinstance(holder, dict):
            holder[draw(words)] = draw(values)
        elif action == "copy":
            other = body
            for key in draw(st.sampled_from(list(places(body)))):
                other = other[key]
            holder[path[-1]] = orjson.loads(orjson.dumps(other))
        else:
            holder[path[-1]] = draw(values)
        if not list(places(body))[1:]:
            break
    return body


@settings(max_examples=400, deadline=None)
@given(mutated())
def test_any_mutation_of_a_valid_body_is_read_or_refused(body):
    try:
        assert isinstance(parse(body), ModelCall)
    except BadRequest as exc:
        assert exc.message and len(exc.message) < 400


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_damage_to_the_bytes_is_read_or_refused(data):
    body = bytearray(orjson.dumps(WHOLE))
    start = data.draw(st.integers(0, len(body)))
    body[start : data.draw(st.integers(start, min(len(body), start + 40)))] = data.draw(st.binary(max_size=10))
    try:
        assert isinstance(parse(bytes(body)), ModelCall)
    except BadRequest as exc:
        assert exc.message


@settings(max_examples=100, deadline=None)
@given(values)
def test_any_json_at_all_is_read_or_refused(value):
    with pytest.raises(BadRequest):
        parse(orjson.dumps(value))
