# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Gemini requests: what is honoured, what is dropped, what is refused and under which name."""

from __future__ import annotations

import orjson
import pytest

from nemo_polar.errors import BadRequest
from nemo_polar.types import (
    Message,
    Role,
    SamplingParams,
    Text,
    ToolChoice,
    ToolSpec,
)
from nemo_polar.wire.base import Route
from tests.support.gemini import (
    DIALECT,
    HELLO,
    WEATHER,
    function_call,
    function_response,
    model,
    parse,
    request,
    route,
    talk,
    user,
)


def config(**fields):
    return request(generationConfig=fields)


def function(**fields):
    return request(tools=[{"functionDeclarations": [{"name": "f", **fields}]}])


def schema(**fields):
    return parse(function(parameters=fields)).tools[0].parameters


def calling(**fields):
    return request(tools=[WEATHER], toolConfig={"functionCallingConfig": fields})


def deep(levels, bottom=None):
    value = {} if bottom is None else bottom
    for _ in range(levels):
        value = {"a": value}
    return value


def refused(body) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        parse(body)
    return caught.value


# --- what is honoured -------------------------------------------------------------------------------------------------


def test_a_plain_request():
    call = parse(request())
    assert call.messages == (Message(Role.USER, (Text("hi"),)),)
    assert (call.model, call.dialect, call.stream, call.tools, call.dropped) == ("polar", "gemini", False, (), ())
    assert call.sampling == SamplingParams()
    assert parse(request(), route(stream=True)).stream


def test_every_sampling_field():
    call = parse(
        config(
            temperature=0,
            topP=0.5,
            topK=40.0,
            maxOutputTokens=7,
            stopSequences=["a", "b"],
            seed=-3,
            presencePenalty=1,
            frequencyPenalty=-2,
            candidateCount=1,
            responseMimeType="text/plain",
            responseModalities=["TEXT"],
            responseLogprobs=True,
            logprobs=0,
        )
    )
    assert call.sampling == SamplingParams(
        temperature=0, top_p=0.5, top_k=40, max_tokens=7, stop=("a", "b"), seed=-3, presence_penalty=1, frequency_penalty=-2
    )
    assert call.want_logprobs and call.dropped == ()


SAME_IN_SNAKE_CASE = {
    "contents": [
        HELLO,
        {
            "role": "model",
            "parts": [{"function_call": {"name": "weather", "args": {"snake_key": 1}}, "thought_signature": "x"}],
        },
        {"parts": [{"function_response": {"name": "weather", "response": {"snake_key": 1}}}]},
        {"role": "user", "parts": [{"inline_data": {"mime_type": "image/png", "data": "AA_-"}}]},
    ],
    "system_instruction": {"parts": [{"text": "Be brief."}]},
    "generation_config": {
        "max_output_tokens": 7,
        "top_k": 3,
        "stop_sequences": ["x"],
        "thinking_config": {"include_thoughts": True, "thinking_budget": 1},
        "presence_penalty": 1,
    },
    "tools": [
        {"function_declarations": [{"name": "f", "parameters": {"type": "ARRAY", "max_items": "3"}}], "google_search": {}}
    ],
    "tool_config": {"function_calling_config": {"mode": "ANY", "allowed_function_names": ["f"]}},
    "safety_settings": [],
}


def test_names_in_snake_case_are_names_in_camel_case():
    def camel(value):
        if isinstance(value, list):
            return [camel(v) for v in value]
        if not isinstance(value, dict):
            return value
        keys = {key: "".join(w.capitalize() if i else w for i, w in enumerate(key.split("_"))) for key in value}
        return {key if key == "snake_key" else keys[key]: camel(v) for key, v in value.items()}

    assert parse(SAME_IN_SNAKE_CASE) == parse(camel(SAME_IN_SNAKE_CASE))
    call = parse(SAME_IN_SNAKE_CASE)
    assert call.messages[2].tool_calls[0].arguments == '{"snake_key":1}' and call.messages[3].role is Role.TOOL
    assert call.options["include_thoughts"] and call.sampling.max_tokens == 7
    assert call.tool_choice == ToolChoice("named", "f") and call.tools[0].parameters == {"type": "array", "maxItems": 3}


