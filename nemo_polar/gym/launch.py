# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""NeMo Gym's commands for Polar's environment, for the Gym that there is. Builds them; ``process`` runs them.

    0.7.0   finds the plugin tree by NEMO_GYM_EXTRA_ROOTS, from any working folder
    0.4.0   has no such roots: it is started in a folder that holds the tree by links, unless Polar was linked into it

Either is told to use the environments of ``venvs`` and where to put Hydra's own records.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nemo_polar.errors import ConfigError
from nemo_polar.gym.command import Command
from nemo_polar.gym.installed import Gym
from nemo_polar.gym.plugin_root import ENVIRONMENT, ENVIRONMENTS, servers
from nemo_polar.gym.venvs import Linked, is_linked, link_venvs, state_folder, work_folder

AGENT = "polar_agent"
AGENT_BLOCK = f"{AGENT}.responses_api_agents.polar_agent"
MODEL_TYPE = "vllm_model"
WITH_SERVER = "config_v7"
ROOTS = "NEMO_GYM_EXTRA_ROOTS"
DUMMY_KEY = "none"
HEAD_PORT = 11000

ENVIRONMENT_VARIABLES: Mapping[str, str] = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Gym always starts Ray, whose agents take longer than its half minute on a machine that is busy.
    "RAY_agent_register_timeout_ms": "240000",
}
_TEST_VARIABLES: Mapping[str, str] = {
    # pytest is started in the server's folder, which is an installed package.
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTEST_ADDOPTS": "-p no:cacheprovider",
}
_TOKENS = "return_token_id_information"
_EXACT_TOKENS = "request_prompt_and_generation_token_ids"
"""A newer Gym's way: the ids that the engine was given, in place of a second rendering."""


