# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What both codecs share: roles, quoting, prefill, parsers, counts. How ids are rendered and bridged is theirs."""

from __future__ import annotations

import hashlib
import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

from nemo_polar.errors import BadRequest, PolarError, TokenError
from nemo_polar.tokens.base import ReplyParser
from nemo_polar.tokens.messages import message_dicts, refuse_images, tool_dicts
from nemo_polar.tokens.parser import IncrementalParser
from nemo_polar.tokens.reply_format import ReplyFormat
from nemo_polar.tokens.roles import RoleMap
from nemo_polar.tokens.tokenizer import Tokenizer
from nemo_polar.types import Message, Role, Text, TokenIds, ToolSpec, as_ids

Dicts: TypeAlias = list[dict[str, Any]]
SpecialPolicy: TypeAlias = Literal["escape", "as_template"]

_TAIL = 256
"""Ids at the end of a prompt among which a generation prompt is looked for."""


class BaseCodec(ABC):
    """A ``Codec`` but for ``_render`` and ``_bridge``. Safe to share between threads."""

    def __init__(
        self,
        name: str,
        tokenizer: Tokenizer,
        format: ReplyFormat,
        roles: RoleMap,
        *,
        special_tokens_in_text: SpecialPolicy = "escape",
        identity: dict[str, Any],
    ):
        """``identity``: everything else that changes what is rendered, as JSON."""
        self.name = name
        self.tokenizer = tokenizer
        self.format = format
        self.roles = roles
        self.stop_token_ids: tuple[int, ...] = tuple(sorted(format.end_ids))
        self.quoted_specials = 0
        """Special tokens found written out in text, and made ordinary, since the codec was loaded."""
        self._escape = special_tokens_in_text == "escape"
        self._lock = threading.Lock()
        whole = {"name": name, "roles": repr(roles), "special_tokens_in_text": special_tokens_in_text, **identity}
        written = json.dumps(whole, sort_keys=True, default=str).encode()
        self.fingerprint = hashlib.sha256(tokenizer.fingerprint + written).digest()

    # --- the protocol -------------------------------------------------------------------------------------------------

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> TokenIds:
        """See ``Codec.render``. A last message from the assistant is taken as the beginning of the reply."""
        return self._rendered(messages, tools, self._counted_quote)

    def bridge(
        self, prompt_ids: TokenIds, sampled_ids: TokenIds, new: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> TokenIds | None:
        """See ``Codec.bridge``. The cost is that of ``new``; of ``prompt_ids`` only the last turn's tail is read."""
        if not new or any(m.role is Role.ASSISTANT for m in new):
            return None
        for message in new:
            refuse_images(message, "messages")
        dicts = message_dicts(self.roles.apply(new, opening=False), self._counted_quote)
        return self._bridge(prompt_ids, sampled_ids, dicts, tools)

    def parser(
        self, prompt_ids: TokenIds, tools: Sequence[ToolSpec], *, stop: Sequence[str] = (), parse_calls: bool = True
    ) -> ReplyParser:
        return IncrementalParser(  # type: ignore[return-value]  # its `stopped` is read-only
            self.tokenizer,
            self.format,
            in_reasoning=self.in_reasoning(prompt_ids),
            stop=stop,
            parse_calls=parse_calls,
            tools=tools,
        )

    def token_text(self, token_id: int) -> tuple[str, bytes]:
        raw = self.tokenizer.token_bytes(token_id)
        return raw.decode("utf-8", "replace"), raw

    def count(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> int:
        return len(self._rendered(messages, tools, self._quote))

    # --- what a codec adds --------------------------------------------------------------------------------------------

    @abstractmethod
    def _render(self, messages: Dicts, tools: Dicts) -> list[int]:
        """Ids of quoted messages, generation prompt included. Whatever it raises is taken as the template's failure."""

    @abstractmethod
    def _bridge(self, prompt_ids: TokenIds, sampled_ids: TokenIds, new: Dicts, tools: Sequence[ToolSpec]) -> TokenIds | None:
        """As ``bridge``, for quoted messages, at least one and none of them the assistant's."""

    # --- shared -------------------------------------------------------------------------------------------------------

    def in_reasoning(self, prompt_ids: TokenIds) -> bool:
        """True when ``prompt_ids`` end inside a reasoning block that their generation prompt opened."""
        if self.format.reasoning is None:
            return False
        opener, closer = self.format.reasoning
        if opener.id is None or closer.id is None:
            text = self.tokenizer.decode(self._last_turn(prompt_ids))
            return text.rfind(opener.text) > text.rfind(closer.text)
        for token_id in reversed(memoryview(prompt_ids[-_TAIL:])):
            if token_id in self.format.end_ids or token_id in (opener.id, closer.id):
                return token_id == opener.id
        return False

    def reasoning_open(self, prompt_ids: TokenIds, sampled_ids: TokenIds) -> bool:
        """True when a turn was cut inside its reasoning: one block at the start, which its closer or the first call ends."""
        if self.format.reasoning is None:
            return False
        opener, closer = self.format.reasoning
        text = self.tokenizer.decode(sampled_ids)
        if not self.in_reasoning(prompt_ids) and not text.lstrip().startswith(opener.text):
            return False
        return closer.text not in text and (self.format.call is None or self.format.call[0].text not in text)

    def reasoning_tokens(self, reply: Message, sampled_ids: TokenIds) -> int:
        """See ``Codec.reasoning_tokens``."""
        if reply.reasoning is None or self.format.reasoning is None:
            return 0
        closed = self._through(self.format.reasoning[1].text, sampled_ids)
        if closed is None and reply.tool_calls and self.format.call is not None:
            closed = self._through(self.format.call[0].text, sampled_ids)
        return len(sampled_ids) if closed is None else closed

    def _through(self, text: str, ids: TokenIds) -> int | None:
        """How many ids it takes until ``text`` has been written; None when it never is."""
        wanted = text.encode()
        seen = b""
        for n, token_id in enumerate(ids.tolist(), 1):
            seen = seen[-len(wanted) :] + self.tokenizer.token_bytes(token_id)
            if wanted in seen:
                return n
        return None

    def _last_turn(self, prompt_ids: TokenIds) -> TokenIds:
        """The ids after the last end of turn, ``_TAIL`` at most: what the template wrote for the model to go on from."""
        tail = prompt_ids[-_TAIL:]
        # Read from the end, where a handful of ids decide: `np.isin` over the tail costs ten times as much.
        for n, token_id in enumerate(reversed(memoryview(tail))):
            if token_id in self.format.end_ids:
                return tail[len(tail) - n :]
        return tail

    def _rendered(self, messages: Sequence[Message], tools: Sequence[ToolSpec], quote: Callable[[str], str]) -> TokenIds:
        if not messages:
            raise BadRequest("messages: at least one message is needed.", param="messages")
        for n, message in enumerate(messages):
            refuse_images(message, f"messages[{n}]")
        prefill = messages[-1] if messages[-1].role is Role.ASSISTANT else None
        before = messages if prefill is None else messages[:-1]
        try:
            dicts = message_dicts(self.roles.apply(before), quote)
            ids = self._render(dicts, tool_dicts(tools, quote))
        except PolarError:
            raise
        except Exception as exc:  # a template is a program of somebody else's
            raise TokenError(f"the chat template of {self.name} cannot render this conversation: {exc}") from exc
        if prefill is not None:
            ids = ids + self._prefill(prefill, len(before), as_ids(ids), quote)
        return as_ids(ids)

    def _prefill(self, message: Message, position: int, prompt_ids: TokenIds, quote: Callable[[str], str]) -> list[int]:
        param = f"messages[{position}]"
        if not all(isinstance(part, Text) for part in message.parts):
            raise BadRequest(f"{param}: a reply can be begun with text only, not with reasoning or tool calls.", param=param)
        if self.in_reasoning(prompt_ids):
            raise BadRequest(f"{param}: {self.name} begins every reply with reasoning; it cannot be begun for it.", param=param)
        return self.tokenizer.encode(quote(message.text))

    def _quote(self, text: str) -> str:
        return self.tokenizer.quote(text, specials=self._escape)[0]

    def _counted_quote(self, text: str) -> str:
        quoted, count = self.tokenizer.quote(text, specials=self._escape)
        if count:
            with self._lock:
                self.quoted_specials += count
        return quoted
