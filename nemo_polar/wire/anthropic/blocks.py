# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Reading the content blocks of an Anthropic Messages request: one block, one part (or none, with a reason).

- The signature of a thinking block of ours holds its text, and restores it where a client kept less or only trimmed it. A
  text that was edited counts as it was sent. A foreign signature is ignored; where there is no text beside it, and in foreign
  ``redacted_thinking``, nothing can be read, and that is recorded.
- Text documents are text. What else the model cannot see (PDFs, search results, the blocks of server tools) is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nemo_polar.errors import BadRequest
from nemo_polar.types import Image, Part, Reasoning, Role, Text, ToolCall, ToolResult
from nemo_polar.wire.anthropic.input import tool_arguments
from nemo_polar.wire.fields import Dropped, Fields, invalid, shown, unsupported
from nemo_polar.wire.seal import unseal

_BLOCKS: Mapping[Role, tuple[str, ...]] = {
    Role.SYSTEM: ("text",),
    Role.USER: ("text", "image", "document", "tool_result"),
    Role.ASSISTANT: ("text", "thinking", "redacted_thinking", "tool_use"),
    Role.TOOL: ("text", "image", "document", "tool_reference"),
}
"""``TOOL`` stands for the content of a ``tool_result``."""
_FIELDS: Mapping[str, frozenset[str]] = {
    "text": frozenset({"type", "text", "citations"}),
    "image": frozenset({"type", "source"}),
    "document": frozenset({"type", "source", "title", "context", "citations"}),
    "tool_reference": frozenset({"type", "tool_name"}),
    "tool_result": frozenset({"type", "tool_use_id", "content", "is_error"}),
    "thinking": frozenset({"type", "thinking", "signature"}),
    "redacted_thinking": frozenset({"type", "data"}),
    "tool_use": frozenset({"type", "id", "name", "input", "caller"}),
}
_NOT_SEEN = frozenset({"server_tool_use", "mcp_tool_use", "container_upload", "search_result", "browser_state", "compaction"})
"""With all ``..._tool_result``: blocks that Anthropic's API has and this model cannot be shown."""


@dataclass(slots=True)
class Reader:
    """Reads blocks in the order of the conversation."""

    deferred: Mapping[str, str] = field(default_factory=dict)
    """Definitions of tools that a ``tool_reference`` brings in, by name."""
    dropped: Dropped = field(default_factory=Dropped)
    calls: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Place and name of each call read so far, by id."""
    made: int = 0
    """How many there were."""

    def note(self, call: ToolCall) -> None:
        """``call`` was made: results may follow."""
        self.calls[call.id] = self.made, call.name
        self.made += 1

    def place(self, result: ToolResult) -> int:
        """That of its call among all calls."""
        return self.calls[result.call_id][0]

    def part(self, block: Fields, role: Role) -> Part | None:
        """The part that ``block`` is; None when nothing of it is kept.

        Raises:
            BadRequest: ``role`` has no such block, a wrong type, a result whose call was never made.
        """
        kind = block.string("type")
        if kind not in _BLOCKS[role]:
            raise _refused(block, kind, role)
        if not _FIELDS[kind].issuperset(block.raw):
            self.dropped.unknown(block, _FIELDS[kind], f"messages.content.{kind}.")
        match kind:
            case "text":
                return self._text(block)
            case "tool_use":
                return self._call(block)
            case "tool_result":
                return self._result(block)
            case "thinking":
                return self._thinking(block)
            case "redacted_thinking":
                return self._sealed(block.string("data"))
            case "image":
                return _image(block)
            case "document":
                return self._document(block)
            case _:
                return self._reference(block)

    def _text(self, block: Fields) -> Text | None:
        if block.array("citations"):
            self.dropped.add("messages.content.citations: the model is shown text only")
        text = block.string("text")
        return Text(text) if text else None

    def _call(self, block: Fields) -> ToolCall:
        if "input" not in block.raw:
            raise block.missing("input")
        arguments = tool_arguments(block.raw["input"], block.at("input"))
        caller = block.optional_child("caller")
        if caller is not None and caller.raw.get("type") != "direct":
            self.dropped.add("messages.content.caller: only the model itself calls tools")
        call = ToolCall(block.nonempty_string("id"), block.nonempty_string("name"), arguments)
        self.note(call)
        return call

    def _result(self, block: Fields) -> ToolResult:
        call_id = block.nonempty_string("tool_use_id")
        if call_id not in self.calls:
            problem = f"no earlier assistant message made a call with the id {shown(call_id)}"
            raise invalid(block.at("tool_use_id"), problem)
        content = block.string_or_objects("content")
        if isinstance(content, str):
            parts = (Text(content),) if content else ()
        else:
            read = (self.part(inner, Role.TOOL) for inner in content or ())
            parts = tuple(part for part in read if isinstance(part, Text | Image))
        return ToolResult(call_id, parts, self.calls[call_id][1], block.boolean("is_error"))

    def _thinking(self, block: Fields) -> Reasoning | None:
        text = block.string("thinking")
        signature = block.optional_string("signature") or ""
        ours = unseal(signature)
        if ours is not None and text.strip() in ("", ours.strip()):
            text = ours
        if text:
            return Reasoning(text)
        if signature and ours is None:
            self.dropped.add("messages.content.thinking: not of this model, and without text")
        return None

    def _sealed(self, data: str) -> Reasoning | None:
        text = unseal(data)
        if text is None:
            self.dropped.add("messages.content.redacted_thinking: not of this model")
        return Reasoning(text) if text else None

    def _document(self, block: Fields) -> Text | None:
        source = block.child("source")
        kind = source.string("type")
        if kind != "text":
            raise unsupported(source.at("type"), f"the model takes documents of plain text, not {shown(kind)}")
        for left_out in ("title", "context", "citations"):
            if block.given(left_out):
                self.dropped.add(f"messages.content.document.{left_out}: the model is shown the text only")
        text = source.string("data")
        return Text(text) if text else None

    def _reference(self, block: Fields) -> Text:
        name = block.nonempty_string("tool_name")
        return Text(self.deferred.get(name) or f"{name}\n")


def _image(block: Fields) -> Image:
    source = block.child("source")
    kind = source.string("type")
    if kind == "url":
        return Image(source.nonempty_string("url"))
    if kind != "base64":
        raise unsupported(source.at("type"), f"an image is a URL or base64, not {shown(kind)}")
    media_type = source.nonempty_string("media_type")
    return Image(f"data:{media_type};base64,{source.nonempty_string('data')}", media_type)


def _refused(block: Fields, kind: str, role: Role) -> BadRequest:
    path = block.at("type")
    if kind in _NOT_SEEN or kind.endswith("_tool_result"):
        return unsupported(path, f"the model takes no {shown(kind)} blocks")
    where = "a tool_result" if role is Role.TOOL else f"{role.value} content"
    return invalid(path, f"a block of {where} is one of {', '.join(_BLOCKS[role])}; got {shown(kind)}")