def test_a_field_in_both_spellings_is_refused():
    error = refused(request(system_instruction="a", systemInstruction="b"))
    assert error.param == "systemInstruction"
    assert parse(request(system_instruction=None, systemInstruction="b")).messages[0].text == "b"


@pytest.mark.parametrize(
    "instruction",
    [
        "Be brief.",
        {"parts": [{"text": "Be "}, {"text": "brief."}]},
        {"role": "system", "parts": {"text": "Be brief."}},
        {"role": "user", "parts": [{"text": "Be brief."}]},
    ],
)
def test_a_system_instruction_in_any_form(instruction):
    assert parse(request(systemInstruction=instruction)).messages[0] == Message(Role.SYSTEM, (Text("Be brief."),))


@pytest.mark.parametrize("instruction", ["", {"parts": [{"text": ""}]}, {"parts": []}, None])
def test_a_system_instruction_that_says_nothing_is_no_message(instruction):
    assert [m.role for m in parse(request(systemInstruction=instruction)).messages] == [Role.USER]


def test_one_object_stands_for_an_array_of_one():
    one = {"contents": {"parts": {"text": "hi"}}, "tools": {"functionDeclarations": {"name": "f"}}}
    assert parse(one) == parse(
        {"contents": [{"parts": [{"text": "hi"}]}], "tools": [{"functionDeclarations": [{"name": "f"}]}]}
    )


# --- tools ------------------------------------------------------------------------------------------------------------


def test_functions_with_either_schema():
    assert parse(request(tools=[WEATHER])).tools == (
        ToolSpec("weather", "Weather of a place.", WEATHER["functionDeclarations"][0]["parametersJsonSchema"]),
    )
    assert parse(function(parametersJsonSchema={"type": "OBJECT"})).tools[0].parameters == {"type": "OBJECT"}
    assert parse(function()).tools == (ToolSpec("f"),)


def test_googles_schema_is_put_into_the_words_of_json_schema():
    assert schema(
        type="OBJECT",
        properties={
            "type": {"type": "STRING", "nullable": True, "enum": ["A", "B"]},
            "max_items": {"type": "ARRAY", "items": {"type": "INTEGER", "format": "int32"}, "minItems": "1"},
            "either": {"any_of": [{"type": "NUMBER"}, {"type": "BOOLEAN"}], "nullable": True},
            "any": {"type": "TYPE_UNSPECIFIED", "description": "d"},
        },
        required=["type"],
        propertyOrdering=["type"],
    ) == {
        "type": "object",
        "properties": {
            "type": {"type": ["string", "null"], "enum": ["A", "B", None]},
            "max_items": {"type": "array", "items": {"type": "integer", "format": "int32"}, "minItems": 1},
            "either": {"anyOf": [{"type": "number"}, {"type": "boolean"}, {"type": "null"}]},
            "any": {"description": "d"},
        },
        "required": ["type"],
    }


def test_a_schema_that_is_json_schema_already_stays_as_it_is():
    already = {"type": ["string", "null"], "additionalProperties": {"type": "string"}, "$ref": "#/x", "x_y": 1, "minLength": 2}
    assert schema(**already) == already


@pytest.mark.parametrize(
    ("fields", "choice", "dropped"),
    [
        ({}, ToolChoice(), None),
        ({"mode": "AUTO"}, ToolChoice(), None),
        ({"mode": "MODE_UNSPECIFIED"}, ToolChoice(), None),
        ({"mode": "NONE"}, ToolChoice("none"), None),
        ({"mode": "ANY"}, ToolChoice("required"), "mode ANY: sampling is not constrained"),
        ({"mode": "ANY", "allowedFunctionNames": ["weather"]}, ToolChoice("named", "weather"), "mode ANY: sampling"),
        ({"mode": "VALIDATED"}, ToolChoice(), "mode VALIDATED: sampling is not constrained"),
        ({"allowedFunctionNames": ["weather"]}, ToolChoice(), "allowedFunctionNames: sampling is not constrained"),
    ],
)
def test_tool_choice(fields, choice, dropped):
    call = parse(calling(**fields))
    assert call.tool_choice == choice
    assert [dropped in phrase for phrase in call.dropped] == [True] if dropped else call.dropped == ()