@dataclass(frozen=True, slots=True)
class Launcher:
    """Builds commands for one Gym."""

    gym: Gym
    root: Path
    """The plugin tree."""
    here: Path
    """The user's working folder."""
    linked: Linked
    cwd: Path
    """The folder to start Gym in."""

    @classmethod
    def prepare(cls, gym: Gym, root: Path, here: Path, model_types: Iterable[str] = (MODEL_TYPE,)) -> Launcher:
        """Make the folders that the commands need.

        Raises:
            ConfigError: there is no such model server, or a folder cannot be made.
        """
        linked = link_venvs(gym, root, model_types)
        from_anywhere = gym.extra_roots or is_linked(gym, root)
        return cls(gym, root, here, linked, here if from_anywhere else work_folder(gym, root, here))

    @property
    def environment(self) -> str:
        """The environment's name in Gym's flags: where there are environment servers, with one of its own."""
        declared = (self.root / ENVIRONMENTS / ENVIRONMENT / f"{WITH_SERVER}.yaml").is_file()
        return f"{ENVIRONMENT}/{WITH_SERVER}" if self.gym.has_environment_servers and declared else ENVIRONMENT

    @property
    def flags(self) -> tuple[str, ...]:
        """What every command that starts servers needs."""
        return f"+uv_venv_dir={_word(self.linked.folder)}", "+skip_venv_if_present=true"

    @property
    def variables(self) -> dict[str, str]:
        """What every command needs in its environment; what the user has set stays as it is."""
        found = {name: value for name, value in ENVIRONMENT_VARIABLES.items() if name not in os.environ}
        if self.gym.extra_roots:
            before = [path for path in os.environ.get(ROOTS, "").split(os.pathsep) if path]
            found[ROOTS] = os.pathsep.join([str(self.root), *(path for path in before if path != str(self.root))])
        return found

    @property
    def records(self) -> tuple[str, str]:
        """Where Hydra keeps its log, in place of ``outputs`` in the working folder; and no copy of the overrides, which hold
        the engine's key."""
        return f"hydra.run.dir={_word(state_folder(self.gym) / 'outputs')}", "hydra.output_subdir=null"

    def list_environments(self, words: Sequence[str] = ()) -> Command:
        """``gym list environments``. A newer Gym would take an override for the name of an environment."""
        return self.command("list", "environments", *words, *(() if self.gym.extra_roots else self.records))

    def validate(self, model: Model, words: Sequence[str] = ()) -> list[Command]:
        """``gym env validate`` of the configuration; on a newer Gym also of the manifest, which takes no overrides."""
        given = (*model.words(), *self.records, *words)
        commands = [self.command("env", "validate", "--environment", self.environment, *given, model=model)]
        if self.gym.extra_roots and (self.root / ENVIRONMENTS / ENVIRONMENT / "manifest.yaml").is_file():
            commands.append(self.command("env", "validate", ENVIRONMENT))
        return commands

    def start(self, model: Model, agent: Mapping[str, str | None], words: Sequence[str] = ()) -> Command:
        """``gym env start``.

        Args:
            agent: settings of the agent, as Hydra writes values; None: null. words: more of Gym's own.
        """
        settings = [f"++{AGENT_BLOCK}.{key}={'null' if value is None else value}" for key, value in agent.items()]
        given = [*model.words(), *self._token_flags(model), *self.flags, *self.records, *settings, *words]
        return self.command("env", "start", "--environment", self.environment, *given, model=model)

    def collect(self, source: Path, target: Path, options: Mapping[str, str | None], words: Sequence[str] = ()) -> Command:
        """``gym eval run --no-serve``: rollouts of the servers that run.

        Args:
            options: more flags by name; those that are None are left out.
        """
        given = [word for name, value in options.items() if value is not None for word in (f"--{name}", value)]
        paths = ("--input", str(self.here / source), "--output", str(self.here / target))
        return self.command("eval", "run", "--no-serve", *paths, *given, *self.records, *words)

    def test(self, words: Sequence[str] = ()) -> list[Command]:
        """``gym env test`` with data validation, for each of our servers. (A newer Gym's test of the manifest takes no
        overrides and builds an environment in the package; what it looks at is among the servers' tests.)

        Raises:
            ConfigError: there is no pytest where Gym would run it.
        """
        if not self.gym.has_pytest:
            how = f"{self.gym.python} -m pip install pytest pytest-asyncio"
            raise ConfigError(f"gym env test runs pytest, which is not in {self.gym.prefix}: {how}")
        one = ("+should_validate_data=true", *self.flags, *self.records, *words)
        return [
            self.command("env", "test", f"+entrypoint={kind}/{name}", *one, env=_TEST_VARIABLES)
            for kind, name in servers(self.root)
        ]

    def command(self, *words: str, model: Model | None = None, env: Mapping[str, str] | None = None) -> Command:
        """``gym WORDS``."""
        secret = model.key if model is not None and model.key != DUMMY_KEY else None
        return Command((str(self.gym.command), *words), self.cwd, {**self.variables, **(env or {})}, secret)

    def _token_flags(self, model: Model) -> list[str]:
        """What makes Gym's own vLLM server report token ids, for the route that goes through it."""
        if model.kind != MODEL_TYPE:
            return []
        block = f"++policy_model.responses_api_models.{model.kind}"
        flags = [f"{block}.{_TOKENS}=true"]
        source = self.gym.site / "responses_api_models" / model.kind / "app.py"
        if source.is_file() and _EXACT_TOKENS in source.read_text(encoding="utf-8"):
            flags.append(f"{block}.{_EXACT_TOKENS}=true")
        return flags

    def exports(self) -> str:
        """Lines for a shell after which Gym's own commands work; ``$POLAR_GYM_FLAGS`` are for those that start servers."""
        flags = " ".join([*self.flags, *self.records])
        variables = {**self.variables, "POLAR_GYM_FLAGS": flags}
        lines = [f"# NeMo Gym {self.gym.version} in {self.gym.prefix}"]
        lines += [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
        lines.append(f'export PATH={shlex.quote(str(self.gym.scripts))}:"$PATH"')
        if self.cwd != self.here:
            lines.append(f"export POLAR_GYM_ROOT={shlex.quote(str(self.cwd))}")
            lines.append(
                "# Gym 0.4.0 finds Polar in its working folder (cd $POLAR_GYM_ROOT), or anywhere after polar gym link."
            )
        out = f"++{AGENT_BLOCK}.out={_word(self.here / 'runs')}"
        lines.append(f"# gym env start --environment {self.environment} --model-type vllm_model --model NAME \\")
        lines.append(f"#     --model-url URL --model-api-key KEY {out} $POLAR_GYM_FLAGS")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Model:
    """The model server, as Gym's flags name it. None: whatever Gym's own configuration says."""

    kind: str = MODEL_TYPE
    name: str | None = None
    url: str | None = None
    key: str = DUMMY_KEY

    def words(self) -> list[str]:
        """Gym's flags."""
        words = ["--model-type", self.kind]
        words += ["--model", self.name] if self.name is not None else []
        words += ["--model-url", self.url] if self.url is not None else []
        keyed = self.url is not None or self.key != DUMMY_KEY
        return words + (["--model-api-key", self.key] if keyed else [])


def head_port(words: Sequence[str]) -> int:
    """The port of Gym's head server under these overrides.

    Raises:
        ConfigError: an override names a port that is none.
    """
    for word in reversed(words):
        key, _, value = word.lstrip("+").partition("=")
        if key == "head_server.port":
            if not value.isdigit():
                raise ConfigError(f"{word}: a port is a number")
            return int(value)
    return HEAD_PORT


def _word(path: Path) -> str:
    """A path as a value in Hydra's grammar, which takes some characters for its own."""
    text = str(path)
    plain = all(char.isalnum() or char in "/._-" for char in text)
    return text if plain else "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
