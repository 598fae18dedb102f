# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Replies that a client may go on from by name (``previous_response_id``), so that it need not send the conversation again.

Kept in memory, for the session alone, the latest few. The call that goes on becomes the same call as if its client had sent
everything: it is placed, rendered and recorded like any other.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace

from nemo_polar.capture.live import LiveReply
from nemo_polar.errors import BadRequest
from nemo_polar.types import Message
from nemo_polar.wire.fields import shown
from nemo_polar.wire.history import Parsed

_MAX_REPLIES = 64
"""Of one session. Each shares its messages with the one it goes on from."""


@dataclass(slots=True)
class StoredReplies:
    """Of one session."""

    _kept: OrderedDict[str, tuple[tuple[Message, ...], LiveReply]] = field(default_factory=OrderedDict)

    def keep(self, parsed: Parsed, live: LiveReply) -> None:
        """Remember the call that ``live`` answers, if its client asked for that."""
        if not parsed.stored:
            return
        self._kept[live.id] = parsed.call.messages[parsed.preamble :], live
        self._kept.move_to_end(live.id)
        if len(self._kept) > _MAX_REPLIES:
            self._kept.popitem(last=False)

    def resumed(self, parsed: Parsed) -> Parsed:
        """``parsed`` with the conversation it goes on from put in, if it names one.

        Raises:
            BadRequest: there is no such reply here, or it has not ended well.
        """
        if parsed.continues is None:
            return parsed
        messages, live = self._kept.get(parsed.continues, ((), None))
        if live is None or live.reply is None:
            raise BadRequest(
                f"Previous response with id {shown(parsed.continues)} not found: of those of this session that were to be "
                f"stored, the latest {_MAX_REPLIES} are kept.",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        own, new = parsed.call.messages[: parsed.preamble], parsed.call.messages[parsed.preamble :]
        call = replace(parsed.call, messages=(*own, *messages, live.reply.message, *new))
        return replace(parsed, call=call, read=None)