# --- what is dropped --------------------------------------------------------------------------------------------------


def test_what_is_dropped_is_named_with_its_reason():
    call = parse(
        request(
            safetySettings=[{"category": "x"}],
            labels={"a": "b"},
            model="models/other",
            tools=[{"googleSearch": {}, "functionDeclarations": [{"name": "f", "response": {}, "behavior": "BLOCKING"}]}],
            toolConfig={"retrievalConfig": {}},
            generationConfig={"mediaResolution": "LOW", "thinkingConfig": {"thinkingLevel": "HIGH"}, "odd": 1},
            contents=[user({"text": "hi", "videoMetadata": {}, "new": 1})],
            other=1,
        )
    )
    assert call.model == "polar" and [tool.name for tool in call.tools] == ["f"]
    assert sorted(call.dropped) == [
        "contents.parts.videoMetadata: the model takes no video",
        "generationConfig.mediaResolution: the model's renderer decides on resolution",
        "generationConfig.thinkingConfig.thinkingLevel: the run decides how the model thinks",
        "labels: nothing is stored for the client",
        "model: the URL names it",
        "safetySettings: nothing is moderated",
        "toolConfig.retrievalConfig: nobody here runs it for the model",
        "tools.functionDeclarations.behavior: every result comes in a request of its own",
        "tools.functionDeclarations.response: the model is not told what a tool returns",
        "tools.googleSearch: nobody here runs it for the model",
        "unknown:contents.parts.new",
        "unknown:generationConfig.odd",
        "unknown:other",
    ]


# --- what is refused --------------------------------------------------------------------------------------------------

