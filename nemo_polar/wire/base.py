# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What a provider dialect is: pure functions between the provider's JSON or SSE and the nouns.

A dialect never touches a socket, a clock or a token id. One instance serves all sessions; what one streamed answer needs to
remember lives in the ``StreamEncoder`` it hands out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from nemo_polar.errors import CallError
from nemo_polar.types import Delta, ModelCall, Reply
from nemo_polar.wire.history import Parsed, Read


@dataclass(frozen=True, slots=True)
class Route:
    """What a request line asks for."""

    kind: Literal["generate", "models", "model", "count_tokens", "probe", "websocket"]
    """``probe``: a reachability check the vendor's client makes; answered 200 with an empty body. ``websocket``: what can be
    had over HTTP is asked for over a websocket; refused at once, whoever asks, so that the client falls back."""
    model: str | None = None
    """Set where the provider puts the model name (or the id asked for) into the URL."""
    stream: bool | None = None
    """Set where the provider says so in the URL."""
    form: Literal["sse", "array"] = "sse"
    """How a streamed answer is framed, where the URL says so: events, or the entries of one JSON array."""


class StreamEncoder(Protocol):
    """Turns one reply into the provider's event stream. Joined, the bytes of all methods are a complete, valid stream."""

    content_type: str
    """Of the answer, e.g. ``text/event-stream; charset=utf-8``."""

    def start(self) -> bytes:
        """What goes before the first delta; may be empty."""
        ...

    def delta(self, delta: Delta) -> bytes:
        """Text or reasoning as it comes, or one whole tool call."""
        ...

    def keep_alive(self) -> bytes:
        """Bytes that hold the connection open and mean nothing."""
        ...

    def finish(self, reply: Reply) -> bytes:
        """The terminal events. Sent only once the reply is journalled."""
        ...

    def error(self, exc: CallError) -> bytes:
        """The provider's way to say that a stream under way has failed."""
        ...


class Dialect(Protocol):
    """One provider API."""

    name: str

    def recognise(self, method: str, path: str, headers: Mapping[str, str], query: Mapping[str, str]) -> Route | None:
        """The route this request is for, or None when it is not of this dialect. ``path`` carries no query."""
        ...

    def secret(self, headers: Mapping[str, str], query: Mapping[str, str]) -> str | None:
        """The session secret, from where the provider's clients put their API key."""
        ...

    def parse(self, body: bytes, route: Route, history: Sequence[Read] = ()) -> Parsed:
        """The call in ``body``. What it repeats of an earlier request in ``history`` may be taken over from there, as the same
        objects; the call is equal with any history and with none.

        Raises:
            BadRequest: malformed JSON, a wrong type, an unknown role, a result without its call, an unsupported feature.
        """
        ...

    def reply(self, call: ModelCall, reply: Reply) -> bytes:
        """The whole answer as one JSON body."""
        ...

    def stream(self, call: ModelCall, reply_id: str, created: int, model: str, prompt_tokens: int) -> StreamEncoder:
        """An encoder for a streamed answer. ``prompt_tokens``: what the usage of its reply will say."""
        ...

    def count(self, tokens: int) -> bytes:
        """The answer to a ``count_tokens`` request, whose body ``parse`` has read.

        Raises:
            NotFound: this API has no such route.
        """
        ...

    def error(self, exc: CallError) -> tuple[int, Mapping[str, str], bytes]:
        """Status, extra headers and body of the provider's error shape."""
        ...

    def models(self, names: Sequence[str], created: int, context: int) -> bytes:
        """The models listing."""
        ...

    def model(self, name: str, created: int, context: int) -> bytes:
        """One model."""
        ...

    def is_retry(self, headers: Mapping[str, str]) -> bool:
        """True when the vendor's client says that this request repeats a failed one."""
        ...
