# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""An environment that looks as if NeMo Gym were installed in it, for what only looks at Gym, or only starts its command."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from nemo_polar.gym.installed import Gym

GYM = "-e nemo-gym[dev] @ ../../\n"
VLLM = '[project]\nname = "vllm-model"\ndependencies = ["nemo-gym[dev]"]\n'
NEEDS_MORE = '[project]\nname = "local"\ndynamic = ["dependencies"]\n'
RECORDING_GYM = """\
#!/bin/sh
[ -n "$FAKE_GYM_SCRIPT" ] && eval "$FAKE_GYM_SCRIPT"
{ pwd; printf '%s\\n' "$RAY_USAGE_STATS_ENABLED" "$NEMO_GYM_EXTRA_ROOTS" "$@"; } >> "$(dirname "$0")/../ran.txt"
exit ${FAKE_GYM_EXIT:-0}
"""


def fake_gym(folder: Path, version: str = "0.7.0", *, venv: bool = True, python: str = "3.13.0", polar: bool = True) -> Gym:
    """The environment, on disk; its ``gym`` writes down how it was started, into ``ran.txt``, and does nothing."""
    new = version >= "0.7"
    site, scripts = folder / "lib", folder / "bin"
    for path, text in {
        "nemo_gym/__init__.py": 'NAME = "NEMO_GYM_EXTRA_ROOTS"' if new else "",
        "responses_api_models/vllm_model/pyproject.toml": VLLM,
        "responses_api_models/vllm_model/app.py": "request_prompt_and_generation_token_ids" if new else "",
        "responses_api_models/openai_model/requirements.txt": GYM,
        "responses_api_models/local_vllm_model/pyproject.toml": NEEDS_MORE,
        **({"environment_servers/legacy_agent/requirements.txt": GYM} if new else {}),
        **({"environment_servers/user_sim/requirements.txt": GYM + "# more\nsim @ git+https://x\n"} if new else {}),
    }.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)
    scripts.mkdir(parents=True)
    facts = {
        "python": python,
        "python_info": [int(part) for part in python.split(".")],
        "prefix": str(folder),
        "is_venv": venv,
        "scripts": str(scripts),
        "version": version,
        "site": str(site),
        "polar": polar,
        "pytest": True,
    }
    for name, text in {"python": f"#!/bin/sh\necho {shlex.quote(json.dumps(facts))}\n", "gym": RECORDING_GYM}.items():
        (scripts / name).write_text(text)
        (scripts / name).chmod(0o755)
    if venv:
        (scripts / "activate").write_text("")
    return Gym(scripts / "python", folder, site, scripts, version, venv, True, new)


def fake_plugin(root: Path) -> Path:
    """A plugin tree with what is looked at: two servers and the environment, with and without a server of its own."""
    for path in (
        "environments/polar/config.yaml",
        "environments/polar/config_v7.yaml",
        "environments/polar/manifest.yaml",
        "responses_api_agents/polar_agent/requirements.txt",
        "resources_servers/polar/requirements.txt",
    ):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("")
    (root / "resources_servers" / "notes").mkdir()
    return root