IMAGE = {"inlineData": {"mimeType": "image/png", "data": "AA=="}}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (request(contents=...), "contents"),
        (request(contents=[]), "contents"),
        (request(contents="hi"), "contents"),
        (talk(HELLO, 7), "contents[1]"),
        (talk({"role": "system", "parts": [{"text": "x"}]}), "contents[0].role"),
        (talk({"role": 1, "parts": [{"text": "x"}]}), "contents[0].role"),
        (talk({"role": "user"}), "contents[0].parts"),
        (talk(user()), "contents[0].parts"),
        (talk(user({})), "contents[0].parts[0]"),
        (talk(user({"text": 1})), "contents[0].parts[0].text"),
        (talk(user({"text": "a", **IMAGE})), "contents[0].parts[0]"),
        (talk(user({"text": "a", "thought": True})), "contents[0].parts[0].thought"),
        (talk(user({"text": "a", "thought": "yes"})), "contents[0].parts[0].thought"),
        (talk(user(function_call())), "contents[0].parts[0].functionCall"),
        (talk(HELLO, model(function_response())), "contents[1].parts[0].functionResponse"),
        (talk(HELLO, model({"text": "a"}), model(IMAGE)), "contents[2].parts[0].inlineData"),
        (talk(HELLO, model({"text": "a", "thoughtSignature": 1})), "contents[1].parts[0].thoughtSignature"),
        (talk(HELLO, model({"functionCall": {"args": {}}})), "contents[1].parts[0].functionCall.name"),
        (talk(HELLO, model(function_call(args=[1]))), "contents[1].parts[0].functionCall.args"),
        (talk(HELLO, model(function_call(args=deep(300)))), "contents[1].parts[0].functionCall.args"),
        (talk(user({"executableCode": {}})), "contents[0].parts[0].executableCode"),
        (talk(user({"code_execution_result": {}})), "contents[0].parts[0].codeExecutionResult"),
        (talk(user({"inlineData": {"mimeType": "audio/wav", "data": "AA=="}})), "contents[0].parts[0].inlineData"),
        (talk(user({"inlineData": {"data": "AA=="}})), "contents[0].parts[0].inlineData.mimeType"),
        (talk(user({"inlineData": {"mimeType": "image/png"}})), "contents[0].parts[0].inlineData.data"),
        (talk(user({"inlineData": {"mimeType": "image/png;x,", "data": "A"}})), "contents[0].parts[0].inlineData.mimeType"),
        (talk(user({"fileData": {"fileUri": "files/x"}})), "contents[0].parts[0].fileData"),
        (talk(user({"fileData": {"fileUri": "x", "mimeType": "application/pdf"}})), "contents[0].parts[0].fileData"),
        (talk(user(function_response())), "contents[0].parts[0].functionResponse.name"),
        (talk(HELLO, model(function_call()), user(function_response("time"))), "contents[2].parts[0].functionResponse.name"),
        (
            talk(HELLO, model(function_call()), user(function_response(), function_response())),
            "contents[2].parts[1].functionResponse.name",
        ),
        (
            talk(HELLO, model(function_call()), user({"functionResponse": {"name": "weather"}})),
            "contents[2].parts[0].functionResponse.response",
        ),
        (
            talk(HELLO, model(function_call()), user(function_response(response="rain"))),
            "contents[2].parts[0].functionResponse.response",
        ),
        (request(systemInstruction=7), "systemInstruction"),
        (request(systemInstruction={"parts": [IMAGE]}), "systemInstruction.parts[0].inlineData"),
        (request(cachedContent="x"), "cachedContent"),
        (request(tools="x"), "tools"),
        (request(tools=[{"functionDeclarations": [{}]}]), "tools[0].functionDeclarations[0].name"),
        (function(parameters=deep(70)), "tools[0].functionDeclarations[0].parameters"),
        (function(parameters={}, parametersJsonSchema={}), "tools[0].functionDeclarations[0].parameters"),
        (calling(mode="SOME"), "toolConfig.functionCallingConfig.mode"),
        (calling(allowedFunctionNames=["x"]), "toolConfig.functionCallingConfig.allowedFunctionNames"),
        (request(toolConfig={"functionCallingConfig": {"mode": "ANY"}}), "toolConfig.functionCallingConfig.mode"),
        (config(candidateCount=2), "generationConfig.candidateCount"),
        (config(logprobs=3), "generationConfig.logprobs"),
        (config(responseMimeType="application/json"), "generationConfig.responseMimeType"),
        (config(responseSchema={"type": "STRING"}), "generationConfig.responseSchema"),
        (config(response_json_schema={}), "generationConfig.responseJsonSchema"),
        (config(_responseJsonSchema={}), "generationConfig.responseJsonSchema"),
        (config(responseModalities=["AUDIO"]), "generationConfig.responseModalities"),
        (config(speechConfig={}), "generationConfig.speechConfig"),
        (config(temperature=3), "generationConfig.temperature"),
        (config(topK=1.5), "generationConfig.topK"),
        (config(topK=True), "generationConfig.topK"),
        (config(maxOutputTokens=0), "generationConfig.maxOutputTokens"),
        (config(stopSequences=[""]), "generationConfig.stopSequences"),
        (config(stopSequences=list("abcdef")), "generationConfig.stopSequences"),
        (config(thinkingConfig={"includeThoughts": 1}), "generationConfig.thinkingConfig.includeThoughts"),
        (request(generationConfig=[]), "generationConfig"),
    ],
)
def test_what_is_refused_is_named(body, param):
    assert refused(body).param == param


def test_constrained_sampling_is_refused_with_what_would_be_needed():
    assert "no guided decoding" in refused(config(responseSchema={"type": "STRING"})).message


# --- counting tokens --------------------------------------------------------------------------------------------------

COUNT = Route("count_tokens", model="polar")


def test_a_count_is_of_the_body_or_of_the_request_in_it():
    whole = request(systemInstruction="Be brief.", tools=[WEATHER])
    alone = DIALECT.parse(orjson.dumps(whole), COUNT).call
    inside = DIALECT.parse(orjson.dumps({"generateContentRequest": {"model": "models/polar", **whole}}), COUNT).call
    assert (alone.messages, alone.tools) == (inside.messages, inside.tools) == (parse(whole).messages, parse(whole).tools)
    assert alone.model == "polar" and not alone.stream


def test_an_error_in_the_request_to_count_is_named_by_its_place():
    for body, param in (
        ({"generateContentRequest": {"contents": [7]}}, "generateContentRequest.contents[0]"),
        ({"generateContentRequest": request(), **request()}, "contents"),
        ({}, "contents"),
    ):
        with pytest.raises(BadRequest) as caught:
            DIALECT.parse(orjson.dumps(body), COUNT)
        assert caught.value.param == param
