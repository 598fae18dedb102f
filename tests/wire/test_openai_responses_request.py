# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Responses requests: what is honoured, what is dropped, what is refused and under which name."""

from __future__ import annotations

import orjson
import pytest

from nemo_polar.errors import BadRequest
from nemo_polar.types import (
    FREEFORM,
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
from nemo_polar.wire.base import Route
from nemo_polar.wire.seal import seal
from tests.support.openai_responses import (
    CRM,
    DIALECT,
    HI,
    PATCH,
    SEARCH,
    TOOLS,
    WEATHER,
    function_call,
    output,
    parse,
    parsed,
    request,
    said,
    thought,
)

PIXEL = "data:image/png;base64,iVBORw0KGgo="
USER = Message(Role.USER, (Text("hi"),))
CALL = function_call()


def talk(*entries, **fields):
    return request(input=[HI, *entries], **fields)


def user(*parts):
    return request(input=[{"role": "user", "content": list(parts)}])


def tool(**fields):
    return request(tools=[{"type": "function", "name": "f", **fields}])


def deep(levels):
    value: dict = {}
    for _ in range(levels):
        value = {"a": value}
    return value


def refused(body) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        parse(body)
    return caught.value


# --- routes -----------------------------------------------------------------------------------------------------------

SOCKET = {"Connection": "Upgrade", "Upgrade": "WebSocket"}


@pytest.mark.parametrize("prefix", ["", "/v1"])
@pytest.mark.parametrize(
    ("method", "path", "headers", "route"),
    [
        ("POST", "/responses", {}, Route("generate")),
        ("GET", "/responses", SOCKET, Route("websocket")),
        ("GET", "/responses", {}, None),
        ("GET", "/responses", {"Upgrade": "h2c"}, None),
        ("POST", "/responses/", {}, None),
        ("POST", "/responses/compact", {}, None),
        ("GET", "/responses/resp_1", {}, None),
        ("DELETE", "/responses", SOCKET, None),
        ("GET", "/models", {}, None),
        ("POST", "/chat/completions", {}, None),
    ],
)
def test_routes(prefix, method, path, headers, route):
    assert DIALECT.recognise(method, prefix + path, headers, {}) == route


# --- what is honoured -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("said_so", ["hi", [HI], [{"role": "user", "content": "hi"}]])
def test_a_plain_request(said_so):
    call = parse(request(input=said_so))
    assert call == ModelCall(messages=(USER,), model="polar", dialect="openai_responses", options=call.options)


def test_every_honoured_field():
    read = parsed(
        request(
            instructions="Be brief.",
            tools=[WEATHER],
            tool_choice="none",
            parallel_tool_calls=True,
            max_output_tokens=100,
            temperature=0,
            top_p=0.5,
            top_k=20,
            min_p=0.1,
            presence_penalty=-1,
            frequency_penalty=1.5,
            repetition_penalty=1.1,
            seed=-7,
            stream=True,
            stream_options={},
            store=True,
            background=False,
            include=["reasoning.encrypted_content"],
            text={"format": {"type": "text"}},
            reasoning={},
            truncation="disabled",
            top_logprobs=0,
            previous_response_id="resp_abc",
        )
    )
    call = read.call
    assert call.messages == (Message(Role.SYSTEM, (Text("Be brief."),)), USER)
    assert call.tools == (ToolSpec("weather", WEATHER["description"], WEATHER["parameters"], strict=False),)
    assert call.tool_choice == ToolChoice("none")
    assert call.sampling == SamplingParams(0.0, 0.5, 20, 0.1, -1.0, 1.5, 1.1, 100, (), -7)
    assert (call.stream, call.options["encrypted"], call.dropped) == (True, True, ())
    assert (read.preamble, read.stored, read.continues) == (1, True, "abc")


@pytest.mark.parametrize(("store", "stored"), [(..., True), (None, True), (True, True), (False, False)])
def test_a_reply_can_be_gone_on_from_unless_it_is_not_to_be_stored(store, stored):
    read = parsed(request(store=store))
    assert (read.stored, read.continues, read.preamble) == (stored, None, 0)


def test_every_role_and_part():
    image = {"type": "input_image", "image_url": PIXEL, "detail": "high"}
    call = parse(
        request(
            input=[
                {"role": "system", "content": "s"},
                {"type": "message", "id": "msg_1", "role": "developer", "content": [{"type": "input_text", "text": "d"}]},
                {"role": "user", "content": [{"type": "input_text", "text": "u"}, image, {"type": "input_text", "text": ""}]},
                {
                    "role": "assistant",
                    "phase": "commentary",
                    "status": "completed",
                    "content": [
                        {"type": "output_text", "text": "t", "annotations": [], "logprobs": []},
                        {"type": "refusal", "refusal": "no"},
                        {"type": "input_text", "text": "i"},
                    ],
                },
                {"role": "user", "content": []},
                {"role": "assistant", "content": "plain"},
            ]
        )
    )
    assert call.messages == (
        Message(Role.SYSTEM, (Text("s"),)),
        Message(Role.DEVELOPER, (Text("d"),)),
        Message(Role.USER, (Text("u"), Image(PIXEL, "image/png"))),
        Message(Role.ASSISTANT, (Text("t"), Text("no"), Text("i"))),
        Message(Role.USER, ()),
        Message(Role.ASSISTANT, (Text("plain"),)),
    )
    assert call.dropped == ("input_image.detail: the model's renderer decides on resolution",)


def test_items_of_one_reply_are_one_message_in_their_order():
    custom = {"type": "custom_tool_call", "call_id": "c2", "name": "apply_patch", "input": 'a"b\n'}
    call = parse(
        talk(
            thought("r"),
            said("t"),
            CALL,
            custom,
            output("c1", [{"type": "input_text", "text": "rain"}, {"type": "input_image", "image_url": PIXEL}]),
            {"type": "custom_tool_call_output", "call_id": "c2", "output": "ok"},
            {"role": "user", "content": "go on"},
            thought("again"),
        )
    )
    assert call.messages == (
        USER,
        Message(
            Role.ASSISTANT,
            (
                Reasoning("r"),
                Text("t"),
                ToolCall("c1", "weather", '{"place":"Oslo"}'),
                ToolCall("c2", "apply_patch", '{"input":"a\\"b\\n"}'),
            ),
        ),
        Message(Role.TOOL, (ToolResult("c1", (Text("rain"), Image(PIXEL, "image/png")), "weather"),)),
        Message(Role.TOOL, (ToolResult("c2", (Text("ok"),), "apply_patch"),)),
        Message(Role.USER, (Text("go on"),)),
        Message(Role.ASSISTANT, (Reasoning("again"),)),
    )


def test_a_later_call_with_the_same_id_is_the_one_that_is_meant():
    call = parse(talk(CALL, output(), function_call(name="other"), output()))
    assert [m.parts[0].name for m in call.messages if m.role is Role.TOOL] == ["weather", "other"]


FOREIGN = "reasoning.encrypted_content: it was not written here"
SUMMARY = [{"type": "summary_text", "text": "s"}]


@pytest.mark.parametrize(
    ("fields", "text", "phrases"),
    [
        ({"encrypted_content": seal("é")}, "é", ()),
        ({"encrypted_content": seal("made up\ud83d")}, "made up?", ()),
        ({"encrypted_content": seal("r"), "content": [{"type": "reasoning_text", "text": "r"}]}, "r", ()),
        (
            {"encrypted_content": seal("r"), "content": [{"type": "text", "text": "other"}]},
            "r",
            ("reasoning.content: `encrypted_content` is given too",),
        ),
        ({"encrypted_content": "gAAAA"}, None, (FOREIGN,)),
        ({"encrypted_content": "gAAAA", "content": [{"type": "reasoning_text", "text": "r"}]}, "r", (FOREIGN,)),
        ({"encrypted_content": seal("r")[:-4]}, None, (FOREIGN,)),
        ({"summary": SUMMARY}, "s", ("reasoning.summary: it stands for the reasoning",)),
        ({"summary": SUMMARY, "content": [{"type": "reasoning_text", "text": "r"}]}, "r", ()),
        ({"encrypted_content": None, "content": None, "summary": None}, None, ()),
        ({"encrypted_content": seal("")}, None, ()),
    ],
)
def test_where_reasoning_is_read_from(fields, text, phrases):
    call = parse(talk({"type": "reasoning", "id": "rs_1", **fields}, said("t")))
    expected = () if text is None else (Reasoning(text),)
    assert call.messages[1:] == (Message(Role.ASSISTANT, (*expected, Text("t"))),)
    assert call.dropped == phrases


def test_a_result_needs_no_call_where_the_request_goes_on_from_a_stored_reply():
    marked = {"type": "custom_tool_call_output", "call_id": "c2_verbatim", "output": "x"}
    call = parse(request(input=[output(), marked], previous_response_id="resp_a"))
    assert [m.parts[0].call_id for m in call.messages] == ["c1", "c2"]


# --- tools ------------------------------------------------------------------------------------------------------------


def test_tools_are_one_flat_list_of_functions():
    call = parse(request(tools=TOOLS))
    weather, patch, find, note = call.tools
    assert weather == ToolSpec("weather", WEATHER["description"], WEATHER["parameters"], strict=False)
    assert (patch.name, patch.freeform, patch.description) == ("apply_patch", True, "Edit files.")
    assert patch.parameters["required"] == [FREEFORM] and set(patch.parameters["properties"]) == {FREEFORM}
    told = patch.parameters["properties"][FREEFORM]
    assert told["type"] == "string" and PATCH["format"]["definition"] in told["description"] and "lark" in told["description"]
    assert (find.name, find.freeform, note.name, note.freeform) == ("crm__find", False, "crm__note", True)
    assert call.options["names"] == {"crm__find": ("crm", "find"), "crm__note": ("crm", "note")}
    assert call.dropped == (
        "tools.format grammar: sampling is not constrained",
        "tools.namespace.description: nested tools are listed flat",
        "tools.web_search: it is not served here",
    )


def test_tools_in_an_item_are_in_force_and_replace_those_before():
    newer = {**WEATHER, "description": "Newer."}
    lite = {
        "type": "additional_tools",
        "id": "at_1",
        "role": "developer",
        "tools": [{"type": "namespace", "name": "functions", "description": "", "tools": [PATCH, newer]}],
    }
    call = parse(request(tools=[WEATHER, SEARCH], input=[lite, HI]))
    assert [(t.name, t.description) for t in call.tools] == [("weather", "Newer."), ("apply_patch", "Edit files.")]
    assert call.messages == (USER,) and call.options["names"] == {}
    assert orjson.loads(call.options["tools"]) == [WEATHER, SEARCH]


def test_calls_in_the_history_have_flat_names_too():
    entries = [
        function_call("a", "find", namespace="crm"),
        function_call("b", "exec", namespace="functions"),
        function_call("c", "x", namespace="mcp__s__"),
        function_call("d", "gone", namespace="other"),
    ]
    names = [c.name for c in parse(talk(*entries, tools=[CRM])).messages[1].tool_calls]
    assert names == ["crm__find", "exec", "mcp__s__x", "other__gone"]


def test_flat_names_that_would_be_equal_are_numbered_and_found_again():
    plain = {"type": "function", "name": "crm__find"}
    also = {"type": "function", "name": "crm__find_2"}
    body = request(
        tools=[plain, also, CRM],
        input=[HI, function_call("a", "find", namespace="crm"), function_call("b", "crm__find")],
    )
    read = parsed(body)
    assert [t.name for t in read.call.tools] == ["crm__find", "crm__find_2", "crm__find_3", "crm__note"]
    assert [c.name for c in read.call.messages[1].tool_calls] == ["crm__find_3", "crm__find"]
    assert read.call.options["names"]["crm__find_3"] == ("crm", "find")
    assert read.read is None  # what these names mean depends on all the tools


@pytest.mark.parametrize(
    "kind",
    ["web_search", "web_search_preview", "file_search", "mcp", "code_interpreter", "local_shell", "tool_search", "shell"],
)
def test_tools_that_are_not_served_are_left_out_when_merely_offered(kind):
    call = parse(request(tools=[{"type": kind, "x": deep(90)}, WEATHER], tool_choice="auto"))
    assert [t.name for t in call.tools] == ["weather"]
    assert call.dropped == (f"tools.{kind}: it is not served here",)
    assert refused(request(tools=[{"type": kind}], tool_choice={"type": kind})).param == "tool_choice.type"
    assert refused(request(tools=[{"type": kind}], tool_choice="required")).param == "tool_choice"


def test_what_a_tool_says_beside():
    odd = {"defer_loading": True, "output_schema": {}, "allowed_callers": ["direct"], "async": True}
    call = parse(tool(strict=True, description=None, parameters=None, weird=1, **odd))
    assert call.tools == (ToolSpec("f", strict=True),)
    assert [phrase.partition(":")[0] for phrase in call.dropped] == [
        "tools.defer_loading",
        "tools.output_schema",
        "tools.allowed_callers",
        "tools.async",
        "unknown",
        "tools.strict",
    ]
    assert parse(tool(defer_loading=False)).dropped == ()


@pytest.mark.parametrize(
    ("choice", "read", "phrase"),
    [
        ("required", ToolChoice("required"), "tool_choice required"),
        ({"type": "function", "name": "weather"}, ToolChoice("named", "weather"), "tool_choice named"),
        ({"type": "custom", "name": "apply_patch"}, ToolChoice("named", "apply_patch"), "tool_choice named"),
        ({"type": "function", "name": "find", "namespace": "crm"}, ToolChoice("named", "crm__find"), "tool_choice named"),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "weather"}, {"type": "mcp"}]},
            ToolChoice("auto"),
            "tool_choice allowed_tools",
        ),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "apply_patch"}]},
            ToolChoice("required"),
            "tool_choice allowed_tools",
        ),
    ],
)
def test_a_choice_is_kept_and_recorded(choice, read, phrase):
    call = parse(request(tools=TOOLS, tool_choice=choice))
    assert call.tool_choice == read
    assert f"{phrase}: sampling is not constrained" in call.dropped


