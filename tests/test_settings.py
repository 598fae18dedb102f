# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Settings are frozen, refuse what they do not know, and their defaults are the safe ones."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from nemo_polar import settings
from nemo_polar.settings import CaptureSettings, CodecSettings, RunSettings, SamplingPolicy, StageSettings, TracePolicy
from tests.support.rollouts import settings as run_settings

MODELS = [m for m in vars(settings).values() if isinstance(m, type) and issubclass(m, BaseModel) and m is not BaseModel]


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.__name__)
def test_every_settings_model_is_frozen_and_refuses_unknown_keys(model: type[BaseModel]) -> None:
    assert model.model_config.get("frozen") and model.model_config.get("extra") == "forbid"


def test_nothing_listens_beyond_loopback_by_default() -> None:
    assert CaptureSettings().host == CaptureSettings().control_host == "127.0.0.1"


def test_the_default_distribution_is_the_one_a_trainer_can_rescore() -> None:
    policy = SamplingPolicy()
    assert policy.override and (policy.temperature, policy.top_p, policy.top_k, policy.min_p) == (1.0, 1.0, -1, 0.0)
    assert not TracePolicy().train_unrescorable
    assert CodecSettings(tokenizer="x").thinking_retention == "all"


def test_settings_survive_json() -> None:
    before = run_settings(capture={"max_calls": 3}, traces={"train_kinds": ["main"]})
    assert RunSettings.model_validate_json(before.model_dump_json()) == before


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"group_size": 0}, "group_size"),
        ({"seconds": 0}, "seconds"),
        ({"retries": -1}, "retries"),
        ({"name": "a/b"}, "name"),
        ({"name": ".hidden"}, "name"),
        ({"stages": {"run": 0}}, "stages.run"),
        ({"engine": {"name": "x", "launch": "docker"}}, "engine.launch"),
        ({"capture": {"port": 70000}}, "capture.port"),
        ({"policy": {"name": "x"}}, "policy.codec"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_value_out_of_range_names_its_key(change: dict[str, Any], key: str) -> None:
    with pytest.raises(ValidationError) as caught:
        run_settings(**change)
    assert [".".join(map(str, error["loc"])) for error in caught.value.errors()] == [key]


def test_rollouts_under_way_are_bounded_by_the_stages_together() -> None:
    assert StageSettings(prepare=1, run=2, verify=3, build=4).open == 10
