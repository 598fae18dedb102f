# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Reading request headers: the few things more than one dialect looks for. Names are matched without regard to case."""

from __future__ import annotations

from collections.abc import Mapping


def header(headers: Mapping[str, str], name: str) -> str | None:
    """The value of ``name`` (given in lower case), whatever case the mapping keeps its keys in."""
    value = headers.get(name)
    if value is None:
        value = next((v for k, v in headers.items() if k.lower() == name), None)
    return value


def key(headers: Mapping[str, str], *names: str) -> str | None:
    """The API key: a bearer token, else the first of ``names`` that is there.

    None when there is none, when it is not ASCII, and when one of these headers is given more than once: a server before this
    one may have gone by another of them.
    """
    given = [name.lower() for name, _ in headers.items()]  # of a multi-dict only the items are all there
    if any(given.count(name) > 1 for name in ("authorization", *names)):
        return None
    scheme, _, token = (header(headers, "authorization") or "").strip().partition(" ")
    candidates = [token if scheme.lower() == "bearer" else None, *(header(headers, name) for name in names)]
    found = next((c.strip() for c in candidates if c and c.strip()), None)
    return found if found and found.isascii() else None


def count(headers: Mapping[str, str], name: str) -> int:
    """A header that counts something; 0 when it is absent or not a plain number."""
    value = (header(headers, name) or "").strip()
    return int(value) if value.isascii() and value.isdigit() and len(value) < 10 else 0
