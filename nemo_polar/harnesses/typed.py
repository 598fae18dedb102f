# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""An instruction, word for word, into a CLI that reads its stdin as if it had been typed: Gemini CLI and its heir, Qwen Code.

Typed text is more than text to them: ``@name`` pulls a file in (Gemini CLI even changes the text around it), and a ``/`` at the
start is a command. The prompt of a custom command is not read so. Where it matters, the instruction is therefore put down as a
command, and that command is typed. Such a prompt has marks of its own (``@{``, ``!{``, ``{{args}}``); an instruction that holds
one of them is typed as it is.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Literal

_COMMAND = "polar-task"
_MARKS = ("@{", "!{", "{{args}}")


@dataclass(frozen=True, slots=True)
class Typed:
    """What goes to stdin, and the files that it needs."""

    stdin: bytes
    files: dict[str, bytes] = field(default_factory=dict)


def typed(instruction: str, commands: str, form: Literal["toml", "md"]) -> Typed:
    """``commands``: the folder, inside the sandbox, where the CLI looks for custom commands; ``form``: how they are written.

    As ``md``, the command is one that the model is not told of; white space at the ends of its prompt is then lost.
    """
    special = "@" in instruction or instruction.lstrip().startswith(("/", "?"))
    if not special or any(mark in instruction for mark in _MARKS):
        return Typed(instruction.encode())
    if form == "md":
        content = f"---\ndisable-model-invocation: true\n---\n{instruction}"
    else:  # a JSON string is a TOML string but for one character
        content = f"prompt = {json.dumps(instruction, ensure_ascii=False)}\n".replace("\x7f", "\\u007f")
    return Typed(f"/{_COMMAND}\n".encode(), {f"{commands}/{_COMMAND}.{form}": content.encode()})
