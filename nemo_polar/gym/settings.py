# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What a NeMo Gym config says about Polar: the keys of a server's block that are ours. Reads no file, imports no Gym."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from pydantic import Field, ValidationError

from nemo_polar.errors import ConfigError
from nemo_polar.settings import Settings

GYM_KEYS = frozenset({"datasets", "domain", "description", "value", "verified", "allowed_agents"})
"""What Gym itself may leave in a server's block beside the fields of its own config class."""

_S = TypeVar("_S", bound=Settings)


def from_block(kind: type[_S], server: str, block: Mapping[str, Any], given: Mapping[str, Any] = MappingProxyType({})) -> _S:
    """The settings in a server's block: ``block`` is what Gym's own config class has no field for, over what is ``given``.

    Raises:
        ConfigError: a key is unknown, or a value wrong; names the server and the field.
    """
    try:
        return kind.model_validate({**given, **{key: value for key, value in block.items() if key not in GYM_KEYS}})
    except ValidationError as exc:
        first = exc.errors(include_input=False)[0]
        field = ".".join(str(key) for key in first["loc"])
        known = f"; there are {', '.join(kind.model_fields)}" if first["type"] == "extra_forbidden" else ""
        raise ConfigError(f"{server}: {field}: {first['msg'].lower()}{known}") from exc


class GymAgentSettings(Settings):
    """How the agent server runs its rollouts. Whatever has no key here can be set with ``overrides``."""

    recipe: str | None = None
    """A Polar recipe to start from (``polar rollout --recipe``); None: Polar's own defaults."""
    overrides: tuple[str, ...] = ()
    """More settings of a Polar run, in Hydra's grammar, as on ``polar rollout``'s command line: ``capture.sampling.seed=1``."""
    harness: str = "pi"
    """By its name in the registry, or ``package.module:attribute``."""
    harness_options: dict[str, Any] = {}
    sandbox: str = "local"
    sandbox_options: dict[str, Any] = {}
    tokenizer: str | None = None
    """Folder with the policy's tokenizer and chat template; None: the recipe's."""
    engine_url: str | None = "auto"
    """A vLLM that takes token ids; ``auto``: the one behind Gym's model server, if it does; None: Gym's model server only."""
    model: str | None = None
    """Name of the model, as the engine serves it; from Gym's config."""
    model_url: str | None = None
    """Gym's model server; from Gym's config."""
    model_base_urls: tuple[str, ...] = ()
    """The engines that Gym's model server fronts, ``/v1`` included; from Gym's config."""
    max_context: int | None = Field(default=None, gt=0)
    """Tokens, prompt and sample together; needed where the engine does not tell."""
    relay: bool = False
    """Put the recording relay in front of the engine, so that ``polar audit`` has a log that is not ours. Exact route only."""
    concurrency: int = Field(default=8, gt=0)
    """Harnesses that run at the same time. More rollouts wait; their deadlines wait with them."""
    seconds: float | None = Field(default=None, gt=0)
    """One rollout's deadline over all stages and attempts; None: the recipe's."""
    retries: int | None = Field(default=None, ge=0)
    """Attempts more, when one fails for reasons of infrastructure; None: the recipe's."""
    main: Literal["first_prompt", "most_tokens"] = "first_prompt"
    """Which trace becomes ``response.output`` when a rollout has several: that of the group's first prompt, by which NeMo RL
    groups rollouts, or the one that trains the most tokens."""
    on_failure: Literal["row", "error"] = "row"
    """A rollout that failed for reasons of infrastructure: a row for Gym's failures file, or HTTP 503."""
    verifier: dict[str, Any] | None = None
    """For rows that are no Polar tasks: the verifier block they get. None: such rows are refused."""
    out: str = "runs"
    """Folder of the run folder, which ``polar audit`` and ``polar inspect`` read."""
    name: str = "gym"
