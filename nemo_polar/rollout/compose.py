# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""From a recipe's name and a command line's overrides to checked ``RunSettings``.

Hydra composes; pydantic checks. ``conf/`` and ``recipes/`` lie beside the package in a checkout and inside it in a wheel. These
resolvers are known to them: ``${polar.package:PATH}``, a file that comes with the package, and ``${polar.home:PATH}``, a path
below the folder where set-up puts models and toolchains (``POLAR_HOME``, else ``.polar`` in the checkout or working folder).
``${polar.engine_python:}`` is the Python of the embedded engine's environment (``POLAR_ENGINE_PYTHON``, else the checkout's).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from pydantic import BaseModel, ValidationError

from nemo_polar.errors import ConfigError
from nemo_polar.settings import (
    CodecSettings,
    EngineSettings,
    EnvSettings,
    PluginSettings,
    PolicySettings,
    ProxySettings,
    RunSettings,
    SandboxSettings,
)

PACKAGE = Path(__file__).resolve().parents[1]


def config_dir(name: str) -> Path:
    """The folder ``conf`` or ``recipes``.

    Raises:
        ConfigError: it is in neither place.
    """
    for folder in (PACKAGE / name, PACKAGE.parent / name):
        if any(folder.glob("*.yaml")):
            return folder
    raise ConfigError(f"the folder {name}/ is neither beside the package nor inside it; reinstall nemo_polar")


def home() -> Path:
    """Where set-up puts what it makes."""
    if set_by_user := os.environ.get("POLAR_HOME"):
        return Path(set_by_user).resolve()
    checkout = PACKAGE.parent
    return (checkout if (checkout / "setup.py").is_file() else Path.cwd()) / ".polar"


def engine_python() -> Path:
    """The Python that runs the embedded engine; it need not exist."""
    if set_by_user := os.environ.get("POLAR_ENGINE_PYTHON"):
        return Path(set_by_user)
    return home().parent / ".venv-engine" / "bin" / "python"


def _recipe_file(recipe: str) -> Path:
    folder = config_dir("recipes")
    path = Path(recipe) if recipe.endswith((".yaml", ".yml")) else folder / f"{recipe}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in folder.glob("*.yaml")))
        raise ConfigError(f"no recipe {recipe!r}; known: {known}; or give the path of a .yaml file")
    return path.resolve()


Adapt: TypeAlias = Callable[[Any, Sequence[str]], None]
"""Changes a composed config (OmegaConf's ``DictConfig``, values still missing included) before it is checked, knowing which
keys and groups the command line overrides."""

_OPEN = (".options.", ".launch_options.", ".template_options.")
"""Keys under these are a plug-in's own; a command line may add to them without Hydra's ``+``."""


def _defaults(model: type[BaseModel], **nested: type[BaseModel]) -> dict[str, Any]:
    """Every default of a settings model as plain data, so that each key can be overridden without ``+``.

    Those that are None are left out: the groups' files write them down, as null or as ``???`` where one must be given.
    """
    tree: dict[str, Any] = {name: _defaults(inner) for name, inner in nested.items()}
    for name, field in model.model_fields.items():
        if name not in nested and not field.is_required():
            value = field.get_default(call_default_factory=True)
            if value is not None:
                tree[name] = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    return tree


