# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The conversation tree of one session: which recorded line a request goes on, and what is new in it.

A request is matched, longest prefix first, against the replies *we* gave. It either extends one of them (the messages after it
are new) or starts a root of its own, with a reason. Ids are stored as deltas; nothing is ever spliced or cut.

Plain data and functions: no clock, no socket, no codec. The caller renders or bridges, then calls ``add``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nemo_polar.tokens.canonical import Fingerprints, message_digest, reasoning_digest
from nemo_polar.types import FinishReason, ForkReason, Message, ModelCall, Role, TokenIds, Turn


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a request belongs."""

    parent: Turn | None
    """The recorded turn whose reply it goes on; None for a root."""
    new: tuple[Message, ...]
    """The messages after that reply; all of them for a root."""
    fork_reason: ForkReason | None = None
    """Why it is a root."""
    fork_of: int | None = None
    """For a root with history: the turn whose request shares the longest message prefix."""
    ambiguous: bool = False
    """Several samples fit and nothing the harness sent tells them apart; the latest delivered one was taken."""

    def as_root(self, reason: ForkReason, call: ModelCall) -> Placement:
        """The same request when the line found cannot be extended after all."""
        fork_of = self.parent.id if self.parent is not None else self.fork_of
        return Placement(None, call.messages, reason, fork_of, self.ambiguous)


@dataclass(frozen=True, slots=True)
class _Anchor:
    """What the tree remembers of a turn besides the turn itself."""

    end: int
    """Messages in the conversation once the reply is appended."""
    reasoning: bytes | None
    call_ids: tuple[str, ...]
    request: bytes


class ConversationTree:
    """All turns of a session, and the index from fingerprints to them."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self._anchors: list[_Anchor] = []
        self._children: list[int] = []
        self._replies: dict[bytes, list[int]] = {}
        """Fingerprint of a conversation ending in a reply of ours, to the turns that gave it."""
        self._requests: dict[bytes, list[int]] = {}
        self._seen: dict[bytes, int] = {}
        """Fingerprint of any message prefix, to the first turn whose request had it."""
        self._minted: set[str] = set()

    # --- looking up ---------------------------------------------------------------------------------------------------

    def place(self, call: ModelCall, prints: Fingerprints) -> Placement:
        """Find the recorded reply that this request goes on."""
        for i in range(len(call.messages) - 1, 0, -1):
            if call.messages[i - 1].role is not Role.ASSISTANT:
                continue
            fitting = [t for t in self._replies.get(prints.prefix[i], ()) if self._fits(t, call, prints)]
            if fitting:
                chosen = max(fitting, key=lambda t: (self.turns[t].delivered, t))
                return Placement(self.turns[chosen], call.messages[i:], ambiguous=self._ambiguous(fitting, chosen, call))
        if not any(m.role is Role.ASSISTANT for m in call.messages) or not self.turns:
            return Placement(None, call.messages, ForkReason.NEW)
        if all(t.tools_key != prints.tools for t in self.turns):
            same_system = [t.id for t in self.turns if t.system_key == prints.system]
            return Placement(None, call.messages, ForkReason.TOOLS, same_system[-1] if same_system else None)
        shared = next((self._seen[p] for p in reversed(prints.prefix[1:]) if p in self._seen), None)
        return Placement(None, call.messages, ForkReason.NEW if shared is None else ForkReason.EDITED, shared)

    def _path(self, turn_id: int) -> list[int]:
        path = []
        at: int | None = turn_id
        while at is not None:
            path.append(at)
            at = self.turns[at].parent
        return path

    def _fits(self, turn_id: int, call: ModelCall, prints: Fingerprints) -> bool:
        """True unless ids or reasoning that the harness did send back speak against this line."""
        for at in self._path(turn_id):
            anchor = self._anchors[at]
            if self.turns[at].sample.finish_reason is FinishReason.ABORT:
                continue  # continued by its child, which carries the whole reply
            echoed = prints.reasoning[anchor.end - 1]
            if echoed is not None and echoed != anchor.reasoning:
                return False
            sent = tuple(c.id for c in call.messages[anchor.end - 1].tool_calls)
            if sent != anchor.call_ids and any(i in self._minted for i in sent):
                return False
        return True

    def _ambiguous(self, fitting: Sequence[int], chosen: int, call: ModelCall) -> bool:
        if len(fitting) == 1:
            return False
        calls = self._anchors[chosen].call_ids
        return not calls or tuple(c.id for c in call.messages[self._anchors[chosen].end - 1].tool_calls) != calls

    def earlier(self, prints: Fingerprints) -> list[Turn]:
        """The turns already drawn for an identical request, oldest first."""
        return [self.turns[i] for i in self._requests.get(prints.request, ())]

    def has_child(self, turn: Turn) -> bool:
        return self._children[turn.id] > 0

    def reply_turns(self, turn: Turn) -> list[Turn]:
        """The turns whose samples make up the reply that ends in ``turn``, oldest first: itself and those it continues."""
        turns = [turn]
        while turns[-1].continues and turns[-1].parent is not None:
            turns.append(self.turns[turns[-1].parent])
        return turns[::-1]

    # --- ids ----------------------------------------------------------------------------------------------------------

    def ids_through(self, turn: Turn) -> TokenIds:
        """``prompt + sample`` of a turn: what its children extend. int32[N]"""
        pieces: list[TokenIds] = []
        for at in reversed(self._path(turn.id)):
            pieces += (self.turns[at].prompt_delta, self.turns[at].sample.token_ids)
        return np.concatenate(pieces)

    def prompt_of(self, turn: Turn) -> TokenIds:
        """What the engine was given for a turn. int32[P]"""
        return self.ids_through(turn)[: turn.prompt_len]

    # --- adding -------------------------------------------------------------------------------------------------------

    def add(self, turn: Turn, call: ModelCall, prints: Fingerprints) -> None:
        """Record a drawn turn. Its id must be ``len(turns)``.

        Raises:
            ValueError: a wrong id, or an unknown parent.
        """
        if turn.id != len(self.turns) or (turn.parent is not None and not 0 <= turn.parent < turn.id):
            raise ValueError(f"turn {turn.id} with parent {turn.parent} cannot be number {len(self.turns)} of its session")
        self.turns.append(turn)
        self._children.append(0)
        if turn.parent is not None:
            self._children[turn.parent] += 1
        end = len(call.messages) + 1
        ids = tuple(c.id for c in turn.reply.tool_calls)
        self._minted.update(ids)
        self._anchors.append(_Anchor(end, reasoning_digest(turn.reply), ids, prints.request))
        self._requests.setdefault(prints.request, []).append(turn.id)
        if turn.sample.finish_reason is not FinishReason.ABORT:
            key = message_digest(prints.prefix[-1], turn.reply, prints.call_numbers)
            self._replies.setdefault(key, []).append(turn.id)
        # Newest prefixes first; those before are there already once one is.
        for prefix in reversed(prints.prefix[1:]):
            if self._seen.setdefault(prefix, turn.id) != turn.id:
                break
