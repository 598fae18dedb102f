# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What the ids of the Responses dialect say.

An item's id holds the id of its reply, so that items which a client echoes are known to be of one reply, or of two. The id of a
custom tool call also says what its text is: the call's own input, or, where the model did not write a well-formed call, the
whole of what it wrote. Clients that drop item ids still send call ids back, since they match results to calls, so that mark
is on the call id. Pure functions; no id is ever trusted for more than this.
"""

from __future__ import annotations

import re

_PREFIXES = {"reasoning": "rs", "message": "msg", "function_call": "fc", "custom_tool_call": "ctc"}
# Reply ids are those of ``unique_id()``. A looser pattern would find replies in ids that clients make up (``msg_pi_3``).
_ITEM = re.compile(r"(?:rs|msg|fc|ctc)_([0-9a-f]{24})_[0-9]+")
_RESPONSE = "resp_"
_VERBATIM = "_verbatim"


def response_id(reply_id: str) -> str:
    """The id of the response that holds the whole reply."""
    return _RESPONSE + reply_id


def reply_of_response(response_id: str) -> str:
    """The id of the reply that a response held."""
    return response_id.removeprefix(_RESPONSE)


def item_id(kind: str, reply_id: str, index: int) -> str:
    """The id of an output item; ``index`` counts the items of its reply from 0."""
    return f"{_PREFIXES[kind]}_{reply_id}_{index}"


def reply_of_item(item_id: object) -> str | None:
    """The id of the reply that an item came from; None when the id is none of ours."""
    found = _ITEM.fullmatch(item_id) if isinstance(item_id, str) else None
    return found[1] if found else None


def verbatim(call_id: str) -> str:
    """The id that a custom tool call goes by when its input is all that the model wrote."""
    return call_id + _VERBATIM


def without_mark(call_id: str) -> tuple[str, bool]:
    """A call id as it was minted, and whether it was marked."""
    plain = call_id.removesuffix(_VERBATIM)
    return (plain, True) if plain and plain != call_id else (call_id, False)
