# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What a codec and a reply parser are: messages to and from token ids, for one served model.

Pure and synchronous. A codec never re-encodes sampled ids: ``bridge`` returns only what comes *after* them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from nemo_polar.types import Delta, FinishReason, Message, TokenIds, ToolSpec


class ReplyParser(Protocol):
    """Parses one reply from its sampled ids, as they come.

    For every way to cut the ids into ``feed`` calls, the deltas joined are the same, and equal ``message()``.
    """

    stopped: str | None
    """The stop string that ended the visible text. Once set, the caller ends the sample; further ids change nothing."""

    def feed(self, ids: Sequence[int] | TokenIds) -> list[Delta]:
        """The deltas that these ids complete."""
        ...

    def finish(self, reason: FinishReason) -> list[Delta]:
        """The deltas held back until now. Call once."""
        ...

    def message(self) -> Message:
        """The whole reply. Valid after ``finish``."""
        ...


class Codec(Protocol):
    """Messages to ids and back, for one model."""

    name: str
    """Of the model family or template, for manifests and logs."""
    fingerprint: bytes
    """Hash of the template and of every option that changes what it renders."""
    stop_token_ids: tuple[int, ...]

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> TokenIds:
        """The whole conversation as a prompt, generation prompt included. int32[P].

        Raises:
            BadRequest: the family cannot express a message (an image for a text model); ``param`` names it.
            TokenError: the template itself failed.
        """
        ...

    def bridge(
        self, prompt_ids: TokenIds, sampled_ids: TokenIds, new: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> TokenIds | None:
        """What to append to ``prompt_ids + sampled_ids`` so that ``new`` messages follow and the model speaks next.

        Returns:
            int32[D], D > 0, the closing of a cut turn and the generation prompt included; None when the family cannot
            append these messages to sampled ids (then the tree forks).
        """
        ...

    def parser(
        self, prompt_ids: TokenIds, tools: Sequence[ToolSpec], *, stop: Sequence[str] = (), parse_calls: bool = True
    ) -> ReplyParser:
        """A parser for the reply to ``prompt_ids``. With ``parse_calls`` False, call blocks stay text (tool_choice none)."""
        ...

    def token_text(self, token_id: int) -> tuple[str, bytes]:
        """One token as text (replacement characters where it is a partial one) and as bytes."""
        ...

    def reasoning_tokens(self, reply: Message, sampled_ids: TokenIds) -> int:
        """How many of the ids that ``reply`` was parsed from are its reasoning, markers included."""
        ...

    def count(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> int:
        """Prompt tokens of a conversation."""
        ...