def _checked_overrides(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Overrides as Hydra is to get them, and the keys or groups they name."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    checked: list[str] = []
    keys: list[str] = []
    for text in overrides:
        try:
            key = OverridesParser.create().parse_override(text).key_or_group
        except HydraException as exc:
            raise ConfigError(f"override {text!r} is not KEY=VALUE: {_plain(exc)}") from exc
        free = any(part in f"{key}." for part in _OPEN) and text[0] not in "+~"
        checked.append(f"++{text}" if free else text)
        keys.append(str(key).replace("/", "."))
    return checked, keys


def compose_tree(
    recipe: str | None, overrides: Sequence[str], *, only: Sequence[str] = (), adapt: Adapt | None = None
) -> dict[str, Any]:
    """The composed config as plain containers, every interpolation resolved; of it just the keys ``only``, if any are given.

    Raises:
        ConfigError: no such recipe or group member, an override that does not parse or names no key, a value still missing.
    """
    from hydra import compose, initialize_config_dir
    from hydra.core.config_store import ConfigStore
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    OmegaConf.register_new_resolver("polar.package", lambda path: str(PACKAGE / path), replace=True)
    OmegaConf.register_new_resolver("polar.home", lambda path: str(home() / path), replace=True)
    OmegaConf.register_new_resolver("polar.engine_python", lambda: str(engine_python()), replace=True)
    defaults = _defaults(
        RunSettings,
        env=EnvSettings,
        harness=PluginSettings,
        sandbox=SandboxSettings,
        engine=EngineSettings,
        policy=PolicySettings,
    )
    defaults["policy"]["codec"] = _defaults(CodecSettings)
    ConfigStore.instance().store(name="settings", node=defaults)
    conf = config_dir("conf")
    base = conf / "config.yaml" if recipe is None else _recipe_file(recipe)
    changes, keys = _checked_overrides(overrides)
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(config_dir=str(base.parent), version_base="1.3"):
            config = compose(base.stem, overrides=[*changes, f"hydra.searchpath=[file://{conf}]"])
        if adapt is not None:
            OmegaConf.set_struct(config, False)
            adapt(config, keys)
        missing = sorted(key for key in OmegaConf.missing_keys(config) if not only or key.partition(".")[0] in only)
        if missing:
            raise ConfigError(f"{', '.join(missing)}: no value; give one as {missing[0]}=VALUE")
        parts = {str(key): config[key] for key in config if not only or key in only}
        return {k: OmegaConf.to_container(v, resolve=True) if OmegaConf.is_config(v) else v for k, v in parts.items()}
    except (HydraException, OmegaConfBaseException) as exc:
        raise ConfigError(_plain(exc)) from exc


def _plain(exc: Exception) -> str:
    """Hydra's message and its cause's on one line, without search paths and advice on printing stack traces."""
    lines: list[str] = []
    for text in (str(exc), str(exc.__cause__ or "")):
        for line in (part.strip() for part in text.splitlines()):
            if line.startswith("Config search path"):
                break
            if line not in ("", "None", *lines) and not line.startswith(
                ("full_key:", "object_type=", "See ", "Set the env", "To append")
            ):
                lines.append(line)
    return " ".join(lines)


_S = TypeVar("_S", bound=BaseModel)


def validate(tree: dict[str, Any], model: type[_S]) -> _S:
    """Check a composed config.

    Raises:
        ConfigError: every wrong key with what is wrong about it.
    """
    try:
        return model.model_validate(tree)
    except ValidationError as exc:
        raise ConfigError("; ".join(describe(error) for error in exc.errors())) from exc


def describe(error: Any) -> str:
    """One pydantic error as ``dotted.key: what is wrong``."""
    key = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return f"{key}: no such key"
    message = error["msg"][0].lower() + error["msg"][1:]
    got = "" if error["type"] == "missing" else f" (got {error['input']!r})"
    return f"{key}: {message}{got}"


def load_settings(recipe: str | None = None, overrides: Sequence[str] = (), *, adapt: Adapt | None = None) -> RunSettings:
    """What ``polar rollout --recipe RECIPE OVERRIDES...`` runs.

    Raises:
        ConfigError: as ``compose_tree`` and ``validate``.
    """
    return validate(compose_tree(recipe, overrides, adapt=adapt), RunSettings)


def load_proxy_settings(recipe: str | None = None, overrides: Sequence[str] = ()) -> ProxySettings:
    """What ``polar proxy`` runs: the part of a run's config that has nothing to do with tasks.

    Raises:
        ConfigError: as ``compose_tree`` and ``validate``.
    """
    return validate(compose_tree(recipe, overrides, only=tuple(ProxySettings.model_fields)), ProxySettings)
