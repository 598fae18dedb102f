# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from nemo_polar.engines.chat_body import chat_body
from nemo_polar.types import (
    Image,
    Message,
    ModelCall,
    Reasoning,
    Role,
    Text,
    ToolCall,
    ToolChoice,
    ToolResult,
    ToolSpec,
)


def messages(*given: Message) -> list[dict]:
    return chat_body(ModelCall(messages=given))["messages"]


def test_a_conversation_with_tools_keeps_every_part():
    assert messages(
        Message(Role.SYSTEM, (Text("be "), Text("brief"))),
        Message(Role.DEVELOPER, (Text("dev"),)),
        Message(Role.USER, (Text("hi"),), name="ann"),
        Message(Role.ASSISTANT, (Reasoning("hm"), Text("ok"), ToolCall("c1", "ls", '{"a": 1'), ToolCall("c2", "cat", "{}"))),
        Message(Role.TOOL, (ToolResult("c1", (Text("x"),), "ls"), ToolResult("c2", (Text("y"), Text("z"))))),
    ) == [
        {"role": "system", "content": "be brief"},
        {"role": "developer", "content": "dev"},
        {"role": "user", "name": "ann", "content": "hi"},
        {
            "role": "assistant",
            "content": "ok",
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": '{"a": 1'}},
                {"id": "c2", "type": "function", "function": {"name": "cat", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "x", "name": "ls"},
        {"role": "tool", "tool_call_id": "c2", "content": "yz"},
    ]


def test_a_result_and_text_in_one_user_message_become_two_messages_the_result_first():
    assert messages(Message(Role.USER, (Text("go on"), ToolResult("c1", (Text("x"),))))) == [
        {"role": "tool", "tool_call_id": "c1", "content": "x"},
        {"role": "user", "content": "go on"},
    ]


def test_an_image_makes_the_content_a_list():
    assert messages(Message(Role.USER, (Text("see"), Image("data:image/png;base64,AA=="))))[0]["content"] == [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
    ]


def test_an_assistant_message_of_calls_alone_has_null_content_and_an_empty_one_an_empty_string():
    calls, empty = messages(Message(Role.ASSISTANT, (ToolCall("c", "f", "{}"),)), Message(Role.ASSISTANT, ()))
    assert calls["content"] is None and empty == {"role": "assistant", "content": ""}


def test_tools_and_the_choices_that_can_be_honoured():
    spec = ToolSpec("ls", "list", {"type": "object"}, strict=True)
    for mode, sent in (("auto", "auto"), ("none", "none"), ("required", "auto"), ("named", "auto")):
        body = chat_body(ModelCall(messages=(), tools=(spec,), tool_choice=ToolChoice(mode, "ls")))  # type: ignore[arg-type]
        assert body["tool_choice"] == sent
        assert body["tools"] == [
            {
                "type": "function",
                "function": {"name": "ls", "description": "list", "parameters": {"type": "object"}, "strict": True},
            }
        ]
    assert "tool_choice" not in chat_body(ModelCall(messages=(), tool_choice=ToolChoice("none")))
