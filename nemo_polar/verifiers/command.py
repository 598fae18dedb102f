# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The command verifier: runs tests on a copy of the agent's workspace, in a fresh sandbox without a network.

The reward is 1 or 0 by one command's exit code, what the command writes to a reward file, or the sum of the weights of the
checks that pass. Hidden files are put in place after the workspace was copied, over whatever the agent left at their paths or
on the way there.

What it cannot prevent is that a test *runs* what the agent wrote. A test written in Python should be started with ``python3
-I`` (else a ``json.py`` or ``conftest.py`` that the agent left beside it is imported), and one that imports the agent's code
should do so in a child process: code in the same process may print, exit or write a reward file as it likes.
"""

from __future__ import annotations

import json
import math
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Literal

from pydantic import Field, ValidationError, model_validator

from nemo_polar.errors import VerifierError
from nemo_polar.sandboxes.base import HOME, WORKDIR, ExecResult, Sandbox
from nemo_polar.settings import Settings, WrittenFile
from nemo_polar.verifiers.base import Evidence, Verdict

_REWARD_FILE = f"{HOME}/reward.json"
_DETAIL_BYTES = 4000
_REWARD_BYTES = 1024 * 1024
_SHARE = 0.9
"""Of the time left, so that a verdict is reached within it."""
_LEAST_SECONDS = 0.5

_MISSING = re.compile(rb"([^\s:]+): (?:command )?(?:not found|no such command)")

# Run with the ancestors of one path as its first words and the path itself as the last: makes way for a file there.
_CLEAR = """
while [ $# -gt 1 ]; do
    if [ -L "$1" ] || { [ -e "$1" ] && [ ! -d "$1" ]; }; then rm -f -- "$1"; fi
    if [ -d "$1" ]; then chmod u+rwx -- "$1"; fi
    shift
done
if [ -d "$1" ] && [ ! -L "$1" ]; then chmod -R u+rwX -- "$1"; fi
rm -rf -- "$1"
"""


class HiddenFile(WrittenFile):
    """A file that the agent never saw: written out, or lying beside the task file."""

    @model_validator(mode="before")
    @classmethod
    def _text_alone(cls, value: Any) -> Any:
        return {"text": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _one_of(self) -> HiddenFile:
        if (wrong := self.mistake()) is not None:
            raise ValueError(wrong)
        return self


class Check(Settings):
    """One named test; it passes when its command exits with 0 in time."""

    name: str = Field(min_length=1)
    command: str | list[str] = Field(min_length=1)
    weight: float = Field(default=1.0, allow_inf_nan=False)


class CommandOptions(Settings):
    """The verifier block of a task."""

    command: str | list[str] | None = Field(default=None, min_length=1)
    checks: list[Check] | None = Field(default=None, min_length=1)
    reward: Literal["exit_code", "reward_file"] = "exit_code"
    reward_file: str = _REWARD_FILE
    files: dict[str, HiddenFile] = {}
    timeout: float = Field(default=60.0, gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _consistent(self) -> CommandOptions:
        if (self.command is None) == (self.checks is None):
            raise ValueError("needs either 'command' or 'checks'")
        if self.checks is not None and self.reward != "exit_code":
            raise ValueError("'reward: reward_file' goes with 'command', not with 'checks'")
        names = [check.name for check in self.checks or ()]
        if len(set(names)) != len(names):
            raise ValueError("two checks have the same name")
        return self


class CommandVerifier:
    """See the module."""

    name: ClassVar[str] = "command"

    def __init__(
        self,
        command: str | Sequence[str] | None = None,
        *,
        checks: Sequence[Mapping[str, Any]] | None = None,
        reward: str = "exit_code",
        reward_file: str = _REWARD_FILE,
        files: Mapping[str, Any] | None = None,
        timeout: float = 60.0,
    ) -> None:
        """Either ``command`` or ``checks``.

        Args:
            command: shell command, or its words to run without a shell; run in the workspace. checks: ``{name, command,
            weight}`` each; the reward is the sum of the weights of those that pass. reward: ``exit_code``: 1.0 for exit 0,
            else 0.0. ``reward_file``: what the command writes to ``reward_file``, a number
                or ``{"reward": x, "components": {name: number}}``.
            reward_file: path inside the sandbox; what is there before the command runs is removed. files: path inside the
            sandbox (relative ones are in the workspace) to a text, or to ``{source | text | base64, executable}``. timeout:
            seconds for each command; one that takes longer has failed, as the agent's code may loop for ever.

        Raises:
            VerifierError: an argument is wrong; the message names it.
        """
        given = {
            "command": command,
            "checks": checks,
            "reward": reward,
            "reward_file": reward_file,
            "files": files or {},
            "timeout": timeout,
        }
        try:
            self.options = CommandOptions.model_validate(given)
            self._hidden = {_inside(path): file for path, file in self.options.files.items()}
            self._reward_file = _inside(reward_file)
        except ValidationError as exc:
            first = exc.errors()[0]
            raise VerifierError(f"{'.'.join(map(str, first['loc'])) or 'verifier'}: {first['msg']}") from exc

    async def verify(self, evidence: Evidence) -> Verdict:
        """See ``Verifier.verify``."""
        deadline = time.monotonic() + evidence.seconds * _SHARE
        await self._place(evidence)
        if self.options.checks is not None:
            return await self._by_checks(evidence.sandbox, self.options.checks, deadline)
        assert self.options.command is not None
        if self.options.reward == "reward_file":
            await _make_way(evidence.sandbox, self._reward_file)
        result = await self._run(evidence.sandbox, self.options.command, deadline, commands_left=1)
        if self.options.reward == "exit_code":
            return Verdict(1.0 if _passed(result) else 0.0, detail=_detail(result))
        if result.timed_out:
            return Verdict(0.0, detail=_detail(result))
        reward, components = _read_reward(await self._get_reward(evidence.sandbox, result), self._reward_file)
        return Verdict(reward, components, _detail(result))

    async def _place(self, evidence: Evidence) -> None:
        """Put the hidden files in place."""
        if not self._hidden:
            return
        contents = {path: _content(evidence.task_dir, path, file) for path, file in self._hidden.items()}
        for path in contents:
            await _make_way(evidence.sandbox, path)
        executable = [path for path, file in self._hidden.items() if file.executable]
        await evidence.sandbox.put(contents, executable=executable)

    async def _by_checks(self, sandbox: Sandbox, checks: Sequence[Check], deadline: float) -> Verdict:
        components: dict[str, float] = {}
        details: list[str] = []
        for index, check in enumerate(checks):
            result = await self._run(sandbox, check.command, deadline, commands_left=len(checks) - index)
            passed = _passed(result)
            components[check.name] = check.weight if passed else 0.0
            details.append(f"{'passed' if passed else 'FAILED'} {check.name}" + ("" if passed else f"\n{_detail(result)}"))
        return Verdict(math.fsum(components.values()), components, "\n".join(details)[-_DETAIL_BYTES:])

    async def _run(self, sandbox: Sandbox, command: str | list[str], deadline: float, *, commands_left: int) -> ExecResult:
        """Run one command, in its timeout or its share of the time left: a loop in one check cannot starve the next."""
        share = (deadline - time.monotonic()) / commands_left
        if share < _LEAST_SECONDS:
            raise VerifierError(f"only {max(share, 0):.1f} s are left for a command of the verifier")
        argv = ["/bin/sh", "-c", command] if isinstance(command, str) else command
        env = {"POLAR_REWARD_FILE": self._reward_file} if self.options.reward == "reward_file" else {}
        result = await sandbox.exec(argv, timeout=min(self.options.timeout, share), env=env, network=False)
        if result.exit_code == 127:
            await _check_present(sandbox, command, result.stderr)
        return result

    async def _get_reward(self, sandbox: Sandbox, result: ExecResult) -> bytes:
        try:
            return await sandbox.get(self._reward_file, max_bytes=_REWARD_BYTES)
        except FileNotFoundError:
            raise VerifierError(
                f"the command ended with exit code {result.exit_code} and wrote no {self._reward_file}: {_detail(result)}"
            ) from None


def _inside(path: str) -> str:
    """``path`` as an absolute path inside the sandbox."""
    absolute = PurePosixPath(WORKDIR) / path
    if ".." in absolute.parts or absolute == PurePosixPath(WORKDIR):
        raise VerifierError(f"files: {path!r} must name a file, without '..'")
    return str(absolute)


def _content(task_dir: Path, path: str, file: HiddenFile) -> bytes:
    if file.source is None:
        return file.written()
    source = (task_dir / file.source).resolve()
    if not source.is_relative_to(task_dir.resolve()):
        raise VerifierError(f"files: {path}: {file.source} leads out of the task's folder")
    try:
        return source.read_bytes()
    except OSError as exc:
        raise VerifierError(f"files: {path}: {file.source} cannot be read: {exc.strerror}") from exc


async def _make_way(sandbox: Sandbox, path: str) -> None:
    """Remove what lies at ``path``, and links or files where it needs folders. Done inside, so that nothing can lead out."""
    pure = PurePosixPath(path)
    if pure.is_relative_to(WORKDIR):
        relative = pure.relative_to(WORKDIR)
        names = [*(f"./{folder}" for folder in list(reversed(relative.parents))[1:]), f"./{relative}"]
    else:
        names = [str(pure)]
    done = await sandbox.exec(["/bin/sh", "-c", _CLEAR, "clear", *names], timeout=60, network=False)
    if done.exit_code != 0:
        raise VerifierError(f"{path} cannot be cleared for the verifier's file: {_detail(done)}")


async def _check_present(sandbox: Sandbox, command: str | list[str], stderr: bytes) -> None:
    """Tell a verifier whose own tool is missing from agent's code that exits with 127.

    Raises:
        VerifierError: the output says of a word of ``command`` that there is no such command, and the sandbox confirms it.
    """
    words = {command[0]} if isinstance(command, list) else _words(command)
    said = {name.decode(errors="replace") for name in _MISSING.findall(stderr)}
    for word in sorted(words & said):
        if "/" not in word:
            found = await sandbox.exec(["/bin/sh", "-c", 'command -v -- "$1"', "find", word], timeout=60, network=False)
            if found.exit_code != 0:
                raise VerifierError(f"the verifier needs {word!r}, which is not in the sandbox")


def _words(command: str) -> set[str]:
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        return set(lexer)
    except ValueError:
        return set(command.split())


def _passed(result: ExecResult) -> bool:
    return result.exit_code == 0 and not result.timed_out


def _detail(result: ExecResult) -> str:
    """The end of a command's output, for a person."""
    head = f"timed out after {result.seconds:.0f} s" if result.timed_out else f"exit code {result.exit_code}"
    text = b"\n".join(part.strip() for part in (result.stdout, result.stderr) if part.strip())
    return f"{head}\n{text[-_DETAIL_BYTES:].decode(errors='replace')}".strip()


def _read_reward(data: bytes, path: str) -> tuple[float, dict[str, float]]:
    """A reward file: a number, or an object with one."""
    try:
        value = json.loads(data)
        if not isinstance(value, dict):
            return _number(value), {}
        return _number(value["reward"]), {str(name): _number(x) for name, x in value.get("components", {}).items()}
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        shown = data[:200].decode(errors="replace")
        raise VerifierError(f"{path} holds no reward (a finite number, or an object with one): {shown!r}") from exc


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("not a finite number")
    return float(value)
