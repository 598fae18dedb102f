# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Anthropic requests: what is honoured, what is dropped, what is refused and under which name."""

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_polar.errors import BadRequest
from nemo_polar.types import Message, ModelCall, Role, SamplingParams, Text, ToolChoice, ToolResult, ToolSpec
from nemo_polar.wire.base import Route
from tests.support.anthropic_messages import (
    EPHEMERAL,
    WEATHER,
    cycle,
    heard,
    parse,
    request,
    result,
    said,
    text,
    use,
)

SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
LATER = {"name": "later", "description": "Found by searching.", "input_schema": {"type": "object"}, "defer_loading": True}
TOOL_SPEC = ToolSpec("weather", WEATHER["description"], WEATHER["input_schema"])
KEEP_ALL = {"type": "clear_thinking_20251015", "keep": "all"}


def tool(**fields):
    return request(tools=[{"name": "f", **fields}])


def deep(levels):
    value: dict = {}
    for _ in range(levels):
        value = {"a": value}
    return value


# --- what is honoured -------------------------------------------------------------------------------------------------


def test_a_plain_request():
    assert parse(request()) == ModelCall(
        messages=(Message(Role.USER, (Text("hi"),)),),
        sampling=SamplingParams(max_tokens=100),
        model="polar",
        dialect="anthropic",
        options={"thinking": "hidden"},
    )


def test_every_honoured_field():
    read = parse(
        request(
            system="s",
            tools=[WEATHER, {"type": "custom", "name": "f", "eager_input_streaming": True, "strict": False}],
            tool_choice={"type": "none"},
            stop_sequences=["a", "b"],
            temperature=0,
            top_p=0.5,
            top_k=20,
            stream=True,
            thinking={"type": "adaptive", "display": "summarized"},
            context_management={"edits": [KEEP_ALL, {**KEEP_ALL, "keep": {"type": "all"}}]},
            output_config={"effort": None, "format": None},
            mcp_servers=[],
        )
    )
    assert read.tools == (TOOL_SPEC, ToolSpec("f", strict=False))
    assert read.tool_choice == ToolChoice("none")
    assert read.sampling == SamplingParams(0.0, 0.5, 20, max_tokens=100, stop=("a", "b"))
    assert read.messages[0] == Message(Role.SYSTEM, (Text("s"),))
    assert (read.stream, read.options, read.dropped) == (True, {"thinking": "shown"}, ())


@pytest.mark.parametrize(
    ("thinking", "seen"),
    [
        (None, "hidden"),
        ({"type": "disabled"}, "hidden"),
        ({"type": "disabled", "display": "omitted"}, "hidden"),
        ({"type": "adaptive"}, "shown"),
        ({"type": "enabled", "display": None}, "shown"),
        ({"type": "enabled", "display": "omitted"}, "omitted"),
    ],
)
def test_thinking_says_what_the_client_sees(thinking, seen):
    assert parse(request(thinking=thinking)).options == {"thinking": seen}


def test_counting_needs_no_limit_and_is_never_streamed():
    counted = parse(request(max_tokens=..., stream=True), Route("count_tokens"))
    assert counted.messages == parse(request()).messages and counted.stream is False


def test_null_is_not_given_in_every_optional_field():
    fields = (
        "system tools tool_choice stop_sequences temperature top_p top_k stream thinking context_management output_config "
        "cache_control metadata service_tier container mcp_servers thread output_format betas fallbacks never_heard_of"
    )
    assert parse(request(**dict.fromkeys(fields.split()))) == parse(request())


def test_the_tools_choice():
    offered = {"tools": [WEATHER, SEARCH]}
    assert parse(request(**offered, tool_choice={"type": "auto"})).tool_choice == ToolChoice()
    assert parse(request(**offered, tool_choice={"type": "any"})).tool_choice == ToolChoice("required")
    named = parse(request(**offered, tool_choice={"type": "tool", "name": "weather", "disable_parallel_tool_use": True}))
    assert (named.tool_choice, named.parallel_tool_calls) == (ToolChoice("named", "weather"), False)


# --- deferred tools ---------------------------------------------------------------------------------------------------


def found(*names):
    search = said(use("c1", "ToolSearch", input={"query": "x"}))
    return [search, heard(result("c1", [{"type": "tool_reference", "tool_name": name} for name in names]))]


def test_a_deferred_tool_is_shown_where_a_reference_names_it():
    read = parse(request(tools=[WEATHER, LATER], messages=[heard(text("go")), *found("later", "nowhere")]))
    assert read.tools == (TOOL_SPEC,)
    assert read.dropped == ("tools.defer_loading: shown where a tool_reference names the tool",)
    (answer,) = read.messages[2].parts
    assert isinstance(answer, ToolResult)
    shown, unknown = (part.text for part in answer.content if isinstance(part, Text))
    assert orjson.loads(shown)["function"] == {
        "name": "later",
        "description": "Found by searching.",
        "parameters": {"type": "object"},
    }
    assert unknown == "nowhere\n"


