# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A Jinja chat template as Hugging Face's tokenizers run it: sandboxed, with the same filters, globals and white space rules.

One difference, on purpose: ``strftime_now`` tells a fixed day. The rollouts of a group must have equal first prompts,
whatever day it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from nemo_polar.errors import ConfigError

PINNED_DATE = "2025-01-01"
"""What ``strftime_now`` tells, unless the template option ``date`` gives another day (ISO 8601)."""

_ESCAPABLE = re.compile("[^\x00-\x7f\ufdd0\ufdd1]")


class ChatTemplate:
    """A compiled template with its fixed arguments."""

    def __init__(self, source: str, *, options: Mapping[str, Any] | None = None, named_tokens: Mapping[str, str] | None = None):
        """``options``: passed to the template at every render, ``named_tokens`` (``eos_token``...) too.

        Raises:
            ConfigError: the template does not compile, or the ``date`` option is not a day.
        """
        self.source = source
        self._named_tokens = dict(named_tokens or {})
        self.options = dict(options or {})
        self._fixed = {**self._named_tokens, **self.options}
        try:
            today = date.fromisoformat(str(self.options.get("date", PINNED_DATE)))
        except ValueError as exc:
            raise ConfigError(f"template_options.date: {exc}") from exc
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = today.strftime
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as exc:
            raise ConfigError(f"the chat template does not compile: {exc}") from exc

    def with_options(self, options: Mapping[str, Any]) -> ChatTemplate:
        """The same template with other options."""
        return ChatTemplate(self.source, options=options, named_tokens=self._named_tokens)

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = (), *, generation_prompt: bool = False
    ) -> str:
        """The conversation as text. Raises whatever the template, a program of somebody else's, raises."""
        return self._template.render(
            messages=list(messages),
            tools=list(tools) or None,
            documents=None,
            add_generation_prompt=generation_prompt,
            **self._fixed,
        )


class _Generation(Extension):
    """``{% generation %}`` marks what an assistant wrote, for training on whole conversations; here it is transparent."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is, not escaped for HTML as Jinja's own filter does. The marks of quoted text always stay what they are."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    return _ESCAPABLE.sub(lambda match: json.dumps(match[0])[1:-1], text) if ensure_ascii else text
