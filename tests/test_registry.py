# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A plug-in's name resolves to what was registered, a built-in, an entry point or an import path, in that order."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints
from typing import get_args

import pytest

from nemo_polar import registry
from nemo_polar.errors import ConfigError, RegistryError
from nemo_polar.registry import PluginKind


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {kind: {} for kind in get_args(PluginKind)})


BUILT_IN = [(kind, name) for kind, names in registry._BUILT_IN.items() for name in names]


@pytest.mark.parametrize(("kind", "name"), BUILT_IN, ids=lambda value: value)
def test_every_built_in_can_be_imported_and_knows_its_name(kind: PluginKind, name: str) -> None:
    assert registry.resolve(kind, name).name == name  # type: ignore[attr-defined]
    assert name in registry.names(kind)


def test_a_registered_plug_in_goes_before_a_built_in_and_stays_in_its_kind() -> None:
    @registry.register("harnesses", "pi")
    class Mine:
        pass

    assert registry.resolve("harnesses", "pi") is Mine
    with pytest.raises(RegistryError):
        registry.resolve("engines", "pi")


def test_registering_the_same_again_is_fine_and_another_is_refused() -> None:
    registry.register("engines", "mine", dict)
    registry.register("engines", "mine", dict)
    with pytest.raises(RegistryError, match="'mine' is registered already"):
        registry.register("engines", "mine", list)
    assert registry.resolve("engines", "mine") is dict


def test_an_import_path_resolves_without_registration() -> None:
    assert registry.resolve("verifiers", "collections:Counter").__name__ == "Counter"


def test_an_entry_point_resolves_and_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("theirs", "collections:OrderedDict", "nemo_polar.sandboxes")
    monkeypatch.setattr(registry, "entry_points", lambda **params: EntryPoints([point]).select(**params))
    assert registry.resolve("sandboxes", "theirs").__name__ == "OrderedDict"
    assert "theirs" in registry.names("sandboxes") and "theirs" not in registry.names("engines")


@pytest.mark.parametrize("name", ["nope", "nope.module:Thing", "collections:Nope", "collections:"])
def test_what_cannot_be_found_is_a_config_error_that_names_it(name: str) -> None:
    with pytest.raises(RegistryError) as caught:
        registry.resolve("harnesses", name)
    assert repr(name) in str(caught.value) and isinstance(caught.value, ConfigError)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(RegistryError, match=r"known: .*pi.*shell"):
        registry.resolve("harnesses", "nope")