def test_finding_a_tool_leaves_the_prompt_and_its_tools_as_they_were():
    before = parse(request(tools=[WEATHER, {**LATER, "name": "placeholder"}]))
    after = parse(
        request(tools=[WEATHER, {**LATER, "name": "placeholder"}, LATER], messages=[heard(text("hi")), *found("later")])
    )
    assert after.tools == before.tools and after.messages[0] == before.messages[0]


def test_deferred_tools_that_only_the_server_could_find_are_shown():
    search = {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}
    read = parse(request(tools=[search, LATER]))
    assert [t.name for t in read.tools] == ["later"]
    assert [p.partition(":")[0] for p in read.dropped] == ["tools tool_search_tool_regex"]


# --- what is dropped --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "phrase"),
    [
        (request(metadata={"user_id": "u"}), "metadata: "),
        (request(service_tier="auto"), "service_tier: "),
        (request(speed="fast"), "speed: "),
        (request(fallbacks=[{"model": "x"}]), "fallbacks: "),
        (request(betas=["x"]), "betas: "),
        (request(diagnostics={}), "diagnostics: "),
        (request(cache_control=EPHEMERAL), "cache_control: "),
        (request(output_config={"effort": "high"}), "output_config.effort: "),
        (request(output_config={"task_budget": {"total": 9}}), "output_config.task_budget: "),
        (request(output_config={"x": 1}), "unknown:output_config.x"),
        (request(thinking={"type": "enabled", "budget_tokens": 9}), "thinking.budget_tokens: "),
        (request(thinking={"type": "adaptive", "x": 1}), "unknown:thinking.x"),
        (
            request(context_management={"edits": [{"type": "clear_thinking_20251015"}]}),
            "context_management.clear_thinking_20251015: ",
        ),
        (
            request(context_management={"edits": [{**KEEP_ALL, "keep": {"type": "thinking_turns", "value": 1}}]}),
            "context_management.clear_thinking_20251015: ",
        ),
        (
            request(context_management={"edits": [{"type": "clear_tool_uses_20250919"}]}),
            "context_management.clear_tool_uses_20250919: ",
        ),
        (request(context_management={"edits": [{"type": "compact_20260112"}]}), "context_management.compact_20260112: "),
        (request(context_management={"edits": [{"type": "new"}]}), "context_management.edits: "),
        (request(tools=[WEATHER, SEARCH]), "tools web_search: "),
        (request(tools=[{"type": "bash_20250124", "name": "bash"}]), "tools bash: "),
        (request(tools=[{"type": "text_editor_20250728", "name": "edit"}]), "tools text_editor: "),
        (request(tools=[{"type": "mcp_toolset", "mcp_server_name": "x"}]), "tools mcp_toolset: "),
        (tool(strict=True), "tools.strict: "),
        (tool(input_examples=[{}]), "tools.input_examples: "),
        (tool(allowed_callers=["code_execution_20260120"]), "tools.allowed_callers: "),
        (tool(cache_control=EPHEMERAL), "cache_control: "),
        (tool(x=1), "unknown:tools.x"),
        (request(tools=[WEATHER], tool_choice={"type": "any"}), "tool_choice any: "),
        (request(tools=[WEATHER], tool_choice={"type": "tool", "name": "weather"}), "tool_choice tool: "),
        (
            request(tool_choice={"type": "auto", "disable_parallel_tool_use": True}),
            "tool_choice.disable_parallel_tool_use: ",
        ),
        (request(never_heard_of={"a": [1]}), "unknown:never_heard_of"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_dropped_is_recorded_once_by_name(body, phrase):
    (recorded,) = parse(body).dropped
    assert recorded.startswith(phrase)
    if "tools" in body:
        body["tools"] = body["tools"] * 2
        assert parse(body).dropped == (recorded,)


# --- what is refused --------------------------------------------------------------------------------------------------

REFUSED = [
    (request(model=...), "model"),
    (request(model=""), "model"),
    (request(max_tokens=...), "max_tokens"),
    (request(max_tokens=0), "max_tokens"),
    (request(max_tokens=True), "max_tokens"),
    (request(max_tokens=1.0), "max_tokens"),
    (request(stop_sequences="a"), "stop_sequences"),
    (request(stop_sequences=[""]), "stop_sequences"),
    (request(stop_sequences=[1]), "stop_sequences[0]"),
    (request(stop_sequences=["a"] * 65), "stop_sequences"),
    (request(temperature=1.1), "temperature"),
    (request(temperature="1"), "temperature"),
    (request(top_p=-1), "top_p"),
    (request(top_k=1.5), "top_k"),
    (request(stream=1), "stream"),
    (request(thinking="on"), "thinking"),
    (request(thinking={}), "thinking.type"),
    (request(thinking={"type": "deep"}), "thinking.type"),
    (request(thinking={"type": "adaptive", "display": "all"}), "thinking.display"),
    (request(output_config=1), "output_config"),
    (request(output_config={"format": {"type": "json_schema", "schema": {}}}), "output_config.format"),
    (request(output_format={"type": "json_schema", "schema": {}}), "output_format"),
    (request(context_management=[]), "context_management"),
    (request(context_management={"edits": [1]}), "context_management.edits[0]"),
    (request(context_management={"edits": [{}]}), "context_management.edits[0].type"),
    (request(container="c"), "container"),
    (request(mcp_servers=[{"url": "x"}]), "mcp_servers"),
    (request(thread={"type": "auto"}), "thread"),
    (request(tools={}), "tools"),
    (request(tools=["f"]), "tools[0]"),
    (request(tools=[{"type": 1, "name": "f"}]), "tools[0].type"),
    (request(tools=[{"type": "function", "function": {}}]), "tools[0].type"),
    (request(tools=[WEATHER, {"description": "x"}]), "tools[1].name"),
    (tool(name=""), "tools[0].name"),
    (tool(description=1), "tools[0].description"),
    (tool(input_schema=[]), "tools[0].input_schema"),
    (tool(input_schema=deep(200)), "tools[0].input_schema"),
    (tool(strict="yes"), "tools[0].strict"),
    (tool(defer_loading=1), "tools[0].defer_loading"),
    (tool(eager_input_streaming=1), "tools[0].eager_input_streaming"),
    (tool(input_examples=1), "tools[0].input_examples"),
    (request(tool_choice="auto"), "tool_choice"),
    (request(tool_choice={}), "tool_choice.type"),
    (request(tool_choice={"type": "required"}), "tool_choice.type"),
    (request(tool_choice={"type": "any"}), "tool_choice.type"),
    (request(tools=[SEARCH], tool_choice={"type": "any"}), "tool_choice.type"),
    (request(tools=[WEATHER], tool_choice={"type": "tool"}), "tool_choice.name"),
    (request(tools=[WEATHER], tool_choice={"type": "tool", "name": "x"}), "tool_choice.name"),
    (request(tools=[WEATHER, SEARCH], tool_choice={"type": "tool", "name": "web_search"}), "tool_choice.name"),
    (request(tool_choice={"type": "auto", "disable_parallel_tool_use": 1}), "tool_choice.disable_parallel_tool_use"),
]


@pytest.mark.parametrize(("body", "param"), REFUSED, ids=[f"{i}-{param}" for i, (_, param) in enumerate(REFUSED)])
def test_what_is_refused_is_named(body, param):
    with pytest.raises(BadRequest) as caught:
        parse(body)
    error = caught.value
    assert error.param == param
    assert error.code in {"invalid_type", "invalid_value", "missing_required_parameter", "unsupported_parameter"}
    assert param in error.message and "\n" not in error.message and len(error.message) < 300


# --- anything at all --------------------------------------------------------------------------------------------------

WHOLE = request(
    system=[text("s", cache_control=EPHEMERAL)],
    messages=[
        *cycle(),
        said({"type": "thinking", "thinking": "r", "signature": "x"}, text("a"), use("c2")),
        heard(result("c2", [text("b"), {"type": "tool_reference", "tool_name": "later"}], is_error=True), text("c")),
        {"role": "system", "content": "tokens left"},
    ],
    tools=[WEATHER, LATER, SEARCH],
    tool_choice={"type": "tool", "name": "weather"},
    thinking={"type": "enabled", "budget_tokens": 9},
    context_management={"edits": [KEEP_ALL]},
    output_config={"effort": "high"},
    stop_sequences=["x"],
    stream=True,
    temperature=1,
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
)
words = st.sampled_from(sorted({*WHOLE, "role", "content", "type", "text", "source", "input", "id", "name", "x", "caller"}))
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3))


def places(value, path=()):
    """The path of every value inside ``value``."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in inner:
        yield from places(child, (*path, key))


def at(value, path):
    for key in path:
        value = value[key]
    return value


@st.composite
def mutated(draw):
    """A valid body with up to three values replaced, removed, added or copied elsewhere."""
    body = orjson.loads(orjson.dumps(WHOLE))
    for _ in range(draw(st.integers(1, 3))):
        *above, last = draw(st.sampled_from([p for p in places(body) if p]))
        holder = at(body, above)
        action = draw(st.sampled_from(["replace", "remove", "add", "copy"]))
        if action == "remove":
            del holder[last]
        elif action == "add" and isinstance(holder, dict):
            holder[draw(words)] = draw(values)
        elif action == "copy":
            holder[last] = orjson.loads(orjson.dumps(at(body, draw(st.sampled_from(list(places(body)))))))
        else:
            holder[last] = draw(values)
        if not body:
            break
    return body


@settings(max_examples=400, deadline=None)
@given(mutated())
def test_any_body_is_read_or_refused_by_name(body):
    try:
        call = parse(body)
    except BadRequest as error:
        assert error.message and error.param
    else:
        assert call.messages and call.model
