# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Chat rows for supervised fine-tuning: one trace as the messages and tools that ``apply_chat_template`` takes.

The messages are the journal's: what each request of the harness added, and the replies that were sampled, as they were parsed.
Nothing is decoded from ids here. A row is a *view*: a template that renders it again need not give the ids that were sampled;
for training on exactly those, export tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from nemo_polar.errors import BadRequest, JournalError
from nemo_polar.tokens.messages import message_dicts, tool_dicts
from nemo_polar.trajectory.codec import dumps
from nemo_polar.trajectory.export_rows import Row, about
from nemo_polar.trajectory.records import JournalReader, Request
from nemo_polar.types import Message, Role, ToolSpec, Trace, Trajectory, Turn

FORMAT = "polar-chat"
VERSION = 1

Arguments: TypeAlias = Literal["object", "text"]
"""How a tool call's arguments and a tool's parameters are written. ``object``: as JSON objects, which is what chat templates
are written for; arguments that are no object stay the text that was sampled. ``text``: always as JSON text, for readers that
want one type a column (``datasets`` fills objects of different shapes up with nulls)."""


class ChatRows:
    """Makes chat rows out of one run's journal; reads one session at a time."""

    def __init__(self, journal: Path, *, arguments: Arguments = "object") -> None:
        """Raises ``JournalError``: no journal there, or one of another schema."""
        self._reader = JournalReader(journal)
        self._arguments: Arguments = arguments
        self._sessions = _sessions(self._reader)
        self._rollout: str | None = None
        self._turns: dict[int, Turn] = {}
        self._requests: dict[int, Request] = {}

    def close(self) -> None:
        self._reader.close()

    def row(self, trajectory: Trajectory, trace: Trace) -> Row:
        """A trace as messages. It ends with the last reply that it trains; when it trains none, with its last one.

        ``trained`` tells of each message whether this trace trains it: replies it shares with another trace are trained by
        one of them only.

        Raises:
            JournalError: the journal does not hold this trace, or not the messages of its requests.
        """
        self._load(trajectory.rollout_id)
        line = self._line(trace)
        trained = {s.turn for s in trace.spans if s.role == "sampled" and trace.loss_mask[s.start : s.end].any()}
        messages: list[dict[str, Any]] = []
        flags: list[bool] = []
        names: dict[str, str] = {}
        end, last = 0, 0
        for reply, made_of, request in self._exchanges(line):
            for message in (*request.messages, reply):
                ours = message is reply
                dicts = self._dicts(message, names)
                messages += dicts
                flags += [ours and not trained.isdisjoint(made_of)] * len(dicts)
            last = len(messages)
            end = last if flags[-1] else end
        tools = self._requests[line[0].id].tools or ()
        size = end or last
        return {
            "format": FORMAT,
            "version": VERSION,
            **about(trajectory, trace),
            "messages": messages[:size],
            "tools": self._tools(tools),
            "trained": flags[:size],
        }

    # --- from the journal ---------------------------------------------------------------------------------------------

    def _load(self, rollout_id: str) -> None:
        if rollout_id == self._rollout:
            return
        session = self._sessions.get(rollout_id)
        if session is None:
            raise JournalError(f"{self._reader.path} has no session of rollout {rollout_id}, which has a trajectory")
        self._turns = {turn.id: turn for turn in self._reader.turns(session)}
        self._requests = self._reader.requests(session)
        self._rollout = rollout_id

    def _line(self, trace: Trace) -> list[Turn]:
        """The turns of a trace, root to leaf."""
        line: list[Turn] = []
        at: int | None = int(trace.id.rpartition("/")[2])
        while at is not None and at in self._turns:
            line.append(self._turns[at])
            at = line[-1].parent
        if at is not None or sum(map(len, line)) != len(trace):
            raise JournalError(f"{self._reader.path} does not hold trace {trace.id} as the trajectory file has it")
        return line[::-1]

    def _exchanges(self, line: Sequence[Turn]) -> Iterator[tuple[Message, list[int], Request]]:
        """Each reply of a line, the turns it was drawn in (several if it went on after an abort), the request it answers."""
        made_of: list[int] = []
        for turn, after in zip(line, [*line[1:], None], strict=True):
            made_of.append(turn.id)
            if after is not None and after.continues:
                continue
            request = self._requests.get(made_of[0])
            if request is None:
                raise JournalError(
                    f"{self._reader.path}: the messages of turn {made_of[0]} of rollout {self._rollout} were not recorded; "
                    "chat rows need a run made by this version of Polar (export it as tokens, or run it again)"
                )
            yield turn.reply, made_of, request
            made_of = []

    # --- as a template takes them -------------------------------------------------------------------------------------

    def _dicts(self, message: Message, names: dict[str, str]) -> list[dict[str, Any]]:
        try:
            dicts = message_dicts([message], _as_it_is, names=names)
        except BadRequest as exc:
            raise JournalError(f"{self._reader.path}: rollout {self._rollout}: {exc}") from exc
        if message.role is Role.DEVELOPER:  # few templates know the role; those that do treat it as the system's
            dicts = [{**made, "role": Role.SYSTEM.value} for made in dicts]
        if message.role is Role.ASSISTANT:
            for call, made in zip(message.tool_calls, dicts[0].get("tool_calls", ()), strict=True):
                names[call.id] = call.name
                made["function"]["arguments"] = self._written(call.arguments)
        return dicts

    def _written(self, arguments: str) -> Any:
        value = json_object(arguments) if self._arguments == "object" else None
        return arguments if value is None else value

    def _tools(self, tools: Sequence[ToolSpec]) -> list[dict[str, Any]] | str | None:
        if not tools:
            return None
        dicts = tool_dicts(tools, _as_it_is)
        return dicts if self._arguments == "object" else dumps(dicts)


def json_object(text: str) -> dict[str, Any] | None:
    """The JSON object that ``text`` is; None when it is none, or holds what JSON does not know (``NaN``)."""

    def refuse(constant: str) -> Any:
        raise ValueError(constant)

    try:
        value = json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _as_it_is(text: str) -> str:
    return text


def _sessions(reader: JournalReader) -> dict[str, str]:
    """Rollout id to the session that its trajectory is made of: that of the last attempt with a result."""
    last: dict[str, int] = {}
    for result in reader.results():
        last[result.rollout_id] = max(result.attempt, last.get(result.rollout_id, 0))
    sessions = [s for s in reader.sessions() if s.attempt == last.get(s.rollout_id, s.attempt)]
    return {s.rollout_id: s.id for s in sorted(sessions, key=lambda s: (s.attempt, s.created_at))}