# --- what is dropped --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "phrase"),
    [
        ({"user": "u"}, "user: sessions are told apart by their secret"),
        ({"safety_identifier": "u"}, "safety_identifier: sessions are told apart by their secret"),
        ({"client_metadata": {"a": 1}}, "client_metadata: sessions are told apart by their secret"),
        ({"metadata": {"a": "b"}}, "metadata: it is repeated in the response and not kept"),
        ({"service_tier": "flex"}, "service_tier: there is one tier"),
        ({"prompt_cache_key": "k"}, "prompt_cache_key: there is no prompt cache to steer"),
        ({"prompt_cache_retention": "24h"}, "prompt_cache_retention: there is no prompt cache to steer"),
        ({"prompt_cache_options": {"mode": "explicit"}}, "prompt_cache_options: there is no prompt cache to steer"),
        ({"context_management": [{"type": "compaction"}]}, "context_management: conversations are not compacted here"),
        ({"max_tool_calls": 3}, "max_tool_calls: no tools are run here"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls: sampling is not constrained"),
        ({"truncation": "auto"}, "truncation auto: a prompt that does not fit is refused"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort: the run decides how the model thinks"),
        ({"reasoning": {"summary": "auto"}}, "reasoning.summary: the run decides how the model thinks"),
        ({"reasoning": {"x": 1}}, "unknown:reasoning.x"),
        ({"text": {"verbosity": "low"}}, "text.verbosity: the model has no such control"),
        ({"include": ["message.output_text.logprobs"]}, "include 'message.output_text.logprobs': there is no such thing here"),
        (
            {"stream_options": {"include_obfuscation": False}},
            "stream_options.include_obfuscation: the stream never leaves the machine",
        ),
        ({"stop": ["a"]}, "unknown:stop"),
        ({"input": [{**HI, "x": 1}]}, "unknown:input.x"),
        (
            {"input": [HI, {"type": "configuration_update", "reasoning": {"effort": "low"}}]},
            "configuration_update: the run decides how the model thinks",
        ),
    ],
)
def test_what_is_left_out_is_recorded(fields, phrase):
    call = parse(request(**fields))
    assert call.dropped == (phrase,) and call.messages == (USER,)


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        (request(model=...), "model", "missing_required_parameter"),
        (request(input=...), "input", "missing_required_parameter"),
        (request(input=[]), "input", "invalid_value"),
        (request(input=7), "input", "invalid_type"),
        (request(input=["hi"]), "input[0]", "invalid_type"),
        (request(input=[HI, 7]), "input[1]", "invalid_type"),
        (request(input=[HI, "hi"]), "input[1]", "invalid_type"),
        (request(instructions=7), "instructions", "invalid_type"),
        (request(background=True), "background", "unsupported_parameter"),
        (request(conversation="c"), "conversation", "unsupported_parameter"),
        (request(prompt={"id": "p"}), "prompt", "unsupported_parameter"),
        (request(top_logprobs=1), "top_logprobs", "unsupported_parameter"),
        (request(text={"format": {"type": "json_schema"}}), "text.format.type", "unsupported_parameter"),
        (request(text={"format": {"type": "json_object"}}), "text.format.type", "unsupported_parameter"),
        (request(truncation="middle"), "truncation", "invalid_value"),
        (request(max_output_tokens=0), "max_output_tokens", "invalid_value"),
        (request(max_output_tokens=True), "max_output_tokens", "invalid_type"),
        (request(temperature=2.1), "temperature", "invalid_value"),
        (request(metadata={"a": 1}), "metadata.a", "invalid_type"),
        (request(store="yes"), "store", "invalid_type"),
        (request(include=[1]), "include[0]", "invalid_type"),
        (request(previous_response_id=1), "previous_response_id", "invalid_type"),
        # items
        (request(input=[{"type": "wizard"}]), "input[0].type", "invalid_value"),
        (request(input=[{"type": [1]}]), "input[0].type", "invalid_type"),
        (request(input=[{"role": "wizard", "content": ""}]), "input[0].role", "invalid_value"),
        (request(input=[{"role": "tool", "content": ""}]), "input[0].role", "invalid_value"),
        (request(input=[{"content": "x"}]), "input[0].role", "missing_required_parameter"),
        (request(input=[{"role": "user"}]), "input[0].content", "missing_required_parameter"),
        (user({"type": "output_text", "text": "x"}), "input[0].content[0].type", "invalid_value"),
        (user({"type": "input_text"}), "input[0].content[0].text", "missing_required_parameter"),
        (user({"type": "input_file", "file_id": "f"}), "input[0].content[0].type", "unsupported_parameter"),
        (user({"type": "input_image", "file_id": "f"}), "input[0].content[0].file_id", "unsupported_parameter"),
        (user({"type": "input_image"}), "input[0].content[0].image_url", "missing_required_parameter"),
        (talk(output()), "input[1].call_id", "invalid_value"),
        (talk(CALL, output("c1_verbatim_verbatim")), "input[2].call_id", "invalid_value"),
        (talk(CALL, output(said=None)), "input[2].output", "missing_required_parameter"),
        (talk(CALL, output(said={})), "input[2].output", "invalid_type"),
        (talk(function_call(arguments={})), "input[1].arguments", "invalid_type"),
        (talk(function_call(call_id="")), "input[1].call_id", "invalid_value"),
        (talk(function_call(name=None)), "input[1].name", "missing_required_parameter"),
        (talk(function_call(caller={"type": "program", "caller_id": "p"})), "input[1].caller.type", "unsupported_parameter"),
        (talk({"type": "custom_tool_call", "call_id": "c", "name": "f"}), "input[1].input", "missing_required_parameter"),
        (talk({"type": "reasoning", "summary": "x"}), "input[1].summary", "invalid_type"),
        (talk({"type": "reasoning", "content": [{"type": "x", "text": ""}]}), "input[1].content[0].type", "invalid_value"),
        (talk({"type": "configuration_update", "text": {}}), "input[1].text", "unsupported_parameter"),
        # tools
        (request(tools={}), "tools", "invalid_type"),
        (request(tools=[{"type": "wizard"}]), "tools[0].type", "unsupported_parameter"),
        (request(tools=[{"type": "function"}]), "tools[0].name", "missing_required_parameter"),
        (request(tools=[{"type": "function", "function": {"name": "f"}}]), "tools[0].name", "missing_required_parameter"),
        (tool(parameters=[]), "tools[0].parameters", "invalid_type"),
        (tool(parameters=deep(100)), "tools[0].parameters", "invalid_value"),
        (request(tools=[{**PATCH, "format": {"type": "json"}}]), "tools[0].format.type", "unsupported_parameter"),
        (request(tools=[{**PATCH, "format": {"type": "grammar"}}]), "tools[0].format.syntax", "missing_required_parameter"),
        (request(tools=[{**CRM, "tools": [CRM]}]), "tools[0].tools[0].type", "unsupported_parameter"),
        (
            talk({"type": "additional_tools", "tools": [{"type": "function"}]}),
            "input[1].tools[0].name",
            "missing_required_parameter",
        ),
        (request(tool_choice="maybe"), "tool_choice", "invalid_value"),
        (request(tool_choice="required"), "tool_choice", "invalid_value"),
        (request(tools=TOOLS, tool_choice={"type": "function", "name": "find"}), "tool_choice.name", "invalid_value"),
        (request(tools=TOOLS, tool_choice={"type": "allowed_tools", "mode": "x"}), "tool_choice.mode", "invalid_value"),
        (
            request(
                tools=TOOLS, tool_choice={"type": "allowed_tools", "mode": "auto", "tools": [{"type": "custom", "name": "x"}]}
            ),
            "tool_choice.tools[0].name",
            "invalid_value",
        ),
        (
            request(tools=TOOLS, tool_choice={"type": "allowed_tools", "mode": "required", "tools": [SEARCH]}),
            "tool_choice.tools",
            "unsupported_parameter",
        ),
    ],
)
def test_what_is_refused_and_under_which_name(body, param, code):
    error = refused(body)
    assert (error.param, error.code, error.status) == (param, code, 400)
    assert param in error.message


@pytest.mark.parametrize(
    "kind",
    [
        *("item_reference", "local_shell_call", "local_shell_call_output", "shell_call", "apply_patch_call", "computer_call"),
        *("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "mcp_call", "program"),
        *("tool_search_call", "tool_search_output", "compaction", "compaction_trigger"),
    ],
)
def test_items_that_are_not_served_are_refused_by_name(kind):
    error = refused(talk({"type": kind, "id": "x"}))
    assert (error.param, error.code) == ("input[1].type", "unsupported_parameter")
    assert kind in error.message


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b'"x"', b"null"])
def test_a_body_that_is_no_object(body):
    assert refused(body).code == "invalid_json"


def test_a_tool_nested_past_what_can_be_written_again_is_left_out_of_the_response():
    body = b'{"model":"m","input":"hi","tools":[{"type":"function","name":"f","x":' + b"[" * 500 + b"]" * 500 + b"}]}"
    read = parsed(body)
    assert [t.name for t in read.call.tools] == ["f"]
    assert (read.call.options["tools"], read.read.tools_json) == (b"[]", None)
