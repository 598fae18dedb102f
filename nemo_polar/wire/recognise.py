# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Which dialect a request is in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nemo_polar.wire.base import Dialect, Route


def match(
    dialects: Sequence[Dialect], method: str, path: str, headers: Mapping[str, str], query: Mapping[str, str]
) -> tuple[Dialect, Route] | None:
    """The first dialect that knows this request line, with its route; None when none does.

    Order matters only for paths that two providers share (``GET /v1/models``). ``path`` is percent-decoded, without a query.
    """
    for dialect in dialects:
        route = dialect.recognise(method, path, headers, query)
        if route is not None:
            return dialect, route
    return None
