# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What adapters share: options as checked settings, and a CLI's last words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from nemo_polar.errors import HarnessError
from nemo_polar.settings import Settings


class HarnessOptions(Settings):
    """Base of an adapter's options."""


_Options = TypeVar("_Options", bound=HarnessOptions)


def parse(model: type[_Options], options: Mapping[str, object]) -> _Options:
    """``options`` as ``model``.

    Raises:
        HarnessError: an option is unknown or out of range; the message names it.
    """
    try:
        return model.model_validate(dict(options))
    except ValidationError as exc:
        first = exc.errors()[0]
        raise HarnessError(f"{'.'.join(map(str, first['loc'])) or 'options'}: {first['msg']}") from exc


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``over`` on top of ``base``, mapping by mapping."""
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        result[key] = merged(below, value) if isinstance(value, Mapping) and isinstance(below, Mapping) else value
    return result


def last_line(output: bytes) -> str | None:
    """The last line with anything on it, 500 characters at most."""
    lines = output.decode(errors="replace").split("\n")
    return next((line.strip()[:500] for line in reversed(lines) if line.strip()), None)
